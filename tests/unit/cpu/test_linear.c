/* linear, its input and its weight gradient: against double arithmetic over many shapes, types and
 * activations; adjointness; accumulation; what is packed and shared; rebinding. */
#include "tests/unit/cpu/ways.h"

typedef struct {
    int64_t rows, in, out;
} shape;

/* One is several tiles of the weight where products are made of float32 (linear_wide.c); the last
 * two have a copied matrix backward. */
static const shape shapes[] = {{1, 1, 1},      {1, 5, 3},       {3, 17, 5},     {2, 3, 1},
                               {7, 64, 10},    {64, 33, 48},    {13, 128, 96},  {300, 16, 17},
                               {530, 4200, 5}, {65, 2560, 257}, {258, 2560, 64}};

static const tr_precision precisions[] = {TR_PRECISION_FP32, TR_PRECISION_BF16};

/* A context where bf16 is missing runs float32 alone. */
static bool has(tr_precision precision)
{
    harness h = h_open("linear", TR_PRECISION_FP32, true);
    bool ok =
        tr_cpu_backend.kernels->unsupported(h.ctx, h.op.def, tr_precision_dtype(precision)) == NULL;
    h_close(&h);
    if (!ok) print_message("[  SKIPPED ] bf16: this CPU has no kernels for it\n");
    return ok;
}

/* Weights as the kernel reads them. */
static double seen(const harness *h, int id, size_t i)
{
    double v = h_get(h, id, i);
    return h->graph.precision == TR_PRECISION_BF16 ? tr_bf16_to_f32(tr_f32_to_bf16((float)v)) : v;
}

/* c[i][j] = sum_k a(i, k) b(k, j), and the same of absolute values. */
static void product(size_t n, size_t m, size_t depth, const double *a, size_t ai, size_t ak,
                    const double *b, size_t bk, size_t bj, double *c, double *size)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++) {
            double s = 0, t = 0;
            for (size_t k = 0; k < depth; k++) {
                double p = a[i * ai + k * ak] * b[k * bk + j * bj];
                s += p;
                t += fabs(p);
            }
            c[i * m + j] = s;
            size[i * m + j] = t;
        }
}

static double *weights_seen(const harness *h, int id)
{
    double *w = h_values(h, id);
    for (size_t i = 0; i < h->tensors[id].count; i++) w[i] = seen(h, id, i);
    return w;
}

/* Relative error of a bias before it is added: one that rides on cuBLASLt's product has its
 * type. */
static double bias_rounding(tr_precision precision)
{
#ifdef TEST_MIRROR
    return precision == TR_PRECISION_BF16 ? 0x1p-8 : 0;
#else
    (void)precision;
    return 0;
#endif
}

static void check_forward(shape s, tr_precision precision, bool bias, tr_act act, int ndim,
                          int threads)
{
    const int64_t x_dims[] = {s.rows, 1, s.in}, y_dims[] = {s.rows, 1, s.out};
    const int64_t x2[] = {s.rows, s.in}, y2[] = {s.rows, s.out};
    const tr_linear_attrs attrs = {.out = s.out, .bias = bias};
    harness h = open_way("linear", precision, act == TR_ACT_NONE, threads);
    int x = h_in(&h, h_activation(&h), ndim, ndim == 2 ? x2 : x_dims);
    int w = h_param(&h, 2, (int64_t[]){s.out, s.in});
    int b = -1;
    if (bias)
        b = h_param(&h, 1, (int64_t[]){s.out});
    else
        h_absent_in(&h);
    int y = h_out(&h, h_activation(&h), ndim, ndim == 2 ? y2 : y_dims);
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    if (bias) h_fill(&h, b, 3);
    h_prepare(&h, &attrs, act);
    h_run(&h, false);

    size_t n = h.tensors[y].count, out = (size_t)s.out, in = (size_t)s.in;
    double *xs = h_values(&h, x), *ws = weights_seen(&h, w);
    double *want = h_values(&h, y), *size = h_values(&h, y);
    product((size_t)s.rows, out, in, xs, in, 1, ws, 1, in, want, size);
    for (size_t i = 0; i < n; i++) {
        double v = bias ? h_get(&h, b, i % out) : 0;
        want[i] = activate(act, want[i] + v);
        size[i] += fabs(v) * (1 + bias_rounding(precision) / ((double)(s.in + 3) * 0x1p-24));
    }
    h_check_sums(&h, y, want, size, (double)s.in + 1, act == TR_ACT_NONE ? 0 : 2e-6, "y");
    tr_free(xs);
    tr_free(ws);
    tr_free(want);
    tr_free(size);
    h_close(&h);
}

static void test_forward(void **state)
{
    (void)state;
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (int act = TR_ACT_NONE; act <= TR_ACT_TANH; act++)
            check_forward(shapes[i], precisions[p], (act + (int)i) % 2 == 0, (tr_act)act, 2, 1);
}

static void test_more_dims_and_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        check_forward(shapes[i], TR_PRECISION_FP32, true, TR_ACT_NONE, 3, 1);
        check_forward(shapes[i], TR_PRECISION_FP32, true, TR_ACT_NONE, 2, 2);
    }
}

/* <dy, x W^T> = <dx, x> = <dW, W>: the products are each other's adjoints. */
static void check_backward(shape s, tr_precision precision, bool bias, int threads)
{
    const tr_linear_attrs attrs = {.out = s.out, .bias = bias};
    const int64_t xd[] = {s.rows, s.in}, yd[] = {s.rows, s.out}, wd[] = {s.out, s.in};
    const size_t rows = (size_t)s.rows, in = (size_t)s.in, out = (size_t)s.out;

    harness h = open_way("linear.grad_input", precision, true, threads);
    int dy = h_in(&h, h_activation(&h), 2, yd), w = h_param(&h, 2, wd);
    int dx = h_out(&h, h_activation(&h), 2, xd);
    h_fill(&h, dy, 4);
    h_fill(&h, w, 2);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *dys = h_values(&h, dy), *ws = weights_seen(&h, w);
    double *want = h_values(&h, dx), *size = h_values(&h, dx);
    product(rows, in, out, dys, out, 1, ws, in, 1, want, size);
    h_check_sums(&h, dx, want, size, (double)out, 0, "dx");
    double *dxs = h_values(&h, dx);
    tr_free(want);
    tr_free(size);
    h_close(&h);

    h = open_way("linear.grad_weight", precision, true, threads);
    int x = h_in(&h, h_activation(&h), 2, xd);
    dy = h_in(&h, h_activation(&h), 2, yd);
    int dw = h_grad(&h, 2, wd), db = -1;
    if (bias)
        db = h_grad(&h, 1, (int64_t[]){s.out});
    else
        h_absent_out(&h);
    h_fill(&h, x, 1);
    h_fill(&h, dy, 4);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *xs = h_values(&h, x);
    want = h_values(&h, dw);
    size = h_values(&h, dw);
    product(out, in, rows, dys, 1, out, xs, in, 1, want, size);
    h_check_sums(&h, dw, want, size, (double)rows, 0, "dweight");
    double *dws = h_values(&h, dw);
    if (precision == TR_PRECISION_FP32) {
        double a = h_dot(dxs, xs, rows * in), c = h_dot(dws, ws, out * in), magnitude = 0;
        for (size_t i = 0; i < rows * in; i++) magnitude += fabs(dxs[i] * xs[i]);
        if (fabs(a - c) > (double)(out + rows) * 0x1p-23 * (magnitude + 1))
            fail_msg("<dx, x> = %.9g, <dW, W> = %.9g", a, c);
    }
    /* The same again, added: twice the gradient. */
    h_run(&h, true);
    for (size_t i = 0; i < out * in; i++) {
        want[i] *= 2;
        size[i] *= 2;
    }
    h_check_sums(&h, dw, want, size, (double)rows + 1, 0, "dweight added");
    if (bias) {
        double *b = h_values(&h, db), *bs = h_values(&h, db);
        for (size_t c = 0; c < out; c++) {
            b[c] = bs[c] = 0;
            for (size_t r = 0; r < rows; r++) {
                b[c] += 2 * dys[r * out + c];
                bs[c] += 2 * fabs(dys[r * out + c]);
            }
        }
        h_check_sums(&h, db, b, bs, 256, 0, "dbias added");
        tr_free(b);
        tr_free(bs);
    }
    tr_free(want);
    tr_free(size);
    tr_free(xs);
    tr_free(ws);
    tr_free(dys);
    tr_free(dxs);
    tr_free(dws);
    h_close(&h);
}

static void test_backward(void **state)
{
    (void)state;
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        check_backward(shapes[i], precisions[p], true, 1);
        check_backward(shapes[i], precisions[p], false, 2);
    }
}

/* The gradient is the derivative of the forward sum: central differences of <dy, y> in double. */
static void test_finite_differences(void **state)
{
    (void)state;
    enum { ROWS = 3, IN = 5, OUT = 4 };
    const tr_linear_attrs attrs = {.out = OUT, .bias = true};
    harness h = h_open("linear.grad_weight", TR_PRECISION_FP32, true);
    int x = h_in(&h, TR_F32, 2, (int64_t[]){ROWS, IN});
    int dy = h_in(&h, TR_F32, 2, (int64_t[]){ROWS, OUT});
    int dw = h_grad(&h, 2, (int64_t[]){OUT, IN}), db = h_grad(&h, 1, (int64_t[]){OUT});
    h_fill(&h, x, 1);
    h_fill(&h, dy, 2);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *xs = h_values(&h, x), *dys = h_values(&h, dy);
    double w[OUT * IN + OUT] = {0};
    for (int i = 0; i < OUT * IN + OUT; i++) {
        double value[2];
        for (int sign = 0; sign < 2; sign++) {
            w[i] = sign ? 1e-3 : -1e-3;
            value[sign] = 0;
            for (int r = 0; r < ROWS; r++)
                for (int o = 0; o < OUT; o++) {
                    double y = w[OUT * IN + o];
                    for (int k = 0; k < IN; k++) y += w[o * IN + k] * xs[r * IN + k];
                    value[sign] += dys[r * OUT + o] * y;
                }
        }
        w[i] = 0;
        double got = i < OUT * IN ? h_get(&h, dw, (size_t)i) : h_get(&h, db, (size_t)i - OUT * IN);
        assert_true(fabs(got - (value[1] - value[0]) / 2e-3) < 1e-5);
    }
    tr_free(xs);
    tr_free(dys);
    h_close(&h);
}

/* NaN in an operand comes out of every fused activation where it comes out without one. */
static void check_nan(shape s, tr_precision precision, tr_act act, int operand, bool *nan)
{
    const tr_linear_attrs attrs = {.out = s.out, .bias = true};
    harness h = open_way("linear", precision, act <= TR_ACT_RELU, 1);
    h_in(&h, h_activation(&h), 2, (int64_t[]){s.rows, s.in});
    h_param(&h, 2, (int64_t[]){s.out, s.in});
    h_param(&h, 1, (int64_t[]){s.out});
    const int y = h_out(&h, h_activation(&h), 2, (int64_t[]){s.rows, s.out});
    for (int i = 0; i < 3; i++) h_fill(&h, h.op.in[i], (uint32_t)i + 1);
    h_put(&h, h.op.in[operand], h.tensors[h.op.in[operand]].count / 2, NAN);
    h_prepare(&h, &attrs, act);
    h_run(&h, false);
    size_t count = 0;
    for (size_t i = 0; i < h.tensors[y].count; i++) {
        const bool is = isnan(h_get(&h, y, i));
        if (act == TR_ACT_NONE) nan[i] = is;
        if (is != nan[i])
            fail_msg("element %zu of activation %d is %g, operand %d", i, act, h_get(&h, y, i),
                     operand);
        count += is;
    }
    assert_int_equal(count, operand == 0 ? s.out : s.rows);
    h_close(&h);
}

static void test_nan(void **state)
{
    (void)state;
    static bool nan[300 * 257];
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (int operand = 0; operand < 3; operand++)
            for (int act = TR_ACT_NONE; act <= TR_ACT_TANH; act++)
                check_nan(shapes[i], precisions[p], (tr_act)act, operand, nan);
}

/* float32 reads the master weights, as bf16 does that multiplies in float32; other bf16 has one
 * copy for both directions. */
static void test_packed(void **state)
{
    (void)state;
    const tr_linear_attrs attrs = {.out = 24};
    FOR_WAYS(p)
    {
        harness f = open_way("linear", precisions[p], true, 1);
        h_in(&f, h_activation(&f), 2, (int64_t[]){8, 40});
        int w = h_param(&f, 2, (int64_t[]){24, 40});
        h_absent_in(&f);
        h_out(&f, h_activation(&f), 2, (int64_t[]){8, 24});
        h_prepare(&f, &attrs, TR_ACT_NONE);
        harness b = open_way("linear.grad_input", precisions[p], true, 1);
        h_in(&b, h_activation(&b), 2, (int64_t[]){3, 24});
        h_param(&b, 2, (int64_t[]){24, 40});
        h_out(&b, h_activation(&b), 2, (int64_t[]){3, 40});
        h_prepare(&b, &attrs, TR_ACT_NONE);
        if (precisions[p] == TR_PRECISION_FP32 || !own_products) {
            assert_int_equal(f.kernel->npacked, 0);
            assert_int_equal(b.kernel->npacked, 0);
            assert_int_equal(f.kernel->rounds, precisions[p] == TR_PRECISION_FP32 ? 0 : 1 << 1);
            assert_int_equal(b.kernel->rounds, f.kernel->rounds);
        } else {
            const tr_packing *p0 = &f.kernel->packed[0], *p1 = &b.kernel->packed[0];
            assert_int_equal(f.kernel->npacked, 1);
            assert_int_equal(b.kernel->npacked, 1);
            assert_int_equal(p0->nbytes, 24 * 40 * 2);
            assert_int_equal(p0->param, w);
            assert_int_equal(p1->nbytes, p0->nbytes);
            assert_int_equal(p0->format_size, p1->format_size);
            assert_memory_equal(p0->format, p1->format, p0->format_size);
        }
        h_close(&f);
        h_close(&b);
    }
}

#ifndef TEST_MIRROR
/* One of the three products, over the shape. Returns the tensor it writes. */
static int open_product(harness *h, const char *op, shape s, tr_precision precision, int threads)
{
    const int64_t xd[] = {s.rows, s.in}, yd[] = {s.rows, s.out}, wd[] = {s.out, s.in};
    static tr_linear_attrs attrs;
    const bool forward = strcmp(op, "linear") == 0, weight = strcmp(op, "linear.grad_weight") == 0;
    attrs = (tr_linear_attrs){.out = s.out, .bias = weight};
    *h = open_way(op, precision, true, threads);
    h_fill(h, h_in(h, h_activation(h), 2, forward || weight ? xd : yd), 1);
    if (weight)
        h_fill(h, h_in(h, h_activation(h), 2, yd), 4);
    else
        h_fill(h, h_param(h, 2, wd), 2);
    if (forward) h_absent_in(h);
    const int out = weight ? h_grad(h, 2, wd) : h_out(h, h_activation(h), 2, forward ? yd : xd);
    if (weight) h_grad(h, 1, (int64_t[]){s.out});
    h_prepare(h, &attrs, TR_ACT_NONE);
    h_run(h, false);
    return out;
}

/* With AVX-512. oneDNN's older products, which AVX2 has, share out the sums themselves. */
static void test_same_bits_for_any_threads(void **state)
{
    (void)state;
    harness h = h_open("linear", TR_PRECISION_FP32, true);
    const bool wide = ((tr_cpu *)h.team)->isa >= TR_ISA_AVX512;
    h_close(&h);
    if (!wide) {
        print_message("[  SKIPPED ] bits for any number of threads: no AVX-512\n");
        return;
    }
    static const char *const ops[] = {"linear", "linear.grad_input", "linear.grad_weight"};
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes) * TR_COUNT(ops); i++) {
        const shape s = shapes[i / TR_COUNT(ops)];
        harness one, three;
        const int a = open_product(&one, ops[i % TR_COUNT(ops)], s, precisions[p], 1);
        const int b = open_product(&three, ops[i % TR_COUNT(ops)], s, precisions[p], 3);
        assert_memory_equal(one.data[a], three.data[b], one.tensors[a].nbytes);
        h_close(&one);
        h_close(&three);
    }
}
#endif

static void test_rebind(void **state)
{
    (void)state;
    const tr_linear_attrs attrs = {.out = 3};
    harness h = h_open("linear", TR_PRECISION_FP32, true);
    int x = h_in(&h, TR_F32, 2, (int64_t[]){2, 4});
    int w = h_param(&h, 2, (int64_t[]){3, 4});
    h_absent_in(&h);
    int y = h_out(&h, TR_F32, 2, (int64_t[]){2, 3});
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    float *other = tr_alloc(TR_MEM_OTHER, 8, sizeof *other);
    for (size_t i = 0; i < 8; i++) other[i] = -2 * (float)h_get(&h, x, i);
    double *before = h_values(&h, y);
    assert_int_equal(h.kernel->rebind(h.kernel, 0, other), TR_OK);
    h_run(&h, false);
    for (size_t i = 0; i < 6; i++) assert_true(h_get(&h, y, i) == -2 * before[i]);
    tr_free(other);
    tr_free(before);
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_more_dims_and_threads),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_rebind),
        cmocka_unit_test(test_nan),
#ifndef TEST_MIRROR
        cmocka_unit_test(test_same_bits_for_any_threads),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
