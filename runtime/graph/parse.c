/* A config's model: its inputs, its tree of layers, expanded into the flat list, and its loss, given
 * to the maker of models one after the other. */
#include "runtime/graph/maker.h"

#include <stdlib.h>
#include <string.h>

/* The depth of lists in lists. */
typedef struct {
    tr_maker *mk;
    int depth;
} parser;

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

static tr_status parse_list(parser *p, const tr_node *list, int value, int *output);

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

static tr_status parse_residual(parser *p, const tr_layer *l, const tr_node *at, int *output)
{
    const tr_residual_attrs *a = l->attrs;
    tr_maker *mk = p->mk;
    bool opened = tr_maker_open_block(mk);
    int body = l->in[0], shortcut = l->in[0];
    tr_status st = TR_OK;
    TR_TRY(parse_list(p, a->body, l->in[0], &body));
    if (a->shortcut && (a->shortcut->kind != TR_NODE_LIST || a->shortcut->count))
        TR_TRY(parse_list(p, a->shortcut, l->in[0], &shortcut));
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

static tr_status parse_repeat(parser *p, const tr_layer *l, int *output)
{
    const tr_repeat_attrs *a = l->attrs;
    tr_maker *mk = p->mk;
    tr_status st = TR_OK;
    size_t outer = strlen(mk->suffix);
    tr_counter before[TR_COUNTERS];
    memcpy(before, mk->counters, sizeof before);
    *output = l->in[0];
    for (int64_t i = 0; i < a->times; i++) {
        /* The text is read again, so its layers get the same numbers again. */
        memcpy(mk->counters, before, sizeof before);
        int n = snprintf(mk->suffix + outer, sizeof mk->suffix - outer, ".%lld", (long long)i + 1);
        if ((size_t)n >= sizeof mk->suffix - outer)
            return tr_layer_fail(l, TR_CONFIG, "repeats stand too deep for names");
        bool opened = tr_maker_open_block(mk);
        TR_TRY(parse_list(p, a->layers, *output, output));
        if (opened) tr_maker_close_block(mk);
    }
    mk->suffix[outer] = '\0';
    st = tr_name_add(mk, l->where, l->name, *output);
out:
    return st;
}

static tr_status parse_block(parser *p, const tr_layer *l, int *output)
{
    tr_status st = TR_OK;
    bool opened = tr_maker_open_block(p->mk);
    TR_TRY(parse_list(p, ((const tr_block_attrs *)l->attrs)->layers, l->in[0], output));
    if (opened) tr_maker_close_block(p->mk);
    if (((const tr_common *)l->storage)->name) st = tr_name_add(p->mk, l->where, l->name, *output);
out:
    return st;
}

/* The type and options of a list item: `relu`, or `conv2d: {...}`. *options NULL: none written. */
static tr_status type_of(const tr_node *item, const tr_op_def **type, const tr_node **options)
{
    const tr_node *word = item;
    *options = NULL;
    if (item->kind == TR_NODE_MAP && item->count == 1) {
        word = item->keys[0];
        const tr_node *v = item->values[0];
        bool empty = v->kind == TR_NODE_SCALAR && !v->quoted && v->text[0] == '\0';
        if (!empty) *options = v;
    }
    if (word->kind != TR_NODE_SCALAR || !word->text[0])
        return tr_node_fail(item, "a layer is a name, or a map of one name to its options");
    *type = tr_type_find(word->text);
    if (*type) return TR_OK;
    const char *near = tr_type_nearest(word->text);
    return near ? tr_node_fail(word, "unknown layer \"%s\": did you mean \"%s\"?", word->text, near)
                : tr_node_fail(word, "unknown layer \"%s\"", word->text);
}

static tr_status parse_item(parser *p, const tr_node *item, int before, int *output)
{
    tr_layer l = {0};
    const tr_op_def *type;
    const tr_node *options, *at = item->kind == TR_NODE_MAP && item->count ? item->keys[0] : item;
    tr_status st = TR_OK;
    TR_TRY(type_of(item, &type, &options));
    TR_TRY(tr_make_begin(p->mk, &l, type, at, NULL, options));
    TR_TRY(tr_make_inputs(p->mk, &l, 0, NULL, before));
    if (type == &tr_type_residual)
        st = parse_residual(p, &l, at, output);
    else if (type == &tr_type_repeat)
        st = parse_repeat(p, &l, output);
    else if (type == &tr_type_block)
        st = parse_block(p, &l, output);
    else
        return tr_make_append(p->mk, &l, output);
out:
    tr_type_free(&l);
    return st;
}

static tr_status parse_list(parser *p, const tr_node *list, int value, int *output)
{
    tr_status st = TR_OK;
    if (list->kind != TR_NODE_LIST || list->count == 0)
        return tr_node_fail(list, "a list of layers was expected");
    if (++p->depth > 32) return tr_node_fail(list, "layers are nested too deep");
    for (size_t i = 0; i < list->count; i++) TR_TRY(parse_item(p, list->values[i], value, &value));
    *output = value;
    p->depth--;
out:
    return st;
}

tr_status tr_model_open(const tr_config *config, size_t bucket_bytes, tr_model **out)
{
    tr_status st = TR_OK;
    parser p = {0};
    int output;
    TR_TRY(tr_maker_open((tr_init_kind)config->model.init, &p.mk));
    TR_TRY(parse_inputs(p.mk, config));
    TR_TRY(parse_list(&p, config->model.layers, 0, &output));
    TR_TRY(tr_maker_loss(p.mk, (tr_loss_kind)config->model.loss.kind.which,
                         config->model.loss.label_smoothing, config->model.loss.class_weights.v,
                         config->model.loss.class_weights.count));
    st = tr_maker_finish(p.mk, bucket_bytes, out);
out:
    tr_maker_close(p.mk);
    return st;
}
