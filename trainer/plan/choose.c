/* Jobs are planned with one setting after the other, by the planner of `trainer plan`, so what is
 * said to fit does:
 *   1. as the config is; if that fits, nothing changes.
 *   2. What evaluations may take: their batch is halved until they fit beside the smallest training
 *      that there is.
 *   3. Micro-batches, one, two, four, ... a step, until they fit as they are, then back between the
 *      last two; and for those that do not fit what is to be recomputed (runtime/plan/segments.h),
 *      for more or fewer bytes of its model until the plan just fits.
 *   4. On a GPU, where none of these fits: all of it again with the optimizer's slots in host
 *      memory (run.offload).
 * The fastest of these counts, by op_time.h: smaller micro-batches call kernels and read weights
 * more often, recomputation computes more. What the former costs is predicted less surely: of two
 * micro-batches without recomputation the larger one counts, unless it is slower by more than SURE.
 * With `max` the largest micro-batch counts, and it recomputes only where none fits. Batches that
 * are too large for a kernel do not fit. */
#include "trainer/plan/choose.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/config/memory.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/plan/segments.h"
#include "trainer/device/device.h"
#include "trainer/plan/shares.h"

typedef struct {
    int64_t at_once, eval;
    int kind;
    const int *segments;
    unsigned skip; /* passes over the graph, beside the config's */
    bool offload;
    size_t need; /* SIZE_MAX: a kernel does not take so many samples */
    double seconds, flops;
    int micro_batches;
} trial;

#define SURE 1.15 /* predicted times are right within so much */

typedef struct {
    const tr_planned *r;
    tr_space space;
    size_t room;
    tr_op_time *time;
    bool micro, max, recompute, eval; /* what is to be chosen */
    bool offload;                     /* of what is tried now */
    int64_t share;                    /* samples of a rank and step */
    int *scratch;                     /* segments that are tried */
    trial best;
    bool found;
    int *segments;     /* those of `best` */
    tr_error too_many; /* the last that a kernel said of it */
} search;

bool tr_chooses(const tr_config *c)
{
    return tr_memory_limit_of(c) > 0 || c->train.micro_batch == TR_MICRO_BATCH_MAX;
}

/* ---- One plan -------------------------------------------------------------------------------- */

static tr_config config_of(const tr_config *own, bool micro, int64_t at_once, int64_t eval,
                           int kind, bool offload)
{
    tr_config c = *own;
    if (micro) c.train.micro_batch = at_once;
    if (eval > 0) c.train.eval.batch = eval;
    c.train.recompute.kind.which = kind;
    if (offload) c.run.offload = TR_OFFLOAD_ON;
    return c;
}

static tr_config chosen_config(const tr_config *own, const tr_choice *c)
{
    return config_of(own, c->micro, c->at_once, c->eval, c->kind, c->offload);
}

tr_status tr_choice_apply(tr_planned *r, const tr_choice *c, tr_config *config)
{
    *config = chosen_config(r->c, c);
    r->c = config;
    if (c->segments) r->segments = c->segments;
    r->micro_batches = tr_micro_batches(config, r->on.topology.size);
    return tr_planned_loaders(r);
}

/* Sessions that the caller closes. */
static tr_status plan_it(const search *s, const tr_config *c, trial *t, tr_planned *v)
{
    tr_status st;
    const tr_planned *r = s->r;
    *v = *r;
    v->c = c;
    v->segments = t->segments;
    v->skip_passes = t->skip;
    v->both = v->eval = NULL;
    v->train_batch = v->eval_batch = 0;
    v->micro_batches = t->micro_batches = tr_micro_batches(c, r->on.topology.size);
    TR_TRY(tr_planned_sessions(v));
    TR_TRY(tr_planned_loaders(v));
    t->need = tr_planned_need(v, s->space);
    const tr_plan *p = tr_session_plan(v->both, TR_MODE_TRAIN, v->train_batch);
    /* the last micro-batch may be smaller than the others */
    const double times = (double)s->share / (double)v->train_batch;
    t->seconds = tr_op_time_all(s->time, p) * times;
    t->flops = 0;
    for (size_t i = 0; i < tr_plan_rows(p); i++) t->flops += tr_plan_row_at(p, i).flops * times;
out:
    return st;
}

static tr_status attempt(search *s, trial *t)
{
    tr_planned v;
    const tr_config c = config_of(s->r->c, s->micro, t->at_once, t->eval, t->kind, t->offload);
    const tr_status st = plan_it(s, &c, t, &v);
    const tr_error why = *tr_last_error();
    tr_planned_close_sessions(&v);
    tr_set_error(&why);
    if (!tr_planned_too_many(st)) return st;
    s->too_many = why;
    t->need = SIZE_MAX;
    t->seconds = t->flops = INFINITY;
    return TR_OK;
}

/* ---- What counts ----------------------------------------------------------------------------- */

/* Of more samples at once, and nothing that is recomputed takes time for it. */
static bool larger(const search *s, const trial *a, const trial *b)
{
    return a->at_once > b->at_once && a->kind == s->r->c->train.recompute.kind.which &&
           a->seconds <= SURE * b->seconds;
}

/* One that fits is better than one that does not; of those that fit the larger or the faster one,
 * else the smaller. */
static bool better(const search *s, const trial *a, const trial *b)
{
    const bool fits = a->need <= s->room, fitted = b->need <= s->room;
    if (fits != fitted) return fits;
    if (!fits) return a->need < b->need;
    if (s->max && isfinite(b->seconds) && a->at_once != b->at_once) return a->at_once > b->at_once;
    if (larger(s, a, b) || larger(s, b, a)) return larger(s, a, b);
    return a->seconds < b->seconds || (a->seconds <= b->seconds && a->need < b->need);
}

static void consider(search *s, const trial *t)
{
    if (s->found && !better(s, t, &s->best)) return;
    s->found = true;
    s->best = *t;
    s->best.segments = t->segments ? s->segments : NULL;
    for (size_t l = 0; t->segments && l <= s->r->m->nlayers; l++) s->segments[l] = t->segments[l];
}

/* ---- Recomputation at one micro-batch -------------------------------------------------------- */

/* The cheapest choice of so many modelled bytes; *fits: as planned. */
static tr_status attempt_cuts(search *s, const tr_cuts *cuts, double nbytes, const trial *plain,
                              bool *fits)
{
    double cost;
    trial t = *plain;
    *fits = false;
    if (!tr_cuts_choose(cuts, nbytes, s->scratch, &cost)) return TR_OK;
    t.kind = TR_RECOMPUTE_SEGMENTS;
    t.segments = s->scratch;
    const tr_status st = attempt(s, &t);
    if (st != TR_OK) return st;
    *fits = t.need <= s->room;
    consider(s, &t);
    return TR_OK;
}

static tr_status bisect(search *s, const tr_cuts *cuts, const trial *plain)
{
    enum { STEPS = 8 };
    tr_status st = TR_OK;
    double low = tr_cuts_least(cuts), high = tr_cuts_most(cuts);
    bool fits;
    TR_TRY(attempt_cuts(s, cuts, low, plain, &fits));
    for (int i = 1; i <= 4 && !fits; i++) /* the model is not exact: near its least, too */
        TR_TRY(attempt_cuts(s, cuts, low *= 1.06, plain, &fits));
    for (int i = 0; i < STEPS && fits && high > low; i++) {
        const double middle = (low + high) / 2;
        bool now;
        TR_TRY(attempt_cuts(s, cuts, middle, plain, &now));
        *(now ? &low : &high) = middle;
    }
out:
    return st;
}

/* Whatever of it fits, or comes nearest, is considered. */
static tr_status recompute(search *s, const trial *plain)
{
    tr_status st;
    tr_planned v;
    tr_cuts *cuts = NULL;
    double *cost = NULL;
    trial t = *plain, blocks = *plain;
    t.skip = TR_PASS_IS(TR_PASS_ACTIVATION_GRADIENT); /* which runs behind recomputation */
    const tr_config c =
        config_of(s->r->c, s->micro, t.at_once, t.eval, TR_RECOMPUTE_NONE, t.offload);
    st = plan_it(s, &c, &t, &v);
    if (tr_planned_too_many(st)) {
        st = TR_OK;
        goto out;
    }
    TR_TRY(st);
    const tr_plan *p = tr_session_plan(v.both, TR_MODE_TRAIN, v.train_batch);
    TR_HAVE(cost = tr_alloc(TR_MEM_OTHER, tr_plan_rows(p), sizeof *cost));
    for (size_t i = 0; i < tr_plan_rows(p); i++) cost[i] = tr_op_time_of(s->time, p, i);
    TR_TRY(tr_cuts_open(p, cost, &cuts));
    TR_TRY(bisect(s, cuts, plain));
    blocks.kind = TR_RECOMPUTE_BLOCKS;
    TR_TRY(attempt(s, &blocks));
    consider(s, &blocks);
out:;
    const tr_error why = *tr_last_error();
    tr_planned_close_sessions(&v);
    tr_set_error(&why);
    tr_cuts_close(cuts);
    tr_free(cost);
    return st;
}

/* ---- The search ------------------------------------------------------------------------------ */

static int64_t at_once(const search *s, int64_t micro_batches)
{
    return s->micro ? (s->share + micro_batches - 1) / micro_batches : 0;
}

/* Nothing recomputed but what the config says. */
static trial plain_trial(const search *s, int64_t samples, int64_t eval)
{
    return (trial){.at_once = samples,
                   .eval = eval,
                   .kind = s->r->c->train.recompute.kind.which,
                   .segments = s->r->segments,
                   .offload = s->offload};
}

/* The smallest training that there is beside evaluations of this batch. */
static tr_status tightest(search *s, int64_t eval)
{
    trial t = plain_trial(s, s->micro ? 1 : 0, eval);
    const tr_status st = attempt(s, &t);
    if (st != TR_OK) return st;
    consider(s, &t);
    return s->recompute && t.need > s->room ? recompute(s, &t) : TR_OK;
}

/* *eval: what evaluations may take, 0: as the config says. s->best: with it. */
static tr_status find_eval(search *s, int64_t *eval)
{
    tr_status st;
    const int64_t least = s->r->on.topology.size;
    int64_t batch = (int64_t)tr_eval_at_once(s->r->c, s->r->eval_samples);
    *eval = 0;
    TR_TRY(tightest(s, 0));
    while (s->eval && s->best.need > s->room && batch > least) {
        batch = batch / 2 < least ? least : batch / 2;
        *eval = batch;
        TR_TRY(tightest(s, batch));
    }
out:
    return st;
}

/* The fewest micro-batches that fit as they are: `low` do not, `high` do. */
static tr_status fewest(search *s, int64_t eval, int64_t low, int64_t high)
{
    tr_status st = TR_OK;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        trial t = plain_trial(s, at_once(s, middle), eval);
        TR_TRY(attempt(s, &t));
        consider(s, &t);
        *(t.need <= s->room ? &high : &low) = middle;
    }
out:
    return st;
}

static tr_status find_micro(search *s, int64_t eval)
{
    tr_status st = TR_OK;
    for (int64_t n = 1, before = 0;; before = n, n = 2 * n < s->share ? 2 * n : s->share) {
        trial t = plain_trial(s, at_once(s, n), eval);
        TR_TRY(attempt(s, &t));
        consider(s, &t);
        if (t.need <= s->room) return fewest(s, eval, before, n);
        if (s->recompute && !s->max && t.seconds < s->best.seconds) TR_TRY(recompute(s, &t));
        if (n == s->share) break;
    }
out:
    return st;
}

/* Would other micro-batches make other numbers of it? */
static tr_status over_batch(const tr_planned *r, bool *over)
{
    tr_graph *g;
    const tr_graph_options o = {.batch = 2,
                                .mode = TR_MODE_TRAIN,
                                .precision = (tr_precision)r->c->train.precision,
                                .ranks = 1,
                                .passes = TR_PASSES_ALL};
    const tr_status st = tr_graph_open(r->m, &o, &g);
    if (st != TR_OK) return st;
    *over = false;
    for (size_t i = 0; i < g->nops; i++) *over = *over || tr_op_over_batch(&g->ops[i]);
    tr_graph_close(g);
    return TR_OK;
}

/* As it is; and what there is to choose. */
static tr_status begin(search *s, trial *plain)
{
    tr_status st;
    const tr_config *c = s->r->c;
    const int64_t ranks = s->r->on.topology.size;
    bool over = false;
    s->share = (c->train.batch + ranks - 1) / ranks;
    s->max = c->train.micro_batch == TR_MICRO_BATCH_MAX;
    s->recompute = c->train.recompute.kind.which == TR_RECOMPUTE_AUTO && tr_memory_limit_of(c) > 0;
    s->eval = c->train.eval.batch == 0 && s->r->eval_samples > 0;
    *plain = plain_trial(s, 0, 0);
    TR_TRY(attempt(s, plain));
    TR_TRY(over_batch(s->r, &over));
    s->micro = s->max || (c->train.micro_batch == 0 && c->train.accumulate == 0 && !over);
    plain->at_once = at_once(s, 1);
    consider(s, plain);
out:
    return st;
}

/* What fits best of all that may be chosen, where the config does not fit as it is. */
static tr_status find_all(search *s)
{
    tr_status st;
    int64_t eval;
    TR_TRY(find_eval(s, &eval));
    if (s->best.need > s->room) goto out;
    const double seconds = s->best.seconds;
    if (s->max) s->best.seconds = INFINITY; /* it stands where no micro-batch fits as it is */
    if (s->micro)
        TR_TRY(find_micro(s, eval));
    else if (s->recompute) {
        const trial t = plain_trial(s, 0, eval);
        TR_TRY(recompute(s, &t));
    }
    if (isinf(s->best.seconds)) s->best.seconds = seconds;
out:
    return st;
}

/* Is there something that a GPU need not hold? */
static bool may_offload(const tr_planned *r)
{
    const char *names[TR_PARAM_SLOTS];
    return r->c->run.offload == TR_OFFLOAD_AUTO && !r->on.backend->host &&
           tr_optimizer_slots(r->c, names) > 0;
}

static tr_status look(search *s, trial *plain)
{
    tr_status st;
    TR_TRY(begin(s, plain));
    if (plain->need <= s->room) goto out;
    TR_TRY(find_all(s));
    if (s->best.need <= s->room || !may_offload(s->r)) goto out;
    s->offload = true;
    trial t = plain_trial(s, at_once(s, 1), 0);
    TR_TRY(attempt(s, &t));
    consider(s, &t);
    if (t.need > s->room) TR_TRY(find_all(s));
out:
    return st;
}

tr_status tr_plan_choose(const tr_planned *r, tr_space space, size_t memory, size_t programs,
                         tr_choice *out)
{
    tr_status st;
    trial plain;
    search s = {.r = r, .space = space, .room = memory > programs ? memory - programs : 0};
    *out = (tr_choice){0};
    TR_TRY(tr_op_time_open(r->c, r->on.backend, r->backend_ctx, r->on.threads, &s.time));
    s.scratch = tr_alloc(TR_MEM_OTHER, r->m->nlayers + 1, sizeof *s.scratch);
    s.segments = tr_alloc(TR_MEM_OTHER, r->m->nlayers + 1, sizeof *s.segments);
    TR_HAVE(s.scratch && s.segments);
    TR_TRY(look(&s, &plain));
    if (s.best.need == SIZE_MAX) {
        tr_set_error(&s.too_many);
        st = s.too_many.status;
        goto out;
    }
    const bool chosen = s.best.kind == TR_RECOMPUTE_SEGMENTS && s.recompute;
    *out = (tr_choice){.limit = memory,
                       .programs = programs,
                       .fits = s.best.need <= s.room,
                       .need = s.best.need,
                       .micro = s.micro,
                       .at_once = s.best.at_once,
                       .eval = s.best.eval,
                       .kind = s.best.kind,
                       .segments = chosen ? s.segments : NULL,
                       .offload = s.best.offload,
                       .recompute = s.recompute,
                       .micro_batches = s.best.micro_batches,
                       .flops = s.best.flops,
                       .seconds = s.best.seconds,
                       .plain_need = plain.need,
                       .plain_flops = plain.flops,
                       .plain_seconds = plain.seconds,
                       .source = tr_op_time_source(s.time)};
    if (chosen) s.segments = NULL;
    if (out->offload) {
        const tr_config c = chosen_config(r->c, out);
        tr_offload_cost_of(&(tr_memory_of){.config = &c,
                                           .model = r->m,
                                           .backend = r->on.backend,
                                           .topology = &r->on.topology,
                                           .nccl = tr_config_nccl(&c)},
                           &out->offloaded);
    }
out:
    tr_op_time_close(s.time);
    tr_free(s.scratch);
    tr_free(s.segments);
    return st;
}

void tr_choice_free(tr_choice *c)
{
    tr_free(c->segments);
    c->segments = NULL;
}
