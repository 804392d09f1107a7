/* The stage `fold`: all passes from model to model (optimize/passes), proven on data; and those
 * over the graph (runtime/graph/passes) of what they made, which keeps in its file those that are
 * not to run. */
#include "optimize/stages/stages.h"

#include <string.h>

#include "optimize/passes/passes.h"
#include "runtime/graph/facts.h"
#include "runtime/graph/ops.h"

typedef struct {
    tr_stage_common common;
    const tr_node *skip, *skip_graph;
    double bound;
    int64_t samples;
    bool normalize;
} fold_options;

static const tr_field fields[] = {
    TR_STAGE_COMMON(fold_options),
    TR_NODE("skip", offsetof(fold_options, skip), "",
            "list of passes to leave out (docs/passes.md)"),
    TR_NODE(
        "skip_graph", offsetof(fold_options, skip_graph), "",
        "list of passes over the graph (docs/passes.md) that the model is computed without from "
        "here on: model.skip_passes of its file"),
    TR_NUMBER(
        "bound", REAL, offsetof(fold_options, bound), "auto", 0, 1, NULL,
        "most that outputs may differ by, over the largest output or 1; a pass that makes more is "
        "undone, one over the graph is in model.skip_passes of the file. auto: 1e-4 in fp32, on "
        "GPUs 1e-3 but with train.tf32: false "
        "and run.deterministic: on; 0.05 in bf16, fp16 and where layers round values to 8 bits",
        .auto_text = "auto", .auto_value = -1),
    TR_INT("samples", offsetof(fold_options, samples), "256", 1, 1e9, "samples",
           "that outputs are compared on: the first of data.eval, else of data.train"),
    TR_BOOL(
        "normalize", offsetof(fold_options, normalize), "false",
        "data.normalize goes into the first layers where that is exact; the config that the model "
        "carries then has none. For the end: what trains, prunes or quantizes behind it meets "
        "inputs and weights of very different sizes"),
    TR_END,
};

/* ---- Options --------------------------------------------------------------------------------- */

enum { MOST = 64 }; /* passes */

/* names: [MOST], those to skip. */
static tr_status skipped(const tr_config *c, size_t place, const char **names, size_t *count)
{
    const fold_options *o = c->pipeline.items[place].options;
    char key[TR_STAGE_KEY];
    const char *all[MOST];
    bool found[MOST];
    const size_t n = tr_pass_count();
    if (n > MOST) return TR_FAIL(TR_INTERNAL, "more than %d passes", MOST);
    for (size_t i = 0; i < n; i++) all[i] = tr_pass_at(i)->name;
    *count = 0;
    const tr_status st =
        tr_node_names(o->skip, tr_stage_key(c, place, "skip", key), "pass", all, n, found);
    for (size_t i = 0; i < n; i++)
        if (found[i]) names[(*count)++] = all[i];
    return st;
}

static tr_status graph_skipped(const tr_config *c, size_t place, unsigned *out)
{
    const fold_options *o = c->pipeline.items[place].options;
    char key[TR_STAGE_KEY];
    return tr_graph_passes_of(o->skip_graph, tr_stage_key(c, place, "skip_graph", key), out);
}

static tr_status check(const tr_config *c, size_t place)
{
    const char *names[MOST];
    size_t n;
    unsigned skip;
    const tr_status st = skipped(c, place, names, &n);
    return st == TR_OK ? graph_skipped(c, place, &skip) : st;
}

static unsigned leaves(const void *options)
{
    (void)options;
    return TR_LEAVES_NAMES; /* biases */
}

/* ---- Proof ----------------------------------------------------------------------------------- */

typedef struct {
    const tr_stage_job *job;
    tr_config raw; /* the parent's, with no data.normalize; shallow */
    tr_over_source source;
    bool agreed; /* a failure was one of the evaluation's, which all ranks have */
} proof;

static tr_status outputs(proof *p, const tr_pass_subject *s, float **out, size_t *count)
{
    const fold_options *o = p->job->options;
    const tr_status st =
        tr_outputs_over(p->job->evaluator, s->network, s->raw ? &p->raw : p->job->parent_config,
                        p->source == TR_OVER_TRAIN, (uint64_t)o->samples, out, count);
    p->agreed = p->agreed || st != TR_OK;
    return st;
}

static tr_status differ(void *ctx, const tr_pass_subject *before, const tr_pass_subject *after,
                        double *difference)
{
    tr_status st = TR_OK;
    float *a = NULL, *b = NULL;
    size_t na, nb;
    TR_TRY(outputs(ctx, before, &a, &na));
    TR_TRY(outputs(ctx, after, &b, &nb));
    TR_NEED(na == nb, TR_INTERNAL, "%zu and %zu outputs", na, nb);
    *difference = tr_outputs_apart(a, b, na);
out:
    tr_free(a);
    tr_free(b);
    return st;
}

static double bound_of(const tr_stage_job *job)
{
    const fold_options *o = job->options;
    if (o->bound >= 0) return o->bound;
    const tr_backend *backend;
    void *ctx;
    int threads;
    tr_evaluator_place(job->evaluator, &backend, &ctx, &threads);
    if (job->parent_config->train.precision != TR_PRECISION_FP32 ||
        tr_stage_rounds(job->parent->model))
        return 0.05;
    return tr_stage_exact(job->config, backend->host) ? 1e-4 : 1e-3;
}

static tr_status say(tr_findings *f, const tr_pass_report *r)
{
    tr_status st = TR_OK;
    const size_t n = tr_pass_count();
    const char **names = tr_alloc(TR_MEM_OTHER, n, sizeof *names);
    double *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    TR_HAVE(names && v);
    for (size_t i = 0; i < n; i++) names[i] = tr_pass_at(i)->name;
    TR_TRY(tr_findings_table(f, "passes", n, names));
    for (size_t i = 0; i < n; i++) v[i] = (double)r[i].count;
    TR_TRY(tr_findings_column(f, "count", v));
    for (size_t i = 0; i < n; i++) v[i] = r[i].difference;
    TR_TRY(tr_findings_column(f, "difference", v));
    for (size_t i = 0; i < n; i++) v[i] = r[i].undone;
    TR_TRY(tr_findings_column(f, "undone", v));
    for (size_t i = 0; i < n; i++) {
        char name[TR_NAME];
        snprintf(name, sizeof name, "note_%s", names[i]);
        if (r[i].note[0]) TR_TRY(tr_attrs_add_text(&f->values, name, r[i].note));
    }
out:
    tr_free(names);
    tr_free(v);
    return st;
}

/* Rank 0. What reads the file's values still has to normalize them. */
static void tell_normalize(const tr_pass_report *r)
{
    for (size_t i = 0; i < tr_pass_count(); i++)
        if (strcmp(tr_pass_at(i)->name, "normalize") == 0 && r[i].note[0])
            tr_log(TR_LOG_INFO, "fold: data.normalize stays in front of the model: %s", r[i].note);
}

/* Rank 0. A model whose inputs are as the data has them is worse to train, to prune by size and to
 * round. */
static void warn_of_later(const tr_config *c, size_t place)
{
    static const char *const hurt[] = {"finetune", "prune", "quantize", "sketch"};
    for (size_t i = place + 1; i < c->pipeline.count; i++) {
        const char *name = tr_stage_name(c, i);
        size_t k = 0;
        while (k < TR_COUNT(hurt) && strcmp(name, hurt[k]) != 0) k++;
        if (k == TR_COUNT(hurt)) continue;
        tr_log(
            TR_LOG_WARN,
            "fold: data.normalize is in the first layers now, and stage %02zu-%s meets inputs as "
            "the data has them: its result may be much worse than with normalize: false",
            i, name);
        return;
    }
}

/* ---- Over the graph -------------------------------------------------------------------------- */

/* *Collective.* Those that the model is to do without are in it, and so in its file. */
static tr_status prove_graph(const tr_stage_job *job, const tr_config *c, tr_network *made)
{
    const fold_options *o = job->options;
    unsigned skip;
    tr_status st = graph_skipped(job->config, job->place, &skip);
    TR_TRY(tr_agree(job->comm, st, NULL));
    made->model->skip_passes |= skip;
    st = tr_stage_prove_graph(job, c, (uint64_t)o->samples, bound_of(job), made);
out:
    return st;
}

/* ---- Running --------------------------------------------------------------------------------- */

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    tr_status st = TR_OK;
    const fold_options *o = job->options;
    const tr_config *c = job->parent_config;
    proof p = {.job = job, .raw = *c};
    tr_pass_report reports[MOST];
    const char *skip[MOST];
    char why[TR_ERROR_TEXT];
    bool raw = false;
    *agreed = true;
    TR_TRY(tr_stage_source(job, &p.source, why));
    if (why[0])
        TR_TRY(tr_fail_before(TR_DATA, "fold proves what it does on data, and none is at hand: "));
    p.raw.data.normalize.written = NULL;
    p.raw.data.normalize.inputs = NULL;
    p.raw.data.normalize.count = 0;
    tr_passes_options po = {.normalize = c->data.normalize.inputs,
                            .nnormalize = o->normalize ? c->data.normalize.count : 0,
                            .bound = bound_of(job),
                            .differ = differ,
                            .ctx = &p};
    po.skip = skip;
    TR_TRY(tr_agree(job->comm, skipped(job->config, job->place, skip, &po.nskip), NULL));
    st = tr_passes_run(job->parent, &po, &out->network, &raw, reports);
    *agreed = st == TR_OK || p.agreed;
    TR_TRY(st);
    if (po.nnormalize > 0 && tr_comm_topology(job->comm)->rank == 0) {
        if (raw)
            warn_of_later(job->config, job->place);
        else
            tell_normalize(reports);
    }
    if (raw) out->override = tr_strdup(TR_PASSES_RAW);
    st = raw && !out->override ? tr_last_status() : say(job->findings, reports);
    TR_TRY(tr_agree(job->comm, st, NULL));
    st = prove_graph(job, raw ? &p.raw : c, out->network);
out:
    return st;
}

const tr_stage tr_stage_fold = {
    .name = "fold",
    .makes = true,
    .doc =
        "Makes a model of fewer layers that computes the same in evaluation: batchnorm goes into "
        "convolutions, and more (docs/passes.md). Each pass is proven on data",
    .fields = fields,
    .options_size = sizeof(fold_options),
    .check = check,
    .leaves = leaves,
    .run = run,
};
