/* Answers from what each op says of itself (ops/op.h). */
#include "runtime/graph/facts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/maker.h"
#include "runtime/graph/ops/op.h"

static int channel_axis(const tr_shape *s)
{
    return s->layout == TR_LAYOUT_CHANNELS_LAST ? 0 : s->ndim - 1;
}

int64_t tr_shape_channels(const tr_shape *s)
{
    return s->dims[channel_axis(s)];
}

int64_t tr_shape_places(const tr_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++)
        if (i != channel_axis(s)) n *= s->dims[i];
    return n;
}

tr_channels tr_layer_channels(const tr_layer *l)
{
    return l->def->channels_of ? l->def->channels_of(l) : l->def->channels;
}

int64_t tr_layer_source_channel(const tr_layer *l, int64_t c)
{
    const tr_shape *x = &l->inputs[0];
    return channel_axis(x) == 0 ? c / tr_shape_places(x) : c % tr_shape_channels(x);
}

const char *tr_layer_width(const tr_layer *l)
{
    return l->def->width_of ? l->def->width_of(l) : l->def->width;
}

int64_t tr_layer_keeps_width(const tr_layer *l)
{
    const int64_t n = tr_shape_channels(&l->output);
    for (int k = 0; k < l->nin; k++)
        if (tr_shape_channels(&l->inputs[k]) != n) return 0;
    if (l->def->keeps) return l->def->keeps(l);
    return tr_layer_channels(l) == TR_CHANNELS_EACH;
}

bool tr_layer_heads(const tr_layer *l, tr_heads *out)
{
    if (tr_layer_channels(l) != TR_CHANNELS_HEADS) return false;
    l->def->heads(l, out);
    return true;
}

bool tr_layer_product(const tr_layer *l, tr_product *out)
{
    if (l->def->channels != TR_CHANNELS_PRODUCT) return false;
    if (!out) return true;
    *out = (tr_product){.groups = 1, .stride = {1, 1}, .dilation = {1, 1}};
    if (l->def->product) l->def->product(l, out);
    return true;
}

bool tr_product_pads(const tr_product *p)
{
    bool any = false;
    for (int i = 0; i < 2; i++) any = any || p->padding[i] > 0 || p->extra[i] > 0;
    return any;
}

bool tr_layer_is_affine(const tr_layer *l)
{
    return l->def->affine != NULL;
}

void tr_layer_affine(const tr_layer *l, const float *const *states, int64_t c, double *scale,
                     double *shift)
{
    l->def->affine(l, states, c, scale, shift);
}

unsigned tr_layer_commutes(const tr_layer *l)
{
    return l->def->commutes_of ? l->def->commutes_of(l) : l->def->commutes;
}

bool tr_layer_same(const tr_layer *l)
{
    return l->def->same && l->def->same(l);
}

bool tr_layer_merged(const tr_layer *first, const tr_layer *second, tr_merged *out)
{
    *out = (tr_merged){0};
    return second->def->merged && second->def->merged(first, second, out);
}

bool tr_layer_sums(const tr_layer *l)
{
    return l->def->sums;
}

bool tr_layer_moves(const tr_layer *l)
{
    return l->def->moves;
}

bool tr_layer_carries_steps(const tr_layer *l)
{
    return l->def->steps != NULL;
}

bool tr_layer_nonnegative(const tr_layer *l)
{
    return l->def->nonnegative;
}

bool tr_layer_rectifies(const tr_layer *l)
{
    return l->def->act == TR_ACT_RELU;
}

bool tr_layer_activation(const tr_layer *l, double x, double *y)
{
    const tr_op op = {.def = l->def, .attrs = l->attrs};
    switch (tr_op_activation(&op)) {
    case TR_ACT_NONE:
        return false;
    case TR_ACT_RELU:
        *y = x > 0 ? x : 0;
        break;
    case TR_ACT_GELU:
        *y = 0.5 * x * (1 + erf(x / sqrt(2.0)));
        break;
    case TR_ACT_GELU_TANH:
        *y = 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
        break;
    case TR_ACT_SILU:
        *y = x / (1 + exp(-x));
        break;
    case TR_ACT_SIGMOID:
        *y = 1 / (1 + exp(-x));
        break;
    case TR_ACT_TANH:
        *y = tanh(x);
        break;
    }
    return true;
}

const char *tr_layer_plain(const tr_layer *l)
{
    const tr_op_def *def = l->def->plain ? l->def->plain(l) : NULL;
    return def ? def->name : NULL;
}

static char *attributes(const tr_layer *l)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    const tr_status st = l->def->fields ? tr_fields_write(l->def->fields, l->attrs, 0, f) : TR_OK;
    if (fclose(f) == 0 && st == TR_OK) return text;
    free(text);
    return NULL;
}

bool tr_layer_equal(const tr_layer *a, const tr_layer *b)
{
    if (a->def != b->def) return false;
    char *ta = attributes(a), *tb = attributes(b);
    const bool equal = ta && tb && strcmp(ta, tb) == 0;
    free(ta);
    free(tb);
    return equal;
}

bool tr_layer_sketch(const tr_model *m, const tr_layer *l, tr_sketch_facts *out)
{
    const tr_param *p = l->nparams ? &m->params[l->params[0]] : NULL;
    if (!p || p->sketch.side == TR_SKETCH_NONE) return false;
    const int64_t width = 2 * p->sketch.terms * p->sketch.rank;
    const double places = (double)tr_shape_places(&l->output);
    const double dense = (double)p->of[0] * (double)p->of[1];
    *out = (tr_sketch_facts){
        .out = p->of[0],
        .in = p->of[1],
        .width = width,
        .parameters = {0, dense},
        .multiply_adds = {places * (double)width * (double)(p->of[0] + p->of[1]), places * dense}};
    for (int i = 0; i < l->nparams; i++) {
        const tr_param *q = &m->params[l->params[i]];
        if (q->sketch.side != TR_SKETCH_NONE) out->parameters[0] += (double)q->count;
    }
    return true;
}

const char *tr_layer_sketched(const tr_layer *l)
{
    tr_product p;
    if (!l->def->sketched || !tr_layer_product(l, &p) || p.groups != 1) return NULL;
    return l->def->sketched->name;
}

double tr_layer_multiply_adds(const tr_model *m, const tr_layer *l)
{
    tr_sketch_facts f;
    if (tr_layer_sketch(m, l, &f)) return f.multiply_adds[0];
    if (!tr_layer_product(l, NULL)) return 0;
    const tr_param *w = &m->params[l->params[0]];
    return (double)w->count * (double)tr_shape_places(&l->output);
}

/* Along one axis: of all pairs of a place and a point of its window. */
static double unpadded(const tr_model *m, const tr_layer *l, const tr_product *p, int axis)
{
    const tr_param *w = &m->params[l->params[0]];
    const int at = w->ndim - 2 + axis;
    const int64_t kernel = at > 1 ? w->dims[at] : 1, size = tr_shape_size(&l->inputs[0], axis),
                  places = tr_shape_size(&l->output, axis);
    int64_t inside = 0;
    for (int64_t i = 0; i < places; i++)
        for (int64_t k = 0; k < kernel; k++) {
            const int64_t from = i * p->stride[axis] - p->padding[axis] + k * p->dilation[axis];
            inside += from >= 0 && from < size;
        }
    return (double)inside / (double)(places * kernel);
}

double tr_layer_unpadded(const tr_model *m, const tr_layer *l)
{
    tr_product p;
    if (!tr_layer_product(l, &p) || !tr_product_pads(&p)) return 1;
    return unpadded(m, l, &p, 0) * unpadded(m, l, &p, 1);
}
