/* What op files use to check a layer and to declare what it holds. */
#include "runtime/base/numbers.h"
#include "runtime/graph/maker.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const char *const tr_init_choices[] = {"kaiming", "xavier", "normal", "zeros", "he", "auto", NULL};

tr_init_kind tr_layer_init(const tr_maker *mk, int chosen)
{
    return chosen == TR_INIT_AUTO ? mk->init : (tr_init_kind)chosen;
}

const char *tr_shape_text(const tr_shape *s, char buf[TR_SHAPE_TEXT])
{
    return tr_format_dims(s->ndim, s->dims, buf, TR_SHAPE_TEXT);
}

bool tr_shape_equal(const tr_shape *a, const tr_shape *b)
{
    if (a->ndim != b->ndim || a->layout != b->layout) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

bool tr_shape_count(const tr_shape *s, size_t *count)
{
    *count = 1;
    for (int i = 0; i < s->ndim; i++)
        if (!tr_mul_size(*count, (size_t)s->dims[i], count)) return false;
    return true;
}

tr_status tr_layer_fail(const tr_layer *l, tr_status st, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)TR_FAIL(st, "layer \"%s\": %s", l->name, text);
    return l->where ? tr_fail_place(st, "%s", l->where) : st;
}

tr_status tr_layer_rank(const tr_layer *l, int rank_a, int rank_b, const char *takes)
{
    int ndim = l->inputs[0].ndim;
    if (ndim == rank_a || ndim == rank_b) return TR_OK;
    char t[TR_SHAPE_TEXT];
    return tr_layer_fail(l, TR_SHAPE, "its input is %s, but it takes %s",
                         tr_shape_text(&l->inputs[0], t), takes);
}

tr_status tr_layer_image(const tr_layer *l)
{
    tr_status st = TR_OK;
    TR_TRY(tr_layer_rank(l, 3, 3, "(channels, height, width)"));
    if (l->inputs[0].layout != TR_LAYOUT_CHANNELS_LAST)
        st = tr_layer_fail(l, TR_SHAPE, "it takes an image, but its input is no image");
out:
    return st;
}

tr_status tr_layer_sequence(const tr_layer *l)
{
    return tr_layer_rank(l, 2, 2, "(channels, length)");
}

int64_t tr_shape_size(const tr_shape *s, int axis)
{
    const int at = s->ndim - 2 + axis;
    return at > 0 ? s->dims[at] : 1;
}

tr_status tr_layer_pair(const tr_layer *l, const char *key, const tr_ints *in, int64_t out[2])
{
    if (l->def->line) {
        if (in->count != 1)
            return tr_layer_fail(l, TR_CONFIG, "%s: one number, not %zu numbers", key, in->count);
        out[0] = 1;
        out[1] = in->v[0];
        return TR_OK;
    }
    if (in->count > 2 || in->count == 0)
        return tr_layer_fail(l, TR_CONFIG, "%s: one number or [height, width], not %zu numbers",
                             key, in->count);
    out[0] = in->v[0];
    out[1] = in->v[in->count - 1];
    return TR_OK;
}

tr_status tr_layer_padding(const tr_layer *l, const tr_ints *in, const tr_window *w)
{
    const tr_status st = tr_layer_pair(l, "padding", in, w->padding);
    if (st != TR_OK) return st;
    if (l->def->line) w->padding[0] = 0; /* where tr_layer_pair has a size */
    for (int i = 0; i < 2; i++) {
        w->extra[i] = 0;
        if (w->padding[i] >= 0) continue;
        if (w->stride[i] != 1)
            return tr_layer_fail(l, TR_SHAPE, "padding: same needs a stride of 1, not %lld",
                                 (long long)w->stride[i]);
        const int64_t all = w->dilation[i] * (w->kernel[i] - 1);
        w->padding[i] = all / 2;
        w->extra[i] = all % 2;
    }
    return TR_OK;
}

tr_status tr_layer_window(tr_layer *l, int axis, const tr_window *w)
{
    const int64_t size = tr_shape_size(&l->inputs[0], axis);
    int64_t span = w->dilation[axis] * (w->kernel[axis] - 1) + 1;
    int64_t room = size + 2 * w->padding[axis] + w->extra[axis] - span;
    if (room < 0) {
        char t[TR_SHAPE_TEXT];
        return tr_layer_fail(
            l, TR_SHAPE,
            "a kernel of (%lld, %lld) with padding (%lld, %lld) and dilation (%lld, "
            "%lld) does not fit its input %s",
            (long long)w->kernel[0], (long long)w->kernel[1], (long long)w->padding[0],
            (long long)w->padding[1], (long long)w->dilation[0], (long long)w->dilation[1],
            tr_shape_text(&l->inputs[0], t));
    }
    const int at = l->output.ndim - 2 + axis;
    if (at > 0) l->output.dims[at] = room / w->stride[axis] + 1;
    return TR_OK;
}

static tr_status take_input(tr_maker *mk, tr_layer *l, int i, int64_t num, const char *what)
{
    const int value = l->in[i];
    if ((size_t)value >= mk->m->ninputs)
        return tr_layer_fail(l, TR_CONFIG,
                             "it reads layer \"%s\", but takes %s, so one of the model's inputs",
                             tr_value_name(mk, value), what);
    tr_input *in = &mk->m->inputs[value];
    if (in->ids == 0 || num < in->ids) in->ids = num;
    l->ids |= 1u << i;
    return TR_OK;
}

tr_status tr_layer_ids(tr_maker *mk, tr_layer *l, int i, int64_t num)
{
    return take_input(mk, l, i, num, "ids");
}

tr_status tr_layer_lengths(tr_maker *mk, tr_layer *l, int i, int64_t most, const char *of)
{
    const tr_shape *s = &l->inputs[i];
    char text[TR_SHAPE_TEXT];
    const tr_status st = take_input(mk, l, i, most + 1, "lengths");
    if (st == TR_OK) mk->m->inputs[l->in[i]].lengths = true;
    if (st != TR_OK || (s->ndim == 1 && s->dims[0] == 1)) return st;
    return tr_layer_fail(l, TR_SHAPE,
                         "lengths: its input %d is %s, but it takes (1): how many %s a sample has",
                         i + 1, tr_shape_text(s, text), of);
}

/* The row of the layer that weight_of names. */
static tr_status tie(tr_maker *mk, tr_layer *l, const tr_param_decl *decl)
{
    const char *name = ((const tr_common *)l->storage)->weight_of;
    const int value = tr_name_find(mk, name);
    if (value < 0) return tr_name_unknown(mk, NULL, l, name);
    const tr_common *own = l->storage;
    if (own->stored || own->masked || own->learn_scale || own->init_factor != 1)
        return tr_layer_fail(l, TR_CONFIG, "%s: its weight is that of \"%s\", which says it",
                             own->stored        ? "stored"
                             : own->masked      ? "masked"
                             : own->learn_scale ? "learn_scale"
                                                : "init_factor",
                             name);
    const tr_layer *of =
        (size_t)value < mk->m->ninputs ? NULL : &mk->m->layers[(size_t)value - mk->m->ninputs];
    for (int i = 0; of && i < of->nparams; i++) {
        tr_param *p = &mk->m->params[of->params[i]];
        if (strcmp(p->name, decl->name) != 0) continue;
        const tr_shape its = {.ndim = p->ndim,
                              .dims = {p->dims[0], p->dims[1], p->dims[2], p->dims[3]}};
        const tr_shape ours = {
            .ndim = decl->ndim,
            .dims = {decl->dims[0], decl->dims[1], decl->dims[2], decl->dims[3]}};
        char a[TR_SHAPE_TEXT], b[TR_SHAPE_TEXT];
        if (!tr_shape_equal(&its, &ours))
            return tr_layer_fail(l, TR_SHAPE, "its weight is %s, but that of \"%s\" is %s",
                                 tr_shape_text(&ours, a), name, tr_shape_text(&its, b));
        p->uses++;
        l->params[l->nparams++] = of->params[i];
        return TR_OK;
    }
    return tr_layer_fail(l, TR_CONFIG, "weight_of: \"%s\" has no weight", name);
}

/* Resolved, so that it means the same wherever it is written. */
tr_status tr_layer_tied(tr_maker *mk, tr_layer *l)
{
    tr_common *common = l->storage;
    for (int i = 0; i < l->nparams; i++) {
        const tr_param *p = &mk->m->params[l->params[i]];
        if (p->uses < 2) continue;
        char *name = tr_strdup(p->layer);
        if (!name) return tr_last_status();
        tr_free(common->weight_of);
        common->weight_of = name;
    }
    return TR_OK;
}

static tr_status add_state(tr_maker *mk, const tr_layer *l, const char *name, int64_t count,
                           float initial)
{
    tr_model *m = mk->m;
    tr_status st = tr_grow(&m->states, &mk->cap_states, m->nstates + 1, sizeof *m->states);
    if (st != TR_OK) return st;
    tr_state *s = &m->states[m->nstates++];
    *s = (tr_state){.ndim = 1, .dims = {count}, .count = (size_t)count, .initial = initial};
    snprintf(s->layer, sizeof s->layer, "%s", l->name);
    snprintf(s->name, sizeof s->name, "%s", name);
    return TR_OK;
}

/* The scales are a state of the layer, but no operand of its op. */
static tr_status store_as(tr_maker *mk, const tr_layer *l, tr_param *p)
{
    p->scale = p->learned_scale = -1;
    p->stored = TR_F32;
    if (strcmp(p->name, "weight") != 0) return TR_OK;
    p->stored = tr_stored_types[((const tr_common *)l->storage)->stored];
    if (p->stored != TR_I8) return TR_OK;
    p->per_tensor = ((const tr_common *)l->storage)->stored == TR_STORED_INT8_TENSOR;
    p->scale = (int)mk->m->nstates;
    return add_state(mk, l, TR_SCALE_STATE, p->dims[0], 1);
}

static double first_gain(const tr_common *common, const tr_param_decl *decl)
{
    const bool weight =
        strncmp(decl->name, "weight", 6) == 0 || decl->sketch.side != TR_SKETCH_NONE;
    /* kaiming with a = sqrt(5): sqrt(2 / (1 + a^2)) */
    const double gain = decl->init == TR_INIT_KAIMING ? sqrt(1.0 / 3.0) : 1.0;
    return weight ? gain * common->init_factor : gain;
}

tr_status tr_layer_param(tr_maker *mk, tr_layer *l, const tr_param_decl *decl)
{
    tr_status st = TR_OK;
    tr_model *m = mk->m;
    const tr_common *common = l->storage;
    assert(l->nparams < TR_MAX_PARAMS);
    if (common->weight_of && strcmp(decl->name, "weight") == 0) return tie(mk, l, decl);
    TR_TRY(tr_grow(&m->params, &mk->cap_params, m->nparams + 1, sizeof *m->params));
    tr_param *p = &m->params[m->nparams];
    *p = (tr_param){.uses = 1,
                    .ndim = decl->ndim,
                    .init = decl->init,
                    .fan_in = decl->fan_in,
                    .fan_out = decl->fan_out,
                    .gain = first_gain(common, decl),
                    .init_std = decl->init == TR_INIT_CONSTANT ? decl->std
                                : decl->std > 0                ? decl->std
                                                               : 0.02,
                    .decay = decl->decay,
                    .by_row = decl->by_row,
                    .frozen = common->freeze,
                    .lr_factor = common->lr_factor,
                    .decay_factor = common->decay_factor,
                    .masked = common->masked && strcmp(decl->name, "weight") == 0,
                    .sketch = decl->sketch,
                    .of = {decl->of[0], decl->of[1]},
                    .drawn = (int)m->nparams - decl->behind,
                    .count = 1};
    snprintf(p->layer, sizeof p->layer, "%s", l->name);
    snprintf(p->name, sizeof p->name, "%s", decl->name);
    for (int i = 0; i < decl->ndim; i++) {
        p->dims[i] = decl->dims[i];
        if (!tr_mul_size(p->count, (size_t)decl->dims[i], &p->count) ||
            p->count > (SIZE_MAX >> 8)) {
            st = tr_layer_fail(l, TR_SHAPE, "its %s is too large", decl->name);
            goto out;
        }
    }
    TR_TRY(store_as(mk, l, p));
    l->params[l->nparams++] = (int)m->nparams++;
out:
    return st;
}

/* As if the largest weight were what the initial values give. */
static double first_scale(const tr_param *p)
{
    const double most = p->init == TR_INIT_KAIMING  ? p->gain * sqrt(3.0 / p->fan_in)
                        : p->init == TR_INIT_XAVIER ? p->gain * sqrt(6.0 / (p->fan_in + p->fan_out))
                        : p->init == TR_INIT_NORMAL ? 3 * p->gain * p->init_std
                        : p->init == TR_INIT_HE     ? 3 * p->gain * sqrt(2.0 / p->fan_in)
                                                    : 1;
    return most / 127;
}

tr_status tr_layer_learned_scale(tr_maker *mk, tr_layer *l)
{
    tr_model *m = mk->m;
    tr_status st = TR_OK;
    for (int i = 0; i < l->nparams; i++) {
        const int row = l->params[i];
        const tr_param *p = &m->params[row];
        if (p->stored != TR_I8 || strcmp(p->layer, l->name) != 0) continue;
        TR_TRY(tr_layer_param(mk, l,
                              &(tr_param_decl){.name = TR_WEIGHT_SCALE_ROW,
                                               .ndim = 1,
                                               .dims = {p->per_tensor ? 1 : p->dims[0]},
                                               .init = TR_INIT_CONSTANT,
                                               .std = first_scale(p)}));
        m->params[row].learned_scale = l->params[l->nparams - 1];
        return TR_OK;
    }
    st = tr_layer_fail(l, TR_CONFIG, "learn_scale: with stored: int8 or int8_tensor");
out:
    return st;
}

tr_status tr_layer_bias(tr_maker *mk, tr_layer *l, const tr_param_decl *weight, int64_t out)
{
    const tr_param_decl bias = {.name = "bias",
                                .ndim = 1,
                                .dims = {out},
                                .init = weight->init == TR_INIT_KAIMING ? TR_INIT_KAIMING
                                                                        : TR_INIT_ZEROS,
                                .fan_in = weight->fan_in,
                                .fan_out = weight->fan_out};
    return tr_layer_param(mk, l, &bias);
}

tr_status tr_layer_weight_bias(tr_maker *mk, tr_layer *l, const tr_shape *weight, tr_init_kind init,
                               bool bias)
{
    tr_status st = TR_OK;
    tr_param_decl w = {.name = "weight", .ndim = weight->ndim, .init = init, .decay = true};
    double window = 1;
    for (int i = 0; i < w.ndim; i++) w.dims[i] = weight->dims[i];
    for (int i = 2; i < w.ndim; i++) window *= (double)w.dims[i];
    w.fan_in = (double)w.dims[1] * window;
    w.fan_out = (double)w.dims[0] * window;
    TR_TRY(tr_layer_param(mk, l, &w));
    if (bias) TR_TRY(tr_layer_bias(mk, l, &w, w.dims[0]));
out:
    return st;
}

tr_status tr_layer_state(tr_maker *mk, tr_layer *l, const char *name, int64_t count, float initial)
{
    tr_status st = add_state(mk, l, name, count, initial);
    if (st == TR_OK && l->nstates++ == 0) l->first_state = (int)mk->m->nstates - 1;
    return st;
}
