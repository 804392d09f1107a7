/* Which algorithm: once for each distinct problem of a context. cublasLtMatmulAlgoGetHeuristic
 * orders candidates by the time that it expects; with `benchmark` the first eight are timed
 * (timing.h) and the fastest is taken.
 *
 * Same bits every time: for one algorithm on one kind of device cuBLAS promises that ("Results
 * Reproducibility"); two runs that time could choose differently, so `deterministic` and
 * `benchmark` exclude each other. Split-K sums partial products in one of three ways. In the
 * output, one block after the other (INPLACE), or in the workspace in the output's type: both would
 * round 16-bit results more than once, and the former orders blocks by a counter at run time. So
 * 16-bit outputs, and all in deterministic mode, allow only partial sums in float32 in the
 * workspace, added in a step of their own. */
#include "kernels/cuda/blas/private.h"

#include <string.h>

#include "kernels/cuda/timing.h"

enum { CANDIDATES = 8 };

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

typedef struct {
    tr_cuda_product *p;
    const cublasLtMatmulHeuristicResult_t *found;
    tr_cuda_product_args args;
} trial;

static tr_status put(void *arg, int candidate, bool *runs)
{
    const trial *t = arg;
    const cublasLtMatmulHeuristicResult_t *c = &t->found[candidate];
    const cublasStatus_t s = tr_blas_call(t->p, &c->algo, c->workspaceSize, &t->args);
    *runs = s != CUBLAS_STATUS_NOT_SUPPORTED && s != CUBLAS_STATUS_ARCH_MISMATCH;
    return *runs ? tr_cuda_blas_check(s, "cublasLtMatmul, timed") : TR_OK;
}

static tr_status fastest(tr_cuda_product *p, const cublasLtMatmulHeuristicResult_t *found, int n,
                         int *best)
{
    tr_status st = TR_OK;
    const tr_cuda_problem *q = &p->problem;
    const size_t esize = tr_dtype_size(q->type), dsize = tr_dtype_size(q->out);
    const bool vector = q->epilogue != TR_EPILOGUE_NONE && q->epilogue != TR_EPILOGUE_GELU;
    const size_t length = (size_t)(q->epilogue == TR_EPILOGUE_BIAS_GRADIENT ? q->m : q->n);
    size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {(size_t)(q->ta ? q->k : q->m) * (size_t)q->lda * esize,
                                          (size_t)(q->tb ? q->n : q->k) * (size_t)q->ldb * esize,
                                          (size_t)q->m * (size_t)q->ldd * dsize,
                                          vector ? length * dsize : 0};
    tr_cuda_trial t;
    bool room;
    for (int i = 0; i < n; i++)
        if (found[i].workspaceSize > sizes[4]) sizes[4] = found[i].workspaceSize;
    TR_TRY(tr_cuda_trial_open(&t, p->cuda, "matrix products", sizes, &room));
    if (room) {
        trial what = {p,
                      found,
                      {.a = t.block[0],
                       .b = t.block[1],
                       .d = t.block[2],
                       .vector = t.block[3],
                       .alpha = 1,
                       .workspace = t.block[4]}};
        TR_TRY(tr_cuda_trial_best(&t, n, put, &what, best));
    }
out:
    tr_cuda_trial_close(&t);
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
        if (!grown) return tr_last_status();
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
        int n = 0, best = 0;
        memset(candidates, 0, sizeof candidates);
        TR_TRY(ask(blas, p, candidates, &n));
        if (n > 1 && blas->cuda->o.benchmark) TR_TRY(fastest(p, candidates, n, &best));
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
