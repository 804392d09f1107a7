/* Structured pruning to a target: one number says how much goes, of all groups alike (each its
 * share of it) or of all channels together; a bisection finds the least that reaches the target.
 * Costs as many networks made, or measured, as steps. */
#include "optimize/prune/internal.h"

#include <math.h>
#include <string.h>

#include "runtime/graph/facts.h"

enum { STEPS = 14 };

typedef struct {
    const tr_network *n;
    const tr_structured_options *o;
    tr_groups g;
    tr_ranked *order; /* [nunits] least first */
    bool *marked;     /* [nunits] */
    size_t *least;    /* [ngroups] units that stay in any case */
    size_t *gone;     /* [ngroups] marked ones */
    size_t *step;     /* [ngroups] units stay in multiples of so many */
    size_t nfree;     /* units that may go */
    double before;
} pruning;

double tr_network_multiply_adds(const tr_network *n)
{
    double sum = 0;
    for (size_t i = 0; i < n->model->nlayers; i++)
        sum += tr_layer_multiply_adds(n->model, &n->model->layers[i]);
    return sum;
}

static tr_status cost_of(const tr_structured_options *o, const tr_network *n, double *cost)
{
    switch (o->measure) {
    case TR_PRUNE_PARAMETERS:
        *cost = (double)n->model->nparameters;
        break;
    case TR_PRUNE_MULTIPLY_ADDS:
        *cost = tr_network_multiply_adds(n);
        break;
    case TR_PRUNE_MEASURED:
        return o->cost(o->ctx, n, cost);
    }
    return TR_OK;
}

/* ---- What may go ----------------------------------------------------------------------------- */

static size_t gcd(size_t a, size_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* step[k]: the number of units of group k that stays is a multiple of this, so that each layer
 * whose width is a multiple of o->multiple now keeps such a width. A unit that has `each` channels
 * of a layer adds as many to the width: of 8 with 2 each, units stay by fours. */
static void find_steps(pruning *p, size_t nvalues)
{
    for (size_t k = 0; k < p->g.ngroups; k++) p->step[k] = 1;
    for (size_t v = p->n->model->ninputs; v < nvalues && p->o->multiple > 1; v++) {
        const tr_layer *l = &p->n->model->layers[v - p->n->model->ninputs];
        if (!tr_layer_product(l, NULL)) continue;
        const size_t width = p->g.first[v + 1] - p->g.first[v], multiple = (size_t)p->o->multiple;
        const int u = p->g.unit[p->g.first[v]];
        if (u < 0 || width % multiple != 0) continue; /* it was none before */
        const size_t k = (size_t)p->g.group[u];
        size_t each = 0; /* all of them are of one group */
        for (size_t e = p->g.first[v]; e < p->g.first[v + 1]; e++) each += p->g.unit[e] == u;
        const size_t step = multiple / gcd(multiple, each);
        p->step[k] = p->step[k] / gcd(p->step[k], step) * step;
    }
}

static tr_status keep_layers(pruning *p)
{
    const tr_model *m = p->n->model;
    tr_status st = TR_OK;
    for (size_t i = 0; i < p->o->nkeep; i++) {
        const tr_layer *l = tr_model_layer(m, p->o->keep[i]);
        TR_NEED(l, TR_CONFIG, "there is no layer \"%s\"", p->o->keep[i]);
        const size_t v = m->ninputs + (size_t)l->index;
        for (size_t e = p->g.first[v]; e < p->g.first[v + 1]; e++)
            if (p->g.unit[e] >= 0)
                p->least[p->g.group[p->g.unit[e]]] = p->g.size[p->g.group[p->g.unit[e]]];
    }
out:
    return st;
}

static size_t round_up(const pruning *p, size_t k, size_t stay)
{
    const size_t up = (stay + p->step[k] - 1) / p->step[k] * p->step[k];
    return up < p->g.size[k] ? up : p->g.size[k];
}

static tr_status open_pruning(pruning *p)
{
    tr_status st = TR_OK;
    const tr_structured_options *o = p->o;
    double *scores = NULL;
    TR_NEED(o->target > 0 && o->target <= 1, TR_CONFIG, "a target of %g, expected 0 to 1",
            o->target);
    TR_NEED(o->most > 0 && o->most <= 1, TR_CONFIG, "most: %g, expected 0 to 1", o->most);
    TR_TRY(tr_groups_open(p->n->model, &p->g));
    const size_t units = p->g.nunits, groups = p->g.ngroups;
    scores = tr_alloc(TR_MEM_OTHER, units, sizeof *scores);
    p->order = tr_alloc(TR_MEM_OTHER, units, sizeof *p->order);
    p->marked = tr_alloc(TR_MEM_OTHER, units, sizeof *p->marked);
    p->least = tr_alloc(TR_MEM_OTHER, groups, sizeof *p->least);
    p->gone = tr_alloc(TR_MEM_OTHER, groups, sizeof *p->gone);
    p->step = tr_alloc(TR_MEM_OTHER, groups, sizeof *p->step);
    TR_HAVE(scores && p->order && p->marked && p->least && p->gone && p->step);
    find_steps(p, p->n->model->ninputs + p->n->model->nlayers);
    for (size_t k = 0; k < groups; k++) {
        const size_t stay = p->g.size[k] - (size_t)(o->most * (double)p->g.size[k]);
        p->least[k] = round_up(p, k, stay > 1 ? stay : 1);
    }
    TR_TRY(keep_layers(p));
    for (size_t k = 0; k < groups; k++) p->nfree += p->g.size[k] - p->least[k];
    TR_TRY(tr_groups_score(p->n, &p->g, o->by, o->seed, o->gradients, scores));
    for (size_t u = 0; u < units; u++)
        p->order[u] = (tr_ranked){o->shares && o->global && o->shares[p->g.group[u]] > 0
                                      ? scores[u] / o->shares[p->g.group[u]]
                                      : scores[u],
                                  u};
    tr_rank(p->order, units);
out:
    tr_free(scores);
    return st;
}

static void close_pruning(pruning *p)
{
    tr_groups_close(&p->g);
    tr_free(p->order);
    tr_free(p->marked);
    tr_free(p->least);
    tr_free(p->gone);
    tr_free(p->step);
}

/* ---- Marking --------------------------------------------------------------------------------- */

/* Of each group its least ones, `amount` of it times its share. */
static void mark_alike(pruning *p, double amount)
{
    for (size_t i = 0; i < p->g.nunits; i++) {
        const size_t k = (size_t)p->g.group[p->order[i].at];
        const double a = amount * (p->o->shares ? p->o->shares[k] : 1);
        const size_t stay = p->g.size[k] - (size_t)floor(a * (double)p->g.size[k]);
        const size_t rest = round_up(p, k, stay > p->least[k] ? stay : p->least[k]);
        if (p->g.size[k] - p->gone[k] <= rest) continue;
        p->marked[p->order[i].at] = true;
        p->gone[k]++;
    }
}

/* The least of all, `amount` of those that may go; then back to widths that are allowed, from the
 * most important on. */
static void mark_together(pruning *p, double amount)
{
    size_t rest = (size_t)floor(amount * (double)p->nfree);
    for (size_t i = 0; i < p->g.nunits && rest > 0; i++) {
        const size_t k = (size_t)p->g.group[p->order[i].at];
        if (p->g.size[k] - p->gone[k] <= p->least[k] || (p->o->shares && p->o->shares[k] == 0))
            continue;
        p->marked[p->order[i].at] = true;
        p->gone[k]++;
        rest--;
    }
    for (size_t i = p->g.nunits; i-- > 0;) {
        const size_t k = (size_t)p->g.group[p->order[i].at], stay = p->g.size[k] - p->gone[k];
        if (!p->marked[p->order[i].at] || round_up(p, k, stay) == stay) continue;
        p->marked[p->order[i].at] = false;
        p->gone[k]--;
    }
}

static tr_status try_amount(pruning *p, double amount, tr_network **out, double *reached)
{
    tr_status st = TR_OK;
    double cost;
    memset(p->marked, 0, p->g.nunits * sizeof *p->marked);
    memset(p->gone, 0, p->g.ngroups * sizeof *p->gone);
    if (p->o->global)
        mark_together(p, amount);
    else
        mark_alike(p, amount);
    TR_TRY(tr_prune_agree(p->o, tr_groups_remove(p->n, &p->g, p->marked, out)));
    TR_TRY(cost_of(p->o, *out, &cost));
    *reached = p->before > 0 ? cost / p->before : 1;
out:
    return st;
}

/* All at first: where that does not reach the target, it is the best there is. */
static tr_status bisect(pruning *p, tr_network **best, double *reached)
{
    tr_status st = TR_OK;
    double low = 0, high = 1;
    TR_TRY(try_amount(p, 1, best, reached));
    for (int i = 0; i < STEPS && *reached <= p->o->target; i++) {
        tr_network *made = NULL;
        double r;
        const double mid = (low + high) / 2;
        st = try_amount(p, mid, &made, &r);
        if (st == TR_OK && r <= p->o->target) {
            tr_network_close(*best);
            *best = made;
            *reached = r;
            high = mid;
            continue;
        }
        tr_network_close(made);
        if (st != TR_OK) goto out;
        low = mid;
    }
out:
    return st;
}

tr_status tr_prune_channels(const tr_network *n, const tr_structured_options *o, tr_network **out,
                            double *reached)
{
    pruning p = {.n = n, .o = o};
    tr_network *best = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_prune_agree(o, open_pruning(&p)));
    TR_TRY(cost_of(o, n, &p.before));
    *reached = 1;
    if (o->target < 1)
        TR_TRY(bisect(&p, &best, reached));
    else
        TR_TRY(tr_network_edit(n, NULL, NULL, &best));
    *out = best;
    best = NULL;
out:
    tr_network_close(best);
    close_pruning(&p);
    return st;
}

double tr_prune_schedule(double target, int round, int rounds, bool cubic)
{
    const double left = 1 - (double)round / (double)rounds;
    return target + (1 - target) * (cubic ? left * left * left : left);
}
