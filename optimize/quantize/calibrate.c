/* Ranges of values over data: once for the extremes, then histograms of what lies between. */
#include "optimize/quantize/internal.h"

#include <math.h>
#include <string.h>

enum { BINS = TR_CALIBRATION_BINS };

/* What a pass over the data looks at. */
typedef struct {
    const tr_evaluator *e;
    const tr_model *m;
    size_t count, nlayers; /* values; those of layers, which come first */
    int *values;
    const char **names; /* [nlayers] */
    double *most;       /* [count] of the magnitude: histograms */
} looking;

typedef struct {
    double least, most, bad;
} extremes;

static void look_extremes(tr_dtype t, const void *p, size_t n, extremes *x)
{
    for (size_t i = 0; i < n; i++) {
        const double v = tr_value_at(t, p, i);
        if (!isfinite(v)) x->bad = 1;
        if (v < x->least) x->least = v;
        if (v > x->most) x->most = v;
    }
}

static void look_histogram(tr_dtype t, const void *p, size_t n, double most, int64_t *bins)
{
    const double each = most > 0 ? BINS / most : 0;
    for (size_t i = 0; i < n; i++) {
        const double at = fabs(tr_value_at(t, p, i)) * each;
        bins[at < BINS ? (size_t)at : BINS - 1]++;
    }
}

static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    const looking *k = ctx;
    const tr_graph *g = tr_plan_graph(p);
    tr_status st = TR_OK;
    tr_host_values v = {0};
    (void)tally;
    for (size_t i = 0; i < k->count; i++) {
        const int id = i < k->nlayers ? g->outputs[i] : g->inputs[k->values[i]];
        const tr_tensor *t = &g->tensors[id];
        const void *at = i < k->nlayers ? NULL : b->inputs[k->values[i]];
        if (i < k->nlayers) TR_TRY(tr_host_values_of(k->e, p, id, &v, &at));
        if (k->most)
            look_histogram(t->dtype, at, t->count, k->most[i], (int64_t *)result + i * BINS);
        else
            look_extremes(t->dtype, at, t->count, (extremes *)result + i);
    }
out:
    tr_free(v.buffer);
    return st;
}

static void close_looking(looking *k)
{
    tr_free(k->values);
    tr_free(k->names);
    tr_free(k->most);
}

static tr_status open_looking(const tr_evaluator *e, const tr_network *n, const bool *wanted,
                              looking *k)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    const size_t all = m->ninputs + m->nlayers;
    *k = (looking){.e = e, .m = m};
    TR_HAVE(k->values = tr_alloc(TR_MEM_OTHER, all, sizeof *k->values));
    TR_HAVE(k->names = tr_alloc(TR_MEM_OTHER, all, sizeof *k->names));
    for (size_t v = m->ninputs; v < all; v++)
        if (wanted[v]) {
            k->names[k->count] = m->layers[v - m->ninputs].name;
            k->values[k->count++] = (int)v;
        }
    k->nlayers = k->count;
    for (size_t v = 0; v < m->ninputs; v++)
        if (wanted[v]) k->values[k->count++] = (int)v;
out:
    return st;
}

static tr_status find_extremes(tr_evaluator *e, const tr_network *n, const tr_config *config,
                               tr_over_data *what, looking *k, tr_value_range *ranges)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    extremes *found = NULL;
    uint64_t batches;
    what->nbytes = k->count * sizeof *found;
    TR_TRY(tr_run_over(e, n, config, what, (void **)&found, &batches));
    for (size_t i = 0; i < k->count; i++) {
        tr_value_range *r = &ranges[k->values[i]];
        *r = (tr_value_range){0};
        for (uint64_t b = 0; b < batches; b++) {
            const extremes *x = &found[b * k->count + i];
            const size_t v = (size_t)k->values[i];
            TR_NEED(!x->bad, TR_DATA, "\"%s\" is not finite on the samples of calibration",
                    v < m->ninputs ? m->inputs[v].name : m->layers[v - m->ninputs].name);
            r->least = fmin(r->least, x->least);
            r->most = fmax(r->most, x->most);
        }
        r->is_signed = r->least < 0;
    }
out:
    tr_free(found);
    return st;
}

static double magnitude(const tr_value_range *r)
{
    return fmax(-r->least, r->most);
}

/* The scale that covers `most`. */
static double scale_of(const tr_value_range *r, double most)
{
    const double scale = most / (r->is_signed ? 127 : 255);
    return scale > 1e-30 ? (double)(float)scale : 1;
}

static tr_status find_scales(tr_evaluator *e, const tr_network *n, const tr_config *config,
                             const tr_calibration *o, tr_over_data *what, looking *k,
                             tr_value_range *ranges)
{
    tr_status st = TR_OK;
    int64_t *found = NULL;
    uint64_t batches;
    k->most = tr_alloc(TR_MEM_OTHER, k->count, sizeof *k->most);
    TR_TRY(tr_agree(tr_evaluator_comm(e), k->most ? TR_OK : tr_last_status(), NULL));
    for (size_t i = 0; i < k->count; i++) k->most[i] = magnitude(&ranges[k->values[i]]);
    what->nbytes = k->count * BINS * sizeof *found;
    TR_TRY(tr_run_over(e, n, config, what, (void **)&found, &batches));
    for (size_t i = 0; i < k->count; i++) {
        tr_value_range *r = &ranges[k->values[i]];
        int64_t *sum = found + i * BINS;
        for (uint64_t b = 1; b < batches; b++)
            for (size_t j = 0; j < BINS; j++) sum[j] += found[(b * k->count + i) * BINS + j];
        r->scale = scale_of(r, tr_calibration_most(o, r->is_signed, k->most[i], sum));
    }
out:
    tr_free(found);
    return st;
}

tr_status tr_calibrate(tr_evaluator *e, const tr_network *n, const tr_config *config,
                       const tr_calibration *o, const bool *wanted, tr_value_range *ranges)
{
    tr_status st = TR_OK;
    looking k;
    TR_TRY(tr_agree(tr_evaluator_comm(e), open_looking(e, n, wanted, &k), NULL));
    if (k.count == 0) goto out;
    tr_over_data what = {.source = TR_OVER_TRAIN,
                         .samples = o->samples,
                         .take = take,
                         .ctx = &k,
                         .infer = true,
                         .outputs = k.names,
                         .noutputs = k.nlayers};
    TR_TRY(find_extremes(e, n, config, &what, &k, ranges));
    if (o->kind == TR_CALIBRATE_MINMAX)
        for (size_t i = 0; i < k.count; i++) {
            tr_value_range *r = &ranges[k.values[i]];
            r->scale = scale_of(r, magnitude(r));
        }
    else
        TR_TRY(find_scales(e, n, config, o, &what, &k, ranges));
out:
    close_looking(&k);
    return st;
}
