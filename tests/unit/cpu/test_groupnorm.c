/* Group normalization: forward and gradients against float64 at every level; accumulation; a graph
 * without weights. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t samples, C, groups, places;
    bool affine;
} shape;

static const shape shapes[] = {
    {2, 4, 2, 9, true},     {3, 12, 2, 1, true},    {1, 5, 1, 77, false},  {3, 7, 7, 30, true},
    {2, 96, 8, 200, false}, {2, 64, 4, 1000, true}, {5, 130, 10, 11, true}};

static const double eps = 1e-5;

/* y, and dx, dw, db for the loss sum dy * y. */
static void reference(const shape *s, const double *x, const double *w, const double *b,
                      const double *dy, double *y, double *dx, double *dw, double *db)
{
    const int64_t of = s->C / s->groups, P = s->places;
    for (int64_t n = 0; n < s->samples * s->groups; n++) {
        const int64_t c0 = n % s->groups * of, first = (n / s->groups * s->C + c0) * P;
        const double count = (double)(P * of);
        double mean = 0, var = 0, sum = 0, sum_x = 0;
        for (int64_t i = 0; i < P * of; i++) mean += x[first + i] / count;
        for (int64_t i = 0; i < P * of; i++)
            var += (x[first + i] - mean) * (x[first + i] - mean) / count;
        const double inv = 1 / sqrt(var + eps);
        for (int64_t i = 0; i < P * of; i++) {
            const int64_t c = c0 + i / P, at = first + i;
            const double xhat = (x[at] - mean) * inv, weight = w ? w[c] : 1;
            if (y) y[at] = xhat * weight + (b ? b[c] : 0);
            if (!dy) continue;
            sum += dy[at] * weight / count;
            sum_x += dy[at] * weight * xhat / count;
            dw[c] += dy[at] * xhat;
            db[c] += dy[at];
        }
        for (int64_t i = 0; dy && i < P * of; i++) {
            const int64_t c = c0 + i / P, at = first + i;
            dx[at] = inv * (dy[at] * (w ? w[c] : 1) - sum - (x[at] - mean) * inv * sum_x);
        }
    }
}

/* An image of height 1. */
static int image(harness *h, bool in, const shape *s)
{
    const int64_t d[4] = {s->samples, s->C, 1, s->places};
    return in ? h_in(h, h_activation(h), 4, d) : h_out(h, h_activation(h), 4, d);
}

/* A row of values, or no operand. */
static int row(harness *h, const shape *s)
{
    if (s->affine) return h_param(h, 1, &s->C);
    h_absent_in(h);
    return -1;
}

static void check_grad(const shape *s, tr_precision p, int isa, double at, const double *xs,
                       const double *ws, const double *stats)
{
    const tr_groupnorm_attrs attrs = {.groups = s->groups, .eps = eps, .affine = s->affine};
    const int64_t sd[2] = {s->samples * s->groups, 2}, C = s->C;
    const size_t n = (size_t)(s->samples * s->C * s->places);
    harness h = open_level("groupnorm.grad", p, isa, 2);
    const int dy = image(&h, true, s), x = image(&h, true, s);
    const int w = row(&h, s);
    const int in_stats = h_in(&h, TR_F32, 2, sd), dx = image(&h, false, s);
    const int dw = s->affine ? h_grad(&h, 1, &C) : -1, db = s->affine ? h_grad(&h, 1, &C) : -1;
    h_fill(&h, dy, 4);
    for (size_t i = 0; i < n; i++) h_put(&h, x, i, xs[i]);
    for (size_t i = 0; i < (size_t)C && s->affine; i++) h_put(&h, w, i, ws[i]);
    for (size_t i = 0; i < 2 * (size_t)sd[0]; i++) h_put(&h, in_stats, i, stats[i]);
    double *dys = h_values(&h, dy), *want_dx = doubles(n), *want_dw = doubles((size_t)C),
           *want_db = doubles((size_t)C);
    reference(s, xs, ws, NULL, dys, NULL, want_dx, want_dw, want_db);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    /* the statistics, and what multiplies x, are rounded to float32: |at| * 2^-24 of it */
    expect(&h, dx, want_dx, tolerance(p) * (16 + at), "dx");
    if (s->affine) {
        const double room = 1e-6 * (8 + sqrt((double)(s->samples * s->places))) * (1 + at / 4);
        double *once = h_values(&h, dw);
        h_close_to(once, want_dw, NULL, (size_t)C, room, "dweight");
        double *got = h_values(&h, db);
        h_close_to(got, want_db, NULL, (size_t)C, room, "dbias");
        h_run(&h, true);
        for (size_t i = 0; i < (size_t)C; i++) assert_true(h_get(&h, dw, i) == 2 * once[i]);
        tr_free(once);
        tr_free(got);
    }
    tr_free(want_dw);
    tr_free(want_db);
    tr_free(dys);
    h_close(&h);
}

static void check(const shape *s, tr_precision p, int isa, double at)
{
    const tr_groupnorm_attrs attrs = {.groups = s->groups, .eps = eps, .affine = s->affine};
    const int64_t sd[2] = {s->samples * s->groups, 2};
    harness h = open_level("groupnorm", p, isa, 2);
    const int x = image(&h, true, s), w = row(&h, s), b = row(&h, s), y = image(&h, false, s),
              st = h_out(&h, TR_F32, 2, sd);
    h_fill_range(&h, x, 1, at - 2, at + 2);
    if (s->affine) h_fill(&h, w, 2), h_fill(&h, b, 3);
    double *xs = h_values(&h, x), *ws = s->affine ? h_values(&h, w) : NULL,
           *bs = s->affine ? h_values(&h, b) : NULL,
           *want = doubles((size_t)(s->samples * s->C * s->places));
    reference(s, xs, ws, bs, NULL, want, NULL, NULL, NULL);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p) * (8 + at), "y");
    double *stats = h_values(&h, st);
    h_close(&h);
    check_grad(s, p, isa, at, xs, ws, stats);
    tr_free(stats);
    tr_free(xs);
    tr_free(ws);
    tr_free(bs);
}

static void matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check(&shapes[i], p, isa, 0);
        check(&shapes[i], p, isa, p == TR_PRECISION_BF16 ? 3 : 30);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
