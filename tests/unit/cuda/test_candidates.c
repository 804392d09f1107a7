/* Which of a library's candidates is taken: the first that runs, the fastest where they are timed,
 * the first as it is where there is no memory to try it in; and that one that fails is passed
 * over. */
#include "tests/unit/cuda/core_harness.h"

#include "kernels/cuda/blas/blas.h"
#include "kernels/cuda/dnn/dnn.h"
#include "kernels/cuda/trial.h"

enum { MEMORY = 24 << 20, FILL = 8 << 20 };

static tr_cuda *open_timing(bool benchmark)
{
    void *ctx = NULL;
    const tr_backend_options o = {.workspace = 4 << 20, .benchmark = benchmark};
    assert_ok(b->open(&o, &ctx));
    return ctx;
}

typedef struct {
    int rounds; /* how much it does; 0: it fails */
    int puts;
} work;

static tr_status put(void *arg, const tr_cuda_trial *t)
{
    tr_status st = TR_OK;
    work *w = arg;
    w->puts++;
    TR_NEED(w->rounds > 0, TR_KERNEL, "it does not run");
    for (int i = 0; i < w->rounds; i++) TR_TRY(b->memory->zero(t->cuda, t->block[0], FILL));
out:
    return st;
}

/* Which of four is taken. */
static int take(tr_cuda_trial *t, work *w)
{
    int taken = -1;
    for (int i = 0; i < 4 && tr_cuda_trial_goes_on(t); i++) {
        const tr_cuda_candidate c = {
            .name = "nothing", .workspace = 100u * (unsigned)i, .put = put, .arg = &w[i]};
        bool best;
        assert_ok(tr_cuda_trial_run(t, &c, &best));
        assert_int_equal(t->workspace != NULL, i > 0);
        if (best) taken = i;
    }
    return taken;
}

static void test_best(void **state)
{
    (void)state;
    const size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {FILL, 0, 16};
    for (int timed = 0; timed < 2; timed++) {
        tr_cuda_trial t;
        const size_t closed = held();
        tr_cuda *cuda = open_timing(timed);
        work w[4] = {{0, 0}, {40, 0}, {1, 0}, {20, 0}}, none[4] = {{0, 0}};
        const size_t before = tr_mem_held(TR_MEM_WORKSPACE);
        assert_ok(tr_cuda_trial_open(&t, cuda, "nothing", sizes));
        assert_true(t.block[0] && !t.block[1] && t.block[2]);
        assert_int_equal(take(&t, w), timed ? 2 : 1);
        assert_string_equal(t.why, "it does not run");
        assert_int_equal(w[0].puts, 1); /* asked once, then left alone */
        assert_true(timed ? w[1].puts > 1 && w[1].puts == w[2].puts && w[3].puts == w[1].puts
                          : w[1].puts == 1 && w[2].puts == 0 && w[3].puts == 0);
        tr_cuda_trial_close(&t);
        assert_ok(tr_cuda_trial_open(&t, cuda, "nothing", sizes));
        assert_int_equal(take(&t, none), -1);
        tr_cuda_trial_close(&t);
        assert_int_equal(tr_mem_held(TR_MEM_WORKSPACE), before);
        b->close(cuda);
        assert_int_equal(held(), closed); /* what was remembered is gone, too */
    }
}

/* A candidate whose workspace has no room is never run: the first is taken as it is, a later one
 * loses to what was taken before it, and no other one is tried. */
static void test_no_workspace(void **state)
{
    (void)state;
    const size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {FILL};
    tr_cuda *cuda = open_timing(true);
    for (int large = 0; large < 3; large++) {
        tr_cuda_trial t;
        work w[4] = {{2, 0}, {1, 0}, {1, 0}, {1, 0}};
        int taken = -1;
        assert_ok(tr_cuda_trial_open(&t, cuda, "nothing", sizes));
        for (int i = 0; i < 4 && tr_cuda_trial_goes_on(&t); i++) {
            const tr_cuda_candidate c = {.name = "nothing",
                                         .workspace = i == large ? (size_t)1 << 50 : 100,
                                         .put = put,
                                         .arg = &w[i]};
            bool best;
            assert_ok(tr_cuda_trial_run(&t, &c, &best));
            if (best) taken = i;
        }
        assert_int_equal(taken, large == 2 ? 1 : 0);
        for (int i = 0; i < 4; i++) assert_int_equal(w[i].puts > 0, i < large);
        tr_cuda_trial_close(&t);
    }
    b->close(cuda);
}

static void test_memos(void **state)
{
    (void)state;
    tr_cuda *cuda = open_timing(false);
    assert_null(tr_cuda_recall(cuda, "abc", 3));
    assert_ok(tr_cuda_remember(cuda, "abc", 3, 5));
    assert_ok(tr_cuda_remember(cuda, "ab", 2, 6));
    assert_int_equal(*tr_cuda_recall(cuda, "abc", 3), 5);
    assert_int_equal(*tr_cuda_recall(cuda, "ab", 2), 6);
    assert_null(tr_cuda_recall(cuda, "abd", 3));
    b->close(cuda);
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
    setenv("FAKEGPU_CLOCK", "work", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),    cmocka_unit_test(test_no_workspace),
        cmocka_unit_test(test_memos),   cmocka_unit_test(test_excluded),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_no_room),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
