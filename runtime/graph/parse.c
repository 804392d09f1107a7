/* The config's inputs and layers to the flat list of layers: structure expanded, names given,
 * inputs found, shapes inferred. A value is a network input or a layer's output (inputs first). */
#include "runtime/graph/maker.h"

#include <stdlib.h>
#include <string.h>

tr_status tr_grow(void *array, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap) return TR_OK;
    size_t bigger = *cap ? *cap * 2 : 16;
    if (bigger < need) bigger = need;
    void *old;
    memcpy(&old, array, sizeof(old));
    void *p = tr_realloc(TR_MEM_OTHER, old, bigger, size);
    if (!p) return TR_MEMORY;
    memcpy(array, &p, sizeof(p));
    *cap = bigger;
    return TR_OK;
}

tr_shape tr_value_shape(const tr_maker *mk, int value)
{
    const tr_model *m = mk->m;
    if ((size_t)value >= m->ninputs) return m->layers[(size_t)value - m->ninputs].output;
    const tr_input *in = &m->inputs[value];
    tr_shape s = {.ndim = in->ndim};
    memcpy(s.dims, in->dims, sizeof(s.dims));
    return s;
}

const char *tr_value_name(const tr_maker *mk, int value)
{
    const tr_model *m = mk->m;
    return (size_t)value < m->ninputs ? m->inputs[value].name
                                      : m->layers[(size_t)value - m->ninputs].name;
}

static tr_status add_input(tr_maker *mk, const tr_node *at, const char *name, size_t ndim,
                           const int64_t *dims)
{
    tr_input *in = &mk->m->inputs[mk->m->ninputs];
    if (ndim == 0 || ndim > TR_MAX_DIMS - 1)
        return tr_node_fail(at, "input \"%s\" has %zu dimensions; 1 to %d are possible", name, ndim,
                            TR_MAX_DIMS - 1);
    tr_shape s = {.ndim = (int)ndim};
    for (size_t i = 0; i < ndim; i++) s.dims[i] = dims[i];
    size_t count;
    if (!tr_shape_count(&s, &count) || count > (SIZE_MAX >> 8))
        return tr_node_fail(at, "input \"%s\" is too large", name);
    in->ndim = s.ndim;
    memcpy(in->dims, s.dims, sizeof(s.dims));
    snprintf(in->name, sizeof(in->name), "%s", name);
    return tr_name_add(mk, at, in->name, (int)mk->m->ninputs++);
}

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

tr_status tr_parse_inputs(tr_maker *mk)
{
    const tr_config *c = mk->config;
    tr_status st = TR_OK;
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
    mk->m->inputs = tr_alloc(TR_MEM_OTHER, n, sizeof(*mk->m->inputs));
    if (!mk->m->inputs) return TR_MEMORY;
    if (!inputs) return add_input(mk, at, "input", c->model.input.count, c->model.input.v);
    for (size_t i = 0; i < n; i++) {
        size_t ndim = 0;
        int64_t dims[TR_LIST_MAX];
        const char *name = inputs->keys[i]->text;
        if (!tr_name_valid(name) || strlen(name) >= TR_LAYER_NAME)
            return tr_node_fail(inputs->keys[i],
                                "an input's name has letters, digits and _.- only");
        TR_TRY(read_dims(inputs->values[i], &ndim, dims));
        TR_TRY(add_input(mk, inputs->keys[i], name, ndim, dims));
    }
out:
    return st;
}

static tr_status parse_list(tr_maker *mk, const tr_node *list, int value, int *output);

/* `from:`, or the value before. */
static tr_status find_inputs(tr_maker *mk, tr_layer *l, int before)
{
    const tr_node *from = ((const tr_common *)l->storage)->from;
    tr_status st = TR_OK;
    size_t n = !from ? 1 : from->kind == TR_NODE_LIST ? from->count : 1;
    if (n < (size_t)l->def->min_in || n > (size_t)l->def->max_in) {
        if (l->def->max_in == 1)
            return tr_layer_fail(l, TR_CONFIG, "it takes one input, not %zu", n);
        return tr_layer_fail(l, TR_CONFIG, "from: it takes a list of %d to %d names",
                             l->def->min_in, l->def->max_in);
    }
    l->nin = (int)n;
    for (size_t i = 0; i < n; i++) {
        l->in[i] = before;
        if (from)
            TR_TRY(tr_name_find(mk, from->kind == TR_NODE_LIST ? from->values[i] : from, l->name,
                                &l->in[i]));
        l->inputs[i] = tr_value_shape(mk, l->in[i]);
    }
out:
    return st;
}

/* Takes over l->storage, also on failure. */
static tr_status append(tr_maker *mk, tr_layer *l, int *output)
{
    tr_model *m = mk->m;
    tr_status st = TR_OK;
    if (m->nlayers >= TR_LAYERS_MAX) {
        st = tr_layer_fail(l, TR_CONFIG, "a model has at most %d layers", TR_LAYERS_MAX);
        goto out;
    }
    TR_TRY(tr_grow(&m->layers, &mk->cap_layers, m->nlayers + 1, sizeof(*m->layers)));
    l->index = (int)m->nlayers;
    l->block = mk->block;
    l->output = l->inputs[0];
    if (l->def->infer) TR_TRY(l->def->infer(mk, l));
    size_t count;
    if (!tr_shape_count(&l->output, &count) || count > (SIZE_MAX >> 8)) {
        st = tr_layer_fail(l, TR_SHAPE, "its output is too large");
        goto out;
    }
    *output = (int)(m->ninputs + m->nlayers);
    TR_TRY(tr_name_add(mk, l->at, l->name, *output));
    m->layers[m->nlayers++] = *l;
out:
    if (st != TR_OK) tr_type_free(l);
    return st;
}

/* Opens a block for recomputation unless one is open; returns whether it did. */
static bool open_block(tr_maker *mk)
{
    if (mk->block >= 0) return false;
    mk->block = mk->nblocks++;
    return true;
}

static tr_status parse_residual(tr_maker *mk, const tr_layer *l, int *output)
{
    const tr_residual_attrs *a = l->attrs;
    bool opened = open_block(mk);
    int body = l->in[0], shortcut = l->in[0];
    tr_status st = TR_OK;
    TR_TRY(parse_list(mk, a->body, l->in[0], &body));
    if (a->shortcut && (a->shortcut->kind != TR_NODE_LIST || a->shortcut->count))
        TR_TRY(parse_list(mk, a->shortcut, l->in[0], &shortcut));
    tr_shape x = tr_value_shape(mk, body), y = tr_value_shape(mk, shortcut);
    if (!tr_shape_equal(&x, &y)) {
        char tx[TR_SHAPE_TEXT], ty[TR_SHAPE_TEXT];
        st = tr_layer_fail(l, TR_SHAPE, "its body gives %s, its shortcut %s", tr_shape_text(&x, tx),
                           tr_shape_text(&y, ty));
        goto out;
    }
    tr_layer sum = *l;
    sum.def = tr_op_find("add");
    sum.storage = NULL;
    sum.attrs = NULL;
    sum.nin = 2;
    sum.in[0] = body, sum.in[1] = shortcut;
    sum.inputs[0] = x, sum.inputs[1] = y;
    TR_TRY(append(mk, &sum, output));
    if (opened) mk->block = -1;
out:
    return st;
}

static tr_status parse_repeat(tr_maker *mk, const tr_layer *l, int *output)
{
    const tr_repeat_attrs *a = l->attrs;
    tr_status st = TR_OK;
    size_t outer = strlen(mk->suffix);
    tr_counter before[TR_COUNTERS];
    memcpy(before, mk->counters, sizeof(before));
    *output = l->in[0];
    for (int64_t i = 0; i < a->times; i++) {
        /* The text is read again, so its layers get the same numbers again. */
        memcpy(mk->counters, before, sizeof(before));
        int n = snprintf(mk->suffix + outer, sizeof(mk->suffix) - outer, ".%lld", (long long)i + 1);
        if ((size_t)n >= sizeof(mk->suffix) - outer)
            return tr_layer_fail(l, TR_CONFIG, "repeats stand too deep for names");
        bool opened = open_block(mk);
        TR_TRY(parse_list(mk, a->layers, *output, output));
        if (opened) mk->block = -1;
    }
    mk->suffix[outer] = '\0';
    st = tr_name_add(mk, l->at, l->name, *output);
out:
    return st;
}

static tr_status parse_item(tr_maker *mk, const tr_node *item, int before, int *output)
{
    tr_layer l = {.at = item, .block = -1};
    const tr_node *options;
    tr_status st = TR_OK;
    TR_TRY(tr_type_of(item, &l.def, &options));
    if (item->kind == TR_NODE_MAP) l.at = item->keys[0];
    TR_TRY(tr_name_layer(mk, &l, options));
    TR_TRY(tr_type_read(mk->config, &l, options));
    TR_TRY(find_inputs(mk, &l, before));
    if (l.def == &tr_type_residual) {
        st = parse_residual(mk, &l, output);
    } else if (l.def == &tr_type_repeat) {
        st = parse_repeat(mk, &l, output);
    } else {
        st = append(mk, &l, output);
        return st; /* the model has the storage, or it is freed */
    }
out:
    tr_type_free(&l);
    return st;
}

static tr_status parse_list(tr_maker *mk, const tr_node *list, int value, int *output)
{
    tr_status st = TR_OK;
    if (list->kind != TR_NODE_LIST || list->count == 0)
        return tr_node_fail(list, "a list of layers was expected");
    if (++mk->depth > 32) return tr_node_fail(list, "layers are nested too deep");
    for (size_t i = 0; i < list->count; i++) TR_TRY(parse_item(mk, list->values[i], value, &value));
    *output = value;
    mk->depth--;
out:
    return st;
}

/* Every input and every layer must lead somewhere: else it would be computed, and never trained. */
static tr_status check_used(tr_maker *mk, int output)
{
    tr_model *m = mk->m;
    size_t n = m->ninputs + m->nlayers;
    bool *used = tr_alloc(TR_MEM_OTHER, n, sizeof(*used));
    if (!used) return TR_MEMORY;
    used[output] = true;
    for (size_t i = 0; i < m->nlayers; i++)
        for (int k = 0; k < m->layers[i].nin; k++) used[m->layers[i].in[k]] = true;
    tr_status st = TR_OK;
    for (size_t v = 0; v < n && st == TR_OK; v++) {
        if (used[v]) continue;
        if (v >= m->ninputs)
            st = tr_layer_fail(&m->layers[v - m->ninputs], TR_CONFIG, "its output is not used");
        else
            st = tr_node_fail(mk->config->model.layers, "input \"%s\" is not used",
                              m->inputs[v].name);
    }
    tr_free(used);
    return st;
}

/* Ids are for embeddings alone: as values they mean nothing. */
static tr_status check_ids(const tr_maker *mk)
{
    const tr_model *m = mk->m;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        for (int k = 0; k < l->nin && !l->def->ids; k++)
            if ((size_t)l->in[k] < m->ninputs && m->inputs[l->in[k]].ids > 0)
                return tr_layer_fail(
                    l, TR_CONFIG,
                    "it reads the input \"%s\" as values, which an embedding reads "
                    "as ids",
                    m->inputs[l->in[k]].name);
    }
    return TR_OK;
}

tr_status tr_parse_layers(tr_maker *mk, int *output)
{
    tr_status st = TR_OK;
    mk->block = -1;
    TR_TRY(parse_list(mk, mk->config->model.layers, 0, output));
    TR_TRY(check_ids(mk));
    TR_TRY(check_used(mk, *output));
out:
    return st;
}
