/* conv2d, its input and its weight gradient: against a plain convolution in double over odd channel
 * counts, groups, strides, dilation and uneven kernels; adjointness; accumulation; fused activation
 * and residual; threads. */
#include "tests/unit/cpu/ways.h"

typedef struct {
    int64_t n, in, out, h, w, groups;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} shape;

static const shape shapes[] = {
    {2, 1, 1, 5, 5, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 3, 16, 8, 8, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {1, 3, 5, 7, 9, 1, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {3, 5, 17, 6, 6, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {2, 17, 5, 7, 6, 1, {3, 1}, {1, 1}, {1, 0}, {1, 1}},
    {2, 16, 32, 8, 8, 1, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {2, 17, 17, 7, 7, 1, {2, 5}, {1, 2}, {0, 2}, {1, 1}},
    {2, 16, 16, 9, 9, 1, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {2, 5, 3, 10, 8, 1, {3, 2}, {2, 1}, {2, 1}, {2, 3}},
    {2, 6, 9, 6, 5, 3, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 32, 32, 6, 6, 2, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {2, 17, 17, 6, 6, 17, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 16, 32, 6, 6, 16, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 32, 32, 7, 7, 32, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {5, 64, 64, 8, 8, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {1, 3, 8, 17, 16, 1, {7, 7}, {2, 2}, {3, 3}, {1, 1}},
    {2, 16, 16, 9, 9, 1, {3, 3}, {3, 3}, {0, 0}, {2, 2}},
    {2, 15, 15, 6, 5, 3, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
};

static const tr_precision precisions[] = {TR_PRECISION_FP32, TR_PRECISION_BF16};

static int64_t extent(const shape *s, int axis)
{
    int64_t size = axis ? s->w : s->h;
    return (size + 2 * s->padding[axis] - s->dilation[axis] * (s->kernel[axis] - 1) - 1) /
               s->stride[axis] +
           1;
}

typedef struct {
    tr_conv2d_attrs attrs;
    int64_t x[4], w[4], y[4], bias[1];
    size_t nx, nw, ny;
    double depth; /* products in one output */
} dims;

static dims dims_of(const shape *s)
{
    dims d = {.attrs = {.out = s->out, .groups = s->groups},
              .x = {s->n, s->in, s->h, s->w},
              .w = {s->out, s->in / s->groups, s->kernel[0], s->kernel[1]},
              .y = {s->n, s->out, extent(s, 0), extent(s, 1)},
              .bias = {s->out}};
    d.nx = d.nw = d.ny = 1;
    for (int i = 0; i < 4; i++) {
        d.nx *= (size_t)d.x[i];
        d.nw *= (size_t)d.w[i];
        d.ny *= (size_t)d.y[i];
    }
    for (int i = 0; i < 2; i++) {
        d.attrs.kernel[i] = s->kernel[i];
        d.attrs.stride[i] = s->stride[i];
        d.attrs.padding[i] = s->padding[i];
        d.attrs.dilation[i] = s->dilation[i];
    }
    d.depth = (double)(d.w[1] * d.w[2] * d.w[3]);
    return d;
}

/* Every product of a convolution: the one of x, w and y that `to` names gets the other two's. */
typedef enum { TO_X, TO_W, TO_Y } target;

/* Inlined for each constant `to` and `absolute`. */
static inline __attribute__((always_inline)) void
products(const shape *s, const dims *d, target to, double *x, double *w, double *y, bool absolute)
{
    const int64_t in = d->w[1], per = s->out / s->groups, area = s->kernel[0] * s->kernel[1];
    const int64_t ny = s->n * s->out * d->y[2] * d->y[3];
    for (int64_t yi = 0; yi < ny; yi++) {
        const int64_t ow = yi % d->y[3], oh = yi / d->y[3] % d->y[2];
        const int64_t o = yi / (d->y[2] * d->y[3]) % s->out, n = yi / (d->y[2] * d->y[3] * s->out);
        const int64_t top = oh * s->stride[0] - s->padding[0];
        const int64_t left = ow * s->stride[1] - s->padding[1];
        for (int64_t c = 0; c < in; c++) {
            double *plane = x + (n * s->in + o / per * in + c) * s->h * s->w;
            double *taps = w + (o * in + c) * area;
            for (int64_t kh = 0; kh < s->kernel[0]; kh++) {
                const int64_t ih = top + kh * s->dilation[0];
                if (ih < 0 || ih >= s->h) continue;
                for (int64_t kw = 0; kw < s->kernel[1]; kw++) {
                    const int64_t iw = left + kw * s->dilation[1];
                    if (iw < 0 || iw >= s->w) continue;
                    double *xp = plane + ih * s->w + iw, *wp = taps + kh * s->kernel[1] + kw;
                    const double p = to == TO_X   ? *wp * y[yi]
                                     : to == TO_W ? *xp * y[yi]
                                                  : *xp * *wp;
                    *(to == TO_X ? xp : to == TO_W ? wp : y + yi) += absolute ? fabs(p) : p;
                }
            }
        }
    }
}

static void convolve(const shape *s, const dims *d, target to, double *x, double *w, double *y,
                     bool absolute)
{
    switch (to) {
    case TO_X:
        memset(x, 0, d->nx * sizeof *x);
        absolute ? products(s, d, TO_X, x, w, y, true) : products(s, d, TO_X, x, w, y, false);
        break;
    case TO_W:
        memset(w, 0, d->nw * sizeof *w);
        absolute ? products(s, d, TO_W, x, w, y, true) : products(s, d, TO_W, x, w, y, false);
        break;
    case TO_Y:
        memset(y, 0, d->ny * sizeof *y);
        absolute ? products(s, d, TO_Y, x, w, y, true) : products(s, d, TO_Y, x, w, y, false);
        break;
    }
}

static bool has(tr_precision precision)
{
    harness h = h_open("conv2d", TR_PRECISION_FP32, true);
    bool ok =
        tr_cpu_backend.kernels->unsupported(h.ctx, h.op.def, tr_precision_dtype(precision)) == NULL;
    h_close(&h);
    if (!ok) print_message("[  SKIPPED ] bf16: this CPU has no kernels for it\n");
    return ok;
}

/* Weights as the kernel reads them. */
static double *weights_seen(const harness *h, int id)
{
    double *w = h_values(h, id);
    for (size_t i = 0; h->graph.precision == TR_PRECISION_BF16 && i < h->tensors[id].count; i++)
        w[i] = tr_bf16_to_f32(tr_f32_to_bf16((float)w[i]));
    return w;
}

static void check_forward(const shape *s, tr_precision precision, bool bias, bool residual,
                          tr_act act, int threads)
{
    const dims d = dims_of(s);
    harness h = open_way("conv2d", precision, !residual && act <= TR_ACT_RELU, threads);
    int x = h_in(&h, h_activation(&h), 4, d.x), w = h_param(&h, 4, d.w), b = -1, r = -1;
    if (bias)
        b = h_param(&h, 1, d.bias);
    else
        h_absent_in(&h);
    if (residual)
        r = h_in(&h, h_activation(&h), 4, d.y);
    else
        h_absent_in(&h);
    int y = h_out(&h, h_activation(&h), 4, d.y);
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    if (bias) h_fill(&h, b, 3);
    if (residual) h_fill(&h, r, 4);
    h_prepare(&h, &d.attrs, act);
    h_run(&h, false);

    double *xs = h_values(&h, x), *ws = weights_seen(&h, w);
    double *want = h_values(&h, y), *size = h_values(&h, y);
    convolve(s, &d, TO_Y, xs, ws, want, false);
    convolve(s, &d, TO_Y, xs, ws, size, true);
    for (size_t i = 0; i < d.ny; i++) {
        size_t o = i / (size_t)(d.y[2] * d.y[3]) % (size_t)s->out;
        double bv = bias ? h_get(&h, b, o) : 0, rv = residual ? h_get(&h, r, i) : 0;
        want[i] = activate(act, want[i] + bv + rv);
        size[i] += fabs(bv) + fabs(rv);
    }
    h_check_sums(&h, y, want, size, d.depth + 2, act == TR_ACT_NONE ? 0 : 2e-6, "y");
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
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        check_forward(&shapes[i], precisions[p], false, false, TR_ACT_NONE, 1);
        check_forward(&shapes[i], precisions[p], true, false, TR_ACT_RELU, 2);
        check_forward(&shapes[i], precisions[p], i % 2, true, TR_ACT_RELU, 1);
    }
}

static void test_activations(void **state)
{
    (void)state;
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i += 3)
        for (int act = TR_ACT_GELU; act <= TR_ACT_TANH; act++)
            check_forward(&shapes[i], precisions[p], true, act % 2, (tr_act)act, 1);
}

/* NaN in an operand (0 x, 1 weight, 2 bias, 3 residual) comes out of every fused activation where
 * it comes out without one. */
static void check_nan(const shape *s, tr_precision precision, bool train, bool residual, tr_act act,
                      int operand, bool *nan)
{
    const dims d = dims_of(s);
    harness h = open_way("conv2d", precision, train, 1);
    h_in(&h, h_activation(&h), 4, d.x);
    h_param(&h, 4, d.w);
    h_param(&h, 1, d.bias);
    if (residual)
        h_in(&h, h_activation(&h), 4, d.y);
    else
        h_absent_in(&h);
    const int y = h_out(&h, h_activation(&h), 4, d.y);
    for (int i = 0; i < (residual ? 4 : 3); i++) h_fill(&h, h.op.in[i], (uint32_t)i + 1);
    h_put(&h, h.op.in[operand], h.tensors[h.op.in[operand]].count / 2, NAN);
    h_prepare(&h, &d.attrs, act);
    h_run(&h, false);
    size_t count = 0;
    for (size_t i = 0; i < d.ny; i++) {
        const bool is = isnan(h_get(&h, y, i));
        if (act == TR_ACT_NONE) nan[i] = is;
        if (is != nan[i])
            fail_msg("element %zu of activation %d is %g, operand %d, %s", i, act, h_get(&h, y, i),
                     operand, h.kernel->impl);
        count += is;
    }
    if (operand > 0) assert_true(count > 0); /* a stride may step over an element of x */
    h_close(&h);
}

static void test_nan(void **state)
{
    (void)state;
    bool nan[65536];
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (int operand = 0; operand < 4; operand++)
            for (int act = TR_ACT_NONE; act <= TR_ACT_TANH; act++) {
                const bool train = act <= TR_ACT_RELU;
                assert_true(dims_of(&shapes[i]).ny <= TR_COUNT(nan));
                check_nan(&shapes[i], precisions[p], false, operand == 3, (tr_act)act, operand,
                          nan);
                if (train && operand < 3)
                    check_nan(&shapes[i], precisions[p], true, false, (tr_act)act, operand, nan);
            }
}

static double *check_grad_input(const shape *s, tr_precision precision, int threads)
{
    const dims d = dims_of(s);
    harness h = open_way("conv2d.grad_input", precision, true, threads);
    int dy = h_in(&h, h_activation(&h), 4, d.y), w = h_param(&h, 4, d.w);
    int dx = h_out(&h, h_activation(&h), 4, d.x);
    h_fill(&h, dy, 4);
    h_fill(&h, w, 2);
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *dys = h_values(&h, dy), *ws = weights_seen(&h, w);
    double *want = h_values(&h, dx), *size = h_values(&h, dx), *got = h_values(&h, dx);
    convolve(s, &d, TO_X, want, ws, dys, false);
    convolve(s, &d, TO_X, size, ws, dys, true);
    h_check_sums(&h, dx, want, size, (double)(s->out * d.w[2] * d.w[3]), 0, "dx");
    tr_free(dys);
    tr_free(ws);
    tr_free(want);
    tr_free(size);
    h_close(&h);
    return got;
}

/* Gradients of 16-bit operands may be rounded to bfloat16 on the way by the CUDA backend: |want| *
 * 2^-8, put as what the bound counts in. */
static void check_weight_gradient(const harness *h, int id, const double *want, double *size,
                                  double terms, const char *what)
{
#ifdef TEST_MIRROR
    for (size_t i = 0; h->graph.precision != TR_PRECISION_FP32 && i < h->tensors[id].count; i++)
        size[i] += fabs(want[i]) * 0x1p-8 / ((terms + 2) * 0x1p-24);
#endif
    h_check_sums(h, id, want, size, terms, 0, what);
}

static void check_backward(const shape *s, tr_precision precision, bool bias, int threads)
{
    const dims d = dims_of(s);
    double *dxs = check_grad_input(s, precision, threads);
    harness h = open_way("conv2d.grad_weight", precision, true, threads);
    int x = h_in(&h, h_activation(&h), 4, d.x), dy = h_in(&h, h_activation(&h), 4, d.y);
    int dw = h_grad(&h, 4, d.w), db = -1, w = h_tensor(&h, TR_ROLE_PARAM, TR_F32, 4, d.w);
    if (bias)
        db = h_grad(&h, 1, d.bias);
    else
        h_absent_out(&h);
    h_fill(&h, x, 1);
    h_fill(&h, dy, 4);
    h_fill(&h, w, 2);
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *xs = h_values(&h, x), *dys = h_values(&h, dy), *ws = h_values(&h, w);
    double *want = h_values(&h, dw), *size = h_values(&h, dw), *dws = h_values(&h, dw);
    double terms = (double)(s->n * d.y[2] * d.y[3]);
    convolve(s, &d, TO_W, xs, want, dys, false);
    convolve(s, &d, TO_W, xs, size, dys, true);
    check_weight_gradient(&h, dw, want, size, terms, "dweight");
    if (precision == TR_PRECISION_FP32) { /* <dx, x> = <dW, W> */
        double a = h_dot(dxs, xs, d.nx), c = h_dot(dws, ws, d.nw), magnitude = 0;
        for (size_t i = 0; i < d.nx; i++) magnitude += fabs(dxs[i] * xs[i]);
        if (fabs(a - c) > (d.depth + terms) * 0x1p-23 * (magnitude + 1))
            fail_msg("<dx, x> = %.9g, <dW, W> = %.9g", a, c);
    }
    h_run(&h, true);
    for (size_t i = 0; i < d.nw; i++) {
        want[i] *= 2;
        size[i] *= 2;
    }
    check_weight_gradient(&h, dw, want, size, terms + 1, "dweight added");
    size_t area = (size_t)(d.y[2] * d.y[3]);
    for (size_t o = 0; bias && o < (size_t)s->out; o++) {
        double sum = 0, absolute = 0;
        for (size_t i = 0; i < d.ny; i++)
            if (i / area % (size_t)s->out == o) {
                sum += 2 * dys[i];
                absolute += 2 * fabs(dys[i]);
            }
        assert_true(fabs(h_get(&h, db, o) - sum) <= 256 * 0x1p-24 * absolute + 1e-7);
    }
    tr_free(xs);
    tr_free(ws);
    tr_free(dys);
    tr_free(dws);
    tr_free(dxs);
    tr_free(want);
    tr_free(size);
    h_close(&h);
}

static void test_backward(void **state)
{
    (void)state;
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        check_backward(&shapes[i], precisions[p], true, 1);
        check_backward(&shapes[i], precisions[p], false, 2);
    }
}

/* Of several blocks of samples, where products are made of float32 (onednn/wide.c): equal ones; a
 * prime number of samples; gradients larger than what a block of images would have. */
static void test_blocks(void **state)
{
    (void)state;
    static const shape blocks[] = {{6, 8, 8, 80, 80, 1, {1, 3}, {1, 1}, {0, 1}, {1, 1}},
                                   {61, 8, 8, 40, 40, 1, {3, 1}, {1, 1}, {1, 0}, {1, 1}},
                                   {61, 24, 40, 24, 24, 1, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
                                   {80, 4100, 65, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}}};
    FOR_WAYS(p)
    for (size_t i = 0; i < TR_COUNT(blocks); i++) {
        if (precisions[p] != TR_PRECISION_BF16) continue;
        check_forward(&blocks[i], precisions[p], true, false, TR_ACT_RELU, 2);
        check_backward(&blocks[i], precisions[p], true, 2);
    }
}

/* The derivative of <dy, y> by central differences in double: the loops above are a convolution and
 * its gradients. */
static void test_finite_differences(void **state)
{
    (void)state;
    const shape *s = &shapes[8];
    const dims d = dims_of(s);
    harness h = h_open("conv2d.grad_weight", TR_PRECISION_FP32, true);
    int x = h_in(&h, TR_F32, 4, d.x), dy = h_in(&h, TR_F32, 4, d.y), dw = h_grad(&h, 4, d.w);
    h_absent_out(&h);
    h_fill(&h, x, 1);
    h_fill(&h, dy, 2);
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *xs = h_values(&h, x), *dys = h_values(&h, dy), *y = h_values(&h, dy);
    double *ws = h_values(&h, dw);
    memset(ws, 0, d.nw * sizeof *ws);
    for (size_t i = 0; i < d.nw; i++) {
        double value[2];
        for (int sign = 0; sign < 2; sign++) {
            ws[i] = sign ? 1e-3 : -1e-3;
            convolve(s, &d, TO_Y, xs, ws, y, false);
            value[sign] = h_dot(dys, y, d.ny);
        }
        ws[i] = 0;
        assert_true(fabs(h_get(&h, dw, i) - (value[1] - value[0]) / 2e-3) < 1e-4);
    }
    tr_free(xs);
    tr_free(dys);
    tr_free(ws);
    tr_free(y);
    h_close(&h);
}

/* The workspace that a kernel asks for is all that it writes: strided 1x1 convolutions of few
 * channels and large images, where oneDNN's own choice writes past it. */
static void test_stays_in_workspace(void **state)
{
    (void)state;
    enum { GUARD = 1 << 16 };
    for (int64_t in = 1; in <= 36; in += 5) {
        const shape s = {2, in, 8, 96, 96, 1, {1, 1}, {2, 2}, {0, 0}, {1, 1}};
        const dims d = dims_of(&s);
        harness h = h_open("conv2d.grad_weight", TR_PRECISION_FP32, true);
        int x = h_in(&h, TR_F32, 4, d.x), dy = h_in(&h, TR_F32, 4, d.y), dw = h_grad(&h, 4, d.w);
        h_absent_out(&h);
        h_fill(&h, x, 1);
        h_fill(&h, dy, 2);
        h_prepare(&h, &d.attrs, TR_ACT_NONE);
        tr_binding b = h.binding;
        unsigned char *memory = tr_alloc(TR_MEM_WORKSPACE, h.kernel->workspace + GUARD, 1);
        memset(memory, 0xab, h.kernel->workspace + GUARD);
        b.workspace = memory;
        assert_int_equal(h.kernel->bind(h.kernel, &b), TR_OK);
        assert_int_equal(h.kernel->run(h.kernel, &h.run), TR_OK);
        for (size_t i = 0; i < GUARD; i++)
            if (memory[h.kernel->workspace + i] != 0xab)
                fail_msg("%d channels: %s wrote byte %zu past its workspace", (int)in,
                         h.kernel->impl, i);
        double *xs = h_values(&h, x), *dys = h_values(&h, dy);
        double *want = h_values(&h, dw), *size = h_values(&h, dw);
        convolve(&s, &d, TO_W, xs, want, dys, false);
        convolve(&s, &d, TO_W, xs, size, dys, true);
        h_check_sums(&h, dw, want, size, (double)(s.n * d.y[2] * d.y[3]), 0, "dweight");
        tr_free(memory);
        tr_free(xs);
        tr_free(dys);
        tr_free(want);
        tr_free(size);
        h_close(&h);
    }
}

/* One packed copy serves plans of any batch size and mode where the layouts agree; a changed weight
 * is seen after the next pack and not before. */
static void test_packed(void **state)
{
    (void)state;
    const shape *s = &shapes[14];
    const dims d = dims_of(s);
    harness h = h_open("conv2d", TR_PRECISION_FP32, true);
    int x = h_in(&h, TR_F32, 4, d.x), w = h_param(&h, 4, d.w);
    h_absent_in(&h);
    h_absent_in(&h);
    int y = h_out(&h, TR_F32, 4, d.y);
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    assert_int_equal(h.kernel->npacked, 1);
    assert_int_equal(h.kernel->packed[0].param, w);
    assert_true(h.kernel->packed[0].nbytes >= d.nw * sizeof(float));
    h_run(&h, false);
    double *before = h_values(&h, y);
    for (size_t i = 0; i < d.nw; i++) h_put(&h, w, i, 2 * h_get(&h, w, i));
    assert_int_equal(h.kernel->run(h.kernel, &h.run), TR_OK);
    for (size_t i = 0; i < d.ny; i++) assert_true(h_get(&h, y, i) == before[i]);
    h_run(&h, false);
    for (size_t i = 0; i < d.ny; i++) assert_true(h_get(&h, y, i) == 2 * before[i]);
    tr_free(before);
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_stays_in_workspace),
        cmocka_unit_test(test_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
