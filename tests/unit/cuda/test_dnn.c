/* links: trireme_plan
 * Plans of cuDNN: the cache, and which engine may be taken under which options. What the stand-in
 * offers is listed in tests/fakegpu/cudnn_engines.cc, best first: 57 is not deterministic, 11 and
 * 12 never finalize, 38 and 4 sum or round too coarsely, 7 wants 64 GiB, 0 (1 MiB of workspace) and
 * 3 are of tensor cores, 1 (64 KiB) and 2 are not. A real library offers others: there, only what
 * is said about any engine is checked. */
#include "tests/unit/cuda/core_harness.h"

#include "kernels/cuda/dnn/dnn.h"

static tr_cuda *open_options(size_t workspace, bool deterministic, bool benchmark)
{
    void *ctx = NULL;
    const tr_backend_options o = {
        .workspace = workspace, .deterministic = deterministic, .benchmark = benchmark};
    assert_ok(b->open(&o, &ctx));
    return ctx;
}

static tr_dnn_problem problem(tr_dnn_pass pass, tr_dtype type, bool exact)
{
    return (tr_dnn_problem){.pass = pass,
                            .type = type,
                            .weight_type = type,
                            .result_type = type,
                            .exact = exact,
                            .batch = 2,
                            .groups = 1,
                            .in = 16,
                            .out = 32,
                            .size = {6, 5},
                            .result = {6, 5},
                            .kernel = {3, 3},
                            .stride = {1, 1},
                            .padding = {1, 1},
                            .dilation = {1, 1}};
}

static const tr_dnn_plan *plan_of(tr_cuda *cuda, const tr_dnn_problem *p)
{
    const tr_dnn_plan *plan = NULL;
    assert_ok(tr_dnn_plan_get(cuda->dnn, p, &plan));
    return plan;
}

static void expect(tr_cuda *cuda, const tr_dnn_problem *p, const char *name)
{
    const tr_dnn_plan *plan = plan_of(cuda, p);
    if (!plan) fail_msg("no plan where %s was expected: %s", name, tr_dnn_refusal(cuda->dnn));
    assert_true(tr_dnn_plan_workspace(plan) <= cuda->o.workspace);
#ifndef TR_REAL_GPU
    assert_string_equal(tr_dnn_plan_name(plan), name);
#endif
}

static void test_cache(void **state)
{
    (void)state;
    tr_cuda *cuda = open_options(32 << 20, true, false);
    tr_dnn_problem p = problem(TR_DNN_FORWARD, TR_BF16, false);
    const tr_dnn_plan *plan = plan_of(cuda, &p), *others[3];
    assert_non_null(plan);
    assert_ptr_equal(plan_of(cuda, &p), plan);
    assert_int_equal(tr_dnn_count(cuda->dnn).searches, 1);
    p.batch = 3;
    others[0] = plan_of(cuda, &p);
    p.pass = TR_DNN_GRAD_INPUT;
    others[1] = plan_of(cuda, &p);
    p.pass = TR_DNN_FORWARD;
    p.bias = 1;
    others[2] = plan_of(cuda, &p);
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        assert_non_null(others[i]);
        assert_ptr_not_equal(others[i], plan);
    }
    assert_int_equal(tr_dnn_count(cuda->dnn).plans, 4);
    assert_int_equal(tr_dnn_count(cuda->dnn).searches, 4);
    b->close(cuda);
}

static void test_deterministic(void **state)
{
    (void)state;
    for (int pass = TR_DNN_FORWARD; pass <= TR_DNN_GRAD_WEIGHT; pass++) {
        const tr_dnn_problem p = problem((tr_dnn_pass)pass, TR_BF16, false);
        tr_cuda *any = open_options(32 << 20, false, false);
        tr_cuda *same = open_options(32 << 20, true, false);
        expect(any, &p, "cuDNN engine 57");
        expect(same, &p, "cuDNN engine 0");
        b->close(any);
        b->close(same);
    }
}

static void test_workspace(void **state)
{
    (void)state;
    static const struct {
        size_t workspace;
        const char *half, *exact;
    } cases[] = {{1 << 20, "cuDNN engine 0", "cuDNN engine 1"},
                 {(1 << 20) - 1, "cuDNN engine 3", "cuDNN engine 1"},
                 {(1 << 16) - 1, "cuDNN engine 3", "cuDNN engine 2"},
                 {0, "cuDNN engine 3", "cuDNN engine 2"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        const tr_dnn_problem half = problem(TR_DNN_FORWARD, TR_BF16, false);
        const tr_dnn_problem exact = problem(TR_DNN_FORWARD, TR_F32, true);
        tr_cuda *cuda = open_options(cases[i].workspace, true, false);
        expect(cuda, &half, cases[i].half);
        expect(cuda, &exact, cases[i].exact);
        b->close(cuda);
    }
}

/* A descriptor that is wrong is an error, and does not pass for a graph without engines. */
static void test_wrong_geometry(void **state)
{
    (void)state;
    for (int pass = TR_DNN_FORWARD; pass <= TR_DNN_GRAD_WEIGHT; pass++) {
        tr_dnn_problem p = problem((tr_dnn_pass)pass, TR_F32, true);
        const tr_dnn_plan *plan = NULL;
        tr_cuda *cuda = open_options(32 << 20, true, false);
        p.result[1]++;
        assert_int_equal(tr_dnn_plan_get(cuda->dnn, &p, &plan), TR_KERNEL);
        assert_non_null(strstr(tr_last_error()->text, "BAD_PARAM"));
        assert_null(plan);
        b->close(cuda);
    }
}

/* float32 goes to tensor cores only where it may be rounded to TF32. */
static void test_tf32(void **state)
{
    (void)state;
    const tr_dnn_problem rounded = problem(TR_DNN_GRAD_INPUT, TR_F32, false);
    const tr_dnn_problem exact = problem(TR_DNN_GRAD_INPUT, TR_F32, true);
    tr_cuda *cuda = open_options(32 << 20, true, false);
    expect(cuda, &rounded, "cuDNN engine 0");
    expect(cuda, &exact, "cuDNN engine 1");
    b->close(cuda);
}

/* The candidates are timed on memory that is given back; the one that is taken keeps to the
 * options. */
static void test_benchmark(void **state)
{
    (void)state;
    static const char *const may[] = {"cuDNN engine 0", "cuDNN engine 3", "cuDNN engine 1",
                                      "cuDNN engine 2", "cuDNN engine 57"};
    tr_dnn_problem p = problem(TR_DNN_FORWARD, TR_BF16, false);
    tr_cuda *cuda = open_options(32 << 20, false, true);
    const size_t before = tr_mem_held(TR_MEM_WORKSPACE);
    bool found = false;
    const tr_dnn_plan *plan = plan_of(cuda, &p);
    assert_non_null(plan);
    for (size_t i = 0; i < TR_COUNT(may); i++) found |= strcmp(tr_dnn_plan_name(plan), may[i]) == 0;
#ifndef TR_REAL_GPU
    assert_true(found);
#endif
    p.bias = p.residual = 1;
    p.act = TR_ACT_GELU;
    assert_non_null(plan_of(cuda, &p));
    assert_ptr_equal(plan_of(cuda, &p), plan_of(cuda, &p));
    assert_int_equal(tr_mem_held(TR_MEM_WORKSPACE), before);
    b->close(cuda);
}

#ifndef TR_REAL_GPU
/* An engine that fails when it is run is passed over, timed or not; where all do there is none, and
 * the library's text says why. */
static void test_broken(void **state)
{
    (void)state;
    const tr_dnn_problem p = problem(TR_DNN_FORWARD, TR_BF16, false);
    setenv("FAKEGPU_BROKEN", "cudnn:57,cudnn:0", 1);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        tr_cuda *cuda = open_options(32 << 20, deterministic, false);
        expect(cuda, &p, "cuDNN engine 3");
        b->close(cuda);
    }
    setenv("FAKEGPU_BROKEN", "cudnn:57,cudnn:0,cudnn:1,cudnn:2", 1);
    tr_cuda *timed = open_options(32 << 20, false, true);
    expect(timed, &p, "cuDNN engine 3");
    b->close(timed);
    setenv("FAKEGPU_BROKEN", "cudnn:*", 1);
    tr_cuda *none = open_options(32 << 20, true, false);
    assert_null(plan_of(none, &p));
    assert_non_null(strstr(tr_dnn_refusal(none->dnn), "CUDNN_STATUS_EXECUTION_FAILED"));
    unsetenv("FAKEGPU_BROKEN");
    const tr_dnn_problem other = problem(TR_DNN_GRAD_WEIGHT, TR_F32, true);
    setenv("FAKEGPU_CUDNN_NO_GRAPH", "all", 1);
    assert_null(plan_of(none, &other));
    unsetenv("FAKEGPU_CUDNN_NO_GRAPH");
    assert_false(tr_dnn_broken(none->dnn));
    assert_null(plan_of(none, &p)); /* remembered, and why */
    assert_true(tr_dnn_broken(none->dnn));
    assert_non_null(strstr(tr_dnn_refusal(none->dnn), "CUDNN_STATUS_EXECUTION_FAILED"));
    b->close(none);
}

/* Nothing where there is no engine, and that is remembered. */
static void test_none(void **state)
{
    (void)state;
    tr_dnn_problem p = problem(TR_DNN_GRAD_WEIGHT, TR_F32, true);
    const tr_dnn_plan *plan;
    setenv("FAKEGPU_CUDNN_NO_GRAPH", "all", 1);
    tr_cuda *cuda = open_options(32 << 20, true, false);
    for (int pass = TR_DNN_FORWARD; pass <= TR_DNN_GRAD_WEIGHT; pass++) {
        p.pass = pass;
        plan = plan_of(cuda, &p);
        assert_null(plan);
    }
    p = problem(TR_DNN_GRAD_WEIGHT, TR_BF16, false);
    p.weight_type = TR_F32;
    assert_null(plan_of(cuda, &p));
    assert_non_null(strstr(tr_dnn_refusal(cuda->dnn), "NOT_SUPPORTED"));
    const size_t searches = tr_dnn_count(cuda->dnn).searches;
    assert_null(plan_of(cuda, &p));
    assert_int_equal(tr_dnn_count(cuda->dnn).searches, searches);
    p = problem(TR_DNN_FORWARD, TR_BF16, false);
    p.bias = 1;
    assert_null(plan_of(cuda, &p));
    unsetenv("FAKEGPU_CUDNN_NO_GRAPH");
    b->close(cuda);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache),     cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_workspace), cmocka_unit_test(test_tf32),
        cmocka_unit_test(test_benchmark), cmocka_unit_test(test_wrong_geometry),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_broken),    cmocka_unit_test(test_none),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
