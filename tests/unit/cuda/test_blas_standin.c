/* What the stand-in for cuBLASLt refuses, with the library's own codes. */
#include "tests/unit/cuda/blas_call.h"

static void test_candidates_differ(void **state)
{
    (void)state;
    call c = call_open();
    bool differ = false;
    assert_true(c.n > 2);
    for (int i = 0; i < c.n; i++) {
        assert_true(c.found[i].workspaceSize <= 1 << 16);
        differ |= c.found[i].workspaceSize != c.found[0].workspaceSize;
        assert_int_equal(multiply_with(&c, &c.found[i], c.found[i].workspaceSize),
                         CUBLAS_STATUS_SUCCESS);
    }
    assert_true(differ);
    const uint64_t nothing = 0;
    need(cublasLtMatmulPreferenceSetAttribute(c.pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &nothing, sizeof nothing));
    need(ask(&c));
    for (int i = 0; i < c.n; i++) assert_int_equal(c.found[i].workspaceSize, 0);
    call_close(&c);
}

static void test_types(void **state)
{
    (void)state;
    static const struct {
        cudaDataType a, b, d;
        cublasStatus_t status;
    } cases[] = {{CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_STATUS_SUCCESS},
                 {CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUBLAS_STATUS_SUCCESS},
                 {CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F, CUBLAS_STATUS_NOT_SUPPORTED},
                 {CUDA_R_16F, CUDA_R_16F, CUDA_R_16BF, CUBLAS_STATUS_NOT_SUPPORTED},
                 {CUDA_R_32F, CUDA_R_32F, CUDA_R_16F, CUBLAS_STATUS_NOT_SUPPORTED},
                 {CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F, CUBLAS_STATUS_NOT_SUPPORTED}};
    call c = call_open();
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        set_type(c.a, cases[i].a);
        set_type(c.b, cases[i].b);
        set_type(c.d, cases[i].d);
        assert_int_equal(ask(&c), cases[i].status);
        assert_int_equal(c.n > 0, cases[i].status == CUBLAS_STATUS_SUCCESS);
    }
    const int32_t tf32 = CUBLAS_COMPUTE_32F_FAST_TF32;
    need(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &tf32,
                                        sizeof tf32));
    set_type(c.a, CUDA_R_16BF);
    set_type(c.b, CUDA_R_16BF);
    set_type(c.d, CUDA_R_16BF);
    assert_int_equal(ask(&c), CUBLAS_STATUS_NOT_SUPPORTED);
    call_close(&c);
}

static void set(call *c, cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    need(cublasLtMatmulDescSetAttribute(c->desc, attribute, &value, sizeof value));
}

/* Of int8 into int32: A turned and B not, m, k and leading dimensions multiples of 4, whole
 * scalars, no epilogue. */
static void test_integers(void **state)
{
    (void)state;
    static const struct {
        uint64_t m, n, k;
        int64_t ld;
        int32_t scale, trans_a, trans_b, epilogue;
        cublasStatus_t status;
    } cases[] = {
        {16, 7, 32, 32, CUDA_R_32I, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_SUCCESS},
        {10, 7, 32, 32, CUDA_R_32I, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_NOT_SUPPORTED},
        {16, 7, 30, 32, CUDA_R_32I, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_NOT_SUPPORTED},
        {16, 7, 32, 34, CUDA_R_32I, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_NOT_SUPPORTED},
        {16, 7, 32, 32, CUDA_R_32F, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_NOT_SUPPORTED},
        {16, 32, 32, 32, CUDA_R_32I, CUBLAS_OP_T, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_NOT_SUPPORTED},
        {16, 7, 16, 16, CUDA_R_32I, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
         CUBLAS_STATUS_NOT_SUPPORTED},
        {16, 7, 32, 32, CUDA_R_32I, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS,
         CUBLAS_STATUS_NOT_SUPPORTED},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        call c = call_open();
        const uint64_t m = cases[i].m, n = cases[i].n, k = cases[i].k;
        const bool turned = cases[i].trans_b == CUBLAS_OP_T;
        need(cublasLtMatrixLayoutDestroy(c.a));
        need(cublasLtMatrixLayoutDestroy(c.b));
        need(cublasLtMatrixLayoutDestroy(c.d));
        need(cublasLtMatrixLayoutCreate(&c.a, CUDA_R_8I, k, m, cases[i].ld));
        need(cublasLtMatrixLayoutCreate(&c.b, CUDA_R_8I, turned ? n : k, turned ? k : n,
                                        cases[i].ld));
        need(cublasLtMatrixLayoutCreate(&c.d, CUDA_R_32I, m, n, (int64_t)m));
        set(&c, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLAS_COMPUTE_32I);
        set(&c, CUBLASLT_MATMUL_DESC_SCALE_TYPE, cases[i].scale);
        set(&c, CUBLASLT_MATMUL_DESC_TRANSA, cases[i].trans_a);
        set(&c, CUBLASLT_MATMUL_DESC_TRANSB, cases[i].trans_b);
        set(&c, CUBLASLT_MATMUL_DESC_EPILOGUE, cases[i].epilogue);
        assert_int_equal(ask(&c), cases[i].status);
        set_type(c.d, CUDA_R_8I); /* with float scales alone, which is not modelled */
        assert_int_equal(ask(&c), CUBLAS_STATUS_NOT_SUPPORTED);
        call_close(&c);
    }
}

static void test_invalid(void **state)
{
    (void)state;
    call c = call_open();
    const cublasLtMatmulHeuristicResult_t good = c.found[0];
    const float one = 1;
    assert_true(good.workspaceSize > 0);
    assert_int_equal(multiply_with(&c, &good, good.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasLtMatmul(NULL, c.desc, &one, c.at_a, c.a, c.at_b, c.b, &one, c.at_d, c.d,
                                    c.at_d, c.d, &good.algo, c.workspace, 1 << 16, c.cuda->stream),
                     CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(cublasLtMatmul(c.handle, c.desc, &one, NULL, c.a, c.at_b, c.b, &one, c.at_d,
                                    c.d, c.at_d, c.d, &good.algo, c.workspace, 1 << 16,
                                    c.cuda->stream),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasLtMatmul(c.handle, c.desc, &one, c.at_a, c.a, c.at_b, c.b, &one, NULL,
                                    c.d, c.at_d, c.d, &good.algo, c.workspace, 1 << 16,
                                    c.cuda->stream),
                     CUBLAS_STATUS_INVALID_VALUE); /* beta without C */
    const int64_t ld = K - 1, right = K;
    need(cublasLtMatrixLayoutSetAttribute(c.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld));
    assert_int_equal(ask(&c), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(multiply_with(&c, &good, good.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
    need(cublasLtMatrixLayoutSetAttribute(c.a, CUBLASLT_MATRIX_LAYOUT_LD, &right, sizeof right));
    const uint64_t rows = M + 1;
    need(cublasLtMatrixLayoutSetAttribute(c.d, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows));
    assert_int_equal(ask(&c), CUBLAS_STATUS_INVALID_VALUE);
    const uint64_t back = M;
    need(cublasLtMatrixLayoutSetAttribute(c.d, CUBLASLT_MATRIX_LAYOUT_ROWS, &back, sizeof back));
    set_epilogue(&c, CUBLASLT_EPILOGUE_BIAS); /* the algorithm was for another problem */
    set_bias(&c, c.bias);
    assert_int_equal(multiply_with(&c, &good, good.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
    need(ask(&c));
    set_bias(&c, NULL);
    assert_int_equal(multiply(&c), CUBLAS_STATUS_INVALID_VALUE);
    const int32_t other = CUDA_R_32F;
    need(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &other,
                                        sizeof other));
    assert_int_equal(ask(&c), CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, &one, 1),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 4),
                     CUBLAS_STATUS_INVALID_VALUE);
    call_close(&c);
}

/* An auxiliary matrix: its rows' distance, alignment and type, and that it is there. */
static void test_auxiliary(void **state)
{
    (void)state;
    static const struct {
        cublasLtEpilogue_t epilogue;
        uintptr_t at;
        int64_t ld;
        int32_t type;
        cublasStatus_t status;
    } cases[] = {
        {CUBLASLT_EPILOGUE_GELU_AUX, 16, M, -1, CUBLAS_STATUS_SUCCESS},
        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0, M + 8, CUDA_R_16BF, CUBLAS_STATUS_SUCCESS},
        {CUBLASLT_EPILOGUE_DGELU, 256, M, -1, CUBLAS_STATUS_SUCCESS},
        {CUBLASLT_EPILOGUE_DGELU, 256, 0, -1, CUBLAS_STATUS_INVALID_VALUE},
        {CUBLASLT_EPILOGUE_DGELU, 256, M - 8, -1, CUBLAS_STATUS_INVALID_VALUE},
        {CUBLASLT_EPILOGUE_GELU_AUX, 256, M + 4, -1, CUBLAS_STATUS_INVALID_VALUE},
        {CUBLASLT_EPILOGUE_GELU_AUX, 8, M, -1, CUBLAS_STATUS_NOT_SUPPORTED},
        {CUBLASLT_EPILOGUE_GELU_AUX, 256, M, CUDA_R_32F, CUBLAS_STATUS_NOT_SUPPORTED},
        {CUBLASLT_EPILOGUE_RELU_AUX, 256, 128, -1, CUBLAS_STATUS_NOT_SUPPORTED},
        {CUBLASLT_EPILOGUE_DGELU_BGRAD, 256, M, -1, CUBLAS_STATUS_NOT_SUPPORTED},
    };
    call c = call_open();
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        set_aux(&c, cases[i].epilogue, (void *)cases[i].at, cases[i].ld);
        set(&c, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cases[i].type);
        assert_int_equal(ask(&c), cases[i].status);
    }
    set(&c, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, -1);
    set_aux(&c, CUBLASLT_EPILOGUE_GELU_AUX, NULL, M);
    need(ask(&c));
    assert_int_equal(multiply(&c), CUBLAS_STATUS_INVALID_VALUE);
    set_aux(&c, CUBLASLT_EPILOGUE_GELU_AUX, c.bias, M + 8); /* the algorithm was for other rows */
    assert_int_equal(multiply(&c), CUBLAS_STATUS_INVALID_VALUE);
    call_close(&c);
}

/* As the library: why ReLU is not left to it. */
static void test_relu_loses_nan(void **state)
{
    (void)state;
    call c = call_open();
    uint16_t a[K * M], got[M * N];
    for (int i = 0; i < K * M; i++) a[i] = 0x7fc0;
    assert_ok(b->memory->upload(c.cuda, c.at_a, a, sizeof a));
    for (int relu = 0; relu < 2; relu++) {
        set_epilogue(&c, relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
        need(ask(&c));
        need(multiply(&c));
        assert_ok(b->memory->download(c.cuda, got, c.at_d, sizeof got));
        assert_int_equal(isnan(tr_bf16_to_f32(got[3])), !relu);
    }
    call_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates_differ), cmocka_unit_test(test_types),
        cmocka_unit_test(test_integers),          cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_auxiliary),         cmocka_unit_test(test_relu_loses_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
