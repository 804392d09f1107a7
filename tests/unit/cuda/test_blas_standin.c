/* What the stand-in for cuBLASLt refuses, with the library's own codes, and what it ends the
 * process for (status 99). The latter are run by this program anew: `test_blas_standin NAME`. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cuda/blas_harness.h"

enum { M = 16, N = 8, K = 32 };

/* A product of M x N x K in column-major bfloat16, A turned, ready for the call. */
typedef struct {
    tr_cuda *cuda;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[8];
    int n;
    char *at_a, *at_b, *at_d, *workspace, *bias;
} call;

static void need(cublasStatus_t s)
{
    if (s != CUBLAS_STATUS_SUCCESS) fail_msg("%s", cublasLtGetStatusName(s));
}

static cublasStatus_t ask(call *c)
{
    memset(c->found, 0, sizeof c->found);
    return cublasLtMatmulAlgoGetHeuristic(c->handle, c->desc, c->a, c->b, c->d, c->d, c->pref, 8,
                                          c->found, &c->n);
}

static call call_open(void)
{
    call c = {.cuda = open_as((tr_backend_options){.workspace = 1 << 20})};
    const cublasOperation_t turn = CUBLAS_OP_T;
    const uint64_t most = 1 << 16;
    c.handle = c.cuda->blas->handle;
    need(cublasLtMatmulDescCreate(&c.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    need(cublasLtMatmulDescSetAttribute(c.desc, CUBLASLT_MATMUL_DESC_TRANSA, &turn, sizeof turn));
    need(cublasLtMatrixLayoutCreate(&c.a, CUDA_R_16BF, K, M, K));
    need(cublasLtMatrixLayoutCreate(&c.b, CUDA_R_16BF, K, N, K));
    need(cublasLtMatrixLayoutCreate(&c.d, CUDA_R_16BF, M, N, M));
    need(cublasLtMatmulPreferenceCreate(&c.pref));
    need(cublasLtMatmulPreferenceSetAttribute(c.pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &most, sizeof most));
    need(ask(&c));
    c.at_a = b->memory->alloc(c.cuda, TR_MEM_OTHER, K * M * 2);
    c.at_b = b->memory->alloc(c.cuda, TR_MEM_OTHER, K * N * 2);
    c.at_d = b->memory->alloc(c.cuda, TR_MEM_OTHER, M * N * 4);
    c.bias = b->memory->alloc(c.cuda, TR_MEM_OTHER, M * 4);
    c.workspace = b->memory->alloc(c.cuda, TR_MEM_OTHER, most);
    return c;
}

static void call_close(call *c)
{
    assert_ok(b->stream->finish(c->cuda));
    b->memory->free(c->cuda, c->workspace);
    b->memory->free(c->cuda, c->bias);
    b->memory->free(c->cuda, c->at_d);
    b->memory->free(c->cuda, c->at_b);
    b->memory->free(c->cuda, c->at_a);
    need(cublasLtMatmulPreferenceDestroy(c->pref));
    need(cublasLtMatrixLayoutDestroy(c->d));
    need(cublasLtMatrixLayoutDestroy(c->b));
    need(cublasLtMatrixLayoutDestroy(c->a));
    need(cublasLtMatmulDescDestroy(c->desc));
    b->close(c->cuda);
}

static cublasStatus_t multiply_with(call *c, const cublasLtMatmulHeuristicResult_t *f,
                                    size_t workspace)
{
    const float one = 1, none = 0;
    return cublasLtMatmul(c->handle, c->desc, &one, c->at_a, c->a, c->at_b, c->b, &none, c->at_d,
                          c->d, c->at_d, c->d, &f->algo, c->workspace, workspace, c->cuda->stream);
}

static cublasStatus_t multiply(call *c)
{
    return multiply_with(c, &c->found[0], c->found[0].workspaceSize);
}

static void set_type(cublasLtMatrixLayout_t l, uint32_t type)
{
    need(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type));
}

static void set_epilogue(call *c, cublasLtEpilogue_t e)
{
    need(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e));
}

static void set_bias(call *c, const void *p)
{
    need(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p, sizeof p));
}

/* ---- Codes ---- */

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

/* Of int8 into int32: A turned and B not, m, k and leading dimensions multiples of 4, whole scalars, no epilogue. */
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

/* ---- Violations ---- */

static void misaligned(call *c)
{
    c->at_d += 32;
    multiply(c);
}

static void overlap_a(call *c)
{
    c->at_d = c->at_a + 256;
    multiply(c);
}

static void workspace_on_d(call *c)
{
    c->at_d = c->workspace;
    multiply(c);
}

static void freed(call *c)
{
    b->memory->free(c->cuda, c->at_b);
    multiply(c);
}

static void host_pointer(call *c)
{
    static _Alignas(256) char here[K * M * 2];
    c->at_a = here;
    multiply(c);
}

static void bias_less_aligned(call *c)
{
    set_epilogue(c, CUBLASLT_EPILOGUE_BIAS);
    set_bias(c, c->bias);
    need(ask(c));
    set_bias(c, c->bias + 4);
    multiply(c);
}

static void too_short(call *c)
{
    c->at_b += 256;
    multiply(c);
}

static void destroyed_layout(call *c)
{
    cublasLtMatrixLayoutDestroy(c->b);
    multiply(c);
}

static void destroyed_twice(call *c)
{
    cublasLtMatmulDescDestroy(c->desc);
    cublasLtMatmulDescDestroy(c->desc);
}

static void wrong_kind(call *c)
{
    cublasLtMatrixLayoutDestroy((cublasLtMatrixLayout_t)(void *)c->desc);
}

static void unmodelled(call *c)
{
    void *p = c->bias;
    cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p,
                                   sizeof p);
}

/* Nothing else is left over. */
static void leaked(call *c)
{
    cublasLtMatrixLayout_t l;
    call_close(c);
    need(cublasLtMatrixLayoutCreate(&l, CUDA_R_16F, 1, 1, 1));
    exit(0);
}

static const struct {
    const char *name;
    void (*run)(call *);
    const char *text;
} violations[] = {
    {"misaligned", misaligned, "is not aligned to 256 bytes"},
    {"overlap_a", overlap_a, "D overlaps A"},
    {"workspace_on_d", workspace_on_d, "the workspace overlaps D"},
    {"freed", freed, "freed device memory"},
    {"host_pointer", host_pointer, "is not in device memory"},
    {"bias_less_aligned", bias_less_aligned, "bias"},
    {"too_short", too_short, "do not lie inside one allocation"},
    {"destroyed_layout", destroyed_layout, "no live cuBLASLt matrix layout"},
    {"destroyed_twice", destroyed_twice, "no live cuBLASLt operation descriptor"},
    {"wrong_kind", wrong_kind, "no live cuBLASLt matrix layout"},
    {"unmodelled", unmodelled, "not modelled"},
    {"leaked", leaked, "a cuBLASLt matrix layout was never destroyed"},
};

static char self[4096];

/* This program again, for one of the cases; what it says is looked through for the text. */
static void check_violation(size_t i)
{
    char command[4200], said[4096] = "";
    snprintf(command, sizeof command, "'%s' %s 2>&1", self, violations[i].name);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    const size_t n = fread(said, 1, sizeof said - 1, p);
    said[n] = 0;
    const int status = pclose(p);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 99)
        fail_msg("%s: ended with %d, saying: %s", violations[i].name, status, said);
    if (!strstr(said, violations[i].text))
        fail_msg("%s: \"%s\" is not in: %s", violations[i].name, violations[i].text, said);
}

static void test_violations(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(violations); i++) check_violation(i);
}

/* ---- Faults ---- */

static const struct {
    const char *call;
    bool told;   /* else what fails is cleaning up, or */
    bool passed; /* an algorithm, and another one is taken */
} faults[] = {{"cublasLtCreate", true, false},
              {"cublasLtDestroy", false, false},
              {"cublasLtMatmulDescCreate", true, false},
              {"cublasLtMatmulDescDestroy", false, false},
              {"cublasLtMatmulDescSetAttribute", true, false},
              {"cublasLtMatrixLayoutCreate", true, false},
              {"cublasLtMatrixLayoutDestroy", false, false},
              {"cublasLtMatmulPreferenceCreate", true, false},
              {"cublasLtMatmulPreferenceDestroy", false, false},
              {"cublasLtMatmulPreferenceSetAttribute", true, false},
              {"cublasLtMatmulAlgoGetHeuristic", true, false},
              {"cublasLtMatmul", false, true}};

/* A product from beginning to end, with timing; 1 and the error's text where something failed. */
static int try_product(void)
{
    void *ctx = NULL;
    tr_cuda_product *p = NULL;
    const tr_backend_options o = {.workspace = 1 << 20, .benchmark = true};
    const tr_cuda_problem q = {.m = M,
                               .n = N,
                               .k = K,
                               .lda = K,
                               .ldb = N,
                               .ldd = N,
                               .type = TR_BF16,
                               .out = TR_F32,
                               .epilogue = TR_EPILOGUE_BIAS,
                               .align_a = 256,
                               .align_b = 256,
                               .align_d = 256,
                               .align_vector = 64};
    void *part[5] = {NULL};
    tr_status st = TR_OK;
    TR_TRY(b->open(&o, &ctx));
    TR_TRY(tr_cuda_product_open(ctx, &q, &p));
    for (size_t i = 0; i < TR_COUNT(part); i++) {
        part[i] =
            b->memory->alloc(ctx, TR_MEM_OTHER, i == 4 ? tr_cuda_product_workspace(p) + 1 : 2048);
        TR_NEED(part[i], TR_MEMORY, "no memory");
    }
    TR_TRY(tr_cuda_product_run(p, &(tr_cuda_product_args){.a = part[0],
                                                          .b = part[1],
                                                          .d = part[2],
                                                          .vector = part[3],
                                                          .alpha = 1,
                                                          .workspace = part[4]}));
    TR_TRY(b->stream->finish(ctx));
out:
    if (st != TR_OK) printf("%s\n", tr_last_error()->text);
    for (size_t i = 0; ctx && i < TR_COUNT(part); i++) b->memory->free(ctx, part[i]);
    tr_cuda_product_close(p);
    b->close(ctx);
    return st != TR_OK;
}

/* Every call of the library fails once, the first and the second time: nothing is left behind. */
static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(faults); i++)
        for (int nth = 1; nth <= 2; nth++) {
            char command[4400], said[4096] = "";
            snprintf(command, sizeof command,
                     "FAKEGPU_LEAKS=strict FAKEGPU_FAIL=%s:%d '%s' fault 2>&1", faults[i].call, nth,
                     self);
            FILE *p = popen(command, "r");
            assert_non_null(p);
            said[fread(said, 1, sizeof said - 1, p)] = 0;
            const int status = pclose(p);
            /* Some are called once only. */
            const int want = faults[i].told && (nth == 1 || strstr(faults[i].call, "Attribute") ||
                                                strstr(faults[i].call, "LayoutCreate"));
            if (!WIFEXITED(status) || WEXITSTATUS(status) != want ||
                ((want || faults[i].passed) && !strstr(said, faults[i].call)) ||
                (faults[i].passed && !strstr(said, "another one is taken")))
                fail_msg("%s:%d: ended with %d, saying: %s", faults[i].call, nth, status, said);
        }
}

int main(int argc, char **argv)
{
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 1;
    if (argc > 1 && strcmp(argv[1], "fault") == 0) return try_product();
    for (size_t i = 0; argc > 1 && i < TR_COUNT(violations); i++) {
        if (strcmp(argv[1], violations[i].name) != 0) continue;
        call c = call_open();
        violations[i].run(&c);
        b->stream->finish(c.cuda);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates_differ),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_relu_loses_nan),
        cmocka_unit_test(test_violations),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
