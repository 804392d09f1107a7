/* One plan, run again and again on random samples: first as it is, for what a run takes, then with each
 * op timed, then, where counters can be had, with those read between ops. */
#include "optimize/profile/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tr_part_names[TR_PARTS] = {"forward", "loss", "backward", "update"};

typedef struct {
    const tr_profile_options *o;
    tr_params *params;
    tr_session *session;
    tr_plan *plan;
    void *inputs[TR_MAX_IN], *target; /* of host_alloc */
    float *weights;                   /* of samples, likewise */
    double *tally;                    /* in the backend's memory, as is the control */
    tr_control *control;
    void *training;
    tr_optimizer *optimizer;
    size_t nops;     /* of the graph; behind them the update */
    double *seconds; /* [nops], scratch */
    double *samples; /* [(nops + 1) * runs], and what is sorted */
    /* While counters are read: */
    tr_counters counters;
    size_t *step_op, nsteps, at; /* ops of the plan's steps, in their order */
    double before[TR_COUNTERS];
    double *counted; /* [(nops + 1) * TR_COUNTERS], the least */
} bench;

/* ---- Set-up ---------------------------------------------------------------------------------- */

static tr_status open_params(bench *b)
{
    tr_status st;
    const tr_profile_options *o = b->o;
    const tr_model *m = o->network->model;
    const bool train = o->mode == TR_MODE_TRAIN;
    tr_params_options p = {.model = m,
                           .count = m->flat_count,
                           .buckets = train ? m->buckets : NULL,
                           .nbuckets = train ? m->nbuckets : 0,
                           .state_count = m->state_count,
                           .backend = o->backend,
                           .backend_ctx = o->backend_ctx};
    const tr_range owned = {0, m->learned_count};
    if (o->training) p.nslots = tr_optimizer_slots(o->training, p.slot_names);
    TR_TRY(tr_params_open(&p, &owned, train ? 1 : 0, NULL, &b->params));
    TR_TRY(o->backend->memory->upload(o->backend_ctx, b->params->weights, o->network->params,
                                      m->flat_count * sizeof(float)));
    TR_TRY(o->backend->memory->upload(o->backend_ctx, b->params->states, o->network->states,
                                      m->state_count * sizeof(float)));
out:
    return st;
}

static tr_status open_session(bench *b)
{
    tr_status st;
    const tr_profile_options *o = b->o;
    const tr_plan_key key = {.mode = o->mode, .batch = o->batch};
    const tr_session_options s = {.model = o->network->model,
                                  .backend = o->backend,
                                  .backend_ctx = o->backend_ctx,
                                  .params = b->params,
                                  .threads = o->threads,
                                  .precision = o->precision,
                                  .ranks = 1,
                                  .recompute = o->recompute,
                                  .recompute_every = o->recompute_every,
                                  .recompute_segments = o->recompute_segments,
                                  .skip_passes = o->skip_passes,
                                  .keys = &key,
                                  .nkeys = 1};
    TR_TRY(tr_session_open(&s, &b->session));
    b->plan = tr_session_plan(b->session, o->mode, o->batch);
    b->nops = tr_plan_graph(b->plan)->nops;
out:
    return st;
}

/* Values as normalized ones are; ids and labels among those there are. */
static void fill(const tr_tensor *t, int64_t below, uint32_t stream, void *to)
{
    for (size_t i = 0; i < t->count; i++) {
        float v[2];
        const tr_philox r = tr_philox_at(1, TR_RNG_SYNTHETIC, stream, i, 0);
        tr_normal2(r.v[0], r.v[1], v);
        if (t->dtype == TR_I32)
            ((int32_t *)to)[i] = (int32_t)(r.v[2] % (uint64_t)(below > 0 ? below : 1));
        else if (t->dtype == TR_BF16)
            ((tr_bf16 *)to)[i] = tr_f32_to_bf16(v[0]);
        else if (t->dtype == TR_F16)
            ((tr_f16 *)to)[i] = tr_f32_to_f16(v[0]);
        else
            ((float *)to)[i] = v[0];
    }
}

static tr_status open_data(bench *b)
{
    tr_status st = TR_OK;
    const tr_device_memory *memory = b->o->backend->memory;
    void *ctx = b->o->backend_ctx;
    const tr_model *m = b->o->network->model;
    const tr_graph *g = tr_plan_graph(b->plan);
    for (size_t i = 0; i < m->ninputs; i++) {
        const tr_tensor *t = &g->tensors[g->inputs[i]];
        TR_HAVE(b->inputs[i] = memory->host_alloc(ctx, TR_MEM_IO, t->nbytes));
        fill(t, m->inputs[i].ids, (uint32_t)i, b->inputs[i]);
    }
    if (g->target < 0) goto out;
    const tr_tensor *t = &g->tensors[g->target];
    TR_HAVE(b->target = memory->host_alloc(ctx, TR_MEM_IO, t->nbytes));
    fill(t, m->classes > 0 ? m->classes : m->outputs, TR_MAX_IN, b->target);
    if (g->weights < 0) goto out;
    const size_t samples = g->tensors[g->weights].count;
    TR_HAVE(b->weights = memory->host_alloc(ctx, TR_MEM_IO, samples * sizeof *b->weights));
    for (size_t i = 0; i < samples; i++) b->weights[i] = 1;
out:
    return st;
}

/* A learning rate of 0: the update takes as long, and the weights stay. */
static tr_status open_update(bench *b)
{
    tr_status st;
    const tr_profile_options *o = b->o;
    const tr_device_memory *memory = o->backend->memory;
    const tr_control c = {
        .loss_scale = 1, .updates = 1, .apply = 1, .grad_scale = 1, .correct1 = 1, .correct2 = 1};
    TR_HAVE(b->tally = memory->alloc(o->backend_ctx, TR_MEM_OTHER, TR_TALLY * sizeof(double)));
    TR_HAVE(b->control = memory->alloc(o->backend_ctx, TR_MEM_OTHER, sizeof c));
    TR_TRY(memory->upload(o->backend_ctx, b->control, &c, sizeof c));
    if (!o->training || !o->backend->training) goto out;
    TR_TRY(o->backend->training->open(o->backend_ctx, o->threads, &b->training));
    TR_TRY(tr_optimizer_open(o->training, b->params, b->training, &b->optimizer));
out:
    return st;
}

static void close_bench(bench *b)
{
    const tr_profile_options *o = b->o;
    const tr_device_memory *memory = o->backend->memory;
    tr_optimizer_close(b->optimizer);
    if (b->training) o->backend->training->close(b->training);
    tr_session_close(b->session);
    tr_params_close(b->params);
    for (size_t i = 0; i < TR_MAX_IN; i++) memory->host_free(o->backend_ctx, b->inputs[i]);
    memory->host_free(o->backend_ctx, b->target);
    memory->host_free(o->backend_ctx, b->weights);
    memory->free(o->backend_ctx, b->tally);
    memory->free(o->backend_ctx, b->control);
    tr_free(b->seconds);
    tr_free(b->samples);
    tr_free(b->step_op);
    tr_free(b->counted);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* *seconds: of the whole; *update: of the last part of it. */
static tr_status run_once(bench *b, const tr_hooks *hooks, double *seconds, double *update)
{
    tr_status st;
    const tr_profile_options *o = b->o;
    const tr_run run = {.seed = 1,
                        .loss_scale = 1,
                        .control = b->control,
                        .last = true,
                        .params_changed = o->mode == TR_MODE_TRAIN,
                        .tally = b->tally,
                        .hooks = hooks};
    TR_TRY(tr_session_stage(b->session));
    for (size_t i = 0; i < o->network->model->ninputs; i++)
        TR_TRY(tr_plan_set_input(b->plan, i, b->inputs[i]));
    if (b->target) TR_TRY(tr_plan_set_target(b->plan, b->target));
    if (b->weights) TR_TRY(tr_plan_set_weights(b->plan, b->weights));
    TR_TRY(tr_device_finish(o->backend, o->backend_ctx));
    const double begin = tr_now();
    TR_TRY(tr_plan_run(b->plan, &run));
    TR_TRY(tr_device_finish(o->backend, o->backend_ctx));
    const double middle = tr_now();
    if (b->optimizer) TR_TRY(tr_optimizer_update(b->optimizer, b->control, NULL, NULL));
    TR_TRY(tr_device_finish(o->backend, o->backend_ctx));
    const double end = tr_now();
    *seconds = end - begin;
    *update = end - middle;
out:
    return st;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static tr_status run_whole(bench *b, tr_profile *p)
{
    enum { WARM = 2 };
    tr_status st = TR_OK;
    double update;
    TR_TRY(run_once(b, NULL, &p->first, &update));
    for (int i = 0; i < WARM + b->o->runs; i++)
        TR_TRY(run_once(b, NULL, &b->samples[i < WARM ? 0 : i - WARM], &update));
    p->seconds = median(b->samples, b->o->runs);
out:
    return st;
}

/* Once more, with each op timed: b->seconds. */
static tr_status time_ops(bench *b, double *update)
{
    tr_status st;
    double whole;
    TR_TRY(run_once(b, NULL, &whole, update));
    memset(b->seconds, 0, b->nops * sizeof *b->seconds);
    TR_TRY(tr_plan_op_seconds(b->plan, b->seconds));
out:
    return st;
}

/* b->samples[op * runs + i] */
static tr_status run_timed(bench *b)
{
    tr_status st = TR_OK;
    const size_t runs = (size_t)b->o->runs;
    double update;
    TR_TRY(tr_plan_time_ops(b->plan, true));
    for (size_t i = 0; i <= runs; i++) { /* the first is not kept */
        TR_TRY(time_ops(b, &update));
        for (size_t k = 0; i > 0 && k < b->nops; k++) b->samples[k * runs + i - 1] = b->seconds[k];
        if (i > 0) b->samples[b->nops * runs + i - 1] = update;
    }
    TR_TRY(tr_plan_time_ops(b->plan, false));
out:
    return st;
}

/* tr_hooks.poll: after each step of the plan. */
static tr_status count_op(void *ctx)
{
    bench *b = ctx;
    double now[TR_COUNTERS];
    tr_counters_read(&b->counters, now);
    for (int i = 0; b->at < b->nsteps && i < TR_COUNTERS; i++) {
        double *least = &b->counted[b->step_op[b->at] * TR_COUNTERS + (size_t)i];
        *least = isnan(*least) ? now[i] - b->before[i] : fmin(*least, now[i] - b->before[i]);
    }
    b->at++;
    tr_counters_read(&b->counters, b->before);
    return TR_OK;
}

static void ignore_bucket(void *ctx, int bucket)
{
    (void)ctx, (void)bucket;
}

static tr_status run_counted(bench *b, tr_profile *p)
{
    enum { RUNS = 5 };
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(b->plan);
    const tr_hooks hooks = {.ctx = b, .size = 1, .bucket_ready = ignore_bucket, .poll = count_op};
    double whole, update;
    for (size_t i = 0; i < (b->nops + 1) * TR_COUNTERS; i++) b->counted[i] = NAN;
    if (!b->o->counters || !b->o->backend->host) {
        snprintf(p->not_counted, sizeof p->not_counted, "%s",
                 b->o->counters ? "they are the CPU's" : "not asked for");
        return TR_OK;
    }
    if (!tr_counters_open(&b->counters)) {
        snprintf(p->not_counted, sizeof p->not_counted, "%s", b->counters.why);
        return TR_OK;
    }
    p->counted = true;
    for (size_t i = 0; i < b->nops;
         i++) /* the plan's steps: views have none, but for a bucket's mark */
        if (!tr_op_is_view(g, &g->ops[i]) || g->ops[i].bucket_ready >= 0)
            b->step_op[b->nsteps++] = i;
    for (int r = 0; r < RUNS; r++) {
        b->at = 0;
        tr_counters_read(&b->counters, b->before);
        TR_TRY(run_once(b, &hooks, &whole, &update));
    }
out:
    tr_counters_close(&b->counters);
    return st;
}

/* ---- What came out --------------------------------------------------------------------------- */

static tr_peak peak_of(tr_dtype t)
{
    return t == TR_BF16               ? TR_PEAK_BF16
           : t == TR_F16              ? TR_PEAK_FP16
           : t == TR_I8 || t == TR_U8 ? TR_PEAK_INT8
                                      : TR_PEAK_FP32;
}

/* Of a product of 8 bits that of its operands, whatever it comes out as. */
static tr_peak type_of(const tr_graph *g, const tr_op *op)
{
    const tr_peak x =
        op->nin > 0 && op->in[0] >= 0 ? peak_of(g->tensors[op->in[0]].dtype) : TR_PEAK_FP32;
    return x == TR_PEAK_INT8 ? x : peak_of(tr_op_dtype(g, op));
}

static void fill_row(bench *b, size_t i, tr_profile_row *r)
{
    const tr_graph *g = tr_plan_graph(b->plan);
    const tr_plan_row said = tr_plan_row_at(b->plan, i);
    snprintf(r->layer, sizeof r->layer, "%s", said.layer);
    snprintf(r->op, sizeof r->op, "%s", said.op);
    snprintf(r->impl, sizeof r->impl, "%s", said.impl);
    r->part = (tr_part)said.phase;
    r->type = type_of(g, &g->ops[i]);
    r->flops = said.flops;
    r->bytes = said.bytes;
}

static void fill_update(const bench *b, tr_profile_row *r)
{
    const tr_config *c = b->o->training;
    snprintf(r->layer, sizeof r->layer, "all");
    snprintf(r->op, sizeof r->op, "%s",
             tr_optimizer_name((tr_optimizer_kind)c->train.optimizer.kind.which));
    snprintf(r->impl, sizeof r->impl, "%s", b->o->backend->name);
    r->part = TR_PART_UPDATE;
    r->bytes =
        sizeof(float) * tr_optimizer_traffic(c) * (double)b->o->network->model->learned_count;
}

static tr_status fill_rows(bench *b, tr_profile *p)
{
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(b->plan);
    TR_HAVE(p->rows = tr_alloc(TR_MEM_OTHER, b->nops + 1, sizeof *p->rows));
    for (size_t i = 0; i <= b->nops; i++) {
        tr_profile_row *r = &p->rows[p->nrows];
        if (i < b->nops ? tr_op_is_view(g, &g->ops[i]) : !b->optimizer) continue;
        if (i < b->nops)
            fill_row(b, i, r);
        else
            fill_update(b, r);
        r->seconds = median(&b->samples[i * (size_t)b->o->runs], b->o->runs);
        r->least = b->samples[i * (size_t)b->o->runs]; /* they are sorted now */
        memcpy(r->counters, &b->counted[i * TR_COUNTERS], sizeof r->counters);
        p->nrows++;
    }
out:
    return st;
}

static tr_status open_bench(bench *b)
{
    tr_status st = TR_OK;
    const tr_profile_options *o = b->o;
    TR_NEED(o->batch > 0 && o->runs > 0, TR_INTERNAL, "a profile of %d runs of %lld samples",
            o->runs, (long long)o->batch);
    TR_TRY(open_params(b));
    TR_TRY(open_session(b));
    TR_TRY(open_data(b));
    TR_TRY(open_update(b));
    const size_t n = b->nops + 1;
    b->seconds = tr_alloc(TR_MEM_OTHER, n, sizeof *b->seconds);
    b->samples = tr_alloc(TR_MEM_OTHER, n * (size_t)o->runs, sizeof *b->samples);
    b->step_op = tr_alloc(TR_MEM_OTHER, n, sizeof *b->step_op);
    b->counted = tr_alloc(TR_MEM_OTHER, n * TR_COUNTERS, sizeof *b->counted);
    TR_HAVE(b->seconds && b->samples && b->step_op && b->counted);
out:
    return st;
}

tr_status tr_profile_measure(const tr_profile_options *o, const tr_machine *m, tr_profile *out)
{
    tr_status st;
    bench b = {.o = o};
    *out = (tr_profile){.mode = o->mode, .batch = o->batch, .runs = o->runs};
    TR_TRY(open_bench(&b));
    TR_TRY(run_whole(&b, out));
    TR_TRY(run_timed(&b));
    TR_TRY(run_counted(&b, out));
    TR_TRY(fill_rows(&b, out));
    TR_TRY(tr_profile_memory(b.plan, b.session, out));
    tr_profile_judge(out, m);
out:
    close_bench(&b);
    return st;
}

/* ---- Several in turns ------------------------------------------------------------------------ */

enum { TURN = 4 };
#define TURN_SECONDS 0.05

/* Some runs; each op's least time so far is its one sample. A turn's first run finds others' caches, which the least does
 * not mind. */
static tr_status take_turn(bench *b)
{
    tr_status st = TR_OK;
    const double begin = tr_now();
    for (int i = 0; i < TURN && (i == 0 || tr_now() - begin < TURN_SECONDS); i++) {
        double update;
        TR_TRY(time_ops(b, &update));
        b->seconds[b->nops] = update;
        for (size_t k = 0; k <= b->nops; k++) b->samples[k] = fmin(b->samples[k], b->seconds[k]);
    }
out:
    return st;
}

static tr_status open_turns(bench *b, const tr_profile_options *o)
{
    tr_status st;
    double update;
    b->o = o;
    TR_TRY(open_bench(b));
    TR_TRY(tr_plan_time_ops(b->plan, true));
    TR_TRY(time_ops(b, &update)); /* not kept */
    for (size_t k = 0; k <= b->nops; k++) b->samples[k] = INFINITY;
    for (size_t i = 0; i < (b->nops + 1) * TR_COUNTERS; i++) b->counted[i] = NAN;
out:
    return st;
}

static tr_status look_for_stop(const tr_profile_turns *t)
{
    if (!t->stop || !t->stop(t->ctx)) return TR_OK;
    return TR_FAIL(TR_STOPPED, "stopped on request");
}

static bool another(const tr_profile_turns *t, int turn, double gone)
{
    return turn == 0 || (gone < t->limit && (turn < t->turns || gone < t->seconds));
}

tr_status tr_profile_in_turns(const tr_profile_options *o, size_t count, const tr_profile_turns *t,
                              tr_profile *out)
{
    tr_status st = TR_OK;
    const double begin = tr_now();
    bench *b = tr_alloc(TR_MEM_OTHER, count, sizeof *b);
    for (size_t i = 0; i < count; i++)
        out[i] = (tr_profile){.mode = o[i].mode, .batch = o[i].batch, .runs = 1};
    TR_HAVE(b);
    for (size_t i = 0; i < count; i++) {
        TR_NEED(o[i].runs == 1, TR_INTERNAL, "profiles in turns keep one run, the least");
        TR_TRY(look_for_stop(t));
        TR_TRY(open_turns(&b[i], &o[i]));
    }
    for (int turn = 0; another(t, turn, tr_now() - begin); turn++)
        for (size_t i = 0; i < count; i++) {
            TR_TRY(look_for_stop(t));
            TR_TRY(take_turn(&b[i]));
        }
    for (size_t i = 0; i < count; i++) {
        TR_TRY(fill_rows(&b[i], &out[i]));
        for (size_t r = 0; r < out[i].nrows; r++) out[i].seconds += out[i].rows[r].least;
    }
out:
    for (size_t i = 0; b && i < count; i++)
        if (b[i].o) close_bench(&b[i]);
    tr_free(b);
    return st;
}
