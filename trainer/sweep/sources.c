/* Who trains for whom: of trials with the same training one does it, the others take what it
 * made. */
#include "trainer/sweep/internal.h"

bool tr_trial_fails_others(const tr_trial *t)
{
    return t->result.training_failed && !t->recorded && t->result.trained_by == (int64_t)t->number;
}

enum { NEVER = 6 };

/* Its training is there; it fails; it is half done; it is to be begun. What failed for another
 * reason, or before, lends nothing, and decides nothing. */
static int rank_of(const tr_trial *t)
{
    if (t->result.state == TR_TRIAL_DONE) return 0;
    if (t->result.state == TR_TRIAL_OPEN) return 5 - t->start;
    return t->result.has_model ? 1 : tr_trial_fails_others(t) ? 2 : NEVER;
}

static bool is_before(const tr_trial *a, const tr_trial *b)
{
    const int x = rank_of(a), y = rank_of(b);
    if (x != y) return x < y;
    return a->result.state == TR_TRIAL_OPEN ? a->place < b->place : a->number < b->number;
}

void tr_trials_sources(tr_sweep *s)
{
    for (size_t i = 0; i < s->ntrials; i++) s->trials[s->trials[i].first].best = i;
    for (size_t i = 0; i < s->ntrials; i++) {
        size_t *best = &s->trials[s->trials[i].first].best;
        if (is_before(&s->trials[i], &s->trials[*best])) *best = i;
    }
    for (size_t i = 0; i < s->ntrials; i++)
        s->trials[i].source = s->trials[s->trials[i].first].best;
}

static bool may_lend(const tr_trial *a, const tr_trial *t)
{
    const bool ended = a->result.state == TR_TRIAL_DONE || a->result.has_model;
    return a != t && a->first == t->first && ended;
}

static tr_lender lender_of(const tr_trial *a)
{
    const int64_t by = a->result.trained_by;
    return (tr_lender){a->number, by >= 0 ? by : (int64_t)a->number};
}

size_t tr_trial_lenders(const tr_sweep *s, const tr_trial *t, tr_lender *v)
{
    size_t n = 0;
    const tr_trial *source = &s->trials[t->source];
    if (may_lend(source, t)) v[n++] = lender_of(source);
    for (size_t i = 0; i < s->ntrials; i++) {
        const tr_trial *a = &s->trials[i];
        if (a != source && may_lend(a, t)) v[n++] = lender_of(a);
    }
    if (t->lender != TR_NO_TRIAL) v[n++] = (tr_lender){t->lender, (int64_t)t->lender};
    return n;
}
