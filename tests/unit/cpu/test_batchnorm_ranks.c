/* Batch normalization over ranks: statistics of shares, some of them empty, against those of the
 * whole batch; sums of gradients; more ranks than were planned for. */
#include "tests/unit/cpu/batchnorm_harness.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_the_whole),
        cmocka_unit_test(sums_add_up),
        cmocka_unit_test(merge_refuses_more_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
