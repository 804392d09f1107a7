/* Quantization: how large values become over data, and networks with weights and activations of fewer
 * bits. What comes out is a model as any other: layers `fake_quantize` say which values have 8 bits, the
 * layers' option `stored` how the file keeps their weights; inference makes products of 8 bits of it. */
#ifndef TR_QUANTIZE_H
#define TR_QUANTIZE_H

#include "optimize/evaluation/evaluation.h"
#include "optimize/network/network.h"

/* Which of the values a range covers; what is beyond it is clipped. Histograms have 2048 bins of the
 * magnitude. */
typedef enum {
    TR_CALIBRATE_MINMAX,     /* all */
    TR_CALIBRATE_PERCENTILE, /* a share of them */
    TR_CALIBRATE_ENTROPY, /* least divergence of the distributions before and after (Migacz 2017) */
    TR_CALIBRATE_MSE      /* least squared error */
} tr_calibration_kind;

typedef struct {
    tr_calibration_kind kind;
    double percentile; /* in (0, 100] */
    uint64_t samples;  /* of data.train, the first ones; 0: all */
} tr_calibration;

/* One value's: an input's or a layer's output. */
typedef struct {
    double least, most; /* seen; 0 counts as seen */
    bool is_signed;     /* some are below 0: steps from -127 to 127, else from 0 to 255 */
    double scale;       /* of a step; a float32 */
} tr_value_range;

/* *Collective.* The ranges of the values wanted[v], [inputs + layers]; ids cannot be. The same bits on any
 * number of ranks and threads. ranges: [inputs + layers]. TR_DATA: a value that is not finite. */
tr_status tr_calibrate(tr_evaluator *e, const tr_network *n, const tr_config *config,
                       const tr_calibration *o, const bool *wanted, tr_value_range *ranges);
/* From a histogram of magnitudes, bin i for [i, i + 1) * most / bins: what the range is to cover. */
double tr_calibration_most(const tr_calibration *o, bool is_signed, double most,
                           const int64_t *histogram);
enum { TR_CALIBRATION_BINS = 2048 };

/* ---- Networks. All Local. -------------------------------------------------------------------- */

/* Whether a layer can be computed in 8 bits: a product of one group with a weight of its own, float32. */
bool tr_quantizable(const tr_model *m, const tr_layer *l);
/* The weights of products and tables rounded to float16 or bfloat16. TR_CONFIG: one does not fit. */
tr_status tr_quantize_weights(const tr_network *n, tr_dtype stored, tr_network **out);
/* wanted[v]: where layers `fake_quantize` go when the layers chosen[l] are computed in 8 bits: what they
 * read, and what is added to what they make. */
void tr_quantize_places(const tr_network *n, const bool *chosen, bool *wanted);
/* The network with them and with int8 weights: symmetric, a scale for each output or one for all, the largest
 * weight's 127th part. sqnr: [layers] of a chosen layer's weight, in dB; may be NULL. */
tr_status tr_quantize_static(const tr_network *n, const bool *chosen, const tr_value_range *ranges,
                             bool per_tensor, double *sqnr, tr_network **out);

#endif
