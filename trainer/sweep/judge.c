/* What trials came to, beside each other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/sweep/internal.h"

const tr_trial_model *tr_sweep_reference(const tr_sweep *s)
{
    for (size_t i = 0; i < s->ntrials; i++)
        if (s->trials[i].result.state == TR_TRIAL_DONE) return &s->trials[i].result.trained;
    return NULL;
}

/* Whether it has answers: where the loss is not finite, an accuracy says nothing. */
static bool answers(const tr_trial_model *m)
{
    return m->evaluated && isfinite(m->loss);
}

/* A number that is not known keeps to no bound. */
static double above(double is, double bound)
{
    if (bound < 0 || (isfinite(is) && is <= bound)) return 0;
    return isfinite(is) ? (is - bound) / fmax(bound, 1e-3) : 1e9;
}

/* `ms` and `reference_ms` stand for what was timed: of the model, and of the one that it is held
 * against. */
static double violation(const tr_sweep *s, const tr_trial_model *m, double ms, double reference_ms)
{
    const tr_budget *b = &s->spec.search.subject_to;
    const tr_trial_model *r = tr_sweep_reference(s);
    if (!s->spec.search.present || !r) return 0;
    const bool both = answers(m) && r->evaluated;
    double sum = above(both ? r->accuracy - m->accuracy : NAN, b->accuracy_drop);
    sum += above(both ? m->loss - r->loss : NAN, b->loss_rise);
    sum += above((double)m->bytes / (double)r->bytes, b->size);
    sum += above(ms, b->latency_ms);
    if (b->accuracy >= 0 && !(answers(m) && m->accuracy >= b->accuracy))
        sum += answers(m) ? above(1 - m->accuracy, fmax(0, 1 - b->accuracy - 1e-15)) : 1e9;
    sum += above(answers(m) ? m->loss : NAN, b->loss);
    sum += above((double)m->bytes / 1e6, b->size_mb);
    if (b->speedup > 0) sum += above(ms / reference_ms, 1 / b->speedup);
    return sum;
}

double tr_sweep_violation(const tr_sweep *s, const tr_trial_model *m)
{
    const tr_trial_model *r = tr_sweep_reference(s);
    return violation(s, m, m->ms, r ? r->ms : NAN);
}

double tr_sweep_minimized(const tr_sweep *s, const tr_trial_model *m)
{
    const double unknown = INFINITY;
    switch ((tr_minimize)s->spec.search.minimize) {
    case TR_MINIMIZE_LATENCY:
        return m->ms;
    case TR_MINIMIZE_SIZE:
        return (double)m->bytes;
    case TR_MINIMIZE_MULTIPLY_ADDS:
        return m->multiply_adds;
    case TR_MINIMIZE_LOSS:
        return answers(m) ? m->loss : unknown;
    case TR_MINIMIZE_ERROR:
        return answers(m) && !isnan(m->accuracy) ? 1 - m->accuracy : unknown;
    }
    return unknown;
}

void tr_sweep_objectives(const tr_trial_model *m, double *out)
{
    out[0] = m->ms;
    out[1] = (double)m->bytes;
    out[2] = !m->evaluated        ? 0
             : !answers(m)        ? INFINITY
             : isnan(m->accuracy) ? m->loss
                                  : 1 - m->accuracy;
}

/* Whether another timing could find it done and within the bounds. */
static bool may_count(const tr_sweep *s, const tr_trial_result *r)
{
    const tr_trial_model *reference = tr_sweep_reference(s);
    return r->state == TR_TRIAL_DONE &&
           violation(s, &r->last, r->last.ms / TR_SWEEP_NOISE, reference->ms * TR_SWEEP_NOISE) == 0;
}

/* Whether `b` is so much better that another measurement of both would not turn it round. */
static bool far_behind(const tr_trial_model *a, const tr_trial_model *b)
{
    double x[TR_SEARCH_OBJECTIVES], y[TR_SEARCH_OBJECTIVES];
    tr_sweep_objectives(a, x);
    tr_sweep_objectives(b, y);
    return y[0] * TR_SWEEP_NOISE < x[0] && y[1] <= x[1] && y[2] <= x[2];
}

/* Who is left out may be passed over when others are compared: whoever is far behind it is far
 * behind what left it out. */
void tr_sweep_candidates(const tr_sweep *s, bool *in)
{
    for (size_t i = 0; i < s->ntrials; i++) in[i] = may_count(s, &s->trials[i].result);
    for (size_t i = 0; i < s->ntrials; i++)
        for (size_t k = 0; in[i] && k < s->ntrials; k++)
            in[i] = !in[k] || !far_behind(&s->trials[i].result.last, &s->trials[k].result.last);
}

bool tr_sweep_bounds_latency(const tr_sweep *s)
{
    const tr_budget *b = &s->spec.search.subject_to;
    return s->spec.search.present && (b->latency_ms >= 0 || b->speedup > 0);
}

tr_trial *tr_sweep_timed_reference(const tr_sweep *s)
{
    if (!s->spec.search.present || !(s->spec.search.subject_to.speedup > 0)) return NULL;
    for (size_t i = 0; i < s->ntrials; i++)
        if (s->trials[i].result.state == TR_TRIAL_DONE) return &s->trials[i];
    return NULL;
}

double tr_turns_ms(const tr_trial_result *r, const char *turns)
{
    return *turns && r->turns_ms > 0 && strcmp(r->turns, turns) == 0 ? r->turns_ms : NAN;
}

/* Latencies of different timings are hours apart, as those of trials are. */
const char *tr_sweep_timed(const tr_sweep *s, const bool *candidates)
{
    const tr_trial *reference = tr_sweep_timed_reference(s);
    const char *turns = "";
    for (size_t i = 0; i < s->ntrials && !*turns; i++)
        if (candidates[i]) turns = s->trials[i].result.turns;
    for (size_t i = 0; i < s->ntrials; i++)
        if (candidates[i] && isnan(tr_turns_ms(&s->trials[i].result, turns))) return "";
    if (reference &&
        (strcmp(reference->result.turns, turns) != 0 || !(reference->result.trained_turns_ms > 0)))
        return "";
    return turns;
}

/* As it is judged at the end: candidates by their latencies in turns, where all that matter have
 * one. */
static tr_trial_model judge(const tr_sweep *s, const tr_trial_result *r, bool turns, bool *within)
{
    const tr_trial *reference = tr_sweep_timed_reference(s);
    tr_trial_model m = r->last;
    if (turns) m.ms = r->turns_ms;
    *within = r->state == TR_TRIAL_DONE &&
              (turns && reference ? violation(s, &m, m.ms, reference->result.trained_turns_ms)
                                  : tr_sweep_violation(s, &m)) == 0;
    return m;
}

/* Which step of TR_SWEEP_APART: of latencies in one, noise says which is the lesser one. An order,
 * which a tolerance is not: two that differ by little may stand on either side of an edge. */
static double told_apart(double ms)
{
    return rint(log(ms) / log(TR_SWEEP_APART));
}

tr_status tr_sweep_judge(const tr_sweep *s, tr_verdict *verdicts, size_t *best)
{
    tr_status st;
    const size_t n = s->ntrials;
    double least = INFINITY, *v = tr_alloc(TR_MEM_OTHER, n * TR_SEARCH_OBJECTIVES, sizeof *v);
    bool *in = tr_alloc(TR_MEM_OTHER, n, sizeof *in), *front = tr_alloc(TR_MEM_OTHER, n, 1);
    *best = SIZE_MAX;
    TR_HAVE(v && in && front);
    tr_sweep_candidates(s, in);
    const bool turns = *tr_sweep_timed(s, in) != 0;
    for (size_t i = 0; i < n; i++) {
        verdicts[i].turns = turns && in[i];
        const tr_trial_model m =
            judge(s, &s->trials[i].result, verdicts[i].turns, &verdicts[i].within);
        in[i] = in[i] && verdicts[i].within;
        tr_sweep_objectives(&m, v + i * TR_SEARCH_OBJECTIVES);
        v[i * TR_SEARCH_OBJECTIVES] = told_apart(m.ms);
    }
    TR_TRY(tr_pareto_front(n, TR_SEARCH_OBJECTIVES, v, in, front));
    for (size_t i = 0; i < n; i++) {
        verdicts[i].front = front[i];
        if (!front[i]) continue;
        const tr_trial_model m =
            judge(s, &s->trials[i].result, verdicts[i].turns, &verdicts[i].within);
        const double is = tr_sweep_minimized(s, &m);
        if (*best != SIZE_MAX && is >= least) continue;
        *best = i;
        least = is;
    }
out:
    tr_free(v);
    tr_free(in);
    tr_free(front);
    return st;
}
