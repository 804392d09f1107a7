/* The table of passes, and running them: each on what the one before made, proven, over and over
 * until none finds anything. */
#include "optimize/passes/passes.h"

#include <math.h>
#include <string.h>

#include "optimize/passes/rewrite.h"

/* Rounds after which it is enough: what one pass makes is found by the others long before. */
enum { ROUNDS = 256 };

static const tr_pass *const passes[] = {
    &tr_pass_identity, &tr_pass_merge,     &tr_pass_common,           &tr_pass_constants,
    &tr_pass_pool,     &tr_pass_batchnorm, &tr_pass_batchnorm_before, &tr_pass_normalize,
    &tr_pass_products, &tr_pass_bias,
};

size_t tr_pass_count(void)
{
    return TR_COUNT(passes);
}

const tr_pass *tr_pass_at(size_t i)
{
    return passes[i];
}

typedef struct {
    const tr_passes_options *o;
    tr_network *network; /* as it stands; NULL: none was made yet */
    const tr_network *first;
    bool raw;
} state;

static tr_pass_subject subject(const state *s)
{
    return (tr_pass_subject){s->network ? s->network : s->first, s->raw};
}

/* Keeps `made` where it is proven to do the same. */
static tr_status prove(state *s, tr_network *made, bool raw, size_t count, tr_pass_report *r)
{
    const tr_pass_subject before = subject(s), after = {made, raw};
    double difference = 0;
    tr_status st = TR_OK;
    if (s->o->differ) st = s->o->differ(s->o->ctx, &before, &after, &difference);
    if (st == TR_OK && !(difference <= r->difference)) r->difference = difference;
    if (st != TR_OK || !(difference <= s->o->bound)) {
        tr_network_close(made);
        r->undone = st == TR_OK;
        if (r->undone)
            snprintf(r->note, sizeof r->note, "outputs differ by %.3g, the bound is %.3g",
                     difference, s->o->bound);
        return st;
    }
    tr_network_close(s->network);
    s->network = made;
    s->raw = raw;
    r->count += count;
    return TR_OK;
}

static tr_status run_pass(state *s, const tr_pass *pass, tr_pass_report *r, bool *changed)
{
    tr_rewrite *rw = NULL;
    tr_network *made = NULL;
    size_t count = 0;
    tr_status st = TR_OK;
    TR_TRY(tr_rewrite_open(subject(s).network, &rw));
    rw->normalize = s->o->normalize;
    rw->nnormalize = s->o->nnormalize;
    rw->raw = s->raw;
    TR_TRY(pass->run(rw, &count));
    if (count > 0) TR_TRY(tr_rewrite_apply(rw, &made));
    if (!r->undone) snprintf(r->note, sizeof r->note, "%s", rw->note);
    if (!made) goto out;
    const bool raw = rw->raw;
    tr_rewrite_close(rw); /* before the network that it is about, which `made` replaces */
    rw = NULL;
    TR_TRY(prove(s, made, raw, count, r));
    *changed = !r->undone;
out:
    tr_rewrite_close(rw);
    return st;
}

static tr_status mark_skipped(const tr_passes_options *o, tr_pass_report *reports)
{
    const char *names[TR_COUNT(passes)];
    for (size_t i = 0; i < TR_COUNT(passes); i++) names[i] = passes[i]->name;
    for (size_t k = 0; k < o->nskip; k++) {
        size_t i = 0;
        while (i < TR_COUNT(passes) && strcmp(names[i], o->skip[k]) != 0) i++;
        if (i < TR_COUNT(passes)) {
            reports[i].skipped = true;
            continue;
        }
        const char *near = tr_nearest(o->skip[k], names, TR_COUNT(passes));
        return TR_FAIL(TR_CONFIG, "there is no pass \"%s\"%s%s%s", o->skip[k],
                       near ? ": did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    return TR_OK;
}

tr_status tr_passes_run(const tr_network *n, const tr_passes_options *o, tr_network **out,
                        bool *raw, tr_pass_report *reports)
{
    tr_status st = TR_OK;
    state s = {.o = o, .first = n};
    bool changed = true;
    memset(reports, 0, sizeof *reports * TR_COUNT(passes));
    TR_TRY(mark_skipped(o, reports));
    for (int round = 0; changed && round < ROUNDS; round++) {
        changed = false;
        for (size_t i = 0; i < TR_COUNT(passes); i++)
            if (!reports[i].skipped && !reports[i].undone)
                TR_TRY(run_pass(&s, passes[i], &reports[i], &changed));
    }
    if (!s.network) TR_TRY(tr_network_edit(n, NULL, NULL, &s.network));
    *out = s.network;
    *raw = s.raw;
    s.network = NULL;
out:
    tr_network_close(s.network);
    return st;
}
