/* The handle, and products as cuBLASLt describes them: one descriptor, three layouts, one
 * algorithm. Running one sets the addresses of the epilogue's operands in the descriptor (host
 * memory) and makes one call. */
#include "kernels/cuda/blas/private.h"

#include <string.h>

/* What a dry context says a product may take: what the library's own default workspace is on an
 * H100. */
#define DRY_WORKSPACE ((size_t)32 << 20)

static const struct {
    cublasLtEpilogue_t code;
    const char *impl;
} epilogues[TR_EPILOGUES] = {
    [TR_EPILOGUE_NONE] = {CUBLASLT_EPILOGUE_DEFAULT, "cuBLASLt"},
    [TR_EPILOGUE_BIAS] = {CUBLASLT_EPILOGUE_BIAS, "cuBLASLt bias"},
    [TR_EPILOGUE_GELU] = {CUBLASLT_EPILOGUE_GELU, "cuBLASLt gelu"},
    [TR_EPILOGUE_GELU_BIAS] = {CUBLASLT_EPILOGUE_GELU_BIAS, "cuBLASLt bias+gelu"},
    [TR_EPILOGUE_GELU_GRADIENT] = {CUBLASLT_EPILOGUE_DGELU, "cuBLASLt gelu gradient"},
    /* Our A is the library's second operand. */
    [TR_EPILOGUE_BIAS_GRADIENT] = {CUBLASLT_EPILOGUE_BGRADB, "cuBLASLt bias gradient"},
};

bool tr_epilogue_has_vector(tr_product_epilogue e)
{
    return e == TR_EPILOGUE_BIAS || e == TR_EPILOGUE_GELU_BIAS || e == TR_EPILOGUE_BIAS_GRADIENT;
}

bool tr_epilogue_has_aux(tr_product_epilogue e)
{
    return e == TR_EPILOGUE_GELU_GRADIENT;
}

tr_status tr_cuda_blas_check(cublasStatus_t s, const char *call)
{
    if (s == CUBLAS_STATUS_SUCCESS) return TR_OK;
    return TR_FAIL(s == CUBLAS_STATUS_ALLOC_FAILED ? TR_MEMORY : TR_KERNEL, "%s: %s (%s)", call,
                   cublasLtGetStatusString(s), cublasLtGetStatusName(s));
}

tr_status tr_cuda_blas_open(tr_cuda *cuda, tr_cuda_blas **out)
{
    tr_status st = TR_OK;
    tr_cuda_blas *blas = TR_NEW(TR_MEM_OTHER, tr_cuda_blas);
    if (!blas) return tr_last_status();
    blas->cuda = cuda;
    TR_BLAS_TRY(cublasLtCreate(&blas->handle));
out:
    if (st != TR_OK) {
        tr_cuda_blas_close(blas);
        return st;
    }
    *out = blas;
    return TR_OK;
}

void tr_cuda_blas_close(tr_cuda_blas *blas)
{
    if (!blas) return;
    if (blas->handle) cublasLtDestroy(blas->handle);
    for (size_t i = 0; i < blas->nchoices; i++) tr_free(blas->choices[i].refusal);
    tr_free(blas->choices);
    tr_free(blas);
}

static bool is_float(tr_dtype t)
{
    return t == TR_F32 || t == TR_BF16 || t == TR_F16;
}

/* What the library has of int8 (blas.h). */
static bool is_int8_product(const tr_cuda_problem *q)
{
    return q->type == TR_I8 && q->out == TR_I32 && !q->ta && q->tb && q->n % 4 == 0 &&
           q->k % 4 == 0 && q->lda % 4 == 0 && q->ldb % 4 == 0 && q->ldd % 4 == 0 &&
           q->epilogue == TR_EPILOGUE_NONE;
}

static cudaDataType_t code_of(tr_dtype t)
{
    switch (t) {
    case TR_BF16:
        return CUDA_R_16BF;
    case TR_F16:
        return CUDA_R_16F;
    case TR_I8:
        return CUDA_R_8I;
    case TR_I32:
        return CUDA_R_32I;
    default:
        return CUDA_R_32F;
    }
}

static bool is_alignment(uint32_t n)
{
    return n >= 2 && (n & (n - 1)) == 0;
}

/* Copied field by field, so that padding is zero and problems compare as bytes. */
static tr_status copy_problem(tr_cuda_problem *to, const tr_cuda_problem *q)
{
    tr_status st = TR_OK;
    const int64_t sizes[] = {q->m, q->n, q->k, q->lda, q->ldb, q->ldd};
    for (size_t i = 0; i < TR_COUNT(sizes); i++)
        TR_NEED(sizes[i] >= 1 && sizes[i] <= INT32_MAX, TR_UNSUPPORTED,
                "a matrix product of %lld x %lld x %lld: cuBLASLt takes sizes from 1 to %d",
                (long long)q->m, (long long)q->n, (long long)q->k, INT32_MAX);
    TR_NEED(q->lda >= (q->ta ? q->m : q->k) && q->ldb >= (q->tb ? q->k : q->n) && q->ldd >= q->n,
            TR_INTERNAL, "rows of a matrix product overlap");
    TR_NEED((is_float(q->type) && (q->out == q->type || q->out == TR_F32)) || is_int8_product(q),
            TR_UNSUPPORTED, "a matrix product of %s into %s", tr_dtype_name(q->type),
            tr_dtype_name(q->out));
    TR_NEED(q->epilogue >= 0 && q->epilogue < TR_EPILOGUES, TR_INTERNAL, "no epilogue %d",
            (int)q->epilogue);
    const bool aux = tr_epilogue_has_aux(q->epilogue);
    TR_NEED(is_alignment(q->align_a) && is_alignment(q->align_b) && is_alignment(q->align_d) &&
                (!tr_epilogue_has_vector(q->epilogue) || is_alignment(q->align_vector)) &&
                (!aux || is_alignment(q->align_aux)),
            TR_INTERNAL, "a matrix product without alignment");
    TR_NEED(!aux || q->ld_aux >= q->n, TR_INTERNAL, "rows of an auxiliary matrix overlap");
    memset(to, 0, sizeof *to);
    to->m = q->m;
    to->n = q->n;
    to->k = q->k;
    to->lda = q->lda;
    to->ldb = q->ldb;
    to->ldd = q->ldd;
    to->ta = q->ta;
    to->tb = q->tb;
    to->type = q->type;
    to->out = q->out;
    to->epilogue = q->epilogue;
    to->align_a = q->align_a;
    to->align_b = q->align_b;
    to->align_d = q->align_d;
    to->align_vector = q->align_vector;
    if (aux) {
        to->ld_aux = q->ld_aux;
        to->align_aux = q->align_aux;
    }
out:
    return st;
}

/* TF32 came with compute capability 8. */
static cublasComputeType_t compute_of(const tr_cuda *cuda, tr_dtype type)
{
    if (type == TR_I8) return CUBLAS_COMPUTE_32I;
    const bool tf32 = type == TR_F32 && cuda->o.tf32 && cuda->major >= 8;
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static tr_status describe(tr_cuda_product *p)
{
    tr_status st = TR_OK;
    const tr_cuda_problem *q = &p->problem;
    const cublasOperation_t first = q->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = q->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogues[q->epilogue].code;
    const cudaDataType_t type = code_of(q->type), out = code_of(q->out);
    const uint64_t m = (uint64_t)q->m, n = (uint64_t)q->n, k = (uint64_t)q->k;

    TR_BLAS_TRY(cublasLtMatmulDescCreate(&p->desc, compute_of(p->cuda, q->type),
                                         q->type == TR_I8 ? CUDA_R_32I : CUDA_R_32F));
    TR_BLAS_TRY(
        cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TR_BLAS_TRY(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                               sizeof second));
    if (q->epilogue != TR_EPILOGUE_NONE)
        TR_BLAS_TRY(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                   &epilogue, sizeof epilogue));
    if (tr_epilogue_has_aux(q->epilogue))
        TR_BLAS_TRY(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                   &q->ld_aux, sizeof q->ld_aux));
    TR_BLAS_TRY(cublasLtMatrixLayoutCreate(&p->first, type, q->tb ? k : n, q->tb ? n : k, q->ldb));
    TR_BLAS_TRY(cublasLtMatrixLayoutCreate(&p->second, type, q->ta ? m : k, q->ta ? k : m, q->lda));
    TR_BLAS_TRY(cublasLtMatrixLayoutCreate(&p->result, out, n, m, q->ldd));
out:
    return st;
}

/* What the library documents of auxiliary matrices. */
static bool takes_aux(const tr_cuda_problem *q)
{
    return !tr_epilogue_has_aux(q->epilogue) || (q->ld_aux % 8 == 0 && q->align_aux % 16 == 0);
}

/* -1 is what the library does not say. */
static void name_choice(tr_cuda_product *p)
{
    static const cublasLtMatmulAlgoConfigAttributes_t what[] = {
        CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
        CUBLASLT_ALGO_CONFIG_SPLITK_NUM};
    int32_t is[TR_COUNT(what)];
    for (size_t i = 0; i < TR_COUNT(what); i++) is[i] = tr_blas_ask(&p->algo, what[i], -1);
    snprintf(p->choice, sizeof p->choice, "algorithm %d, tile %d, stages %d, split %d", is[0],
             is[1], is[2], is[3]);
}

tr_status tr_cuda_product_open(tr_cuda *cuda, const tr_cuda_problem *q, tr_cuda_product **out)
{
    tr_status st = TR_OK;
    const tr_blas_choice *choice = NULL;
    tr_cuda_product *p = TR_NEW(TR_MEM_OTHER, tr_cuda_product);
    bool found = takes_aux(q);
    if (!p) return tr_last_status();
    p->cuda = cuda;
    TR_TRY(copy_problem(&p->problem, q));
    if (!found) goto out;
    if (cuda->o.dry) {
        p->workspace = cuda->o.workspace < DRY_WORKSPACE ? cuda->o.workspace : DRY_WORKSPACE;
        p->fills = true;
    } else {
        TR_TRY(describe(p));
        TR_TRY(tr_blas_choose(cuda->blas, p, &choice));
        TR_NEED(
            choice->found || q->epilogue != TR_EPILOGUE_NONE || q->type == TR_I8,
            choice->broken ? TR_KERNEL : TR_UNSUPPORTED,
            "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s on this device "
            "(compute capability %d.%d): %s",
            (long long)q->m, (long long)q->n, (long long)q->k, tr_dtype_name(q->type), cuda->major,
            cuda->minor, choice->refusal);
        found = choice->found;
        if (found) name_choice(p);
    }
out:
    if (st != TR_OK || !found) {
        tr_cuda_product_close(p);
        p = NULL;
    }
    if (st == TR_OK) *out = p;
    return st;
}

void tr_cuda_product_close(tr_cuda_product *p)
{
    if (!p) return;
    if (p->result) cublasLtMatrixLayoutDestroy(p->result);
    if (p->second) cublasLtMatrixLayoutDestroy(p->second);
    if (p->first) cublasLtMatrixLayoutDestroy(p->first);
    if (p->desc) cublasLtMatmulDescDestroy(p->desc);
    tr_free(p);
}

size_t tr_cuda_product_workspace(const tr_cuda_product *p)
{
    return p->workspace;
}

bool tr_cuda_product_fills(const tr_cuda_product *p)
{
    return p->fills;
}

const char *tr_cuda_product_impl(const tr_cuda_product *p)
{
    return p->cuda->o.dry ? "cuBLASLt (chosen on the device)" : epilogues[p->problem.epilogue].impl;
}

const char *tr_cuda_product_choice(const tr_cuda_product *p)
{
    return p->choice[0] ? p->choice : NULL;
}

static cublasStatus_t set_pointer(tr_cuda_product *p, cublasLtMatmulDescAttributes_t which,
                                  const void *at)
{
    return at ? cublasLtMatmulDescSetAttribute(p->desc, which, &at, sizeof at)
              : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t tr_blas_set_pointers(tr_cuda_product *p, const void *vector, const void *aux)
{
    const cublasStatus_t s = set_pointer(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    return s == CUBLAS_STATUS_SUCCESS
               ? set_pointer(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)
               : s;
}

static cublasStatus_t multiply(tr_cuda_product *p, const cublasLtMatmulAlgo_t *algo,
                               size_t workspace, const tr_cuda_product_args *a)
{
    const int32_t whole[] = {(int32_t)a->alpha, (int32_t)a->beta};
    const bool is_int8 = p->problem.type == TR_I8;
    const void *alpha = is_int8 ? (const void *)&whole[0] : &a->alpha,
               *beta = is_int8 ? (const void *)&whole[1] : &a->beta;
    return cublasLtMatmul(p->cuda->blas->handle, p->desc, alpha, a->b, p->first, a->a, p->second,
                          beta, a->d, p->result, a->d, p->result, algo,
                          workspace ? a->workspace : NULL, workspace, p->cuda->stream);
}

cublasStatus_t tr_blas_call(tr_cuda_product *p, const cublasLtMatmulAlgo_t *algo, size_t workspace,
                            const tr_cuda_product_args *a)
{
    const cublasStatus_t s = tr_blas_set_pointers(p, a->vector, a->aux);
    return s == CUBLAS_STATUS_SUCCESS ? multiply(p, algo, workspace, a) : s;
}

tr_status tr_cuda_product_run(tr_cuda_product *p, const tr_cuda_product_args *a)
{
    tr_status st = tr_cuda_blas_check(tr_blas_set_pointers(p, a->vector, a->aux),
                                      "cublasLtMatmulDescSetAttribute");
    if (st != TR_OK) return st;
    return tr_cuda_blas_check(multiply(p, &p->algo, p->workspace, a), "cublasLtMatmul");
}
