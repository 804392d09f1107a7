/* Where parameters and states lie in their flat spaces. Parameters lie in the order in which the
 * backward pass finishes their gradients, last layer first, so that buckets, cut front to back,
 * become complete one after the other while it runs. */
#include "runtime/graph/maker.h"

#include <string.h>

#define ALIGN 16 /* elements: 64 bytes */

static tr_status place(size_t count, size_t *at, size_t *end)
{
    *at = *end;
    if (!tr_add_size(*end, tr_align_up(count, ALIGN), end) || *end > (SIZE_MAX >> 8))
        return TR_FAIL(TR_SHAPE, "model: more parameters than memory can hold");
    return TR_OK;
}

/* The rows in the order in which their gradients are finished: each where the first layer that uses
 * it stands, the last layer first; then the frozen ones, which have none. */
static tr_status sort(const tr_model *m, int **rows)
{
    size_t n = 0;
    int *out = *rows = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof *out);
    if (!out) return tr_last_status();
    for (int frozen = 0; frozen < 2; frozen++)
        for (size_t l = m->nlayers; l-- > 0;)
            for (int i = 0; i < m->layers[l].nparams; i++) {
                const int row = m->layers[l].params[i];
                const tr_param *p = &m->params[row];
                if (p->frozen == frozen && strcmp(p->layer, m->layers[l].name) == 0) out[n++] = row;
            }
    return TR_OK;
}

static tr_status place_all(tr_model *m, const int *rows)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < m->nparams; i++) {
        tr_param *p = &m->params[rows[i]];
        TR_TRY(place(p->count, &p->offset, &m->flat_count));
        if (!p->frozen) m->learned_count = m->flat_count;
        m->nparameters += p->count;
    }
    for (size_t i = 0; i < m->nstates; i++)
        TR_TRY(place(m->states[i].count, &m->states[i].offset, &m->state_count));
out:
    return st;
}

/* A bucket closes with the parameter that fills it up, and with the last one that is learned. */
static void cut(tr_model *m, const int *rows, size_t first, size_t rest)
{
    size_t begin = 0, size = first;
    m->nbuckets = 0;
    for (size_t i = 0; begin < m->learned_count; i++) {
        const tr_param *p = &m->params[rows[i]];
        size_t end = p->offset + tr_align_up(p->count, ALIGN);
        if ((end - begin) * sizeof(float) < size && end < m->learned_count) continue;
        m->buckets[m->nbuckets++] = (tr_range){begin, end};
        begin = end;
        size = rest;
    }
}

tr_status tr_model_cut(tr_model *m, size_t first, size_t rest)
{
    int *rows;
    const tr_status st = sort(m, &rows);
    if (st == TR_OK) cut(m, rows, first, rest);
    tr_free(rows);
    return st;
}

static void find_rounds(tr_model *m)
{
    /* scales of int8 values are those of the float32 master on every rank */
    for (size_t i = 0; i < m->nparams; i++) m->params[i].rounds = m->params[i].stored != TR_I8;
    for (size_t l = 0; l < m->nlayers; l++)
        for (int i = 0; i < m->layers[l].nparams; i++)
            if (!(m->layers[l].def->rounds >> i & 1))
                m->params[m->layers[l].params[i]].rounds = false;
}

static void list_rounded(tr_model *m, const int *rows)
{
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[rows[i]];
        const size_t end = p->offset + tr_align_up(p->count, ALIGN);
        if (!p->rounds || p->frozen) continue;
        if (m->nrounded && m->rounded[m->nrounded - 1].end == p->offset)
            m->rounded[m->nrounded - 1].end = end;
        else
            m->rounded[m->nrounded++] = (tr_range){p->offset, end};
    }
}

tr_status tr_layout(tr_model *m, size_t bucket_bytes)
{
    tr_status st = TR_OK;
    int *rows = NULL;
    tr_free(m->buckets);
    tr_free(m->rounded);
    m->buckets = m->rounded = NULL;
    m->flat_count = m->learned_count = m->state_count = m->nparameters = m->nrounded = 0;
    TR_TRY(sort(m, &rows));
    TR_TRY(place_all(m, rows));
    m->buckets = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof *m->buckets);
    m->rounded = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof *m->rounded);
    TR_HAVE(m->buckets && m->rounded);
    find_rounds(m);
    list_rounded(m, rows);
    /* A small first bucket: communication starts early. */
    cut(m, rows, bucket_bytes ? bucket_bytes : (size_t)1 << 20,
        bucket_bytes ? bucket_bytes : 4u << 20);
out:
    tr_free(rows);
    return st;
}

tr_status tr_model_freeze(tr_model *m, const bool *frozen, size_t bucket_bytes)
{
    for (size_t i = 0; i < m->nparams; i++) {
        tr_param *p = &m->params[i];
        if (!frozen[i]) continue;
        p->frozen = true;
        if (p->learned_scale >= 0) m->params[p->learned_scale].frozen = true;
    }
    return tr_layout(m, bucket_bytes);
}
