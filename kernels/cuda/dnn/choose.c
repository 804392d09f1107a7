/* Which engine runs an operation graph. The heuristics name configurations, best first: mode A,
 * then B, then the fallback list; the first that may be taken, finalizes and runs (trial.h) is it.
 * With the option `benchmark`, which excludes `deterministic`, the first eight are timed and the
 * fastest is it: which one that is may differ from run to run, and so may the last bits. The
 * fallback list is for plain convolutions alone: what it names for fused graphs is slower than a
 * convolution and our own epilogue.
 *
 * An engine may be taken unless its numerical notes say that it
 *  - is not deterministic, where that is asked for;
 *  - rounds inputs to a smaller type, or sums in one: the project's sums are float32;
 *  - uses tensor cores on float32, which rounds to TF32, where that is not wanted. The graph API
 *    has no other switch for TF32: its math type is not an attribute of the convolution;
 *  - transforms (Winograd) 16-bit operands: the transformed ones are rounded to 16 bits once more.
 * Its workspace must be within the limit.
 * Source: NVIDIA cuDNN documentation, "cudnn_graph Library", cudnnBackendNumericalNote_t. */
#include "kernels/cuda/dnn/internal.h"

#include <string.h>

/* TRIED: of one problem at most, where it keeps failing. */
enum { CONFIGS = 128, TIMED = 8, TRIED = 16 };

size_t tr_dnn_limit(const tr_cuda *cuda, const tr_dnn_problem *p)
{
    const size_t most = tr_dnn_is_attention(p) ? tr_dnn_attention_workspace(p) : SIZE_MAX;
    return most < cuda->o.workspace ? most : cuda->o.workspace;
}

/* One problem's search: the best so far is in `plan`. */
typedef struct {
    tr_cuda_dnn *dnn;
    tr_dnn_plan *plan;
    tr_cuda_trial trial;
    cudnnBackendDescriptor_t pack; /* where the operands lie, with the workspace `packed` */
    void *packed;
    int tried;
} search;

static bool has(const cudnnBackendNumericalNote_t *notes, int64_t n,
                cudnnBackendNumericalNote_t note)
{
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == note) return true;
    return false;
}

static const char *objection(const tr_cuda_dnn *dnn, const tr_dnn_problem *p,
                             const cudnnBackendNumericalNote_t *notes, int64_t n)
{
    if (dnn->cuda->o.deterministic && has(notes, n, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
        return "is not deterministic";
    if (has(notes, n, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) return "rounds its inputs";
    if (has(notes, n, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
        return "sums in less than float32";
    if (p->exact && has(notes, n, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
        return "rounds float32 to TF32";
    if (p->type != TR_F32 && has(notes, n, CUDNN_NUMERICAL_NOTE_WINOGRAD))
        return "transforms 16-bit operands";
    return NULL;
}

/* *engine: its number; -1: it may not be taken. */
static tr_status admit(tr_cuda_dnn *dnn, const tr_dnn_problem *p, cudnnBackendDescriptor_t config,
                       int64_t *engine)
{
    tr_status st = TR_OK;
    cudnnBackendDescriptor_t e = NULL;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0, number = 0;
    const char *why;
    *engine = -1;
    TR_DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &e));
    TR_DNN_TRY(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &e));
    TR_DNN_TRY(cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n,
                                        &number));
    TR_DNN_TRY(cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                        CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                        &n, notes));
    if (n > CUDNN_NUMERICAL_NOTE_TYPE_COUNT) n = CUDNN_NUMERICAL_NOTE_TYPE_COUNT;
    why = objection(dnn, p, notes, n);
    if (why)
        snprintf(dnn->refusal, sizeof dnn->refusal, "engine %lld %s", (long long)number, why);
    else
        *engine = number;
out:
    if (e) cudnnBackendDestroyDescriptor(e);
    return st;
}

/* *out: the finished plan of a configuration; NULL where it is refused or asks for too much
 * memory. */
static tr_status finish(tr_cuda_dnn *dnn, const tr_dnn_problem *p, cudnnBackendDescriptor_t config,
                        int64_t engine, cudnnBackendDescriptor_t *out, int64_t *workspace)
{
    tr_status st = TR_OK;
    cudnnBackendDescriptor_t d = NULL;
    const size_t limit = tr_dnn_limit(dnn->cuda, p);
    int64_t n = 0;
    cudnnStatus_t s;
    *out = NULL;
    *workspace = 0;
    TR_DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                      &config));
    s = cudnnBackendFinalize(d);
    if (s != CUDNN_STATUS_SUCCESS && tr_dnn_refused(dnn, s, "cudnnBackendFinalize(plan)")) goto out;
    TR_TRY(tr_dnn_check(s, "cudnnBackendFinalize(plan)"));
    TR_DNN_TRY(cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &n, workspace));
    if (*workspace < 0) *workspace = 0;
    if ((uint64_t)*workspace > limit) {
        snprintf(dnn->refusal, sizeof dnn->refusal,
                 "engine %lld wants %lld bytes of workspace, of %zu allowed", (long long)engine,
                 (long long)*workspace, limit);
        goto out;
    }
    *out = d;
    d = NULL;
out:
    if (d) cudnnBackendDestroyDescriptor(d);
    return st;
}

/* ---- Trying ---- */

typedef struct {
    search *s;
    cudnnBackendDescriptor_t plan;
} attempt;

static tr_status put(void *arg, const tr_cuda_trial *t)
{
    tr_status st = TR_OK;
    const attempt *a = arg;
    search *s = a->s;
    const tr_dnn_problem *p = &s->plan->problem;
    tr_dnn_operands at = {.x = t->block[0],
                          .w = t->block[1],
                          .y = t->block[2],
                          .bias = t->block[3],
                          .residual = t->block[4]};
    if (tr_dnn_is_attention(p)) at = tr_dnn_attention_operands(p, t->block);
    at.workspace = t->workspace;
    if (!s->pack || s->packed != t->workspace) {
        if (s->pack) cudnnBackendDestroyDescriptor(s->pack);
        s->pack = NULL;
        TR_TRY(tr_dnn_pack_open(s->plan, &at, &s->pack));
        s->packed = t->workspace;
    }
    TR_TRY(
        tr_dnn_check(cudnnBackendExecute(s->dnn->handle, a->plan, s->pack), "cudnnBackendExecute"));
out:
    return st;
}

static void convolution_sizes(const tr_dnn_problem *p, size_t nbytes[TR_CUDA_TRIAL_BLOCKS])
{
    const size_t x = (size_t)(p->batch * p->in * p->size[0] * p->size[1]);
    const size_t w = (size_t)(p->out * (p->in / p->groups) * p->kernel[0] * p->kernel[1]);
    const size_t y = (size_t)(p->batch * p->out * p->result[0] * p->result[1]);
    nbytes[0] = x * tr_dtype_size((tr_dtype)p->type);
    nbytes[1] = w * tr_dtype_size((tr_dtype)p->weight_type);
    nbytes[2] = y * tr_dtype_size((tr_dtype)p->result_type);
    nbytes[3] = p->bias ? (size_t)p->out * sizeof(float) : 0;
    nbytes[4] = p->residual ? y * tr_dtype_size((tr_dtype)p->type) : 0;
}

/* At the first candidate: where there is none, no memory is needed. */
static tr_status open_trial(search *s)
{
    const tr_dnn_problem *p = &s->plan->problem;
    const bool attention = tr_dnn_is_attention(p);
    size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {0};
    if (s->tried > 0) return TR_OK;
    if (attention)
        tr_dnn_attention_sizes(p, sizes);
    else
        convolution_sizes(p, sizes);
    return tr_cuda_trial_open(&s->trial, s->dnn->cuda,
                              attention ? "plans of attention" : "convolutions", sizes);
}

static bool goes_on(const search *s)
{
    if (s->tried == 0) return true;
    return s->tried < (s->plan->graph ? TIMED : TRIED) && tr_cuda_trial_goes_on(&s->trial);
}

/* Runs a configuration that may be taken, and takes it where it is the best so far. */
static tr_status try_config(search *s, cudnnBackendDescriptor_t config, int64_t engine)
{
    tr_status st = TR_OK;
    attempt a = {.s = s};
    int64_t workspace;
    char name[sizeof s->plan->name];
    bool best = false;
    TR_TRY(finish(s->dnn, &s->plan->problem, config, engine, &a.plan, &workspace));
    if (!a.plan) goto out;
    TR_TRY(open_trial(s));
    s->tried++;
    snprintf(name, sizeof name, "cuDNN engine %lld", (long long)engine);
    TR_TRY(tr_cuda_trial_run(&s->trial, &(tr_cuda_candidate){name, (size_t)workspace, put, &a},
                             &best));
    if (!best) goto out;
    if (s->plan->graph) cudnnBackendDestroyDescriptor(s->plan->graph);
    s->plan->graph = a.plan;
    s->plan->workspace = (size_t)workspace;
    memcpy(s->plan->name, name, sizeof name);
out:
    if (a.plan && !best) cudnnBackendDestroyDescriptor(a.plan);
    return st;
}

/* The configurations of one heuristic mode, as long as another could be taken. */
static tr_status try_mode(search *of, const tr_dnn_graph *g, cudnnBackendHeurMode_t mode)
{
    tr_status st = TR_OK;
    tr_cuda_dnn *dnn = of->dnn;
    cudnnBackendDescriptor_t heuristic = NULL, configs[CONFIGS] = {NULL};
    int64_t n = 0, engine;
    cudnnStatus_t s;
    TR_DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic));
    TR_TRY(tr_dnn_set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->graph));
    TR_TRY(tr_dnn_set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    s = cudnnBackendFinalize(heuristic);
    if (s != CUDNN_STATUS_SUCCESS && tr_dnn_refused(dnn, s, "cudnnBackendFinalize(heuristics)"))
        goto out;
    TR_TRY(tr_dnn_check(s, "cudnnBackendFinalize(heuristics)"));
    for (int i = 0; i < CONFIGS; i++)
        TR_DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]));
    s = cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n, configs);
    if (s != CUDNN_STATUS_SUCCESS && tr_dnn_refused(dnn, s, "cudnnBackendGetAttribute(heuristics)"))
        goto out;
    TR_TRY(tr_dnn_check(s, "cudnnBackendGetAttribute(heuristics)"));
    for (int i = 0; i < n && i < CONFIGS && goes_on(of); i++) {
        TR_TRY(admit(dnn, &of->plan->problem, configs[i], &engine));
        if (engine >= 0) TR_TRY(try_config(of, configs[i], engine));
    }
out:
    for (int i = 0; i < CONFIGS; i++)
        if (configs[i]) cudnnBackendDestroyDescriptor(configs[i]);
    if (heuristic) cudnnBackendDestroyDescriptor(heuristic);
    return st;
}

tr_status tr_dnn_choose(tr_cuda_dnn *dnn, tr_dnn_plan *plan)
{
    tr_status st = TR_OK;
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    const tr_dnn_problem *p = &plan->problem;
    const bool fused = p->bias || p->residual || p->act || tr_dnn_is_attention(p);
    search s = {.dnn = dnn, .plan = plan};
    tr_dnn_graph g = {.n = 0};
    bool refused = false;
    TR_TRY(tr_dnn_graph_build(dnn, p, &g, &refused));
    for (size_t i = 0; !refused && i < TR_COUNT(modes) - fused && !plan->graph; i++)
        TR_TRY(try_mode(&s, &g, modes[i]));
    plan->broken = !plan->graph && s.tried > 0;
    if (plan->broken) memcpy(dnn->refusal, s.trial.why, sizeof dnn->refusal);
out:
    if (s.pack) cudnnBackendDestroyDescriptor(s.pack);
    tr_cuda_trial_close(&s.trial);
    tr_dnn_graph_close(&g);
    return st;
}
