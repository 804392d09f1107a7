/* What a network puts out for each sample. */
#include "optimize/evaluation/internal.h"

#include <string.h>

typedef struct {
    const tr_evaluator *e;
    size_t batch; /* elements of a whole one */
} taking;

/* As float32; of a last batch that is short the rest stays 0. */
static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    (void)b, (void)tally;
    const taking *k = ctx;
    const tr_tensor *y = &tr_plan_graph(p)->tensors[tr_plan_graph(p)->logits];
    tr_status st = TR_OK;
    float *out = result;
    TR_NEED(y->count <= k->batch, TR_INTERNAL, "an output of %zu elements, expected %zu", y->count,
            k->batch);
    st = k->e->backend->memory->download(k->e->backend_ctx, out, tr_plan_tensor(p, y->id),
                                         y->nbytes);
    if (st != TR_OK || y->dtype == TR_F32) goto out;
    /* widened from the end on, so that nothing is overwritten before it is read */
    for (size_t i = y->count; i-- > 0;) {
        uint16_t half;
        memcpy(&half, (const char *)result + i * sizeof half, sizeof half);
        out[i] = y->dtype == TR_BF16 ? tr_bf16_to_f32(half) : tr_f16_to_f32(half);
    }
out:
    return st;
}

tr_status tr_outputs_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                          bool train_data, uint64_t samples, float **out, size_t *count)
{
    const tr_config *c = e->o.config;
    const int64_t batch = c->train.eval.batch > 0 ? c->train.eval.batch : c->train.batch;
    taking k = {e, (size_t)batch * (size_t)n->model->outputs};
    const tr_over_data what = {.train_data = train_data,
                               .samples = samples,
                               .nbytes = tr_align_up(k.batch * sizeof(float), sizeof(int64_t)),
                               .take = take,
                               .ctx = &k};
    uint64_t batches;
    const tr_status st = tr_run_over(e, n, config, &what, (void **)out, &batches);
    if (st == TR_OK) *count = batches * (what.nbytes / sizeof(float));
    return st;
}
