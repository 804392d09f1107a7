/* run.profile: after `wait` steps and a warm-up, every op, reduction, wait and update of `active`
 * steps is an event; then all ranks' events become trace.json, and rank 0's a profile
 * (profile_write.c). Ops follow each other without a gap within a plan's run, so that the end of
 * the run and their durations say when each began. On the host a step's work is done when the call
 * returns. A device works later: its steps are issued one by one, and of each the laps of the
 * control and the ops of the last micro-batch are read when it is collected; of recorded steps the
 * laps alone. */
#include "trainer/loop/profile_kept.h"

#include <string.h>

#include "trainer/loop/trainer.h"

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
        tr_timed_plan *d = &p->plans[p->nplans++];
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

tr_status tr_step_profile_time_ops(tr_step_profile *p, bool on)
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
    if (on && !p->on) TR_TRY(tr_step_profile_time_ops(p, true));
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
    if (p->host) add(p, TR_TRACK_STEP, "wait for data", now - waited, now); /* else within a lap */
    if (p->counts) p->data += waited;
}

static tr_timed_plan *timed_of(const tr_step_profile *p, const tr_plan *plan)
{
    for (size_t i = 0; i < p->nplans; i++)
        if (p->plans[i].plan == plan) return &p->plans[i];
    return NULL;
}

/* The ops of the run that ended at `end`. */
static tr_status add_ops(tr_step_profile *p, tr_plan *plan, double end)
{
    tr_status st = TR_OK;
    tr_timed_plan *d = timed_of(p, plan);
    const tr_graph *g = tr_plan_graph(plan);
    double at = end;
    if (!d || !p->ops) return TR_OK;
    memset(d->seconds, 0, g->nops * sizeof *d->seconds);
    TR_TRY(tr_plan_op_seconds(plan, d->seconds));
    if (!p->counts) return TR_OK;
    d->runs++;
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

/* A reduction is exposed for as long as the step stood still and waited for it: from when it began
 * to wait, or got the one before. */
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
