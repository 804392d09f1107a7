/* What a unit of channels counts: of the products that make its channels the rows of those, of
 * affine layers on them their factors. In units of its group's mean, so that groups compare. */
#include "optimize/prune/prune.h"

#include <math.h>

#include "runtime/graph/facts.h"

typedef struct {
    const tr_network *n;
    const tr_groups *g;
    tr_prune_by by;
    const float *gradients;
    double *scores;
} scoring;

static double of_elements(const scoring *s, size_t at, size_t count)
{
    double sum = 0;
    for (size_t i = at; i < at + count; i++) {
        const double w = (double)s->n->params[i];
        sum += s->by == TR_PRUNE_TAYLOR ? w * (double)s->gradients[i]
               : s->by == TR_PRUNE_L2   ? w * w
                                        : fabs(w);
    }
    return s->by == TR_PRUNE_TAYLOR ? fabs(sum) : sum;
}

/* Adds what the k-th row of a layer says of each channel of its output. */
static void add_row(const scoring *s, const tr_layer *l, int k)
{
    const tr_model *m = s->n->model;
    const tr_param *p = &m->params[l->params[k]];
    const size_t each = p->count / (size_t)p->dims[0];
    const size_t first = s->g->first[m->ninputs + (size_t)l->index];
    for (size_t c = 0; c < (size_t)p->dims[0]; c++) {
        const int u = s->g->unit[first + c];
        if (u >= 0) s->scores[u] += of_elements(s, p->offset + c * each, each);
    }
}

static void add_layers(const scoring *s, bool affine)
{
    const tr_model *m = s->n->model;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        if (affine ? tr_layer_is_affine(l) && l->nparams > 0 : tr_layer_product(l, NULL))
            add_row(s, l, 0);
    }
}

/* Groups without a batchnorm go by what makes them. */
static tr_status by_batchnorm(scoring *s)
{
    double *made = tr_alloc(TR_MEM_OTHER, s->g->nunits, sizeof *made);
    if (!made) return tr_last_status();
    scoring weights = {s->n, s->g, TR_PRUNE_L1, NULL, made};
    add_layers(s, true);
    add_layers(&weights, false);
    bool *on = tr_alloc(TR_MEM_OTHER, s->g->ngroups, sizeof *on);
    for (size_t u = 0; on && u < s->g->nunits; u++)
        on[s->g->group[u]] = on[s->g->group[u]] || s->scores[u] > 0;
    for (size_t u = 0; on && u < s->g->nunits; u++)
        if (!on[s->g->group[u]]) s->scores[u] = made[u];
    tr_free(made);
    tr_free(on);
    return on ? TR_OK : tr_last_status();
}

static tr_status by_group_mean(const tr_groups *g, double *scores)
{
    double *mean = tr_alloc(TR_MEM_OTHER, g->ngroups, sizeof *mean);
    if (!mean) return tr_last_status();
    for (size_t u = 0; u < g->nunits; u++)
        mean[g->group[u]] += scores[u] / (double)g->size[g->group[u]];
    for (size_t u = 0; u < g->nunits; u++)
        if (mean[g->group[u]] > 0) scores[u] /= mean[g->group[u]];
    tr_free(mean);
    return TR_OK;
}

tr_status tr_groups_score(const tr_network *n, const tr_groups *g, tr_prune_by by, uint64_t seed,
                          const float *gradients, double *scores)
{
    scoring s = {n, g, by, gradients, scores};
    tr_status st = TR_OK;
    TR_NEED(by != TR_PRUNE_TAYLOR || gradients, TR_CONFIG, "taylor needs gradients");
    for (size_t u = 0; u < g->nunits; u++)
        scores[u] = by == TR_PRUNE_RANDOM ? (double)tr_permute(seed, 0, g->nunits, u) : 0;
    if (by == TR_PRUNE_BATCHNORM)
        TR_TRY(by_batchnorm(&s));
    else if (by != TR_PRUNE_RANDOM)
        add_layers(&s, false);
    for (size_t u = 0; by == TR_PRUNE_L2 && u < g->nunits; u++) scores[u] = sqrt(scores[u]);
    if (by != TR_PRUNE_RANDOM) TR_TRY(by_group_mean(g, scores));
out:
    return st;
}
