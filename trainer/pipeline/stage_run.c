/* One stage: run, evaluated, held against its budget, written, and read back. */
#include "trainer/pipeline/stage_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/loop/signals.h"
#include "trainer/pipeline/budget.h"
#include "trainer/pipeline/candidate.h"
#include "trainer/run/environment.h"

/* ---- One run of a stage ---------------------------------------------------------------------- */

typedef struct {
    tr_frame *f;
    const tr_stage *stage;
    size_t place;
    const char *name, *path;
    const tr_stage_common *common; /* NULL: the stage has no options */
    void *options;                 /* a copy, which retries make milder */
    char *inputs;                  /* tr_stage_inputs */
    bool evaluated;
    tr_evaluation before, after;
    tr_lineage lineage; /* the chain's and this stage */
    tr_findings *findings;
    tr_attrs missed; /* by attempts that went before */
    tr_candidate candidate;
    double seconds, ms; /* what the stage took; of one sample through what it made */
} run;

/* *Collective.* By hand a file may be worked on where its data is not; what then cannot be said is
 * left out. */
static tr_status evaluate(run *r, const tr_network *n, const tr_config *c, tr_evaluation *out,
                          bool *done)
{
    tr_frame *f = r->f;
    *done = false;
    if (!tr_config_has_eval(f->config)) return TR_OK;
    tr_status st = tr_evaluate(f->evaluator, n, c, out);
    *done = st == TR_OK;
    const bool wanted =
        r->common && (r->common->budget.accuracy_drop >= 0 || r->common->budget.loss_rise >= 0 ||
                      r->common->budget.accuracy >= 0 || r->common->budget.loss >= 0);
    if (st == TR_OK || !f->by_hand || wanted) return st;
    if (!tr_evaluator_without(f->evaluator, st)) return tr_last_status();
    if (tr_comm_topology(f->comm)->rank == 0)
        tr_log(TR_LOG_WARN, "%s: not evaluated: %s", r->name, tr_last_error()->text);
    return TR_OK;
}

/* tr_stage_job.open_device */
static tr_status open_device(const tr_stage_job *job, tr_device device, tr_precision precision,
                             tr_stage_device *out)
{
    return tr_frame_open_device(job->trainer, device, precision, out);
}

/* tr_stage_job.latency */
static tr_status latency(const tr_stage_job *job, const tr_network *n, double *share)
{
    double before, ms;
    if (tr_comm_topology(job->comm)->part)
        return TR_FAIL(
            TR_CONFIG,
            "it goes by what its models take, which ranks beside it change: run it on all "
            "of the job's ranks");
    const tr_status st = tr_frame_latencies(job->trainer, n, &before, &ms);
    if (st == TR_OK) *share = ms / before;
    return st;
}

/* tr_stage_job.stop */
static bool stop(void *trainer)
{
    return tr_signals_ask_stop(((const tr_frame *)trainer)->comm);
}

static tr_status add_evaluation(tr_attrs *a, const tr_evaluation *e, const char *behind)
{
    tr_status st;
    char name[TR_NAME];
    snprintf(name, sizeof name, "loss%s", behind);
    TR_TRY(tr_attrs_add_real(a, name, e->loss));
    snprintf(name, sizeof name, "accuracy%s", behind);
    if (!isnan(e->accuracy)) TR_TRY(tr_attrs_add_real(a, name, e->accuracy));
    snprintf(name, sizeof name, "top5%s", behind);
    if (!isnan(e->top5)) TR_TRY(tr_attrs_add_real(a, name, e->top5));
out:
    return st;
}

static tr_status add_size(tr_attrs *a, const tr_model *m)
{
    tr_status st;
    double multiply_adds;
    TR_TRY(tr_model_multiply_adds(m, &multiply_adds));
    TR_TRY(tr_attrs_add_count(a, "parameters", m->nparameters));
    TR_TRY(tr_attrs_add_real(a, "multiply_adds", multiply_adds));
out:
    return st;
}

static bool is_root(const run *r)
{
    return tr_comm_topology(r->f->comm)->rank == 0;
}

/* The lineage so far; a file that no stage made stands there as the one it is, measured here, as
 * does an imported one: its latency beside what the first stage makes of it. */
static tr_status begin_lineage(run *r)
{
    tr_status st = TR_OK;
    const tr_chain *c = &r->f->chain;
    tr_findings *first = NULL;
    const bool root = is_root(r); /* who writes it */
    if (root) TR_TRY(tr_lineage_read(c->file, &r->lineage));
    /* long, and only asked of a stage's own file */
    for (size_t i = 0; i < r->lineage.count; i++)
        tr_attrs_remove(&r->lineage.v[i].values, "inputs");
    if (root && r->lineage.count == 0) TR_TRY(tr_lineage_add(&r->lineage, "00-train", &first));
    if (root && !first && !tr_attrs_get(&r->lineage.v[0].values, "latency_ms"))
        first = &r->lineage.v[0];
    if (first) {
        TR_TRY(add_size(&first->values, c->network->model));
        if (r->evaluated) TR_TRY(add_evaluation(&first->values, &r->before, ""));
        if (c->teacher_sha256[0])
            TR_TRY(tr_attrs_add_text(&first->values, "teacher_sha256", c->teacher_sha256));
        if (c->origin.sha256[0]) {
            TR_TRY(tr_attrs_add_text(&first->values, "init_sha256", c->origin.sha256));
            TR_TRY(tr_attrs_add_text(&first->values, "init_from", c->origin.text));
        }
    }
    TR_TRY(tr_lineage_add(&r->lineage, r->name, &r->findings));
out:
    return st;
}

static tr_status add_latencies(run *r)
{
    tr_status st = TR_OK;
    tr_attrs *first = is_root(r) ? &r->lineage.v[0].values : NULL, *a = &r->findings->values;
    if (first && !tr_attrs_get(first, "latency_ms"))
        TR_TRY(tr_attrs_add_real(first, "latency_ms", r->f->latency_ms));
    TR_TRY(tr_attrs_add_real(a, "latency_ms_before", r->f->latency_ms));
    TR_TRY(tr_attrs_add_real(a, "latency_ms", r->ms));
out:
    return st;
}

/* What the frame says of every stage; the rest is the stage's own. */
static tr_status describe(run *r, const tr_network *made)
{
    tr_status st;
    char *options = NULL;
    tr_attrs *a = &r->findings->values;
    const tr_chain *c = &r->f->chain;
    const tr_backend *backend;
    void *ctx;
    int threads;
    tr_evaluator_place(r->f->evaluator, &backend, &ctx, &threads);
    TR_TRY(tr_stage_options_text(r->stage, r->options, 0, &options));
    TR_TRY(tr_attrs_add_text(a, "name", r->stage->name));
    TR_TRY(tr_attrs_add_text(a, "options", options));
    TR_TRY(tr_attrs_add_text(a, "inputs", r->inputs));
    TR_TRY(tr_attrs_add_text(a, "parent_sha256", c->sha256));
    TR_TRY(tr_attrs_add_count(a, "parent_bytes", c->nbytes));
    TR_TRY(tr_attrs_add_text(a, "trireme_version", TR_VERSION));
    TR_TRY(tr_environment_add(backend, ctx, threads, a));
    TR_TRY(tr_attrs_add_count(a, "ranks", (uint64_t)tr_comm_topology(r->f->comm)->size));
    TR_TRY(tr_attrs_add_real(a, "seconds", r->seconds));
    for (size_t i = 0; i < r->missed.count; i++) TR_TRY(tr_attrs_add(a, &r->missed.v[i]));
    TR_TRY(add_size(a, made->model));
    TR_TRY(add_latencies(r));
    if (r->evaluated) {
        TR_TRY(tr_attrs_add_count(a, "samples", r->after.samples));
        TR_TRY(add_evaluation(a, &r->before, "_before"));
        TR_TRY(add_evaluation(a, &r->after, ""));
    }
out:
    free(options);
    return st;
}

/* *Collective.* The file, whose size a budget may look at, and the verdict: *miss tells what was
 * missed, "" where nothing was. */
static tr_status write_and_judge(run *r, const tr_network *n, const tr_stage_result *made,
                                 tr_miss *miss)
{
    tr_status st;
    TR_TRY(tr_candidate_write(&r->candidate, n, &r->lineage));
    const tr_measured m = {.evaluated = r->evaluated,
                           .before = r->before,
                           .after = r->after,
                           .parent_bytes = r->f->chain.nbytes,
                           .bytes = made->nbytes ? made->nbytes : r->candidate.nbytes,
                           .parent_ms = r->f->latency_ms,
                           .ms = r->ms};
    if (r->common) tr_budget_judge(&r->common->budget, &m, miss);
out:
    return st;
}

/* *Collective.* What was made beside what it was made from; where nothing was made, what that takes
 * is known or measured. */
static tr_status measure(run *r, const tr_network *made)
{
    tr_frame *f = r->f;
    tr_status st = TR_OK;
    if (made) return tr_frame_latencies(f, made, &f->latency_ms, &r->ms);
    if (f->latency_ms == 0) st = tr_frame_latency(f, f->chain.network, &f->latency_ms);
    r->ms = f->latency_ms;
    return st;
}

/* *Collective.* One attempt, up to a candidate and the verdict. */
static tr_status attempt(run *r, tr_stage_result *made, tr_miss *miss, bool *agreed)
{
    tr_status st;
    tr_frame *f = r->f;
    const double begin = tr_now();
    const tr_lineage so_far = {.count = r->lineage.count - 1, .v = r->lineage.v};
    const tr_stage_job job = {.config = f->config,
                              .place = r->place,
                              .options = r->options,
                              .comm = f->comm,
                              .parent = f->chain.network,
                              .parent_config = f->chain.config,
                              .before = r->evaluated ? &r->before : NULL,
                              .evaluator = f->evaluator,
                              .path = r->path,
                              .folder = f->folder,
                              .file = f->chain.file,
                              .sha256 = f->chain.sha256,
                              .lineage = &so_far,
                              .by_hand = f->by_hand,
                              .findings = r->findings,
                              .train = tr_stage_train_within,
                              .latency = latency,
                              .open_device = open_device,
                              .stop = stop,
                              .trainer = f};
    TR_TRY(r->stage->run(&job, made, agreed));
    const tr_network *n = made->network ? made->network : f->chain.network;
    r->seconds = tr_now() - begin;
    TR_TRY(tr_agree(f->comm, tr_candidate_resolve(&r->candidate, made), NULL));
    r->after = r->before;
    if (made->network && r->evaluated) {
        bool done;
        TR_TRY(evaluate(r, n, r->candidate.config, &r->after, &done));
    }
    TR_TRY(measure(r, made->network));
    TR_TRY(tr_agree(f->comm, describe(r, n), NULL));
    TR_TRY(write_and_judge(r, n, made, miss));
out:
    return st;
}

static void clear_result(tr_stage_result *made)
{
    tr_network_close(made->network);
    tr_free(made->override);
    *made = (tr_stage_result){0};
}

/* *Collective.* What an attempt found is forgotten, but for what it missed. */
static tr_status begin_again(run *r, tr_stage_result *made)
{
    tr_findings fresh = {0};
    snprintf(fresh.stage, sizeof fresh.stage, "%s", r->findings->stage);
    tr_findings_free(r->findings);
    *r->findings = fresh;
    clear_result(made);
    r->f->attempt++;
    return TR_OK;
}

/* *Collective.* A missed budget: the parent's model handed on, or the failure. */
static tr_status missed(run *r, const tr_miss *miss, tr_stage_result *made)
{
    tr_status st = TR_OK;
    tr_comm *comm = r->f->comm;
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_miss none;
    if (r->common->on_miss != TR_MISS_KEEP_PARENT) {
        if (root) tr_candidate_reject(&r->candidate);
        return TR_FAIL(TR_BUDGET, "stage %s: %s", r->name, miss->text);
    }
    if (root) tr_log(TR_LOG_WARN, "stage %s: %s: the model goes on as it was", r->name, miss->text);
    TR_TRY(begin_again(r, made));
    TR_TRY(tr_agree(comm, tr_attrs_add_text(&r->findings->values, "missed", miss->text), NULL));
    r->after = r->before;
    r->ms = r->f->latency_ms;
    TR_TRY(tr_agree(comm, tr_candidate_resolve(&r->candidate, made), NULL));
    TR_TRY(tr_agree(comm, describe(r, r->f->chain.network), NULL));
    TR_TRY(write_and_judge(r, r->f->chain.network, made, &none));
out:
    return st;
}

/* *Collective.* What the attempt that missed was made with and came to, before the options become
 * milder: *again. */
static tr_status note(run *r, const tr_miss *miss, bool *again)
{
    char *was = NULL, *now = NULL, change[300];
    const tr_attempt a = {.number = r->f->attempt + 1,
                          .evaluation = r->evaluated ? &r->after : NULL,
                          .nbytes = r->candidate.nbytes,
                          .ms = r->ms};
    const tr_stage *s = r->stage;
    *again = false;
    if (r->common->on_miss != TR_MISS_RETRY || !s->milder) return TR_OK;
    if (miss->cost) {
        if (tr_comm_topology(r->f->comm)->rank == 0)
            tr_log(TR_LOG_WARN,
                   "stage %s: not tried again: milder options make nothing smaller or faster",
                   r->name);
        return TR_OK;
    }
    tr_status st = tr_stage_options_text(s, r->options, TR_STAGE_COMMON_FIELDS, &was);
    *again = s->milder(r->options, r->f->chain.network);
    if (st == TR_OK && *again) st = tr_attempt_note(&a, miss, was, &r->missed);
    if (st == TR_OK) st = tr_stage_options_text(s, r->options, TR_STAGE_COMMON_FIELDS, &now);
    if (st == TR_OK) st = tr_stage_change(s->name, was, now, change, sizeof change);
    TR_TRY(tr_agree(r->f->comm, st, NULL));
    if (*again && tr_comm_topology(r->f->comm)->rank == 0)
        tr_log(TR_LOG_WARN, "stage %s: %s: again with %s", r->name, miss->text, change);
out:
    free(was);
    free(now);
    return st;
}

/* *Collective.* Attempts until one keeps to the budget, or nothing milder is left. */
static tr_status attempts(run *r, tr_stage_result *made, bool *agreed)
{
    tr_status st;
    tr_miss miss = {0};
    for (;;) {
        TR_TRY(attempt(r, made, &miss, agreed));
        if (!miss.text[0]) return TR_OK;
        bool again;
        TR_TRY(note(r, &miss, &again));
        if (!again) return missed(r, &miss, made);
        TR_TRY(begin_again(r, made));
    }
out:
    return st;
}

static tr_status copy_options(run *r)
{
    const tr_list_item *item = &r->f->config->pipeline.items[r->place];
    if (!r->stage->fields) return TR_OK;
    r->options = tr_alloc(TR_MEM_OTHER, r->stage->options_size, 1);
    if (!r->options) return tr_last_status();
    memcpy(r->options, item->options, r->stage->options_size);
    r->common = r->options;
    return TR_OK;
}

/* Rank 0. The candidate takes the place of what the stage made before, whose files beside it go
 * where it wrote others. By hand they stay: who exports a model in two formats wants both. */
static tr_status replace(const run *r, const char *file)
{
    tr_status st;
    tr_lineage was = {0};
    const bool any = !r->f->by_hand && access(file, F_OK) == 0 &&
                     tr_lineage_read(file, &was) == TR_OK && was.count > 0 &&
                     strcmp(was.v[was.count - 1].stage, r->name) == 0;
    TR_TRY(tr_candidate_accept(&r->candidate));
    if (any) tr_stage_replaced(&was.v[was.count - 1], r->findings, r->path);
out:
    tr_lineage_free(&was);
    return st;
}

/* *Collective.* The candidate becomes the stage's file, and the chain goes on from it; by hand
 * nothing does. */
static tr_status accept(run *r)
{
    tr_status st = TR_OK;
    char *file = tr_sprintf("%s.h5", r->path);
    TR_TRY(tr_agree(r->f->comm, file ? TR_OK : tr_last_status(), NULL));
    if (tr_comm_topology(r->f->comm)->rank == 0) st = replace(r, file);
    TR_TRY(tr_agree(r->f->comm, st, NULL));
    if (!r->f->by_hand) TR_TRY(tr_chain_load(r->f->comm, file, NULL, 0, &r->f->chain));
    r->f->latency_ms = r->ms;
out:
    tr_free(file);
    return st;
}

static void say_done(const run *r)
{
    char time[32], loss[128] = "";
    if (tr_comm_topology(r->f->comm)->rank != 0) return;
    if (r->evaluated && !isnan(r->after.accuracy))
        snprintf(loss, sizeof loss, ", accuracy %.4f (before %.4f), loss %.6g (%.6g)",
                 r->after.accuracy, r->before.accuracy, r->after.loss, r->before.loss);
    else if (r->evaluated)
        snprintf(loss, sizeof loss, ", loss %.6g (before %.6g)", r->after.loss, r->before.loss);
    tr_log(TR_LOG_INFO, "stage %s done in %s: %.4g ms a sample%s", r->name,
           tr_format_seconds(r->seconds, time, sizeof time), r->ms, loss);
}

/* Whether the model that is there now has what the options ask for. A training within the stage
 * looks for itself. */
static tr_status check_model(const run *r)
{
    const tr_stage_outlook o = {.config = r->f->config,
                                .place = r->place,
                                .model = r->f->chain.network->model,
                                .left = TR_LEAVES_NAMES,
                                .runs = true};
    return r->stage->check_model ? r->stage->check_model(&o) : TR_OK;
}

/* Rank 0. By hand: what lies beside the file now, and those that the stage noted
 * (tr_stage_wrote). */
static void say_files(const run *r)
{
    const tr_attr *noted = tr_attrs_get(&r->findings->values, "files");
    const char *slash = strrchr(r->path, '/'), *line = noted ? noted->text : "";
    const int folder = slash ? (int)(slash - r->path) + 1 : 0;
    if (!r->f->by_hand || tr_comm_topology(r->f->comm)->rank != 0) return;
    tr_log(TR_LOG_INFO, "stage %s wrote %s.h5", r->name, r->path);
    for (size_t n; *line; line += n + (line[n] != 0)) {
        n = strcspn(line, "\n");
        tr_log(TR_LOG_INFO, "stage %s wrote %.*s%.*s", r->name, folder, r->path, (int)n, line);
    }
}

tr_status tr_stage_run(tr_frame *f, size_t place, const char *name, const char *path, bool *agreed)
{
    tr_status st;
    tr_stage_result made = {0};
    run r = {
        .f = f, .stage = tr_stage_at(f->config, place), .place = place, .name = name, .path = path};
    *agreed = true;
    f->attempt = 0;
    if (tr_comm_topology(f->comm)->rank == 0) tr_log(TR_LOG_INFO, "stage %s", name);
    st = tr_candidate_open(f, name, path, &r.candidate);
    TR_TRY(tr_agree(f->comm, st == TR_OK ? copy_options(&r) : st, NULL));
    TR_TRY(tr_agree(f->comm, check_model(&r), NULL));
    TR_TRY(tr_agree(f->comm, tr_stage_inputs(f, place, &r.inputs), NULL));
    TR_TRY(tr_frame_enter_device(f));
    TR_TRY(evaluate(&r, f->chain.network, f->chain.config, &r.before, &r.evaluated));
    TR_TRY(tr_agree(f->comm, begin_lineage(&r), NULL));
    TR_TRY(attempts(&r, &made, agreed));
    TR_TRY(accept(&r));
    say_done(&r);
    say_files(&r);
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_candidate_close(&r.candidate);
        tr_lineage_free(&r.lineage);
        tr_attrs_free(&r.missed);
        clear_result(&made);
        tr_free(r.inputs);
        tr_free(r.options);
        tr_set_error(&why);
    }
    return st;
}
