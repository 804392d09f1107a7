/* Batch normalization backward: every part against float64 arithmetic over many shapes, types and
 * levels, in place and accumulating; that arithmetic by central differences; an empty share. */
#include "tests/unit/cpu/batchnorm_harness.h"

typedef struct {
    double *x, *dy, *dy2, *y, *w, *stats; /* in logical order; dy2, y NULL: absent */
    double *dz, *sums, *dx;
} backward;

static void free_backward(backward *b)
{
    double *all[] = {b->x, b->dy, b->dy2, b->y, b->w, b->stats, b->dz, b->sums, b->dx};
    for (size_t i = 0; i < TR_COUNT(all); i++) tr_free(all[i]);
}

/* The textbook, in float64. */
static void reference(shape s, backward *b)
{
    const size_t C = (size_t)s.c, count = (size_t)s.n * C * area(s);
    const double n = b->stats[0];
    b->dz = doubles(count);
    b->sums = doubles(2 * C);
    b->dx = doubles(count);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count; i++) {
            const size_t c = channel(s, i);
            const double inv = 1 / sqrt(b->stats[1 + C + c] / n + attrs.eps);
            const double xhat = (b->x[i] - b->stats[1 + c]) * inv;
            if (pass) {
                b->dx[i] = b->w[c] * inv * (b->dz[i] - b->sums[c] / n - xhat * b->sums[C + c] / n);
                continue;
            }
            b->dz[i] = b->dy[i] + (b->dy2 ? b->dy2[i] : 0);
            if (b->y && !(b->y[i] > 0)) b->dz[i] = 0;
            b->sums[c] += b->dz[i];
            b->sums[C + c] += b->dz[i] * xhat;
        }
}

static void check_backward(shape s, tr_precision p, int isa, bool mask, bool second, bool in_place,
                           int threads)
{
    int64_t d[4], C = s.c, n = 1 + 2 * C, m = 2 * C;
    const int ndim = dims_of(s, d);
    harness h = open_level("batchnorm.grad_stats", p, isa, threads);
    const tr_dtype t = h_activation(&h);
    const int dy = h_in(&h, t, ndim, d), x = h_in(&h, t, ndim, d), stats = h_in(&h, TR_F64, 1, &n),
              w = h_param(&h, 1, &C);
    int y = -1, dy2 = -1;
    if (mask)
        y = h_in(&h, t, ndim, d);
    else
        h_absent_in(&h);
    if (second)
        dy2 = h_in(&h, t, ndim, d);
    else
        h_absent_in(&h);
    const int dz = h_out(&h, t, ndim, d), sums = h_out(&h, TR_F64, 1, &m), dw = h_grad(&h, 1, &C),
              db = h_grad(&h, 1, &C);
    h_fill(&h, dy, 1);
    h_fill_range(&h, x, 2, 4, 6);
    h_fill_range(&h, w, 3, 0.5, 1.5);
    if (mask) h_fill(&h, y, 4);
    if (second) h_fill(&h, dy2, 5);
    backward b = {.x = h_values(&h, x), .dy = h_values(&h, dy), .w = h_values(&h, w)};
    b.y = mask ? h_values(&h, y) : NULL;
    b.dy2 = second ? h_values(&h, dy2) : NULL;
    b.stats = moments(s, b.x);
    reference(s, &b);
    for (size_t i = 0; i < (size_t)n; i++) h_put(&h, stats, i, b.stats[i]);
    if (in_place) {
        tr_free(h.data[dz]);
        h.data[dz] = h.data[dy];
    }
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    const size_t count = h.tensors[dz].count;
    double *got = h_values(&h, dz), *got_sums = h_values(&h, sums);
    h_close_to(got, b.dz, NULL, count, tolerance(p), "dz");
    /* sums of n terms of size 2 in float32: at worst n ulps, in fact about sqrt(n) */
    const double room = 2e-6 * (10 + sqrt(b.stats[0]));
    for (size_t c = 0; c < 2 * (size_t)C; c++) {
        assert_true(fabs(got_sums[c] - b.sums[c]) <= room * (s.n == 1 && s.h == 1 ? 400 : 2));
        const float grad = (float)h_get(&h, c < (size_t)C ? db : dw, c % (size_t)C);
        assert_true(grad == (float)got_sums[c]);
    }
    if (!in_place) { /* a second micro-batch adds the same again */
        h_run(&h, true);
        for (size_t c = 0; c < (size_t)C; c++) {
            assert_true((float)h_get(&h, db, c) == 2 * (float)got_sums[c]);
            assert_true((float)h_get(&h, dw, c) == 2 * (float)got_sums[(size_t)C + c]);
        }
    }
    h_close(&h);

    h = open_level("batchnorm.grad_input", p, isa, threads);
    const int in[] = {h_in(&h, t, ndim, d), h_in(&h, t, ndim, d), h_in(&h, TR_F64, 1, &n),
                      h_param(&h, 1, &C), h_in(&h, TR_F64, 1, &m)};
    const int dx = h_out(&h, t, ndim, d);
    const double *values[] = {got, b.x, b.stats, b.w, b.sums};
    for (size_t k = 0; k < TR_COUNT(in); k++)
        for (size_t i = 0; i < h.tensors[in[k]].count; i++) h_put(&h, in[k], i, values[k][i]);
    if (in_place) {
        tr_free(h.data[dx]);
        h.data[dx] = h.data[in[0]];
    }
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *got_dx = h_values(&h, dx);
    if (s.n * (int64_t)area(s) > 2) /* else 1/std is arbitrary */
        h_close_to(got_dx, b.dx, NULL, count, tolerance(p) * 40, "dx");
    tr_free(got_dx);
    tr_free(got);
    tr_free(got_sums);
    free_backward(&b);
    h_close(&h);
}

static void backward_matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check_backward(shapes[i], p, isa, true, true, false, 1);
        check_backward(shapes[i], p, isa, true, false, true, 1);
        check_backward(shapes[i], p, isa, false, true, true, 2);
        check_backward(shapes[i], p, isa, false, false, true, 1);
    }
}

/* loss(x) = sum dy * bn(x) in float64: its central differences are what `reference` computes. */
static double loss(shape s, const backward *b, const double *x)
{
    double *m = moments(s, x), sum = 0;
    const size_t C = (size_t)s.c;
    for (size_t i = 0; i < (size_t)s.n * C * area(s); i++) {
        const size_t c = channel(s, i);
        sum += b->dy[i] * b->w[c] * (x[i] - m[1 + c]) / sqrt(m[1 + C + c] / m[0] + attrs.eps);
    }
    tr_free(m);
    return sum;
}

static void reference_is_the_derivative(void **state)
{
    (void)state;
    const shape s = {3, 5, 2, 4};
    const size_t count = 120;
    backward b = {.x = doubles(count), .dy = doubles(count), .w = doubles(5)};
    for (size_t i = 0; i < count; i++) {
        b.x[i] = uniform(1, i, -2, 2);
        b.dy[i] = uniform(2, i, -1, 1);
    }
    for (size_t c = 0; c < 5; c++) b.w[c] = uniform(3, c, 0.5, 2);
    b.stats = moments(s, b.x);
    reference(s, &b);
    for (size_t i = 0; i < count; i++) {
        const double at = b.x[i], step = 1e-5;
        b.x[i] = at + step;
        const double up = loss(s, &b, b.x);
        b.x[i] = at - step;
        const double down = loss(s, &b, b.x);
        b.x[i] = at;
        assert_true(fabs((up - down) / (2 * step) - b.dx[i]) < 1e-8);
    }
    free_backward(&b);
}

static void empty_share_gives_no_gradient(void **state)
{
    (void)state;
    int64_t d[4] = {0, 3, 4, 4}, C = 3, n = 7, m = 6;
    harness h = h_open("batchnorm.grad_stats", TR_PRECISION_FP32, true);
    h_in(&h, TR_F32, 4, d);
    h_in(&h, TR_F32, 4, d);
    h_in(&h, TR_F64, 1, &n);
    h_param(&h, 1, &C);
    h_absent_in(&h);
    h_absent_in(&h);
    h_out(&h, TR_F32, 4, d);
    const int sums = h_out(&h, TR_F64, 1, &m), dw = h_grad(&h, 1, &C), db = h_grad(&h, 1, &C);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < 6; i++) assert_true(h_get(&h, sums, i) == 0.0);
    for (size_t i = 0; i < 3; i++) assert_true(h_get(&h, dw, i) == 0.0 && h_get(&h, db, i) == 0.0);
    h_fill(&h, dw, 1);
    double *before = h_values(&h, dw);
    h_run(&h, true);
    expect(&h, dw, before, 0, "dweight");
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_matches),
        cmocka_unit_test(reference_is_the_derivative),
        cmocka_unit_test(empty_share_gives_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
