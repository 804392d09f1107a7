/* Nodes, attributes and initializers of a graph in the making. */
#include "optimize/onnx/writer.h"

#include <math.h>
#include <string.h>

enum { FLOAT = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT };

/* ---- Nodes ----------------------------------------------------------------------------------- */

static char *inner_name(tr_onnx_writer *w, const char *what)
{
    return tr_pool_text(&w->pool, "%s/%s", w->layer ? w->layer->name : "", what);
}

tr_onnx_node *tr_onnx_add(tr_onnx_writer *w, const char *type, const char *what, int nin,
                          const char *const *in, const char *out, const char **made)
{
    tr_pool *p = &w->pool;
    if (made) *made = NULL;
    if (p->st != TR_OK) return NULL; /* no `what`, then, need not mean the layer's name */
    tr_onnx_node *n = TR_MESSAGE(p, Onnx__NodeProto, ONNX__NODE_PROTO__INIT);
    char *name = what ? inner_name(w, what) : tr_pool_copy(p, w->layer->name);
    char *y = out ? tr_pool_copy(p, out) : name;
    if (made) *made = y;
    if (p->st != TR_OK) return NULL;
    n->name = name;
    n->op_type = tr_pool_copy(p, type);
    for (int i = 0; i < nin; i++)
        tr_pool_push(p, &n->input, &n->n_input, in[i] ? tr_pool_copy(p, in[i]) : NULL);
    tr_pool_push(p, &n->output, &n->n_output, y);
    tr_pool_push(p, &w->graph->node, &w->graph->n_node, n);
    return n;
}

const char *tr_onnx_more(tr_onnx_writer *w, tr_onnx_node *n, const char *what)
{
    char *y = inner_name(w, what);
    if (n) tr_pool_push(&w->pool, &n->output, &n->n_output, y);
    return y;
}

const char *tr_onnx_chain(tr_onnx_writer *w, const char *type, const char *what, const char *a,
                          const char *b)
{
    const char *made = NULL;
    tr_onnx_add(w, type, what, b ? 2 : 1, (const char *[]){a, b}, NULL, &made);
    return made;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

static Onnx__AttributeProto *attribute(tr_onnx_writer *w, tr_onnx_node *n, const char *name,
                                       Onnx__AttributeProto__AttributeType type)
{
    tr_pool *p = &w->pool;
    Onnx__AttributeProto *a = TR_MESSAGE(p, Onnx__AttributeProto, ONNX__ATTRIBUTE_PROTO__INIT);
    if (p->st != TR_OK) return NULL;
    a->name = tr_pool_copy(p, name);
    a->has_type = true;
    a->type = type;
    tr_pool_push(p, &n->attribute, &n->n_attribute, a);
    return p->st == TR_OK ? a : NULL;
}

void tr_onnx_int(tr_onnx_writer *w, tr_onnx_node *n, const char *name, int64_t v)
{
    Onnx__AttributeProto *a = attribute(w, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    if (!a) return;
    a->has_i = true;
    a->i = v;
}

void tr_onnx_real(tr_onnx_writer *w, tr_onnx_node *n, const char *name, double v)
{
    Onnx__AttributeProto *a = attribute(w, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    if (!a) return;
    a->has_f = true;
    a->f = (float)v;
}

void tr_onnx_ints(tr_onnx_writer *w, tr_onnx_node *n, const char *name, size_t count,
                  const int64_t *v)
{
    Onnx__AttributeProto *a = attribute(w, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    if (!a || !(a->ints = tr_pool_get(&w->pool, count, sizeof *v))) return;
    memcpy(a->ints, v, count * sizeof *v);
    a->n_ints = count;
}

void tr_onnx_word(tr_onnx_writer *w, tr_onnx_node *n, const char *name, const char *v)
{
    Onnx__AttributeProto *a = attribute(w, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    if (!a || !(a->s.data = (uint8_t *)tr_pool_copy(&w->pool, v))) return;
    a->s.len = strlen(v);
    a->has_s = true;
}

/* ---- Initializers ---------------------------------------------------------------------------- */

/* `bytes` stay where they are until the file is written. */
static const char *initializer(tr_onnx_writer *w, char *name, int type, int ndim,
                               const int64_t *dims, const void *bytes, size_t nbytes)
{
    tr_pool *p = &w->pool;
    Onnx__TensorProto *t = TR_MESSAGE(p, Onnx__TensorProto, ONNX__TENSOR_PROTO__INIT);
    int64_t *d = tr_pool_get(p, (size_t)ndim, sizeof *d);
    if (p->st != TR_OK) return NULL;
    if (ndim) memcpy(d, dims, (size_t)ndim * sizeof *d);
    t->name = name;
    t->n_dims = (size_t)ndim;
    t->dims = d;
    t->has_data_type = true;
    t->data_type = type;
    t->has_raw_data = true;
    t->raw_data = (ProtobufCBinaryData){.data = (uint8_t *)bytes, .len = nbytes};
    tr_pool_push(p, &w->graph->initializer, &w->graph->n_initializer, t);
    return name;
}

/* One of the layer's constants that is there already. */
static const char *known(const tr_onnx_writer *w, const char *name)
{
    for (size_t i = w->graph->n_initializer; name && i > 0; i--) {
        const char *at = w->graph->initializer[i - 1]->name;
        if (!strchr(at, '/')) break;
        if (strcmp(at, name) == 0) return at;
    }
    return NULL;
}

static const char *constant(tr_onnx_writer *w, const char *what, int type, int ndim,
                            const int64_t *dims, const void *v, size_t size)
{
    size_t n = size;
    char *name = inner_name(w, what);
    const char *there = known(w, name);
    if (there) return there;
    for (int i = 0; i < ndim; i++) n *= (size_t)dims[i];
    void *copy = tr_pool_get(&w->pool, n, 1);
    if (!copy) return NULL;
    memcpy(copy, v, n);
    return initializer(w, name, type, ndim, dims, copy, n);
}

const char *tr_onnx_floats(tr_onnx_writer *w, const char *what, int ndim, const int64_t *dims,
                           const float *v)
{
    return constant(w, what, FLOAT, ndim, dims, v, sizeof *v);
}

const char *tr_onnx_scalar(tr_onnx_writer *w, const char *what, double v)
{
    const float f = (float)v;
    return tr_onnx_floats(w, what, 0, NULL, &f);
}

const char *tr_onnx_byte(tr_onnx_writer *w, const char *what, bool is_signed, int v)
{
    const uint8_t byte = (uint8_t)v;
    return constant(w, what,
                    is_signed ? ONNX__TENSOR_PROTO__DATA_TYPE__INT8
                              : ONNX__TENSOR_PROTO__DATA_TYPE__UINT8,
                    0, NULL, &byte, sizeof byte);
}

const char *tr_onnx_int64s(tr_onnx_writer *w, const char *what, size_t count, const int64_t *v)
{
    const int64_t dim = (int64_t)count;
    return constant(w, what, ONNX__TENSOR_PROTO__DATA_TYPE__INT64, 1, &dim, v, sizeof *v);
}

const char *tr_onnx_int64(tr_onnx_writer *w, const char *what, int64_t v)
{
    return constant(w, what, ONNX__TENSOR_PROTO__DATA_TYPE__INT64, 0, NULL, &v, sizeof v);
}

/* "conv2d1.weight": no layer may have that name, nor any value. */
static char *row_name(tr_onnx_writer *w, const char *layer, const char *row)
{
    const tr_model *m = w->n->model;
    char *name = tr_pool_text(&w->pool, "%s.%s", layer, row);
    for (size_t v = 0; name && v < m->ninputs + m->nlayers; v++)
        if (strcmp(w->values[v], name) == 0) name = tr_pool_text(&w->pool, "%s/%s", layer, row);
    return name;
}

/* As float16, and the node that makes float32 of it again. */
static const char *halved(tr_onnx_writer *w, char *name, int ndim, const int64_t *dims,
                          const float *v, size_t count)
{
    const char *made = NULL;
    tr_f16 *h = tr_pool_get(&w->pool, count, sizeof *h);
    for (size_t i = 0; h && i < count; i++) {
        h[i] = tr_f32_to_f16(v[i]);
        if (isfinite(v[i]) && !isfinite(tr_f16_to_f32(h[i])) && w->pool.st == TR_OK)
            w->pool.st =
                TR_FAIL(TR_DATA, "%s: a value of %g does not fit float16", name, (double)v[i]);
    }
    initializer(w, name, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16, ndim, dims, h, count * sizeof *h);
    tr_onnx_node *n = tr_onnx_add(w, "Cast", "cast", TR_NAMES(name),
                                  tr_pool_text(&w->pool, "%s/float32", name), &made);
    if (!n) return NULL;
    n->name = (char *)made;
    tr_onnx_int(w, n, "to", FLOAT);
    return made;
}

const char *tr_onnx_values(tr_onnx_writer *w, const char *what, int ndim, const int64_t *dims,
                           const float *v)
{
    size_t n = 1;
    char *name = row_name(w, w->layer->name, what);
    for (int i = 0; i < ndim; i++) n *= (size_t)dims[i];
    return w->o->weights == TR_F16 ? halved(w, name, ndim, dims, v, n)
                                   : initializer(w, name, FLOAT, ndim, dims, v, n * sizeof *v);
}

/* As int8 with a scale for each of the first dimension, and the node that makes float32 of it
 * again: q * s, which is what the values are. */
static const char *quantized(tr_onnx_writer *w, char *name, const tr_param *p, const float *v)
{
    const char *made = NULL;
    const tr_state *s = &w->n->model->states[p->scale];
    const float *scales = w->n->states + s->offset;
    const size_t rows = (size_t)p->dims[0], each = p->count / rows;
    int8_t *q = tr_pool_get(&w->pool, p->count, 1), *zero = tr_pool_get(&w->pool, rows, 1);
    for (size_t i = 0; q && i < p->count; i++) q[i] = (int8_t)lrintf(v[i] / scales[i / each]);
    const char *operands[] = {
        initializer(w, name, ONNX__TENSOR_PROTO__DATA_TYPE__INT8, p->ndim, p->dims, q, p->count),
        initializer(w, tr_pool_text(&w->pool, "%s_scale", name), FLOAT, 1, p->dims, scales,
                    rows * sizeof *scales),
        initializer(w, tr_pool_text(&w->pool, "%s_zero_point", name),
                    ONNX__TENSOR_PROTO__DATA_TYPE__INT8, 1, p->dims, zero, rows)};
    tr_onnx_node *n = tr_onnx_add(w, "DequantizeLinear", "dequantize", 3, operands,
                                  tr_pool_text(&w->pool, "%s/float32", name), &made);
    if (!n) return NULL;
    n->name = (char *)made;
    tr_onnx_int(w, n, "axis", 0);
    return made;
}

const char *tr_onnx_weights(tr_onnx_writer *w, const char *what, int ndim, const int64_t *dims,
                            const float *v)
{
    size_t n = 1;
    if (w->o->weights != TR_F16) return tr_onnx_floats(w, what, ndim, dims, v);
    for (int i = 0; i < ndim; i++) n *= (size_t)dims[i];
    return halved(w, inner_name(w, what), ndim, dims, v, n);
}

const char *tr_onnx_param(tr_onnx_writer *w, int i)
{
    const int at = w->layer->params[i];
    const tr_param *p = &w->n->model->params[at];
    const float *v = w->n->params + p->offset;
    if (w->rows[at]) return w->rows[at];
    char *name = row_name(w, p->layer, p->name);
    const char *made = p->stored == TR_I8 ? quantized(w, name, p, v)
                       : w->o->weights == TR_F16 || p->stored == TR_F16
                           ? halved(w, name, p->ndim, p->dims, v, p->count)
                           : initializer(w, name, FLOAT, p->ndim, p->dims, v, p->count * sizeof *v);
    return w->rows[at] = (char *)made;
}

/* Statistics stay float32: a variance may be beyond float16. */
const char *tr_onnx_state(tr_onnx_writer *w, int i)
{
    const tr_state *s = &w->n->model->states[w->layer->first_state + i];
    return initializer(w, row_name(w, s->layer, s->name), FLOAT, s->ndim, s->dims,
                       w->n->states + s->offset, s->count * sizeof(float));
}
