/* links: trireme_quantize trireme_inference trireme_cpu trireme_runtime */
/* Histograms, and networks of 8 bits run in 8 bits against the same ones in float32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "optimize/inference/inference.h"
#include "optimize/quantize/quantize.h"
#include "tests/unit/graph/models.h"

static void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

/* A range that covers what is there, and leaves a few far values out where that pays. */
static void test_histograms(void **state)
{
    (void)state;
    static int64_t even[TR_CALIBRATION_BINS], far[TR_CALIBRATION_BINS], tail[TR_CALIBRATION_BINS];
    for (size_t i = 0; i < TR_CALIBRATION_BINS; i++) even[i] = 1000;
    for (size_t i = 0; i < 200; i++) far[i] = 100000;
    for (size_t i = 0; i < TR_CALIBRATION_BINS; i++)
        tail[i] = (int64_t)(1e6 * exp(-(double)i / 40)) + (i % 500 == 0);
    far[TR_CALIBRATION_BINS - 1] = 3;
    for (int kind = TR_CALIBRATE_MINMAX; kind <= TR_CALIBRATE_MSE; kind++)
        for (int s = 0; s < 2; s++) {
            const tr_calibration c = {.kind = (tr_calibration_kind)kind, .percentile = 99.9};
            const double of_even = tr_calibration_most(&c, s, 4, even),
                         of_far = tr_calibration_most(&c, s, 4, far);
            assert_true(of_even > 3.9 && of_even <= 4);
            assert_true(kind == TR_CALIBRATE_MINMAX       ? of_far == 4
                        : kind == TR_CALIBRATE_PERCENTILE ? of_far > 0.3 && of_far < 0.5
                                                          : of_far > 0.3 && of_far <= 4);
            if (kind != TR_CALIBRATE_MINMAX) assert_true(tr_calibration_most(&c, s, 4, tail) < 2);
        }
}

static const char net[] =
    "  input: [3, 9, 11]\n  layers:\n"
    "    - conv2d: {out: 16, kernel: 3, padding: 1, name: a}\n    - relu: {name: ar}\n"
    "    - conv2d: {out: 16, kernel: 3, padding: 1, name: b}\n    - relu\n"
    "    - conv2d: {out: 16, kernel: 3, padding: 1, name: c}\n"
    "    - add: {from: [c, ar]}\n    - relu: {name: r}\n"
    "    - conv2d: {out: 24, kernel: 1, stride: 2, from: r, name: s}\n"
    "    - conv2d: {out: 24, kernel: 3, stride: 2, padding: 1, from: r, name: d}\n"
    "    - add: {from: [d, s]}\n    - relu\n    - global_avgpool\n    - flatten\n"
    "    - linear: {out: 10, name: head}\n  loss: cross_entropy\n";

static float *answers_of(const tr_network *n, void *ctx, const float *x, size_t samples,
                         const char *has, const char *lacks)
{
    tr_inference *inf = NULL;
    char *text = NULL;
    size_t size;
    float *y = malloc(samples * 10 * sizeof *y);
    const tr_inference_options o = {
        .backend = &tr_cpu_backend, .backend_ctx = ctx, .max_batch = samples};
    ok(tr_inference_open(n, &o, &inf));
    ok(tr_inference_run(inf, (const void *const[]){x}, samples, &y));
    FILE *f = open_memstream(&text, &size);
    tr_graph_print(tr_plan_graph(tr_inference_plan(inf, samples)), f);
    fclose(f);
    if (has && !strstr(text, has)) fail_msg("\"%s\" is not in\n%s", has, text);
    if (lacks && strstr(text, lacks)) fail_msg("\"%s\" is in\n%s", lacks, text);
    free(text);
    tr_inference_close(inf);
    return y;
}

static float *answers(const tr_network *n, void *ctx, const float *x, const char *has,
                      const char *lacks)
{
    return answers_of(n, ctx, x, 7, has, lacks);
}

/* Of the model, which is the network's from now on; with weights by chance. */
static tr_network *open_network(test_model *t, const char *layers)
{
    tr_network *n = NULL;
    ok(test_model_try(t, layers, 0));
    ok(tr_network_open(t->model, &n));
    t->model = NULL;
    tr_model_init_params(n->model, 3, n->params, 0, n->model->flat_count);
    return n;
}

static void fill(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = 0.003f * (float)(i * 7919 % 701) - 1;
}

/* The same values, kept as float32: nothing is replaced. */
static tr_status keep(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    (void)ctx;
    static const char *const stored[] = {"stored=float32"};
    const tr_layer_changes changes = {.options = stored, .noptions = 1};
    return l->nparams > 0 ? tr_maker_copy(mk, l, &changes, l->nin, in, value) : TR_OK;
}

/* Names that are the same for longer than what the rounding layers' names have room for. */
static void test_long_names(void **state)
{
    (void)state;
#define LONG "a_name_as_long_as_a_layers_name_may_well_be"
    static const char layers[] =
        "  input: [4]\n  layers:\n    - linear: {out: 4, name: " LONG "1}\n"
        "    - linear: {out: 4, name: " LONG "2}\n    - linear: {out: 3}\n  loss: cross_entropy\n";
    test_model t;
    tr_network *n = open_network(&t, layers), *q = NULL;
    bool chosen[8];
    tr_value_range ranges[8];
    double sqnr[8];
    for (size_t i = 0; i < 8; i++) {
        chosen[i] = i < n->model->nlayers && tr_quantizable(n->model, &n->model->layers[i]);
        ranges[i] = (tr_value_range){.is_signed = true, .scale = 0.02};
    }
    ok(tr_quantize_static(n, chosen, ranges, false, sqnr, &q));
    tr_network_close(q);
    tr_network_close(n);
    test_model_close(&t);
}

static void test_inference(void **state)
{
    (void)state;
    const tr_backend_options bo = {0};
    void *ctx = NULL;
    test_model t;
    tr_network *n = NULL, *q = NULL, *same = NULL;
    bool chosen[32], wanted[32];
    tr_value_range ranges[32];
    double sqnr[32];
    static float x[7 * 3 * 9 * 11];
    ok(tr_cpu_backend.open(&bo, &ctx));
    n = open_network(&t, net);
    fill(x, TR_COUNT(x));
    size_t places = 0;
    for (size_t i = 0; i < n->model->nlayers; i++)
        chosen[i] = tr_quantizable(n->model, &n->model->layers[i]);
    tr_quantize_places(n, chosen, wanted);
    for (size_t v = 0; v < n->model->ninputs + n->model->nlayers; v++) {
        places += wanted[v];
        ranges[v] = (tr_value_range){.is_signed = true, .scale = 0.02};
        if (v > 0 && tr_op_activation(&(tr_op){.def = n->model->layers[v - 1].def}) == TR_ACT_RELU)
            ranges[v] = (tr_value_range){.scale = 0.01};
    }
    assert_int_equal(places, 7); /* input, ar, relu, r, s, the last relu, what flatten makes */
    ok(tr_quantize_static(n, chosen, ranges, false, sqnr, &q));
    for (size_t i = 0; i < n->model->nlayers; i++)
        if (chosen[i]) assert_true(sqnr[i] > 35);
    ok(tr_network_edit(q, keep, NULL, &same));
    float *y = answers(n, ctx, x, NULL, "int8"),
          *a = answers(q, ctx, x, "global_avgpool.int8", "fake"),
          *b = answers(same, ctx, x, "fake_quantize", "int8");
    double error = 0, energy = 0, steps = 0;
    for (size_t i = 0; i < 70; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        steps += (a[i] - y[i]) * (a[i] - y[i]);
        energy += y[i] * y[i];
    }
    /* rounding that falls on the other side now and then, as averages of steps lie at halves; and
     * all that is lost */
    if (!(error < 1e-4 * energy && steps < 1e-2 * energy && steps > 0))
        fail_msg("%g and %g of %g", error, steps, energy);
    free(y);
    free(a);
    free(b);
    tr_network_close(same);
    tr_network_close(q);
    tr_network_close(n);
    test_model_close(&t);
    tr_cpu_backend.close(ctx);
}

/* What lies between products stays in 8 bits: of all values only the input is quantized, none is
 * turned back. `has`: part of the graph; `lacks`: of none of the ops. unsigned_value: the one value
 * without negative ones. */
static void stays(const char *layers, const char *has, const char *lacks, size_t unsigned_value)
{
    const tr_backend_options bo = {0};
    void *ctx = NULL;
    test_model t;
    tr_network *n = NULL, *q = NULL, *same = NULL;
    bool chosen[32];
    tr_value_range ranges[32];
    static float x[7 * 3 * 9 * 11];
    ok(tr_cpu_backend.open(&bo, &ctx));
    n = open_network(&t, layers);
    fill(x, TR_COUNT(x));
    for (size_t i = 0; i < n->model->nlayers; i++)
        chosen[i] = tr_quantizable(n->model, &n->model->layers[i]);
    for (size_t v = 0; v < n->model->ninputs + n->model->nlayers; v++)
        ranges[v] = (tr_value_range){.is_signed = v != unsigned_value, .scale = 0.01};
    ok(tr_quantize_static(n, chosen, ranges, false, NULL, &q));
    ok(tr_network_edit(q, keep, NULL, &same));
    float *a = answers(q, ctx, x, has, "int8.dequantize"), *again = answers(q, ctx, x, NULL, lacks),
          *b = answers(same, ctx, x, "fake_quantize", "int8");
    double error = 0, energy = 0;
    for (size_t i = 0; i < 70; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        energy += b[i] * b[i];
    }
    if (!(error < 1e-4 * energy)) fail_msg("%g of %g", error, energy);
    free(a);
    free(again);
    free(b);
    tr_network_close(same);
    tr_network_close(q);
    tr_network_close(n);
    test_model_close(&t);
    tr_cpu_backend.close(ctx);
}

static void test_moves(void **state)
{
    (void)state;
    stays("  input: [3, 9, 11]\n  layers:\n"
          "    - conv2d: {out: 20, kernel: 3, padding: 1, name: a}\n    - relu\n"
          "    - maxpool2d: {kernel: 3, stride: 2, padding: 1}\n"
          "    - conv2d: {out: 16, kernel: 3, padding: 1, name: b}\n"
          "    - maxpool2d: {kernel: 2}\n    - maxpool2d: {kernel: 2, stride: 1}\n    - flatten\n"
          "    - linear: {out: 10, name: head}\n  loss: cross_entropy\n",
          "maxpool2d maxpool2d1.steps.steps", "fake_quantize", 3);
}

/* Groups, one channel a group, and relu6, whose ceiling is above the largest step. */
static void test_groups(void **state)
{
    (void)state;
    stays("  input: [3, 9, 11]\n  layers:\n"
          "    - conv2d: {out: 20, kernel: 3, padding: 1, name: a}\n    - relu6: {name: r}\n"
          "    - conv2d: {out: 20, kernel: 3, padding: 1, groups: 20, name: b}\n"
          "    - conv2d: {out: 12, kernel: 3, groups: 4, stride: 2, name: c}\n"
          "    - flatten\n    - linear: {out: 10, name: head}\n  loss: cross_entropy\n",
          "conv2d.int8_groups b.steps.steps", "relu6", 2);
}

/* Averages and what stands side by side, of other scales and of the same ones, a skip among
 * them. */
static void test_carried(void **state)
{
    (void)state;
    stays(
        "  input: [3, 9, 11]\n  layers:\n"
        "    - conv2d: {out: 20, kernel: 3, padding: 1, name: a}\n    - relu: {name: r}\n"
        "    - conv2d: {out: 7, kernel: 3, padding: 1, name: b}\n"
        "    - concat: {from: [b, r], name: k}\n"
        "    - conv2d: {out: 16, kernel: 3, name: c}\n    - avgpool2d: {kernel: 3, stride: 2}\n"
        "    - conv2d: {out: 20, kernel: 1, name: d}\n    - relu: {name: s}\n    - global_avgpool\n"
        "    - flatten\n    - linear: {out: 10, name: head}\n  loss: cross_entropy\n",
        "concat.int8 b.steps.steps r.steps.steps -> k.steps.steps", "fake_quantize", 2);
}

/* Ranges of each call: of all products, with residual, groups and gelu; where nothing is below 0,
 * the steps are unsigned. A sample's answer is the same bits alone and among others. */
static void test_dynamic(void **state)
{
    (void)state;
    static const char layers[] =
        "  input: [3, 9, 11]\n  layers:\n"
        "    - conv2d: {out: 16, kernel: 3, padding: 1, name: a}\n    - relu: {name: ar}\n"
        "    - conv2d: {out: 16, kernel: 3, padding: 1, groups: 4, name: b}\n"
        "    - add: {from: [b, ar]}\n    - relu\n    - global_avgpool\n    - flatten: {name: f}\n"
        "    - linear: {out: 24, name: c}\n    - gelu\n    - linear: {out: 10, name: head}\n"
        "  loss: cross_entropy\n";
    enum { EACH = 3 * 9 * 11 };
    const tr_backend_options bo = {0};
    void *ctx = NULL;
    test_model t;
    tr_network *n = NULL, *q = NULL, *same = NULL;
    bool chosen[32];
    tr_value_range ranges[32];
    static float x[7 * EACH];
    ok(tr_cpu_backend.open(&bo, &ctx));
    n = open_network(&t, layers);
    fill(x, TR_COUNT(x));
    for (size_t i = 0; i < EACH; i++) x[i] *= 100; /* one sample is larger than all others */
    for (size_t i = 0; i < n->model->nlayers; i++)
        chosen[i] = tr_quantizable(n->model, &n->model->layers[i]);
    tr_quantize_dynamic(n, ranges);
    const bool is_signed[] = {true, true, false, true, true, false, false, false, true, true, true};
    for (size_t v = 0; v < TR_COUNT(is_signed); v++)
        if (ranges[v].is_signed != is_signed[v]) fail_msg("value %zu", v);
    ok(tr_quantize_static(n, chosen, ranges, false, NULL, &q));
    ok(tr_network_edit(q, keep, NULL, &same));
    float *y = answers(n, ctx, x, NULL, "int8"),
          *a = answers(q, ctx, x, "int8.dynamic", "dynamic_q"),
          *b = answers(same, ctx, x, "dynamic_quantize", "int8");
    float *again = answers(q, ctx, x, "int8.rescale+relu b.sums", "\nadd ");
    double error = 0, energy = 0, steps = 0;
    for (size_t i = 10; i < 70; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        steps += (a[i] - y[i]) * (a[i] - y[i]);
        energy += y[i] * y[i];
    }
    if (!(error < 1e-5 * energy && steps < 1e-3 * energy && steps > 0))
        fail_msg("%g and %g of %g", error, steps, energy);
    for (size_t s = 0; s < 7; s++) {
        float *one = answers_of(q, ctx, x + s * EACH, 1, NULL, NULL);
        assert_memory_equal(one, a + s * 10, 10 * sizeof *one);
        free(one);
    }
    free(y);
    free(a);
    free(b);
    free(again);
    tr_network_close(same);
    tr_network_close(q);
    tr_network_close(n);
    test_model_close(&t);
    tr_cpu_backend.close(ctx);
}

/* A linear layer of rows with ranges of their own, bit for bit what integers and the order of ops.h
 * say. */
static void test_dynamic_exactly(void **state)
{
    (void)state;
    static const char layers[] =
        "  input: [37]\n  layers:\n    - linear: {out: 10, name: head}\n  loss: cross_entropy\n";
    enum { IN = 37, OUT = 10 };
    const tr_backend_options bo = {0};
    void *ctx = NULL;
    test_model t;
    tr_network *n = NULL, *q = NULL;
    const bool chosen[] = {true};
    tr_value_range ranges[2];
    static float x[7 * IN];
    ok(tr_cpu_backend.open(&bo, &ctx));
    n = open_network(&t, layers);
    fill(x, TR_COUNT(x));
    for (size_t i = 0; i < IN; i++) x[i] = 0; /* a row of zeros */
    tr_quantize_dynamic(n, ranges);
    ok(tr_quantize_static(n, chosen, ranges, false, NULL, &q));
    const tr_param *row = tr_network_row(q, "head", "weight");
    const float *w = q->params + row->offset, *bias = tr_network_param(q, "head", "bias"),
                *scale = q->states + q->model->states[row->scale].offset;
    float *y = answers(q, ctx, x, "int8.rescale", "fake");
    for (size_t s = 0; s < 7; s++) {
        float most = 1e-30f;
        for (size_t i = 0; i < IN; i++) most = fmaxf(most, fabsf(x[s * IN + i]));
        const float step = most / 127, inverse = 1 / step;
        for (size_t o = 0; o < OUT; o++) {
            int32_t sum = 0;
            for (size_t i = 0; i < IN; i++)
                sum += (int32_t)rintf(x[s * IN + i] * inverse) *
                       (int32_t)rintf(w[o * IN + i] / scale[o]);
            const float want = fmaf((float)sum * scale[o], step, bias[o]);
            if (y[s * OUT + o] != want)
                fail_msg("sample %zu, output %zu: %.9g, not %.9g", s, o, (double)y[s * OUT + o],
                         (double)want);
        }
    }
    free(y);
    tr_network_close(q);
    tr_network_close(n);
    test_model_close(&t);
    tr_cpu_backend.close(ctx);
}

static float largest(const tr_network *n, const char *layer, size_t channel)
{
    const tr_param *p = tr_network_row(n, layer, "weight");
    const size_t each = p->count / (size_t)p->dims[0];
    float most = 0;
    for (size_t i = 0; i < each; i++)
        most = fmaxf(most, fabsf(n->params[p->offset + channel * each + i]));
    return most;
}

/* Channels of very different sizes, through relu, a depthwise convolution, pooling and flatten: the
 * same outputs. */
static void test_equalize(void **state)
{
    (void)state;
    static const char uneven[] =
        "  input: [3, 9, 11]\n  layers:\n"
        "    - conv2d: {out: 8, kernel: 3, name: a}\n    - relu\n"
        "    - conv2d: {out: 8, kernel: 3, groups: 8, padding: 1, name: b}\n    - relu\n"
        "    - conv2d: {out: 6, kernel: 1, bias: false, name: c}\n    - leaky_relu\n"
        "    - maxpool2d: {kernel: 2}\n    - flatten\n    - linear: {out: 12, name: d}\n"
        "    - sigmoid\n    - linear: {out: 10, name: head}\n  loss: cross_entropy\n";
    const tr_backend_options bo = {0};
    void *ctx = NULL;
    test_model t;
    tr_network *n = NULL, *e = NULL;
    size_t pairs;
    static float x[7 * 3 * 9 * 11];
    ok(tr_cpu_backend.open(&bo, &ctx));
    n = open_network(&t, uneven);
    fill(x, TR_COUNT(x));
    float *w = tr_network_param(n, "a", "weight");
    for (size_t i = 0; i < 8 * 27; i++) w[i] *= i / 27 % 2 ? 100 : 0.1f;
    ok(tr_quantize_equalize(n, &pairs, &e));
    assert_int_equal(pairs, 3); /* a b, b c, c d; not through sigmoid */
    float *y = answers(n, ctx, x, NULL, "int8"), *z = answers(e, ctx, x, NULL, "int8");
    for (size_t i = 0; i < 70; i++) assert_true(fabsf(y[i] - z[i]) <= 1e-4f * (1 + fabsf(y[i])));
    for (size_t c = 0; c < 8; c++) {
        const float before = largest(e, "a", c), behind = largest(e, "b", c);
        if (!(fabsf(before - behind) <= 0.01f * behind))
            fail_msg("channel %zu: %g and %g", c, (double)before, (double)behind);
    }
    assert_true(largest(n, "a", 1) > 300 * largest(n, "a", 0));
    free(y);
    free(z);
    tr_network_close(e);
    tr_network_close(n);
    test_model_close(&t);
    tr_cpu_backend.close(ctx);
}

static void test_weights(void **state)
{
    (void)state;
    test_model t;
    tr_network *n = NULL, *h = NULL;
    n = open_network(&t, net);
    ok(tr_quantize_weights(n, TR_F16, &h));
    const float *was = tr_network_param(n, "b", "weight"), *is = tr_network_param(h, "b", "weight");
    assert_int_equal(tr_network_row(h, "b", "weight")->stored, TR_F16);
    assert_int_equal(tr_network_row(h, "b", "bias")->stored, TR_F32);
    for (int i = 0; i < 100; i++) assert_true(is[i] == tr_f16_to_f32(tr_f32_to_f16(was[i])));
    tr_network_close(h);
    tr_network_param(n, "b", "weight")[3] = 1e5f;
    assert_int_equal(tr_quantize_weights(n, TR_F16, &h), TR_CONFIG);
    assert_string_equal(tr_last_error()->text,
                        "layer \"b\": a weight of 100000 does not fit float16, which ends at "
                        "65504: bfloat16 goes as far as float32");
    tr_network_close(n);
    test_model_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histograms),      cmocka_unit_test(test_inference),
        cmocka_unit_test(test_long_names),      cmocka_unit_test(test_moves),
        cmocka_unit_test(test_groups),          cmocka_unit_test(test_equalize),
        cmocka_unit_test(test_weights),         cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_dynamic_exactly), cmocka_unit_test(test_carried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
