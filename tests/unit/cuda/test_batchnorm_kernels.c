/* Batchnorm kernels by their launchers, forward, against float64 arithmetic: both mappings with
 * whole and left-over rows, columns and chunks, of every type; values that would cancel; statistics
 * that are not finite. */
#include "tests/unit/activate.h"
#include "tests/unit/cuda/batchnorm_harness.h"

/* ---- The mapping ----------------------------------------------------------------------------- */

static void maps_cover_everything(void **state)
{
    (void)state;
    static const size_t rows[] = {0, 1, 2, 8, 63, 64, 65, 256, 257, 4096, 12544, 802816, 3211264};
    static const size_t channels[] = {1,  2,   3,   8,   10,   63,    64,
                                      65, 100, 136, 256, 2048, 10001, 50000};
    static const size_t runs[] = {4, TR_BN_RUN};
    for (size_t i = 0; i < TR_COUNT(rows); i++)
        for (size_t j = 0; j < TR_COUNT(channels); j++)
            for (size_t k = 0; k < TR_COUNT(types) * 2; k++) {
                const tr_bn_map m = tr_bn_map_of(rows[i], channels[j], types[k / 2], runs[k % 2]);
                const size_t bx = (size_t)m.bx, by = (size_t)m.by, width = (size_t)m.width;
                assert_true(bx >= 1 && by >= 1 && bx * by <= TR_BN_THREADS &&
                            bx * width <= TR_BN_CHANNELS);
                assert_true(channels[j] % width == 0);
                assert_true(width == 1 || width * tr_dtype_size(types[k / 2]) == 16);
                assert_true(m.tiles * bx * width >= channels[j]);
                assert_true((m.tiles - 1) * bx * width < channels[j]);
                assert_true(m.chunks >= 1 && m.chunks * m.chunk_rows >= rows[i]);
                assert_true(m.chunks == 1 || (m.chunks - 1) * m.chunk_rows < rows[i]);
                if (rows[i] <= TR_BN_WIDE_ROWS) assert_true(m.chunks == 1);
                if (rows[i] == 802816 && channels[j] >= 64)
                    assert_true(m.chunks * m.tiles >= 480 && m.chunks * m.tiles <= TR_BN_BLOCKS);
                if (runs[k % 2] != TR_BN_RUN) continue;
                assert_true(m.chunks <= TR_BN_SUM_BLOCKS);
                /* not a block more than two rounds of two blocks a multiprocessor */
                if (m.tiles <= TR_BN_SUM_BLOCKS / 2)
                    assert_true(m.chunks * m.tiles <= TR_BN_SUM_BLOCKS);
                /* partial sums stay a small part of what is read */
                if (rows[i] > 10000)
                    assert_true(tr_bn_parts(&m) * 12 <=
                                rows[i] * channels[j] * tr_dtype_size(types[k / 2]));
            }
}

/* ---- Statistics ------------------------------------------------------------------------------ */

static void check_stats(tr_cuda *cuda, tr_dtype t, shape s, double *x)
{
    double *got = stats_of(cuda, t, s, x), *want = moments(s, x);
    assert_true(got[0] == want[0]);
    for (size_t c = 0; c < s.C; c++) {
        const double mean = want[1 + c], m2 = want[1 + s.C + c], spread = sqrt(m2 / want[0]);
        /* bounds of loops/batchnorm.cu; the reference itself sums in float64 */
        if (fabs(got[1 + c] - mean) > 2e-6 * spread + 1e-13 * fabs(mean) ||
            fabs(got[1 + s.C + c] - m2) > 2e-5 * m2 + 1e-20 * mean * mean * want[0])
            fail_msg("%zu x %zu, channel %zu: mean %.17g, %.17g expected; M2 %.9g, %.9g expected",
                     s.rows, s.C, c, got[1 + c], mean, got[1 + s.C + c], m2);
    }
    free(got);
    free(want);
}

/* Where each element is on its own, the layers of ResNet-50 fill the device in whole rounds: no
 * last one of a few blocks. */
static void grids_are_whole_rounds(void **state)
{
    (void)state;
    static const size_t layers[][2] = {{3211264, 64}, {802816, 64},  {802816, 256},
                                       {200704, 128}, {200704, 512}, {50176, 256},
                                       {50176, 1024}, {12544, 512},  {12544, 2048}};
    const size_t round = 3 * 132;
    for (size_t i = 0; i < TR_COUNT(layers); i++) {
        const tr_bn_map m = tr_bn_map_of(layers[i][0], layers[i][1], TR_BF16, 4);
        const size_t blocks = m.chunks * m.tiles, rounds = (blocks + round - 1) / round;
        assert_true(blocks * 100 >= rounds * round * 95);
    }
}

static void stats_match(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    FOR_ALL(s, t)
    {
        double *x = values(1, shapes[s].rows * shapes[s].C, -1, 3);
        check_stats(cuda, types[t], shapes[s], x);
        free(x);
    }
    b->close(cuda);
}

/* Far from zero with little spread; a value far from all others, first of a run and not; channels
 * that do not vary: exact. Plain sums of squares lose all of these. */
static void stats_do_not_cancel(void **state)
{
    (void)state;
    static const shape some[] = {{40, 16}, {5000, 16}, {5000, 15}};
    tr_cuda *cuda = open_with(false);
    for (size_t k = 0; k < TR_COUNT(some); k++) {
        const shape s = some[k];
        double *x = values(3, s.rows * s.C, -1, 1);
        for (size_t i = 0; i < s.rows * s.C; i++) {
            const size_t c = i % s.C, r = i / s.C;
            if (c < 3)
                x[i] = 1e6 + 100 * x[i];
            else if (c < 6)
                x[i] = 1000 + 1e-2 * x[i];
            else if (c < 8)
                x[i] = r == 0 ? 1e5 : x[i];
            else if (c < 10)
                x[i] = r == 37 ? -1e5 : x[i];
            else if (c < 12)
                x[i] = 0.1;
        }
        check_stats(cuda, TR_F32, s, x);
        double *got = stats_of(cuda, TR_F32, s, x);
        for (size_t c = 10; c < 12; c++)
            assert_true(got[1 + c] == (double)0.1f && got[1 + s.C + c] == 0.0);
        free(got);
        free(x);
    }
    b->close(cuda);
}

static void stats_tell_of_bad_values(void **state)
{
    (void)state;
    const shape s = {3000, 16};
    tr_cuda *cuda = open_with(false);
    double *x = values(3, s.rows * s.C, -1, 1);
    x[16 * 2999 + 4] = NAN;
    x[16 * 77 + 5] = INFINITY;
    double *got = stats_of(cuda, TR_F32, s, x);
    for (size_t c = 0; c < s.C; c++) assert_true(isfinite(got[1 + s.C + c]) == (c != 4 && c != 5));
    free(got);
    free(x);
    b->close(cuda);
}

/* ---- Forward --------------------------------------------------------------------------------- */

typedef struct {
    tr_act act;
    bool residual, infer, update;
} forward;

static void check_forward(tr_cuda *cuda, tr_dtype t, shape s, forward f, double far)
{
    const double eps = 1e-5, momentum = 0.25;
    const size_t n = s.rows * s.C, C = s.C;
    double *x = values(1, n, far - 1, far + 3), *r = values(2, n, -1, 1), *w = values(3, C, 0.5, 2),
           *bias = values(4, C, -1, 1), *rm = values(5, C, far - 1, far + 1),
           *rv = values(6, C, 0.5, 2);
    void *dx = device(cuda, t, n, x), *dr = device(cuda, t, n, r), *dw = device(cuda, TR_F32, C, w),
         *db = device(cuda, TR_F32, C, bias), *drm = device(cuda, TR_F32, C, rm),
         *drv = device(cuda, TR_F32, C, rv), *dy = device(cuda, t, n, NULL);
    double *m = moments(s, x);
    void *dm = device(cuda, TR_F64, 1 + 2 * C, m);
    const tr_bn_map map = tr_bn_map_of(s.rows, C, t, 4);
    const tr_bn_norm norm = {dw, db, f.infer ? NULL : dm, drm, drv, eps, momentum, f.update};
    assert_ok(tr_bn_apply(cuda->stream, t, &map, f.act, dx, f.residual ? dr : NULL, &norm, dy));
    double *y = read_back(cuda, t, n, dy), *got_rm = read_back(cuda, TR_F32, C, drm),
           *got_rv = read_back(cuda, TR_F32, C, drv);
    for (size_t i = 0; i < n; i++) {
        const size_t c = i % C;
        const double mean = f.infer ? rm[c] : m[1 + c], var = f.infer ? rv[c] : m[1 + C + c] / m[0];
        const double slope = w[c] / sqrt(var + eps);
        double v = (x[i] - mean) * slope + bias[c];
        if (f.residual) v += r[i];
        const double want = activate(f.act, v);
        /* float32 throughout, of terms of these sizes; mean and shift are rounded to float32 */
        const double size = fabs((x[i] - mean) * slope) + 2,
                     bound = 1e-6 * size + unit_of(t) * fabs(want);
        if (!(fabs(y[i] - want) <= bound + 1e-7))
            fail_msg("%zu x %zu: element %zu is %.9g, expected %.9g", s.rows, C, i, y[i], want);
    }
    for (size_t c = 0; c < C; c++) {
        const double unbiased = m[0] > 1 ? m[1 + C + c] / (m[0] - 1) : rv[c];
        const double mean = f.update ? 0.75 * rm[c] + 0.25 * m[1 + c] : rm[c];
        const double var = f.update ? 0.75 * rv[c] + 0.25 * unbiased : rv[c];
        assert_true(fabs(got_rm[c] - mean) <= 0x1.01p-24 * fabs(mean));
        assert_true(fabs(got_rv[c] - var) <= 0x1.01p-24 * fabs(var));
    }
    void *all[] = {dx, dr, dw, db, drm, drv, dy, dm};
    double *mine[] = {x, r, w, bias, rm, rv, m, y, got_rm, got_rv};
    for (size_t i = 0; i < TR_COUNT(all); i++) b->memory->free(cuda, all[i]);
    for (size_t i = 0; i < TR_COUNT(mine); i++) free(mine[i]);
}

static void forward_matches(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    FOR_ALL(s, t)
    {
        check_forward(cuda, types[t], shapes[s], (forward){TR_ACT_RELU, true, false, true}, 0);
        check_forward(cuda, types[t], shapes[s], (forward){TR_ACT_SILU, false, true, false}, 0);
        check_forward(cuda, types[t], shapes[s], (forward){TR_ACT_NONE, false, false, false}, 0);
    }
    /* x scale + shift would be off by 1000 ulps here */
    check_forward(cuda, TR_F32, (shape){500, 16}, (forward){TR_ACT_NONE, false, false, true}, 4096);
    check_forward(cuda, TR_F32, (shape){50, 15}, (forward){TR_ACT_NONE, true, true, false}, 4096);
    b->close(cuda);
}

/* A step that overflows is skipped: it must not leave its mark on the running statistics. */
static void bad_statistics_are_not_kept(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    double ones[8] = {1, 1, 1, 1, 1, 1, 1, 1}, m[17] = {4}, x[32] = {0};
    m[1 + 2] = NAN, m[1 + 8 + 3] = INFINITY;
    void *w = device(cuda, TR_F32, 8, ones), *rm = device(cuda, TR_F32, 8, ones),
         *rv = device(cuda, TR_F32, 8, ones), *dm = device(cuda, TR_F64, 17, m),
         *dx = device(cuda, TR_F32, 32, x), *dy = device(cuda, TR_F32, 32, NULL);
    const tr_bn_map map = tr_bn_map_of(4, 8, TR_F32, 4);
    const tr_bn_norm norm = {w, w, dm, rm, rv, 1e-5, 0.5, true};
    assert_ok(tr_bn_apply(cuda->stream, TR_F32, &map, TR_ACT_NONE, dx, NULL, &norm, dy));
    double *got = read_back(cuda, TR_F32, 8, rm), *var = read_back(cuda, TR_F32, 8, rv);
    for (int c = 0; c < 8; c++) {
        const double want = c == 2 || c == 3 ? 1 : 0.5;
        assert_true(got[c] == want && var[c] == want);
    }
    void *all[] = {w, rm, rv, dm, dx, dy};
    for (size_t i = 0; i < TR_COUNT(all); i++) b->memory->free(cuda, all[i]);
    free(got);
    free(var);
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_cover_everything),
        cmocka_unit_test(grids_are_whole_rounds),
        cmocka_unit_test(stats_match),
        cmocka_unit_test(stats_do_not_cancel),
        cmocka_unit_test(stats_tell_of_bad_values),
        cmocka_unit_test(forward_matches),
        cmocka_unit_test(bad_statistics_are_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
