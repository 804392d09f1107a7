/* Which algorithm: once for each distinct problem of a context. cublasLtMatmulAlgoGetHeuristic
 * orders candidates by the time that it expects. In that order they are run once (trial.h), and the
 * first that runs is taken; with `benchmark` all are timed and the fastest is.
 *
 * Split-K. Where the result is small and the sums are long, as in the gradients of weights, a block
 * of threads for each 128 x 128 of the result leaves most of the device idle: 2 tiles, 2 of 132
 * multiprocessors, for the whole of the sum. So the sum is to be cut into `parts`, as many as fill
 * the device, of 512 elements or more each (fewer cost less to add than partial results cost to
 * write and read). Candidates with at least a quarter of these parts come first; a quarter, because
 * the library's tiles may be half as large either way. Where the library names too few, its first
 * is offered cut into parts, half and a quarter of them, if it says that it takes them. Timed are,
 * beside more of what the library names, a few parts of results whose tiles fill the device less
 * than ROUNDS times, too.
 *
 * Same bits every time: for one algorithm on one kind of device cuBLAS promises that ("Results
 * Reproducibility"); two runs that time could choose differently, so `deterministic` and
 * `benchmark` exclude each other. Split-K sums partial products in one of three ways. In the
 * output, one block after the other (INPLACE), or in the workspace in the output's type: both would
 * round 16-bit results more than once, and the former orders blocks by a counter at run time. So
 * 16-bit outputs, and all in deterministic mode, allow only partial sums in float32 in the
 * workspace, added in a step of their own; so do the parts that are ours. Also of these the library
 * rounds the whole sum to the output's type before a bias or GELU (seen with cuBLASLt 13.1 on an
 * H200: every third element of bf16 results off by more than one rounding), and so do its
 * algorithms without tiles, which run the epilogue as a kernel of its own: with such an epilogue,
 * GELU's gradient among them, 16-bit outputs allow neither. */
#include "kernels/cuda/blas/private.h"

#include <string.h>

#include "kernels/cuda/trial.h"

enum { NAMED = 8, TIMED = 32, CUT = 3, TILE = 128, PART = 512, ROUNDS = 4 };
/* Parts that are timed beside these where tiles alone fill the device a few times: the last round
 * of blocks is shorter. */
static const int32_t few[] = {2, 3, 4, 6};

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    int32_t split; /* parts that it cuts the sum into */
} candidate;

typedef struct {
    candidate c[TIMED + CUT + TR_COUNT(few)];
    int n;
} candidates;

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

int32_t tr_blas_ask(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what,
                    int32_t unknown)
{
    int32_t v = unknown;
    size_t written;
    if (cublasLtMatmulAlgoConfigGetAttribute(algo, what, &v, sizeof v, &written)) return unknown;
    return v;
}

/* Whether a sum that is made in several steps would be rounded before the epilogue. */
static bool rounds_between(const tr_cuda_problem *q)
{
    return q->out != TR_F32 && q->epilogue != TR_EPILOGUE_NONE &&
           q->epilogue != TR_EPILOGUE_BIAS_GRADIENT;
}

static void add(candidates *to, const tr_cuda_blas *blas, const tr_cuda_problem *q,
                const cublasLtMatmulHeuristicResult_t *r)
{
    if (r->state != CUBLAS_STATUS_SUCCESS || r->workspaceSize > blas->cuda->o.workspace) return;
    const int32_t split = tr_blas_ask(&r->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1);
    const int32_t tile = tr_blas_ask(&r->algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 0);
    if (rounds_between(q) && (split > 1 || tile == CUBLASLT_MATMUL_TILE_UNDEFINED)) return;
    to->c[to->n++] = (candidate){.algo = r->algo, .workspace = r->workspaceSize, .split = split};
}

/* Candidates that the library says will run, best first. */
static tr_status ask(tr_cuda_blas *blas, tr_cuda_product *p, candidates *to)
{
    tr_status st = TR_OK;
    const tr_cuda_problem *q = &p->problem;
    cublasLtMatmulHeuristicResult_t named[TIMED];
    const int want = blas->cuda->o.benchmark ? TIMED : NAMED;
    cublasLtMatmulPreference_t pref = NULL;
    int returned = 0;
    memset(named, 0, sizeof named);
    TR_BLAS_TRY(cublasLtMatmulPreferenceCreate(&pref));
    TR_TRY(prefer(pref, blas->cuda, q));
    /* Not read, but their alignment is taken for that of the operands to come. */
    TR_BLAS_TRY(tr_blas_set_pointers(
        p, tr_epilogue_has_vector(q->epilogue) ? (void *)(uintptr_t)q->align_vector : NULL,
        tr_epilogue_has_aux(q->epilogue) ? (void *)(uintptr_t)q->align_aux : NULL));
    const cublasStatus_t s =
        cublasLtMatmulAlgoGetHeuristic(blas->handle, p->desc, p->first, p->second, p->result,
                                       p->result, pref, want, named, &returned);
    /* Some epilogues that the device or the version lacks are called invalid instead. */
    const bool none = s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_ARCH_MISMATCH ||
                      (s == CUBLAS_STATUS_INVALID_VALUE && q->epilogue != TR_EPILOGUE_NONE);
    if (none) goto out;
    TR_TRY(tr_cuda_blas_check(s, "cublasLtMatmulAlgoGetHeuristic"));
    for (int i = 0; i < returned; i++) add(to, blas, q, &named[i]);
out:
    if (pref) cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

/* ---- Split-K ---- */

static int64_t tiles_of(const tr_cuda_problem *q)
{
    return ((q->m + TILE - 1) / TILE) * ((q->n + TILE - 1) / TILE);
}

static int32_t parts_of(const tr_cuda *cuda, const tr_cuda_problem *q)
{
    const int64_t fill = cuda->sms / tiles_of(q), most = q->k / PART, n = fill < most ? fill : most;
    return n > 1 ? (int32_t)n : 1;
}

static bool enough(int32_t split, int32_t parts)
{
    return split >= parts / 4;
}

/* The same algorithm with the sum in `split` parts, where the library takes that. */
static void add_cut(tr_cuda_blas *blas, const tr_cuda_product *p, const candidate *from,
                    int32_t split, candidates *to)
{
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulHeuristicResult_t r;
    cublasLtMatmulAlgo_t algo = from->algo;
    memset(&r, 0, sizeof r);
    if (cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                             sizeof split) ||
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                             sizeof scheme) ||
        cublasLtMatmulAlgoCheck(blas->handle, p->desc, p->first, p->second, p->result, p->result,
                                &algo, &r))
        return;
    r.algo = algo;
    add(to, blas, &p->problem, &r);
}

/* Those with enough parts to the front, each group in the order that it has. */
static void put_first(candidates *of, int32_t parts)
{
    candidates to = {.n = 0};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < of->n; i++)
            if (enough(of->c[i].split, parts) == (pass == 0)) to.c[to.n++] = of->c[i];
    *of = to;
}

static void cut(tr_cuda_blas *blas, const tr_cuda_product *p, int32_t parts, candidates *of)
{
    const candidate first = of->c[0];
    bool some = false;
    for (int i = 0; i < of->n; i++) some |= enough(of->c[i].split, parts);
    for (int k = 0; k < CUT && (!some || blas->cuda->o.benchmark); k++)
        if (parts >> k > first.split) add_cut(blas, p, &first, parts >> k, of);
    const bool some_rounds = parts == 1 && tiles_of(&p->problem) < ROUNDS * blas->cuda->sms;
    for (size_t k = 0; k < TR_COUNT(few) && some_rounds && blas->cuda->o.benchmark; k++)
        if (few[k] > first.split && p->problem.k / few[k] >= PART)
            add_cut(blas, p, &first, few[k], of);
    put_first(of, parts);
}

/* ---- Trying ---- */

typedef struct {
    tr_cuda_product *p;
    const candidate *c;
} attempt;

static tr_status put(void *arg, const tr_cuda_trial *t)
{
    const attempt *a = arg;
    const tr_cuda_product_args args = {.a = t->block[0],
                                       .b = t->block[1],
                                       .d = t->block[2],
                                       .vector = t->block[3],
                                       .aux = t->block[4],
                                       .alpha = 1,
                                       .workspace = t->workspace};
    return tr_cuda_blas_check(tr_blas_call(a->p, &a->c->algo, a->c->workspace, &args),
                              "cublasLtMatmul");
}

static tr_status open_trial(const tr_cuda_product *p, tr_cuda_trial *t)
{
    const tr_cuda_problem *q = &p->problem;
    const size_t esize = tr_dtype_size(q->type), dsize = tr_dtype_size(q->out);
    const size_t length = (size_t)(q->epilogue == TR_EPILOGUE_BIAS_GRADIENT ? q->m : q->n);
    const size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {
        (size_t)(q->ta ? q->k : q->m) * (size_t)q->lda * esize,
        (size_t)(q->tb ? q->n : q->k) * (size_t)q->ldb * esize,
        (size_t)q->m * (size_t)q->ldd * dsize,
        tr_epilogue_has_vector(q->epilogue) ? length * dsize : 0,
        (size_t)q->m * (size_t)q->ld_aux * dsize};
    return tr_cuda_trial_open(t, p->cuda, "matrix products", sizes);
}

static tr_status refuse(tr_blas_choice *choice, const char *why)
{
    choice->refusal = tr_strdup(why);
    return choice->refusal ? TR_OK : tr_last_status();
}

static tr_status try_all(tr_cuda_product *p, const candidates *of, tr_blas_choice *choice)
{
    tr_status st = TR_OK;
    tr_cuda_trial t;
    TR_TRY(open_trial(p, &t));
    for (int i = 0; i < of->n && tr_cuda_trial_goes_on(&t); i++) {
        const candidate *c = &of->c[i];
        attempt a = {p, c};
        char name[64];
        bool best;
        snprintf(name, sizeof name, "cuBLASLt algorithm %d",
                 (int)tr_blas_ask(&c->algo, CUBLASLT_ALGO_CONFIG_ID, -1));
        TR_TRY(tr_cuda_trial_run(&t, &(tr_cuda_candidate){name, c->workspace, put, &a}, &best));
        if (!best) continue;
        choice->found = true;
        choice->algo = c->algo;
        choice->workspace = c->workspace;
        choice->fills = enough(c->split, parts_of(p->cuda, &p->problem));
    }
    choice->broken = !choice->found;
    if (choice->broken) TR_TRY(refuse(choice, t.why));
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

static tr_status remember(tr_cuda_blas *blas, const tr_blas_choice *choice,
                          const tr_blas_choice **out)
{
    if (blas->nchoices == blas->cap_choices) {
        const size_t cap = blas->cap_choices ? 2 * blas->cap_choices : 16;
        tr_blas_choice *grown = tr_realloc(TR_MEM_OTHER, blas->choices, cap, sizeof *grown);
        if (!grown) return tr_last_status();
        blas->choices = grown;
        blas->cap_choices = cap;
    }
    *out = &blas->choices[blas->nchoices];
    blas->choices[blas->nchoices++] = *choice;
    return TR_OK;
}

static tr_status search(tr_cuda_blas *blas, tr_cuda_product *p, const tr_blas_choice **out)
{
    tr_status st = TR_OK;
    tr_blas_choice choice = {.found = false};
    candidates named = {.n = 0};
    memcpy(&choice.problem, &p->problem, sizeof p->problem); /* with its padding */
    TR_TRY(ask(blas, p, &named));
    if (named.n > 0) {
        cut(blas, p, parts_of(blas->cuda, &p->problem), &named);
        TR_TRY(try_all(p, &named, &choice));
    } else {
        TR_TRY(refuse(&choice, "none is offered"));
    }
    TR_TRY(remember(blas, &choice, out));
out:
    if (st != TR_OK) tr_free(choice.refusal);
    return st;
}

tr_status tr_blas_choose(tr_cuda_blas *blas, tr_cuda_product *p, const tr_blas_choice **out)
{
    tr_status st = TR_OK;
    const tr_blas_choice *choice = remembered(blas, &p->problem);
    if (!choice) TR_TRY(search(blas, p, &choice));
    p->algo = choice->algo;
    p->workspace = choice->workspace;
    p->fills = choice->fills;
    *out = choice;
out:
    return st;
}
