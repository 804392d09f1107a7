/* Max, average and global average pooling and their gradients, against plain loops in double; a max
 * pooling's gradient is the adjoint of the selection it made. */
#include "tests/unit/cpu/op_harness.h"

typedef struct {
    int64_t n, c, h, w;
    int64_t kernel[2], stride[2], padding[2];
} shape;

static const shape shapes[] = {
    {1, 1, 4, 4, {2, 2}, {2, 2}, {0, 0}},       {2, 3, 8, 8, {3, 3}, {2, 2}, {1, 1}},
    {2, 5, 7, 9, {3, 2}, {1, 2}, {1, 0}},       {3, 17, 6, 6, {2, 3}, {2, 1}, {1, 1}},
    {1, 64, 8, 8, {2, 2}, {2, 2}, {0, 0}},      {2, 70, 5, 5, {3, 3}, {1, 1}, {1, 1}},
    {1, 130, 6, 5, {3, 3}, {3, 3}, {0, 0}},     {2, 5, 7, 5, {2, 2}, {2, 2}, {0, 0}},
    {1, 3, 34, 18, {17, 17}, {17, 17}, {0, 0}}, {1, 3, 20, 20, {16, 16}, {2, 2}, {0, 0}},
    {1, 2, 20, 18, {17, 16}, {1, 1}, {4, 3}},
};

static const tr_precision precisions[] = {TR_PRECISION_FP32, TR_PRECISION_BF16};

typedef struct {
    tr_pool2d_attrs attrs;
    int64_t x[4], y[4];
    tr_dtype indices;
} dims;

static dims dims_of(const shape *s, bool include)
{
    dims d = {.attrs = {.count_include_pad = include},
              .x = {s->n, s->c, s->h, s->w},
              .y = {s->n, s->c},
              .indices = s->kernel[0] * s->kernel[1] < 256 ? TR_U8 : TR_I32};
    for (int i = 0; i < 2; i++) {
        d.attrs.kernel[i] = s->kernel[i];
        d.attrs.stride[i] = s->stride[i];
        d.attrs.padding[i] = s->padding[i];
        d.y[2 + i] = (d.x[2 + i] + 2 * s->padding[i] - s->kernel[i]) / s->stride[i] + 1;
    }
    return d;
}

/* Logical index of place `k` of the window of output `yi`; -1 outside the image. */
static int64_t place(const shape *s, const dims *d, int64_t yi, int64_t k)
{
    int64_t ow = yi % d->y[3], oh = yi / d->y[3] % d->y[2], nc = yi / (d->y[2] * d->y[3]);
    int64_t ih = oh * s->stride[0] - s->padding[0] + k / s->kernel[1];
    int64_t iw = ow * s->stride[1] - s->padding[1] + k % s->kernel[1];
    if (ih < 0 || iw < 0 || ih >= s->h || iw >= s->w) return -1;
    return (nc * s->h + ih) * s->w + iw;
}

static bool has(tr_precision precision)
{
    harness h = h_open("maxpool2d", TR_PRECISION_FP32, true);
    bool ok =
        tr_cpu_backend.kernels->unsupported(h.ctx, h.op.def, tr_precision_dtype(precision)) == NULL;
    h_close(&h);
    if (!ok) print_message("[  SKIPPED ] bf16: this CPU has no kernels for it\n");
    return ok;
}

static void check_max(const shape *s, tr_precision precision, int threads)
{
    const dims d = dims_of(s, false);
    harness h = h_open_with("maxpool2d", precision, true, threads);
    int x = h_in(&h, h_activation(&h), 4, d.x);
    int y = h_out(&h, h_activation(&h), 4, d.y), at = h_out(&h, d.indices, 4, d.y);
    h_fill(&h, x, 1);
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    h_run(&h, false);

    harness b = h_open_with("maxpool2d.grad", precision, true, threads);
    int dy = h_in(&b, h_activation(&b), 4, d.y), bat = h_in(&b, d.indices, 4, d.y);
    int dx = h_out(&b, h_activation(&b), 4, d.x);
    h_fill(&b, dy, 2);
    for (size_t i = 0; i < b.tensors[bat].count; i++) h_put(&b, bat, i, h_get(&h, at, i));
    h_prepare(&b, &d.attrs, TR_ACT_NONE);
    h_run(&b, false);

    double *want = h_values(&b, dx), *size = h_values(&b, dx);
    memset(want, 0, b.tensors[dx].count * sizeof *want);
    memset(size, 0, b.tensors[dx].count * sizeof *size);
    for (int64_t i = 0; i < (int64_t)h.tensors[y].count; i++) {
        int64_t first = -1;
        for (int64_t k = 0; k < s->kernel[0] * s->kernel[1]; k++) {
            int64_t xi = place(s, &d, i, k);
            if (xi < 0) continue;
            double v = h_get(&h, x, (size_t)xi);
            if (first < 0 || v > h_get(&h, x, (size_t)place(s, &d, i, first))) first = k;
        }
        int64_t xi = place(s, &d, i, first);
        assert_true(h_get(&h, y, (size_t)i) == h_get(&h, x, (size_t)xi));
        assert_int_equal((int64_t)h_get(&h, at, (size_t)i), first);
        want[xi] += h_get(&b, dy, (size_t)i);
        size[xi] += fabs(h_get(&b, dy, (size_t)i));
    }
    h_check_sums(&b, dx, want, size, (double)(s->kernel[0] * s->kernel[1]), 0, "dx");
    tr_free(want);
    tr_free(size);
    h_close(&b);
    h_close(&h);
}

static void test_max(void **state)
{
    (void)state;
    for (size_t p = 0; p < TR_COUNT(precisions); p++)
        for (size_t i = 0; has(precisions[p]) && i < TR_COUNT(shapes); i++) {
            check_max(&shapes[i], precisions[p], 1);
            check_max(&shapes[i], precisions[p], 2);
        }
}

/* Without indices (evaluation); NaN and -inf come through. */
static void test_max_values(void **state)
{
    (void)state;
    const shape s = {1, 3, 4, 4, {2, 2}, {2, 2}, {0, 0}};
    const dims d = dims_of(&s, false);
    harness h = h_open("maxpool2d", TR_PRECISION_FP32, false);
    int x = h_in(&h, TR_F32, 4, d.x), y = h_out(&h, TR_F32, 4, d.y);
    h_absent_out(&h);
    h_fill(&h, x, 1);
    for (int i = 0; i < 2; i++) { /* the first window of channel 0 */
        h_put(&h, x, (size_t)i, -INFINITY);
        h_put(&h, x, (size_t)i + 4, -INFINITY);
    }
    h_put(&h, x, 2, NAN); /* in the second */
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    h_run(&h, false);
    assert_true(h_get(&h, y, 0) == -INFINITY);
    assert_true(isnan(h_get(&h, y, 1)));
    for (size_t i = 2; i < h.tensors[y].count; i++) assert_true(isfinite(h_get(&h, y, i)));
    h_close(&h);
}

static void check_average(const shape *s, const char *op, bool global, bool include,
                          tr_precision precision, int threads)
{
    char name[64];
    const dims d = dims_of(s, include);
    const void *attrs = global ? NULL : &d.attrs;
    harness h = h_open_with(op, precision, true, threads);
    int x = h_in(&h, h_activation(&h), 4, d.x), y = h_out(&h, h_activation(&h), 4, d.y);
    h_fill(&h, x, 1);
    h_prepare(&h, attrs, TR_ACT_NONE);
    h_run(&h, false);
    snprintf(name, sizeof name, "%s.grad", op);
    harness b = h_open_with(name, precision, true, threads);
    int dy = h_in(&b, h_activation(&b), 4, d.y), dx = h_out(&b, h_activation(&b), 4, d.x);
    h_fill(&b, dy, 2);
    h_prepare(&b, attrs, TR_ACT_NONE);
    h_run(&b, false);

    double *want_y = h_values(&h, y), *size_y = h_values(&h, y);
    double *want = h_values(&b, dx), *size = h_values(&b, dx);
    memset(want, 0, b.tensors[dx].count * sizeof *want);
    memset(size, 0, b.tensors[dx].count * sizeof *size);
    const int64_t places = s->kernel[0] * s->kernel[1];
    for (int64_t i = 0; i < (int64_t)h.tensors[y].count; i++) {
        double n = 0, sum = 0, absolute = 0;
        for (int64_t k = 0; k < places; k++) {
            int64_t xi = place(s, &d, i, k);
            if (xi < 0) continue;
            n++;
            sum += h_get(&h, x, (size_t)xi);
            absolute += fabs(h_get(&h, x, (size_t)xi));
        }
        if (include) n = (double)places;
        want_y[i] = sum / n;
        size_y[i] = absolute / n;
        for (int64_t k = 0; k < places; k++) {
            int64_t xi = place(s, &d, i, k);
            if (xi < 0) continue;
            want[xi] += h_get(&b, dy, (size_t)i) / n;
            size[xi] += fabs(h_get(&b, dy, (size_t)i)) / n;
        }
    }
    h_check_sums(&h, y, want_y, size_y, (double)places + 1, 0, "y");
    h_check_sums(&b, dx, want, size, (double)places + 2, 0, "dx");
    tr_free(want_y);
    tr_free(size_y);
    tr_free(want);
    tr_free(size);
    h_close(&b);
    h_close(&h);
}

static void test_average(void **state)
{
    (void)state;
    for (size_t p = 0; p < TR_COUNT(precisions); p++)
        for (size_t i = 0; has(precisions[p]) && i < TR_COUNT(shapes); i++)
            for (int include = 0; include < 2; include++)
                check_average(&shapes[i], "avgpool2d", false, include, precisions[p], 1 + include);
}

static void test_global_average(void **state)
{
    (void)state;
    static const shape global[] = {{2, 3, 8, 8, {8, 8}, {1, 1}, {0, 0}},
                                   {3, 64, 8, 8, {8, 8}, {1, 1}, {0, 0}},
                                   {1, 5, 1, 1, {1, 1}, {1, 1}, {0, 0}},
                                   {2, 17, 3, 7, {3, 7}, {1, 1}, {0, 0}}};
    for (size_t p = 0; p < TR_COUNT(precisions); p++)
        for (size_t i = 0; has(precisions[p]) && i < TR_COUNT(global); i++) {
            check_average(&global[i], "global_avgpool", true, false, precisions[p], 1);
            check_average(&global[i], "global_avgpool", true, false, precisions[p], 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max),
        cmocka_unit_test(test_max_values),
        cmocka_unit_test(test_average),
        cmocka_unit_test(test_global_average),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
