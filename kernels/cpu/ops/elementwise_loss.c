/* Losses of one output and one target each: squared and absolute errors of values, binary cross
 * entropy and focal loss of logits. Each adds its sums to the run's tally and, in training, writes
 * the gradient of the sum of losses times the loss scale. Partial sums are kept a chunk and added
 * in order. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t count, samples, places;
    size_t chunk;  /* elements: of a sample where they have weights, else TR_CHUNK */
    bool weighted; /* samples have weights */
    const tr_elementwise_loss_attrs *a; /* the graph's */
    float *pos; /* pos_weight of each element of a chunk that begins at a first place, and some
                   more; NULL: all 1 */
} kernel;

typedef struct {
    double loss;
    size_t correct;
} part;

static double run_chunk(const kernel *k, size_t i, float scale, size_t *correct)
{
    const tr_loop_kernel *o = &k->k;
    const size_t first = i * k->chunk, n = tr_chunk_size(k->count, k->chunk, i);
    const void *y = tr_loop_at(o->dtype, o->b.in[0], first);
    const float *target = (const float *)o->b.in[1] + first;
    void *dy = tr_loop_to(o->dtype, o->b.out[0], first);
    *correct = 0;
    switch (k->a->kind) {
    case TR_LOSS_MSE:
        return o->loops->mse(o->dtype, y, target, dy, n, scale);
    case TR_LOSS_BCE:
        return o->loops->bce(o->dtype, y, target, k->pos ? k->pos + first % k->places : NULL, dy, n,
                             scale, correct);
    case TR_LOSS_FOCAL:
        return o->loops->focal(k->a, o->dtype, y, target, dy, n, scale, correct);
    default:
        return o->loops->robust(k->a, o->dtype, y, target, dy, n, scale);
    }
}

static tr_status run_loss(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    part *parts = k->k.b.workspace;
    const float *weights = k->weighted ? k->k.b.in[2] : NULL;
    const size_t chunks = tr_chunks(k->count, k->chunk);
    TR_PARALLEL(k->k.threads, chunks)
    for (size_t i = 0; i < chunks; i++)
        parts[i].loss = run_chunk(k, i, weights ? run->loss_scale * weights[i] : run->loss_scale,
                                  &parts[i].correct);
    size_t correct = 0;
    for (size_t i = 0; i < chunks; i++) {
        const double w = weights ? (double)weights[i] : 1.0;
        run->tally[TR_TALLY_LOSS] += w * parts[i].loss;
        if (weights) run->tally[TR_TALLY_WEIGHT] += w * (double)k->chunk;
        correct += parts[i].correct;
    }
    if (!weights) run->tally[TR_TALLY_WEIGHT] += (double)k->count;
    run->tally[TR_TALLY_SAMPLES] += (double)k->samples;
    run->tally[TR_TALLY_TARGETS] += (double)k->samples;
    run->tally[TR_TALLY_CORRECT] += (double)correct * (double)k->samples / (double)k->count;
    return TR_OK;
}

static void close_loss(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_free(k->pos);
    tr_free(k);
}

static tr_status spread_weights(kernel *k)
{
    const tr_elementwise_loss_attrs *a = k->a;
    k->places = a->npos;
    if (a->npos == 0) return TR_OK;
    const size_t n = (k->count < k->chunk ? k->count : k->chunk) + a->npos;
    k->pos = tr_alloc(TR_MEM_OTHER, n, sizeof *k->pos);
    if (!k->pos) return tr_last_status();
    for (size_t i = 0; i < n; i++) k->pos[i] = a->pos_weight[i % a->npos];
    return TR_OK;
}

tr_status tr_cpu_elementwise_loss(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *y = tr_loop_in(g, op, 0), *target = tr_loop_in(g, op, 1);
    kernel *k = NULL;
    if (target->dtype != TR_F32 || target->count != y->count)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu targets of type %s for %zu outputs",
                       op->layer, target->count, tr_dtype_name(target->dtype), y->count);
    tr_status st = tr_loop_kernel_open(cpu, y, "own", run_loss, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->k.base.close = close_loss;
    k->count = y->count;
    k->samples = (size_t)y->dims[0];
    k->a = op->attrs;
    k->weighted = tr_loop_in(g, op, 2) != NULL;
    k->chunk = k->weighted && k->samples ? k->count / k->samples : TR_CHUNK;
    k->k.base.workspace = tr_chunks(k->count, k->chunk) * sizeof(part);
    st = spread_weights(k);
    if (st != TR_OK) {
        close_loss(&k->k.base);
        return st;
    }
    *out = &k->k.base;
    return TR_OK;
}
