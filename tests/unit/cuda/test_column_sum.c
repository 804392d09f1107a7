/* Column sums of narrow and wide matrices, of few and of many chunks. Values are small integers,
 * whose sums float32 holds exactly: nothing but equality will do. */
#include "core_harness.h"

#include "kernels/cuda/loops/linear.h"

static const struct {
    size_t rows, width;
} shapes[] = {{1, 1},      {7, 5},      {300, 8},    {70000, 3},  {70000, 8}, {40000, 40},
              {40000, 64}, {3000, 300}, {600, 2056}, {2000, 260}, {0, 24}};
static const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};

static int value(size_t i)
{
    return (int)(tr_philox_at(5, TR_RNG_TEST, 0, i, 0).v[0] % 9) - 4;
}

static void sum(tr_cuda *cuda, size_t rows, size_t width, tr_dtype type, bool accumulate)
{
    const size_t n = rows * width, nbytes = n * tr_dtype_size(type);
    char *host = malloc(nbytes + 1);
    float *want = calloc(width, sizeof *want), *got = calloc(width, sizeof *got);
    for (size_t j = 0; j < width; j++) got[j] = (float)j;
    for (size_t j = 0; accumulate && j < width; j++) want[j] = (float)j;
    for (size_t i = 0; i < n; i++) {
        const float v = (float)value(i);
        want[i % width] += v;
        if (type == TR_F32)
            ((float *)host)[i] = v;
        else if (type == TR_BF16)
            ((tr_bf16 *)host)[i] = tr_f32_to_bf16(v);
        else
            ((_Float16 *)host)[i] = (_Float16)v;
    }
    void *x = b->memory->alloc(cuda, TR_MEM_OTHER, nbytes),
         *part = b->memory->alloc(cuda, TR_MEM_OTHER, tr_cuda_column_sum_workspace(rows, width)),
         *to = b->memory->alloc(cuda, TR_MEM_OTHER, width * sizeof *got);
    assert_true(x && part && to);
    assert_ok(b->memory->upload(cuda, x, host, nbytes));
    assert_ok(b->memory->upload(cuda, to, got, width * sizeof *got));
    assert_ok(tr_cuda_column_sum(cuda->stream, type, x, rows, width, part, to, accumulate));
    assert_ok(b->memory->download(cuda, got, to, width * sizeof *got));
    for (size_t j = 0; j < width; j++)
        if (got[j] != want[j])
            fail_msg("%zu x %zu, %s: column %zu is %.9g, expected %.9g", rows, width,
                     tr_dtype_name(type), j, (double)got[j], (double)want[j]);
    b->memory->free(cuda, x);
    b->memory->free(cuda, part);
    b->memory->free(cuda, to);
    free(host);
    free(want);
    free(got);
}

static void test_sums(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    for (size_t s = 0; s < TR_COUNT(shapes); s++)
        for (size_t t = 0; t < TR_COUNT(types); t++)
            sum(cuda, shapes[s].rows, shapes[s].width, types[t], (s + t) % 2 == 0);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
