/* Masks: the weights that count least become 0, and their layers say that they stay so. No array
 * tells which: a masked weight is one that is 0. */
#include "optimize/prune/internal.h"

#include <math.h>
#include <string.h>

#include "runtime/graph/facts.h"

bool tr_mask_kept(const tr_mask_options *o, const char *layer)
{
    for (size_t i = 0; i < o->nkeep; i++)
        if (strcmp(o->keep[i], layer) == 0) return true;
    return false;
}

const tr_param *tr_mask_weight(const tr_model *m, const tr_mask_options *o, const tr_layer *l)
{
    if (!tr_layer_product(l, NULL) || tr_mask_kept(o, l->name)) return NULL;
    const tr_param *p = &m->params[l->params[0]];
    return strcmp(p->layer, l->name) == 0 ? p : NULL;
}

static double score_of(const tr_network *n, const tr_mask_options *o, const tr_param *p, size_t i)
{
    const double w = (double)n->params[p->offset + i];
    if (w == 0) return -1; /* it is gone already */
    switch (o->by) {
    case TR_PRUNE_RANDOM:
        return (double)tr_permute(o->seed, 0, n->model->flat_count, p->offset + i);
    case TR_PRUNE_TAYLOR:
        return fabs(w * (double)o->gradients[p->offset + i]);
    default:
        return fabs(w);
    }
}

/* The `count` least of list[0, n) become 0. */
static void zero_least(tr_network *out, tr_ranked *list, size_t n, size_t count)
{
    tr_rank(list, n);
    for (size_t i = 0; i < n && i < count; i++) out->params[list[i].at] = 0;
}

static size_t part(double amount, size_t n)
{
    return (size_t)llround(amount * (double)n);
}

/* Of each m along the inputs, all but n; of fewer at the end, all but n. */
static void zero_pattern(const tr_network *n, const tr_mask_options *o, const tr_param *p,
                         tr_network *out, tr_ranked *list)
{
    const size_t in = (size_t)p->dims[1], window = p->count / (size_t)p->dims[0] / in;
    for (size_t row = 0; row < (size_t)p->dims[0]; row++)
        for (size_t k = 0; k < window; k++)
            for (size_t i = 0; i < in; i += (size_t)o->m) {
                size_t count = 0;
                for (size_t j = i; j < in && j < i + (size_t)o->m; j++) {
                    const size_t e = (row * in + j) * window + k;
                    list[count++] = (tr_ranked){score_of(n, o, p, e), p->offset + e};
                }
                if (count > (size_t)o->n) zero_least(out, list, count, count - (size_t)o->n);
            }
}

static void zero(const tr_network *n, const tr_mask_options *o, tr_network *out, tr_ranked *list)
{
    const tr_model *m = n->model;
    size_t count = 0;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_param *p = tr_mask_weight(m, o, &m->layers[i]);
        if (!p) continue;
        if (o->n > 0) {
            zero_pattern(n, o, p, out, list);
            continue;
        }
        for (size_t e = 0; e < p->count; e++)
            list[count++] = (tr_ranked){score_of(n, o, p, e), p->offset + e};
        if (!o->per_layer && !o->amounts) continue;
        zero_least(out, list, count, part(o->amounts ? o->amounts[i] : o->amount, count));
        count = 0;
    }
    zero_least(out, list, count, part(o->amount, count));
}

size_t tr_mask_layers(const tr_model *m, const tr_mask_options *o, size_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < m->nlayers; i++)
        if (tr_mask_weight(m, o, &m->layers[i])) out[n++] = i;
    return n;
}

/* The part of all their weights that is 0 where each layer loses `times` its share. */
static double lost(const tr_model *m, const size_t *layers, size_t nlayers, const double *shares,
                   double times, double most, double *out)
{
    double gone = 0, all = 0;
    for (size_t k = 0; k < nlayers; k++) {
        const double count = (double)m->params[m->layers[layers[k]].params[0]].count;
        out[layers[k]] = fmin(times * shares[k], most);
        gone += out[layers[k]] * count;
        all += count;
    }
    return all > 0 ? gone / all : 0;
}

/* By bisection: at the reciprocal of the least share all layers that lose anything lose the most
 * they may. */
double tr_mask_amounts(const tr_model *m, const size_t *layers, size_t nlayers,
                       const double *shares, double amount, double most, double *out)
{
    double low = 0, high = 1;
    memset(out, 0, m->nlayers * sizeof *out);
    for (size_t k = 0; k < nlayers; k++)
        if (shares[k] > 0) high = fmax(high, 1 / shares[k]);
    for (int step = 0; step < 60; step++) {
        const double middle = (low + high) / 2;
        *(lost(m, layers, nlayers, shares, middle, most, out) < amount ? &low : &high) = middle;
    }
    return lost(m, layers, nlayers, shares, high, most, out);
}

typedef struct {
    const tr_network *n;
    const tr_mask_options *o;
} marking;

static tr_status mark(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const marking *k = ctx;
    if (!tr_mask_weight(k->n->model, k->o, l)) return TR_OK;
    const char *option = "masked=true";
    return tr_maker_copy(mk, l, &(tr_layer_changes){.options = &option, .noptions = 1}, l->nin, in,
                         value);
}

static tr_status check(const tr_network *n, const tr_mask_options *o)
{
    tr_status st = TR_OK;
    TR_NEED(o->n == 0 || (o->n > 0 && o->m >= o->n), TR_CONFIG, "a pattern of %lld of %lld weights",
            (long long)o->n, (long long)o->m);
    TR_NEED(o->amount >= 0 && o->amount <= 1, TR_CONFIG, "an amount of %g, expected 0 to 1",
            o->amount);
    TR_NEED(o->by != TR_PRUNE_TAYLOR || o->gradients, TR_CONFIG, "taylor needs gradients");
    TR_NEED(o->by != TR_PRUNE_BATCHNORM, TR_CONFIG, "batchnorm says nothing of single weights");
    for (size_t i = 0; i < o->nkeep; i++) {
        size_t l = 0;
        while (l < n->model->nlayers && strcmp(n->model->layers[l].name, o->keep[i]) != 0) l++;
        TR_NEED(l < n->model->nlayers, TR_CONFIG, "there is no layer \"%s\"", o->keep[i]);
    }
out:
    return st;
}

tr_status tr_mask(const tr_network *n, const tr_mask_options *o, tr_network **out)
{
    tr_status st = TR_OK;
    tr_network *made = NULL;
    marking k = {n, o};
    tr_ranked *list = NULL;
    TR_TRY(check(n, o));
    list = tr_alloc(TR_MEM_OTHER, n->model->flat_count, sizeof *list);
    TR_HAVE(list);
    TR_TRY(tr_network_edit(n, mark, &k, &made));
    /* rows lie in `made` where they lay: only options differ */
    zero(n, o, made, list);
    *out = made;
out:
    tr_free(list);
    return st;
}
