/* Marks where buckets of the gradient are complete, and cuts a graph for an empty share down to
 * what takes part in collectives. */
#include "runtime/graph/builder.h"

static int bucket_of(const tr_model *m, size_t offset)
{
    size_t lo = 0, hi = m->nbuckets;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (m->buckets[mid].begin <= offset)
            lo = mid;
        else
            hi = mid;
    }
    return (int)lo;
}

/* How many outputs of ops each parameter's gradient still waits for. */
static int *count_writers(const tr_graph *g)
{
    int *writers = tr_alloc(TR_MEM_OTHER, g->model->nparams, sizeof *writers);
    for (size_t i = 0; writers && i < g->nops; i++)
        for (int k = 0; k < g->ops[i].nout; k++) {
            const tr_tensor *t = g->ops[i].out[k] >= 0 ? &g->tensors[g->ops[i].out[k]] : NULL;
            if (t && t->role == TR_ROLE_GRAD) writers[t->index]++;
        }
    return writers;
}

/* Buckets become ready in their order: one that is complete early waits for those before it. A
 * gradient is complete with its last writer; a frozen parameter has none. */
tr_status tr_pass_buckets(tr_builder *b)
{
    tr_graph *g = b->g;
    const tr_model *m = g->model;
    size_t *missing = tr_alloc(TR_MEM_OTHER, m->nbuckets, sizeof *missing);
    int *writers = count_writers(g);
    if (!missing || !writers) {
        tr_free(missing);
        tr_free(writers);
        return tr_last_status();
    }
    for (size_t i = 0; i < m->nparams; i++)
        if (!m->params[i].frozen) missing[bucket_of(m, m->params[i].offset)]++;
    size_t ready = 0;
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nout; k++) {
            const tr_tensor *t = op->out[k] >= 0 ? &g->tensors[op->out[k]] : NULL;
            if (t && t->role == TR_ROLE_GRAD && --writers[t->index] == 0)
                missing[bucket_of(m, m->params[t->index].offset)]--;
        }
        if (op->phase != TR_PHASE_BACKWARD) continue;
        size_t before = ready;
        while (ready < m->nbuckets && missing[ready] == 0) ready++;
        if (ready > before) op->bucket_ready = (int)ready - 1;
    }
    tr_free(missing);
    tr_free(writers);
    return TR_OK;
}

/* The first op that writes a gradient overwrites it, or adds to what earlier micro-batches left;
 * each later one adds. What goes on to another op is overwritten each time. */
tr_status tr_pass_adds(tr_builder *b)
{
    tr_graph *g = b->g;
    bool *written = tr_alloc(TR_MEM_OTHER, g->model->nparams, sizeof *written);
    if (!written) return tr_last_status();
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nout; k++) {
            const tr_tensor *t = op->out[k] >= 0 ? &g->tensors[op->out[k]] : NULL;
            if (t && t->role != TR_ROLE_GRAD) op->overwrites |= 1u << k;
            if (!t || t->role != TR_ROLE_GRAD) continue;
            if (written[t->index]) op->adds |= 1u << k;
            written[t->index] = true;
        }
    }
    tr_free(written);
    return TR_OK;
}

/* All ranks must meet in the same collectives in the same order, whatever their share. */
void tr_pass_empty_share(tr_builder *b)
{
    tr_graph *g = b->g;
    size_t n = 0;
    int mark = -1;
    for (size_t i = 0; i < g->nops; i++) {
        tr_op op = g->ops[i];
        if (op.bucket_ready > mark) mark = op.bucket_ready;
        if (!b->sync || !op.def->collective || op.recomputed) continue;
        op.bucket_ready = mark;
        mark = -1;
        g->ops[n++] = op;
    }
    g->nops = n;
}
