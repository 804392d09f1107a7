/* Matrix products: types, transposes, sizes that fit no vector, padded rows, epilogues and
 * accumulation against double arithmetic; what the algorithm's choice keeps to; dry contexts and
 * refusals. */
#include "tests/unit/cuda/blas_products.h"

static const struct {
    int64_t m, n, k;
} sizes[] = {{1, 1, 1}, {1, 3, 5}, {7, 1, 2}, {17, 5, 3}, {8, 16, 32}, {33, 24, 71}, {40, 64, 128}};

static void test_types_and_shapes(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (size_t s = 0; s < TR_COUNT(sizes); s++)
            for (int turn = 0; turn < 4; turn++)
                for (int64_t padding = 0; padding < 4; padding += 3) {
                    const tr_cuda_problem q =
                        problem_of(sizes[s].m, sizes[s].n, sizes[s].k, turn & 1, turn & 2, padding,
                                   types[t].type, types[t].out, TR_EPILOGUE_NONE);
                    check_product(cuda, &q, 1, 0, 0);
                    check_product(cuda, &q, 1, 1, 0);
                    check_product(cuda, &q, 0.5f, -2, 0);
                }
    b->close(cuda);
}

static void test_epilogues(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    static const char *const impl[] = {
        "cuBLASLt",           "cuBLASLt bias",          "cuBLASLt gelu",
        "cuBLASLt bias+gelu", "cuBLASLt gelu gradient", "cuBLASLt bias gradient"};
    for (int e = TR_EPILOGUE_NONE; e < TR_EPILOGUES; e++)
        for (size_t t = 0; t < TR_COUNT(types); t++)
            for (size_t s = 0; s < TR_COUNT(sizes); s++) {
                const bool gradient = e == TR_EPILOGUE_BIAS_GRADIENT;
                const tr_cuda_problem q =
                    problem_of(sizes[s].m, sizes[s].n, sizes[s].k, gradient, !gradient, 0,
                               types[t].type, types[t].out, (tr_product_epilogue)e);
                tr_cuda_product *p = NULL;
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
                if (!p) { /* a device may lack an epilogue for some type, but never the stand-in */
#ifndef TR_REAL_GPU
                    fail_msg("epilogue %d is missing", e);
#endif
                    continue;
                }
                assert_string_equal(tr_cuda_product_impl(p), impl[e]);
                assert_non_null(strstr(tr_cuda_product_choice(p), "algorithm "));
                tr_cuda_product_close(p);
                check_product(cuda, &q, 1, 0, 0);
                if (gradient) check_product(cuda, &q, 1, 1, 0);
            }
    b->close(cuda);
}

/* Of auxiliary matrices the library wants rows a multiple of 8 elements apart and addresses of 16
 * bytes: where that is not so there is no product, on a device and in a plan for one. */
static void test_auxiliary(void **state)
{
    (void)state;
    static const struct {
        int64_t n, ld;
        uint32_t align;
        bool there;
    } cases[] = {{24, 24, 16, true}, {20, 24, 16, true}, {20, 20, 16, false}, {24, 24, 8, false}};
    for (int dry = 0; dry < 2; dry++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .dry = dry});
        for (size_t i = 0; i < TR_COUNT(cases); i++)
            for (size_t t = 0; t < TR_COUNT(types); t++) {
                tr_cuda_problem q = problem_of(16, cases[i].n, 32, false, true, 0, types[t].type,
                                               types[t].out, TR_EPILOGUE_GELU_GRADIENT);
                tr_cuda_product *p = NULL;
                q.ld_aux = cases[i].ld;
                q.align_aux = cases[i].align;
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
#ifdef TR_REAL_GPU
                if (cases[i].there && !p) continue; /* it may lack some */
#endif
                assert_int_equal(p != NULL, cases[i].there);
                tr_cuda_product_close(p);
            }
        b->close(cuda);
    }
}

/* The switch is seen in the numbers: values with more bits than TF32 has. */
static void test_tf32(void **state)
{
    (void)state;
    double off[2];
    for (int tf32 = 0; tf32 < 2; tf32++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .tf32 = tf32});
        if (cuda->major < 8) {
            b->close(cuda);
            print_message("[  SKIPPED ] the device has no TF32\n");
            return;
        }
        const tr_cuda_problem q =
            problem_of(32, 32, 64, false, true, 0, TR_F32, TR_F32, TR_EPILOGUE_NONE);
        tr_cuda_product *p = NULL;
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        array x = array_open(cuda, TR_F32, 32 * 64, 1), y = array_open(cuda, TR_F32, 32 * 64, 2);
        array d = array_open(cuda, TR_F32, 32 * 32, 0);
        for (size_t i = 0; i < x.count; i++)
            x.value[i] = (double)(float)(x.value[i] * (1 + 0x1p-12 * (double)(i % 7)));
        array_send(cuda, &x);
        void *scratch = b->memory->alloc(cuda, TR_MEM_OTHER, tr_cuda_product_workspace(p) + 1);
        assert_ok(tr_cuda_product_run(
            p, &(tr_cuda_product_args){
                   .a = x.data, .b = y.data, .d = d.data, .alpha = 1, .workspace = scratch}));
        array_fetch(cuda, &d);
        off[tf32] = 0;
        for (int64_t i = 0; i < 32; i++)
            for (int64_t j = 0; j < 32; j++) {
                double size, want = sum_at(&q, &x, &y, i, j, &size);
                off[tf32] = fmax(off[tf32], fabs(d.value[i * 32 + j] - want) / size);
            }
        tr_cuda_product_close(p);
        b->memory->free(cuda, scratch);
        array_close(cuda, &x);
        array_close(cuda, &y);
        array_close(cuda, &d);
        b->close(cuda);
    }
    assert_true(off[0] <= 70 * 0x1p-24);
    assert_true(off[1] > 1e-6 && off[1] <= 0x1p-10);
}

static void test_one_choice_a_problem(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    tr_cuda_problem q = problem_of(8, 16, 32, false, true, 0, TR_BF16, TR_BF16, TR_EPILOGUE_BIAS);
    tr_cuda_product *p[4] = {NULL};
    assert_ok(tr_cuda_product_open(cuda, &q, &p[0]));
    assert_ok(tr_cuda_product_open(cuda, &q, &p[1]));
    assert_int_equal(cuda->blas->nchoices, 1);
    assert_memory_equal(&p[0]->algo, &p[1]->algo, sizeof p[0]->algo);
    q.align_b = 16;
    assert_ok(tr_cuda_product_open(cuda, &q, &p[2]));
    assert_int_equal(cuda->blas->nchoices, 2);
    q.tb = false;
    q.ldb = q.n;
    assert_ok(tr_cuda_product_open(cuda, &q, &p[3]));
    assert_int_equal(cuda->blas->nchoices, 3);
    for (int i = 0; i < 4; i++) tr_cuda_product_close(p[i]);
    for (int64_t m = 1; m < 60; m++) { /* the table grows */
        q.m = m;
        q.ldd = q.n;
        check_product(cuda, &q, 1, 0, 0);
    }
    const size_t before = cuda->blas->nchoices;
    q.m = 31;
    check_product(cuda, &q, 1, 0, 0);
    assert_int_equal(cuda->blas->nchoices, before);
    b->close(cuda);
}

/* Sums are never rounded to 16 bits on the way, and in deterministic mode never added in the
 * output. */
static void test_reduction_schemes(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        tr_cuda *cuda =
            open_as((tr_backend_options){.workspace = 4 << 20, .deterministic = deterministic});
        for (size_t t = 0; t < TR_COUNT(types); t++)
            for (size_t s = 0; s < TR_COUNT(sizes); s++) {
                const tr_cuda_problem q =
                    problem_of(sizes[s].m, sizes[s].n, 16 * sizes[s].k, false, true, 0,
                               types[t].type, types[t].out, TR_EPILOGUE_NONE);
                tr_cuda_product *p = NULL;
                uint32_t scheme = 99;
                size_t written = 0;
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
                assert_int_equal(cublasLtMatmulAlgoConfigGetAttribute(
                                     &p->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                     sizeof scheme, &written),
                                 CUBLAS_STATUS_SUCCESS);
                if (deterministic || types[t].out != TR_F32)
                    assert_true(scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
                                scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
                tr_cuda_product_close(p);
                check_product(cuda, &q, 1, 0, 0);
            }
        b->close(cuda);
    }
}

static void test_workspace_limit(void **state)
{
    (void)state;
    static const size_t limits[] = {0, 600, 4096, 1 << 20};
    for (size_t i = 0; i < TR_COUNT(limits); i++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = limits[i]});
        const tr_cuda_problem q =
            problem_of(40, 64, 128, false, true, 0, TR_BF16, TR_BF16, TR_EPILOGUE_BIAS);
        check_product(cuda, &q, 1, 0, 0); /* looks at the workspace, too */
        b->close(cuda);
    }
}

static void test_benchmark(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .benchmark = true});
    for (int e = TR_EPILOGUE_NONE; e < TR_EPILOGUES; e++) {
        const bool gradient = e == TR_EPILOGUE_BIAS_GRADIENT;
        const tr_cuda_problem q =
            problem_of(33, 24, 71, gradient, !gradient, 3, TR_BF16, TR_F32, (tr_product_epilogue)e);
        tr_cuda_product *p = NULL;
        const size_t before = tr_mem_held(TR_MEM_OTHER);
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
#ifdef TR_REAL_GPU
        if (!p) continue; /* 16 bits into float32 by an auxiliary matrix: a device may lack it */
#endif
        tr_cuda_product_close(p);
        const uint64_t calls = tr_mem_calls();
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        assert_int_equal(tr_mem_calls() - calls, 1); /* the product: nothing is timed again */
        tr_cuda_product_close(p);
        if (e > TR_EPILOGUE_NONE) assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
        check_product(cuda, &q, 1, 0, 0);
    }
    b->close(cuda);
}

static void test_dry(void **state)
{
    (void)state;
    static const struct {
        size_t limit, workspace;
    } cases[] = {{1 << 20, 1 << 20}, {(size_t)1 << 30, 32 << 20}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = cases[i].limit, .dry = true});
        const tr_cuda_problem q =
            problem_of(33, 24, 71, false, true, 0, TR_F16, TR_F16, TR_EPILOGUE_GELU_BIAS);
        tr_cuda_product *p = NULL;
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        assert_int_equal(tr_cuda_product_workspace(p), cases[i].workspace);
        assert_string_equal(tr_cuda_product_impl(p), "cuBLASLt (chosen on the device)");
        assert_null(tr_cuda_product_choice(p));
        tr_cuda_product_close(p);
        b->close(cuda);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    const tr_cuda_problem good =
        problem_of(4, 4, 4, false, false, 0, TR_F32, TR_F32, TR_EPILOGUE_BIAS);
    tr_cuda_product *p = NULL;
    tr_cuda_problem q = good;
    q.m = (int64_t)1 << 31;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "2147483648 x 4 x 4");
    q = good;
    q.k = 0;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "4 x 4 x 0");
    q = good;
    q.lda = 3;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_INTERNAL, "overlap");
    q = good;
    q.out = TR_BF16;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "float32 into bfloat16");
    q = good;
    q.type = q.out = TR_F64;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "float64");
    q = problem_of(4, 6, 8, false, true, 0, TR_I8, TR_I32, TR_EPILOGUE_NONE);
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "int8 into int32");
    q = good;
    q.align_vector = 0;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_INTERNAL, "alignment");
    q = good;
    q.epilogue = TR_EPILOGUE_GELU_GRADIENT;
    q.align_aux = 0;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_INTERNAL, "alignment");
    q.align_aux = 16;
    q.ld_aux = 3;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_INTERNAL, "auxiliary matrix overlap");
    assert_null(p);
    tr_cuda_product_close(NULL);
    tr_cuda_blas_close(NULL);
    assert_told(tr_cuda_blas_check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmul"), TR_KERNEL,
                "cublasLtMatmul: ");
    assert_told(tr_cuda_blas_check(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtCreate"), TR_MEMORY,
                "CUBLAS_STATUS_ALLOC_FAILED");
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_and_shapes),
        cmocka_unit_test(test_epilogues),
        cmocka_unit_test(test_auxiliary),
        cmocka_unit_test(test_tf32),
        cmocka_unit_test(test_one_choice_a_problem),
        cmocka_unit_test(test_reduction_schemes),
        cmocka_unit_test(test_workspace_limit),
        cmocka_unit_test(test_benchmark),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
