/* What trials came to, beside each other. */
#include <math.h>
#include <stdlib.h>

#include "trainer/sweep/internal.h"

const tr_trial_model *tr_sweep_reference(const tr_sweep *s)
{
    for (size_t i = 0; i < s->ntrials; i++)
        if (s->trials[i].result.state == TR_TRIAL_DONE) return &s->trials[i].result.trained;
    return NULL;
}

/* A number that is not known keeps to no bound. */
static double above(double is, double bound)
{
    if (bound < 0 || is <= bound) return 0;
    return isfinite(is) ? (is - bound) / fmax(bound, 1e-3) : 1e9;
}

double tr_sweep_violation(const tr_sweep *s, const tr_trial_model *m)
{
    const tr_budget *b = &s->spec.search.subject_to;
    const tr_trial_model *r = tr_sweep_reference(s);
    if (!s->spec.search.present || !r) return 0;
    const bool both = m->evaluated && r->evaluated;
    double sum = above(both ? r->accuracy - m->accuracy : NAN, b->accuracy_drop);
    sum += above(both ? m->loss - r->loss : NAN, b->loss_rise);
    sum += above((double)m->bytes / (double)r->bytes, b->size);
    sum += above(m->ms, b->latency_ms);
    if (b->accuracy >= 0 && !(m->evaluated && m->accuracy >= b->accuracy))
        sum += m->evaluated ? above(1 - m->accuracy, fmax(0, 1 - b->accuracy - 1e-15)) : 1e9;
    sum += above(m->evaluated ? m->loss : NAN, b->loss);
    sum += above((double)m->bytes / 1e6, b->size_mb);
    if (b->speedup > 0) sum += above(m->ms / r->ms, 1 / b->speedup);
    return sum;
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
        return m->evaluated ? m->loss : unknown;
    case TR_MINIMIZE_ERROR:
        return m->evaluated && !isnan(m->accuracy) ? 1 - m->accuracy : unknown;
    }
    return unknown;
}

void tr_sweep_objectives(const tr_trial_model *m, double *out)
{
    out[0] = m->ms;
    out[1] = (double)m->bytes;
    out[2] = !m->evaluated ? 0 : isnan(m->accuracy) ? m->loss : 1 - m->accuracy;
}

tr_status tr_sweep_front(const tr_sweep *s, bool *front, size_t *best)
{
    tr_status st;
    const size_t n = s->ntrials;
    double *v = tr_alloc(TR_MEM_OTHER, n * TR_SEARCH_OBJECTIVES, sizeof *v);
    bool *in = tr_alloc(TR_MEM_OTHER, n, sizeof *in);
    *best = SIZE_MAX;
    TR_HAVE(v && in);
    for (size_t i = 0; i < n; i++) {
        const tr_trial_result *r = &s->trials[i].result;
        in[i] = r->state == TR_TRIAL_DONE && tr_sweep_violation(s, &r->last) == 0;
        tr_sweep_objectives(&r->last, v + i * TR_SEARCH_OBJECTIVES);
        if (!in[i]) continue;
        if (*best == SIZE_MAX ||
            tr_sweep_minimized(s, &r->last) < tr_sweep_minimized(s, &s->trials[*best].result.last))
            *best = i;
    }
    TR_TRY(tr_pareto_front(n, TR_SEARCH_OBJECTIVES, v, in, front));
out:
    tr_free(v);
    tr_free(in);
    return st;
}
