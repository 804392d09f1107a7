/* What an operator becomes: layers with names, the values of their rows, or a refusal. */
#include <string.h>

#include "optimize/onnx/reader.h"
#include "runtime/graph/model.h"

void tr_onnx_refuse(tr_onnx_reader *r, const tr_onnx_step *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (r->refusals) {
        fprintf(r->refusals, "%snode \"%s\" (%s): ", r->nrefused ? "; " : "",
                s->proto->name ? s->proto->name : "", s->type);
        vfprintf(r->refusals, fmt, args);
    }
    va_end(args);
    r->nrefused++;
    for (int k = 0; k < s->nout; k++)
        if (s->out[k] >= 0) r->values[s->out[k]].kind = TR_ONNX_REFUSED;
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* Names of layers have room for what is added to them. */
enum { NAME_MAX_LENGTH = 47 };

static bool is_name(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const size_t n = strspn(name, good);
    return n > 0 && n <= NAME_MAX_LENGTH && name[n] == '\0' && name[0] != '.';
}

static char *name_of(tr_onnx_reader *r, const tr_onnx_step *s, const char *type, int named)
{
    static const char end[] = ".weight";
    const tr_onnx_const *c = tr_onnx_const_at(r, named);
    const size_t n = c && c->name ? strlen(c->name) : 0;
    char *name = NULL;
    if (n >= sizeof end && strcmp(c->name + n - sizeof end + 1, end) == 0)
        name = tr_pool_text(&r->pool, "%.*s", (int)(n - sizeof end + 1), c->name);
    if (name && is_name(name) && tr_onnx_find(&r->taken, name) < 0) return name;
    if (named != TR_ONNX_BESIDE && s->proto->name && is_name(s->proto->name) &&
        tr_onnx_find(&r->taken, s->proto->name) < 0)
        return tr_pool_copy(&r->pool, s->proto->name);
    for (size_t i = 1; r->pool.st == TR_OK; i++) {
        char text[NAME_MAX_LENGTH + 1];
        snprintf(text, sizeof text, "%s%zu", type, i);
        if (tr_onnx_find(&r->taken, text) < 0) return tr_pool_copy(&r->pool, text);
    }
    return NULL;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

void tr_onnx_count(tr_onnx_reader *r, const char *type)
{
    size_t i = 0;
    while (i < r->ntogether && strcmp(r->together[i].layer, type) != 0) i++;
    if (i == TR_COUNT(r->together)) return; /* there are not so many types */
    if (i == r->ntogether) snprintf(r->together[r->ntogether++].layer, TR_NAME, "%s", type);
    r->together[i].count++;
}

const char *tr_onnx_make(tr_onnx_reader *r, const tr_onnx_step *s, const char *type, int named,
                         int nin, const int *in, int *value, const char *fmt, ...)
{
    char options[512] = "";
    if (r->pool.st != TR_OK) return NULL;
    if (fmt) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(options, sizeof options, fmt, args);
        va_end(args);
    }
    const char *name = name_of(r, s, type, named);
    const tr_layer_given given = {.type = type, .name = name, .nin = nin, .in = in};
    if (!name || tr_onnx_name(&r->pool, &r->taken, name) < 0) return NULL;
    tr_status st = fmt ? tr_maker_layer_text(r->maker, &given, options, value)
                       : tr_maker_layer(r->maker, &given, value);
    if (st != TR_OK) {
        r->pool.st = tr_fail_before(st, "%s: node \"%s\" (%s): ", r->path,
                                    s->proto->name ? s->proto->name : "", s->type);
        return NULL;
    }
    if (s->pattern) tr_onnx_count(r, type);
    return name;
}

tr_shape tr_onnx_shape(const tr_onnx_reader *r, int value)
{
    return tr_value_shape(r->maker, value);
}

static tr_onnx_fill *new_fill(tr_onnx_reader *r, const char *layer, const char *row)
{
    tr_onnx_fill *f = layer ? tr_pool_get(&r->pool, 1, sizeof *f) : NULL;
    if (!f) return NULL;
    *f = (tr_onnx_fill){.next = r->fills, .layer = layer, .row = row};
    return r->fills = f;
}

void tr_onnx_fill_values(tr_onnx_reader *r, const char *layer, const char *row, const float *v,
                         size_t count)
{
    tr_onnx_fill *f = new_fill(r, layer, row);
    if (!f) return;
    f->v = v;
    f->count = count;
}

void tr_onnx_fill_const(tr_onnx_reader *r, const char *layer, const char *row,
                        const tr_onnx_const *c, bool turned)
{
    tr_onnx_fill *f = new_fill(r, layer, row);
    if (!f) return;
    f->v = c->f;
    f->count = c->count;
    f->of = c;
    f->turned = turned;
}

const char *tr_onnx_stored(const tr_onnx_const *weight)
{
    return weight->scale ? ", stored: int8, freeze: true" : "";
}

void tr_onnx_fill_weight(tr_onnx_reader *r, const char *layer, const tr_onnx_const *weight,
                         bool turned)
{
    tr_onnx_fill_const(r, layer, "weight", weight, turned);
    if (weight->scale && !turned)
        tr_onnx_fill_const(r, layer, TR_SCALE_STATE, weight->scale, false);
}

const char *tr_onnx_filled(const tr_onnx_reader *r, const tr_onnx_const *c, bool turned)
{
    for (const tr_onnx_fill *f = r->fills; f; f = f->next)
        if (f->of == c && f->turned == turned && strcmp(f->row, "weight") == 0) return f->layer;
    return NULL;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static tr_onnx_value *output(tr_onnx_reader *r, const tr_onnx_step *s)
{
    return s->nout > 0 && s->out[0] >= 0 ? &r->values[s->out[0]] : NULL;
}

void tr_onnx_give(tr_onnx_reader *r, const tr_onnx_step *s, int value)
{
    tr_onnx_value *v = output(r, s);
    if (!v || r->pool.st != TR_OK) return;
    v->kind = TR_ONNX_VALUE;
    v->value = value;
}

void tr_onnx_pass(tr_onnx_reader *r, const tr_onnx_step *s, int i)
{
    tr_onnx_value *v = output(r, s);
    if (!v || i >= s->nin || s->in[i] < 0 || !tr_onnx_settle(r, s, s->in[i])) return;
    const tr_onnx_value *from = &r->values[s->in[i]];
    v->kind = from->kind;
    v->constant = from->constant;
    v->value = from->value;
    v->input = from->uses == 1 ? from->input : -1;
    memcpy(v->padding, from->padding, sizeof v->padding);
}

void tr_onnx_give_const(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_const *c)
{
    tr_onnx_value *v = output(r, s);
    if (!v || !c) return;
    v->kind = TR_ONNX_CONST;
    v->constant = c;
}
