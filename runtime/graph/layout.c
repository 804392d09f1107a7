/* Where parameters and states lie in their flat spaces. Parameters lie in the order in which the
 * backward pass finishes their gradients, last layer first, so that buckets, cut front to back,
 * become complete one after the other while it runs. */
#include "runtime/graph/maker.h"

#define ALIGN 16 /* elements: 64 bytes */

static tr_status place(size_t count, size_t *at, size_t *end)
{
    *at = *end;
    if (!tr_add_size(*end, tr_align_up(count, ALIGN), end) || *end > (SIZE_MAX >> 8))
        return TR_FAIL(TR_SHAPE, "model: more parameters than memory can hold");
    return TR_OK;
}

static tr_status place_all(tr_model *m)
{
    tr_status st = TR_OK;
    for (size_t l = m->nlayers; l-- > 0;) {
        const tr_layer *layer = &m->layers[l];
        for (int i = 0; i < layer->nparams; i++) {
            tr_param *p = &m->params[layer->params[i]];
            TR_TRY(place(p->count, &p->offset, &m->flat_count));
            m->nparameters += p->count;
        }
    }
    for (size_t i = 0; i < m->nstates; i++)
        TR_TRY(place(m->states[i].count, &m->states[i].offset, &m->state_count));
out:
    return st;
}

/* A bucket closes with the parameter that fills it up. */
static void cut(tr_model *m, size_t first, size_t rest)
{
    size_t begin = 0, size = first;
    for (size_t l = m->nlayers; l-- > 0;) {
        const tr_layer *layer = &m->layers[l];
        for (int i = 0; i < layer->nparams; i++) {
            const tr_param *p = &m->params[layer->params[i]];
            size_t end = p->offset + tr_align_up(p->count, ALIGN);
            if ((end - begin) * sizeof(float) < size && end < m->flat_count) continue;
            m->buckets[m->nbuckets++] = (tr_bucket){begin, end};
            begin = end;
            size = rest;
        }
    }
}

tr_status tr_layout(tr_model *m, size_t bucket_bytes)
{
    tr_status st = TR_OK;
    TR_TRY(place_all(m));
    m->buckets = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof(*m->buckets));
    if (!m->buckets) return TR_MEMORY;
    /* A small first bucket: communication starts early. */
    cut(m, bucket_bytes ? bucket_bytes : (size_t)1 << 20, bucket_bytes ? bucket_bytes : 4u << 20);
out:
    return st;
}
