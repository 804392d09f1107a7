/* Layer normalization and softmax in every layout of rows (a few lanes to several passes of a
 * block), on pointers that are not aligned, with no rows at all, and the same bits twice. Against
 * plain C in float64. */
#include "loops_harness.h"

#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/softmax.h"

static void layernorm_rows(tr_cuda *cuda, tr_dtype type, size_t rows, size_t D, size_t skew,
                           size_t keep)
{
    const double at = type == TR_F32 ? 30 : 3, eps = 1e-5;
    array x = array_of(cuda, type, rows * D, skew, 1, at - 2, at + 2);
    array w = array_of(cuda, TR_F32, D, skew, 2, -1, 1),
          c = array_of(cuda, TR_F32, D, skew, 3, -1, 1);
    array y = array_like(&x), st = array_of(cuda, TR_F32, 2 * rows, 0, 0, 0, 1);
    double *want = calloc(rows * D + 1, sizeof *want),
           *stats = malloc((2 * rows + 1) * sizeof *stats);
    for (size_t r = 0; r < rows; r++) {
        double mean = 0, var = 0;
        for (size_t i = 0; i < D; i++) mean += x.v[r * D + i] / (double)D;
        for (size_t i = 0; i < D; i++) var += pow(x.v[r * D + i] - mean, 2) / (double)D;
        stats[2 * r] = mean;
        stats[2 * r + 1] = 1 / sqrt(var + eps);
        for (size_t i = 0; i < D; i++)
            want[r * D + i] = (x.v[r * D + i] - mean) * stats[2 * r + 1] * w.v[i] + c.v[i];
    }
    assert_ok(tr_cuda_layernorm_run(type, x.at, w.at, c.at, eps, true, y.at, st.at, rows, D, keep,
                                    cuda->stream));
    /* the mean is rounded to float32; what that is off by comes out times rstd */
    double steepest = 0;
    for (size_t r = 0; r < rows; r++) steepest = fmax(steepest, stats[2 * r + 1]);
    close_to(&y, want, 4e-6 + 0x1p-24 * at * steepest, "layernorm", D);
    receive(&st);
    for (size_t r = 0; r < rows; r++) {
        assert_true(fabs(st.v[2 * r] - stats[2 * r]) <= 0x1p-23 * at);
        assert_true(fabs(st.v[2 * r + 1] / stats[2 * r + 1] - 1) <= 1e-6);
    }
    /* the same bits again, and without statistics */
    array again = array_like(&x);
    assert_ok(tr_cuda_layernorm_run(type, x.at, w.at, c.at, eps, true, again.at, NULL, rows, D,
                                    keep, cuda->stream));
    receive(&again);
    assert_memory_equal(again.v, y.v, rows * D * sizeof *y.v);
    drop(&again);
    drop(&x);
    drop(&w);
    drop(&c);
    drop(&y);
    drop(&st);
    free(want);
    free(stats);
}

static void test_layernorm(void **state)
{
    (void)state;
    over_rows(layernorm_rows, tr_cuda_layernorm_ready);
}

static void layernorm_grad_rows(tr_cuda *cuda, tr_dtype type, size_t rows, size_t D, size_t skew,
                                size_t keep)
{
    array x = array_of(cuda, type, rows * D, skew, 1, -2, 2),
          dy = array_of(cuda, type, rows * D, skew, 2, -1, 1);
    array w = array_of(cuda, TR_F32, D, skew, 3, -1, 1),
          st = array_of(cuda, TR_F32, 2 * rows, 0, 4, 0.3, 1);
    array dx = array_like(&x), dw = array_of(cuda, TR_F32, D, skew, 5, -1, 1), db = array_like(&dw);
    array part =
        array_of(cuda, TR_F32, tr_cuda_layernorm_grad_workspace(type, rows, D) / sizeof(float), 0,
                 6, 1e30, 2e30);
    double *want = calloc(rows * D + 1, sizeof *want);
    double *want_w = calloc(D, sizeof *want_w), *want_b = calloc(D, sizeof *want_b);
    for (size_t r = 0; r < rows; r++) {
        const double mean = st.v[2 * r], rstd = st.v[2 * r + 1], *g = dy.v + r * D,
                     *v = x.v + r * D;
        double sum = 0, sum_x = 0;
        for (size_t i = 0; i < D; i++) {
            sum += g[i] * w.v[i] / (double)D;
            sum_x += g[i] * w.v[i] * (v[i] - mean) * rstd / (double)D;
            want_w[i] += g[i] * (v[i] - mean) * rstd;
            want_b[i] += g[i];
        }
        for (size_t i = 0; i < D; i++)
            want[r * D + i] = rstd * (g[i] * w.v[i] - sum - (v[i] - mean) * rstd * sum_x);
    }
    tr_cuda_layernorm_grad_args a = {.dy = dy.at,
                                     .x = x.at,
                                     .weight = w.at,
                                     .stats = st.at,
                                     .dx = dx.at,
                                     .dweight = dw.at,
                                     .dbias = db.at,
                                     .rows = rows,
                                     .D = D,
                                     .partial = part.at,
                                     .keep = keep};
    assert_ok(tr_cuda_layernorm_grad_run(type, &a, cuda->stream));
    if (rows > 0) { /* without rows parameter gradients are left as they are */
        const double room = 2e-6 * (1 + sqrt((double)rows));
        close_to(&dx, want, 4e-6, "dx", D);
        close_to(&dw, want_w, room, "dweight", D);
        close_to(&db, want_b, room, "dbias", D);
        double *once = malloc(D * sizeof *once);
        memcpy(once, dw.v, D * sizeof *once);
        a.accumulate = true;
        a.dx = NULL;
        a.dbias = NULL;
        assert_ok(tr_cuda_layernorm_grad_run(type, &a, cuda->stream));
        receive(&dw);
        for (size_t i = 0; i < D; i++) assert_true(dw.v[i] == 2 * once[i]);
        /* in place of dy */
        array first = dx;
        receive(&first);
        a.dx = dy.at;
        a.dweight = NULL;
        assert_ok(tr_cuda_layernorm_grad_run(type, &a, cuda->stream));
        receive(&dy);
        assert_memory_equal(dy.v, first.v, rows * D * sizeof *dy.v);
        free(once);
    }
    drop(&x);
    drop(&dy);
    drop(&w);
    drop(&st);
    drop(&dx);
    drop(&dw);
    drop(&db);
    drop(&part);
    free(want);
    free(want_w);
    free(want_b);
}

static void test_layernorm_grad(void **state)
{
    (void)state;
    over_rows(layernorm_grad_rows, tr_cuda_layernorm_grad_ready);
    /* more rows than blocks */
    tr_cuda *cuda = open_with(false);
    layernorm_grad_rows(cuda, TR_BF16, 4200, 256, 0, 0);
    layernorm_grad_rows(cuda, TR_F32, 2100, 320, 0, 0);
    layernorm_grad_rows(cuda, TR_F16, 37, 8200, 0, 0);
    layernorm_grad_rows(cuda, TR_F32, 700, 3, 0, 0); /* fewer */
    b->close(cuda);
}

static void softmax_rows(tr_cuda *cuda, tr_dtype type, size_t rows, size_t D, size_t skew,
                         size_t keep)
{
    array x = array_of(cuda, type, rows * D, skew, 1, -8, 8), y = array_like(&x);
    double *want = calloc(rows * D + 1, sizeof *want);
    if (rows > 1) x.v[D - 1] = NAN;
    if (rows > 2) x.v[D] = INFINITY;
    if (rows > 3)
        for (size_t i = 0; i < D; i++) x.v[2 * D + i] = -INFINITY;
    if (rows > 4) x.v[3 * D] = -INFINITY;
    send(&x);
    for (size_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < D; i++) top = fmax(top, x.v[r * D + i]);
        for (size_t i = 0; i < D; i++) sum += exp(x.v[r * D + i] - top);
        for (size_t i = 0; i < D; i++) want[r * D + i] = exp(x.v[r * D + i] - top) / sum;
    }
    assert_ok(tr_cuda_softmax_run(type, x.at, y.at, rows, D, keep, cuda->stream));
    close_to(&y, want, 4e-7, "softmax", D);
    array dy = array_of(cuda, type, rows * D, skew, 2, -1, 1), dx = array_like(&x);
    for (size_t r = 0; r < rows; r++) {
        double dot = 0;
        for (size_t i = 0; i < D; i++) dot += dy.v[r * D + i] * y.v[r * D + i];
        for (size_t i = 0; i < D; i++) want[r * D + i] = y.v[r * D + i] * (dy.v[r * D + i] - dot);
    }
    assert_ok(tr_cuda_softmax_grad_run(type, dy.at, y.at, dx.at, rows, D, keep, cuda->stream));
    close_to(&dx, want, 4e-7, "softmax.grad", D);
    assert_ok(tr_cuda_softmax_grad_run(type, dy.at, y.at, dy.at, rows, D, keep, cuda->stream));
    close_to(&dy, want, 4e-7, "softmax.grad in place", D);
    drop(&x);
    drop(&y);
    drop(&dy);
    drop(&dx);
    free(want);
}

static void test_softmax(void **state)
{
    (void)state;
    over_rows(softmax_rows, tr_cuda_softmax_ready);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_layernorm_grad),
        cmocka_unit_test(test_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
