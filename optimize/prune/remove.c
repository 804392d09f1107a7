/* The network without some channels: products get fewer outputs and groups, attention fewer heads,
 * all other shapes follow; of every row the parts of channels that stay are copied. */
#include "optimize/prune/prune.h"

#include <string.h>

#include "runtime/graph/facts.h"

typedef struct {
    const tr_network *n;
    const tr_groups *g;
    const bool *marked;
} removal;

static bool stays(const removal *r, size_t channel)
{
    const int u = r->g->unit[channel];
    return u < 0 || !r->marked[u];
}

static int64_t left(const removal *r, size_t value, int64_t from, int64_t count)
{
    int64_t n = 0;
    for (int64_t c = from; c < from + count; c++) n += stays(r, r->g->first[value] + (size_t)c);
    return n;
}

static size_t output_of(const removal *r, const tr_layer *l)
{
    return r->n->model->ninputs + (size_t)l->index;
}

static int64_t groups_of(const tr_layer *l)
{
    tr_product p;
    tr_layer_product(l, &p);
    return p.groups;
}

/* Of groups with one input each, those stay whose input does; of others all. */
static int64_t groups_left(const removal *r, const tr_layer *l)
{
    const int64_t groups = groups_of(l), in = tr_shape_channels(&l->inputs[0]);
    return in == groups ? left(r, (size_t)l->in[0], 0, in) : groups;
}

static tr_status make_heads(const removal *r, tr_maker *mk, const tr_layer *l, const int *in,
                            int *value)
{
    tr_heads h;
    char heads[40], kv_heads[40];
    const char *options[] = {heads, kv_heads};
    tr_layer_heads(l, &h);
    const int64_t stay = left(r, output_of(r, l), 0, tr_shape_channels(&l->output)) / h.size;
    snprintf(heads, sizeof heads, "heads=%lld", (long long)stay);
    snprintf(kv_heads, sizeof kv_heads, "kv_heads=%lld",
             (long long)(h.kv_heads == 1 ? 1 : h.kv_heads * stay / h.heads));
    const tr_layer_changes changes = {.options = options, .noptions = h.kv_heads ? 2 : 1};
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

static tr_status make_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const removal *r = ctx;
    char out[40], groups[40];
    const char *options[] = {out, groups};
    tr_layer_changes changes = {.options = options, .noptions = 1};
    if (tr_layer_channels(l) == TR_CHANNELS_HEADS) return make_heads(r, mk, l, in, value);
    if (!tr_layer_product(l, NULL)) return TR_OK;
    snprintf(out, sizeof out, "out=%lld",
             (long long)left(r, output_of(r, l), 0, tr_shape_channels(&l->output)));
    if (groups_of(l) > 1) {
        snprintf(groups, sizeof groups, "groups=%lld", (long long)groups_left(r, l));
        changes.noptions = 2;
    }
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Whether place `at` of dimension 0 or 1 of a product's weight stays. Inputs are those of the first
 * group, as all groups lose the same, or, of groups with one input, have but one. */
static bool row_stays(const removal *r, const tr_layer *l, int64_t at)
{
    return stays(r, r->g->first[output_of(r, l)] + (size_t)at);
}

static bool column_stays(const removal *r, const tr_layer *l, int64_t at, int64_t count)
{
    return count == 1 || stays(r, r->g->first[l->in[0]] + (size_t)at);
}

/* from [rows, columns, window] to the part that stays; returns its elements. */
static size_t slice(const removal *r, const tr_layer *l, const float *from, int64_t rows,
                    int64_t columns, size_t window, float *to)
{
    size_t n = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; row_stays(r, l, i) && k < columns; k++) {
            if (!column_stays(r, l, k, columns)) continue;
            memcpy(to + n, from + (size_t)(i * columns + k) * window, window * sizeof *to);
            n += window;
        }
    return n;
}

static size_t slice_row(const removal *r, const tr_layer *l, const float *from, int ndim,
                        const int64_t *dims, size_t count, float *to)
{
    const tr_channels how = tr_layer_channels(l);
    const bool of_all = /* one value for all channels */
        (how == TR_CHANNELS_EACH || ndim == 1) && count != (size_t)tr_shape_channels(&l->output);
    if ((how != TR_CHANNELS_PRODUCT && how != TR_CHANNELS_EACH) || of_all) {
        memcpy(to, from, count * sizeof *to);
        return count;
    }
    if (ndim == 1) return slice(r, l, from, dims[0], 1, 1, to);
    return slice(r, l, from, dims[0], dims[1], count / (size_t)(dims[0] * dims[1]), to);
}

static tr_status copy_param(const removal *r, const tr_network *made, const tr_layer *l,
                            const tr_param *p)
{
    const tr_param *q = tr_network_row(made, p->layer, p->name);
    const size_t count = q ? slice_row(r, l, r->n->params + p->offset, p->ndim, p->dims, p->count,
                                       made->params + q->offset)
                           : 0;
    if (q && count == q->count) return TR_OK;
    return TR_FAIL(TR_INTERNAL, "\"%s\": %zu of %zu values stay", l->name, count, q ? q->count : 0);
}

static tr_status copy_state(const removal *r, const tr_network *made, const tr_layer *l,
                            const tr_state *p)
{
    const tr_state *q = tr_network_state_row(made, p->layer, p->name);
    const size_t count = q ? slice_row(r, l, r->n->states + p->offset, p->ndim, p->dims, p->count,
                                       made->states + q->offset)
                           : 0;
    if (q && count == q->count) return TR_OK;
    return TR_FAIL(TR_INTERNAL, "\"%s\": %zu of %zu states stay", l->name, count, q ? q->count : 0);
}

/* The scales of an int8 row are a state that its layer does not read: they go with the row. */
static tr_status copy_values(const removal *r, const tr_network *made)
{
    const tr_model *m = r->n->model;
    tr_status st = TR_OK;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        for (int k = 0; k < l->nparams; k++) {
            const tr_param *p = &m->params[l->params[k]];
            TR_TRY(copy_param(r, made, l, p));
            if (p->scale >= 0) TR_TRY(copy_state(r, made, l, &m->states[p->scale]));
        }
        for (int k = 0; k < l->nstates; k++)
            TR_TRY(copy_state(r, made, l, &m->states[l->first_state + k]));
    }
out:
    return st;
}

tr_status tr_groups_remove(const tr_network *n, const tr_groups *g, const bool *marked,
                           tr_network **out)
{
    removal r = {n, g, marked};
    tr_status st = TR_OK;
    tr_network *made = NULL;
    size_t *count = tr_alloc(TR_MEM_OTHER, g->ngroups, sizeof *count);
    if (!count) return tr_last_status();
    for (size_t u = 0; u < g->nunits; u++) count[g->group[u]] += !marked[u];
    for (size_t k = 0; k < g->ngroups; k++)
        TR_NEED(count[k], TR_INTERNAL, "the last channel of \"%s\" cannot be removed", g->name[k]);
    TR_TRY(tr_network_edit(n, make_layer, &r, &made));
    TR_TRY(copy_values(&r, made));
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    tr_free(count);
    return st;
}
