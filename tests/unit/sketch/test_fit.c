/* links: trireme_cpu trireme_plan */
/* Sketches of matrices that are there: least squares are least, and exact where they can be;
 * networks made with them. */
#include "optimize/sketch/sketch.h"
#include "runtime/config/tree.h"
#include "runtime/graph/facts.h"
#include "tests/unit/networks.h"

#include <math.h>
#include <stdlib.h>

enum { OUT = 23, IN = 31, MOST = 64 };

static const tr_sketch_options LEAST = {.least_squares = true}, START = {.least_squares = false};

static void fill(float *v, size_t n, uint32_t stream)
{
    for (size_t i = 0; i < n; i++)
        v[i] = tr_uniform(tr_philox_at(5, TR_RNG_TEST, stream, i, 0).v[0]) - 0.5f;
}

/* B A, of the stacked matrices of a layer. */
static void product(const tr_sketch *s, const float *s1, const float *s2, double *to)
{
    const bool both = s->side != TR_SKETCH_SIGNS;
    const int64_t width = 2 * s->terms * s->rank;
    float *a = calloc((size_t)(width * IN), sizeof *a),
          *b = calloc((size_t)(width * OUT), sizeof *b);
    tr_sketch of = *s;
    assert_non_null(a);
    assert_non_null(b);
    of.side = TR_SKETCH_DOWN;
    if (both)
        tr_sketch_matrix(&of, s1, width, IN, a);
    else
        memcpy(a, s1, (size_t)(width * IN) * sizeof *a);
    of.side = both ? TR_SKETCH_UP : TR_SKETCH_SIGNS;
    tr_sketch_matrix(&of, s2, OUT, width, b);
    for (int o = 0; o < OUT; o++)
        for (int i = 0; i < IN; i++) {
            to[o * IN + i] = 0;
            for (int64_t k = 0; k < width; k++)
                to[o * IN + i] += (double)b[o * width + k] * (double)a[k * IN + i];
        }
    free(a);
    free(b);
}

static double relative(const float *w, const double *made)
{
    double error = 0, all = 0;
    for (int i = 0; i < OUT * IN; i++) {
        error += ((double)w[i] - made[i]) * ((double)w[i] - made[i]);
        all += (double)w[i] * (double)w[i];
    }
    return sqrt(error / all);
}

/* What is said is so; no small change of any element comes closer. */
static void test_least(void **state)
{
    (void)state;
    static const tr_sketch cases[] = {{TR_SKETCH_UP, 2, 3, 7},
                                      {TR_SKETCH_UP, 1, 1, 8},
                                      {TR_SKETCH_UP, 3, 5, 9},
                                      {TR_SKETCH_SIGNS, 1, 4, 10},
                                      {TR_SKETCH_SIGNS, 2, 3, 11}};
    float w[OUT * IN], s1[MOST * IN], s2[OUT * MOST];
    double made[OUT * IN], error, other;
    fill(w, OUT * IN, 1);
    for (size_t c = 0; c < TR_COUNT(cases); c++) {
        const tr_sketch *s = &cases[c];
        const size_t k = (size_t)(s->terms * s->rank) * (s->side == TR_SKETCH_SIGNS ? 2 : 1);
        assert_int_equal(tr_sketch_fit(s, w, OUT, IN, &LEAST, s1, s2, &error), TR_OK);
        product(s, s1, s2, made);
        assert_true(fabs(relative(w, made) - error) < 1e-5);
        for (int half = 0; half < (s->side == TR_SKETCH_SIGNS ? 1 : 2); half++)
            for (size_t i = 0; i < k * (half ? OUT : IN); i += 13)
                for (int sign = -1; sign < 2; sign += 2) {
                    float *v = half ? &s2[i] : &s1[i], before = *v;
                    *v += (float)sign * 0.05f;
                    product(s, s1, s2, made);
                    assert_true(relative(w, made) > error);
                    *v = before;
                }
        assert_int_equal(tr_sketch_fit(s, w, OUT, IN, &START, s1, s2, &other), TR_OK);
        product(s, s1, s2, made);
        assert_true(fabs(relative(w, made) - other) < 1e-5);
        assert_true(other > error);
    }
}

/* S1_i = U1_i W and S2_i = W U2_i^T, the signs being U1^T and U2 over 2 L in the matrices. */
static void test_start(void **state)
{
    (void)state;
    enum { L = 3, K = L * 5 };
    const tr_sketch up = {TR_SKETCH_UP, L, 5, 12};
    tr_sketch down = up;
    static float w[OUT * IN], s1[K * IN], s2[OUT * K], a[2 * K * IN], b[OUT * 2 * K];
    double error;
    down.side = TR_SKETCH_DOWN;
    fill(w, OUT * IN, 6);
    assert_int_equal(tr_sketch_fit(&up, w, OUT, IN, &START, s1, s2, &error), TR_OK);
    tr_sketch_matrix(&down, s1, 2 * K, IN, a);
    tr_sketch_matrix(&up, s2, OUT, 2 * K, b);
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < IN; i++) {
            double want = 0;
            for (int o = 0; o < OUT; o++)
                want += 2 * L * (double)b[o * 2 * K + k] * (double)w[o * IN + i];
            assert_true(fabs((double)s1[k * IN + i] - want) < 1e-5);
        }
        for (int o = 0; o < OUT; o++) {
            double want = 0;
            for (int i = 0; i < IN; i++)
                want += 2 * L * (double)a[(K + k) * IN + i] * (double)w[o * IN + i];
            assert_true(fabs((double)s2[o * K + k] - want) < 1e-5);
        }
    }
}

/* A matrix that is a product comes back; so does any of as many sketches as it has rows, or
 * more. */
static void test_exact(void **state)
{
    (void)state;
    float w[OUT * IN], s1[MOST * IN], s2[OUT * MOST];
    double made[OUT * IN], error;
    const tr_sketch small = {TR_SKETCH_UP, 2, 4, 3}, large = {TR_SKETCH_UP, 4, 8, 3},
                    rows = {TR_SKETCH_SIGNS, 2, 6, 3};
    fill(s1, 8 * IN, 2);
    fill(s2, OUT * 8, 3);
    product(&small, s1, s2, made);
    for (int i = 0; i < OUT * IN; i++) w[i] = (float)made[i];
    assert_int_equal(tr_sketch_fit(&small, w, OUT, IN, &LEAST, s1, s2, &error), TR_OK);
    product(&small, s1, s2, made);
    assert_true(error < 1e-6 && relative(w, made) < 1e-5);
    fill(w, OUT * IN, 4);
    assert_int_equal(tr_sketch_fit(&large, w, OUT, IN, &LEAST, s1, s2, &error), TR_OK);
    product(&large, s1, s2, made);
    assert_true(error < 1e-4 && relative(w, made) < 1e-4);
    assert_int_equal(tr_sketch_fit(&rows, w, OUT, IN, &LEAST, s1, s2, &error), TR_OK);
    product(&rows, s1, s2, made);
    assert_true(error < 1e-4 && relative(w, made) < 1e-4);
}

static bool stop_at(void *ctx)
{
    int *left = ctx;
    return (*left)-- == 0;
}

/* Before a fit and again and again within it; nothing is left behind. */
static void test_stop(void **state)
{
    (void)state;
    enum { RANK = 512 };
    static const tr_sketch cases[] = {{TR_SKETCH_UP, 1, RANK, 3},
                                      {TR_SKETCH_SIGNS, 1, RANK / 2, 3}};
    static float w[OUT * IN], s1[RANK * IN], s2[OUT * RANK];
    double error;
    fill(w, OUT * IN, 8);
    for (size_t c = 0; c < TR_COUNT(cases); c++)
        for (int asked = 0; asked < 6; asked++) {
            int left = asked;
            const tr_sketch_options o = {.least_squares = true, .stop = stop_at, .stop_ctx = &left};
            const size_t held = tr_mem_held(TR_MEM_OTHER);
            assert_int_equal(tr_sketch_fit(&cases[c], w, OUT, IN, &o, s1, s2, &error), TR_STOPPED);
            assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
        }
}

/* A fit holds what is said. The first test: each case holds more than all before. */
static void test_bytes(void **state)
{
    (void)state;
    enum { RANK = 300, ROW = RANK * sizeof(float) };
    static const struct {
        tr_sketch s;
        bool least;
    } cases[] = {{{TR_SKETCH_SIGNS, 1, 64, 3}, false},
                 {{TR_SKETCH_UP, 1, 128, 3}, false},
                 {{TR_SKETCH_SIGNS, 1, 100, 3}, true},
                 {{TR_SKETCH_UP, 1, RANK, 3}, true}};
    static float w[OUT * IN], s1[RANK * IN], s2[OUT * RANK];
    double error;
    fill(w, OUT * IN, 9);
    for (size_t c = 0; c < TR_COUNT(cases); c++) {
        const tr_sketch_options *o = cases[c].least ? &LEAST : &START;
        const double held = (double)tr_mem_held(TR_MEM_OTHER);
        const double said = tr_sketch_fit_bytes(cases[c].s.side != TR_SKETCH_SIGNS, OUT, IN,
                                                cases[c].s.rank, cases[c].least);
        assert_int_equal(tr_sketch_fit(&cases[c].s, w, OUT, IN, o, s1, s2, &error), TR_OK);
        const double most = (double)tr_mem_peak(TR_MEM_OTHER) - held;
        assert_true(most <= said + ROW && most >= 0.95 * said);
    }
}

#define MODEL                                                                                      \
    "  input: [4, 6, 6]\n  layers:\n"                                                              \
    "    - conv2d: {out: 24, kernel: 3, padding: same, lr_factor: 0.5}\n    - relu\n"              \
    "    - conv2d: {out: 24, kernel: [2, 4], padding: same, bias: false}\n"                        \
    "    - conv2d: {out: 24, kernel: 3, stride: 2, padding: 1, name: grouped, groups: 2}\n"        \
    "    - flatten\n    - linear: {out: 60}\n    - linear: {out: 60, freeze: true}\n"              \
    "    - linear: {out: 4}\n  loss: mse\n"

static void test_network(void **state)
{
    (void)state;
    tr_network *n = network_of(MODEL, 3), *made = NULL;
    const tr_sketch_options o = {.choice = {.terms = 1, .rank = 4}, .least_squares = true};
    tr_sketch_row *rows = NULL;
    size_t count;
    ok(tr_sketch_network(n, &o, &made, &rows, &count));
    /* the last one is too small, another frozen, another in groups */
    assert_int_equal(count, 3);
    static const char *const names[] = {"conv2d1", "conv2d2", "linear1"};
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(rows[i].layer, names[i]);
        assert_true(rows[i].error > 0 && rows[i].error < 1);
        assert_true(rows[i].multiply_adds[1] < rows[i].multiply_adds[0]);
        assert_true(rows[i].parameters[1] < rows[i].parameters[0]);
    }
    assert_int_equal(n->model->nlayers, made->model->nlayers);
    for (size_t i = 0; i < n->model->nlayers; i++)
        assert_string_equal(n->model->layers[i].name, made->model->layers[i].name);
    assert_memory_equal(tr_network_param(n, "conv2d1", "bias"),
                        tr_network_param(made, "conv2d1", "bias"), 24 * sizeof(float));
    assert_memory_equal(tr_network_param(n, "linear3", "weight"),
                        tr_network_param(made, "linear3", "weight"), 240 * sizeof(float));
    assert_null(tr_network_param(made, "conv2d2", "bias"));
    assert_true(tr_network_row(made, "conv2d1", "s1")->lr_factor == 0.5);
    assert_true(tr_shape_places(&made->model->layers[2].output) == 36);
    tr_free(rows);
    tr_network_close(made);
    tr_network_close(n);
}

static tr_document parsed(const char *text)
{
    tr_document d;
    ok(tr_document_parse("match", text, strlen(text), &d));
    return d;
}

static tr_status sketch(const tr_network *n, const char *match, size_t *count)
{
    tr_network *made = NULL;
    tr_sketch_row *rows = NULL;
    tr_document d = parsed(match);
    const tr_sketch_options o = {.choice = {d.root, 1, 4}};
    const tr_status st = tr_sketch_network(n, &o, &made, &rows, count);
    tr_free(rows);
    tr_network_close(made);
    tr_document_close(&d);
    return st;
}

/* Why a layer stays as it is; where all that are named do, none is made. */
static void test_obstacles(void **state)
{
    (void)state;
    tr_network *n = network_of(MODEL, 3);
    static const char *const whys[] = {NULL,       "no layer", NULL,     "groups",
                                       "no layer", NULL,       "frozen", NULL};
    size_t count;
    assert_int_equal(n->model->nlayers, TR_COUNT(whys));
    for (size_t i = 0; i < TR_COUNT(whys); i++) {
        const char *why = tr_sketch_obstacle(n->model, &n->model->layers[i]);
        assert_true(whys[i] ? why && strstr(why, whys[i]) : !why);
    }
    ok(sketch(n, "[grouped, linear*]", &count));
    assert_int_equal(count, 2);
    assert_int_equal(sketch(n, "[linear2, grouped]", &count), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "none of the layers that it names can be sketched: grouped: it works "
                           "in groups of channels"));
    tr_network_close(n);
}

/* As long as what is chosen has fewer weights, by terms and rank. */
static void test_smaller(void **state)
{
    (void)state;
    tr_network *n = network_of(MODEL, 3);
    tr_document d = parsed("linear1");
    const tr_layer *l = &n->model->layers[5];
    const double in = (double)n->model->params[l->params[0]].count / 60;
    const int64_t least = (int64_t)ceil(60 * in / (60 + in));
    tr_sketch_options o = {.choice = {d.root, 1, least - 1}};
    assert_true(tr_sketch_smaller(n, &o));
    o.choice.rank = least;
    assert_false(tr_sketch_smaller(n, &o));
    o.choice.match = NULL;
    o.choice.rank = 1;
    assert_true(tr_sketch_smaller(n, &o));
    o.choice.rank = 1000; /* none is chosen */
    assert_false(tr_sketch_smaller(n, &o));
    tr_document_close(&d);
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),     cmocka_unit_test(test_stop),
        cmocka_unit_test(test_least),     cmocka_unit_test(test_start),
        cmocka_unit_test(test_exact),     cmocka_unit_test(test_network),
        cmocka_unit_test(test_obstacles), cmocka_unit_test(test_smaller)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
