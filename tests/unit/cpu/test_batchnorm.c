/* Batch normalization: every part against float64 arithmetic over many shapes, types and levels;
 * the gradient by central differences; shares of several ranks against the whole batch; empty
 * shares; accumulation; values that are not finite; independence of the thread count. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t n, c, h, w;
} shape;

/* below, at and beyond a vector; folded rows with and without left-overs; several tiles; one value
 */
static const shape shapes[] = {{1, 1, 1, 1},   {5, 1, 3, 7},   {4, 3, 9, 5},   {3, 10, 4, 4},
                               {2, 16, 8, 8},  {7, 17, 3, 5},  {3, 31, 5, 5},  {2, 33, 9, 9},
                               {4, 64, 6, 6},  {3, 100, 5, 3}, {2, 127, 4, 4}, {2, 513, 3, 3},
                               {9, 600, 0, 0}, {70, 12, 0, 0}, {6, 16, 64, 64}};

static const tr_batchnorm_attrs attrs = {.eps = 1e-5, .momentum = 0.25};

static int dims_of(shape s, int64_t d[4])
{
    d[0] = s.n, d[1] = s.c, d[2] = s.h, d[3] = s.w;
    return s.h ? 4 : 2;
}

static size_t area(shape s)
{
    return s.h ? (size_t)(s.h * s.w) : 1;
}

static size_t channel(shape s, size_t i)
{
    return i / area(s) % (size_t)s.c;
}

/* count, mean, M2 of the values in logical order, in two passes. */
static double *moments(shape s, const double *x)
{
    size_t C = (size_t)s.c, count = (size_t)s.n * C * area(s);
    double *m = doubles(1 + 2 * C);
    m[0] = (double)(count / C);
    for (size_t i = 0; i < count; i++) m[1 + channel(s, i)] += x[i] / m[0];
    for (size_t i = 0; i < count; i++)
        m[1 + C + channel(s, i)] += pow(x[i] - m[1 + channel(s, i)], 2);
    return m;
}

static harness open_stats(shape s, tr_precision p, int isa, int threads, int *x, int *stats)
{
    int64_t d[4], n = 1 + 2 * s.c;
    harness h = open_level("batchnorm.stats", p, isa, threads);
    *x = h_in(&h, h_activation(&h), dims_of(s, d), d);
    *stats = h_out(&h, TR_F64, 1, &n);
    return h;
}

static void check_stats(shape s, tr_precision p, int isa, double mean, double spread)
{
    int x, stats;
    harness h = open_stats(s, p, isa, 1, &x, &stats);
    h_fill_range(&h, x, 3, mean - spread, mean + spread);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *values = h_values(&h, x), *want = moments(s, values), *got = h_values(&h, stats);
    const size_t C = (size_t)s.c;
    assert_true(got[0] == want[0]);
    for (size_t c = 0; c < C; c++) {
        const double std = sqrt(want[1 + C + c] / want[0]);
        assert_true(fabs(got[1 + c] - want[1 + c]) <= 2e-6 * std + 1e-14 * fabs(mean));
        assert_true(fabs(got[1 + C + c] - want[1 + C + c]) <= 2e-5 * want[1 + C + c]);
    }
    tr_free(values);
    tr_free(want);
    tr_free(got);
    h_close(&h);
}

static void stats_match(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check_stats(shapes[i], p, isa, 0.1, 1.0);
        check_stats(shapes[i], p, isa, 1e4, 200.0);
    }
}

/* A first row far from all others, and channels that hardly vary: where plain sums would cancel. */
static void stats_do_not_cancel(void **state)
{
    (void)state;
    const shape s = {400, 16, 0, 0};
    FOR_LEVELS(isa)
    {
        int x, stats;
        harness h = open_stats(s, TR_PRECISION_FP32, isa, 1, &x, &stats);
        for (size_t i = 0; i < h.tensors[x].count; i++) {
            double v = uniform(5, i, -1, 1);
            if (i % 16 < 4)
                v = i < 16 ? 1e5 : v;
            else if (i % 16 < 8)
                v = 1000 + 1e-2 * v;
            else if (i % 16 < 12)
                v = 7;
            h_put(&h, x, i, v);
        }
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        double *values = h_values(&h, x), *want = moments(s, values), *got = h_values(&h, stats);
        for (size_t c = 0; c < 16; c++) {
            assert_true(fabs(got[1 + c] - want[1 + c]) <= 2e-6 * sqrt(want[17 + c] / 400) + 1e-12);
            assert_true(fabs(got[17 + c] - want[17 + c]) <= 2e-5 * want[17 + c] + 1e-12);
        }
        for (size_t c = 8; c < 12; c++) assert_true(got[1 + 16 + c] == 0.0 && got[1 + c] == 7.0);
        tr_free(values);
        tr_free(want);
        tr_free(got);
        h_close(&h);
    }
}

static double act_of(tr_act act, double v)
{
    if (act == TR_ACT_RELU) return v > 0 ? v : 0;
    if (act == TR_ACT_GELU) return 0.5 * v * erfc(-v / sqrt(2));
    return v;
}

static void check_forward(shape s, tr_precision p, int isa, tr_act act, bool residual, bool infer)
{
    int64_t d[4], C = s.c, n = 1 + 2 * C;
    const int ndim = dims_of(s, d);
    harness h = open_level(infer ? "batchnorm.infer" : "batchnorm", p, isa, 1);
    const int x = h_in(&h, h_activation(&h), ndim, d), w = h_param(&h, 1, &C),
              b = h_param(&h, 1, &C);
    const int stats = infer ? -1 : h_in(&h, TR_F64, 1, &n);
    const int rmean = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C);
    const int rvar = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C);
    int r = -1;
    if (residual)
        r = h_in(&h, h_activation(&h), ndim, d);
    else
        h_absent_in(&h);
    const int y = h_out(&h, h_activation(&h), ndim, d);
    h_fill_range(&h, x, 1, -1, 3);
    h_fill(&h, w, 2);
    h_fill(&h, b, 3);
    h_fill(&h, rmean, 4);
    h_fill_range(&h, rvar, 5, 0.5, 2);
    if (residual) h_fill(&h, r, 6);
    double *xs = h_values(&h, x), *m = moments(s, xs), *rm = h_values(&h, rmean),
           *rv = h_values(&h, rvar), *want = doubles(h.tensors[y].count);
    for (size_t i = 0; !infer && i < (size_t)n; i++) h_put(&h, stats, i, m[i]);
    for (size_t i = 0; i < h.tensors[y].count; i++) {
        const size_t c = channel(s, i);
        const double mean = infer ? rm[c] : m[1 + c],
                     var = infer ? rv[c] : m[1 + C + (int64_t)c] / m[0];
        double v = (xs[i] - mean) / sqrt(var + attrs.eps) * h_get(&h, w, c) + h_get(&h, b, c);
        if (residual) v += h_get(&h, r, i);
        want[i] = act_of(act, v);
    }
    h_prepare(&h, &attrs, act);
    h_run(&h, false);
    /* x scale + shift rounds x scale: |x| / std is up to 60 where a channel has one value */
    expect(&h, y, want, tolerance(p) * (area(s) * (size_t)s.n > 1 ? 4 : 600), "y");
    for (size_t c = 0; c < (size_t)C; c++) {
        const double unbiased = m[0] > 1 ? m[1 + (size_t)C + c] / (m[0] - 1) : rv[c];
        const double mean = infer ? rm[c] : 0.75 * rm[c] + 0.25 * m[1 + c];
        const double var = infer ? rv[c] : 0.75 * rv[c] + 0.25 * unbiased;
        assert_true(fabs(h_get(&h, rmean, c) - mean) <= 1e-6 * (1 + fabs(mean)));
        assert_true(fabs(h_get(&h, rvar, c) - var) <= 1e-6 * (1 + fabs(var)));
    }
    tr_free(xs);
    tr_free(m);
    tr_free(rm);
    tr_free(rv);
    h_close(&h);
}

static void forward_matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check_forward(shapes[i], p, isa, TR_ACT_NONE, false, false);
        check_forward(shapes[i], p, isa, TR_ACT_RELU, true, false);
        check_forward(shapes[i], p, isa, TR_ACT_GELU, false, true);
        check_forward(shapes[i], p, isa, TR_ACT_RELU, true, true);
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

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

/* ---- Ranks ----------------------------------------------------------------------------------- */

typedef struct {
    const double *all; /* what each rank gives */
    int size;
} fake;

static tr_status fake_gather(void *ctx, const void *send, void *recv, size_t nbytes)
{
    const fake *f = ctx;
    (void)send;
    memcpy(recv, f->all, nbytes * (size_t)f->size);
    return TR_OK;
}

/* Merges `size` parts of `count` values by the op; without hooks if there is one. */
static double *merge(const char *op, const double *parts, int size, int64_t count)
{
    fake f = {parts, size};
    const tr_hooks hooks = {.ctx = &f, .size = size, .gather = fake_gather};
    harness h = h_open(op, TR_PRECISION_FP32, true);
    h.graph.ranks = size;
    const int in = h_in(&h, TR_F64, 1, &count), out = h_out(&h, TR_F64, 1, &count);
    for (size_t i = 0; i < (size_t)count; i++) h_put(&h, in, i, parts[i]);
    h.run.hooks = size > 1 ? &hooks : NULL;
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *merged = h_values(&h, out);
    h_close(&h);
    return merged;
}

/* Shares of a batch, some empty, merged: the statistics of the whole batch. */
static void check_shares(const int64_t *shares, int size)
{
    const int64_t C = 7, n = 1 + 2 * C;
    double *parts = doubles((size_t)(n * size)), *all = doubles(1000);
    int64_t from = 0;
    for (size_t i = 0; i < 1000; i++) all[i] = (double)(float)uniform(9, i, -3, 9);
    for (int r = 0; r < size; r++) {
        int x, stats;
        harness h =
            open_stats((shape){shares[r], C, 2, 2}, TR_PRECISION_FP32, tr_cpu_isa(), 1, &x, &stats);
        for (size_t i = 0; i < h.tensors[x].count; i++)
            h_put(&h, x, i, all[(size_t)(from * C * 4) + i]);
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        for (size_t i = 0; i < (size_t)n; i++) parts[(size_t)(r * n) + i] = h_get(&h, stats, i);
        assert_true(parts[r * n] == (double)(shares[r] * 4));
        h_close(&h);
        from += shares[r];
    }
    double *merged = merge("batchnorm.merge", parts, size, n);
    double *want = moments((shape){from, C, 2, 2}, all);
    if (from == 0)
        for (int64_t i = 0; i < n; i++) assert_true(merged[i] == 0.0);
    else
        h_close_to(merged, want, NULL, (size_t)n, 2e-6, "merged");
    tr_free(merged);
    tr_free(want);
    tr_free(parts);
    tr_free(all);
}

static void shares_are_the_whole(void **state)
{
    (void)state;
    check_shares((int64_t[]){8}, 1);
    check_shares((int64_t[]){5, 3}, 2);
    check_shares((int64_t[]){0, 7, 0, 2}, 4);
    check_shares((int64_t[]){1, 1, 6}, 3);
    check_shares((int64_t[]){4, 0}, 2);
    check_shares((int64_t[]){0, 0}, 2);
}

static void sums_add_up(void **state)
{
    (void)state;
    const double parts[] = {1, 2, 3, 4, 10, 20, 30, 40, 100, 200, 300, 400};
    double *two = merge("batchnorm.grad_merge", parts, 3, 4);
    double *one = merge("batchnorm.grad_merge", parts, 1, 4);
    for (int i = 0; i < 4; i++) assert_true(two[i] == 111.0 * (i + 1) && one[i] == i + 1);
    tr_free(two);
    tr_free(one);
}

static void merge_refuses_more_ranks(void **state)
{
    (void)state;
    const double parts[9] = {0};
    fake f = {parts, 3};
    const tr_hooks hooks = {.ctx = &f, .size = 3, .gather = fake_gather};
    int64_t n = 3;
    harness h = h_open("batchnorm.merge", TR_PRECISION_FP32, true);
    h.graph.ranks = 2;
    h_in(&h, TR_F64, 1, &n);
    h_out(&h, TR_F64, 1, &n);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h.run.hooks = &hooks;
    assert_int_equal(h.kernel->run(h.kernel, &h.run), TR_INTERNAL);
    h_close(&h);
}

/* ---- Empty shares and odd values --------------------------------------------------------------
 */

/* Runs "batchnorm" with C = 2 on the given statistics; returns the running mean and variance. */
static void run_states(int64_t batch, const double stats[5], bool recomputed, double out[4])
{
    int64_t d[4] = {batch, 2, 3, 3}, C = 2, n = 5;
    harness h = h_open("batchnorm", TR_PRECISION_FP32, true);
    const int x = h_in(&h, TR_F32, 4, d), w = h_param(&h, 1, &C), b = h_param(&h, 1, &C);
    const int s = h_in(&h, TR_F64, 1, &n), rm = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C),
              rv = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C);
    h_absent_in(&h);
    h_out(&h, TR_F32, 4, d);
    h_fill(&h, x, 1);
    h_fill(&h, w, 1);
    h_fill(&h, b, 1);
    for (size_t i = 0; i < 5; i++) h_put(&h, s, i, stats[i]);
    for (size_t i = 0; i < 2; i++) {
        h_put(&h, rm, i, 1);
        h_put(&h, rv, i, 2);
    }
    h.op.recomputed = recomputed;
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < 2; i++) {
        out[i] = h_get(&h, rm, i);
        out[2 + i] = h_get(&h, rv, i);
    }
    h_close(&h);
}

static void states_of_odd_batches(void **state)
{
    (void)state;
    double got[4];
    const double empty[5] = {0}, two[5] = {2, 5, 9, 4, 6}, one[5] = {1, 5, 9, 0, 0};
    const double bad[5] = {2, NAN, 9, 4, INFINITY};
    run_states(0, empty, false, got); /* nobody has a sample */
    assert_true(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
    run_states(0, two, false, got); /* only others have */
    assert_true(got[0] == 2 && got[1] == 3 && got[2] == 2.5 && got[3] == 3);
    run_states(1, two, true, got);
    assert_true(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
    run_states(1, one, false, got); /* no unbiased variance of one value */
    assert_true(got[0] == 2 && got[1] == 3 && got[2] == 2 && got[3] == 2);
    run_states(1, bad, false, got); /* an overflow does not get into the states */
    assert_true(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
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

/* One NaN spoils its own channel and no other. */
static void nan_stays_in_its_channel(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    {
        int x, stats;
        harness h = open_stats((shape){3, 5, 6, 6}, TR_PRECISION_FP32, isa, 1, &x, &stats);
        h_fill(&h, x, 1);
        h_put(&h, x, 2 * 36 + 7, NAN);
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        for (size_t c = 0; c < 5; c++) {
            assert_true(isnan(h_get(&h, stats, 1 + c)) == (c == 2));
            assert_true(isnan(h_get(&h, stats, 6 + c)) == (c == 2));
        }
        h_close(&h);
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    const shape s = {6, 16, 64, 64}; /* several chunks */
    double *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        int x, stats;
        harness h = open_stats(s, TR_PRECISION_FP32, tr_cpu_isa(), threads, &x, &stats);
        h_fill(&h, x, 1);
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        double *got = h_values(&h, stats);
        if (first) assert_memory_equal(first, got, 33 * sizeof *got);
        if (first)
            tr_free(got);
        else
            first = got;
        h_close(&h);
    }
    tr_free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats_match),
        cmocka_unit_test(stats_do_not_cancel),
        cmocka_unit_test(forward_matches),
        cmocka_unit_test(backward_matches),
        cmocka_unit_test(reference_is_the_derivative),
        cmocka_unit_test(shares_are_the_whole),
        cmocka_unit_test(sums_add_up),
        cmocka_unit_test(merge_refuses_more_ranks),
        cmocka_unit_test(states_of_odd_batches),
        cmocka_unit_test(empty_share_gives_no_gradient),
        cmocka_unit_test(nan_stays_in_its_channel),
        cmocka_unit_test(threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
