/* The merge of batchnorm's statistics and sums over ranks through hooks, on the device: shares of a
 * batch, some of them empty; more ranks than were planned for. */
#include "tests/unit/cuda/batchnorm_harness.h"

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
    return b->memory->copy(f->cuda, recv, f->all, nbytes * (size_t)f->size);
}

static const tr_op_def *def_of(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (strcmp(tr_op_def_name(tr_op_at(i)), name) == 0) return tr_op_at(i);
    fail_msg("no op named %s", name);
    return NULL;
}

/* `size` parts of `count` values through the op; planned for `planned` ranks; NULL where it
 * fails. */
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
    tr_graph graph = {.mode = TR_MODE_TRAIN,
                      .ranks = planned,
                      .ntensors = 2,
                      .nops = 1,
                      .tensors = tensors,
                      .ops = &op};
    tr_kernel *k = NULL;
    assert_ok(b->kernels->prepare(cuda, &graph, &op, &k));
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
    b->memory->free(cuda, (void *)f.all);
    b->memory->free(cuda, bind.in[0]);
    b->memory->free(cuda, bind.out[0]);
    b->memory->free(cuda, bind.workspace);
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
        cmocka_unit_test(ranks_are_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
