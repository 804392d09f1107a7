/* links: trireme_cpu trireme_plan trireme_inference
 * Logits whose rows stand apart (TR_PASS_ALIGN_ROWS): losses and gradients as with rows one behind
 * the other; classes below, at and between multiples of eight, with and without a bias, smoothing,
 * weights of classes, ignored labels; a head that shares the embedding's weight; gradients that are
 * added to. */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/model_harness.h"

#include "optimize/inference/convert.h"

enum { BATCH = 3, ROWS = 5 };

/* 16-bit operands and results, products in another order: some roundings of 2^-9, over the
 * largest. */
#define BOUND 0.02

typedef struct {
    const char *layers, *loss;
    int classes;
    bool ids, apart; /* the pass has something to do */
} head_case;

#define BODY(head)  "    - linear: {out: 24}\n    - tanh\n    - linear: {" head "}\n"
#define WORDS(head) "    - embedding: {num: 37, dim: 16, name: e}\n    - linear: {" head "}\n"

static const head_case cases[] = {
    {BODY("out: 37"), "cross_entropy", 37, false, true},
    {BODY("out: 37, bias: false"), "cross_entropy", 37, false, true},
    {BODY("out: 40"), "cross_entropy", 40, false, false},
    {BODY("out: 5"), "cross_entropy", 5, false, true},
    {BODY("out: 9"), "{cross_entropy: {label_smoothing: 0.1}}", 9, false, true},
    {BODY("out: 11"),
     "{cross_entropy: {label_smoothing: 0.2, class_weights: [1, 2, 1, 1, 3, 1, 1, 1, 0.5, 1, 2]}}",
     11, false, true},
    {BODY("out: 1029"), "{cross_entropy: {ignore_index: 3}}", 1029, false, true},
    {BODY("out: 9001, bias: false"), "cross_entropy", 9001, false, true},
    {WORDS("out: 37, bias: false, weight_of: e"), "cross_entropy", 37, true, true},
    {BODY("out: 37, name: h}\n    - tanh: {from: h"), "cross_entropy", 37, false, false},
};

static char *text_of(const head_case *k)
{
    char *input = k->ids ? tr_sprintf("input: [%d]", ROWS) : tr_sprintf("input: [%d, 6]", ROWS);
    char *text =
        tr_sprintf("name: m\ndata: {train: {format: synthetic, samples: 64}}\nmodel:\n  %s\n"
                   "  layers:\n%s  loss: %s\n"
                   "train: {batch: 4, epochs: 1, optimizer: {sgd: {lr: 0.1}}}\n",
                   input, k->layers, k->loss);
    tr_free(input);
    return text;
}

static double uniform(uint32_t stream, size_t i)
{
    return 2.0 * (double)tr_uniform(tr_philox_at(5, TR_RNG_TEST, stream, i, 0).v[0]) - 1.0;
}

static void fill(const head_case *k, model_harness *h)
{
    double v[BATCH * ROWS * 6];
    for (size_t i = 0; i < h->m->flat_count; i++) h->weights[i] = (float)(0.5 * uniform(1, i));
    for (size_t i = 0; i < TR_COUNT(v); i++) v[i] = k->ids ? (double)(i * 7 % 37) : uniform(2, i);
    mh_set_input(h, 0, v);
    for (size_t i = 0; i < BATCH * ROWS; i++) v[i] = (double)((i * 5 + 3) % (size_t)k->classes);
    mh_set_target(h, v);
}

/* Twice, the second run added to the first; *loss of both. */
static float *gradients(const head_case *k, tr_config *c, void *ctx, tr_precision precision,
                        unsigned passes, double *loss)
{
    const tr_graph_options o = {.batch = BATCH,
                                .mode = TR_MODE_TRAIN,
                                .precision = precision,
                                .ranks = 1,
                                .passes = passes,
                                .row_align = 16};
    const bool may = passes & TR_PASS_IS(TR_PASS_ALIGN_ROWS);
    double tally[TR_TALLY] = {0};
    model_harness h;
    mh_open(&h, k->layers, c, ctx, &o);
    const tr_graph *g = tr_plan_graph(h.plan);
    assert_int_equal(g->found[TR_PASS_ALIGN_ROWS],
                     may && k->apart && precision != TR_PRECISION_FP32);
    if (g->found[TR_PASS_ALIGN_ROWS] > 0)
        assert_int_equal(g->tensors[g->logits].pitch, (k->classes + 7) / 8 * 8);
    fill(k, &h);
    for (int i = 0; i < 2; i++) {
        const tr_run r = {.seed = 1,
                          .loss_scale = 1,
                          .accumulate = i > 0,
                          .last = true,
                          .params_changed = i == 0,
                          .tally = tally};
        mirror_try(tr_plan_run(h.plan, &r), k->layers);
    }
    *loss = tally[TR_TALLY_LOSS];
    float *out = mh_floats(h.m->flat_count);
    memcpy(out, h.grads, h.m->flat_count * sizeof *out);
    mh_close(&h);
    return out;
}

/* *loss of an evaluation; its logits. */
static float *logits(const head_case *k, tr_config *c, void *ctx, tr_precision precision,
                     unsigned passes, double *loss, size_t *count)
{
    const tr_graph_options o = {.batch = BATCH,
                                .mode = TR_MODE_EVALUATE,
                                .precision = precision,
                                .ranks = 1,
                                .passes = passes,
                                .row_align = 16};
    double tally[TR_TALLY] = {0};
    model_harness h;
    mh_open(&h, k->layers, c, ctx, &o);
    fill(k, &h);
    mirror_try(
        tr_plan_run(h.plan,
                    &(tr_run){.seed = 1, .last = true, .params_changed = true, .tally = tally}),
        k->layers);
    *loss = tally[TR_TALLY_LOSS];
    const tr_graph *g = tr_plan_graph(h.plan);
    const tr_tensor *t = &g->tensors[g->logits];
    float *out = mh_floats(*count = t->count);
    assert_int_equal(t->pitch > 0, g->found[TR_PASS_ALIGN_ROWS]);
    tr_convert_out(t, tr_plan_tensor(h.plan, g->logits), out);
    mh_close(&h);
    return out;
}

static void evaluate(const head_case *k, tr_config *c, void *ctx, tr_precision precision)
{
    double with, without, most = 0, apart = 0;
    size_t count;
    float *a = logits(k, c, ctx, precision, TR_PASSES_ALL, &with, &count);
    float *b = logits(k, c, ctx, precision, TR_PASSES_ALL & ~TR_PASS_IS(TR_PASS_ALIGN_ROWS),
                      &without, &count);
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)b[i]));
        apart = fmax(apart, fabs((double)a[i] - (double)b[i]));
    }
    if (!(apart <= BOUND * most) || !(fabs(with - without) <= 0.01 * fabs(without)))
        fail_msg("%s: evaluated: loss %g and %g, logits %g of %g apart", k->layers, with, without,
                 apart, most);
    tr_free(a);
    tr_free(b);
}

static void check(const head_case *k, tr_precision precision, bool deterministic)
{
    const tr_backend_options bo = {.deterministic = deterministic};
    char *text = text_of(k);
    tr_config *c = NULL;
    tr_model *m = NULL;
    void *ctx = NULL;
    double with, without, most = 0, apart = 0;
    mirror_try(mirror_backend.open(&bo, &ctx), "open");
    mirror_try(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &c), text);
    mirror_try(tr_model_open(c, 0, &m), text);
    float *a = gradients(k, c, ctx, precision, TR_PASSES_ALL, &with);
    float *b =
        gradients(k, c, ctx, precision, TR_PASSES_ALL & ~TR_PASS_IS(TR_PASS_ALIGN_ROWS), &without);
    for (size_t r = 0; r < m->nparams; r++)
        for (size_t i = m->params[r].offset; i < m->params[r].offset + m->params[r].count; i++) {
            assert_true(isfinite(a[i]) && isfinite(b[i]));
            most = fmax(most, fabs((double)b[i]));
            apart = fmax(apart, fabs((double)a[i] - (double)b[i]));
        }
    assert_true(most > 0);
    evaluate(k, c, ctx, precision);
    if (!(apart <= BOUND * most) || !(fabs(with - without) <= 0.01 * fabs(without)))
        fail_msg("%s: loss %g and %g, gradients %g of %g apart", text, with, without, apart, most);
    tr_free(a);
    tr_free(b);
    tr_model_close(m);
    tr_config_close(c);
    tr_free(text);
    mirror_backend.close(ctx);
}

static void test_heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        for (int way = 0; way < 2; way++) {
            check(&cases[i], TR_PRECISION_BF16, way == 1);
            check(&cases[i], TR_PRECISION_FP16, way == 1);
        }
    check(&cases[0], TR_PRECISION_FP32, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
