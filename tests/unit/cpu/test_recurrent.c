/* The recurrence of lstm_layer and gru_layer: forward and gradient against float64 at every level,
 * in both directions, with lengths, without what training keeps, gates and gradients where the
 * graph puts them (tr_op_def.over); independence of the thread count. */
#include "tests/unit/cpu/loop_levels.h"
#include "tests/unit/cpu/ways.h"

typedef struct {
    const char *op;
    int64_t N, T, H;
    bool bias, reverse, lengths, hold;
} recurrence;

static const recurrence cases[] = {
    {"lstm_layer", 3, 5, 7, true, false, false, false},
    {"lstm_layer", 1, 1, 1, true, false, false, false},
    {"lstm_layer", 2, 1, 16, false, true, false, false},
    {"lstm_layer", 5, 4, 33, true, true, false, false},
    {"lstm_layer", 70, 3, 64, true, false, false, false},
    {"lstm_layer", 6, 5, 9, true, false, true, false},
    {"lstm_layer", 6, 5, 9, true, false, true, true},
    {"lstm_layer", 6, 5, 9, false, true, true, false},
    {"gru_layer", 3, 5, 7, true, false, false, false},
    {"gru_layer", 1, 1, 1, false, true, false, false},
    {"gru_layer", 4, 6, 18, false, true, false, false},
    {"gru_layer", 90, 3, 65, true, false, false, false},
    {"gru_layer", 6, 5, 9, true, false, true, false},
    {"gru_layer", 6, 5, 9, false, false, true, true},
    {"gru_layer", 6, 5, 9, true, true, true, true},
};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static int64_t gates_of(const recurrence *c)
{
    return strcmp(c->op, "lstm_layer") == 0 ? TR_LSTM_GATES : TR_GRU_GATES;
}

/* All operands of both directions in float64, row-major as the tensors. */
typedef struct {
    double *x, *w, *b, *y, *gates, *kept, *dy, *dx, *before, *dproduct;
    int32_t *lengths;
} arrays;

static size_t rows_of(const recurrence *c)
{
    return (size_t)(c->N * c->T);
}

static void arrays_open(const recurrence *c, arrays *a)
{
    const size_t n = rows_of(c) * (size_t)c->H, G = (size_t)gates_of(c);
    double **const narrow[] = {&a->y, &a->kept, &a->dy, &a->before};
    double **const wide[] = {&a->x, &a->gates, &a->dx, &a->dproduct};
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < TR_COUNT(narrow); i++) *narrow[i] = doubles(n);
    for (size_t i = 0; i < TR_COUNT(wide); i++) *wide[i] = doubles(G * n);
    a->w = doubles(G * (size_t)(c->H * c->H));
    a->b = doubles(G * (size_t)c->H);
    a->lengths = tr_alloc(TR_MEM_OTHER, (size_t)c->N, sizeof *a->lengths);
    assert_non_null(a->lengths);
    for (int64_t i = 0; i < c->N; i++) a->lengths[i] = c->lengths ? (int32_t)i : (int32_t)c->T;
}

static void arrays_close(arrays *a)
{
    double *const all[] = {a->x,    a->w,  a->b,  a->y,      a->gates,
                           a->kept, a->dy, a->dx, a->before, a->dproduct};
    for (size_t i = 0; i < TR_COUNT(all); i++) tr_free(all[i]);
    tr_free(a->lengths);
}

/* y, gates and kept of sample n from x, w and b. */
static void forward_sample(const recurrence *c, arrays *a, size_t n)
{
    const size_t H = (size_t)c->H, T = (size_t)c->T, G = (size_t)gates_of(c);
    double h[80] = {0}, state[80] = {0}, p[4 * 80], next[80];
    assert_true(H <= 80);
    for (size_t i = 0; i < T; i++) {
        const size_t t = c->reverse ? T - 1 - i : i, at = (n * T + t) * H;
        if ((int64_t)t >= a->lengths[n]) {
            for (size_t j = 0; j < H; j++) a->y[at + j] = c->hold ? h[j] : 0;
            continue;
        }
        for (size_t k = 0; k < G * H; k++) p[k] = a->b[k] + h_dot(a->w + k * H, h, H);
        const double *x = a->x + G * at;
        double *g = a->gates + G * at;
        for (size_t j = 0; j < H; j++) {
            if (G == TR_LSTM_GATES) {
                for (size_t k = 0; k < G; k++)
                    g[k * H + j] = k == 2 ? tanh(x[k * H + j] + p[k * H + j])
                                          : sigmoid(x[k * H + j] + p[k * H + j]);
                state[j] = g[H + j] * state[j] + g[j] * g[2 * H + j];
                a->kept[at + j] = state[j];
                next[j] = g[3 * H + j] * tanh(state[j]);
            } else {
                g[j] = sigmoid(x[j] + p[j]);
                g[H + j] = sigmoid(x[H + j] + p[H + j]);
                g[2 * H + j] = tanh(x[2 * H + j] + g[j] * p[2 * H + j]);
                a->kept[at + j] = p[2 * H + j];
                next[j] = (1 - g[H + j]) * g[2 * H + j] + g[H + j] * h[j];
            }
        }
        for (size_t j = 0; j < H; j++) a->y[at + j] = h[j] = next[j];
    }
}

/* dx, dproduct and before of sample n, from dy and what forward_sample left. */
static void backward_sample(const recurrence *c, arrays *a, size_t n)
{
    const size_t H = (size_t)c->H, T = (size_t)c->T, G = (size_t)gates_of(c);
    double dh[80] = {0}, dcell[80] = {0};
    for (size_t i = 0; i < T; i++) {
        const size_t t = c->reverse ? i : T - 1 - i, at = (n * T + t) * H;
        const bool last = i == T - 1, live = (int64_t)t < a->lengths[n];
        const size_t earlier = last ? at : c->reverse ? at + H : at - H;
        const double *g = a->gates + G * at;
        double *dx = a->dx + G * at, *dp = a->dproduct + G * at;
        for (size_t j = 0; j < H; j++) {
            a->before[at + j] = last ? 0 : a->y[earlier + j];
            if (live || c->hold) dh[j] += a->dy[at + j];
        }
        if (!live) continue;
        for (size_t j = 0; j < H; j++) {
            if (G == TR_LSTM_GATES) {
                const double in = g[j], f = g[H + j], m = g[2 * H + j], o = g[3 * H + j];
                const double th = tanh(a->kept[at + j]);
                dcell[j] += dh[j] * o * (1 - th * th);
                dx[j] = dcell[j] * m * in * (1 - in);
                dx[H + j] = dcell[j] * (last ? 0 : a->kept[earlier + j]) * f * (1 - f);
                dx[2 * H + j] = dcell[j] * in * (1 - m * m);
                dx[3 * H + j] = dh[j] * th * o * (1 - o);
                dcell[j] *= f;
                dh[j] = 0;
            } else {
                const double r = g[j], z = g[H + j], m = g[2 * H + j];
                const double dm = dh[j] * (1 - z) * (1 - m * m);
                dx[j] = dm * a->kept[at + j] * r * (1 - r);
                dx[H + j] = dh[j] * (a->before[at + j] - m) * z * (1 - z);
                dx[2 * H + j] = dm;
                dh[j] *= z;
            }
        }
        memcpy(dp, dx, G * H * sizeof *dp);
        for (size_t j = 0; j < H && G == TR_GRU_GATES; j++) dp[2 * H + j] *= g[j];
        for (size_t j = 0; j < H; j++)
            for (size_t k = 0; k < G * H; k++) dh[j] += a->w[k * H + j] * dp[k];
    }
}

static void put(harness *h, int id, const double *v)
{
    for (size_t i = 0; i < h->tensors[id].count; i++) h_put(h, id, i, v[i]);
}

/* What the harness rounded to its type. */
static void take(const harness *h, int id, double *v)
{
    for (size_t i = 0; i < h->tensors[id].count; i++) v[i] = h_get(h, id, i);
}

static void same(const harness *h, int id, const double *want, double tol, const char *what)
{
    double *got = h_values(h, id);
    h_close_to(got, want, NULL, h->tensors[id].count, tol, what);
    tr_free(got);
}

static void lengths(harness *h, const recurrence *c, const arrays *a)
{
    if (!c->lengths) {
        h_absent_in(h);
        return;
    }
    const int id = h_in_role(h, TR_ROLE_INPUT, TR_I32, 2, (int64_t[]){c->N, 1});
    for (int64_t i = 0; i < c->N; i++) h_put(h, id, (size_t)i, a->lengths[i]);
}

static tr_recurrent_attrs attrs_of(const recurrence *c)
{
    return (tr_recurrent_attrs){.product = {.out = gates_of(c) * c->H, .bias = c->bias},
                                .hidden = c->H,
                                .reverse = c->reverse,
                                .hold = c->hold};
}

/* Rounding of the state runs on from row to row. */
static double tolerance_of(tr_precision p)
{
    return tolerance(p) * 8;
}

/* Output `out` lies over operand `in`. */
static void lay_over(harness *h, int out, int in)
{
    tr_free(h->data[out]);
    h->data[out] = h->data[in];
}

static void check_forward(const recurrence *c, arrays *a, tr_precision p, int isa, bool keep,
                          bool over)
{
    const int64_t G = gates_of(c), wide[3] = {c->N, c->T, G * c->H}, narrow[3] = {c->N, c->T, c->H};
    const int64_t weight[2] = {G * c->H, c->H};
    const tr_recurrent_attrs attrs = attrs_of(c);
    harness h = in_way(open_level(c->op, p, isa, 2));
    const tr_dtype type = h_activation(&h);
    const int x = h_in(&h, type, 3, wide), w = h_param(&h, 2, weight);
    const int b = c->bias ? h_param(&h, 1, weight) : -1;
    if (!c->bias) h_absent_in(&h);
    lengths(&h, c, a);
    const int y = h_out(&h, type, 3, narrow);
    const int gates = keep ? h_out(&h, type, 3, wide) : -1;
    const int kept = keep ? h_out(&h, G == TR_LSTM_GATES ? TR_F32 : type, 3, narrow) : -1;
    h_fill_range(&h, x, 1, -2, 2);
    h_fill_range(&h, w, 2, -0.5, 0.5);
    for (size_t i = 0; i < h.tensors[w].count; i++) /* that all precisions hold alike */
        h_put(&h, w, i, (double)tr_bf16_to_f32(tr_f32_to_bf16((float)h_get(&h, w, i))));
    if (b >= 0) h_fill(&h, b, 3);
    take(&h, x, a->x);
    take(&h, w, a->w);
    if (b >= 0) take(&h, b, a->b);
    for (size_t n = 0; n < (size_t)c->N; n++) forward_sample(c, a, n);
    if (over) lay_over(&h, gates, x);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    same(&h, y, a->y, tolerance_of(p), "y");
    if (keep) same(&h, gates, a->gates, tolerance_of(p), "gates");
    if (keep) same(&h, kept, a->kept, tolerance_of(p), "kept");
    h_close(&h);
}

static void check_backward(const recurrence *c, arrays *a, tr_precision p, int isa, bool learned,
                           bool over)
{
    const int64_t G = gates_of(c), wide[3] = {c->N, c->T, G * c->H}, narrow[3] = {c->N, c->T, c->H};
    const int64_t weight[2] = {G * c->H, c->H};
    const tr_recurrent_attrs attrs = attrs_of(c);
    const char *const op = G == TR_LSTM_GATES ? "lstm_layer.grad" : "gru_layer.grad";
    harness h = in_way(open_level(op, p, isa, 2));
    const tr_dtype type = h_activation(&h);
    const int dy = h_in(&h, type, 3, narrow), y = h_in(&h, type, 3, narrow);
    const int gates = h_in(&h, type, 3, wide);
    const int kept = h_in(&h, G == TR_LSTM_GATES ? TR_F32 : type, 3, narrow);
    const int w = h_param(&h, 2, weight);
    lengths(&h, c, a);
    const int dx = h_out(&h, type, 3, wide), before = learned ? h_out(&h, type, 3, narrow) : -1;
    const int dproduct = learned && G == TR_GRU_GATES ? h_out(&h, type, 3, wide) : -1;
    h_fill(&h, dy, 4);
    put(&h, y, a->y);
    put(&h, gates, a->gates);
    put(&h, kept, a->kept);
    put(&h, w, a->w);
    take(&h, dy, a->dy);
    take(&h, y, a->y);
    take(&h, gates, a->gates);
    take(&h, kept, a->kept);
    for (size_t n = 0; n < (size_t)c->N; n++) backward_sample(c, a, n);
    if (over) lay_over(&h, dx, gates);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    same(&h, dx, a->dx, tolerance_of(p), "dx");
    /* behind a sample's end it is a factor of gradients that are 0 */
    for (size_t i = 0; learned && i < h.tensors[before].count; i++) {
        const size_t row = i / (size_t)c->H, t = row % (size_t)c->T;
        const bool live = (int64_t)t < a->lengths[row / (size_t)c->T];
        const double got = h_get(&h, before, i);
        if (live ? got != a->before[i] : !isfinite(got))
            fail_msg("before: element %zu is %g, expected %g", i, got, a->before[i]);
    }
    if (dproduct >= 0) same(&h, dproduct, a->dproduct, tolerance_of(p), "dproduct");
    h_close(&h);
}

static void test_against_float64(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    FOR_PRECISIONS(p)
    for (size_t way = 0; way < (p == TR_PRECISION_BF16 ? WAYS : 1) * TR_COUNT(cases); way++) {
        const size_t i = way % TR_COUNT(cases);
        arrays a;
        own_products = way == i;
        arrays_open(&cases[i], &a);
        check_forward(&cases[i], &a, p, isa, false, false);
        for (int over = 0; over < 2; over++) {
            check_forward(&cases[i], &a, p, isa, true, over);
            check_backward(&cases[i], &a, p, isa, false, over);
            check_backward(&cases[i], &a, p, isa, true, over);
        }
        arrays_close(&a);
    }
}

/* A NaN in one sample reaches its later rows, and no other sample. */
static void test_nan(void **state)
{
    (void)state;
    const char *const ops[] = {"lstm_layer", "gru_layer"};
    for (size_t i = 0; i < TR_COUNT(ops); i++) {
        const recurrence c = {ops[i], 2, 3, 5, false, false, false, false};
        const int64_t G = gates_of(&c);
        const tr_recurrent_attrs attrs = attrs_of(&c);
        harness h = h_open(ops[i], TR_PRECISION_FP32, false);
        const int x = h_in(&h, TR_F32, 3, (int64_t[]){2, 3, G * 5});
        const int w = h_param(&h, 2, (int64_t[]){G * 5, 5});
        h_absent_in(&h);
        h_absent_in(&h);
        const int y = h_out(&h, TR_F32, 3, (int64_t[]){2, 3, 5});
        h_fill(&h, x, 1);
        h_fill(&h, w, 2);
        h_put(&h, x, (size_t)(G * 5), NAN); /* feature 0 of row 1 */
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        for (size_t e = 0; e < 30; e++)
            assert_int_equal(isnan(h_get(&h, y, e)), e == 5 || (e >= 10 && e < 15));
        h_close(&h);
    }
}

/* Outputs of a layer on so many threads, to be freed. */
static double *on_threads(const char *op, int threads, size_t *count)
{
    const recurrence c = {op, 150, 4, 48, true, false, false, false};
    const int64_t G = gates_of(&c);
    const tr_recurrent_attrs attrs = attrs_of(&c);
    harness h = h_open_with(op, TR_PRECISION_FP32, false, threads);
    const int x = h_in(&h, TR_F32, 3, (int64_t[]){c.N, c.T, G * c.H});
    const int w = h_param(&h, 2, (int64_t[]){G * c.H, c.H}),
              b = h_param(&h, 1, (int64_t[]){G * c.H});
    h_absent_in(&h);
    const int y = h_out(&h, TR_F32, 3, (int64_t[]){c.N, c.T, c.H});
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    h_fill(&h, b, 3);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *v = h_values(&h, y);
    *count = h.tensors[y].count;
    h_close(&h);
    return v;
}

static void test_threads(void **state)
{
    (void)state;
    const char *const ops[] = {"lstm_layer", "gru_layer"};
    for (size_t i = 0; i < TR_COUNT(ops); i++) {
        size_t n;
        double *one = on_threads(ops[i], 1, &n);
        for (int threads = 2; threads <= 3; threads++) {
            double *more = on_threads(ops[i], threads, &n);
            assert_memory_equal(one, more, n * sizeof *one);
            tr_free(more);
        }
        tr_free(one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_float64),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
