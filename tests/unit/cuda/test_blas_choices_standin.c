/* Which algorithm a product takes, of those that the stand-in for cuBLASLt offers: a real library's
 * are its own affair. */
#include "tests/unit/cuda/blas_products.h"

static int32_t config_of(const tr_cuda_product *p, cublasLtMatmulAlgoConfigAttributes_t what)
{
    int32_t v = -1;
    size_t written = 0;
    assert_int_equal(cublasLtMatmulAlgoConfigGetAttribute(&p->algo, what, &v, sizeof v, &written),
                     CUBLAS_STATUS_SUCCESS);
    return v;
}

/* Long sums of a small result are cut into as many parts as fill the device (40000 / 512 = 78), or
 * a quarter where the workspace allows no more, in every mode; short ones, and those of large
 * results, are left as the library has them. Where it takes no cut, the product says that it leaves
 * the device idle. */
static void test_split(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        size_t workspace;
        const char *without;
        int32_t split;
        bool fills;
    } table[] = {{8, 16, 40000, 1 << 20, "", 78, true},
                 {8, 16, 40000, 16 << 10, "", 19, true},
                 {8, 16, 40000, 1 << 20, "split", 3, false},
                 {8, 16, 2000, 1 << 20, "split", 3, true},
                 {1, 3072, 2048, 4 << 20, "split", 3, true}};
    for (size_t i = 0; i < TR_COUNT(table); i++)
        for (int deterministic = 0; deterministic < 2; deterministic++)
            for (size_t t = 0; t < 3; t++) {
                tr_cuda *cuda = open_as((tr_backend_options){.workspace = table[i].workspace,
                                                             .deterministic = deterministic});
                const tr_cuda_problem q =
                    problem_of(table[i].m, table[i].n, table[i].k, false, true, 0, types[t].type,
                               types[t].out, TR_EPILOGUE_NONE);
                tr_cuda_product *p = NULL;
                setenv("FAKEGPU_CUBLASLT_WITHOUT", table[i].without, 1);
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
                assert_int_equal(config_of(p, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), table[i].split);
                assert_int_equal(config_of(p, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
                assert_int_equal(tr_cuda_product_fills(p), table[i].fills);
                assert_true(tr_cuda_product_workspace(p) <= table[i].workspace);
                tr_cuda_product_close(p);
                if (table[i].split > 3 && t == 1) check_product(cuda, &q, 1, 0, 0);
                b->close(cuda);
            }
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
}

/* An algorithm that fails when it is run is passed over; where all do the error says why. */
static void test_broken(void **state)
{
    (void)state;
    const tr_cuda_problem q =
        problem_of(8, 16, 32, false, true, 0, TR_F32, TR_F32, TR_EPILOGUE_NONE);
    for (int benchmark = 0; benchmark < 2; benchmark++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .benchmark = benchmark});
        tr_cuda_product *p = NULL;
        setenv("FAKEGPU_BROKEN",
               "cublaslt:21,cublaslt:5,cublaslt:7,cublaslt:11,cublaslt:16,cublaslt:2", 1);
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        const int32_t id = config_of(p, CUBLASLT_ALGO_CONFIG_ID);
        assert_true(id == 6 || (benchmark && id == 1));
        tr_cuda_product_close(p);
        b->close(cuda);
        cuda = open_as((tr_backend_options){.workspace = 4 << 20, .benchmark = benchmark});
        setenv("FAKEGPU_BROKEN", "cublaslt:*", 1);
        assert_told(tr_cuda_product_open(cuda, &q, &p), TR_KERNEL,
                    "CUBLAS_STATUS_EXECUTION_FAILED");
        const tr_cuda_problem other =
            problem_of(8, 16, 32, false, true, 0, TR_F32, TR_F32, TR_EPILOGUE_BIAS);
        setenv("FAKEGPU_CUBLASLT_WITHOUT", "bias", 1);
        assert_ok(tr_cuda_product_open(cuda, &other, &p));
        unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
        assert_told(tr_cuda_product_open(cuda, &q, &p), TR_KERNEL, /* not the other one's reason */
                    "CUBLAS_STATUS_EXECUTION_FAILED");
        b->close(cuda);
    }
    unsetenv("FAKEGPU_BROKEN");
}

static void test_missing_epilogue(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    tr_cuda_problem q = problem_of(4, 4, 4, false, false, 0, TR_F32, TR_F32, TR_EPILOGUE_BIAS);
    tr_cuda_product *p = (tr_cuda_product *)&q;
    setenv("FAKEGPU_CUBLASLT_WITHOUT", "bias bgrad", 1);
    assert_ok(tr_cuda_product_open(cuda, &q, &p));
    assert_null(p);
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
    assert_ok(tr_cuda_product_open(cuda, &q, &p));
    assert_null(p); /* remembered, too */
    q.epilogue = TR_EPILOGUE_NONE;
    check_product(cuda, &q, 1, 0, 0);
    setenv("FAKEGPU_CUBLASLT_WITHOUT", "aux", 1);
    for (int e = TR_EPILOGUE_NONE; e < TR_EPILOGUES; e++) {
        q = problem_of(4, 8, 4, false, false, 0, TR_F16, TR_F16, (tr_product_epilogue)e);
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        assert_int_equal(p == NULL, tr_epilogue_has_aux(q.epilogue));
        tr_cuda_product_close(p);
    }
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
    b->close(cuda);
}

/* A sum in several steps is rounded before what follows it: 16-bit results with a bias or GELU take
 * none. */
static void test_one_step(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    for (int e = TR_EPILOGUE_NONE; e < TR_EPILOGUE_BIAS_GRADIENT; e++)
        for (size_t t = 0; t < TR_COUNT(types); t++) {
            const tr_cuda_problem q = problem_of(8, 16, 2048, false, true, 0, types[t].type,
                                                 types[t].out, (tr_product_epilogue)e);
            const bool one = e != TR_EPILOGUE_NONE && types[t].out != TR_F32;
            tr_cuda_product *p = NULL;
            assert_ok(tr_cuda_product_open(cuda, &q, &p));
            assert_int_equal(config_of(p, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == 1, one);
            tr_cuda_product_close(p);
            check_product(cuda, &q, 1, 0, 0);
        }
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_epilogue),
        cmocka_unit_test(test_one_step),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
