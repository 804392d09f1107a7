/* Which channels go together. Every channel of every value is an element; an op that makes channel
 * c of its output of channel c of its inputs joins them (union-find), so do a tied weight, the
 * groups of a convolution; a product otherwise parts what it reads from what it makes. What the
 * model's inputs and output have, and what an op mixes, must stay.
 *
 *     conv a --> batchnorm --> relu --+
 *     conv b -------------------------+--> add --> conv c      a0 = batchnorm0 = relu0 = b0 = add0
 *
 * A head of attention goes as a whole: its queries, keys and values, and what reads them. Heads
 * that share keys and values go together; of one pair of these for all heads, the heads alone.
 *
 * Groups of a convolution with one input each (depthwise) go with their input. Those with several
 * keep their number: the same place goes from each of them. */
#include "optimize/prune/prune.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/graph/facts.h"

typedef struct {
    const tr_model *m;
    size_t *first;
    int *up;     /* union-find; the root is the least */
    int *holder; /* by root: 1 + the value that its channels stay for; 0: they may go */
} joining;

static int root(const joining *j, size_t e)
{
    int r = (int)e;
    while (j->up[r] != r) r = j->up[r] = j->up[j->up[r]];
    return r;
}

static void join(const joining *j, size_t a, size_t b)
{
    const int x = root(j, a), y = root(j, b);
    if (x == y) return;
    const int low = x < y ? x : y, high = x < y ? y : x;
    j->up[high] = low;
    if (!j->holder[low]) j->holder[low] = j->holder[high];
}

static void lock_run(const joining *j, size_t first, size_t count, size_t holder)
{
    for (size_t e = first; e < first + count; e++) {
        const int r = root(j, e);
        if (!j->holder[r]) j->holder[r] = 1 + (int)holder;
    }
}

static void lock(const joining *j, size_t value, size_t holder)
{
    lock_run(j, j->first[value], j->first[value + 1] - j->first[value], holder);
}

static size_t value_of(const joining *j, const tr_layer *l)
{
    return j->m->ninputs + (size_t)l->index;
}

static void join_product(const joining *j, const tr_layer *l)
{
    tr_product p;
    tr_layer_product(l, &p);
    if (p.groups == 1) return;
    const size_t x = j->first[l->in[0]], y = j->first[value_of(j, l)], groups = (size_t)p.groups;
    const size_t in = (size_t)tr_shape_channels(&l->inputs[0]) / groups;
    const size_t out = (size_t)tr_shape_channels(&l->output) / groups;
    for (size_t g = 0; g < groups; g++) {
        for (size_t o = 0; o < out; o++) join(j, y + g * out + o, in == 1 ? x + g : y + o);
        for (size_t i = 0; in > 1 && i < in; i++) join(j, x + g * in + i, x + i);
    }
}

static void join_run(const joining *j, size_t one, size_t first, size_t count)
{
    for (size_t e = first; e < first + count; e++) join(j, one, e);
}

static void join_heads(const joining *j, const tr_layer *l)
{
    tr_heads h;
    tr_layer_heads(l, &h);
    const size_t heads = (size_t)h.heads, kv_heads = (size_t)h.kv_heads, size = (size_t)h.size;
    const size_t y = j->first[value_of(j, l)], q = j->first[l->in[0]];
    const size_t k = !kv_heads ? 0 : h.packed ? q + heads * size : j->first[l->in[1]];
    const size_t v = !kv_heads ? 0 : h.packed ? k + kv_heads * size : j->first[l->in[2]];
    const bool shared = kv_heads == 1 && heads > 1;
    for (size_t i = 0; i < heads; i++) {
        const size_t one = y + i * size, kv = kv_heads ? i * kv_heads / heads * size : 0;
        join_run(j, one, one, size);
        join_run(j, one, q + i * size, size);
        if (!kv_heads || shared) continue;
        join_run(j, one, k + kv, size);
        join_run(j, one, v + kv, size);
    }
    if (!shared) return;
    lock_run(j, k, size, value_of(j, l));
    lock_run(j, v, size, value_of(j, l));
}

static void join_layer(const joining *j, const tr_layer *l)
{
    const size_t y = j->first[value_of(j, l)];
    const int64_t n = tr_shape_channels(&l->output);
    size_t at = 0;
    switch (tr_layer_channels(l)) {
    case TR_CHANNELS_PRODUCT:
        join_product(j, l);
        break;
    case TR_CHANNELS_EACH:
        for (int k = 0; k < l->nin; k++)
            for (size_t c = 0; c < (size_t)n; c++) join(j, y + c, j->first[l->in[k]] + c);
        break;
    case TR_CHANNELS_JOINED:
        for (int k = 0; k < l->nin; k++)
            for (size_t c = 0; c < (size_t)tr_shape_channels(&l->inputs[k]); c++)
                join(j, y + at++, j->first[l->in[k]] + c);
        break;
    case TR_CHANNELS_SPREAD:
        for (int64_t c = 0; c < n; c++)
            join(j, y + (size_t)c, j->first[l->in[0]] + (size_t)tr_layer_source_channel(l, c));
        break;
    case TR_CHANNELS_HEADS:
        join_heads(j, l);
        break;
    case TR_CHANNELS_MIXED:
    case TR_CHANNELS_ROWS:
        lock(j, value_of(j, l), value_of(j, l));
        for (int k = 0; k < l->nin; k++) lock(j, (size_t)l->in[k], value_of(j, l));
        break;
    }
}

/* Two layers of one weight lose the same of it. */
static void join_tied(const joining *j, const tr_layer *a, const tr_layer *b)
{
    if (!tr_layer_product(a, NULL) || !tr_layer_product(b, NULL)) {
        const tr_layer *both[] = {a, b};
        for (int i = 0; i < 2; i++) {
            lock(j, value_of(j, both[i]), value_of(j, both[i]));
            lock(j, (size_t)both[i]->in[0], value_of(j, both[i]));
        }
        return;
    }
    for (size_t o = 0; o < (size_t)tr_shape_channels(&a->output); o++)
        join(j, j->first[value_of(j, a)] + o, j->first[value_of(j, b)] + o);
    for (size_t i = 0; i < (size_t)tr_shape_channels(&a->inputs[0]); i++)
        join(j, j->first[a->in[0]] + i, j->first[b->in[0]] + i);
}

static void join_rows(const joining *j)
{
    const tr_model *m = j->m;
    for (size_t i = 1; i < m->nlayers; i++)
        for (int k = 0; k < m->layers[i].nparams; k++) {
            const tr_param *p = &m->params[m->layers[i].params[k]];
            for (size_t o = 0; p->uses > 1 && o < i; o++)
                if (strcmp(m->layers[o].name, p->layer) == 0)
                    join_tied(j, &m->layers[o], &m->layers[i]);
        }
}

/* ---- Units and groups ------------------------------------------------------------------------ */

static const tr_shape *shape_of(const tr_model *m, size_t value, tr_shape *input)
{
    if (value >= m->ninputs) return &m->layers[value - m->ninputs].output;
    *input = (tr_shape){.ndim = m->inputs[value].ndim, .layout = m->inputs[value].layout};
    memcpy(input->dims, m->inputs[value].dims, sizeof input->dims);
    return input;
}

static void number_units(const joining *j, tr_groups *g)
{
    for (size_t e = 0; e < g->nchannels; e++) {
        const int r = root(j, e);
        g->holder[e] = j->holder[r] - 1;
        if (j->holder[r])
            g->unit[e] = -1;
        else
            g->unit[e] = r == (int)e ? (int)g->nunits++ : g->unit[r];
    }
}

static size_t value_at(const tr_groups *g, size_t nvalues, size_t e)
{
    size_t low = 0, high = nvalues;
    while (high - low > 1) {
        const size_t mid = (low + high) / 2;
        if (g->first[mid] <= e)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Units are of one group if the values that they lie in, in their order, are the same: by a hash of
 * these, which is compared among units whose first value is the same. */
static void number_groups(const tr_model *m, tr_groups *g, uint64_t *hash, size_t *start,
                          size_t *leader)
{
    const size_t nvalues = m->ninputs + m->nlayers;
    for (size_t u = 0; u < g->nunits; u++) hash[u] = 14695981039346656037u, start[u] = SIZE_MAX;
    for (size_t v = 0; v < nvalues; v++)
        for (size_t e = g->first[v]; e < g->first[v + 1]; e++) {
            const int u = g->unit[e];
            if (u < 0) continue;
            if (start[u] == SIZE_MAX) start[u] = e;
            hash[u] = (hash[u] ^ (v + 1)) * 1099511628211u;
        }
    for (size_t u = 0; u < g->nunits; u++) {
        const size_t value = value_at(g, nvalues, start[u]);
        size_t k = 0;
        while (k < g->ngroups &&
               (hash[leader[k]] != hash[u] || value_at(g, nvalues, start[leader[k]]) != value))
            k++;
        g->group[u] = (int)k;
        g->size[k]++;
        if (k < g->ngroups) continue;
        leader[g->ngroups++] = u;
        snprintf(g->name[k], TR_NAME, "%s", m->layers[value - m->ninputs].name);
    }
}

static tr_status divide(const joining *j, tr_groups *g)
{
    tr_status st = TR_OK;
    uint64_t *hash = NULL;
    size_t *start = NULL, *leader = NULL;
    g->unit = tr_alloc(TR_MEM_OTHER, g->nchannels, sizeof *g->unit);
    g->holder = tr_alloc(TR_MEM_OTHER, g->nchannels, sizeof *g->holder);
    TR_HAVE(g->unit && g->holder);
    number_units(j, g);
    hash = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *hash);
    start = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *start);
    g->group = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *g->group);
    g->size = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *g->size);
    g->name = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *g->name);
    leader = tr_alloc(TR_MEM_OTHER, g->nunits, sizeof *leader);
    TR_HAVE(hash && start && leader && g->group && g->size && g->name);
    number_groups(j->m, g, hash, start, leader);
out:
    tr_free(hash);
    tr_free(start);
    tr_free(leader);
    return st;
}

tr_status tr_groups_open(const tr_model *m, tr_groups *out)
{
    tr_status st = TR_OK;
    tr_groups g = {0};
    tr_shape input;
    const size_t nvalues = m->ninputs + m->nlayers;
    joining j = {.m = m};
    g.first = tr_alloc(TR_MEM_OTHER, nvalues + 1, sizeof *g.first);
    TR_HAVE(g.first);
    for (size_t v = 0; v < nvalues; v++)
        g.first[v + 1] = g.first[v] + (size_t)tr_shape_channels(shape_of(m, v, &input));
    g.nchannels = g.first[nvalues];
    TR_NEED(g.nchannels <= INT32_MAX, TR_UNSUPPORTED, "a model with %zu channels", g.nchannels);
    j.first = g.first;
    j.up = tr_alloc(TR_MEM_OTHER, g.nchannels, sizeof *j.up);
    j.holder = tr_alloc(TR_MEM_OTHER, g.nchannels, sizeof *j.holder);
    TR_HAVE(j.up && j.holder);
    for (size_t e = 0; e < g.nchannels; e++) j.up[e] = (int)e;
    for (size_t v = 0; v < m->ninputs; v++) lock(&j, v, v);
    lock(&j, nvalues - 1, nvalues - 1);
    for (size_t i = 0; i < m->nlayers; i++) join_layer(&j, &m->layers[i]);
    join_rows(&j);
    TR_TRY(divide(&j, &g));
    *out = g;
out:
    tr_free(j.up);
    tr_free(j.holder);
    if (st != TR_OK) tr_groups_close(&g);
    return st;
}

void tr_groups_close(tr_groups *g)
{
    tr_free(g->unit);
    tr_free(g->holder);
    tr_free(g->first);
    tr_free(g->group);
    tr_free(g->size);
    tr_free(g->name);
    *g = (tr_groups){0};
}
