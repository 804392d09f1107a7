/* What a network puts out for each sample. */
#include "optimize/evaluation/internal.h"

#include <math.h>

#include "optimize/inference/convert.h"

tr_status tr_plan_output(const tr_backend *backend, void *ctx, const tr_plan *p, float *out)
{
    const tr_tensor *y = &tr_plan_graph(p)->tensors[tr_plan_graph(p)->logits];
    const void *from = tr_plan_tensor(p, y->id);
    void *fetched = NULL;
    tr_status st = TR_OK;
    if (!backend->host) {
        TR_HAVE(fetched = tr_alloc(TR_MEM_IO, y->nbytes, 1));
        TR_TRY(backend->memory->download(ctx, fetched, from, y->nbytes));
        from = fetched;
    }
    tr_convert_out(y, from, out);
out:
    tr_free(fetched);
    return st;
}

tr_status tr_over_output(const tr_evaluator *e, const tr_plan *p, float *out)
{
    return tr_plan_output(e->backend, e->backend_ctx, p, out);
}

static void denormalize(const tr_reals *mean, const tr_reals *std, const tr_model *m,
                        size_t samples, float *v)
{
    const size_t count = samples * (size_t)m->outputs, run = tr_dataset_target_run(m);
    for (size_t i = 0; i < count && mean->count + std->count > 0; i++) {
        const double by = std->count ? std->v[i / run % std->count] : 1;
        v[i] = (float)(v[i] * by + (mean->count ? mean->v[i / run % mean->count] : 0));
    }
}

void tr_over_denormalize(const tr_config *c, const tr_model *m, size_t samples, float *v)
{
    const tr_normalize_config *stats = &c->data.normalize_targets.stats;
    denormalize(&stats->mean, &stats->std, m, samples, v);
}

void tr_over_denormalize_but_mean(const tr_config *c, const tr_model *m, size_t samples, float *v)
{
    denormalize(&(tr_reals){0}, &c->data.normalize_targets.stats.std, m, samples, v);
}

double tr_outputs_apart(const float *a, const float *b, size_t count)
{
    double most = 1, apart = 0;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        most = fmax(most, fabs((double)a[i]));
        if (!(d <= apart)) apart = d; /* NaN, too */
        if (isnan(apart)) break;
    }
    return apart / most;
}

/* Of a last batch that is short the rest stays 0. */
static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    (void)b, (void)tally;
    return tr_over_output(ctx, p, result);
}

tr_status tr_outputs_how(tr_evaluator *e, const tr_network *n, const tr_config *config,
                         const tr_over_data *how, float **out, size_t *count)
{
    const tr_over_data what = {.source = how->source,
                               .samples = how->samples,
                               .batch = how->batch,
                               .skip_passes = how->skip_passes,
                               .infer = how->infer,
                               .sample_nbytes = (size_t)n->model->outputs * sizeof(float),
                               .take = take,
                               .ctx = e};
    tr_over *over = NULL;
    tr_status st = tr_over_open(e, n, config, &what, &over);
    if (st != TR_OK) return st;
    const uint64_t batches = tr_over_batches(over);
    st = tr_over_run(over, 0, batches, (void **)out);
    if (st == TR_OK) *count = batches * (tr_over_nbytes(over) / sizeof(float));
    tr_over_close(over);
    return st;
}

tr_status tr_outputs_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                          bool train_data, uint64_t samples, float **out, size_t *count)
{
    const tr_over_data how = {.source = train_data ? TR_OVER_TRAIN : TR_OVER_EVAL,
                              .samples = samples};
    return tr_outputs_how(e, n, config, &how, out, count);
}
