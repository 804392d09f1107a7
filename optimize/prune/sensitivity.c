/* How much each group, or each layer's weights, matter: a part of it alone is removed, and the
 * network is evaluated. */
#include "optimize/prune/internal.h"

#include <math.h>

#include "runtime/graph/facts.h"

/* The least units of one group, so many that one at least stays. */
static void mark(const tr_groups *g, const tr_ranked *order, size_t group, double amount,
                 bool *marked)
{
    size_t rest = (size_t)floor(amount * (double)g->size[group]);
    if (rest >= g->size[group]) rest = g->size[group] - 1;
    for (size_t i = 0; i < g->nunits; i++) {
        const size_t u = order[i].at;
        marked[u] = (size_t)g->group[u] == group && rest > 0;
        rest -= marked[u];
    }
}

typedef struct {
    tr_ranked *order; /* [nunits] */
    bool *marked;     /* [nunits] */
} parts;

static tr_status open_parts(const tr_network *n, const tr_groups *g, const tr_structured_options *o,
                            parts *p)
{
    tr_status st = TR_OK;
    double *scores = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *scores);
    p->order = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *p->order);
    p->marked = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *p->marked);
    TR_HAVE(scores && p->order && p->marked);
    TR_TRY(tr_groups_score(n, g, o->by, o->seed, o->gradients, scores));
    for (size_t u = 0; u < g->nunits; u++) p->order[u] = (tr_ranked){scores[u], u};
    tr_rank(p->order, g->nunits);
out:
    tr_free(scores);
    return st;
}

static tr_status agreed(const tr_prune_judge *j, tr_status st)
{
    return j->agree ? j->agree(j->ctx, st) : st;
}

/* `st`: of making the network, which is released. */
static tr_status judged(const tr_prune_judge *j, tr_status st, tr_network *made, double *loss)
{
    st = agreed(j, st);
    if (st == TR_OK) st = j->evaluate(j->ctx, made, loss);
    tr_network_close(made);
    return st;
}

tr_status tr_prune_sensitivity(const tr_network *n, const tr_groups *g,
                               const tr_structured_options *o, const double *amounts,
                               size_t namounts, const tr_prune_judge *judge, tr_sensitivity *out)
{
    tr_status st = TR_OK;
    parts p = {0};
    TR_TRY(agreed(judge, open_parts(n, g, o, &p)));
    for (size_t k = 0; k < g->ngroups; k++)
        for (size_t a = 0; a < namounts; a++) {
            tr_network *made = NULL;
            tr_sensitivity *s = &out[k * namounts + a];
            s->amount = amounts[a];
            mark(g, p.order, k, amounts[a], p.marked);
            st = tr_groups_remove(n, g, p.marked, &made);
            TR_TRY(judged(judge, st, made, &s->loss));
        }
out:
    tr_free(p.order);
    tr_free(p.marked);
    return st;
}

tr_status tr_mask_sensitivity(const tr_network *n, const tr_mask_options *o, const size_t *layers,
                              size_t nlayers, const double *amounts, size_t namounts,
                              const tr_prune_judge *judge, tr_sensitivity *out)
{
    tr_status st = TR_OK;
    double *alone = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *alone);
    tr_mask_options one = *o;
    one.amounts = alone;
    TR_TRY(agreed(judge, alone ? TR_OK : tr_last_status()));
    for (size_t k = 0; k < nlayers; k++) {
        for (size_t a = 0; a < namounts; a++) {
            tr_network *made = NULL;
            tr_sensitivity *s = &out[k * namounts + a];
            s->amount = alone[layers[k]] = amounts[a];
            st = tr_mask(n, &one, &made);
            TR_TRY(judged(judge, st, made, &s->loss));
        }
        alone[layers[k]] = 0;
    }
out:
    tr_free(alone);
    return st;
}

void tr_prune_shares(const tr_sensitivity *s, size_t ngroups, size_t namounts, double loss,
                     double rise, double *shares)
{
    double most = 0;
    for (size_t k = 0; k < ngroups; k++) {
        shares[k] = 0;
        for (size_t a = 0; a < namounts && s[k * namounts + a].loss <= loss + rise; a++)
            shares[k] = s[k * namounts + a].amount;
        most = fmax(most, shares[k]);
    }
    for (size_t k = 0; k < ngroups; k++) shares[k] = most > 0 ? shares[k] / most : 1;
}

/* The least share of the groups that a layer's channels are in; INFINITY: they are in none. */
static double share_of(const tr_model *m, const tr_groups *g, const double *shares, size_t layer)
{
    double least = INFINITY;
    for (size_t c = g->first[m->ninputs + layer]; c < g->first[m->ninputs + layer + 1]; c++)
        if (g->unit[c] >= 0) least = fmin(least, shares[g->group[g->unit[c]]]);
    return least;
}

void tr_prune_shares_for(const tr_model *found_on, const tr_groups *from, const double *shares,
                         const tr_model *m, const tr_groups *to, double *out)
{
    for (size_t k = 0; k < to->ngroups; k++) out[k] = INFINITY;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *before = tr_layer_product(&m->layers[i], NULL)
                                     ? tr_model_layer(found_on, m->layers[i].name)
                                     : NULL;
        if (!before) continue;
        const double share = share_of(found_on, from, shares, (size_t)before->index);
        for (size_t c = to->first[m->ninputs + i]; c < to->first[m->ninputs + i + 1]; c++)
            if (to->unit[c] >= 0) {
                double *at = &out[to->group[to->unit[c]]];
                *at = fmin(*at, share);
            }
    }
    for (size_t k = 0; k < to->ngroups; k++)
        if (isinf(out[k])) out[k] = 1;
}
