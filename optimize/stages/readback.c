/* A file that was read back, beside the model that it was written of. */
#include "optimize/stages/readback.h"

#include <math.h>

#include "optimize/stages/stages.h"

/* Twelve of float32's 24 bits are left to other orders of summation; float16's file is held to the
 * model of rounded values, to what one rounding to its 11 bits may be. */
static const double bounds[] = {[TR_F32] = 1e-5, [TR_F16] = 1.0 / 2048};
/* GPUs: operands of 11 bits (TF32), or sums in an order that is another from run to run. */
static const double inexact = 1e-3;
/* A value between two steps may go to the other one for its last bit; `fold` allows as much. */
static const double rounded = 0.05;
/* Outputs that are smaller count as so large: of activations of about 1 that cancel to 1e-6, what
 * float32 leaves is rounding of 1e-7 each. */
static const double least = 0.1;

double tr_readback_bound(const tr_readback *r, bool host)
{
    if (tr_stage_rounds(r->model->model)) return rounded;
    return tr_stage_exact(r->run, host) ? bounds[r->weights] : fmax(bounds[r->weights], inexact);
}

/* What the file's values are: the model's own, all but the statistics and what has 8 bits rounded
 * to float16. */
static tr_status halved(const tr_network *model, tr_network **out)
{
    tr_network *n = NULL;
    const tr_status st = tr_network_edit(model, NULL, NULL, &n);
    if (st != TR_OK) return st;
    for (size_t i = 0; i < n->model->nparams; i++) {
        const tr_param *p = &n->model->params[i];
        float *v = n->params + p->offset;
        for (size_t k = 0; p->stored != TR_I8 && k < p->count; k++)
            v[k] = tr_f16_to_f32(tr_f32_to_f16(v[k]));
    }
    *out = n;
    return TR_OK;
}

typedef struct {
    float *v;
    size_t count;
} outputs;

/* *Collective.* */
static tr_status ask(const tr_readback *r, const tr_network *n, const tr_config *c, outputs *out)
{
    const tr_over_data how = {.source = r->source, .samples = r->samples};
    return tr_outputs_how(r->evaluator, n, c, &how, &out->v, &out->count);
}

static double apart(const outputs *a, const outputs *b)
{
    double worst = 0;
    for (size_t i = 0; i < a->count; i++) {
        const double d = fabs((double)a->v[i] - (double)b->v[i]);
        if (isfinite(worst) && !(d <= worst)) worst = d; /* NaN stays */
    }
    return worst;
}

/* *Collective.* */
static tr_status compare(const tr_readback *r, tr_readback_found *found)
{
    tr_status st = TR_OK;
    outputs model = {0}, file = {0}, other = {0};
    tr_network *half = NULL;
    const tr_backend *backend;
    void *ctx;
    int threads;
    tr_evaluator_place(r->evaluator, &backend, &ctx, &threads);
    const double bound = tr_readback_bound(r, backend->host);
    TR_TRY(ask(r, r->model, r->model_config, &model));
    TR_TRY(ask(r, r->file, r->file_config, &file));
    TR_NEED(model.count == file.count, TR_DATA, "%s: other outputs than the model's", r->path);
    if (r->weights == TR_F16) {
        TR_TRY(tr_agree(tr_evaluator_comm(r->evaluator), halved(r->model, &half), NULL));
        TR_TRY(ask(r, half, r->model_config, &other));
    }
    found->apart = apart(&model, &file);
    found->most = 0;
    for (size_t i = 0; i < model.count; i++)
        found->most = fmax(found->most, fabs((double)model.v[i]));
    const double worst = half ? apart(&other, &file) : found->apart;
    TR_NEED(isfinite(worst) && worst <= bound * fmax(found->most, least), TR_DATA,
            "%s: read back, it answers by up to %g other than the model%s: more than %g of its "
            "largest output, %g",
            r->path, worst, half ? " of float16 values" : "", bound, found->most);
out:
    tr_network_close(half);
    tr_free(model.v);
    tr_free(file.v);
    tr_free(other.v);
    return st;
}

tr_status tr_readback_compare(const tr_readback *r, tr_readback_found *out)
{
    const tr_precision before = tr_evaluator_compute(r->evaluator, TR_PRECISION_FP32);
    const tr_status st = compare(r, out);
    tr_evaluator_compute(r->evaluator, before);
    return st;
}
