/* Batchnorm kernels by their launchers, backward, against float64 arithmetic: both mappings with
 * whole and left-over rows, columns and chunks, of every type, in place and not; rows that are not
 * there, in both directions. */
#include "tests/unit/cuda/batchnorm_harness.h"

static void check_backward(tr_cuda *cuda, tr_dtype t, shape s, bool mask, bool second,
                           bool in_place)
{
    const double eps = 1e-5;
    const size_t n = s.rows * s.C, C = s.C;
    double *x = values(1, n, 4, 6), *dy = values(2, n, -1, 1), *dy2 = values(3, n, -1, 1),
           *y = values(4, n, -1, 1), *w = values(5, C, 0.5, 1.5), *dw = values(6, C, -1, 1),
           *db = values(7, C, -1, 1);
    void *Dx = device(cuda, t, n, x), *Ddy = device(cuda, t, n, dy),
         *Ddy2 = device(cuda, t, n, dy2), *Dy = device(cuda, t, n, y),
         *Dw = device(cuda, TR_F32, C, w), *Ddw = device(cuda, TR_F32, C, dw),
         *Ddb = device(cuda, TR_F32, C, db), *other = device(cuda, t, n, NULL);
    double *m = moments(s, x);
    void *Dm = device(cuda, TR_F64, 1 + 2 * C, m), *Dsums = device(cuda, TR_F64, 2 * C, NULL);
    const tr_bn_map map = tr_bn_map_of(s.rows, C, t, TR_BN_RUN),
                    flat = tr_bn_map_of(s.rows, C, t, 4);
    void *parts = device(cuda, TR_F64, tr_bn_parts(&map) / 8, NULL);
    const bool written = mask || second;
    void *Ddz = written && !in_place ? other : Ddy;
    tr_bn_grads g = {.dy = Ddy,
                     .x = Dx,
                     .y = mask ? Dy : NULL,
                     .dy2 = second ? Ddy2 : NULL,
                     .stats = Dm,
                     .dz = written ? Ddz : NULL,
                     .sums = Dsums,
                     .dweight = Ddw,
                     .dbias = Ddb,
                     .eps = eps,
                     .accumulate = second};
    assert_ok(tr_bn_grad_stats(cuda->stream, t, &map, &g, parts));
    double *dz = read_back(cuda, t, n, Ddz), *sums = read_back(cuda, TR_F64, 2 * C, Dsums),
           *got_dw = read_back(cuda, TR_F32, C, Ddw), *got_db = read_back(cuda, TR_F32, C, Ddb);
    double *want = calloc(2 * C, sizeof *want), *size = calloc(2 * C, sizeof *size);
    for (size_t i = 0; i < n; i++) {
        const size_t c = i % C;
        const double inverse = 1 / sqrt(m[1 + C + c] / m[0] + eps),
                     xhat = (x[i] - m[1 + c]) * inverse;
        double d = dy[i] + (second ? dy2[i] : 0);
        if (mask && !(y[i] > 0)) d = 0;
        assert_true(fabs(dz[i] - d) <= (unit_of(t) + 0x1p-24) * fabs(d));
        want[c] += d;
        want[C + c] += d * xhat;
        size[c] += fabs(d);
        size[C + c] += fabs(d) * (fabs(xhat) + 1e-6 * inverse);
    }
    for (size_t c = 0; c < 2 * C; c++) {
        if (!(fabs(sums[c] - want[c]) <= 1.2e-6 * size[c] + 1e-9))
            fail_msg("%zu x %zu: sum %zu is %.9g, expected %.9g", s.rows, C, c, sums[c], want[c]);
        const double was = second ? (c < C ? db[c] : dw[c - C]) : 0,
                     is = c < C ? got_db[c] : got_dw[c - C];
        assert_true(is == (double)((float)was + (float)sums[c]));
    }
    void *Ddx = in_place ? Ddz : device(cuda, t, n, NULL);
    assert_ok(tr_bn_grad_input(cuda->stream, t, &flat, Ddz, Dx, Dm, Dw, Dsums, eps, Ddx));
    double *dx = read_back(cuda, t, n, Ddx);
    for (size_t i = 0; i < n; i++) {
        const size_t c = i % C;
        const double inverse = 1 / sqrt(m[1 + C + c] / m[0] + eps),
                     xhat = (x[i] - m[1 + c]) * inverse;
        const double a = dz[i], e = sums[c] / m[0], f = xhat * sums[C + c] / m[0],
                     slope = w[c] * inverse;
        const double v = slope * (a - e - f), terms = slope * (fabs(a) + fabs(e) + fabs(f));
        if (!(fabs(dx[i] - v) <= 1e-6 * terms + unit_of(t) * fabs(v) + 1e-7))
            fail_msg("%zu x %zu: dx %zu is %.9g, expected %.9g", s.rows, C, i, dx[i], v);
    }
    if (!in_place) b->memory->free(cuda, Ddx);
    void *all[] = {Dx, Ddy, Ddy2, Dy, Dw, Ddw, Ddb, other, Dm, Dsums, parts};
    double *mine[] = {x, dy, dy2, y, w, dw, db, m, dz, sums, got_dw, got_db, want, size, dx};
    for (size_t i = 0; i < TR_COUNT(all); i++) b->memory->free(cuda, all[i]);
    for (size_t i = 0; i < TR_COUNT(mine); i++) free(mine[i]);
}

static void backward_matches(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    FOR_ALL(s, t)
    {
        check_backward(cuda, types[t], shapes[s], true, true, false);
        check_backward(cuda, types[t], shapes[s], true, false, true);
        check_backward(cuda, types[t], shapes[s], false, t == 0, true);
    }
    b->close(cuda);
}

static void expect_values(tr_cuda *cuda, tr_dtype t, size_t n, const void *p, double want)
{
    double *got = read_back(cuda, t, n, p);
    for (size_t i = 0; i < n; i++) assert_true(got[i] == want);
    free(got);
}

/* Zero statistics and sums; parameter gradients zero or as they were; running statistics follow the
 * other ranks' batch, unless no rank has any. */
static void no_rows(void **state)
{
    (void)state;
    const shape s = {0, 24};
    enum { C = 24 };
    tr_cuda *cuda = open_with(false);
    double *stats = stats_of(cuda, TR_BF16, s, NULL);
    for (size_t i = 0; i < 1 + 2 * C; i++) assert_true(stats[i] == 0.0);
    double ones[C], merged[1 + 2 * C] = {10};
    for (int c = 0; c < C; c++) ones[c] = 1, merged[1 + c] = 5, merged[1 + C + c] = 18;
    void *dw = device(cuda, TR_F32, C, ones), *db = device(cuda, TR_F32, C, ones),
         *rm = device(cuda, TR_F32, C, ones), *rv = device(cuda, TR_F32, C, ones),
         *sums = device(cuda, TR_F64, 2 * C, NULL), *m = device(cuda, TR_F64, 1 + 2 * C, merged),
         *none = device(cuda, TR_F64, 1 + 2 * C, stats);
    const tr_bn_map map = tr_bn_map_of(0, C, TR_BF16, TR_BN_RUN);
    tr_bn_grads g = {.stats = none, .sums = sums, .dweight = dw, .dbias = db, .accumulate = true};
    assert_ok(tr_bn_grad_stats(cuda->stream, TR_BF16, &map, &g, NULL));
    expect_values(cuda, TR_F64, 2 * C, sums, 0);
    expect_values(cuda, TR_F32, C, dw, 1);
    expect_values(cuda, TR_F32, C, db, 1);
    g.accumulate = false;
    assert_ok(tr_bn_grad_stats(cuda->stream, TR_BF16, &map, &g, NULL));
    expect_values(cuda, TR_F32, C, dw, 0);
    expect_values(cuda, TR_F32, C, db, 0);
    tr_bn_norm norm = {rm, rm, none, rm, rv, 1e-5, 0.5, true};
    assert_ok(tr_bn_apply(cuda->stream, TR_BF16, &map, TR_ACT_RELU, NULL, NULL, &norm, NULL));
    expect_values(cuda, TR_F32, C, rm, 1);
    norm.stats = m;
    norm.update = false;
    assert_ok(tr_bn_apply(cuda->stream, TR_BF16, &map, TR_ACT_RELU, NULL, NULL, &norm, NULL));
    expect_values(cuda, TR_F32, C, rm, 1);
    norm.update = true;
    assert_ok(tr_bn_apply(cuda->stream, TR_BF16, &map, TR_ACT_RELU, NULL, NULL, &norm, NULL));
    expect_values(cuda, TR_F32, C, rm, 3);
    expect_values(cuda, TR_F32, C, rv, 1.5);
    assert_ok(
        tr_bn_grad_input(cuda->stream, TR_BF16, &map, NULL, NULL, none, rm, sums, 1e-5, NULL));
    void *all[] = {dw, db, rm, rv, sums, m, none};
    for (size_t i = 0; i < TR_COUNT(all); i++) b->memory->free(cuda, all[i]);
    free(stats);
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_matches),
        cmocka_unit_test(no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
