/* Which layers are worth 8 bits: by time, then by loss, again until neither leaves out more.
 *
 * By time: networks are compared as wholes, since what turns values into steps and back is paid
 * where floats and steps meet, not for each layer. Times of single layers only say what to try:
 * layers side by side that are each slower so are left out together, then all such layers, then one
 * by one; they stay out if the whole is faster by MARGIN. At last what is left is held against no
 * layer at all. The times of a network are the least of each op while the networks take turns:
 * other work on the machine meets all of them, and an op is short enough to be met by none now and
 * then. So a choice does not change with the machine's load.
 * By loss: while it is more than allowed, the layer with the largest error is left out. (Not
 * o->by_loss: it is not looked at.) It takes no longer than o->seconds, but for what ends it: then
 * what is left is held against no layer with one turn of calls, and a loss that is not allowed
 * leaves out half of the layers at once. So the result is never slower and never worse, only
 * perhaps not the fastest. */
#include "optimize/quantize/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 12, TRIALS = 16 };
#define SECONDS      0.4 /* of a comparison, at least */
#define TELL_SECONDS 0.1 /* of one that chooses nothing */
#define MARGIN       0.02

/* ---- The time spent, and stops --------------------------------------------------------------- */

static bool is_root(const choosing *k)
{
    return tr_comm_topology(tr_evaluator_comm(k->e))->rank == 0;
}

/* *Collective.* Between calls nothing is half done. */
static tr_status look_for_stop(const choosing *k)
{
    double stop = k->o->stop && k->o->stop(k->o->stop_ctx);
    const tr_status st = tr_comm_all_reduce(tr_evaluator_comm(k->e), &stop, 1, TR_F64);
    if (st != TR_OK || stop <= 0) return st;
    return TR_FAIL(TR_STOPPED,
                   "stopped while layers were %s, which begins again when the stage does",
                   k->o->choose ? "chosen" : "timed");
}

/* *Collective.* Whether time is over, by rank 0's clock; said once. */
static tr_status look_at_clock(choosing *k)
{
    double gone = tr_now() - k->begin;
    const tr_status st = tr_comm_broadcast(tr_evaluator_comm(k->e), &gone, sizeof gone, 0);
    if (st != TR_OK) return st;
    k->story->seconds = gone;
    if (gone < k->o->seconds || k->story->cut) return TR_OK;
    k->story->cut = true;
    if (is_root(k))
        tr_log(TR_LOG_WARN,
               "layers: auto: %.0f s of `seconds: %g` are over: no more layers are tried apart",
               gone, k->o->seconds);
    return TR_OK;
}

/* ---- Times, rank 0's ------------------------------------------------------------------------- */

static double seconds_of(const tr_profile *p, const char *layer)
{
    double sum = 0;
    for (size_t i = 0; i < p->nrows; i++)
        if (strcmp(p->rows[i].layer, layer) == 0) sum += p->rows[i].seconds;
    return sum;
}

/* Of chosen layers that read the value. */
static size_t readers(const tr_model *m, const bool *chosen, int value)
{
    size_t n = 0;
    for (size_t i = 0; i < m->nlayers; i++) n += chosen[i] && m->layers[i].in[0] == value;
    return n;
}

static void take_times(const tr_model *m, const tr_profile *p, tr_choice_times *c)
{
    c->seconds = p->seconds;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        char steps[TR_NAME];
        c->layers[i] = seconds_of(p, l->name);
        if (!c->chosen[i]) continue;
        tr_steps_name(m, l->in[0], steps);
        c->layers[i] += seconds_of(p, steps) / (double)readers(m, c->chosen, l->in[0]);
    }
}

/* A call of o->batch samples on the evaluator's device. */
static tr_profile_options timed(const choosing *k, const tr_network *n)
{
    tr_profile_options p = {.network = n,
                            .precision = (tr_precision)k->config->train.precision,
                            .mode = TR_MODE_INFER,
                            .batch = k->o->batch,
                            .runs = 1,
                            .skip_passes = tr_graph_skip(k->config),
                            .stop = k->o->stop,
                            .stop_ctx = k->o->stop_ctx};
    tr_evaluator_place(k->e, &p.backend, &p.backend_ctx, &p.threads);
    return p;
}

static tr_status time_all(const choosing *k, tr_choice_times *c, size_t count)
{
    tr_status st = TR_OK;
    tr_profile_options *o = tr_alloc(TR_MEM_OTHER, count, sizeof *o);
    tr_profile *p = tr_alloc(TR_MEM_OTHER, count, sizeof *p);
    TR_HAVE(o && p);
    for (size_t i = 0; i < count; i++) o[i] = timed(k, c[i].network);
    const tr_profile_turns turns = {.turns = TURNS,
                                    .seconds = k->o->choose ? SECONDS : TELL_SECONDS,
                                    .limit = k->o->choose ? k->o->seconds - (tr_now() - k->begin)
                                                          : INFINITY};
    TR_TRY(tr_profile_in_turns(o, count, &turns, p));
    for (size_t i = 0; i < count; i++) take_times(k->n->model, &p[i], &c[i]);
out:
    for (size_t i = 0; p && i < count; i++) tr_profile_free(&p[i]);
    tr_free(p);
    tr_free(o);
    return st;
}

tr_status tr_quantize_measure(choosing *k, tr_choice_times *c, size_t count)
{
    tr_comm *comm = tr_evaluator_comm(k->e);
    tr_status st = TR_OK;
    const bool root = tr_comm_topology(comm)->rank == 0;
    if (root) tr_comm_busy(comm, TR_BUSY_MEASURES); /* the others wait as long as it takes */
    if (root) st = time_all(k, c, count);
    if (st == TR_STOPPED) st = TR_OK; /* all ranks look for it next */
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    for (size_t i = 0; i < count; i++) {
        TR_TRY(tr_comm_broadcast(comm, &c[i].seconds, sizeof c[i].seconds, 0));
        TR_TRY(tr_comm_broadcast(comm, c[i].layers, k->n->model->nlayers * sizeof *c[i].layers, 0));
    }
out:
    return st;
}

/* ---- Choices side by side -------------------------------------------------------------------- */

static size_t count_of(const choosing *k, const bool *chosen)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n->model->nlayers; i++) n += chosen[i];
    return n;
}

/* *Collective.* */
static tr_status made(choosing *k, const bool *chosen, tr_network **out)
{
    return tr_agree(tr_evaluator_comm(k->e),
                    tr_quantize_static(k->n, chosen, k->ranges, k->o->per_tensor, NULL, out), NULL);
}

enum { PAIR = 2 };

typedef struct {
    tr_choice_times c[PAIR];
    tr_network *own[PAIR];
} comparison;

static void close_comparison(comparison *x)
{
    for (size_t i = 0; i < PAIR; i++) {
        tr_network_close(x->own[i]);
        tr_free(x->c[i].layers);
    }
}

static void say_compared(const choosing *k, const comparison *x)
{
    if (!is_root(k)) return;
    tr_log(TR_LOG_INFO,
           "layers: auto: %zu layers in 8 bits take %.4g ms, %zu take %.4g ms (%.0f s of %g s)",
           count_of(k, x->c[0].chosen), 1e3 * x->c[0].seconds, count_of(k, x->c[1].chosen),
           1e3 * x->c[1].seconds, k->story->seconds, k->o->seconds);
}

/* *Collective.* To be closed, also after a failure. */
static tr_status compare(choosing *k, const bool *a, const bool *b, comparison *x)
{
    tr_status st = TR_OK;
    const bool *const sets[PAIR] = {a, b};
    *x = (comparison){0};
    for (size_t i = 0; i < PAIR; i++) {
        tr_choice_times *c = &x->c[i];
        c->chosen = sets[i];
        c->layers = tr_alloc(TR_MEM_OTHER, k->n->model->nlayers, sizeof *c->layers);
        TR_TRY(tr_agree(tr_evaluator_comm(k->e), c->layers ? TR_OK : tr_last_status(), NULL));
        if (count_of(k, sets[i]) > 0) TR_TRY(made(k, sets[i], &x->own[i]));
        c->network = x->own[i] ? x->own[i] : k->n;
    }
    TR_TRY(look_for_stop(k));
    TR_TRY(k->measure(k, x->c, PAIR));
    TR_TRY(look_for_stop(k));
    k->story->comparisons++;
    if (k->o->choose) TR_TRY(look_at_clock(k));
    if (k->o->choose) say_compared(k, x);
out:
    return st;
}

static void note(const choosing *k, const tr_choice_times *c)
{
    for (size_t i = 0; i < k->n->model->nlayers; i++)
        if (k->chosen[i]) k->layers[i].int8_us = 1e6 * c->layers[i];
}

/* *faster: than no layer in 8 bits. */
static tr_status against_none(choosing *k, const bool *none, bool *faster)
{
    comparison x;
    tr_status st = compare(k, none, k->chosen, &x);
    TR_TRY(st);
    for (size_t i = 0; i < k->n->model->nlayers; i++)
        if (k->chosen[i]) k->layers[i].float_us = 1e6 * x.c[0].layers[i];
    note(k, &x.c[1]);
    k->story->float_ms = 1e3 * x.c[0].seconds;
    k->story->int8_ms = 1e3 * x.c[1].seconds;
    *faster = x.c[1].seconds < x.c[0].seconds;
out:
    close_comparison(&x);
    return st;
}

/* ---- What to try ----------------------------------------------------------------------------- */

/* Layers [begin, end): those of them that are chosen, and slower so. excess: seconds they take
 * more. */
typedef struct {
    size_t begin, end;
    double excess;
} part;

static double excess_of(const choosing *k, size_t layer)
{
    const tr_int8_layer *l = &k->layers[layer];
    return k->chosen[layer] ? l->int8_us - l->float_us : 0;
}

static int by_excess(const void *a, const void *b)
{
    const double x = ((const part *)a)->excess, y = ((const part *)b)->excess;
    return (x < y) - (x > y);
}

/* Parts of slow layers with no fast one between them; alone: each is a part. */
static size_t find_parts(const choosing *k, bool alone, part *out)
{
    size_t n = 0;
    bool open = false;
    for (size_t i = 0; i < k->n->model->nlayers; i++) {
        if (!k->chosen[i]) continue;
        const double excess = excess_of(k, i);
        if (excess > 0 && (alone || !open)) out[n++] = (part){.begin = i};
        open = excess > 0;
        if (!open) continue;
        out[n - 1].end = i + 1;
        out[n - 1].excess += excess;
    }
    qsort(out, n, sizeof *out, by_excess);
    return n;
}

/* In the order in which they are tried; out: [2 * layers + 1]. */
static size_t all_parts(const choosing *k, part *out)
{
    const size_t runs = find_parts(k, false, out);
    size_t n = runs;
    if (runs > 1) out[n++] = (part){.end = k->n->model->nlayers};
    const size_t each = find_parts(k, true, out + n);
    return each > runs ? n + each : n;
}

/* *Collective.* Leaves the part out if the network is faster so; `less`: [layers], room. */
static tr_status try_part(choosing *k, const part *p, bool *less, bool *dropped)
{
    const size_t nlayers = k->n->model->nlayers;
    comparison x = {0};
    tr_status st = TR_OK;
    *dropped = false;
    for (size_t i = 0; i < nlayers; i++)
        less[i] = k->chosen[i] && !(i >= p->begin && i < p->end && excess_of(k, i) > 0);
    const size_t left = count_of(k, less);
    if (left == 0 || left == count_of(k, k->chosen)) goto out; /* none at all is tried at last */
    TR_TRY(compare(k, k->chosen, less, &x));
    *dropped = x.c[1].seconds < (1 - MARGIN) * x.c[0].seconds;
    if (*dropped) memcpy(k->chosen, less, nlayers * sizeof *less);
    note(k, &x.c[*dropped]);
out:
    close_comparison(&x);
    return st;
}

/* *Collective.* The first part that is better left out. */
static tr_status leave_out(choosing *k, int *trials, bool *less, part *parts, bool *dropped)
{
    tr_status st = TR_OK;
    const size_t n = all_parts(k, parts);
    *dropped = false;
    for (size_t i = 0; i<n && * trials> 0 && !*dropped && !k->story->cut; i++, --*trials)
        TR_TRY(try_part(k, &parts[i], less, dropped));
out:
    return st;
}

static tr_status choose_by_time(choosing *k)
{
    tr_status st = TR_OK;
    const size_t nlayers = k->n->model->nlayers;
    int trials = TRIALS;
    bool faster = false, dropped = true, any = false;
    bool *none = tr_alloc(TR_MEM_OTHER, nlayers, sizeof *none);
    bool *less = tr_alloc(TR_MEM_OTHER, nlayers, sizeof *less);
    part *parts = tr_alloc(TR_MEM_OTHER, 2 * nlayers + 1, sizeof *parts);
    st = none && less && parts ? TR_OK : tr_last_status();
    TR_TRY(tr_agree(tr_evaluator_comm(k->e), st, NULL));
    TR_TRY(against_none(k, none, &faster));
    for (; dropped && trials > 0 && !k->story->cut; any |= dropped)
        TR_TRY(leave_out(k, &trials, less, parts, &dropped));
    if (any) TR_TRY(against_none(k, none, &faster));
    if (!faster) memset(k->chosen, 0, nlayers * sizeof *k->chosen);
out:
    tr_free(parts);
    tr_free(less);
    tr_free(none);
    return st;
}

tr_status tr_quantize_tell_times(choosing *k)
{
    tr_comm *comm = tr_evaluator_comm(k->e);
    bool faster;
    if (tr_comm_topology(comm)->part) return TR_OK;
    bool *none = tr_alloc(TR_MEM_OTHER, k->n->model->nlayers, sizeof *none);
    tr_status st = tr_agree(comm, none ? TR_OK : tr_last_status(), NULL);
    if (st == TR_OK) st = against_none(k, none, &faster);
    tr_free(none);
    return st;
}

/* ---- The loss -------------------------------------------------------------------------------- */

static bool allowed(const tr_int8_options *o, const tr_evaluation *was, const tr_evaluation *is)
{
    if (isfinite(was->loss) && !isfinite(is->loss)) return false;
    const bool has_accuracy = isfinite(was->accuracy);
    const double rise = is->loss - was->loss;
    if (o->loss_rise >= 0 && !(rise <= o->loss_rise)) return false;
    if (o->loss_rise < 0 && !has_accuracy && rise > o->loss_share * fabs(was->loss)) return false;
    return o->accuracy_drop < 0 || !has_accuracy ||
           was->accuracy - is->accuracy <= o->accuracy_drop;
}

void tr_quantize_leave_worst(const tr_model *m, const tr_int8_layer *layers, size_t count,
                             bool *chosen)
{
    for (; count > 0; count--) {
        size_t worst = m->nlayers;
        for (size_t i = 0; i < m->nlayers; i++)
            if (chosen[i] && (worst == m->nlayers ||
                              layers[i].output_sqnr_nearest < layers[worst].output_sqnr_nearest))
                worst = i;
        if (worst < m->nlayers) chosen[worst] = false;
    }
}

/* *Collective.* The loss with what is chosen. */
static tr_status evaluate(choosing *k, tr_evaluation *is)
{
    tr_status st;
    tr_network *q = NULL;
    TR_TRY(look_for_stop(k));
    TR_TRY(made(k, k->chosen, &q));
    TR_TRY(tr_evaluate_on(k->e, q, k->config, true, k->o->calibration.samples, is));
    k->story->evaluations++;
    TR_TRY(look_at_clock(k));
out:
    tr_network_close(q);
    return st;
}

static tr_status choose_by_loss(choosing *k, const tr_evaluation *was)
{
    tr_status st = TR_OK;
    tr_evaluation is;
    for (size_t n; (n = count_of(k, k->chosen)) > 0;) {
        TR_TRY(evaluate(k, &is));
        if (is_root(k))
            tr_log(TR_LOG_INFO, "layers: auto: loss %.6g with %zu layers in 8 bits, %.6g with none",
                   is.loss, n, was->loss);
        if (allowed(k->o, was, &is)) break;
        tr_quantize_leave_worst(k->n->model, k->layers, k->story->cut ? (n + 1) / 2 : 1, k->chosen);
    }
out:
    return st;
}

tr_status tr_quantize_choose(choosing *k)
{
    tr_status st = TR_OK;
    tr_evaluation was;
    k->begin = tr_now();
    if (is_root(k))
        tr_log(TR_LOG_INFO, "layers: auto: %zu layers are compared, for %g s at most",
               count_of(k, k->chosen), k->o->seconds);
    if (k->o->by_loss)
        TR_TRY(tr_evaluate_on(k->e, k->n, k->config, true, k->o->calibration.samples, &was));
    for (size_t left = 0; count_of(k, k->chosen) != left;) {
        TR_TRY(choose_by_time(k));
        left = count_of(k, k->chosen);
        if (k->o->by_loss) TR_TRY(choose_by_loss(k, &was));
    }
out:
    return st;
}
