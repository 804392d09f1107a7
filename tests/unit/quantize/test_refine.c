/* links: trireme_quantize trireme_inference trireme_cpu trireme_runtime trireme_collectives */
/* What data decides: which way weights are rounded, against all ways there are; biases; which layers stay float32. */
#include "optimize/quantize/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/graph/models.h"

static void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

/* ---- A network with synthetic data, on one rank ----------------------------------------------- */

typedef struct {
    tr_config *config;
    tr_network *n;
    tr_comm *comm;
    tr_evaluator *e;
    void *cpu;
    tr_value_range ranges[8];
    bool chosen[8];
} bench;

/* Values `v` are rounded by scales[v]; weights as a fresh model has them. */
static void open_bench(bench *b, const char *layers, int samples, int batch, const double *scales)
{
    const tr_comm_options co = {.timeout = 60};
    const tr_backend_options bo = {0};
    tr_model *m = NULL;
    char *text =
        tr_sprintf("name: m\nseed: 5\ndata: {train: {format: synthetic, samples: %d}}\n"
                   "model:\n%strain: {batch: %d, epochs: 1, optimizer: {sgd: {lr: 0.1}}}\n",
                   samples, layers, batch);
    *b = (bench){0};
    ok(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &b->config));
    tr_free(text);
    ok(tr_model_open(b->config, 0, &m));
    ok(tr_network_open(m, &b->n));
    tr_model_init_params(m, 3, b->n->params, 0, m->flat_count);
    ok(tr_comm_open(&co, &b->comm));
    ok(tr_cpu_backend.open(&bo, &b->cpu));
    ok(tr_evaluator_open(&(tr_evaluator_options){.comm = b->comm, .config = b->config}, &b->e));
    tr_evaluator_move(b->e, &tr_cpu_backend, b->cpu, 1);
    for (size_t i = 0; i < m->nlayers; i++) b->chosen[i] = tr_quantizable(m, &m->layers[i]);
    for (size_t v = 0; v <= m->nlayers; v++)
        b->ranges[v] = (tr_value_range){.is_signed = true, .scale = scales[v]};
}

static void close_bench(bench *b)
{
    tr_evaluator_close(b->e);
    tr_cpu_backend.close(b->cpu);
    tr_comm_close(b->comm);
    tr_network_close(b->n);
    tr_config_close(b->config);
}

static float *outputs(bench *b, const tr_network *n, size_t *count)
{
    float *y = NULL;
    ok(tr_outputs_over(b->e, n, b->config, true, 0, &y, count));
    return y;
}

/* ---- AdaRound --------------------------------------------------------------------------------- */

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
    ok(tr_quantize_adaround(b.e, b.n, b.config, 0, b.chosen, b.ranges, q));
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

/* A layer that reads as much as AdaRound takes: sums of a part of the batches, 10 MB each. Its weights are whole steps, so
 * that nothing is to be learned. */
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
    ok(tr_quantize_adaround(b.e, b.n, b.config, 0, b.chosen, b.ranges, q));
    const size_t most = tr_mem_peak(TR_MEM_OTHER) - held;
    if (!(most > 200u << 20 && most < 300u << 20)) fail_msg("%zu MB", most >> 20);
    tr_network_close(q);
    close_bench(&b);
}

/* ---- Bias correction -------------------------------------------------------------------------- */

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

/* ---- Choosing --------------------------------------------------------------------------------- */

/* The layer `slow` of the network is slower in 8 bits, all others faster. */
static int slow;

static tr_status times_as_said(choosing *k, const tr_network *q, double times[2])
{
    (void)q;
    for (size_t i = 0; i < k->n->model->nlayers; i++)
        k->layers[i].float_us = 2, k->layers[i].int8_us = (int)i == slow ? 3 : 1;
    times[0] = 2, times[1] = 1;
    return TR_OK;
}

/* A few steps of gradient descent, so that the loss needs what the layers compute. */
static void learn(bench *b)
{
    const size_t count = b->n->model->flat_count;
    float *g = calloc(count, sizeof *g);
    assert_non_null(g);
    for (int step = 0; step < 40; step++) {
        ok(tr_gradients_over(b->e, b->n, b->config, 0, g));
        for (size_t i = 0; i < count; i++) b->n->params[i] -= 0.5f / 64 * g[i];
    }
    free(g);
}

/* A layer whose input is all lost in rounding stays float32, and so does one that is not faster, but no other. */
static void test_choice(void **state)
{
    (void)state;
    static const char three[] = "  input: [10]\n  layers:\n    - linear: {out: 12, name: a}\n"
                                "    - linear: {out: 9, name: b}\n    - linear: {out: 7, name: c}\n"
                                "    - linear: {out: 4, name: d}\n  loss: cross_entropy\n";
    bench b;
    tr_int8_layer layers[4];
    const double sqnr[] = {30, 40, 2, 35};
    const tr_int8_options o = {.accuracy_drop = -1, .loss_rise = 0.02};
    open_bench(&b, three, 64, 16, (const double[]){0.03, 0.03, 100, 0.03, 0.03});
    learn(&b);
    for (int i = 0; i < 4; i++) layers[i] = (tr_int8_layer){.output_sqnr_nearest = sqnr[i]};
    choosing k = {b.e, b.n, b.config, &o, b.ranges, b.chosen, layers, times_as_said};
    slow = 1;
    ok(tr_quantize_choose(&k));
    assert_true(b.chosen[0] && !b.chosen[1] && !b.chosen[2] && b.chosen[3]);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adaround),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bias_correction),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
