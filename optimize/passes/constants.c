/* Values that no input changes: one number a channel. A product whose weights are all 0 gives its
 * bias, and what is made of constants is one. They go where they are added: into the bias of
 * another summand's product, and 0 goes for nothing; the branch that made them falls away. */
#include "optimize/passes/rewrite.h"

#include <string.h>

typedef struct {
    tr_rewrite *rw;
    double **values; /* [values of the model]: [channels]; NULL: none */
} constants;

static const double *operand(const constants *k, const tr_layer *l, int i)
{
    return k->values[tr_rewrite_input(k->rw, l, i)];
}

/* Its weights are 0, or what it reads is constant and no zeros are put around it. */
static bool of_product(const constants *k, const tr_layer *l, double *out)
{
    const tr_param *p = &k->rw->m->params[l->params[0]];
    const float *w = k->rw->n->params + p->offset, *bias = NULL;
    const double *x = operand(k, l, 0);
    const int64_t channels = p->dims[0], in = p->dims[1],
                  window = (int64_t)p->count / channels / in;
    tr_product how;
    bool zero = true;
    if (tr_product_biased(k->rw->m, l))
        bias = k->rw->n->params + k->rw->m->params[l->params[1]].offset;
    for (size_t i = 0; i < p->count; i++) zero = zero && w[i] == 0;
    tr_layer_product(l, &how);
    if (!zero && (!x || tr_product_pads(&how))) return false;
    for (int64_t o = 0; o < channels; o++) {
        const int64_t first = o / (channels / how.groups) * in;
        out[o] = bias ? (double)bias[o] : 0;
        for (int64_t i = 0; i < in * window && !zero; i++)
            out[o] += (double)w[o * in * window + i] * x[first + i / window];
    }
    return true;
}

static bool of_inputs(const constants *k, const tr_layer *l, double *out)
{
    const int64_t n = tr_shape_channels(&l->output);
    int64_t at = 0;
    for (int i = 0; i < l->nin; i++) {
        const double *x = operand(k, l, i);
        const int64_t own = tr_shape_channels(&l->inputs[i]);
        if (!x) return false;
        if (tr_layer_sums(l))
            for (int64_t c = 0; c < n; c++) out[c] += x[c];
        else if (tr_layer_channels(l) == TR_CHANNELS_JOINED)
            memcpy(out + at, x, sizeof(double) * (size_t)own);
        else if (i > 0)
            return false;
        at += own;
    }
    return true;
}

/* One input: by place, elementwise. */
static bool of_one(const constants *k, const tr_layer *l, double *out)
{
    const double *x = operand(k, l, 0);
    if (!x || l->nin > 1) return false;
    for (int64_t c = 0; c < tr_shape_channels(&l->output); c++) {
        double s, t;
        if (tr_layer_channels(l) == TR_CHANNELS_SPREAD)
            out[c] = x[tr_layer_source_channel(l, c)];
        else if (tr_layer_is_affine(l)) {
            tr_rewrite_affine(k->rw, l, c, &s, &t);
            out[c] = s * x[c] + t;
            if (l->nparams == 0) continue;
            const tr_param *p = &k->rw->m->params[l->params[0]];
            const tr_param *q = &k->rw->m->params[l->params[1]];
            out[c] = (double)k->rw->n->params[p->offset + (size_t)c] * out[c] +
                     (double)k->rw->n->params[q->offset + (size_t)c];
        } else if (tr_layer_commutes(l) & TR_COMMUTES_SHIFT)
            out[c] = x[c];
        else if (!tr_layer_activation(l, x[c], &out[c]))
            return false;
    }
    return true;
}

static tr_status find(constants *k)
{
    const tr_model *m = k->rw->m;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        double *v = tr_alloc(TR_MEM_OTHER, (size_t)tr_shape_channels(&l->output), sizeof *v);
        if (!v) return tr_last_status();
        const bool is = tr_layer_product(l, NULL) ? of_product(k, l, v)
                        : tr_layer_sums(l) || tr_layer_channels(l) == TR_CHANNELS_JOINED
                            ? of_inputs(k, l, v)
                            : of_one(k, l, v);
        if (is)
            k->values[tr_rewrite_output(k->rw, l)] = v;
        else
            tr_free(v);
    }
    return TR_OK;
}

/* Whether one of the summands that are left takes it, or there is nothing to take. */
static tr_status take(const constants *k, const tr_layer *l, const double *v, bool *taken)
{
    tr_affine a;
    const tr_edit *e = tr_rewrite_edit(k->rw, l);
    tr_status st = TR_OK;
    TR_TRY(tr_affine_open(tr_shape_channels(&l->output), &a));
    *taken = true;
    for (int64_t c = 0; c < a.count; c++) {
        a.shift[c] = v[c];
        *taken = *taken && v[c] == 0;
    }
    for (int i = 0; i < e->nin && !*taken && st == TR_OK; i++)
        if (!operand(k, l, i))
            st = tr_affine_into_makers(k->rw, tr_rewrite_input(k->rw, l, i), &a, taken);
    tr_affine_close(&a);
out:
    return st;
}

/* Without operand `which`, where that can be. */
static tr_status without(const constants *k, const tr_layer *l, int which, bool *done)
{
    tr_edit *e = tr_rewrite_edit(k->rw, l);
    const double *v = operand(k, l, which);
    const int gone = e->in[which];
    int *at = &e->in[which];
    memmove(at, at + 1, sizeof(int) * (size_t)(--e->nin - which));
    tr_rewrite_look(k->rw);
    const tr_status st = take(k, l, v, done);
    if (*done && e->nin == 1) tr_rewrite_replace(k->rw, l, tr_rewrite_input(k->rw, l, 0));
    if (*done) return st;
    memmove(at + 1, at, sizeof(int) * (size_t)(e->nin++ - which));
    *at = gone;
    tr_rewrite_look(k->rw);
    return st;
}

static tr_status in_sums(const constants *k, size_t *count)
{
    const tr_model *m = k->rw->m;
    tr_status st = TR_OK;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        tr_edit *e = &k->rw->edits[i];
        if (!e->stays || !tr_layer_sums(l) || k->values[tr_rewrite_output(k->rw, l)]) continue;
        for (int which = 0; which < e->nin && e->nin > 1; which++) {
            bool done = false;
            if (operand(k, l, which)) TR_TRY(without(k, l, which, &done));
            if (!done) continue;
            which--;
            ++*count;
        }
    }
out:
    return st;
}

static tr_status run(tr_rewrite *rw, size_t *count)
{
    const size_t n = rw->m->ninputs + rw->m->nlayers;
    constants k = {rw, tr_alloc(TR_MEM_OTHER, n, sizeof(double *))};
    if (!k.values) return tr_last_status();
    tr_status st = find(&k);
    if (st == TR_OK) st = in_sums(&k, count);
    for (size_t v = 0; v < n; v++) tr_free(k.values[v]);
    tr_free(k.values);
    return st;
}

const tr_pass tr_pass_constants = {
    .name = "constants",
    .doc =
        "What no input changes (a product whose weights are 0, and what is made of it) is computed "
        "here; where it is added it goes into a bias, and the branch that made it is removed.",
    .run = run};
