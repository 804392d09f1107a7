/* The dimension `sequence`: which models have it, what layers cut tables to it with, and how it is
 * read back: as the length that the file says its model has, so that shapes are known and such cuts
 * leave tables as they are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/onnx/ops/ops.h"

#define LENGTH_KEY "trireme.sequence"

/* ---- Which models have it -------------------------------------------------------------------- */

static bool is_rows(const tr_input *in)
{
    return !in->lengths && in->layout == TR_LAYOUT_PLAIN && in->dims[0] > 1 &&
           (in->ndim == 2 || (in->ndim == 1 && in->ids > 0));
}

/* Inputs as long as the first that is a sequence, each by itself: its rows; 0: none is. */
static int64_t mark_inputs(const tr_model *m, int *along)
{
    int64_t rows = 0;
    for (size_t i = 0; i < m->ninputs; i++) {
        if (!is_rows(&m->inputs[i])) continue;
        if (rows == 0) rows = m->inputs[i].dims[0];
        along[i] = m->inputs[i].dims[0] == rows ? 1 + (int)i : 0;
    }
    return rows;
}

static bool is_lengths(const tr_model *m, int value)
{
    return (size_t)value < m->ninputs && m->inputs[value].lengths;
}

/* Why the layer, of whose inputs some are sequences of any length, needs one length; NULL: it does
 * not. */
static const char *obstacle(const tr_model *m, const tr_layer *l, const int *along)
{
    const tr_onnx_layer *of = tr_onnx_layer_of(tr_op_def_name(l->def));
    bool all = true;
    for (int k = 0; k < l->nin; k++) {
        const bool is = along[l->in[k]] > 0;
        if (along[l->in[k]] < 0)
            return of && of->columns && l->nin == 1 ? NULL : "it is made for one length";
        if (is && is_lengths(m, l->in[k])) return "it takes a sequence for lengths";
        all = all && (is || is_lengths(m, l->in[k]));
    }
    if (!of || !of->fixed) return "it is made for one length";
    if (!all && !of->mixes) return "not all that it reads is as long";
    if (along[l->in[0]] && l->inputs[0].ndim == 1 && l->output.ndim == 1)
        return "it is made for one length";
    return of->fixed(l);
}

/* Two of `along` are one number from here on: the earlier input's. */
static void tie(int *along, size_t n, int a, int b)
{
    const int to = a < b ? a : b, from = a < b ? b : a;
    for (size_t i = 0; i < n; i++)
        if (abs(along[i]) == from) along[i] = along[i] < 0 ? -to : to;
}

/* Which sequences that the layer reads must be as long: all, or where queries may be more or fewer
 * than keys, keys and values. */
static void tie_inputs(const tr_model *m, const tr_layer *l, int *along)
{
    const tr_onnx_layer *of = tr_onnx_layer_of(tr_op_def_name(l->def));
    int first = 0;
    for (int k = of && of->mixes ? 1 : 0; k < l->nin; k++) {
        const int is = along[l->in[k]];
        if (is > 0 && first) tie(along, m->ninputs + (size_t)l->index, first, is);
        if (is > 0) first = along[l->in[k]];
    }
}

/* Of what the layer makes of the first that it reads. */
static int along_after(const tr_layer *l, int along)
{
    const tr_onnx_layer *of = tr_onnx_layer_of(tr_op_def_name(l->def));
    if (of && of->turns) return of->turns(l) ? -along : along;
    return along > 0 && l->output.ndim == 2 ? along : 0;
}

tr_onnx_sequence tr_onnx_sequence_of(const tr_model *m, int *along)
{
    tr_onnx_sequence s = {.rows = mark_inputs(m, along)};
    for (size_t i = 0; i < m->nlayers && s.rows > 0; i++) {
        const tr_layer *l = &m->layers[i];
        bool any = false;
        for (int k = 0; k < l->nin; k++) any = any || along[l->in[k]] != 0;
        if (!any) continue;
        tie_inputs(m, l, along);
        along[m->ninputs + i] = along_after(l, along[l->in[0]]);
        s.why = obstacle(m, l, along);
        if (!s.why) continue;
        s.layer = l;
        memset(along, 0, (m->ninputs + m->nlayers) * sizeof *along);
        return s;
    }
    return s;
}

tr_status tr_onnx_find_sequence(const tr_model *m, tr_onnx_sequence *out)
{
    int *along = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *along);
    if (!along) return tr_last_status();
    *out = tr_onnx_sequence_of(m, along);
    tr_free(along);
    return TR_OK;
}

const char *tr_onnx_any_rows(const tr_layer *l)
{
    (void)l;
    return NULL;
}

/* ---- Writing --------------------------------------------------------------------------------- */

int tr_onnx_along(const tr_onnx_writer *w, int input)
{
    return w->along[w->layer->in[input]];
}

const char *tr_onnx_symbol(tr_onnx_writer *w, int along)
{
    const tr_model *m = w->n->model;
    int first = 0;
    while (!w->along[first]) first++;
    if (along == 1 + first) return TR_ONNX_SEQUENCE;
    return tr_pool_text(&w->pool, TR_ONNX_SEQUENCE "_%s", m->inputs[along - 1].name);
}

/* (1): the rows of this call's sequences. */
static const char *length_of(tr_onnx_writer *w, int along)
{
    const tr_layer *layer = w->layer;
    const int64_t second = 1;
    const char **length = &w->length[along - 1];
    if (*length) return *length;
    const char *name = tr_onnx_symbol(w, along), *shape = tr_pool_text(&w->pool, "%s_shape", name),
               *axis = tr_pool_text(&w->pool, "%s_axis", name);
    w->layer = NULL; /* it is the graph's */
    *length =
        tr_onnx_chain(w, "Gather", name,
                      tr_onnx_chain(w, "Shape", shape, w->n->model->inputs[along - 1].name, NULL),
                      tr_onnx_int64s(w, axis, 1, &second));
    w->layer = layer;
    return *length;
}

const char *tr_onnx_cut(tr_onnx_writer *w, const char *what, const char *table, int along)
{
    const int64_t zero = 0;
    const char *y, *first = tr_onnx_int64s(w, "sequence_first", 1, &zero);
    tr_onnx_add(w, "Slice", what, TR_NAMES(table, first, length_of(w, along), first), NULL, &y);
    return y;
}

/* ---- Reading --------------------------------------------------------------------------------- */

tr_status tr_onnx_sequence_said(tr_onnx_reader *r)
{
    for (size_t i = 0; i < r->model->n_metadata_props; i++) {
        const Onnx__StringStringEntryProto *e = r->model->metadata_props[i];
        if (!e->key || !e->value || strcmp(e->key, LENGTH_KEY) != 0) continue;
        char *end;
        errno = 0;
        const long long rows = strtoll(e->value, &end, 10); /* of any size, as numbers of shapes */
        if (*end || end == e->value || errno || rows < 2)
            return TR_FAIL(TR_DATA, "%s: " LENGTH_KEY " is \"%.32s\": expected 2 or more", r->path,
                           e->value);
        r->sequence = rows;
    }
    return TR_OK;
}

int64_t tr_onnx_sequence_dim(const tr_onnx_reader *r, const Onnx__TensorShapeProto__Dimension *d)
{
    if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) return d->dim_value;
    if (d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM || !d->dim_param)
        return 0;
    const size_t n = strlen(TR_ONNX_SEQUENCE);
    const bool ours = strncmp(d->dim_param, TR_ONNX_SEQUENCE, n) == 0 &&
                      (d->dim_param[n] == 0 || d->dim_param[n] == '_');
    return ours ? r->sequence : 0;
}

/* The dimensions of an input of the graph, the batch first. */
static const tr_onnx_const *input_shape(tr_onnx_reader *r, int value)
{
    const Onnx__GraphProto *g = r->model->graph;
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__ValueInfoProto *v = g->input[i];
        if (!v->name || strcmp(v->name, r->values[value].name) != 0) continue;
        const bool tensor = v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
        const Onnx__TensorShapeProto *s = tensor ? v->type->tensor_type->shape : NULL;
        int64_t *dims = NULL;
        float *none = NULL;
        tr_onnx_const *c =
            s && s->n_dim > 1 && s->n_dim <= TR_ONNX_RANK
                ? tr_onnx_const_new(r, 1, (int64_t[]){(int64_t)s->n_dim}, &none, &dims)
                : NULL;
        for (size_t d = 0; c && d < s->n_dim; d++) {
            dims[d] = d ? tr_onnx_sequence_dim(r, s->dim[d]) : TR_ONNX_BATCH;
            if (d && dims[d] < 1) return NULL;
        }
        return c;
    }
    return NULL;
}

/* The constant that the step leaves as it is: all its rows are taken. */
static const tr_onnx_const *uncut(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    int64_t v[3];
    for (int k = 0; k < 3; k++) {
        const tr_onnx_const *n = tr_onnx_const_in(r, s, 1 + k);
        if (!c || s->nin != 4 || !n || !n->i || n->count != 1) return NULL;
        v[k] = n->i[0];
    }
    return c->ndim > 0 && v[0] == 0 && v[1] == c->dims[0] && v[2] == 0 ? c : NULL;
}

bool tr_onnx_fold_sequence(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = NULL;
    if (r->sequence == 0) return false;
    if (strcmp(s->type, "Slice") == 0) c = uncut(r, s);
    if (strcmp(s->type, "Shape") == 0 && s->nin == 1 && s->in[0] >= 0 &&
        s->proto->n_attribute == 0 && r->values[s->in[0]].maker < 0 &&
        r->values[s->in[0]].kind == TR_ONNX_NOTHING) {
        c = input_shape(r, s->in[0]);
        if (c) r->values[s->in[0]].uses--; /* its values are not read */
    }
    if (c) tr_onnx_give_const(r, s, c);
    return c != NULL;
}
