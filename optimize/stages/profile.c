/* The stage `profile`: where the time of the model goes, on rank 0 while the others wait. */
#include "optimize/stages/stages.h"

#include <string.h>
#include <unistd.h>

#include "optimize/profile/profile.h"
#include "optimize/profile/trace.h"
#include "runtime/base/file.h"

enum { BOTH, INFERENCE, TRAIN };
static const char *const modes[] = {"both", "inference", "train", NULL};

typedef struct {
    tr_stage_common common;
    int mode;
    tr_ints batches;
    int64_t train_batch, runs, rows;
    bool counters;
} profile_options;

static const tr_field fields[] = {
    TR_STAGE_COMMON(profile_options),
    TR_CHOICE(
        "mode", offsetof(profile_options, mode), modes, "both",
        "what is profiled: inference; train: a training step of one rank, without what ranks send "
        "each other (run.profile has that); or both"),
    TR_INTS("batches", offsetof(profile_options, batches), "[1, 32]", 1, 1 << 20, "samples",
            "sizes of the batches of inference"),
    TR_INT(
        "train_batch", offsetof(profile_options, train_batch), "auto", 1, 1 << 20, "samples",
        "of the training step; auto: a rank's share of train.batch. A step of one sample is timed, "
        "too: what other micro-batches take, which run.memory_limit chooses, lies between",
        .auto_text = "auto", .auto_value = 0),
    TR_INT("runs", offsetof(profile_options, runs), "20", 1, 100000, NULL,
           "how often each is run; times are medians"),
    TR_INT("rows", offsetof(profile_options, rows), "15", 1, 10000, NULL,
           "of the printed table: ops that take longest; files and findings have all"),
    TR_BOOL(
        "counters", offsetof(profile_options, counters), "true",
        "read hardware counters (cycles, instructions, cache misses), where the system allows it"),
    TR_END,
};

/* Of one run of the stage. */
typedef struct {
    const tr_stage_job *job;
    const profile_options *o;
    tr_machine machine;
    int *segments; /* of training */
    size_t n;
    tr_profile_options options[TR_LIST_MAX + 2];
    tr_profile profiles[TR_LIST_MAX + 2];
} job_state;

static tr_profile_options options_of(const job_state *s, tr_mode mode, int64_t batch)
{
    const tr_config *c = s->job->config;
    tr_profile_options o = {.network = s->job->parent,
                            .precision = (tr_precision)c->train.precision,
                            .mode = mode,
                            .batch = batch,
                            .runs = (int)s->o->runs,
                            .counters = s->o->counters,
                            .training = mode == TR_MODE_TRAIN ? c : NULL,
                            .recompute = c->train.recompute.kind.which,
                            .recompute_every = c->train.recompute.every,
                            .recompute_segments = s->segments,
                            .skip_passes = tr_graph_skip(c),
                            .stop = s->job->stop,
                            .stop_ctx = s->job->trainer};
    tr_evaluator_place(s->job->evaluator, &o.backend, &o.backend_ctx, &o.threads);
    return o;
}

/* Each case once, whatever is listed. */
static void add_case(job_state *s, tr_mode mode, int64_t batch)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->options[i].mode == mode && s->options[i].batch == batch) return;
    s->options[s->n++] = options_of(s, mode, batch);
}

/* What is to be profiled; before anything is measured it is known whether there is memory for all
 * of it. */
static tr_status plan(job_state *s)
{
    tr_status st = TR_OK;
    const tr_config *c = s->job->config;
    const int size = tr_comm_topology(s->job->comm)->size;
    const int64_t share = (c->train.batch + size - 1) / size,
                  batch = s->o->train_batch > 0 ? s->o->train_batch : share;
    st = tr_segments_read(c, s->job->parent->model, &s->segments);
    if (st == TR_CONFIG) st = TR_OK; /* of layers that are gone: none */
    TR_TRY(st);
    for (size_t i = 0; s->o->mode != TRAIN && i < s->o->batches.count; i++)
        add_case(s, TR_MODE_INFER, s->o->batches.v[i]);
    const bool trains = s->o->mode != INFERENCE && s->job->parent->model->learned_count > 0;
    if (trains) add_case(s, TR_MODE_TRAIN, batch);
    if (trains) add_case(s, TR_MODE_TRAIN, 1);
    for (size_t i = 0; i < s->n; i++) {
        const tr_profile_options *o = &s->options[i];
        size_t nbytes;
        TR_TRY(tr_profile_needs(o, &nbytes));
        TR_TRY(tr_stage_fits(s->job, o->mode == TR_MODE_INFER ? "batches" : "train_batch", o->batch,
                             nbytes));
    }
out:
    return st;
}

static tr_status measure_all(job_state *s)
{
    tr_status st = TR_OK;
    const tr_config *c = s->job->config;
    const tr_backend *backend;
    void *ctx;
    int threads;
    const bool kept = access(c->output, W_OK) == 0;
    char *file = kept ? tr_sprintf("%s/machine.json", c->output) : NULL;
    TR_HAVE(file || !kept);
    tr_evaluator_place(s->job->evaluator, &backend, &ctx, &threads);
    TR_TRY(plan(s));
    TR_TRY(tr_machine_get(file, backend, ctx, threads, &s->machine));
    for (size_t i = 0; i < s->n; i++)
        TR_TRY(tr_profile_measure(&s->options[i], &s->machine, &s->profiles[i]));
    TR_TRY(tr_machine_correct(file, backend, ctx, s->profiles, s->n, &s->machine));
out:
    tr_free(file);
    return st;
}

/* ---- What comes of it ------------------------------------------------------------------------ */

/* Ops one after the other, each as long as its median. */
static tr_status print_trace(const job_state *s, FILE *to)
{
    char title[64];
    size_t most = 0;
    double now = 0;
    tr_trace t;
    for (size_t i = 0; i < s->n; i++) most += s->profiles[i].nrows + 1;
    const tr_status st = tr_trace_open(&t, most);
    if (st != TR_OK) return st;
    for (size_t i = 0; i < s->n; i++) {
        const tr_profile *p = &s->profiles[i];
        tr_trace_event *whole =
            tr_trace_add(&t, TR_TRACK_STEP, tr_profile_title(p, title, sizeof title), now, 0);
        for (size_t k = 0; k < p->nrows; k++) {
            const tr_profile_row *r = &p->rows[k];
            tr_trace_event *e = tr_trace_add(&t, TR_TRACK_OPS, r->op, now, r->seconds);
            snprintf(e->detail, sizeof e->detail, "%s", r->layer);
            e->step = i;
            e->flops = r->flops;
            e->bytes = r->bytes;
            now += r->seconds;
        }
        whole->step = i;
        whole->seconds = now - whole->begin;
    }
    tr_trace_print(&t, 1, to);
    tr_trace_free(&t);
    return TR_OK;
}

static tr_status wrote(const void *ctx, const char *path)
{
    return tr_stage_wrote(ctx, path);
}

/* Rank 0. */
static tr_status write_files(const job_state *s)
{
    tr_text_file f;
    char *path = tr_sprintf("%s.trace.json", s->job->path);
    tr_status st = tr_profile_files(s->job->path, s->profiles, s->n, &s->machine, wrote, s->job);
    TR_TRY(st);
    TR_HAVE(path);
    st = tr_text_file_open(&f, path);
    if (st == TR_OK) st = print_trace(s, f.to);
    TR_TRY(tr_text_file_close(&f, st));
    st = tr_stage_wrote(s->job, path);
out:
    tr_free(path);
    return st;
}

/* Rank 0. */
static tr_status say(const job_state *s)
{
    tr_status st = TR_OK;
    const tr_machine *m = &s->machine;
    tr_log(TR_LOG_INFO, "%s, %lld thread%s", m->device, (long long)m->threads,
           m->threads == 1 ? "" : "s");
    for (int k = 0; k < TR_PEAKS; k++)
        if (m->peak[k] > 0)
            tr_log(TR_LOG_INFO, "peak %-5s %10.1f GFLOP/s%s%s", tr_peak_names[k], m->peak[k] * 1e-9,
                   m->by[k][0] ? ": " : "", m->by[k]);
    tr_log(TR_LOG_INFO, "copies: %.1f GB/s in the cache, %.1f GB/s in memory", m->cache * 1e-9,
           m->memory * 1e-9);
    for (size_t i = 0; st == TR_OK && i < s->n; i++) {
        tr_text_file f;
        st = tr_text_file_open(&f, "the table of a profile");
        if (st == TR_OK) tr_profile_table(&s->profiles[i], m, (size_t)s->o->rows, f.to);
        st = tr_text_file_log(&f, TR_LOG_INFO, st);
    }
    return st;
}

static tr_status add_findings(const job_state *s)
{
    tr_status st = TR_OK;
    const tr_machine *m = &s->machine;
    tr_attrs *a = &s->job->findings->values;
    char name[TR_NAME];
    TR_TRY(tr_attrs_add_text(a, "device", m->device));
    TR_TRY(tr_attrs_add_count(a, "threads", (uint64_t)m->threads));
    for (int k = 0; k < TR_PEAKS; k++) {
        snprintf(name, sizeof name, "peak_%s_gflops", tr_peak_names[k]);
        if (m->peak[k] > 0) TR_TRY(tr_attrs_add_real(a, name, m->peak[k] * 1e-9));
        snprintf(name, sizeof name, "peak_%s_by", tr_peak_names[k]);
        if (m->by[k][0]) TR_TRY(tr_attrs_add_text(a, name, m->by[k]));
    }
    TR_TRY(tr_attrs_add_real(a, "cache_gbytes_per_s", m->cache * 1e-9));
    TR_TRY(tr_attrs_add_real(a, "memory_gbytes_per_s", m->memory * 1e-9));
    for (size_t i = 0; i < s->n; i++) {
        const tr_profile *p = &s->profiles[i];
        snprintf(name, sizeof name, "%s_%lld", p->mode == TR_MODE_TRAIN ? "train" : "inference",
                 (long long)p->batch);
        TR_TRY(tr_profile_findings(p, name, s->job->findings));
        snprintf(name, sizeof name, "%s_%lld_ms", p->mode == TR_MODE_TRAIN ? "train" : "inference",
                 (long long)p->batch);
        TR_TRY(tr_attrs_add_real(a, name, p->seconds * 1e3));
        if (!p->counted) TR_TRY(tr_attrs_add_text(a, "no_counters", p->not_counted));
    }
out:
    return st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    tr_status st = TR_OK;
    job_state s = {.job = job, .o = job->options};
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    (void)out, (void)agreed;
    if (root) tr_comm_busy(job->comm, TR_BUSY_MEASURES);
    if (root) st = measure_all(&s);
    if (root && st == TR_OK) st = write_files(&s);
    if (root && st == TR_OK) st = say(&s);
    tr_comm_busy(job->comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(job->comm, st, NULL));
    TR_TRY(tr_machine_share(&s.machine, job->comm));
    TR_TRY(tr_comm_broadcast(job->comm, &s.n, sizeof s.n, 0));
    for (size_t i = 0; i < s.n; i++) TR_TRY(tr_profile_share(&s.profiles[i], job->comm));
    TR_TRY(tr_agree(job->comm, add_findings(&s), NULL));
out:
    for (size_t i = 0; i < TR_COUNT(s.profiles); i++) tr_profile_free(&s.profiles[i]);
    tr_free(s.segments);
    return st;
}

static const char *timed(const void *options)
{
    (void)options;
    return "all that it finds";
}

const tr_stage tr_stage_profile = {
    .name = "profile",
    .doc = "Times each op of inference and of a training step, against what this machine can do, "
           "and says what "
           "binds those that take most; the model stays as it is. Beside its file: `.txt`, "
           "`.trace.json` "
           "(Perfetto), `.folded`, `.flame.svg`, `.roofline.svg`",
    .fields = fields,
    .options_size = sizeof(profile_options),
    .timed = timed,
    .run = run,
};
