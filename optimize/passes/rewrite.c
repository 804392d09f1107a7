/* A network in the making from another: which value stands for which, what is different in a layer,
 * new values in double. What no longer leads to the output falls away. */
#include "optimize/passes/rewrite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tr_status tr_rewrite_open(const tr_network *n, tr_rewrite **out)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    tr_rewrite *rw = TR_NEW(TR_MEM_OTHER, tr_rewrite);
    if (!rw) return tr_last_status();
    rw->n = n;
    rw->m = m;
    rw->as = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *rw->as);
    rw->edits = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *rw->edits);
    TR_HAVE(rw->as && rw->edits);
    for (size_t v = 0; v < m->ninputs + m->nlayers; v++) rw->as[v] = (int)v;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        rw->edits[i].nin = l->nin;
        memcpy(rw->edits[i].in, l->in, sizeof l->in);
    }
    tr_rewrite_look(rw);
    *out = rw;
out:
    if (st != TR_OK) tr_rewrite_close(rw);
    return st;
}

void tr_rewrite_close(tr_rewrite *rw)
{
    if (!rw) return;
    for (size_t i = 0; rw->edits && i < rw->m->nlayers; i++) {
        for (size_t k = 0; k < TR_COUNT(rw->edits[i].row); k++) tr_free(rw->edits[i].row[k]);
        tr_free(rw->edits[i].factor);
    }
    tr_free(rw->edits);
    tr_free(rw->as);
    tr_free(rw);
}

bool tr_rewrite_note(tr_rewrite *rw, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!rw->note[0]) vsnprintf(rw->note, sizeof rw->note, fmt, args);
    va_end(args);
    return false;
}

/* ---- Looking --------------------------------------------------------------------------------- */

int tr_rewrite_value(const tr_rewrite *rw, int value)
{
    while (rw->as[value] != value) value = rw->as[value];
    return value;
}

const tr_layer *tr_rewrite_maker(const tr_rewrite *rw, int value)
{
    const size_t n = rw->m->ninputs;
    return (size_t)value < n ? NULL : &rw->m->layers[(size_t)value - n];
}

tr_edit *tr_rewrite_edit(const tr_rewrite *rw, const tr_layer *l)
{
    return &rw->edits[l->index];
}

int tr_rewrite_output(const tr_rewrite *rw, const tr_layer *l)
{
    return (int)rw->m->ninputs + l->index;
}

int tr_rewrite_last(const tr_rewrite *rw)
{
    return tr_rewrite_value(rw, (int)(rw->m->ninputs + rw->m->nlayers) - 1);
}

int tr_rewrite_input(const tr_rewrite *rw, const tr_layer *l, int k)
{
    return tr_rewrite_value(rw, rw->edits[l->index].in[k]);
}

static bool owns(const tr_rewrite *rw, const tr_layer *l, int from)
{
    for (int k = from; k < l->nparams; k++)
        if (rw->m->params[l->params[k]].uses > 1 || rw->m->params[l->params[k]].stored != TR_F32)
            return false;
    return true;
}

bool tr_rewrite_owns(const tr_rewrite *rw, const tr_layer *l)
{
    return owns(rw, l, 0);
}

bool tr_rewrite_owns_steps(const tr_rewrite *rw, const tr_layer *l)
{
    const tr_param *p = l->nparams > 0 ? &rw->m->params[l->params[0]] : NULL;
    return p && tr_layer_product(l, NULL) && p->uses == 1 && p->stored == TR_I8 && !p->per_tensor &&
           p->learned_scale < 0 && owns(rw, l, 1);
}

void tr_rewrite_look(tr_rewrite *rw)
{
    for (size_t i = 0; i < rw->m->nlayers; i++) rw->edits[i].stays = false, rw->edits[i].uses = 0;
    const tr_layer *last = tr_rewrite_maker(rw, tr_rewrite_last(rw));
    if (last) rw->edits[last->index].stays = true;
    for (size_t i = rw->m->nlayers; i-- > 0;) {
        const tr_edit *e = &rw->edits[i];
        for (int k = 0; e->stays && k < e->nin; k++) {
            const tr_layer *from = tr_rewrite_maker(rw, tr_rewrite_value(rw, e->in[k]));
            if (!from) continue;
            rw->edits[from->index].stays = true;
            rw->edits[from->index].uses++;
        }
    }
}

void tr_rewrite_replace(tr_rewrite *rw, const tr_layer *l, int value)
{
    rw->as[tr_rewrite_output(rw, l)] = value;
    tr_rewrite_look(rw);
}

/* ---- Values ---------------------------------------------------------------------------------- */

double *tr_rewrite_row(tr_rewrite *rw, const tr_layer *l, int k)
{
    tr_edit *e = tr_rewrite_edit(rw, l);
    if (e->row[k]) return e->row[k];
    const tr_param *p = &rw->m->params[l->params[k]];
    e->row[k] = tr_alloc(TR_MEM_OTHER, p->count, sizeof(double));
    if (!e->row[k]) return NULL;
    e->count[k] = p->count;
    for (size_t i = 0; i < p->count; i++) e->row[k][i] = (double)rw->n->params[p->offset + i];
    return e->row[k];
}

double *tr_rewrite_factor(tr_rewrite *rw, const tr_layer *l)
{
    tr_edit *e = tr_rewrite_edit(rw, l);
    if (e->factor) return e->factor;
    const size_t out = (size_t)rw->m->params[l->params[0]].dims[0];
    e->factor = tr_alloc(TR_MEM_OTHER, out, sizeof(double));
    for (size_t o = 0; e->factor && o < out; o++) e->factor[o] = 1;
    return e->factor;
}

int64_t tr_rewrite_out(const tr_rewrite *rw, const tr_layer *l)
{
    const int64_t out = tr_rewrite_edit(rw, l)->out;
    return out ? out : tr_shape_channels(&l->output);
}

bool tr_rewrite_has_bias(const tr_rewrite *rw, const tr_layer *l)
{
    const int bias = tr_rewrite_edit(rw, l)->bias;
    return bias > 0 || (tr_product_biased(rw->m, l) && bias == 0);
}

double *tr_rewrite_bias(tr_rewrite *rw, const tr_layer *l)
{
    tr_edit *e = tr_rewrite_edit(rw, l);
    if (tr_product_biased(rw->m, l) && e->bias == 0) return tr_rewrite_row(rw, l, 1);
    if (e->row[TR_MAX_PARAMS]) return e->row[TR_MAX_PARAMS];
    const size_t out = (size_t)tr_rewrite_out(rw, l);
    e->row[TR_MAX_PARAMS] = tr_alloc(TR_MEM_OTHER, out, sizeof(double));
    if (!e->row[TR_MAX_PARAMS]) return NULL;
    e->count[TR_MAX_PARAMS] = out;
    e->bias = 1;
    return e->row[TR_MAX_PARAMS];
}

void tr_rewrite_affine(const tr_rewrite *rw, const tr_layer *l, int64_t c, double *scale,
                       double *shift)
{
    const float *states[TR_MAX_PARAMS] = {0};
    for (int k = 0; k < l->nstates && k < TR_MAX_PARAMS; k++)
        states[k] = rw->n->states + rw->m->states[l->first_state + k].offset;
    tr_layer_affine(l, states, c, scale, shift);
}

/* ---- Making it ------------------------------------------------------------------------------- */

typedef struct {
    tr_rewrite *rw;
    int *made; /* [values] the new number of each */
} making;

static tr_status make_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *given,
                            int *value)
{
    (void)given;
    making *k = ctx;
    const tr_edit *e = tr_rewrite_edit(k->rw, l);
    if (!e->stays) {
        *value = 0; /* which nobody reads */
        return TR_OK;
    }
    int in[TR_MAX_IN];
    for (int i = 0; i < e->nin; i++) in[i] = k->made[tr_rewrite_input(k->rw, l, i)];
    char out[40];
    const char *options[2 + TR_COUNT(e->merged.options)];
    tr_layer_changes changes = {.type = e->type, .options = options};
    if (e->out) {
        snprintf(out, sizeof out, "out=%lld", (long long)e->out);
        options[changes.noptions++] = out;
    }
    for (size_t i = 0; i < e->merged.noptions; i++)
        options[changes.noptions++] = e->merged.options[i];
    if (e->bias) options[changes.noptions++] = e->bias > 0 ? "bias=true" : "bias=false";
    const tr_status st = tr_maker_copy(mk, l, &changes, e->nin, in, value);
    if (st == TR_OK) k->made[tr_rewrite_output(k->rw, l)] = *value;
    return st;
}

/* Inputs are still read, rows still have the layer that they are named after. */
static bool possible(tr_rewrite *rw)
{
    const tr_model *m = rw->m;
    bool read[TR_MAX_IN] = {false};
    tr_rewrite_look(rw);
    if (!tr_rewrite_maker(rw, tr_rewrite_last(rw)))
        return tr_rewrite_note(rw, "no layer would be left");
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        if (!rw->edits[i].stays) continue;
        for (int k = 0; k < rw->edits[i].nin; k++)
            if ((size_t)tr_rewrite_input(rw, l, k) < m->ninputs)
                read[tr_rewrite_input(rw, l, k)] = true;
        for (int k = 0; k < l->nparams; k++) {
            const tr_param *p = &m->params[l->params[k]];
            for (size_t o = 0; o < i; o++)
                if (strcmp(m->layers[o].name, p->layer) == 0 && !rw->edits[o].stays)
                    return tr_rewrite_note(rw, "the weights of \"%s\" are those of \"%s\"", l->name,
                                           p->layer);
        }
    }
    for (size_t i = 0; i < m->ninputs; i++)
        if (!read[i])
            return tr_rewrite_note(rw, "no layer would read the input \"%s\"", m->inputs[i].name);
    return true;
}

static tr_status set_row(const tr_network *n, const char *layer, const char *name,
                         const double *values, size_t count)
{
    const tr_param *p = tr_network_row(n, layer, name);
    if (!p || p->count != count)
        return TR_FAIL(TR_INTERNAL, "a pass made no %s of \"%s\" of %zu values", name, layer,
                       count);
    for (size_t i = 0; i < count; i++) n->params[p->offset + i] = (float)values[i];
    return TR_OK;
}

/* The steps stay as they are but for a sign; their scales change. A factor of 0 leaves steps of
 * 0. */
static tr_status set_steps(const tr_rewrite *rw, const tr_network *made, const tr_layer *l)
{
    const double *factor = rw->edits[l->index].factor;
    const tr_param *was = &rw->m->params[l->params[0]];
    const tr_param *p = tr_network_row(made, l->name, was->name);
    if (!p || p->count != was->count || p->scale < 0)
        return TR_FAIL(TR_INTERNAL, "a pass made no 8 bits of \"%s\"", l->name);
    const size_t out = (size_t)p->dims[0], each = p->count / out;
    const float *before = rw->n->params + was->offset,
                *scales = rw->n->states + rw->m->states[was->scale].offset;
    float *after = made->params + p->offset,
          *made_scales = made->states + made->model->states[p->scale].offset;
    for (size_t o = 0; o < out; o++) {
        const float scale = (float)((double)scales[o] * fabs(factor[o]));
        const bool none = !(scale > 0); /* 0, or too little for a float */
        made_scales[o] = none ? scales[o] : scale;
        for (size_t i = o * each; i < (o + 1) * each; i++) {
            const float q = none ? 0 : rintf(before[i] / scales[o]);
            after[i] = (factor[o] < 0 ? -q : q) * made_scales[o];
        }
    }
    return TR_OK;
}

static tr_status set_values(const tr_rewrite *rw, const tr_network *made)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        const tr_layer *l = &rw->m->layers[i];
        const tr_edit *e = &rw->edits[i];
        if (!e->stays) continue;
        if (e->factor) TR_TRY(set_steps(rw, made, l));
        for (int k = 0; k < l->nparams; k++)
            if (e->row[k] && !(k == 1 && e->bias < 0))
                TR_TRY(set_row(made, l->name, rw->m->params[l->params[k]].name, e->row[k],
                               e->count[k]));
        if (e->row[TR_MAX_PARAMS])
            TR_TRY(set_row(made, l->name, "bias", e->row[TR_MAX_PARAMS], e->count[TR_MAX_PARAMS]));
    }
out:
    return st;
}

tr_status tr_rewrite_apply(tr_rewrite *rw, tr_network **out)
{
    tr_status st = TR_OK;
    tr_network *made = NULL;
    making k = {.rw = rw};
    *out = NULL;
    if (!possible(rw)) return TR_OK;
    k.made = tr_alloc(TR_MEM_OTHER, rw->m->ninputs + rw->m->nlayers, sizeof *k.made);
    if (!k.made) return tr_last_status();
    for (size_t i = 0; i < rw->m->ninputs; i++) k.made[i] = (int)i;
    TR_TRY(tr_network_edit(rw->n, make_layer, &k, &made));
    TR_TRY(set_values(rw, made));
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    tr_free(k.made);
    return st;
}
