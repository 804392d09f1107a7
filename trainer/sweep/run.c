/* The sweep: which trials run next, on which ranks; what came of them. Ranks run trials by groups
 * (groups.c), in rounds: each group runs one trial, then all meet, and rank 0 records what came of
 * the round. Trials that take another's training wait for the round behind it. What is timed is
 * timed between rounds, by one rank, while all others sleep. */
#include <math.h>
#include <time.h>

#include "runtime/base/numbers.h"
#include "trainer/loop/signals.h"
#include "trainer/sweep/internal.h"

/* ---- The next trial -------------------------------------------------------------------------- */

/* What a proposal cannot run with is found when it runs, and recorded: it is known by its
 * settings. */
static tr_status identify(tr_sweep *s, tr_trial *t)
{
    tr_status st = TR_OK;
    tr_config *c = NULL;
    char *text = NULL;
    if (tr_trial_config(s, t, &c) == TR_OK) {
        TR_TRY(tr_trial_identify(s, t, c));
    } else {
        text = tr_trial_text(s, t);
        TR_HAVE(text);
        tr_sha256_hex(text, strlen(text), t->key);
    }
out:
    tr_config_close(c);
    tr_free(text);
    return st;
}

/* *Local.* All ranks find the same. *found false: every setting was tried. */
static tr_status search_next(tr_sweep *s, bool *found)
{
    tr_status st;
    const size_t n = s->ntrials;
    double *next = s->points + n * s->space.count;
    tr_search_result *all = tr_alloc(TR_MEM_OTHER, n, sizeof *all);
    TR_HAVE(all);
    for (size_t i = 0; i < n; i++) {
        const tr_trial_result *r = &s->trials[i].result;
        all[i].failed = r->state != TR_TRIAL_DONE;
        if (all[i].failed) continue;
        tr_sweep_objectives(&r->last, all[i].objectives);
        all[i].minimize = tr_sweep_minimized(s, &r->last);
        all[i].violation = tr_sweep_violation(s, &r->last);
    }
    TR_TRY(
        tr_search_next(&s->space, (uint64_t)s->spec.search.seed, n, s->points, all, next, found));
    if (!*found) goto out;
    TR_TRY(tr_trials_add(s, next));
    TR_TRY(identify(s, &s->trials[n]));
out:
    tr_free(all);
    return st;
}

/* *Collective.* Trials that do not depend on what comes of each other: all, or of a search
 * search.together of them, from results of those before alone. *begin: the first of them; *more
 * false: there are no others. */
static tr_status next_generation(tr_sweep *s, const tr_sweep_groups *g, size_t *begin, bool *more)
{
    tr_status st = TR_OK;
    const bool search = s->spec.search.present;
    *more = search ? s->ntrials < s->planned : *begin == SIZE_MAX;
    *begin = search ? s->ntrials : 0;
    bool found = *more && search;
    for (int64_t i = 0; found && i < s->spec.search.together && s->ntrials < s->planned; i++)
        TR_TRY(tr_agree(g->job, search_next(s, &found), NULL));
    if (!*more || !search || found) goto out;
    if (tr_comm_topology(g->job)->rank == 0)
        tr_log(TR_LOG_INFO, "no setting was found beyond the %zu that were tried: the search ends",
               s->ntrials);
    s->planned = s->ntrials;
    *more = s->ntrials > *begin;
out:
    return st;
}

/* ---- What is known --------------------------------------------------------------------------- */

/* Rank 0. */
static void say(const tr_sweep *s, const tr_trial *t, bool before)
{
    const tr_trial_result *r = &t->result;
    char size[32], loss[32], quality[64] = "", *text = before ? tr_trial_text(s, t) : NULL;
    if (before)
        tr_log(TR_LOG_INFO, "trial %zu (%zu of %zu): %s", t->number, t->place + 1, s->planned,
               text ? text : "");
    else if (r->state == TR_TRIAL_FAILED)
        tr_log(TR_LOG_WARN, "trial %zu failed: %s%s", t->number, r->reason,
               r->away ? "; --resume tries it again" : "");
    else {
        tr_format_finite(r->last.loss, loss, sizeof loss);
        if (r->last.evaluated && r->last.accuracy >= 0 && isfinite(r->last.loss))
            snprintf(quality, sizeof quality, ", accuracy %.4f", r->last.accuracy);
        else if (r->last.evaluated)
            snprintf(quality, sizeof quality, ", loss %s", loss);
        tr_log(TR_LOG_INFO, "trial %zu done%s: %.4g ms a sample, %s%s", t->number,
               t->recorded ? ", as recorded" : "", r->last.ms,
               tr_format_bytes((double)r->last.bytes, size, sizeof size), quality);
    }
    tr_free(text);
}

/* Rank 0. */
static tr_status say_earlier(const tr_sweep *s)
{
    char *text;
    const tr_status st = tr_sweep_earlier_text(s, &text);
    if (st == TR_OK && text)
        tr_log(TR_LOG_WARN,
               "%s holds %s that this sweep does not have: they stay, and are `earlier` in "
               "sweep.csv, but are not held against the others",
               s->spec.output, text);
    tr_free(text);
    return st;
}

/* *Collective.* What is there of before, from trial `begin` on. */
static tr_status take_records(tr_sweep *s, size_t begin, tr_comm *comm)
{
    tr_status st;
    const bool root = tr_comm_topology(comm)->rank == 0;
    TR_TRY(tr_trials_match(s, begin, comm));
    for (size_t i = begin; root && i < s->ntrials; i++)
        if (s->trials[i].recorded) say(s, &s->trials[i], false);
    if (!s->spec.search.present) TR_TRY(tr_agree(comm, root ? say_earlier(s) : TR_OK, NULL));
out:
    return st;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

/* *Collective.* Between rounds nothing is half done. */
static tr_status look_for_stop(tr_comm *comm, const char *before)
{
    double stop = tr_signals_ask_stop(comm);
    tr_status st = tr_comm_all_reduce(comm, &stop, 1, TR_F64);
    if (st == TR_OK && stop > 0)
        st = TR_FAIL(TR_STOPPED, "stopped before %s; go on with --resume", before);
    return st;
}

/* Of the trials from `begin` on those that run next, one a group; how many. */
static size_t pick(const tr_sweep *s, const tr_sweep_groups *g, size_t begin, tr_trial **round)
{
    size_t n = 0;
    for (size_t i = begin; i < s->ntrials && n < g->count; i++) {
        tr_trial *t = &s->trials[i];
        const bool ready = t->source == i || s->trials[t->source].result.state != TR_TRIAL_OPEN;
        if (t->result.state == TR_TRIAL_OPEN && ready) round[n++] = t;
    }
    return n;
}

/* *Collective.* What groups beside each other timed says nothing. */
static tr_status time_alone(tr_sweep *s, tr_trial *t, tr_comm *comm)
{
    tr_status st = TR_OK;
    tr_trial_result *r = &t->result;
    if (r->state != TR_TRIAL_DONE) return TR_OK;
    TR_TRY(tr_trial_latency(s, t, true, comm, &r->trained.ms));
    TR_TRY(tr_trial_latency(s, t, false, comm, &r->last.ms));
out:
    return st;
}

/* *Collective* over the job. Every group has ended its trial, with `st` here: what came of them
 * becomes known to all, and is recorded. */
static tr_status end_round(tr_sweep *s, const tr_sweep_groups *g, tr_trial **round, size_t n,
                           tr_status st)
{
    tr_comm *job = g->job;
    const bool root = tr_comm_topology(job)->rank == 0;
    tr_comm_patient(job, true); /* trials take as long as they take */
    st = tr_agree(job, st, NULL);
    tr_comm_patient(job, false);
    const tr_error why = *tr_last_error();
    tr_status after = TR_OK;
    for (size_t k = 0; after == TR_OK && k < n; k++)
        after = tr_comm_broadcast(job, &round[k]->result, sizeof round[k]->result, g->leaders[k]);
    for (size_t k = 0; after == TR_OK && st == TR_OK && g->count > 1 && k < n; k++)
        after = time_alone(s, round[k], job);
    const bool timed = g->count == 1 || st == TR_OK; /* else the next start does that */
    for (size_t k = 0; root && after == TR_OK && k < n; k++) {
        const int state = round[k]->result.state;
        if (state == TR_TRIAL_OPEN || (state == TR_TRIAL_DONE && !timed)) continue;
        say(s, round[k], false);
        if (!round[k]->result.away) after = tr_trial_record(s, round[k]);
    }
    if (root && after == TR_OK) after = tr_sweep_write(s, false, NULL);
    after = tr_agree(job, after, NULL);
    if (st != TR_OK) tr_set_error(&why);
    return st != TR_OK ? st : after;
}

/* *Collective.* */
static tr_status run_trials(tr_sweep *s, const tr_sweep_groups *g, bool *agreed)
{
    tr_status st = TR_OK;
    const bool root = tr_comm_topology(g->job)->rank == 0;
    size_t begin = SIZE_MAX, n;
    bool more;
    char before[32];
    tr_trial **round = tr_alloc(TR_MEM_OTHER, g->count, sizeof(tr_trial *));
    TR_TRY(tr_agree(g->job, round ? TR_OK : tr_last_status(), NULL));
    for (;;) {
        TR_TRY(next_generation(s, g, &begin, &more));
        if (!more) break;
        TR_TRY(take_records(s, begin, g->job));
        for (;;) {
            tr_trials_sources(s);
            if ((n = pick(s, g, begin, round)) == 0) break;
            snprintf(before, sizeof before, "trial %zu", round[0]->number);
            TR_TRY(look_for_stop(g->job, before));
            for (size_t k = 0; root && k < n; k++) say(s, round[k], true);
            if (g->own < n) st = tr_trial_run(s, round[g->own], g->comm, agreed);
            if (!*agreed) goto out;
            TR_TRY(end_round(s, g, round, n, st));
        }
    }
    if (s->spec.search.present) TR_TRY(tr_agree(g->job, root ? say_earlier(s) : TR_OK, NULL));
out:
    tr_free((void *)round);
    return st;
}

/* ---- Times that decide ----------------------------------------------------------------------- */

enum { TURNS = 3 };

/* One model that is timed again. */
typedef struct {
    tr_trial *trial;
    bool trained;
    double *result; /* where its median goes */
    double ms[TURNS];
} timing;

/* *Local.* What is timed again: candidates, and what bounds hold them against. v[ntrials + 1]. */
static size_t list_timings(tr_sweep *s, const bool *in, timing *v)
{
    size_t n = 0;
    tr_trial *reference = tr_sweep_timed_reference(s);
    for (size_t i = 0; i < s->ntrials; i++)
        if (in[i])
            v[n++] = (timing){.trial = &s->trials[i], .result = &s->trials[i].result.turns_ms};
    if (n > 0 && reference)
        v[n++] = (timing){reference, true, &reference->result.trained_turns_ms, {0}};
    return n;
}

/* *Collective.* What tells a timing from all others, of this sweep or another: when it was, to the
 * nanosecond. */
static tr_status name_timing(tr_comm *comm, char name[17])
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, 17, "%016llx",
             (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec);
    return tr_comm_broadcast(comm, name, 17, 0);
}

/* Of another timing nothing stays. */
static void begin_timing(tr_trial_result *r, const char *name)
{
    r->turns_ms = r->trained_turns_ms = 0;
    snprintf(r->turns, sizeof r->turns, "%s", name);
}

/* *Collective.* One after the other and that several times over. */
static tr_status take_turns(tr_sweep *s, timing *v, size_t n, tr_comm *comm)
{
    tr_status st = TR_OK;
    const bool root = tr_comm_topology(comm)->rank == 0;
    char name[17];
    TR_TRY(name_timing(comm, name));
    for (int turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < n; i++) {
            TR_TRY(look_for_stop(comm, "all were timed in turns"));
            TR_TRY(tr_trial_latency(s, v[i].trial, v[i].trained, comm, &v[i].ms[turn]));
        }
    for (size_t i = 0; i < n; i++) begin_timing(&v[i].trial->result, name);
    for (size_t i = 0; i < n; i++) *v[i].result = tr_median(v[i].ms, TURNS);
    for (size_t i = 0; root && st == TR_OK && i < n; i++) st = tr_trial_record(s, v[i].trial);
    TR_TRY(tr_agree(comm, st, NULL));
out:
    return st;
}

/* *Collective.* Latencies of trials were measured hours apart. Those that may be on the front are
 * measured again in turns, so that what drifts on the machine meets all alike: the median counts
 * for bounds and for the front. What trials found at first stays, as a search went by it. */
static tr_status time_in_turns(tr_sweep *s, tr_comm *comm)
{
    tr_status st;
    bool *in = tr_alloc(TR_MEM_OTHER, s->ntrials, sizeof *in);
    timing *v = tr_alloc(TR_MEM_OTHER, s->ntrials + 1, sizeof *v);
    TR_TRY(tr_agree(comm, in && v ? TR_OK : tr_last_status(), NULL));
    tr_sweep_candidates(s, in);
    const size_t n = list_timings(s, in, v);
    if (n < (tr_sweep_bounds_latency(s) ? 1 : 2) || *tr_sweep_timed(s, in)) goto out;
    if (tr_comm_topology(comm)->rank == 0)
        tr_log(TR_LOG_INFO, "%zu model%s timed once more, in turns", n, n == 1 ? " is" : "s are");
    TR_TRY(take_turns(s, v, n, comm));
out:;
    const tr_error why = *tr_last_error();
    tr_free(in);
    tr_free(v);
    tr_set_error(&why);
    return st;
}

/* *Collective.* The tables are written whatever becomes of the last timing; then they say that it
 * is missing. */
static tr_status finish(tr_sweep *s, tr_comm *comm)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    const tr_status timed = time_in_turns(s, comm);
    const tr_error why = *tr_last_error();
    tr_status st = root ? tr_sweep_write(s, true, timed == TR_OK ? NULL : why.text) : TR_OK;
    if (timed == TR_OK) return tr_agree(comm, st, NULL);
    if (st != TR_OK) tr_log(TR_LOG_WARN, "%s", tr_last_error()->text);
    tr_set_error(&why);
    return timed;
}

/* ---- The sweep ------------------------------------------------------------------------------- */

tr_status tr_sweep_run(tr_sweep *s, tr_comm *comm, bool *agreed)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_sweep_groups g = {.job = comm};
    const size_t ranks = (size_t)tr_comm_topology(comm)->size;
    const size_t groups = s->side_by_side ? ranks / (size_t)s->spec.ranks_per_trial : 1;
    int64_t *together = &s->spec.search.together;
    tr_status st;
    *agreed = true;
    TR_TRY(tr_sweep_groups_open(s, comm, &g));
    TR_TRY(tr_agree(comm, root ? tr_sweep_begin(s, groups) : TR_OK, NULL));
    TR_TRY(tr_comm_broadcast(comm, together, sizeof *together, 0));
    if (root && s->spec.search.present && *together < (int64_t)g.count)
        tr_log(TR_LOG_WARN,
               "%lld of %zu groups of ranks have nothing to do: search.together is %lld",
               (long long)((int64_t)g.count - *together), g.count, (long long)*together);
    TR_TRY(run_trials(s, &g, agreed));
    TR_TRY(finish(s, comm));
    if (!tr_sweep_reference(s)) { /* the same on all ranks */
        const tr_trial_result *first = &s->trials[0].result;
        st = TR_FAIL(TR_BUDGET, "no trial is done; the first failed: %.900s", first->reason);
    }
out:;
    const tr_error why = *tr_last_error();
    if (*agreed) tr_sweep_groups_close(&g);
    tr_set_error(&why);
    return st;
}
