/* From a network to the message that is its file: inputs, the nodes of each layer, the output. */
#include "optimize/onnx/ops/ops.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

/* ---- Inputs and outputs ---------------------------------------------------------------------- */

static Onnx__TensorShapeProto__Dimension *dimension(tr_pool *p, int64_t value, const char *name)
{
    Onnx__TensorShapeProto__Dimension *d =
        TR_MESSAGE(p, Onnx__TensorShapeProto__Dimension, ONNX__TENSOR_SHAPE_PROTO__DIMENSION__INIT);
    if (!d) return NULL;
    d->value_case = name ? ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM
                         : ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    if (name)
        d->dim_param = tr_pool_copy(p, name);
    else
        d->dim_value = value;
    return d;
}

/* (batch, ...) with any batch; or (batch, sequence, ...), (batch, ..., sequence). */
static Onnx__ValueInfoProto *value_info(tr_onnx_writer *w, const char *name, int type, int ndim,
                                        const int64_t *dims, int along)
{
    tr_pool *p = &w->pool;
    const char *any = along ? tr_onnx_symbol(w, abs(along)) : NULL;
    const int at = along < 0; /* dimension */
    Onnx__ValueInfoProto *v = TR_MESSAGE(p, Onnx__ValueInfoProto, ONNX__VALUE_INFO_PROTO__INIT);
    Onnx__TypeProto *t = TR_MESSAGE(p, Onnx__TypeProto, ONNX__TYPE_PROTO__INIT);
    Onnx__TypeProto__Tensor *tensor =
        TR_MESSAGE(p, Onnx__TypeProto__Tensor, ONNX__TYPE_PROTO__TENSOR__INIT);
    Onnx__TensorShapeProto *s =
        TR_MESSAGE(p, Onnx__TensorShapeProto, ONNX__TENSOR_SHAPE_PROTO__INIT);
    if (p->st != TR_OK) return NULL;
    tr_pool_push(p, &s->dim, &s->n_dim, dimension(p, 0, "batch"));
    for (int i = 0; i < ndim; i++)
        tr_pool_push(p, &s->dim, &s->n_dim, dimension(p, dims[i], i == at ? any : NULL));
    tensor->has_elem_type = true;
    tensor->elem_type = type;
    tensor->shape = s;
    t->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    t->tensor_type = tensor;
    v->name = tr_pool_copy(p, name);
    v->type = t;
    return v;
}

/* What data.normalize says of an input; NULL: nothing. */
static const tr_normalize_config *stats_of(const tr_config *c, const tr_input *in)
{
    for (size_t i = 0; c && i < c->data.normalize.count; i++) {
        const tr_normalize_config *n = &c->data.normalize.inputs[i];
        if (n->input ? strcmp(n->input, in->name) == 0 : in->ids == 0) return n;
    }
    return NULL;
}

/* One value for all, or one a channel of an image, a feature of anything else. */
static const char *statistic(tr_onnx_writer *w, const char *what, const char *of,
                             tr_tensor_layout layout, const tr_reals *r)
{
    float *v = tr_pool_get(&w->pool, r->count, sizeof *v);
    for (size_t i = 0; v && i < r->count; i++) v[i] = (float)r->v[i];
    const int64_t dims[] = {(int64_t)r->count, 1, 1};
    const int ndim = r->count == 1 ? 0 : layout == TR_LAYOUT_CHANNELS_LAST ? 3 : 1;
    return tr_onnx_floats(w, tr_pool_text(&w->pool, "%s/%s", of, what), ndim, dims, v);
}

/* (x - mean) / std in front of the layers. */
static char *normalized(tr_onnx_writer *w, const tr_input *in, const tr_normalize_config *c)
{
    const char *y = in->name;
    const tr_reals *const of[2] = {&c->mean, &c->std};
    for (int i = 0; i < 2 && w->pool.st == TR_OK; i++) {
        if (of[i]->count == 0) continue;
        const char *operand = statistic(w, i ? "std" : "mean", in->name, in->layout, of[i]);
        tr_onnx_add(w, i ? "Div" : "Sub",
                    tr_pool_text(&w->pool, "%s/%s", in->name, i ? "normal" : "centered"),
                    TR_NAMES(y, operand), NULL, &y);
    }
    return (char *)y;
}

static void add_inputs(tr_onnx_writer *w)
{
    const tr_model *m = w->n->model;
    for (size_t i = 0; i < m->ninputs; i++) {
        const tr_input *in = &m->inputs[i];
        const int type = in->ids > 0 ? ONNX__TENSOR_PROTO__DATA_TYPE__INT64
                                     : ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
        const tr_normalize_config *stats = w->o->normalize ? stats_of(w->o->config, in) : NULL;
        tr_pool_push(&w->pool, &w->graph->input, &w->graph->n_input,
                     value_info(w, in->name, type, in->ndim, in->dims, w->along[i]));
        if (stats) w->values[i] = normalized(w, in, stats);
    }
}

/* ---- What the file says of itself ------------------------------------------------------------ */

static void add_property(tr_onnx_writer *w, const char *key, const char *value)
{
    tr_pool *p = &w->pool;
    Onnx__StringStringEntryProto *e =
        TR_MESSAGE(p, Onnx__StringStringEntryProto, ONNX__STRING_STRING_ENTRY_PROTO__INIT);
    if (!e) return;
    e->key = tr_pool_copy(p, key);
    e->value = tr_pool_copy(p, value);
    tr_pool_push(p, &w->model->metadata_props, &w->model->n_metadata_props, e);
}

static tr_status add_config(tr_onnx_writer *w)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for a config's text");
    tr_status st = tr_model_write_config(w->n->model, w->o->config, f);
    if (fclose(f) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a config's text");
    if (st == TR_OK) add_property(w, "trireme.config", text);
    free(text);
    return st;
}

/* ": mean [0.5], std [0.25, 0.5]"; of many values how many, which the config has. */
static void write_statistic(FILE *to, const char *what, const tr_reals *r)
{
    enum { SHOWN = 8 };
    char number[32];
    if (r->count == 0) return;
    fprintf(to, " %s ", what);
    if (r->count > SHOWN) fprintf(to, "(%zu values)", r->count);
    for (size_t i = 0; i < r->count && r->count <= SHOWN; i++)
        fprintf(to, "%s%s%s", i ? ", " : "[", tr_format_real(r->v[i], number),
                i + 1 == r->count ? "]" : "");
}

/* What data.normalize_targets says; NULL: nothing. */
static const tr_normalize_config *targets_of(const tr_onnx_options *o)
{
    const tr_normalize_config *c = o->config ? &o->config->data.normalize_targets.stats : NULL;
    return c && c->mean.count + c->std.count > 0 ? c : NULL;
}

tr_status tr_onnx_outputs_text(const tr_onnx_options *o, char **out)
{
    const tr_normalize_config *c = targets_of(o);
    char *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (!c) return TR_OK;
    FILE *f = open_memstream(&text, &n);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for a text");
    if (o->normalize) {
        fputs(TR_ONNX_TARGETS, f);
    } else {
        fputs("normalized targets, y * std + mean is what the data files have:", f);
        write_statistic(f, "mean", &c->mean);
        write_statistic(f, "std", &c->std);
    }
    if (fclose(f) != 0 || !text) {
        free(text);
        return TR_FAIL(TR_MEMORY, "out of memory for a text");
    }
    *out = tr_strdup(text);
    free(text);
    return *out ? TR_OK : tr_last_status();
}

static void write_inputs(FILE *to, const tr_model *m, const tr_onnx_options *o)
{
    size_t normal = 0;
    for (size_t i = 0; i < m->ninputs; i++) {
        const tr_normalize_config *c = stats_of(o->config, &m->inputs[i]);
        if (!c) continue;
        if (!o->normalize) {
            fprintf(to, "%s%s with",
                    normal ? "; " : "normalized, (x - mean) / std: ", m->inputs[i].name);
            write_statistic(to, "mean", &c->mean);
            write_statistic(to, "std", &c->std);
        }
        normal++;
    }
    if (normal == 0 || o->normalize)
        fprintf(to, "as the data files have them%s",
                normal ? "; data.normalize is in the graph" : "");
}

tr_status tr_onnx_inputs_text(const tr_model *m, const tr_onnx_options *o, char **out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for a text");
    write_inputs(f, m, o);
    if (fclose(f) != 0 || !text) {
        free(text);
        return TR_FAIL(TR_MEMORY, "out of memory for a text");
    }
    *out = tr_strdup(text);
    free(text);
    return *out ? TR_OK : tr_last_status();
}

static tr_status add_texts(tr_onnx_writer *w)
{
    char *inputs = NULL, *outputs = NULL;
    tr_status st = tr_onnx_inputs_text(w->n->model, w->o, &inputs);
    if (st == TR_OK) st = tr_onnx_outputs_text(w->o, &outputs);
    if (st == TR_OK) add_property(w, "trireme.inputs", inputs);
    if (outputs) add_property(w, "trireme.outputs", outputs);
    tr_free(inputs);
    tr_free(outputs);
    return st;
}

/* Whose rows are any number; how many the model has, for those who read it back. */
static void add_sequence(tr_onnx_writer *w)
{
    if (w->o->fixed_sequence) return;
    const tr_onnx_sequence s = tr_onnx_sequence_of(w->n->model, w->along);
    if (s.rows > 0 && !s.layer)
        add_property(w, "trireme." TR_ONNX_SEQUENCE,
                     tr_pool_text(&w->pool, "%lld", (long long)s.rows));
}

/* The version of the messages that an operator set came with. */
static int64_t ir_version(int64_t opset)
{
    return opset < 15 ? 7 : opset < 19 ? 8 : opset < 21 ? 9 : 10;
}

static tr_status open_model(tr_onnx_writer *w)
{
    tr_pool *p = &w->pool;
    const tr_model *m = w->n->model;
    w->model = TR_MESSAGE(p, Onnx__ModelProto, ONNX__MODEL_PROTO__INIT);
    w->graph = TR_MESSAGE(p, Onnx__GraphProto, ONNX__GRAPH_PROTO__INIT);
    w->values = tr_pool_get(p, m->ninputs + m->nlayers, sizeof *w->values);
    w->rows = tr_pool_get(p, m->nparams, sizeof *w->rows);
    w->along = tr_pool_get(p, m->ninputs + m->nlayers, sizeof *w->along);
    Onnx__OperatorSetIdProto *set =
        TR_MESSAGE(p, Onnx__OperatorSetIdProto, ONNX__OPERATOR_SET_ID_PROTO__INIT);
    if (p->st != TR_OK) return p->st;
    for (size_t i = 0; i < m->ninputs + m->nlayers; i++)
        w->values[i] = i < m->ninputs ? m->inputs[i].name : m->layers[i - m->ninputs].name;
    set->domain = tr_pool_copy(p, "");
    set->has_version = true;
    set->version = w->opset;
    tr_pool_push(p, &w->model->opset_import, &w->model->n_opset_import, set);
    w->model->has_ir_version = true;
    w->model->ir_version = ir_version(w->opset);
    w->model->producer_name = tr_pool_copy(p, "trireme");
    w->model->producer_version = tr_pool_copy(p, TR_VERSION);
    w->model->graph = w->graph;
    w->graph->name =
        tr_pool_copy(p, w->o->config && w->o->config->name ? w->o->config->name : "model");
    add_property(w, "trireme.version", TR_VERSION);
    if (w->o->source_sha256) add_property(w, "trireme.source_sha256", w->o->source_sha256);
    add_sequence(w);
    if (!w->o->config) return TR_OK;
    const tr_status st = add_texts(w);
    return st == TR_OK ? add_config(w) : st;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static tr_status add_layer(tr_onnx_writer *w, const tr_layer *l)
{
    const size_t ninputs = w->n->model->ninputs;
    const char *in[TR_MAX_IN], *type = tr_op_def_name(l->def), *why = tr_onnx_missing(type);
    if (why)
        return TR_FAIL(TR_UNSUPPORTED, "layer \"%s\" (%s) cannot be said in ONNX: %s", l->name,
                       type, why);
    for (int k = 0; k < l->nin; k++) in[k] = w->values[l->in[k]];
    w->layer = l;
    tr_onnx_layer_of(type)->write(w, l, in, w->values[ninputs + (size_t)l->index]);
    return w->pool.st;
}

/* y * std + mean behind the layers; the sum has the last one's name. */
static void denormalize(tr_onnx_writer *w, const tr_layer *last, const tr_normalize_config *c,
                        const char *y)
{
    double one = 1, none = 0;
    const tr_reals unit = {.count = 1, .v = &one}, zero = {.count = 1, .v = &none};
    const tr_tensor_layout layout = w->n->model->target_layout;
    w->layer = NULL;
    const char *std = statistic(w, "std", last->name, layout, c->std.count > 0 ? &c->std : &unit);
    const char *mean =
        statistic(w, "mean", last->name, layout, c->mean.count > 0 ? &c->mean : &zero);
    tr_onnx_add(w, "Mul", tr_pool_text(&w->pool, "%s/scaled", last->name), TR_NAMES(y, std), NULL,
                &y);
    tr_onnx_add(w, "Add", tr_pool_text(&w->pool, "%s/targets", last->name), TR_NAMES(y, mean),
                last->name, NULL);
}

static tr_status add_layers(tr_onnx_writer *w)
{
    const tr_model *m = w->n->model;
    const tr_layer *last = &m->layers[m->nlayers - 1];
    const tr_normalize_config *c = w->o->normalize ? targets_of(w->o) : NULL;
    char **y = &w->values[m->ninputs + m->nlayers - 1];
    if (c) *y = tr_pool_text(&w->pool, "/%s/normal", last->name);
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_status st = add_layer(w, &m->layers[i]);
        if (st != TR_OK) return st;
    }
    if (c) denormalize(w, last, c, *y);
    return w->pool.st;
}

tr_status tr_onnx_write(const char *path, const tr_network *n, const tr_onnx_options *o)
{
    tr_onnx_writer w = {.n = n, .o = o, .opset = o->opset ? o->opset : TR_ONNX_OPSET};
    const tr_model *m = n->model;
    const tr_layer *last = &m->layers[m->nlayers - 1];
    tr_status st = TR_OK;
    TR_NEED(w.opset >= TR_ONNX_OPSET_MIN && w.opset <= TR_ONNX_OPSET_MAX, TR_UNSUPPORTED,
            "opset %lld: %d to %d are written", (long long)w.opset, TR_ONNX_OPSET_MIN,
            TR_ONNX_OPSET_MAX);
    TR_NEED(o->weights == TR_F32 || o->weights == TR_F16, TR_UNSUPPORTED,
            "weights of type %s: float32 and float16 are written", tr_dtype_name(o->weights));
    TR_TRY(open_model(&w));
    add_inputs(&w);
    TR_TRY(add_layers(&w));
    tr_pool_push(&w.pool, &w.graph->output, &w.graph->n_output,
                 value_info(&w, last->name, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, last->output.ndim,
                            last->output.dims, w.along[m->ninputs + m->nlayers - 1]));
    TR_TRY(w.pool.st);
    st = tr_onnx_save(path, w.model, o, &w.pool);
out:
    tr_pool_close(&w.pool);
    return st;
}
