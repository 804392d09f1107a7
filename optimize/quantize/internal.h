/* What the files of this room share. Private. */
#ifndef TR_QUANTIZE_INTERNAL_H
#define TR_QUANTIZE_INTERNAL_H

#include "optimize/quantize/quantize.h"
#include "runtime/graph/facts.h"

/* Element i of an array of activations. */
static inline double tr_value_at(tr_dtype t, const void *p, size_t i)
{
    return t == TR_BF16  ? (double)tr_bf16_to_f32(((const tr_bf16 *)p)[i])
           : t == TR_F16 ? (double)tr_f16_to_f32(((const tr_f16 *)p)[i])
                         : (double)((const float *)p)[i];
}

/* A tensor's elements where the host reads them, until the next call with `v`: as they lie in
 * memory, or a copy. */
typedef struct {
    void *buffer; /* of tr_alloc */
    size_t nbytes;
} tr_host_values;
tr_status tr_host_values_of(const tr_evaluator *e, const tr_plan *p, int tensor, tr_host_values *v,
                            const void **at);

static inline double tr_decibels(double signal, double noise)
{
    return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

/* The weight of a product that nobody shares and that is float32; NULL: it has none. */
const tr_param *tr_own_weight(const tr_model *m, const tr_layer *l);
/* TR_FILE: one of a layer's values, of all parameters and states, is not finite: which, of which
 * layer. */
tr_status tr_values_finite(const char *layer, const char *name, const float *v, size_t count);
tr_status tr_network_finite(const tr_network *n);
/* Of the layer that rounds a value: its type, and its options. */
const char *tr_steps_type(const tr_value_range *r, char *text, size_t size);

/* A network that computes chosen layers twice: as they are in `n`, and, as "NAME.INDEX.rounded", of
 * rounded inputs and with the rows of `q`. For mode infer alone. */
tr_status tr_quantize_beside(const tr_network *n, const tr_network *q, const bool *chosen,
                             const tr_value_range *ranges, tr_network **out);
#define TR_ROUNDED_NAME "%.32s.%d.rounded" /* name, index */

#endif
