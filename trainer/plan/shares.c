/* Shares of a global batch. */
#include "trainer/plan/shares.h"

#include <string.h>

#include "runtime/data/data.h"

uint64_t tr_eval_batch(const tr_config *c)
{
    return (uint64_t)(c->train.eval.batch > 0 ? c->train.eval.batch : c->train.batch);
}

uint64_t tr_eval_at_once(const tr_config *c, uint64_t samples)
{
    const uint64_t batch = tr_eval_batch(c);
    return samples < batch ? samples : batch;
}

/* One of the model, and of each of its shorter ones; nothing is short in an empty share. */
static size_t add_key(const tr_model *m, tr_mode mode, int64_t batch, size_t n,
                      tr_plan_key keys[TR_PLAN_KEYS])
{
    keys[n++] = (tr_plan_key){.mode = mode, .batch = batch};
    for (size_t i = 0; batch > 0 && i < m->nshorter; i++)
        keys[n++] = (tr_plan_key){.mode = mode, .batch = batch, .model = m->shorter[i]};
    return n;
}

size_t tr_plan_keys(const tr_config *c, const tr_model *m, uint64_t train_samples,
                    uint64_t eval_samples, int micro_batches, int rank, int size,
                    tr_plan_key keys[TR_PLAN_KEYS])
{
    int64_t sizes[8];
    size_t n = 0;
    int count = tr_share_sizes(train_samples, c->train.batch, micro_batches, rank, size,
                               c->data.drop_last, sizes);
    for (int i = 0; i < count; i++) n = add_key(m, TR_MODE_TRAIN, sizes[i], n, keys);
    if (eval_samples == 0) return n;
    count = tr_share_sizes(eval_samples, (int64_t)tr_eval_batch(c), 1, rank, size, false, sizes);
    for (int i = 0; i < count; i++)
        if (sizes[i] > 0) n = add_key(m, TR_MODE_EVALUATE, sizes[i], n, keys);
    return n;
}

const tr_model *tr_model_of_rows(const tr_model *m, int64_t rows)
{
    for (size_t i = 0; i < m->nshorter; i++)
        if (m->shorter[i]->inputs[0].dims[0] == rows) return m->shorter[i];
    return NULL;
}

tr_status tr_activation_bound(const tr_config *c, const tr_model *m, int64_t batch, size_t *nbytes)
{
    tr_graph *g;
    tr_graph_options o = {.batch = batch,
                          .mode = TR_MODE_TRAIN,
                          .precision = (tr_precision)c->train.precision,
                          .ranks = 1,
                          .recompute = c->train.recompute.kind.which,
                          .recompute_every = c->train.recompute.every,
                          .passes = TR_PASSES_ALL & ~tr_graph_skip(c)};
    tr_status st = tr_graph_open(m, &o, &g);
    if (st != TR_OK) return st;
    *nbytes = 0;
    for (size_t i = 0; i < g->ntensors; i++) {
        const tr_tensor *t = &g->tensors[i];
        if (t->alias < 0 && (t->role == TR_ROLE_ACTIVATION || t->role == TR_ROLE_SAVED))
            *nbytes += t->nbytes;
    }
    tr_graph_close(g);
    return TR_OK;
}

bool tr_micro_batch_matters(const tr_config *c, const tr_graph *g)
{
    if (c->train.micro_batch == 0) return false;
    for (size_t i = 0; i < g->nops; i++)
        if (tr_op_over_batch(&g->ops[i])) return true;
    return false;
}

int tr_micro_batches(const tr_config *c, int size)
{
    if (c->train.accumulate > 0) return (int)c->train.accumulate;
    int64_t share = (c->train.batch + size - 1) / size, at_once = c->train.micro_batch;
    return at_once > 0 ? (int)((share + at_once - 1) / at_once) : 1;
}
