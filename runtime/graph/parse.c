/* A config's model: its inputs, its tree of layers, expanded into the flat list, and its loss,
 * given to the maker of models one after the other. */
#include "runtime/graph/facts.h"
#include "runtime/graph/parse.h"

#include <stdlib.h>
#include <string.h>

static tr_status read_dims(const tr_node *n, size_t *count, int64_t dims[TR_LIST_MAX])
{
    if (n->kind != TR_NODE_LIST || n->count == 0 || n->count > TR_LIST_MAX)
        return tr_node_fail(n, "an input's dimensions are a list, such as [3, 32, 32]");
    for (size_t i = 0; i < n->count; i++) {
        const tr_node *v = n->values[i];
        char *end = NULL;
        long long d = v->kind == TR_NODE_SCALAR && !v->quoted ? strtoll(v->text, &end, 10) : 0;
        if (d < 1 || d > INT32_MAX || *end)
            return tr_node_fail(v, "a dimension is a whole number from 1%s%s",
                                v->kind == TR_NODE_SCALAR ? ", not " : "",
                                v->kind == TR_NODE_SCALAR ? v->text : "");
        dims[i] = d;
    }
    *count = n->count;
    return TR_OK;
}

static tr_status parse_inputs(tr_maker *mk, const tr_config *c)
{
    tr_status st = TR_OK;
    int value;
    const tr_node *inputs = c->model.inputs;
    const tr_node *model = tr_node_get(c->document.root, "model");
    const tr_node *at = inputs ? inputs : model ? model : c->model.layers;
    size_t n = inputs ? inputs->count : 1;
    if (inputs && (inputs->kind != TR_NODE_MAP || n == 0 || n > TR_MAX_IN || c->model.input.count))
        return tr_node_fail(at,
                            "model.inputs is a map of 1 to %d names to their dimensions, and "
                            "stands in place of model.input",
                            TR_MAX_IN);
    if (!inputs && c->model.input.count == 0)
        return tr_node_fail(at, "model.input is missing: the dimensions of one sample");
    if (!inputs)
        return tr_make_input(mk, at, "input", c->model.input.count, c->model.input.v, &value);
    for (size_t i = 0; i < n; i++) {
        size_t ndim = 0;
        int64_t dims[TR_LIST_MAX];
        TR_TRY(read_dims(inputs->values[i], &ndim, dims));
        TR_TRY(tr_make_input(mk, inputs->keys[i], inputs->keys[i]->text, ndim, dims, &value));
    }
out:
    return st;
}

/* The sum has the residual's name and place. */
static tr_status append_sum(tr_maker *mk, const tr_layer *l, const tr_node *at, const int in[2],
                            int *output)
{
    tr_status st = TR_OK;
    tr_layer sum = {.def = tr_op_sum()};
    snprintf(sum.name, sizeof sum.name, "%s", l->name);
    sum.where = tr_strdup(l->where);
    if (!sum.where) return tr_last_status();
    TR_TRY(tr_type_read(mk, &sum, at, NULL));
    TR_TRY(tr_make_inputs(mk, &sum, 2, in, 0));
    return tr_make_append(mk, &sum, output);
out:
    tr_type_free(&sum);
    return st;
}

static tr_status parse_residual(tr_parser *p, const tr_layer *l, const tr_node *at, int *output)
{
    const tr_residual_attrs *a = l->attrs;
    tr_maker *mk = p->mk;
    bool opened = tr_maker_open_block(mk);
    int body = l->in[0], shortcut = l->in[0];
    tr_status st = TR_OK;
    TR_TRY(tr_parse_list(p, a->body, l->in[0], &body));
    if (a->shortcut && (a->shortcut->kind != TR_NODE_LIST || a->shortcut->count))
        TR_TRY(tr_parse_list(p, a->shortcut, l->in[0], &shortcut));
    tr_shape x = tr_value_shape(mk, body), y = tr_value_shape(mk, shortcut);
    if (!tr_shape_equal(&x, &y)) {
        char tx[TR_SHAPE_TEXT], ty[TR_SHAPE_TEXT];
        st = tr_layer_fail(l, TR_SHAPE, "its body gives %s, its shortcut %s", tr_shape_text(&x, tx),
                           tr_shape_text(&y, ty));
        goto out;
    }
    TR_TRY(append_sum(mk, l, at, (int[]){body, shortcut}, output));
    if (opened) tr_maker_close_block(mk);
out:
    return st;
}

/* The names that a repeat's parameters and values are bound by, and how often there are layers. */
static tr_status repeat_times(const tr_layer *l, const tr_repeat_attrs *a, int64_t *times)
{
    const size_t n = a->params && a->params->kind == TR_NODE_LIST ? a->params->count : 0;
    *times = a->times;
    if (!a->params != !a->values)
        return tr_layer_fail(l, TR_CONFIG, "params and values belong together");
    if (!a->params && a->times < 0)
        return tr_layer_fail(l, TR_CONFIG, "times is missing: how often");
    if (!a->params) return TR_OK;
    if (a->times >= 0)
        return tr_layer_fail(l, TR_CONFIG,
                             "there are as many times as values: no times beside them");
    if (n == 0 || n > TR_PARAMETERS)
        return tr_node_fail(a->params, "params: a list of 1 to %d names", TR_PARAMETERS);
    for (size_t i = 0; i < n; i++)
        if (a->params->values[i]->kind != TR_NODE_SCALAR ||
            !tr_parameter_valid(a->params->values[i]->text))
            return tr_node_fail(a->params->values[i],
                                "a parameter's name has letters, digits and _ only");
    if (a->values->kind != TR_NODE_LIST || a->values->count > TR_LAYERS_MAX)
        return tr_node_fail(a->values, "values: a list with an element for each time");
    for (size_t i = 0; i < a->values->count; i++) {
        const tr_node *v = a->values->values[i];
        if (n > 1 && (v->kind != TR_NODE_LIST || v->count != n))
            return tr_node_fail(v, "a list of %zu values, one for each of the params", n);
    }
    *times = (int64_t)a->values->count;
    return TR_OK;
}

/* The layers of one time, with its values in them. */
static tr_status bind_time(tr_parser *p, const tr_repeat_attrs *a, size_t i, const tr_node **layers)
{
    tr_parameter bound[TR_PARAMETERS];
    *layers = a->layers;
    if (!a->params) return TR_OK;
    const tr_node *v = a->values->values[i];
    const size_t n = a->params->count;
    for (size_t k = 0; k < n; k++)
        bound[k] = (tr_parameter){a->params->values[k]->text, n > 1 ? v->values[k] : v};
    return tr_template_bind(p->t, a->layers, bound, n, layers);
}

/* One time of a repeat, whose name stands in front of names inside. */
static tr_status parse_time(tr_parser *p, const tr_layer *l, int64_t i, const tr_node *layers,
                            int *output)
{
    const tr_repeat_attrs *a = l->attrs;
    tr_maker *mk = p->mk;
    tr_status st = TR_OK;
    tr_scope scope;
    char text[TR_NAME + 24];
    const tr_node *one =
        layers->kind == TR_NODE_LIST && layers->count == 1 ? layers->values[0] : NULL;
    if (a->names == TR_NAMES_NONE) return tr_parse_list(p, layers, *output, output);
    if (a->names == TR_NAMES_SUFFIX) {
        snprintf(text, sizeof text, ".%lld", (long long)i + 1);
        TR_TRY(tr_scope_open(mk, &scope, l, NULL, text));
        st = tr_parse_list(p, layers, *output, output);
    } else if (one && tr_define_unnamed(p, one)) {
        TR_TRY(tr_scope_open(mk, &scope, l, l->name, NULL));
        snprintf(text, sizeof text, "%lld", (long long)i);
        st = tr_parse_item(p, one, text, *output, output);
    } else {
        snprintf(text, sizeof text, "%s.%lld", l->name, (long long)i);
        TR_TRY(tr_scope_open(mk, &scope, l, text, NULL));
        st = tr_parse_list(p, layers, *output, output);
    }
    tr_scope_close(mk);
out:
    return st;
}

static tr_status parse_repeat(tr_parser *p, const tr_layer *l, int *output)
{
    const tr_repeat_attrs *a = l->attrs;
    tr_maker *mk = p->mk;
    tr_status st = TR_OK;
    int64_t times;
    tr_counter before[TR_COUNTERS];
    memcpy(before, mk->counters, sizeof before);
    TR_TRY(repeat_times(l, a, &times));
    *output = l->in[0];
    for (int64_t i = 0; i < times; i++) {
        const tr_node *layers;
        TR_TRY(bind_time(p, a, (size_t)i, &layers));
        /* The text is read again, so its layers get the same numbers again. */
        if (a->names != TR_NAMES_NONE) memcpy(mk->counters, before, sizeof before);
        if (a->names == TR_NAMES_PATH) memset(mk->counters, 0, sizeof mk->counters);
        bool opened = tr_maker_open_block(mk);
        TR_TRY(parse_time(p, l, i, layers, output));
        if (opened) tr_maker_close_block(mk);
    }
    if (a->names == TR_NAMES_PATH) memcpy(mk->counters, before, sizeof before);
    st = tr_name_add(mk, l->where, l->name, *output);
out:
    return st;
}

static tr_status parse_block(tr_parser *p, const tr_layer *l, int *output)
{
    tr_status st = TR_OK;
    bool opened = tr_maker_open_block(p->mk);
    TR_TRY(tr_parse_list(p, ((const tr_block_attrs *)l->attrs)->layers, l->in[0], output));
    if (opened) tr_maker_close_block(p->mk);
    if (((const tr_common *)l->storage)->name) st = tr_name_add(p->mk, l->where, l->name, *output);
out:
    return st;
}

const tr_node *tr_item_type(const tr_node *item, const tr_node **options)
{
    const tr_node *word = item;
    *options = NULL;
    if (item->kind == TR_NODE_MAP && item->count == 1) {
        word = item->keys[0];
        const tr_node *v = item->values[0];
        bool empty = v->kind == TR_NODE_SCALAR && !v->quoted && v->text[0] == '\0';
        if (!empty) *options = v;
    }
    return word->kind == TR_NODE_SCALAR && word->text[0] ? word : NULL;
}

/* What a list item names: one of the config's blocks, else a layer type. */
static tr_status type_of(tr_parser *p, const tr_node *item, tr_define **define,
                         const tr_op_def **type, const tr_node **options)
{
    const tr_node *word = tr_item_type(item, options);
    if (!word) return tr_node_fail(item, "a layer is a name, or a map of one name to its options");
    *define = tr_define_find(p, word->text);
    *type = *define ? NULL : tr_type_find(word->text);
    if (*type || *define) return TR_OK;
    const char *near = tr_define_nearest(p, word->text);
    if (!near) near = tr_type_nearest(word->text);
    return near ? tr_node_fail(word, "unknown layer \"%s\": did you mean \"%s\"?", word->text, near)
                : tr_node_fail(word, "unknown layer \"%s\"", word->text);
}

tr_status tr_parse_item(tr_parser *p, const tr_node *item, const char *name, int before,
                        int *output)
{
    tr_layer l = {0};
    const tr_op_def *type = NULL;
    const tr_node *options, *at = item->kind == TR_NODE_MAP && item->count ? item->keys[0] : item;
    tr_define *define = NULL;
    tr_status st = TR_OK;
    if (p->items++ > TR_ITEMS_MAX)
        return tr_node_fail(at, "the layers are repeated more than %d times in all", TR_ITEMS_MAX);
    TR_TRY(type_of(p, item, &define, &type, &options));
    if (define) return tr_define_use(p, define, at, options, name, before, output);
    TR_TRY(tr_make_begin(p->mk, &l, type, at, NULL, options));
    TR_TRY(tr_make_inputs(p->mk, &l, 0, NULL, before));
    if (type == &tr_type_residual)
        st = parse_residual(p, &l, at, output);
    else if (type == &tr_type_repeat)
        st = parse_repeat(p, &l, output);
    else if (type == &tr_type_block)
        st = parse_block(p, &l, output);
    else if (type == &tr_type_lstm || type == &tr_type_gru)
        st = tr_parse_recurrent(p, &l, output);
    else if (type == &tr_type_patch_embedding)
        st = tr_parse_patches(p, &l, output);
    else if (type == &tr_type_transformer)
        st = tr_parse_transformer(p, &l, output);
    else
        return tr_make_append(p->mk, &l, output);
out:
    tr_type_free(&l);
    return st;
}

tr_status tr_parse_list(tr_parser *p, const tr_node *list, int value, int *output)
{
    tr_status st = TR_OK;
    if (list->kind != TR_NODE_LIST || list->count == 0)
        return tr_node_fail(list, "a list of layers was expected");
    if (++p->depth > 32) return tr_node_fail(list, "layers are nested too deep");
    for (size_t i = 0; i < list->count; i++)
        TR_TRY(tr_parse_item(p, list->values[i], NULL, value, &value));
    *output = value;
    p->depth--;
out:
    return st;
}

tr_status tr_parse_written(tr_parser *p, const tr_layer *l, const char *path, char *text, int input,
                           int *output)
{
    tr_maker *mk = p->mk;
    tr_status st = TR_OK;
    tr_scope scope;
    tr_document doc = {0};
    tr_counter before[TR_COUNTERS];
    TR_NEED(text, TR_MEMORY, "no memory for layer \"%s\"", l->name);
    TR_TRY(tr_document_parse(l->where, text, strlen(text), &doc));
    tr_document_written(&doc);
    TR_TRY(tr_scope_open(mk, &scope, l, path, NULL));
    scope.input = input;
    if (l->nin > 1) scope.lengths = l->in[1];
    memcpy(before, mk->counters, sizeof before);
    memset(mk->counters, 0, sizeof mk->counters);
    const bool opened = tr_maker_open_block(mk);
    st = tr_parse_list(p, doc.root, input, output);
    if (st == TR_OK && opened) tr_maker_close_block(mk);
    memcpy(mk->counters, before, sizeof before);
    tr_scope_close(mk);
out:
    tr_document_close(&doc);
    free(text);
    return st;
}

/* As model.sketch says it. Takes the model. */
static tr_status sketch(const tr_config *c, size_t bucket_bytes, tr_model **m)
{
    const tr_sketch_config *o = &c->model.sketch;
    const tr_sketch_choice choice = {o->match, o->terms, o->rank};
    tr_sketching s = {*m, &choice};
    tr_status st;
    bool any = false;
    TR_TRY(tr_sketch_check(&s, "model.sketch.match"));
    for (size_t i = 0; i < (*m)->nlayers; i++) any |= tr_sketch_chosen(&s, &(*m)->layers[i]);
    TR_REQUIRE(any, "model.sketch",
               "terms: %lld, rank: %lld: there is no layer whose sketch takes less arithmetic: "
               "smaller ones, or match, which names layers",
               (long long)o->terms, (long long)o->rank);
    tr_model *dense = *m;
    *m = NULL;
    st = tr_model_copy(dense, tr_sketch_edit, &s, bucket_bytes, m);
    tr_model_close(dense);
out:
    return st;
}

/* What fails without a layer's place is how many weights the loss has; the text has their key. */
static tr_status blame_weights(const tr_config *config, tr_status st)
{
    if (st != TR_SHAPE || tr_last_error()->place != 0) return st;
    const bool classes = config->model.loss.class_weights.count > 0;
    const tr_node *loss = tr_node_get(tr_node_get(config->document.root, "model"), "loss");
    const tr_node *kind = tr_node_get(loss, classes ? "cross_entropy" : "bce");
    const tr_node *weights = tr_node_get(kind, classes ? "class_weights" : "pos_weight");
    return tr_node_blame(weights ? weights : loss, st);
}

tr_status tr_model_open(const tr_config *config, size_t bucket_bytes, tr_model **out)
{
    tr_status st = TR_OK;
    tr_parser p = {0};
    tr_model *m = NULL;
    const tr_node *layers;
    int output;
    TR_TRY(tr_maker_open((tr_init_kind)config->model.init, &p.mk));
    TR_TRY(parse_inputs(p.mk, config));
    TR_TRY(tr_template_open(&p.t));
    TR_TRY(tr_defines_read(&p, config));
    TR_TRY(tr_template_bind(p.t, config->model.layers, p.params, p.nparams, &layers));
    TR_TRY(tr_parse_list(&p, layers, 0, &output));
    tr_loss_config loss = config->model.loss;
    if (tr_config_balances(config)) loss.class_weights.count = 0; /* shapes are known without */
    loss.weighted = config->data.train.weights || config->data.eval.weights;
    TR_TRY(blame_weights(config, tr_maker_loss(p.mk, &loss)));
    TR_TRY(tr_maker_finish(p.mk, bucket_bytes, &m));
    TR_TRY(tr_graph_passes_of(config->model.skip_passes, "model.skip_passes", &m->skip_passes));
    if (config->model.sketch.present) TR_TRY(sketch(config, bucket_bytes, &m));
    tr_model_warn_padding(m);
    *out = m;
    m = NULL;
out:
    tr_model_close(m);
    tr_maker_close(p.mk);
    tr_template_close(p.t);
    return st;
}
