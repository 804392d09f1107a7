/* A product ready for the library's call, for tests of the stand-in for cuBLASLt. */
#ifndef TR_TEST_BLAS_CALL_H
#define TR_TEST_BLAS_CALL_H

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

static inline void need(cublasStatus_t s)
{
    if (s != CUBLAS_STATUS_SUCCESS) fail_msg("%s", cublasLtGetStatusName(s));
}

static inline cublasStatus_t ask(call *c)
{
    memset(c->found, 0, sizeof c->found);
    return cublasLtMatmulAlgoGetHeuristic(c->handle, c->desc, c->a, c->b, c->d, c->d, c->pref, 8,
                                          c->found, &c->n);
}

static inline call call_open(void)
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

static inline void call_close(call *c)
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

static inline cublasStatus_t multiply_with(call *c, const cublasLtMatmulHeuristicResult_t *f,
                                           size_t workspace)
{
    const float one = 1, none = 0;
    return cublasLtMatmul(c->handle, c->desc, &one, c->at_a, c->a, c->at_b, c->b, &none, c->at_d,
                          c->d, c->at_d, c->d, &f->algo, c->workspace, workspace, c->cuda->stream);
}

static inline cublasStatus_t multiply(call *c)
{
    return multiply_with(c, &c->found[0], c->found[0].workspaceSize);
}

static inline void set_type(cublasLtMatrixLayout_t l, uint32_t type)
{
    need(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type));
}

static inline void set_epilogue(call *c, cublasLtEpilogue_t e)
{
    need(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e));
}

static inline void set_aux(call *c, cublasLtEpilogue_t e, void *p, int64_t ld)
{
    set_epilogue(c, e);
    need(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p,
                                        sizeof p));
    need(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld,
                                        sizeof ld));
}

static inline void set_bias(call *c, const void *p)
{
    need(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p, sizeof p));
}

#endif
