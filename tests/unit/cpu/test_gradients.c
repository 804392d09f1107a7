/* Gradients of whole graphs against finite differences of the loss, for a list of small models in
 * which every op of the registry occurs (the last test sees to that): each parameter element by
 * itself, with the graph's passes and without, in float32. The op under test has layers with
 * parameters before it, in whose gradients its own input gradient shows.
 *
 * The difference is the central one over five points, (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h
 * with f the sum of losses, h = 1/64, whose error is
 * - h^4/30 times the fifth derivative, 2e-9 of it: below 2^-12 of the gradients here, also behind a
 *   batchnorm, each of whose derivatives grows by one over the deviation (at h = 1/16, where this
 *   is 256 times as much, only models with a batchnorm show it);
 * - from rounding: outputs carry some 8 roundings of 2^-24 of their size and their loss adds them
 *   at random; f is summed in double. Of |f| that is less than 2^-21, and 18/12h of it counts:
 *   96 * 2^-21 |f| = 4.6e-5 |f|.
 * Allowed is 2^-11 of the largest gradient in the array, for the first and for what the gradient
 * itself was rounded, plus 4.6e-5 (1 + |f|). A term left out is seen, and a factor of 1.001.
 *
 * ReLU and maxima have kinks, which must not lie within 2h = 1/32 of the parameters. There
 * (`kinks`) weights have magnitudes in [0.25, 0.5] / fan_in and biases in [1, 1.25] with either
 * sign, so that with inputs in [-1, 1] the sums before them stay 1/2 off zero; norms have weights
 * of 0.2 and such biases; maxima are taken over distinct inputs that one 1x1 weight scales.
 *
 * TRIREME_TEST_VERBOSE=1 tells how much of what is allowed each model takes. */
#include "gradient_cases.h"
#include "model_harness.h"
#include "tests/unit/paths.h"

#include <stdlib.h>

#define H     0x1p-6
#define BATCH 3

/* ---- Values ---------------------------------------------------------------------------------- */

static double uniform(uint32_t stream, size_t i) /* in [-1, 1) */
{
    return 2.0 * (double)tr_uniform(tr_philox_at(11, TR_RNG_TEST, stream, i, 0).v[0]) - 1.0;
}

/* Away from zero: magnitude in [1, 1.25], either sign. */
static double apart(double u)
{
    return u < 0 ? -1.0 + 0.25 * u : 1.0 + 0.25 * u;
}

static double initial(const model_case *k, const tr_param *p, double u)
{
    const bool norm = p->fan_in == 0, weight = strcmp(p->name, "weight") == 0;
    if (k->pooled && p->ndim >= 3) return 0.7 * apart(u);
    if (norm && weight) return k->kinks ? 0.2 : 1.0 + 0.25 * u;
    if (!weight) return k->kinks ? apart(u) : 0.25 * u;
    if (k->kinks) return (u < 0 ? -0.25 + 0.25 * u : 0.25 + 0.25 * u) / p->fan_in;
    return 1.5 * u / sqrt(p->fan_in);
}

static void fill_model(const model_case *k, model_harness *h)
{
    const tr_model *m = h->m;
    for (size_t r = 0; r < m->nparams; r++)
        for (size_t i = 0; i < m->params[r].count; i++)
            h->weights[m->params[r].offset + i] =
                (float)initial(k, &m->params[r], uniform(100 + (uint32_t)r, i));
    tr_model_init_states(m, h->states);
}

static void fill_batch(const model_case *k, model_harness *h)
{
    const tr_model *m = h->m;
    const tr_loss_config *loss = &m->loss_config;
    double v[BATCH * 64];
    const tr_tensor *t = mh_target_tensor(h);
    assert_true(t->count <= TR_COUNT(v));
    for (size_t in = 0; in < m->ninputs; in++) {
        const size_t n = mh_input_tensor(h, in)->count;
        assert_true(n <= TR_COUNT(v));
        for (size_t i = 0; m->inputs[in].ids > 0 && i < n; i++) /* some twice, one never */
            v[i] = (double)((i * i + in * 3) % (size_t)(m->inputs[in].ids - 1));
        for (size_t i = 0; k->ends && m->inputs[in].lengths && i < n; i++)
            v[i] = i % 3 == 0 ? (double)(m->inputs[in].ids - 1) : (double)(i % 3 - 1);
        for (size_t i = 0; m->inputs[in].ids == 0 && i < n;
             i++) /* distinct: 37 has no factor in common with the count */
            v[i] = k->pooled ? 2.0 * (double)(i * 37 % n) / (double)n - 1.0 : uniform(1, i);
        mh_set_input(h, in, v);
    }
    for (size_t i = 0; i < t->count; i++)
        v[i] = m->labels                          ? (double)(i % 3)
               : tr_loss_counts(loss->kind.which) ? 0.5 + 0.5 * uniform(2, i)
               : loss->kind.which == TR_LOSS_MSE  ? uniform(2, i)
                                                  : 0.25 * uniform(2, i); /* outputs are about 1 */
    mh_set_target(h, v);
    for (size_t g = 0; g < tr_plan_graph(h->plan)->ngiven; g++) {
        const size_t n = mh_given_tensor(h, g)->count;
        double *given = calloc(n, sizeof *given);
        assert_non_null(given);
        for (size_t i = 0; i < n; i++) given[i] = 3 * uniform(3 + (uint32_t)g, i);
        mh_set_given(h, g, given);
        free(given);
    }
}

/* ---- Running --------------------------------------------------------------------------------- */

/* The other rank has the same samples: the mean and variance of both are this one's, and with them
 * change what each rank's own loss does. */
static tr_status gather_twice(void *ctx, const void *send, void *recv, size_t nbytes)
{
    const int *ranks = ctx;
    for (int r = 0; r < *ranks; r++) memcpy((char *)recv + (size_t)r * nbytes, send, nbytes);
    return TR_OK;
}

static double loss(const model_case *k, model_harness *h)
{
    double tally[TR_TALLY] = {0};
    int ranks = k->ranks;
    const tr_hooks hooks = {.ctx = &ranks, .size = ranks, .gather = gather_twice};
    const tr_run r = {.seed = 3,
                      .ordinal = 40,
                      .loss_scale = 1,
                      .last = true,
                      .params_changed = true,
                      .tally = tally,
                      .hooks = ranks > 1 ? &hooks : NULL};
    fill_batch(k, h);
    if (tr_plan_run(h->plan, &r) != TR_OK) fail_msg("%s: %s", k->name, tr_last_error()->text);
    assert_true(isfinite(tally[TR_TALLY_LOSS]));
    return tally[TR_TALLY_LOSS];
}

static double difference(const model_case *k, model_harness *h, float *w)
{
    static const double at[] = {1, -1, 2, -2}, factor[] = {8, -8, -1, 1};
    const float keep = *w;
    double sum = 0, moved;
    for (int i = 0; i < 4; i++) {
        /* the step as float32 has it: exact, since H is a power of two above keep's last place */
        *w = (float)((double)keep + at[i] * H);
        moved = (double)*w - (double)keep;
        assert_true(fabs(moved - at[i] * H) <= 0x1p-22);
        sum += factor[i] * loss(k, h);
    }
    *w = keep;
    return sum / (12 * H);
}

/* Every stride-th element of a parameter is checked: all of them, but on the stand-in for a GPU,
 * where a run takes a hundred times as long, at most four; the first and the last where numbers do
 * not count. */
static size_t stride_of(const tr_param *p)
{
    if (test_paths_alone()) return p->count > 2 ? p->count - 1 : 1;
#if defined TEST_MIRROR && !defined TR_REAL_GPU
    return p->count < 5 ? 1 : (p->count + 3) / 4 | 1;
#else
    return 1;
#endif
}

static void check(const model_case *k, model_harness *h, bool fuse)
{
    const tr_model *m = h->m;
    const double f = loss(k, h), noise = 4.6e-5 * (1 + fabs(f));
    float *grads = mh_floats(m->flat_count);
    double worst = 0;
    memcpy(grads, h->grads, m->flat_count * sizeof *grads);
    for (size_t r = 0; r < m->nparams; r++) {
        const tr_param *p = &m->params[r];
        if (p->frozen) continue;
        double largest = 0;
        for (size_t i = 0; i < p->count; i++)
            largest = fmax(largest, fabs((double)grads[p->offset + i]));
        const double allowed = 0x1p-11 * largest + noise;
        for (size_t i = 0; i < p->count; i += stride_of(p)) {
            const double got = (double)grads[p->offset + i],
                         want = difference(k, h, &h->weights[p->offset + i]);
            if (!(fabs(got - want) <= allowed))
                fail_msg(
                    "%s%s: the gradient of %s.%s[%zu] is %.7g, the difference %.7g within %.2g",
                    k->name, fuse ? "" : ", without passes", p->layer, p->name, i, got, want,
                    allowed);
            worst = fmax(worst, fabs(got - want) / allowed);
        }
    }
    if (getenv("TRIREME_TEST_VERBOSE"))
        print_message("%s: %.0f %% of what is allowed, loss %g\n", k->name, worst * 100, f);
    tr_free(grads);
}

static bool *seen; /* by op of the registry: in a graph that was checked */

static void look(const tr_graph *g)
{
    for (size_t i = 0; i < g->nops; i++)
        for (size_t d = 0; d < tr_op_count(); d++) seen[d] |= g->ops[i].def == tr_op_at(d);
}

static void test_model(void **state)
{
    const model_case *k = *state;
    const tr_backend_options bo = {0};
    void *ctx = NULL;
    tr_config *c = NULL;
    char *text = case_text(k);
    assert_non_null(text);
    assert_int_equal(tr_cpu_backend.open(&bo, &ctx), TR_OK);
    if (tr_config_open(k->name, text, strlen(text), NULL, 0, NULL, &c) != TR_OK)
        fail_msg("%s\n%s", tr_last_error()->text, text);
    mh_distillation distillation;
    const tr_distill *distill = mh_distill(c, &distillation);
    for (int fuse = 0; fuse < 2; fuse++) {
        const tr_graph_options o = {.batch = BATCH,
                                    .distill = distill,
                                    .mode = TR_MODE_TRAIN,
                                    .sync_batchnorm = k->ranks > 1,
                                    .ranks = k->ranks,
                                    .passes = fuse == 1 ? TR_PASSES_ALL : 0};
        model_harness h;
        mh_open(&h, k->name, c, ctx, &o);
        fill_model(k, &h);
        if (k->steps) {
            loss(k, &h);
        } else {
            check(k, &h, fuse == 1);
            look(tr_plan_graph(h.plan));
        }
        mh_close(&h);
    }
    tr_features_free(distillation.read, distillation.count);
    tr_config_close(c);
    tr_free(text);
    tr_cpu_backend.close(ctx);
}

/* A new op needs a model in the list above, or a reason here. */
static void test_every_op(void **state)
{
    (void)state;
    static const struct {
        const char *op, *why;
    } without[] = {{"batchnorm.infer", "evaluation: nothing is differentiated"},
                   {"quantize_weight", "a step: its gradient is PyTorch's (test_golden_ops)"},
                   {"fake_quantize.learned", "steps: its gradient is PyTorch's (test_golden_ops)"},
                   {"quantize_weight.learned", "the same"},
                   {"quantize.learned_grad", "the same"},
                   {"int8.quantize", "inference"},
                   {"int8.dequantize", "inference"},
                   {"avgpool2d.int8", "inference"},
                   {"global_avgpool.int8", "inference"},
                   {"concat.int8", "inference"},
                   {"int8.dynamic", "inference"},
                   {"int8.rescale", "inference"},
                   {"conv2d.int8", "inference"},
                   {"conv2d.int8_groups", "inference"},
                   {"linear.int8", "inference"}};
    for (size_t d = 0; d < tr_op_count(); d++) {
        const char *name = tr_op_def_name(tr_op_at(d)), *why = NULL;
        for (size_t i = 0; i < TR_COUNT(without); i++)
            if (strcmp(without[i].op, name) == 0) why = without[i].why;
        if (!seen[d] && !why) fail_msg("no model here has the op %s", name);
        if (seen[d] && why) fail_msg("%s is checked after all: strike it off the list", name);
        if (why) print_message("%s is left out: %s\n", name, why);
    }
}

int main(void)
{
    static struct CMUnitTest tests[TR_COUNT(cases) + 1];
    size_t n = 0;
    seen = tr_alloc(TR_MEM_OTHER, tr_op_count(), sizeof *seen);
    for (; n < TR_COUNT(cases); n++)
        tests[n] = (struct CMUnitTest){
            .name = cases[n].name, .test_func = test_model, .initial_state = (void *)&cases[n]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_every_op);
    const int failed = _cmocka_run_group_tests("gradients", tests, n, NULL, NULL);
    tr_free(seen);
    return failed;
}
