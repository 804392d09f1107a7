/* What an operator is given: operands and attributes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/onnx/reader.h"

/* ---- Operands -------------------------------------------------------------------------------- */

const tr_onnx_const *tr_onnx_const_at(const tr_onnx_reader *r, int value)
{
    return value >= 0 && r->values[value].kind == TR_ONNX_CONST ? r->values[value].constant : NULL;
}

const tr_onnx_const *tr_onnx_const_in(const tr_onnx_reader *r, const tr_onnx_step *s, int i)
{
    return i < s->nin ? tr_onnx_const_at(r, s->in[i]) : NULL;
}

/* Zeros that are still to be put around: a layer, for all that read it. */
static bool put_zeros(tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_value *v)
{
    int made;
    if (!tr_onnx_make_pad(r, s, v->padding, v->value, &made)) return false;
    v->value = made;
    memset(v->padding, 0, sizeof v->padding);
    return true;
}

bool tr_onnx_operand_at(tr_onnx_reader *r, const tr_onnx_step *s, int at, int *value,
                        int64_t padding[4])
{
    tr_onnx_value *v = at >= 0 ? &r->values[at] : NULL;
    const int64_t none[4] = {0};
    if (!v || v->kind == TR_ONNX_CONST || v->kind == TR_ONNX_NOTHING) {
        tr_onnx_refuse(r, s,
                       v && v->kind == TR_ONNX_CONST
                           ? "a constant where it takes what the model computes"
                           : "an operand is missing");
        return false;
    }
    if (v->kind == TR_ONNX_REFUSED || !tr_onnx_settle(r, s, at)) return false;
    if (!padding && memcmp(v->padding, none, sizeof none) != 0 && !put_zeros(r, s, v)) return false;
    if (padding) memcpy(padding, v->padding, sizeof none);
    *value = v->value;
    return true;
}

bool tr_onnx_operand(tr_onnx_reader *r, const tr_onnx_step *s, int i, int *value,
                     int64_t padding[4])
{
    return tr_onnx_operand_at(r, s, i < s->nin ? s->in[i] : -1, value, padding);
}

/* ---- Attributes ------------------------------------------------------------------------------ */

const Onnx__AttributeProto *tr_onnx_get(const tr_onnx_step *s, const char *name)
{
    for (size_t i = 0; i < s->proto->n_attribute; i++) {
        const Onnx__AttributeProto *a = s->proto->attribute[i];
        if (a->name && strcmp(a->name, name) == 0) return a;
    }
    return NULL;
}

int64_t tr_onnx_get_int(const tr_onnx_step *s, const char *name, int64_t otherwise)
{
    const Onnx__AttributeProto *a = tr_onnx_get(s, name);
    return a && a->has_i ? a->i : otherwise;
}

double tr_onnx_get_real(const tr_onnx_step *s, const char *name, double otherwise)
{
    const Onnx__AttributeProto *a = tr_onnx_get(s, name);
    return a && a->has_f ? (double)a->f : otherwise;
}

double tr_onnx_short(double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", v);
    const double s = strtod(text, NULL);
    return (float)s == (float)v ? s : v;
}

bool tr_onnx_is(const tr_onnx_step *s, const char *name, const char *word, bool otherwise)
{
    const Onnx__AttributeProto *a = tr_onnx_get(s, name);
    if (!a || !a->has_s) return otherwise;
    return a->s.len == strlen(word) && memcmp(a->s.data, word, a->s.len) == 0;
}

int tr_onnx_get_ints(const tr_onnx_step *s, const char *name, int most, int64_t *out)
{
    const Onnx__AttributeProto *a = tr_onnx_get(s, name);
    if (!a || a->n_ints > (size_t)most) return a ? most + 1 : -1;
    if (a->n_ints) memcpy(out, a->ints, a->n_ints * sizeof *out);
    return (int)a->n_ints;
}

int tr_onnx_numbers(const tr_onnx_reader *r, const tr_onnx_step *s, int i, const char *name,
                    int most, int64_t *out)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, i);
    if (!c || !c->i || c->count > (size_t)most) return tr_onnx_get_ints(s, name, most, out);
    if (c->count) memcpy(out, c->i, c->count * sizeof *out);
    return (int)c->count;
}

bool tr_onnx_scalar_of(const tr_onnx_reader *r, int value, double *out)
{
    const tr_onnx_const *c = tr_onnx_const_at(r, value);
    if (!c || c->count != 1) return false;
    *out = c->f ? (double)c->f[0] : (double)c->i[0];
    return true;
}

/* ---- Patterns -------------------------------------------------------------------------------- */

const tr_onnx_step *tr_onnx_shared_by(const tr_onnx_reader *r, int value, const char *type)
{
    if (value < 0 || r->values[value].maker < 0) return NULL;
    const tr_onnx_step *s = &r->steps[r->values[value].maker];
    return strcmp(s->type, type) == 0 && s->nout > 0 && s->out[0] == value ? s : NULL;
}

const tr_onnx_step *tr_onnx_made_by(const tr_onnx_reader *r, int value, const char *type)
{
    return value >= 0 && r->values[value].uses == 1 ? tr_onnx_shared_by(r, value, type) : NULL;
}

int tr_onnx_beside(const tr_onnx_reader *r, const tr_onnx_step *s, double number)
{
    double v;
    for (int i = 0; i < 2 && s->nin == 2; i++)
        if (tr_onnx_scalar_of(r, s->in[i], &v) && fabs(v - number) <= 1e-3 * fabs(number))
            return s->in[1 - i];
    return -1;
}
