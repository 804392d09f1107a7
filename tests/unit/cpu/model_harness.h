/* A model of a config on the CPU backend, for tests: arrays of its own, one graph, one plan.
 *
 *     tr_graph_options o = {.batch = 3, .mode = TR_MODE_TRAIN, .ranks = 1, .passes =
 *     TR_PASSES_ALL}; model_harness h;
 *     mh_open(&h, name, config, backend_ctx, &o);
 *     ... fill h.weights, h.states; mh_set_input(&h, 0, values); mh_set_target(&h, values) ...
 *     tr_plan_run(h.plan, &run);
 *     mh_close(&h);
 *
 * Values are given and read in logical order (N, C, H, W), 4-D tensors are stored channels-last.
 * New arrays hold NaN, so that nothing can stay as it was. */
#ifndef TR_TEST_MODEL_HARNESS_H
#define TR_TEST_MODEL_HARNESS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "runtime/plan/internal.h"

typedef struct {
    tr_model *m;
    float *weights, *grads, *states;
    tr_params params;
    void *batch[TR_SLOTS]; /* as tr_plan.slots */
    tr_session *session;
    tr_plan *plan;
} model_harness;

static inline float *mh_floats(size_t count)
{
    float *v = tr_alloc(TR_MEM_OTHER, count, sizeof *v);
    assert_non_null(v);
    memset(v, 0xff, count * sizeof *v);
    return v;
}

/* `name` is for messages. */
static inline void mh_open_threads(model_harness *h, const char *name, const tr_config *c,
                                   void *ctx, const tr_graph_options *o, int threads)
{
    tr_graph *graph = NULL;
    *h = (model_harness){0};
    if (tr_model_open(c, 0, &h->m) != TR_OK) fail_msg("%s: %s", name, tr_last_error()->text);
    h->weights = mh_floats(h->m->flat_count);
    h->grads = mh_floats(h->m->flat_count);
    h->states = mh_floats(h->m->state_count);
    if (tr_graph_open(h->m, o, &graph) != TR_OK) fail_msg("%s: %s", name, tr_last_error()->text);
    h->params =
        (tr_params){.o.model = h->m, .weights = h->weights, .grads = h->grads, .states = h->states};
    const tr_session_options so = {.model = h->m,
                                   .backend = &tr_cpu_backend,
                                   .backend_ctx = ctx,
                                   .params = &h->params,
                                   .threads = threads,
                                   .precision = o->precision,
                                   .sync_batchnorm = o->sync_batchnorm,
                                   .ranks = o->ranks};
    if (tr_session_open_graphs(&so, &graph, 1, true, &h->session) != TR_OK)
        fail_msg("%s: %s", name, tr_last_error()->text);
    h->plan = tr_session_plan(h->session, o->mode, o->batch);
}

static inline void mh_open(model_harness *h, const char *name, const tr_config *c, void *ctx,
                           const tr_graph_options *o)
{
    mh_open_threads(h, name, c, ctx, o, 1);
}

static inline void mh_close(model_harness *h)
{
    tr_session_close(h->session);
    for (size_t i = 0; i < TR_COUNT(h->batch); i++) tr_free(h->batch[i]);
    tr_free(h->weights);
    tr_free(h->grads);
    tr_free(h->states);
    tr_model_close(h->m);
    *h = (model_harness){0};
}

/* Where a logical (N, C, H, W) index lies. */
static inline size_t mh_stored(const tr_tensor *t, size_t logical)
{
    if (t->layout == TR_LAYOUT_PLAIN) return logical;
    const size_t c = (size_t)t->dims[1], h = (size_t)t->dims[2], w = (size_t)t->dims[3];
    const size_t x = logical % w, y = logical / w % h, k = logical / w / h % c,
                 n = logical / w / h / c;
    return ((n * h + y) * w + x) * c + k;
}

static inline void mh_put(void *to, const tr_tensor *t, const double *v)
{
    for (size_t i = 0; i < t->count; i++) {
        const size_t at = mh_stored(t, i);
        switch (t->dtype) {
        case TR_F32:
            ((float *)to)[at] = (float)v[i];
            break;
        case TR_BF16:
            ((tr_bf16 *)to)[at] = tr_f32_to_bf16((float)v[i]);
            break;
        case TR_F16:
            ((tr_f16 *)to)[at] = tr_f32_to_f16((float)v[i]);
            break;
        case TR_I32:
            ((int32_t *)to)[at] = (int32_t)v[i];
            break;
        default:
            fail_msg("%s: unexpected type", t->name);
        }
    }
}

static inline void *mh_batch(model_harness *h, size_t i, const tr_tensor *t, const double *v)
{
    if (!h->batch[i]) h->batch[i] = tr_alloc(TR_MEM_OTHER, t->nbytes, 1);
    assert_non_null(h->batch[i]);
    mh_put(h->batch[i], t, v);
    return h->batch[i];
}

/* What the config's train.distill asks of a graph; NULL: nothing. */
typedef struct {
    tr_feature_config read[TR_FEATURES_MAX];
    size_t count;
    tr_distill_feature features[TR_FEATURES_MAX];
    tr_distill distill;
} mh_distillation;

static inline const tr_distill *mh_distill(const tr_config *c, mh_distillation *to)
{
    const tr_distill_config *d = &c->train.distill;
    *to = (mh_distillation){.distill = {.temperature = d->temperature,
                                        .hard = d->hard,
                                        .soft = d->soft,
                                        .features = to->features}};
    if (!tr_config_distills(c)) return NULL;
    assert_int_equal(tr_config_features(d, "train.distill", to->read, &to->count), TR_OK);
    for (size_t i = 0; i < to->count; i++)
        to->features[i] = (tr_distill_feature){to->read[i].student, to->read[i].weight};
    to->distill.nfeatures = to->count;
    return &to->distill;
}

static inline const tr_tensor *mh_input_tensor(const model_harness *h, size_t input)
{
    const tr_graph *g = tr_plan_graph(h->plan);
    return &g->tensors[g->inputs[input]];
}

static inline const tr_tensor *mh_target_tensor(const model_harness *h)
{
    const tr_graph *g = tr_plan_graph(h->plan);
    return &g->tensors[g->target];
}

static inline void mh_set_input(model_harness *h, size_t input, const double *v)
{
    void *data = mh_batch(h, input, mh_input_tensor(h, input), v);
    assert_int_equal(tr_plan_set_input(h->plan, input, data), TR_OK);
    /* No kernel here needs a copy, not behind a view either. */
    assert_ptr_equal(tr_plan_tensor(h->plan, tr_plan_graph(h->plan)->inputs[input]), data);
}

static inline void mh_set_target(model_harness *h, const double *v)
{
    void *data = mh_batch(h, TR_MAX_IN, mh_target_tensor(h), v);
    assert_int_equal(tr_plan_set_target(h->plan, data), TR_OK);
}

static inline const tr_tensor *mh_given_tensor(const model_harness *h, size_t k)
{
    const tr_graph *g = tr_plan_graph(h->plan);
    return &g->tensors[g->given[k]];
}

static inline void mh_set_given(model_harness *h, size_t k, const double *v)
{
    void *data = mh_batch(h, TR_SLOT_GIVEN + k, mh_given_tensor(h, k), v);
    assert_int_equal(tr_plan_set_given(h->plan, k, data), TR_OK);
    assert_ptr_equal(tr_plan_tensor(h->plan, tr_plan_graph(h->plan)->given[k]), data);
}

static inline double mh_get(const void *from, const tr_tensor *t, size_t logical)
{
    const size_t at = mh_stored(t, logical);
    if (t->dtype == TR_BF16) return (double)tr_bf16_to_f32(((const tr_bf16 *)from)[at]);
    if (t->dtype == TR_F16) return (double)tr_f16_to_f32(((const tr_f16 *)from)[at]);
    return (double)((const float *)from)[at];
}

#endif
