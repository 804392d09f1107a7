/* run.profile: after `wait` steps and a warm-up, every op, reduction, wait and update of `active` steps
 * is an event; then all ranks' events become trace.json, and rank 0's a table in the log. Ops follow each
 * other without a gap within a plan's run, so that the end of the run and their durations say when each
 * began. On the host a step's work is done when the call returns. A device works later: its steps are issued one
 * by one, and of each the laps of the control and the ops of the last micro-batch are read when it is
 * collected; of recorded steps the laps alone. */
#include "trainer/loop/profile.h"

#include <stdlib.h>
#include <string.h>

#include "optimize/profile/trace.h"
#include "trainer/trainer.h"

/* One plan of the training, and what its ops took in all recorded runs. */
typedef struct {
    tr_plan *plan;
    double *seconds; /* [ops], of the last run */
    double *sums;    /* [ops] */
} timed;

struct tr_step_profile {
    tr_comm *comm;
    bool host, ops; /* ops can be timed */
    uint64_t wait, warmup, active;
    uint64_t issued; /* steps since the start */
    bool on, counts; /* the step that is issued is profiled; and kept */
    bool written;
    uint64_t step, first; /* its number; of the first one kept */
    uint64_t kept;
    tr_trace trace;
    size_t nplans;
    timed *plans;
    tr_plan *last_plan;                                   /* of the step under way */
    double step_begin, part_begin, reduce_begin, reduced; /* reduced: when a bucket last was */
    int part;                                             /* tr_step_part, or -1 */
    size_t nbuckets;
    const tr_range *buckets;
    int ready;
    double *ready_at;                                  /* [nbuckets] */
    double *bucket_seconds, *bucket_exposed;           /* [nbuckets] sums */
    double data, compute, parts[TR_STEP_PARTS], steps; /* sums */
};

static const char *const part_names[TR_STEP_PARTS] = {"wait for gradients", "update",
                                                      "hand on weights"};

/* ---- Set-up ---------------------------------------------------------------------------------- */

static void reduced(void *ctx, int bucket);

static tr_status open_plans(tr_step_profile *p, tr_trainer *t, const tr_plan_key *keys,
                            size_t nkeys, size_t *most)
{
    tr_status st = TR_OK;
    TR_HAVE(p->plans = tr_alloc(TR_MEM_OTHER, nkeys, sizeof *p->plans));
    for (size_t i = 0; i < nkeys; i++) {
        if (keys[i].mode != TR_MODE_TRAIN) continue;
        timed *d = &p->plans[p->nplans++];
        d->plan = tr_session_plan_of(t->session, keys[i]);
        const size_t nops = tr_plan_rows(d->plan);
        TR_HAVE(d->seconds = tr_alloc(TR_MEM_OTHER, nops, sizeof *d->seconds));
        TR_HAVE(d->sums = tr_alloc(TR_MEM_OTHER, nops, sizeof *d->sums));
        if (nops > *most) *most = nops;
        if (!p->ops) continue;
        TR_TRY(tr_plan_time_ops(d->plan, true)); /* what it takes is allocated now, and kept */
        TR_TRY(tr_plan_time_ops(d->plan, false));
    }
out:
    return st;
}

static void say_limits(const tr_trainer *t, const tr_step_profile *p)
{
    if (t->topology->rank != 0) return;
    if (!p->ops)
        tr_log(TR_LOG_WARN,
               "run.profile: steps are recorded and replayed as a whole, so that their ops are not "
               "timed: run.cuda_graph=off times them");
    else if (!p->host)
        tr_log(TR_LOG_INFO, "run.profile: ops are those of a step's last micro-batch");
}

tr_status tr_step_profile_open(tr_trainer *t, const tr_plan_key *keys, size_t nkeys)
{
    tr_status st = TR_OK;
    const tr_config *c = t->config;
    size_t most = 0;
    if (c->run.profile.active == 0) return TR_OK;
    tr_step_profile *p = TR_NEW(TR_MEM_OTHER, tr_step_profile);
    if (!p) return tr_last_status();
    t->profile = p;
    p->comm = t->comm;
    p->host = t->backend->host;
    p->ops = t->backend->marks && !t->recorded;
    p->wait = (uint64_t)c->run.profile.wait;
    p->warmup = (uint64_t)c->run.profile.warmup;
    p->active = (uint64_t)c->run.profile.active;
    p->nbuckets = t->model->nbuckets;
    p->buckets = t->model->buckets;
    p->part = -1;
    TR_TRY(open_plans(p, t, keys, nkeys, &most));
    TR_HAVE(p->ready_at = tr_alloc(TR_MEM_OTHER, p->nbuckets, sizeof *p->ready_at));
    TR_HAVE(p->bucket_seconds = tr_alloc(TR_MEM_OTHER, p->nbuckets, sizeof *p->bucket_seconds));
    TR_HAVE(p->bucket_exposed = tr_alloc(TR_MEM_OTHER, p->nbuckets, sizeof *p->bucket_exposed));
    const size_t a_step = (size_t)t->micro_batches * (most + 2) + p->nbuckets + TR_STEP_PARTS + 5;
    TR_TRY(tr_trace_open(&p->trace, a_step * (size_t)p->active));
    if (p->host) tr_reducer_tell(t->reducer, reduced, p);
    say_limits(t, p);
out:
    return st; /* what is open is closed with the trainer */
}

void tr_step_profile_close(tr_step_profile *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->nplans; i++) {
        tr_free(p->plans[i].seconds);
        tr_free(p->plans[i].sums);
    }
    tr_free(p->plans);
    tr_free(p->ready_at);
    tr_free(p->bucket_seconds);
    tr_free(p->bucket_exposed);
    tr_trace_free(&p->trace);
    tr_free(p);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static tr_trace_event *add(tr_step_profile *p, tr_track track, const char *name, double begin,
                           double end)
{
    tr_trace_event *e = p->counts ? tr_trace_add(&p->trace, track, name, begin, end - begin) : NULL;
    if (e) e->step = p->step;
    return e;
}

double tr_step_profile_now(const tr_step_profile *p)
{
    return p && p->on ? tr_now() : 0;
}

static tr_status time_ops(tr_step_profile *p, bool on)
{
    tr_status st = TR_OK;
    for (size_t i = 0; p->ops && i < p->nplans; i++) TR_TRY(tr_plan_time_ops(p->plans[i].plan, on));
out:
    return st;
}

tr_status tr_step_profile_begin(tr_trainer *t)
{
    tr_status st = TR_OK;
    tr_step_profile *p = t->profile;
    if (!p || p->written) return TR_OK;
    const bool on = p->issued >= p->wait && p->issued < p->wait + p->warmup + p->active;
    if (on && !p->on) TR_TRY(time_ops(p, true));
    p->on = on;
    p->counts = on && p->issued >= p->wait + p->warmup;
    p->step = t->issued + 1; /* as it is called everywhere */
    if (p->counts && p->kept == 0) p->first = p->step;
    p->step_begin = tr_step_profile_now(p);
    p->issued++;
    p->ready = -1;
out:
    return st;
}

void tr_step_profile_end(tr_trainer *t)
{
    tr_step_profile *p = t->profile;
    if (!p || !p->on || !p->host) return;
    const double now = tr_now();
    add(p, TR_TRACK_STEP, "step", p->step_begin, now);
    if (!p->counts) return;
    p->steps += now - p->step_begin;
    p->kept++;
}

void tr_step_profile_data(tr_step_profile *p, double waited)
{
    if (!p || !p->on) return;
    const double now = tr_now();
    add(p, TR_TRACK_STEP, "wait for data", now - waited, now);
    if (p->counts) p->data += waited;
}

static timed *timed_of(const tr_step_profile *p, const tr_plan *plan)
{
    for (size_t i = 0; i < p->nplans; i++)
        if (p->plans[i].plan == plan) return &p->plans[i];
    return NULL;
}

/* The ops of the run that ended at `end`. */
static tr_status add_ops(tr_step_profile *p, tr_plan *plan, double end)
{
    tr_status st = TR_OK;
    timed *d = timed_of(p, plan);
    const tr_graph *g = tr_plan_graph(plan);
    double at = end;
    if (!d || !p->ops) return TR_OK;
    memset(d->seconds, 0, g->nops * sizeof *d->seconds);
    TR_TRY(tr_plan_op_seconds(plan, d->seconds));
    if (!p->counts) return TR_OK;
    for (size_t i = 0; i < g->nops; i++) at -= d->seconds[i];
    for (size_t i = 0; i < g->nops; i++) {
        if (tr_op_is_view(g, &g->ops[i])) continue;
        const tr_plan_row row = tr_plan_row_at(plan, i);
        tr_trace_event *e = add(p, TR_TRACK_OPS, row.op, at, at + d->seconds[i]);
        if (e) {
            snprintf(e->detail, sizeof e->detail, "%s", row.layer);
            e->flops = row.flops;
            e->bytes = row.bytes;
        }
        d->sums[i] += d->seconds[i];
        at += d->seconds[i];
    }
out:
    return st;
}

tr_status tr_step_profile_ran(tr_step_profile *p, tr_plan *plan, double begin)
{
    if (!p || !p->on) return TR_OK;
    p->last_plan = plan;
    if (!p->host) return TR_OK;
    const double end = tr_now();
    add(p, TR_TRACK_STEP, "forward and backward", begin, end);
    if (p->counts) p->compute += end - begin;
    return add_ops(p, plan, end);
}

void tr_step_profile_parted(tr_step_profile *p)
{
    if (!p || !p->on || !p->host || p->part < 0) return;
    const double now = tr_now();
    add(p, TR_TRACK_STEP, part_names[p->part], p->part_begin, now);
    if (p->counts) p->parts[p->part] += now - p->part_begin;
    p->part = -1;
}

void tr_step_profile_part(tr_step_profile *p, tr_step_part part)
{
    if (!p || !p->on || !p->host) return;
    tr_step_profile_parted(p);
    p->part = (int)part;
    p->part_begin = tr_now();
    if (part == TR_STEP_REDUCE) p->reduced = p->reduce_begin = p->part_begin;
}

void tr_step_profile_ready(tr_step_profile *p, int bucket)
{
    if (!p || !p->on) return;
    const double now = tr_now();
    for (; p->ready < bucket && p->ready + 1 < (int)p->nbuckets; p->ready++)
        p->ready_at[p->ready + 1] = now;
}

/* A reduction is exposed for as long as the step stood still and waited for it: from when it began to wait, or
 * got the one before. */
static void reduced(void *ctx, int bucket)
{
    tr_step_profile *p = ctx;
    if (!p->on || bucket > p->ready) return;
    const double now = tr_now(), exposed = p->part == TR_STEP_REDUCE ? now - p->reduced : 0;
    char name[32];
    if (p->part == TR_STEP_REDUCE) p->reduced = now;
    snprintf(name, sizeof name, "bucket %d", bucket);
    tr_trace_event *e = add(p, TR_TRACK_BUCKETS, name, p->ready_at[bucket], now);
    if (!e) return;
    e->id = (uint64_t)bucket;
    e->bytes = (double)tr_range_count(p->buckets[bucket]) * sizeof(float);
    snprintf(e->detail, sizeof e->detail, "exposed %.4f ms", exposed * 1e3);
    p->bucket_seconds[bucket] += e->seconds;
    p->bucket_exposed[bucket] += exposed;
}

/* ---- Devices --------------------------------------------------------------------------------- */

bool tr_step_profile_alone(const tr_step_profile *p)
{
    return p && p->on && !p->written && !p->host;
}

/* The laps, one after the other: of a step that ran alone. */
tr_status tr_step_profile_collected(tr_trainer *t, double begin, const double laps[])
{
    static const char *const names[TR_LAPS] = {"without work", "compute", "wait for other ranks"};
    tr_step_profile *p = t->profile;
    if (!tr_step_profile_alone(p) || t->state.step + 1 != p->step) return TR_OK;
    const double now = tr_now();
    double at = begin;
    add(p, TR_TRACK_STEP, "step", begin, now);
    for (int i = 0; i < TR_LAPS; i++) {
        const double end = at + laps[i] < now ? at + laps[i] : now;
        add(p, TR_TRACK_STEP, names[i], at, end);
        at = end;
    }
    if (p->counts) {
        p->kept++;
        p->steps += now - begin;
        p->compute += laps[TR_LAP_COMPUTE];
        p->parts[TR_STEP_REDUCE] += laps[TR_LAP_COMM];
    }
    return p->last_plan ? add_ops(p, p->last_plan, now) : TR_OK;
}

/* ---- What comes of it ------------------------------------------------------------------------ */

typedef struct {
    tr_plan_row row;
    double seconds;
} op_sum;

static int by_seconds(const void *a, const void *b)
{
    const op_sum *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

/* One row for what is the same op in plans of several batch sizes. */
static size_t sum_ops(const tr_step_profile *p, op_sum *out, double phases[TR_PHASE_BACKWARD + 1])
{
    size_t n = 0;
    for (size_t k = 0; k < p->nplans; k++) {
        const size_t nops = tr_plan_rows(p->plans[k].plan);
        for (size_t i = 0; i < nops; i++) {
            const tr_plan_row row = tr_plan_row_at(p->plans[k].plan, i);
            const double seconds = p->plans[k].sums[i];
            size_t at = 0;
            if (seconds <= 0) continue;
            while (at < n && (strcmp(out[at].row.layer, row.layer) != 0 ||
                              strcmp(out[at].row.op, row.op) != 0))
                at++;
            if (at == n) out[n++] = (op_sum){.row = row};
            out[at].seconds += seconds;
            phases[row.phase] += seconds;
        }
    }
    if (n > 0) qsort(out, n, sizeof *out, by_seconds);
    return n;
}

static void say_ops(const tr_step_profile *p)
{
    enum { MOST = 12 };
    size_t all = 0;
    double phases[TR_PHASE_BACKWARD + 1] = {0};
    const double ms = 1e3 / (double)p->kept;
    for (size_t k = 0; k < p->nplans; k++) all += tr_plan_rows(p->plans[k].plan);
    op_sum *sums = tr_alloc(TR_MEM_OTHER, all, sizeof *sums);
    if (!sums) return;
    const size_t n = sum_ops(p, sums, phases);
    const double total =
        phases[TR_PHASE_FORWARD] + phases[TR_PHASE_LOSS] + phases[TR_PHASE_BACKWARD];
    if (n > 0)
        tr_log(TR_LOG_INFO, "  ops: forward %.4f, loss %.4f, backward %.4f",
               phases[TR_PHASE_FORWARD] * ms, phases[TR_PHASE_LOSS] * ms,
               phases[TR_PHASE_BACKWARD] * ms);
    for (size_t i = 0; i < n && i < MOST; i++)
        tr_log(TR_LOG_INFO, "  %-24.24s %-22.22s %9.4f %5.1f %%", sums[i].row.layer, sums[i].row.op,
               sums[i].seconds * ms, sums[i].seconds / total * 100);
    if (n > MOST) tr_log(TR_LOG_INFO, "  and %zu more", n - MOST);
    tr_free(sums);
}

/* Rank 0. */
static void say(const tr_step_profile *p, const char *path)
{
    const double ms = 1e3 / (double)p->kept;
    tr_log(TR_LOG_INFO,
           "run.profile: steps %llu to %llu of all ranks are in %s; rank 0's milliseconds a step:",
           (unsigned long long)p->first, (unsigned long long)p->step, path);
    tr_log(TR_LOG_INFO,
           "  step %.4f: data wait %.4f, forward and backward %.4f, exposed communication %.4f, "
           "update %.4f, "
           "handing weights on %.4f",
           p->steps * ms, p->data * ms, p->compute * ms, p->parts[TR_STEP_REDUCE] * ms,
           p->parts[TR_STEP_UPDATE] * ms, p->parts[TR_STEP_PUBLISH] * ms);
    for (size_t b = 0; p->host && b < p->nbuckets; b++)
        tr_log(TR_LOG_INFO,
               "  bucket %zu, %zu bytes: %.4f from ready to reduced, %.4f of it exposed", b,
               tr_range_count(p->buckets[b]) * sizeof(float), p->bucket_seconds[b] * ms,
               p->bucket_exposed[b] * ms);
    say_ops(p);
    if (p->trace.dropped > 0)
        tr_log(TR_LOG_WARN, "run.profile: %zu events had no room", p->trace.dropped);
}

tr_status tr_step_profile_write(tr_trainer *t, bool last)
{
    tr_status st = TR_OK;
    tr_step_profile *p = t->profile;
    char *path = NULL;
    if (!p || p->written || p->kept == 0 || (!last && p->kept < p->active)) return TR_OK;
    p->written = true;
    p->on = p->counts = false;
    st = time_ops(p, false);
    if (st == TR_OK && t->folder) st = tr_report_follow(t);
    if (st == TR_OK && t->folder) {
        path = tr_sprintf("%s/trace.json", tr_run_folder_path(t->folder));
        if (!path) st = tr_last_status();
    }
    TR_TRY(tr_agree(t->comm, st, NULL));
    st = tr_trace_write(&p->trace, t->comm, tr_now, path);
    if (st != TR_OK && !tr_comm_broken(t->comm)) { /* the training is worth more */
        if (t->topology->rank == 0)
            tr_log(TR_LOG_WARN, "run.profile: the trace is lost: %s", tr_last_error()->text);
        st = TR_OK;
    } else if (st == TR_OK && t->topology->rank == 0) {
        say(p, path);
    }
out:
    tr_free(path);
    return st;
}
