/* Which of a library's candidates is taken where they are timed: the fastest that runs, the first
 * where there is no memory to time in, none but the first in deterministic mode. */
#include "tests/unit/cuda/core_harness.h"

#include "kernels/cuda/blas/blas.h"
#include "kernels/cuda/dnn/dnn.h"
#include "kernels/cuda/timing.h"

enum { MEMORY = 24 << 20, FILL = 8 << 20 };

static tr_cuda *open_timing(bool benchmark)
{
    void *ctx = NULL;
    const tr_backend_options o = {.workspace = 4 << 20, .benchmark = benchmark};
    assert_ok(b->open(&o, &ctx));
    return ctx;
}

typedef struct {
    tr_cuda *cuda;
    void *block;
    int rounds[4]; /* by candidate: how much it does; 0: it does not run */
    int puts[4];
} work;

static tr_status put(void *arg, int candidate, bool *runs)
{
    tr_status st = TR_OK;
    work *w = arg;
    w->puts[candidate]++;
    *runs = w->rounds[candidate] > 0;
    for (int i = 0; i < w->rounds[candidate]; i++) TR_TRY(b->memory->zero(w->cuda, w->block, FILL));
out:
    return st;
}

static void test_best(void **state)
{
    (void)state;
    const size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {FILL, 0, 16};
    tr_cuda_trial t;
    bool room = false;
    int best = -1;
    work w = {.cuda = open_timing(true), .rounds = {0, 40, 1, 20}};
    const size_t before = held();
    assert_ok(tr_cuda_trial_open(&t, w.cuda, "nothing", sizes, &room));
    assert_true(room && t.block[0] && !t.block[1] && t.block[2]);
    w.block = t.block[0];
    assert_ok(tr_cuda_trial_best(&t, 4, put, &w, &best));
    assert_int_equal(best, 2);
    assert_int_equal(w.puts[0], 1); /* asked once, then left alone */
    assert_true(w.puts[1] > 1 && w.puts[1] == w.puts[2]);
    assert_ok(tr_cuda_trial_best(&t, 1, put, &w, &best));
    assert_int_equal(best, 0);
    tr_cuda_trial_close(&t);
    assert_int_equal(held(), before);
    b->close(w.cuda);
}

static void test_excluded(void **state)
{
    (void)state;
    void *ctx = NULL;
    const tr_backend_options o = {.workspace = 4 << 20, .benchmark = true, .deterministic = true};
    assert_told(b->open(&o, &ctx), TR_INTERNAL, "deterministic");
    assert_null(ctx);
}

#ifndef TR_REAL_GPU /* a full device may have no room for what the libraries themselves load */
/* Names of the plan of a convolution and workspace of a product, in a device with `full` bytes
 * taken. */
static void choose(bool benchmark, bool full, char name[64], size_t *workspace)
{
    tr_cuda *cuda = open_timing(benchmark);
    void *most = full ? b->memory->alloc(cuda, TR_MEM_OTHER, MEMORY - (2 << 20)) : NULL;
    const tr_dnn_problem conv = {.pass = TR_DNN_FORWARD,
                                 .type = TR_F32,
                                 .weight_type = TR_F32,
                                 .result_type = TR_F32,
                                 .exact = true,
                                 .batch = 16,
                                 .groups = 1,
                                 .in = 16,
                                 .out = 16,
                                 .size = {64, 64},
                                 .result = {64, 64},
                                 .kernel = {1, 1},
                                 .stride = {1, 1},
                                 .dilation = {1, 1}};
    const tr_cuda_problem product = {.m = 2048,
                                     .n = 8,
                                     .k = 512,
                                     .lda = 512,
                                     .ldb = 8,
                                     .ldd = 8,
                                     .type = TR_F32,
                                     .out = TR_F32,
                                     .align_a = 256,
                                     .align_b = 256,
                                     .align_d = 256};
    const tr_dnn_plan *plan = NULL;
    tr_cuda_product *p = NULL;
    assert_true(!full || most);
    const size_t before = tr_mem_held(TR_MEM_WORKSPACE);
    assert_ok(tr_dnn_plan_get(cuda->dnn, &conv, &plan));
    assert_ok(tr_cuda_product_open(cuda, &product, &p));
    assert_non_null(plan);
    assert_int_equal(tr_mem_held(TR_MEM_WORKSPACE), before);
    snprintf(name, 64, "%s", tr_dnn_plan_name(plan));
    *workspace = tr_cuda_product_workspace(p);
    tr_cuda_product_close(p);
    b->memory->free(cuda, most);
    b->close(cuda);
}

/* x and y are 4 MiB each, and so is the product's A: no room for them is no failure. */
static void test_no_room(void **state)
{
    (void)state;
    char first[64], taken[64];
    size_t workspace[2];
    choose(false, false, first, &workspace[0]);
    choose(true, true, taken, &workspace[1]);
    assert_string_equal(taken, first);
    assert_int_equal(workspace[1], workspace[0]);
}
#endif

int main(void)
{
    char memory[32];
    snprintf(memory, sizeof memory, "%d", MEMORY);
    setenv("FAKEGPU_MEMORY", memory, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_excluded),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_no_room),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
