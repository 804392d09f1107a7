/* Layers that are learned in sketches: fixed signs from the keyed stream, initial values that are
 * sketches of the dense layer's own, what is said of them. Their arithmetic is checked against
 * PyTorch and by differences (cpu/test_golden_ops, cpu/test_gradients). */
#include "runtime/graph/facts.h"
#include "tests/unit/graph/expands.h"

#include <math.h>
#include <stdlib.h>

#define ROWS(layers)  "  input: [300]\n  layers:\n" layers "  loss: mse\n"
#define IMAGE(layers) "  input: [5, 4, 4]\n  layers:\n" layers "    - flatten\n  loss: mse\n"

enum { SEED = 11 };

static float *values_of(const tr_model *m)
{
    float *v = calloc(m->flat_count, sizeof *v);
    assert_non_null(v);
    tr_model_init_params(m, SEED, v, 0, m->flat_count);
    return v;
}

/* U1 (rows of sketches, outs) or U2 (rows of sketches, ins), bit by bit from the generator. */
static double sign_of(const tr_sketch *s, bool columns, int64_t k, int64_t at)
{
    const uint64_t row = (uint64_t)(columns ? k : at), e = (uint64_t)(columns ? at : k);
    const tr_philox w =
        tr_philox_at((uint64_t)s->seed, TR_RNG_SKETCH, columns ? 0 : 1, row, (uint32_t)(e / 128));
    return (w.v[e % 128 / 32] >> (e % 32) & 1 ? 1 : -1) / sqrt((double)s->rank);
}

static void check_rows(const tr_param *p, const float *s1, const float *w)
{
    const int64_t out = p->of[0], in = p->of[1], k = (int64_t)p->count / in;
    for (int64_t r = 0; r < k; r++)
        for (int64_t j = 0; j < in; j++) {
            double want = 0;
            for (int64_t o = 0; o < out; o++)
                want += sign_of(&p->sketch, false, r, o) * (double)w[o * in + j];
            assert_true(fabs(want - (double)s1[r * in + j]) < 1e-5);
        }
}

static void check_columns(const tr_param *p, const float *s2, const float *w)
{
    const int64_t out = p->of[0], in = p->of[1], k = (int64_t)p->count / out;
    for (int64_t o = 0; o < out; o++)
        for (int64_t r = 0; r < k; r++) {
            double want = 0;
            for (int64_t j = 0; j < in; j++)
                want += sign_of(&p->sketch, true, r, j) * (double)w[o * in + j];
            assert_true(fabs(want - (double)s2[o * k + r]) < 1e-5);
        }
}

/* S1 = U1 W and S2 = W U2^T, W and the bias being what a dense layer in its place would start
 * from. */
static void test_initial_values(void **state)
{
    (void)state;
    static const char *const inits[] = {"kaiming", "xavier", "normal", "he"};
    for (size_t i = 0; i < TR_COUNT(inits); i++) {
        char dense[200], sketched[200];
        const double factor = i % 2 ? 0.25 : 1;
        snprintf(dense, sizeof dense, ROWS("    - linear: {out: 37, init: %s, init_factor: %g}\n"),
                 inits[i], factor);
        snprintf(sketched, sizeof sketched,
                 ROWS("    - sklinear: {out: 37, terms: 3, rank: 50, init: %s, init_factor: %g}\n"),
                 inits[i], factor);
        test_model a = test_model_open(dense), b = test_model_open(sketched);
        float *w = values_of(a.model), *v = values_of(b.model);
        const tr_param *weight = &a.model->params[0], *p = b.model->params;
        check_rows(&p[0], v + p[0].offset, w + weight->offset);
        check_columns(&p[1], v + p[1].offset, w + weight->offset);
        assert_int_equal(b.model->nparams, 3);
        free(w);
        free(v);
        test_model_close(&a);
        test_model_close(&b);
    }
    test_model a = test_model_open(IMAGE("    - conv2d: {out: 9, kernel: [3, 2]}\n"));
    test_model b =
        test_model_open(IMAGE("    - skconv2d: {out: 9, kernel: [3, 2], terms: 2, rank: 40}\n"));
    float *w = values_of(a.model), *v = values_of(b.model);
    assert_int_equal(b.model->params[0].count, 160 * 5 * 6);
    check_rows(&b.model->params[0], v + b.model->params[0].offset, w + a.model->params[0].offset);
    free(w);
    free(v);
    test_model_close(&a);
    test_model_close(&b);
}

/* Any range by itself has the whole's bits: ranks make pieces. */
static void test_ranges(void **state)
{
    (void)state;
    test_model t = test_model_open(ROWS("    - sklinear: {out: 37, terms: 2, rank: 70}\n"
                                        "    - sklinear: {out: 5, terms: 1, rank: 3}\n"));
    const size_t n = t.model->flat_count;
    float *all = values_of(t.model), *pieces = calloc(n, sizeof *pieces);
    assert_non_null(pieces);
    for (size_t at = 0, step = 1; at < n; at += step, step = step * 7 % 9973 + 1)
        tr_model_init_params(t.model, SEED, pieces, at, at + step < n ? at + step : n);
    assert_memory_equal(all, pieces, n * sizeof *all);
    free(all);
    free(pieces);
    test_model_close(&t);
}

static int64_t seed_at(const tr_model *m, size_t layer)
{
    return m->params[m->layers[layer].params[0]].sketch.seed;
}

/* The seed goes by the name alone, is written as a number and stays when the layer is renamed or
 * moved. */
static void test_seeds(void **state)
{
    (void)state;
    test_model t = test_model_open(ROWS("    - sklinear: {out: 9, terms: 1, rank: 2, name: a}\n"
                                        "    - sklinear: {out: 9, terms: 1, rank: 2, name: b}\n"
                                        "    - sklinear: {out: 9, terms: 1, rank: 2, seed: 7}\n"));
    test_model moved =
        test_model_open(ROWS("    - relu\n"
                             "    - sklinear: {out: 9, terms: 1, rank: 2, name: b}\n"));
    assert_true(seed_at(t.model, 0) != seed_at(t.model, 1));
    assert_true(seed_at(moved.model, 1) == seed_at(t.model, 1));
    assert_int_equal(seed_at(t.model, 2), 7);
    char *text = NULL, line[64];
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tr_model_write(t.model, 0, f), TR_OK);
    fclose(f);
    for (size_t i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "seed: %lld", (long long)seed_at(t.model, i));
        assert_non_null(strstr(text, line));
    }
    free(text);
    test_model_close(&t);
    test_model_close(&moved);
}

/* A and B: the learned halves as they are, the others signs of u. */
static void test_matrices(void **state)
{
    (void)state;
    enum { OUT = 5, IN = 7, K = 6 };
    float learned[OUT * K + IN * K], all[2 * K * (OUT + IN)];
    for (size_t i = 0; i < TR_COUNT(learned); i++) learned[i] = (float)i + 1;
    tr_sketch s = {.side = TR_SKETCH_DOWN, .terms = 2, .rank = 3, .seed = 5};
    const double u = 1 / (4 * sqrt(3.0)), root = sqrt(3.0);
    assert_true(fabs(u - (double)tr_sketch_unit(&s)) < 1e-7);
    tr_sketch_matrix(&s, learned, 2 * K, IN, all);
    assert_memory_equal(all, learned, IN * K * sizeof *all);
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < IN; j++)
            assert_true(fabs((double)all[(K + k) * IN + j] - u * root * sign_of(&s, true, k, j)) <
                        1e-6);
    s.side = TR_SKETCH_UP;
    tr_sketch_matrix(&s, learned, OUT, 2 * K, all);
    for (int64_t o = 0; o < OUT; o++)
        for (int64_t k = 0; k < K; k++) {
            assert_true(all[o * 2 * K + K + k] == learned[o * K + k]);
            assert_true(fabs((double)all[o * 2 * K + k] - u * root * sign_of(&s, false, k, o)) <
                        1e-6);
        }
}

static void test_facts(void **state)
{
    (void)state;
    test_model t = test_model_open(ROWS("    - sklinear: {out: 200, terms: 2, rank: 8}\n"
                                        "    - linear: {out: 4}\n"));
    tr_sketch_facts f;
    assert_true(tr_layer_sketch(t.model, &t.model->layers[0], &f));
    assert_int_equal(f.width, 32);
    assert_true(f.parameters[0] == 16 * 500.0 && f.parameters[1] == 300 * 200.0);
    assert_true(f.multiply_adds[0] == 32 * 500.0 && f.multiply_adds[1] == 300 * 200.0);
    assert_true(tr_layer_multiply_adds(t.model, &t.model->layers[0]) == 32 * 500.0);
    assert_false(tr_layer_sketch(t.model, &t.model->layers[1], &f));
    assert_string_equal(tr_layer_sketched(&t.model->layers[1]), "sklinear");
    assert_null(tr_layer_sketched(&t.model->layers[0]));
    test_model_close(&t);
    test_model c =
        test_model_open(IMAGE("    - skconv2d: {out: 9, kernel: 3, terms: 1, rank: 2, padding: 1}\n"
                              "    - conv2d: {out: 9, kernel: 3, groups: 3}\n"));
    assert_true(tr_layer_sketch(c.model, &c.model->layers[0], &f));
    assert_true(f.parameters[0] == 4 * 45.0 && f.parameters[1] == 9 * 45.0);
    assert_true(f.multiply_adds[0] == 16 * 4 * 54.0 && f.multiply_adds[1] == 16 * 9 * 45.0);
    assert_null(tr_layer_sketched(&c.model->layers[1]));
    test_model_close(&c);
}

/* Two products, with (batch, 2 terms rank) between them whatever the terms: nothing is (batch,
 * terms, out), and gradients are those of the learned halves. The second adds the bias and applies
 * relu. */
static void test_ops(void **state)
{
    (void)state;
    tr_graph_options o = {.batch = 5, .mode = TR_MODE_TRAIN, .passes = TR_PASSES_ALL};
    static const char model[] = ROWS("    - sklinear: {out: 40, terms: 3, rank: 4}\n    - relu\n"
                                     "    - sklinear: {out: 7, terms: 1, rank: 2, bias: false}\n");
    test_graph_is(
        model, &o,
        "sklinear.down input sklinear1.s1 - -> sklinear1.sketches(5,24)!\n"
        "sklinear+relu sklinear1.sketches sklinear1.s2 sklinear1.bias -> relu1(5,40)!\n"
        "sklinear.down relu1 sklinear2.s1 - -> sklinear2.sketches(5,4)!\n"
        "sklinear sklinear2.sketches sklinear2.s2 - -> sklinear2(5,7)\n"
        "mse sklinear2 target -> d.sklinear2.1(5,7)\n"
        "sklinear.grad_weight sklinear2.sketches d.sklinear2.1 -> d.sklinear2.s2(7,2) -\n"
        "sklinear.grad_input d.sklinear2.1 sklinear2.s2 -> d.sklinear2.sketches.1(5,4)\n"
        "sklinear.grad_weight relu1 d.sklinear2.sketches.1 -> d.sklinear2.s1(2,40) -\n"
        "sklinear.grad_input d.sklinear2.sketches.1 sklinear2.s1 -> d.relu1.1(5,40)\n"
        "relu.grad d.relu1.1 relu1 -> d.sklinear1.1(5,40)@d.relu1.1\n"
        "sklinear.grad_weight sklinear1.sketches d.sklinear1.1 -> d.sklinear1.s2(40,12) "
        "d.sklinear1.bias(40)\n"
        "sklinear.grad_input d.sklinear1.1 sklinear1.s2 -> d.sklinear1.sketches.1(5,24)\n"
        "sklinear.grad_weight input d.sklinear1.sketches.1 -> d.sklinear1.s1(12,300) - bucket 0\n");
    o.mode = TR_MODE_EVALUATE;
    test_graph_is(model, &o,
                  "sklinear.down input sklinear1.s1 - -> sklinear1.sketches(5,24)\n"
                  "sklinear+relu sklinear1.sketches sklinear1.s2 sklinear1.bias -> relu1(5,40)\n"
                  "sklinear.down relu1 sklinear2.s1 - -> sklinear2.sketches(5,4)\n"
                  "sklinear sklinear2.sketches sklinear2.s2 - -> sklinear2(5,7)\n"
                  "mse sklinear2 target -> -\n");
}

/* ---- model.sketch ---- */

#define KEY(sketch, layers) "  sketch: " sketch "\n" ROWS(layers)
#define DENSE                                                                                      \
    "    - linear: {out: 200, init: he, init_factor: 0.5, lr_factor: 2}\n"                         \
    "    - relu\n"                                                                                 \
    "    - linear: {out: 200, bias: false, name: still, freeze: true}\n"                           \
    "    - repeat: {times: 2, layers: [{linear: {out: 200, name: a}}]}\n"                          \
    "    - linear: {out: 4, name: head}\n"

/* The layers of the same names, with their options and the initial values that they have when they
 * are written so. */
static void test_key(void **state)
{
    (void)state;
    test_model t = test_model_open(KEY("{terms: 2, rank: 8}", DENSE));
    test_model by_hand = test_model_open(ROWS(
        "    - sklinear: {out: 200, init: he, init_factor: 0.5, lr_factor: 2, terms: 2, rank: 8, "
        "name: linear1}\n"
        "    - relu\n"
        "    - linear: {out: 200, bias: false, name: still, freeze: true}\n"
        "    - repeat: {times: 2, layers: [{sklinear: {out: 200, terms: 2, rank: 8, name: a}}]}\n"
        "    - linear: {out: 4, name: head}\n"));
    char *made = listed(t.model), *wanted = listed(by_hand.model);
    assert_string_equal(made, wanted);
    assert_non_null(strstr(made, "sklinear a.2<-a.1 (200)"));
    assert_int_equal(t.model->flat_count, by_hand.model->flat_count);
    assert_true(t.model->params[0].lr_factor == 2);
    float *v = values_of(t.model), *w = values_of(by_hand.model);
    assert_memory_equal(v, w, t.model->flat_count * sizeof *v);
    free(v);
    free(w);
    free(made);
    free(wanted);
    test_model_close(&t);
    test_model_close(&by_hand);
    t = test_model_open(
        KEY("{match: [a.*, head], rank: 8}", DENSE)); /* named: also where it is larger */
    made = listed(t.model);
    assert_string_equal(made, "linear linear1<-input (200)\nrelu relu1<-linear1 (200)\n"
                              "linear still<-relu1 (200)\nsklinear a.1<-still (200)\n"
                              "sklinear a.2<-a.1 (200)\nsklinear head<-a.2 (4)");
    free(made);
    test_model_close(&t);
}

/* Weights of several layers stay dense; convolutions keep their windows. */
static void test_key_of_others(void **state)
{
    (void)state;
    expands(
        "  sketch: {rank: 2}\n  input: [5]\n  layers:\n"
        "    - embedding: {num: 90, dim: 64, name: e}\n"
        "    - transformer: {layers: 1, heads: 2, mlp: 128, causal: true, name: h}\n"
        "    - linear: {out: 90, weight_of: e, bias: false, name: head}\n  loss: cross_entropy\n",
        "embedding e<-input (5, 64)\nlayernorm h.0.norm1<-e (5, 64)\n"
        "sklinear h.0.qkv<-h.0.norm1 (5, 192)\nattention h.0.attention<-h.0.qkv (5, 64)\n"
        "sklinear h.0.proj<-h.0.attention (5, 64)\nadd h.0.add1<-h.0.proj,e (5, 64)\n"
        "layernorm h.0.norm2<-h.0.add1 (5, 64)\nsklinear h.0.up<-h.0.norm2 (5, 128)\n"
        "gelu h.0.act<-h.0.up (5, 128)\nsklinear h.0.down<-h.0.act (5, 64)\n"
        "add h.0.add2<-h.0.down,h.0.add1 (5, 64)\nlinear head<-h.0.add2 (5, 90)");
    expands(
        "  sketch: {rank: 1}\n" IMAGE(
            "    - conv2d: {out: 9, kernel: 3, padding: same}\n"
            "    - conv2d: {out: 9, kernel: [3, 1], groups: 3}\n"
            "    - conv2d: {out: 12, kernel: [1, 3], stride: 2, padding: [0, 1], dilation: 1}\n"),
        "skconv2d conv2d1<-input (9, 4, 4)\nconv2d conv2d2<-conv2d1 (9, 2, 4)\n"
        "skconv2d conv2d3<-conv2d2 (12, 1, 2)\nflatten flatten1<-conv2d3 (24)");
}

static void test_key_refused(void **state)
{
    (void)state;
    test_model_fails(KEY("{match: [linear1, haed], rank: 8}", DENSE), TR_CONFIG,
                     "m.yaml:4:29: model.sketch.match: there is no layer \"haed\": did you mean "
                     "\"head\"?");
    test_model_fails(KEY("{match: middle, rank: 8}", DENSE), TR_CONFIG,
                     "m.yaml:4:19: model.sketch.match: there is no layer \"middle\"; there are: "
                     "linear1, relu1, still, a.1, a.2, ...");
    test_model_fails(KEY("{match: st*, rank: 8}", DENSE), TR_CONFIG,
                     "m.yaml:4:19: model.sketch.match: none of the layers that it names can be "
                     "sketched: still: its weight is frozen");
    test_model_fails(
        KEY("{terms: 4, rank: 64}", DENSE), TR_CONFIG,
        "m.yaml:4:11: model.sketch: terms: 4, rank: 64: there is no layer whose sketch takes less "
        "arithmetic: smaller ones, or match, which names layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_initial_values),
                                       cmocka_unit_test(test_ranges),
                                       cmocka_unit_test(test_seeds),
                                       cmocka_unit_test(test_matrices),
                                       cmocka_unit_test(test_facts),
                                       cmocka_unit_test(test_ops),
                                       cmocka_unit_test(test_key),
                                       cmocka_unit_test(test_key_of_others),
                                       cmocka_unit_test(test_key_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
