/* links: trireme_quantize trireme_inference trireme_cpu trireme_runtime trireme_collectives */
/* What data decides: which way weights are rounded, against all ways there are; biases. */
#include "tests/unit/quantize/bench.h"

#include "optimize/quantize/adaround.h"

/* ---- AdaRound -------------------------------------------------------------------------------- */

enum { K = 10, OUTPUTS = 4 };

/* H[i * K + j]: the mean of x_i x_j, x rounded by the range of the input. */
static void moments(bench *b, double H[K * K])
{
    tr_network *same = NULL;
    size_t count;
    ok(tr_network_edit(b->n, NULL, NULL, &same));
    float *w = tr_network_param(same, "a", "weight"); /* outputs: the inputs, a part at a time */
    memset(H, 0, K * K * sizeof *H);
    float *x[3], s = (float)b->ranges[0].scale;
    for (int part = 0; part < 3; part++) {
        memset(w, 0, OUTPUTS * K * sizeof *w);
        for (int o = 0; o < OUTPUTS && part * OUTPUTS + o < K; o++)
            w[o * K + part * OUTPUTS + o] = 1;
        x[part] = outputs(b, same, &count);
    }
    for (size_t n = 0; n < count / OUTPUTS; n++)
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) {
                const float u = x[i / OUTPUTS][n * OUTPUTS + (size_t)(i % OUTPUTS)],
                            v = x[j / OUTPUTS][n * OUTPUTS + (size_t)(j % OUTPUTS)];
                H[i * K + j] += (double)(rintf(u / s) * s) * (double)(rintf(v / s) * s);
            }
    for (int part = 0; part < 3; part++) tr_free(x[part]);
    tr_network_close(same);
}

static double form(const double *H, const double *d)
{
    double sum = 0;
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K; j++) sum += d[i] * H[i * K + j] * d[j];
    return sum;
}

/* All 2^K ways of rounding each weight down or up. */
static double least_error(const double *H, const float *w, double scale)
{
    double least = INFINITY, d[K];
    for (unsigned way = 0; way < 1u << K; way++) {
        for (int i = 0; i < K; i++)
            d[i] = fmin(floor((double)w[i] / scale) + (way >> i & 1), 127) * scale - (double)w[i];
        least = fmin(least, form(H, d));
    }
    return least;
}

static double error_of(const double *H, const float *w, const float *rounded)
{
    double d[K];
    for (int i = 0; i < K; i++) d[i] = (double)rounded[i] - (double)w[i];
    return form(H, d);
}

static const char one_layer[] = "  input: [10]\n  layers:\n"
                                "    - linear: {out: 4, name: a}\n  loss: cross_entropy\n";

static void test_adaround(void **state)
{
    (void)state;
    bench b;
    tr_network *nearest = NULL, *q = NULL;
    double H[K * K], best = 0, learned = 0, to_nearest = 0;
    open_bench(&b, one_layer, 64, 16, (const double[]){0.03, 0.03});
    ok(tr_quantize_static(b.n, b.chosen, b.ranges, true, NULL, &nearest));
    ok(tr_quantize_static(b.n, b.chosen, b.ranges, true, NULL, &q));
    ok(tr_quantize_adaround(b.e, b.n, b.config, &(tr_int8_options){0}, b.chosen, b.ranges, q));
    moments(&b, H);
    const double scale = (double)tr_network_state(q, "a", TR_SCALE_STATE)[0];
    const float *w = tr_network_param(b.n, "a", "weight");
    for (int o = 0; o < OUTPUTS; o++) {
        const double least = least_error(H, w + o * K, scale);
        const double found = error_of(H, w + o * K, tr_network_param(q, "a", "weight") + o * K);
        assert_true(found >= 0.9999 * least); /* of float32 weights */
        best += least;
        learned += found;
        to_nearest += error_of(H, w + o * K, tr_network_param(nearest, "a", "weight") + o * K);
    }
    if (!(learned < 1.12 * best && to_nearest > 1.25 * best))
        fail_msg("errors: least %g, learned %g, nearest %g", best, learned, to_nearest);
    tr_network_close(q);
    tr_network_close(nearest);
    close_bench(&b);
}

/* A layer that reads as much as AdaRound takes: sums of a part of the batches, 10 MB each. Its
 * weights are whole steps, so that nothing is to be learned. */
static void test_memory(void **state)
{
    (void)state;
    bench b;
    tr_network *q = NULL;
    open_bench(&b,
               "  input: [1152]\n  layers:\n    - linear: {out: 2, name: a}\n"
               "  loss: cross_entropy\n",
               60, 1, (const double[]){2, 2});
    float *w = tr_network_param(b.n, "a", "weight");
    for (size_t i = 0; i < (size_t)2 * TR_ADAROUND_WINDOW; i++) w[i] = i % 3 ? 1 : -1;
    ok(tr_quantize_static(b.n, b.chosen, b.ranges, false, NULL, &q));
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    ok(tr_quantize_adaround(b.e, b.n, b.config, &(tr_int8_options){0}, b.chosen, b.ranges, q));
    const size_t most = tr_mem_peak(TR_MEM_OTHER) - held;
    if (!(most > 200u << 20 && most < 300u << 20)) fail_msg("%zu MB", most >> 20);
    tr_network_close(q);
    close_bench(&b);
}

/* Of outputs, the sum of squares of what rounding of weights changes. */
static double error_by_weights(bench *b, const tr_network *q)
{
    tr_network *same = NULL;
    size_t count;
    double sum = 0;
    ok(tr_network_edit(b->n, NULL, NULL, &same));
    const tr_param *p = tr_network_row(same, "a", "weight");
    const float *rounded = tr_network_param(q, "a", "weight");
    float *w = same->params + p->offset;
    for (size_t i = 0; i < p->count; i++) w[i] = rounded[i] - w[i];
    memset(tr_network_param(same, "a", "bias"), 0, (size_t)p->dims[0] * sizeof(float));
    float *y = outputs(b, same, &count);
    for (size_t i = 0; i < count; i++) sum += (double)y[i] * (double)y[i];
    tr_free(y);
    tr_network_close(same);
    return sum;
}

/* Windows of more values than are looked at together, and groups of channels: weights become a step
 * beside, and outputs change less than by rounding to nearest; of each group, and of both parts of
 * a window. */
static void test_wide(void **state)
{
    (void)state;
    static const struct {
        const char *layers;
        size_t outputs, window;
    } cases[] = {
        {"  input: [1300]\n  layers: [linear: {out: 3, name: a}]\n  loss: cross_entropy\n", 3,
         1300},
        {"  input: [6, 3, 3]\n  layers:\n    - conv2d: {out: 12, kernel: 3, groups: 3, name: a}\n"
         "    - flatten\n  loss: cross_entropy\n",
         12, 18},
        {"  input: [4, 3, 3]\n  layers:\n    - conv2d: {out: 4, kernel: 3, groups: 4, name: a}\n"
         "    - flatten\n  loss: cross_entropy\n",
         4, 9}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        bench b;
        tr_network *nearest = NULL, *q = NULL;
        const size_t n = cases[i].outputs, window = cases[i].window;
        open_bench(&b, cases[i].layers, window < 1300 ? 6 : 64, 6,
                   (const double[]){0.03, 0.03, 0.03});
        ok(tr_quantize_static(b.n, b.chosen, b.ranges, true, NULL, &nearest));
        ok(tr_quantize_static(b.n, b.chosen, b.ranges, true, NULL, &q));
        ok(tr_quantize_adaround(b.e, b.n, b.config, &(tr_int8_options){0}, b.chosen, b.ranges, q));
        const float *x = tr_network_param(nearest, "a", "weight"),
                    *y = tr_network_param(q, "a", "weight"),
                    scale = tr_network_state(q, "a", TR_SCALE_STATE)[0];
        size_t moved[2] = {0, 0};
        for (size_t o = 0; o < n; o++)
            for (size_t k = 0; k < window; k++) {
                const float d = fabsf(x[o * window + k] - y[o * window + k]);
                assert_true(d == 0 || fabsf(d - scale) < 1e-3f * scale);
                moved[k >= TR_ADAROUND_WINDOW] += d > 0;
            }
        assert_true(moved[0] > 0 && (window <= TR_ADAROUND_WINDOW || moved[1] > 0));
        const double was = error_by_weights(&b, nearest), is = error_by_weights(&b, q);
        if (!(is < 0.7 * was)) fail_msg("case %zu: an error of %g became %g", i, was, is);
        tr_network_close(q);
        tr_network_close(nearest);
        close_bench(&b);
    }
}

static int asks;

static bool at_third(void *ctx)
{
    (void)ctx;
    return ++asks == 3;
}

/* However outputs are dealt, to threads and to ranks, each comes out with the same bits; some are
 * learned. */
static void test_dealt(void **state)
{
    (void)state;
    enum { N = 37, ROWS = 50 };
    const size_t pitch = tr_reading_pitch(N);
    float *H = tr_alloc(TR_MEM_OTHER, N * pitch, sizeof *H), w[ROWS * N], scale[ROWS];
    float nearest[ROWS * N], whole[ROWS * N], parts[ROWS * N];
    for (size_t i = 0; i < ROWS * N; i++) {
        w[i] = (float)((int)(i * 7919 % 2001) - 1000) / 1000;
        scale[i / N] = 1.0f / 127;
        nearest[i] = rintf(w[i] * 127) / 127;
    }
    for (size_t i = 0; i < N; i++) /* neighbours have much in common */
        for (size_t j = 0; j < N; j++) H[i * pitch + j] = powf(0.9f, fabsf((float)i - (float)j));
    tr_rounding r = {
        .K = N, .row = N, .outputs = ROWS, .stride = 1, .H = H, .w = w, .scale = scale};
    memcpy(whole, nearest, sizeof whole);
    r.rounded = whole;
    ok(tr_round_outputs(&r));
    assert_memory_not_equal(whole, nearest, sizeof whole);
    for (int threads = 1; threads <= 64; threads *= 4)
        for (size_t ranks = 1; ranks <= 3; ranks++) {
            memcpy(parts, nearest, sizeof parts);
            r.rounded = parts;
            r.threads = threads;
            r.stride = ranks;
            for (r.first = 0; r.first < ranks; r.first++) ok(tr_round_outputs(&r));
            assert_memory_equal(whole, parts, sizeof whole);
        }
    r.first = 0;
    r.threads = 1; /* who asks has all the work: how often is known */
    r.stop = at_third;
    assert_int_equal(tr_round_outputs(&r), TR_STOPPED);
    assert_int_equal(asks, 3);
    tr_free(H);
}

/* ---- Bias correction ------------------------------------------------------------------------- */

static void means(bench *b, const tr_network *q, double mean[OUTPUTS])
{
    size_t count, again;
    float *y = outputs(b, b->n, &count), *z = outputs(b, q, &again);
    assert_int_equal(count, again);
    memset(mean, 0, OUTPUTS * sizeof *mean);
    for (size_t i = 0; i < count; i++)
        mean[i % OUTPUTS] += (double)(z[i] - y[i]) / (double)(count / OUTPUTS);
    tr_free(y);
    tr_free(z);
}

static void test_bias_correction(void **state)
{
    (void)state;
    bench b;
    tr_network *q = NULL;
    tr_output_error was = {0}, is = {0};
    double before[OUTPUTS], after[OUTPUTS];
    /* the range ends within the values: what is clipped moves means */
    open_bench(&b, one_layer, 64, 16, (const double[]){0.01, 0.01});
    ok(tr_quantize_static(b.n, b.chosen, b.ranges, false, NULL, &q));
    means(&b, q, before);
    ok(tr_quantize_errors(b.e, b.n, q, b.config, 0, b.chosen, b.ranges, &was));
    for (int o = 0; o < OUTPUTS; o++) assert_true(fabs(was.mean[o] - before[o]) < 1e-5);
    tr_quantize_correct(q, &b.n->model->layers[0], &was);
    means(&b, q, after);
    for (int o = 0; o < OUTPUTS; o++)
        if (!(fabs(before[o]) > 1e-3 && fabs(after[o]) < 1e-5))
            fail_msg("output %d: a mean error of %g became %g", o, before[o], after[o]);
    /* what it says is left is what is */
    ok(tr_quantize_errors(b.e, b.n, q, b.config, 0, b.chosen, b.ranges, &is));
    assert_true(fabs(was.noise - is.noise) < 1e-4 * is.noise);
    tr_free(was.mean);
    tr_free(is.mean);
    tr_network_close(q);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adaround),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_dealt),
        cmocka_unit_test(test_bias_correction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
