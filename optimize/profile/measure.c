/* One plan, run again and again on random samples: first as it is, for what a run takes, then with
 * each op timed, then, where counters can be had, with those read between ops. */
#include "optimize/profile/step.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/graph/facts.h"

const char *const tr_part_names[TR_PARTS] = {"forward", "loss", "backward", "update", "wait"};

typedef struct {
    tr_profile_step step;
    size_t nops;     /* of the graph; behind them the update */
    double *seconds; /* [nops], scratch */
    double *samples; /* [(nops + 1) * runs], and what is sorted */
    /* While counters are read: */
    tr_counters counters;
    size_t *step_op, nsteps, at; /* ops of the plan's steps, in their order */
    double before[TR_COUNTERS];
    double *counted; /* [(nops + 1) * TR_COUNTERS], the least */
} bench;

/* ---- Runs ------------------------------------------------------------------------------------ */

static tr_status run_whole(bench *b, tr_profile *p)
{
    enum { WARM = 2 };
    tr_status st = TR_OK;
    double update;
    TR_TRY(tr_profile_step_run(&b->step, NULL, &p->first, &update));
    for (int i = 0; i < WARM + b->step.o->runs; i++)
        TR_TRY(tr_profile_step_run(&b->step, NULL, &b->samples[i < WARM ? 0 : i - WARM], &update));
    p->seconds = tr_median(b->samples, (size_t)b->step.o->runs);
out:
    return st;
}

/* Once more, with each op timed: b->seconds. */
static tr_status time_ops(bench *b, double *update)
{
    tr_status st;
    double whole;
    TR_TRY(tr_profile_step_run(&b->step, NULL, &whole, update));
    memset(b->seconds, 0, b->nops * sizeof *b->seconds);
    TR_TRY(tr_plan_op_seconds(b->step.plan, b->seconds));
out:
    return st;
}

/* b->samples[op * runs + i] */
static tr_status run_timed(bench *b)
{
    tr_status st = TR_OK;
    const size_t runs = (size_t)b->step.o->runs;
    double update;
    TR_TRY(tr_plan_time_ops(b->step.plan, true));
    for (size_t i = 0; i <= runs; i++) { /* the first is not kept */
        TR_TRY(time_ops(b, &update));
        for (size_t k = 0; i > 0 && k < b->nops; k++) b->samples[k * runs + i - 1] = b->seconds[k];
        if (i > 0) b->samples[b->nops * runs + i - 1] = update;
    }
    TR_TRY(tr_plan_time_ops(b->step.plan, false));
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
    const tr_graph *g = tr_plan_graph(b->step.plan);
    const tr_hooks hooks = {.ctx = b, .size = 1, .bucket_ready = ignore_bucket, .poll = count_op};
    double whole, update;
    for (size_t i = 0; i < (b->nops + 1) * TR_COUNTERS; i++) b->counted[i] = NAN;
    if (!b->step.o->counters || !b->step.o->backend->host) {
        snprintf(p->not_counted, sizeof p->not_counted, "%s",
                 b->step.o->counters ? "they are the CPU's" : "not asked for");
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
        TR_TRY(tr_profile_step_run(&b->step, &hooks, &whole, &update));
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

static double padding_of(const tr_model *m, const char *layer)
{
    const tr_layer *l = tr_model_layer(m, layer);
    return l ? 1 - tr_layer_unpadded(m, l) : 0;
}

void tr_profile_row_of(const tr_plan *plan, const tr_model *m, size_t op, tr_profile_row *r)
{
    const tr_graph *g = tr_plan_graph(plan);
    const tr_plan_row said = tr_plan_row_at(plan, op);
    *r = (tr_profile_row){.part = (tr_part)said.phase,
                          .type = type_of(g, &g->ops[op]),
                          .flops = said.flops,
                          .bytes = said.bytes,
                          .padding = padding_of(m, said.layer),
                          .counters = {NAN, NAN, NAN}};
    snprintf(r->layer, sizeof r->layer, "%s", said.layer);
    snprintf(r->op, sizeof r->op, "%s", said.op);
    snprintf(r->impl, sizeof r->impl, "%s", said.impl);
}

void tr_profile_row_of_update(const tr_config *training, const tr_backend *b, size_t weights,
                              tr_profile_row *r)
{
    *r = (tr_profile_row){.layer = "all",
                          .part = TR_PART_UPDATE,
                          .bytes = sizeof(float) * tr_optimizer_traffic(training) * (double)weights,
                          .counters = {NAN, NAN, NAN}};
    snprintf(r->op, sizeof r->op, "%s",
             tr_optimizer_name((tr_optimizer_kind)training->train.optimizer.kind.which));
    snprintf(r->impl, sizeof r->impl, "%s", b->name);
}

static tr_status fill_rows(bench *b, tr_profile *p)
{
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(b->step.plan);
    TR_HAVE(p->rows = tr_alloc(TR_MEM_OTHER, b->nops + 1, sizeof *p->rows));
    for (size_t i = 0; i <= b->nops; i++) {
        tr_profile_row *r = &p->rows[p->nrows];
        if (i < b->nops ? tr_op_is_view(g, &g->ops[i]) : !b->step.optimizer) continue;
        const tr_profile_options *o = b->step.o;
        if (i < b->nops)
            tr_profile_row_of(b->step.plan, o->network->model, i, r);
        else
            tr_profile_row_of_update(o->training, o->backend, o->network->model->learned_count, r);
        r->seconds = tr_median(&b->samples[i * (size_t)b->step.o->runs], (size_t)b->step.o->runs);
        r->least = b->samples[i * (size_t)b->step.o->runs]; /* they are sorted now */
        memcpy(r->counters, &b->counted[i * TR_COUNTERS], sizeof r->counters);
        p->nrows++;
    }
out:
    return st;
}

static tr_status open_bench(const tr_profile_options *o, bench *b)
{
    tr_status st = TR_OK;
    *b = (bench){.step.o = o};
    TR_NEED(o->batch > 0 && o->runs > 0, TR_INTERNAL, "a profile of %d runs of %lld samples",
            o->runs, (long long)o->batch);
    TR_TRY(tr_profile_step_open(o, &b->step));
    b->nops = tr_plan_graph(b->step.plan)->nops;
    const size_t n = b->nops + 1;
    b->seconds = tr_alloc(TR_MEM_OTHER, n, sizeof *b->seconds);
    b->samples = tr_alloc(TR_MEM_OTHER, n * (size_t)o->runs, sizeof *b->samples);
    b->step_op = tr_alloc(TR_MEM_OTHER, n, sizeof *b->step_op);
    b->counted = tr_alloc(TR_MEM_OTHER, n * TR_COUNTERS, sizeof *b->counted);
    TR_HAVE(b->seconds && b->samples && b->step_op && b->counted);
out:
    return st;
}

static void close_bench(bench *b)
{
    tr_profile_step_close(&b->step);
    tr_free(b->seconds);
    tr_free(b->samples);
    tr_free(b->step_op);
    tr_free(b->counted);
}

tr_status tr_profile_measure(const tr_profile_options *o, const tr_machine *m, tr_profile *out)
{
    tr_status st;
    bench b;
    *out = (tr_profile){.mode = o->mode, .batch = o->batch, .runs = o->runs};
    TR_TRY(open_bench(o, &b));
    TR_TRY(run_whole(&b, out));
    TR_TRY(run_timed(&b));
    TR_TRY(run_counted(&b, out));
    TR_TRY(fill_rows(&b, out));
    TR_TRY(tr_profile_memory(b.step.plan, b.step.session, out));
    tr_profile_judge(out, m);
out:
    close_bench(&b);
    return st;
}

/* ---- Several in turns ------------------------------------------------------------------------ */

enum { TURN = 4 };
#define TURN_SECONDS 0.05

/* Some runs; each op's least time so far is its one sample. A turn's first run finds others'
 * caches, which the least does not mind. */
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
    TR_TRY(open_bench(o, b));
    TR_TRY(tr_plan_time_ops(b->step.plan, true));
    TR_TRY(time_ops(b, &update)); /* not kept */
    for (size_t k = 0; k <= b->nops; k++) b->samples[k] = INFINITY;
    for (size_t i = 0; i < (b->nops + 1) * TR_COUNTERS; i++) b->counted[i] = NAN;
out:
    return st;
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
        TR_TRY(open_turns(&b[i], &o[i]));
    }
    for (int turn = 0; another(t, turn, tr_now() - begin); turn++)
        for (size_t i = 0; i < count; i++) TR_TRY(take_turn(&b[i]));
    for (size_t i = 0; i < count; i++) {
        TR_TRY(fill_rows(&b[i], &out[i]));
        for (size_t r = 0; r < out[i].nrows; r++) out[i].seconds += out[i].rows[r].least;
    }
out:
    for (size_t i = 0; b && i < count; i++)
        if (b[i].step.o) close_bench(&b[i]);
    tr_free(b);
    return st;
}
