/* Which algorithm: once for each distinct problem of a context. cublasLtMatmulAlgoGetHeuristic
 * orders candidates by the time that it expects; with `benchmark` the first eight are run on
 * scratch matrices and the fastest is taken (the least of some runs each, which disturbances can
 * only lengthen).
 *
 * Same bits every time: for one algorithm on one kind of device cuBLAS promises that ("Results
 * Reproducibility"), so `deterministic` means not to time, as two runs could choose differently.
 * Split-K sums partial products in one of three ways. In the output, one block after the other
 * (INPLACE), or in the workspace in the output's type: both would round 16-bit results more than
 * once, and the former orders blocks by a counter at run time. So 16-bit outputs, and all in
 * deterministic mode, allow only partial sums in float32 in the workspace, added in a step of their
 * own. */
#include "kernels/cuda/blas/private.h"

#include <string.h>

enum { CANDIDATES = 8, WARM_RUNS = 1, TIMED_RUNS = 3 };

static tr_status prefer(cublasLtMatmulPreference_t pref, const tr_cuda *cuda,
                        const tr_cuda_problem *q)
{
    tr_status st = TR_OK;
    const uint64_t workspace = cuda->o.workspace;
    const uint32_t schemes = cuda->o.deterministic || q->out != TR_F32
                                 ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                 : (uint32_t)CUBLASLT_REDUCTION_SCHEME_MASK;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t value;
    } set[] = {{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, q->align_b}, /* our B comes first */
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, q->align_a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, q->align_d},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, q->align_d}};

    TR_BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &workspace, sizeof workspace));
    for (size_t i = 0; i < TR_COUNT(set); i++)
        TR_BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, set[i].name, &set[i].value,
                                                         sizeof set[i].value));
out:
    return st;
}

/* Candidates that the library says will run, best first. */
static tr_status ask(tr_cuda_blas *blas, tr_cuda_product *p,
                     cublasLtMatmulHeuristicResult_t found[CANDIDATES], int *n)
{
    tr_status st = TR_OK;
    const tr_cuda_problem *q = &p->problem;
    cublasLtMatmulPreference_t pref = NULL;
    int returned = 0;
    *n = 0;
    TR_BLAS_TRY(cublasLtMatmulPreferenceCreate(&pref));
    TR_TRY(prefer(pref, blas->cuda, q));
    if (q->epilogue != TR_EPILOGUE_NONE && q->epilogue != TR_EPILOGUE_GELU) {
        /* Not read, but its alignment is taken for that of the vectors to come. */
        void *vector = (void *)(uintptr_t)q->align_vector;
        TR_BLAS_TRY(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                   &vector, sizeof vector));
    }
    const cublasStatus_t s =
        cublasLtMatmulAlgoGetHeuristic(blas->handle, p->desc, p->first, p->second, p->result,
                                       p->result, pref, CANDIDATES, found, &returned);
    /* Some epilogues that the device or the version lacks are called invalid instead. */
    const bool none = s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_ARCH_MISMATCH ||
                      (s == CUBLAS_STATUS_INVALID_VALUE && q->epilogue != TR_EPILOGUE_NONE);
    if (none) goto out;
    TR_TRY(tr_cuda_blas_check(s, "cublasLtMatmulAlgoGetHeuristic"));
    for (int i = 0; i < returned; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS &&
            found[i].workspaceSize <= blas->cuda->o.workspace)
            found[(*n)++] = found[i];
out:
    if (pref) cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

/* ---- Timing ---- */

/* Matrices to multiply while timing. */
typedef struct {
    void *a, *b, *d, *vector, *workspace;
    cudaEvent_t start, stop;
} scratch;

static tr_status scratch_open(scratch *s, tr_cuda *cuda, const tr_cuda_problem *q,
                              const cublasLtMatmulHeuristicResult_t *found, int n)
{
    tr_status st = TR_OK;
    const size_t esize = tr_dtype_size(q->type), dsize = tr_dtype_size(q->out);
    const size_t length = (size_t)(q->epilogue == TR_EPILOGUE_BIAS_GRADIENT ? q->m : q->n);
    size_t workspace = 1;
    for (int i = 0; i < n; i++)
        if (found[i].workspaceSize > workspace) workspace = found[i].workspaceSize;
    const struct {
        void **to;
        size_t nbytes;
    } parts[] = {{&s->a, (size_t)(q->ta ? q->k : q->m) * (size_t)q->lda * esize},
                 {&s->b, (size_t)(q->tb ? q->n : q->k) * (size_t)q->ldb * esize},
                 {&s->d, (size_t)q->m * (size_t)q->ldd * dsize},
                 {&s->vector, length * dsize},
                 {&s->workspace, workspace}};
    for (size_t i = 0; i < TR_COUNT(parts); i++) {
        *parts[i].to = tr_cuda_alloc(cuda, TR_MEM_OTHER, parts[i].nbytes);
        if (!*parts[i].to) return TR_MEMORY;
    }
    TR_CUDA_TRY(cudaEventCreate(&s->start));
    TR_CUDA_TRY(cudaEventCreate(&s->stop));
out:
    return st;
}

static void scratch_close(scratch *s, tr_cuda *cuda)
{
    if (s->stop) cudaEventDestroy(s->stop);
    if (s->start) cudaEventDestroy(s->start);
    tr_cuda_free(cuda, s->workspace);
    tr_cuda_free(cuda, s->vector);
    tr_cuda_free(cuda, s->d);
    tr_cuda_free(cuda, s->b);
    tr_cuda_free(cuda, s->a);
}

/* *ms: the least of the timed runs; negative: the candidate does not run after all. */
static tr_status time_one(tr_cuda_product *p, const scratch *s,
                          const cublasLtMatmulHeuristicResult_t *found, float *ms)
{
    tr_status st = TR_OK;
    const tr_product_epilogue e = p->problem.epilogue;
    const bool vector = e != TR_EPILOGUE_NONE && e != TR_EPILOGUE_GELU;
    const tr_cuda_product_args args = {.a = s->a,
                                       .b = s->b,
                                       .d = s->d,
                                       .vector = vector ? s->vector : NULL,
                                       .alpha = 1,
                                       .workspace = s->workspace};
    *ms = -1;
    for (int i = 0; i < WARM_RUNS + TIMED_RUNS; i++) {
        float took = 0;
        TR_CUDA_TRY(cudaEventRecord(s->start, p->cuda->stream));
        const cublasStatus_t called = tr_blas_call(p, &found->algo, found->workspaceSize, &args);
        if (called == CUBLAS_STATUS_NOT_SUPPORTED || called == CUBLAS_STATUS_ARCH_MISMATCH) break;
        TR_TRY(tr_cuda_blas_check(called, "cublasLtMatmul, timed"));
        TR_CUDA_TRY(cudaEventRecord(s->stop, p->cuda->stream));
        TR_CUDA_TRY(cudaEventSynchronize(s->stop));
        TR_CUDA_TRY(cudaEventElapsedTime(&took, s->start, s->stop));
        if (i >= WARM_RUNS && (*ms < 0 || took < *ms)) *ms = took;
    }
out:
    return st;
}

static tr_status fastest(tr_cuda_product *p, const cublasLtMatmulHeuristicResult_t *found, int n,
                         int *best)
{
    tr_status st = TR_OK;
    scratch s = {0};
    float least = -1;
    *best = 0;
    TR_TRY(scratch_open(&s, p->cuda, &p->problem, found, n));
    for (int i = 0; i < n; i++) {
        float ms;
        TR_TRY(time_one(p, &s, &found[i], &ms));
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        least = ms;
        *best = i;
    }
out:
    scratch_close(&s, p->cuda);
    return st;
}

/* ---- The table ---- */

static const tr_blas_choice *remembered(const tr_cuda_blas *blas, const tr_cuda_problem *q)
{
    for (size_t i = 0; i < blas->nchoices; i++)
        if (memcmp(&blas->choices[i].problem, q, sizeof *q) == 0) return &blas->choices[i];
    return NULL;
}

static tr_status remember(tr_cuda_blas *blas, const tr_blas_choice *choice)
{
    if (blas->nchoices == blas->cap_choices) {
        const size_t cap = blas->cap_choices ? 2 * blas->cap_choices : 16;
        tr_blas_choice *grown = tr_realloc(TR_MEM_OTHER, blas->choices, cap, sizeof *grown);
        if (!grown) return TR_MEMORY;
        blas->choices = grown;
        blas->cap_choices = cap;
    }
    blas->choices[blas->nchoices++] = *choice;
    return TR_OK;
}

tr_status tr_blas_choose(tr_cuda_blas *blas, tr_cuda_product *p, bool *found)
{
    tr_status st = TR_OK;
    const tr_blas_choice *known = remembered(blas, &p->problem);
    tr_blas_choice choice = {.problem = p->problem};
    if (known) {
        choice = *known;
    } else {
        cublasLtMatmulHeuristicResult_t candidates[CANDIDATES];
        const tr_backend_options *o = &blas->cuda->o;
        int n = 0, best = 0;
        memset(candidates, 0, sizeof candidates);
        TR_TRY(ask(blas, p, candidates, &n));
        if (n > 1 && o->benchmark && !o->deterministic) TR_TRY(fastest(p, candidates, n, &best));
        choice.found = n > 0;
        if (choice.found) {
            choice.algo = candidates[best].algo;
            choice.workspace = candidates[best].workspaceSize;
        }
        memcpy(&choice.problem, &p->problem, sizeof p->problem); /* with its padding */
        TR_TRY(remember(blas, &choice));
    }
    p->algo = choice.algo;
    p->workspace = choice.workspace;
    *found = choice.found;
out:
    return st;
}
