/* Batchnorm kernels by their launchers, against float64 arithmetic: both mappings with whole and
 * left-over rows, columns and chunks, of every type; values that would cancel; rows that are not
 * there; the merge over ranks through hooks. */
#include "tests/unit/cuda/core_harness.h"

#include <math.h>

#include "kernels/cuda/loops/batchnorm.h"

typedef struct {
    size_t rows, C;
} shape;

/* wide: one value, fewer rows than lanes, several tiles, tens of thousands of channels; tall: one
 * chunk, several, tiles with left-over columns, single channels, three neighbours, odd widths,
 * more chunks than a merge has lanes */
static const shape shapes[] = {{1, 1},      {2, 24},    {7, 17},   {64, 264},   {33, 130},
                               {3, 20008},  {5, 10001}, {65, 8},   {300, 16},   {257, 136},
                               {5000, 72},  {9001, 3},  {4999, 1}, {2000, 100}, {700, 331},
                               {1025, 520}, {35000, 17}};
static const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};

static double uniform(uint32_t seed, size_t i, double low, double high)
{
    return low + (high - low) * (double)tr_uniform(tr_philox_at(seed, TR_RNG_TEST, 0, i, 0).v[0]);
}

static double unit_of(tr_dtype t) /* the most that rounding moves a value near 1 */
{
    return t == TR_F32 ? 0x1p-24 : t == TR_BF16 ? 0x1p-8 : 0x1p-11;
}

static void encode(tr_dtype t, void *p, size_t i, double v)
{
    if (t == TR_F64)
        ((double *)p)[i] = v;
    else if (t == TR_F32)
        ((float *)p)[i] = (float)v;
    else if (t == TR_BF16)
        ((tr_bf16 *)p)[i] = tr_f32_to_bf16((float)v);
    else
        ((_Float16 *)p)[i] = (_Float16)(float)v;
}

static double decode(tr_dtype t, const void *p, size_t i)
{
    if (t == TR_F64) return ((const double *)p)[i];
    if (t == TR_F32) return (double)((const float *)p)[i];
    if (t == TR_BF16) return (double)tr_bf16_to_f32(((const tr_bf16 *)p)[i]);
    return (double)((const _Float16 *)p)[i];
}

/* On the device, n values of a type, NaN bytes where values is NULL; rounds `values` to the type.
 */
static void *device(tr_cuda *cuda, tr_dtype t, size_t n, double *values)
{
    const size_t nbytes = n * tr_dtype_size(t);
    unsigned char *host = malloc(nbytes + 1);
    memset(host, 0xff, nbytes);
    for (size_t i = 0; values && i < n; i++) {
        encode(t, host, i, values[i]);
        values[i] = decode(t, host, i);
    }
    void *p = b->alloc(cuda, TR_MEM_OTHER, nbytes + 16);
    assert_non_null(p);
    if (nbytes) assert_ok(b->upload(cuda, p, host, nbytes));
    free(host);
    return p;
}

static double *read_back(tr_cuda *cuda, tr_dtype t, size_t n, const void *p)
{
    void *host = malloc(n * tr_dtype_size(t) + 1);
    double *v = malloc(n * sizeof *v + 1);
    if (n) assert_ok(b->download(cuda, host, p, n * tr_dtype_size(t)));
    for (size_t i = 0; i < n; i++) v[i] = decode(t, host, i);
    free(host);
    return v;
}

static double *values(uint32_t seed, size_t n, double low, double high)
{
    double *v = malloc(n * sizeof *v + 1);
    for (size_t i = 0; i < n; i++) v[i] = uniform(seed, i, low, high);
    return v;
}

/* count, mean, M2 in two passes. */
static double *moments(shape s, const double *x)
{
    double *m = calloc(1 + 2 * s.C, sizeof *m);
    m[0] = (double)s.rows;
    for (size_t i = 0; i < s.rows * s.C; i++) m[1 + i % s.C] += x[i] / m[0];
    for (size_t i = 0; i < s.rows * s.C; i++) m[1 + s.C + i % s.C] += pow(x[i] - m[1 + i % s.C], 2);
    return m;
}

#define FOR_ALL(s, t)                                                                              \
    for (size_t s = 0; s < TR_COUNT(shapes); s++)                                                  \
        for (size_t t = 0; t < TR_COUNT(types); t++)

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
                    assert_true(m.chunks * m.tiles >= 480 &&
                                m.chunks * m.tiles <= 2 * TR_BN_BLOCKS + m.tiles);
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

static double *stats_of(tr_cuda *cuda, tr_dtype t, shape s, double *x)
{
    const tr_bn_map m = tr_bn_map_of(s.rows, s.C, t, TR_BN_RUN);
    void *dx = device(cuda, t, s.rows * s.C, x),
         *parts = device(cuda, TR_F64, tr_bn_parts(&m) / 8, NULL),
         *out = device(cuda, TR_F64, 1 + 2 * s.C, NULL);
    assert_ok(tr_bn_stats(cuda->stream, t, &m, dx, parts, out));
    double *got = read_back(cuda, TR_F64, 1 + 2 * s.C, out);
    b->free(cuda, dx);
    b->free(cuda, parts);
    b->free(cuda, out);
    return got;
}

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

static double act_of(tr_act act, double v)
{
    if (act == TR_ACT_RELU) return v > 0 ? v : 0;
    if (act == TR_ACT_SILU) return v / (1 + exp(-v));
    return v;
}

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
        const double want = act_of(f.act, v);
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
    for (size_t i = 0; i < TR_COUNT(all); i++) b->free(cuda, all[i]);
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

/* ---- Backward -------------------------------------------------------------------------------- */

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
    if (!in_place) b->free(cuda, Ddx);
    void *all[] = {Dx, Ddy, Ddy2, Dy, Dw, Ddw, Ddb, other, Dm, Dsums, parts};
    double *mine[] = {x, dy, dy2, y, w, dw, db, m, dz, sums, got_dw, got_db, want, size, dx};
    for (size_t i = 0; i < TR_COUNT(all); i++) b->free(cuda, all[i]);
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

/* ---- No rows --------------------------------------------------------------------------------- */

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
    for (size_t i = 0; i < TR_COUNT(all); i++) b->free(cuda, all[i]);
    free(stats);
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
    for (size_t i = 0; i < TR_COUNT(all); i++) b->free(cuda, all[i]);
    free(got);
    free(var);
    b->close(cuda);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

typedef struct {
    tr_cuda *cuda;
    const void *all; /* on the device: what each rank gives */
    int size, calls;
} fake;

static tr_status fake_gather(void *ctx, const void *send, void *recv, size_t nbytes)
{
    fake *f = ctx;
    assert_non_null(send);
    f->calls++;
    return b->copy(f->cuda, recv, f->all, nbytes * (size_t)f->size);
}

static const tr_op_def *def_of(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (strcmp(tr_op_def_name(tr_op_at(i)), name) == 0) return tr_op_at(i);
    fail_msg("no op named %s", name);
    return NULL;
}

/* `size` parts of `count` values through the op; planned for `planned` ranks; NULL where it fails.
 */
static double *merge(tr_cuda *cuda, const char *name, double *parts, int size, int planned,
                     size_t count)
{
    tr_tensor tensors[2] = {{.id = 0,
                             .dtype = TR_F64,
                             .ndim = 1,
                             .dims = {(int64_t)count},
                             .count = count,
                             .nbytes = count * 8,
                             .alias = -1}};
    tensors[1] = tensors[0];
    tensors[1].id = 1;
    tr_op op = {.def = def_of(name), .layer = "bn", .nin = 1, .in = {0}, .nout = 1, .out = {1}};
    tr_graph graph = {
        .train = true, .ranks = planned, .ntensors = 2, .nops = 1, .tensors = tensors, .ops = &op};
    tr_kernel *k = NULL;
    assert_ok(b->prepare(cuda, &graph, &op, &k));
    fake f = {cuda, device(cuda, TR_F64, count * (size_t)size, parts), size, 0};
    const tr_hooks hooks = {.ctx = &f, .size = size, .gather = fake_gather};
    double *own = malloc(count * sizeof *own), *got = NULL;
    memcpy(own, parts, count * sizeof *own);
    tr_binding bind = {.in = {device(cuda, TR_F64, count, own)},
                       .out = {device(cuda, TR_F64, count, NULL)}};
    bind.workspace = device(cuda, TR_F64, k->workspace / 8, NULL);
    assert_ok(k->bind(k, &bind));
    const tr_run run = {.hooks = planned > 1 ? &hooks : NULL};
    const tr_status st = k->run(k, &run);
    assert_int_equal(f.calls, planned > 1 && st == TR_OK);
    if (st == TR_OK) got = read_back(cuda, TR_F64, count, bind.out[0]);
    b->free(cuda, (void *)f.all);
    b->free(cuda, bind.in[0]);
    b->free(cuda, bind.out[0]);
    b->free(cuda, bind.workspace);
    k->close(k);
    free(own);
    return got;
}

/* Shares of a batch, some empty: the statistics of the whole. */
static void check_shares(tr_cuda *cuda, const size_t *shares, int size)
{
    const size_t C = 200, n = 1 + 2 * C;
    double *parts = malloc(n * (size_t)size * sizeof *parts), *all = values(9, 200 * C, -3, 9);
    size_t from = 0;
    for (int r = 0; r < size; r++) {
        double *share = stats_of(cuda, TR_F32, (shape){shares[r], C}, all + from * C);
        memcpy(parts + n * (size_t)r, share, n * sizeof *share);
        free(share);
        from += shares[r];
    }
    double *got = merge(cuda, "batchnorm.merge", parts, size, size, n),
           *want = moments((shape){from, C}, all);
    if (from == 0) memset(want, 0, n * sizeof *want);
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(got[i] - want[i]) <= 2e-6 * (1 + fabs(want[i])));
    free(parts);
    free(all);
    free(got);
    free(want);
}

static void ranks_are_merged(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    check_shares(cuda, (size_t[]){5}, 1);
    check_shares(cuda, (size_t[]){70, 3}, 2);
    check_shares(cuda, (size_t[]){0, 7, 0, 100}, 4);
    check_shares(cuda, (size_t[]){1, 0, 0}, 3);
    check_shares(cuda, (size_t[]){0, 0}, 2);
    double parts[12];
    for (int i = 0; i < 12; i++) parts[i] = i * i;
    double *sums = merge(cuda, "batchnorm.grad_merge", parts, 3, 3, 4);
    for (int i = 0; i < 4; i++)
        assert_true(sums[i] == i * i + (i + 4) * (i + 4) + (i + 8) * (i + 8));
    free(sums);
    assert_null(merge(cuda, "batchnorm.grad_merge", parts, 3, 2, 4));
    assert_non_null(strstr(tr_last_error()->text, "planned for 2 ranks runs with 3"));
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_cover_everything),
        cmocka_unit_test(stats_match),
        cmocka_unit_test(stats_do_not_cancel),
        cmocka_unit_test(stats_tell_of_bad_values),
        cmocka_unit_test(forward_matches),
        cmocka_unit_test(backward_matches),
        cmocka_unit_test(no_rows),
        cmocka_unit_test(bad_statistics_are_not_kept),
        cmocka_unit_test(ranks_are_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
