/* Making a model: inputs and layers are appended one after the other, each checked against what is
 * there already; finishing checks the whole and lays it out. */
#include "runtime/graph/maker.h"

#include <string.h>

tr_status tr_grow(void *array, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap) return TR_OK;
    size_t bigger = *cap ? *cap * 2 : 16;
    if (bigger < need) bigger = need;
    void *old;
    memcpy(&old, array, sizeof old);
    void *p = tr_realloc(TR_MEM_OTHER, old, bigger, size);
    if (!p) return tr_last_status();
    memcpy(array, &p, sizeof p);
    *cap = bigger;
    return TR_OK;
}

tr_status tr_maker_fail(const tr_node *at, const char *where, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const tr_status st = tr_node_blame(at, TR_FAIL(TR_CONFIG, "%s", text));
    return !at && where ? tr_fail_place(st, "%s", where) : st;
}

tr_status tr_maker_open(tr_init_kind init, tr_maker **out)
{
    tr_maker *mk = TR_NEW(TR_MEM_OTHER, tr_maker);
    if (!mk || !(mk->m = TR_NEW(TR_MEM_OTHER, tr_model))) {
        tr_free(mk);
        return tr_last_status();
    }
    mk->init = init;
    mk->block = -1;
    mk->whole.input = mk->whole.lengths = -1;
    mk->scope = &mk->whole;
    *out = mk;
    return TR_OK;
}

void tr_maker_close(tr_maker *mk)
{
    if (!mk) return;
    tr_model_close(mk->m);
    tr_free(mk->names);
    tr_free(mk->slots);
    tr_free(mk);
}

/* ---- Values ---------------------------------------------------------------------------------- */

tr_shape tr_value_shape(const tr_maker *mk, int value)
{
    const tr_model *m = mk->m;
    if ((size_t)value >= m->ninputs) return m->layers[(size_t)value - m->ninputs].output;
    const tr_input *in = &m->inputs[value];
    tr_shape s = {.ndim = in->ndim, .layout = in->layout};
    memcpy(s.dims, in->dims, sizeof s.dims);
    return s;
}

const char *tr_value_name(const tr_maker *mk, int value)
{
    const tr_model *m = mk->m;
    return (size_t)value < m->ninputs ? m->inputs[value].name
                                      : m->layers[(size_t)value - m->ninputs].name;
}

/* A model's input of three dimensions is an image: (channels, height, width). */
enum { IMAGE_RANK = 3 };

tr_status tr_make_input(tr_maker *mk, const tr_node *at, const char *name, size_t ndim,
                        const int64_t *dims, int *value)
{
    tr_model *m = mk->m;
    tr_shape s = {.ndim = (int)ndim};
    size_t count;
    if (m->nlayers) return tr_maker_fail(at, NULL, "input \"%s\" comes after a layer", name);
    if (m->ninputs >= TR_MAX_IN)
        return tr_maker_fail(at, NULL, "a model has at most %d inputs", TR_MAX_IN);
    if (!tr_name_valid(name) || strlen(name) >= TR_LAYER_NAME)
        return tr_maker_fail(at, NULL, "an input's name has letters, digits and _.- only");
    if (ndim == 0 || ndim > TR_MAX_DIMS - 1)
        return tr_maker_fail(at, NULL, "input \"%s\" has %zu dimensions; 1 to %d are possible",
                             name, ndim, TR_MAX_DIMS - 1);
    bool fits = true;
    for (size_t i = 0; i < ndim; i++) fits = fits && (s.dims[i] = dims[i]) >= 1;
    if (!fits || !tr_shape_count(&s, &count) || count > (SIZE_MAX >> 8))
        return tr_maker_fail(at, NULL, "input \"%s\" is too %s", name, fits ? "large" : "small");
    tr_status st = TR_OK;
    TR_TRY(tr_grow(&m->inputs, &mk->cap_inputs, m->ninputs + 1, sizeof *m->inputs));
    tr_input *in = &m->inputs[m->ninputs];
    *in = (tr_input){.ndim = s.ndim,
                     .layout = s.ndim == IMAGE_RANK ? TR_LAYOUT_CHANNELS_LAST : TR_LAYOUT_PLAIN};
    memcpy(in->dims, s.dims, sizeof s.dims);
    snprintf(in->name, sizeof(in->name), "%s", name);
    TR_TRY(tr_name_add(mk, NULL, in->name, (int)m->ninputs));
    mk->input_at[m->ninputs] = at;
    *value = (int)m->ninputs++;
out:
    return st;
}

tr_status tr_maker_input(tr_maker *mk, const char *name, int ndim, const int64_t *dims, int *value)
{
    return tr_make_input(mk, NULL, name, ndim < 0 ? 0 : (size_t)ndim, dims, value);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

tr_status tr_make_begin(tr_maker *mk, tr_layer *l, const tr_op_def *def, const tr_node *at,
                        const char *name, const tr_node *options)
{
    tr_status st = TR_OK;
    *l = (tr_layer){.def = def, .block = -1};
    if (at && !(l->where = tr_node_place(at))) return tr_last_status();
    TR_TRY(tr_name_layer(mk, l, name, options));
    TR_TRY(tr_type_read(mk, l, at, options));
out:
    return st;
}

static tr_status find_input(const tr_maker *mk, const tr_layer *l, const tr_node *at, int *value)
{
    if (at->kind != TR_NODE_SCALAR)
        return tr_node_fail(at, "layer \"%s\": from names layers or inputs", l->name);
    *value = tr_name_find(mk, at->text);
    return *value < 0 ? tr_name_unknown(mk, at, l, at->text) : TR_OK;
}

tr_status tr_make_inputs(tr_maker *mk, tr_layer *l, int nin, const int *in, int before)
{
    const tr_node *from = nin ? NULL : ((const tr_common *)l->storage)->from;
    const bool list = from && from->kind == TR_NODE_LIST;
    const size_t n = nin ? (size_t)nin : list ? from->count : 1;
    tr_status st = TR_OK;
    if (n < (size_t)l->def->min_in || n > (size_t)l->def->max_in) {
        if (l->def->max_in == 1)
            return tr_layer_fail(l, TR_CONFIG, "it takes one input, not %zu", n);
        return tr_layer_fail(l, TR_CONFIG, "from: it takes a list of %d to %d names",
                             l->def->min_in, l->def->max_in);
    }
    l->nin = (int)n;
    for (size_t i = 0; i < n; i++) {
        l->in[i] = nin ? in[i] : before;
        if (from) TR_TRY(find_input(mk, l, list ? from->values[i] : from, &l->in[i]));
        if (l->in[i] < 0 || (size_t)l->in[i] >= mk->m->ninputs + mk->m->nlayers) {
            st = tr_layer_fail(l, TR_CONFIG, "there is no value %d to read", l->in[i]);
            goto out;
        }
        l->inputs[i] = tr_value_shape(mk, l->in[i]);
    }
out:
    return st;
}

/* Samples of two dimensions, as the layer takes them. */
static void lay_out_inputs(tr_layer *l)
{
    const tr_sequence how = l->def->sequence != TR_SEQUENCE_AUTO ? l->def->sequence
                            : l->def->infer                      ? TR_SEQUENCE_ROWS
                                                                 : TR_SEQUENCE_EITHER;
    const tr_tensor_layout first = l->inputs[0].layout;
    for (int i = 0; i < l->nin; i++)
        if (l->inputs[i].ndim == 2)
            l->inputs[i].layout = how == TR_SEQUENCE_CHANNELS ? TR_LAYOUT_CHANNELS_LAST
                                  : how == TR_SEQUENCE_EITHER && l->inputs[0].ndim == 2
                                      ? first
                                      : TR_LAYOUT_PLAIN;
}

tr_status tr_make_append(tr_maker *mk, tr_layer *l, int *value)
{
    tr_model *m = mk->m;
    tr_status st = TR_OK;
    if (m->nlayers >= TR_LAYERS_MAX) {
        st = tr_layer_fail(l, TR_CONFIG, "a model has at most %d layers", TR_LAYERS_MAX);
        goto out;
    }
    TR_TRY(tr_grow(&m->layers, &mk->cap_layers, m->nlayers + 1, sizeof *m->layers));
    l->index = (int)m->nlayers;
    l->block = mk->block;
    lay_out_inputs(l);
    l->output = l->inputs[0];
    if (l->def->infer) TR_TRY(l->def->infer(mk, l));
    if (((const tr_common *)l->storage)->learn_scale) TR_TRY(tr_layer_learned_scale(mk, l));
    if (((const tr_common *)l->storage)->weight_of) TR_TRY(tr_layer_tied(mk, l));
    size_t count;
    if (!tr_shape_count(&l->output, &count) || count > (SIZE_MAX >> 8)) {
        st = tr_layer_fail(l, TR_SHAPE, "its output is too large");
        goto out;
    }
    const int output = (int)(m->ninputs + m->nlayers);
    TR_TRY(tr_name_add(mk, l->where, l->name, output));
    ((tr_common *)l->storage)->from = NULL;
    m->layers[m->nlayers++] = *l;
    *value = mk->last = output;
out:
    if (st != TR_OK) tr_type_free(l);
    return st;
}

tr_status tr_maker_layer(tr_maker *mk, const tr_layer_given *given, int *value)
{
    tr_layer l = {0};
    tr_status st = TR_OK;
    const tr_op_def *def = tr_type_find(given->type);
    TR_NEED(def && !tr_type_is_structure(def), TR_CONFIG, "there is no layer \"%s\"", given->type);
    TR_TRY(tr_make_begin(mk, &l, def, given->at, given->name, given->options));
    TR_TRY(tr_make_inputs(mk, &l, given->nin, given->in, mk->last));
    return tr_make_append(mk, &l, value);
out:
    tr_type_free(&l);
    return st;
}

tr_status tr_maker_layer_text(tr_maker *mk, const tr_layer_given *given, const char *options,
                              int *value)
{
    tr_document doc;
    tr_layer_given with = *given;
    tr_status st = TR_OK;
    TR_TRY(tr_document_parse(given->type, options, strlen(options), &doc));
    with.options = doc.root;
    st = tr_maker_layer(mk, &with, value);
    tr_document_close(&doc);
out:
    return st;
}

bool tr_maker_open_block(tr_maker *mk)
{
    if (mk->block >= 0) return false;
    mk->block = mk->nblocks++;
    mk->block_begin = mk->m->nlayers;
    return true;
}

void tr_maker_close_block(tr_maker *mk)
{
    /* an empty one is none */
    if (mk->block >= 0 && mk->m->nlayers == mk->block_begin) mk->nblocks--;
    mk->block = -1;
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* Every input and every layer must lead somewhere: else it would be computed, and never trained. */
static tr_status check_used(const tr_maker *mk)
{
    const tr_model *m = mk->m;
    const size_t n = m->ninputs + m->nlayers;
    bool *used = tr_alloc(TR_MEM_OTHER, n, sizeof *used);
    if (!used) return tr_last_status();
    used[mk->last] = true;
    for (size_t i = 0; i < m->nlayers; i++)
        for (int k = 0; k < m->layers[i].nin; k++) used[m->layers[i].in[k]] = true;
    tr_status st = TR_OK;
    for (size_t v = 0; v < n && st == TR_OK; v++) {
        if (used[v]) continue;
        if (v >= m->ninputs)
            st = tr_layer_fail(&m->layers[v - m->ninputs], TR_CONFIG, "its output is not used");
        else
            st =
                tr_maker_fail(mk->input_at[v], NULL, "input \"%s\" is not used", m->inputs[v].name);
    }
    tr_free(used);
    return st;
}

/* Ids are for those that take ids: as values they mean nothing. */
static tr_status check_ids(const tr_maker *mk)
{
    const tr_model *m = mk->m;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        for (int k = 0; k < l->nin; k++)
            if ((size_t)l->in[k] < m->ninputs && m->inputs[l->in[k]].ids > 0 && !(l->ids >> k & 1))
                return tr_layer_fail(
                    l, TR_CONFIG,
                    "it reads the input \"%s\" as values, which another layer reads as ids",
                    m->inputs[l->in[k]].name);
    }
    return TR_OK;
}

void tr_maker_loose(tr_maker *mk)
{
    mk->loose = true;
}

tr_status tr_maker_finish(tr_maker *mk, size_t bucket_bytes, tr_model **out)
{
    tr_model *m = mk->m;
    tr_status st = TR_OK;
    TR_NEED(m->nlayers, TR_CONFIG, "a model without layers");
    TR_NEED(m->loss, TR_CONFIG, "a model without a loss");
    TR_TRY(check_ids(mk));
    if (!mk->loose) TR_TRY(check_used(mk));
    TR_TRY(tr_layout(m, bucket_bytes));
    *out = m;
    mk->m = NULL;
out:
    return st;
}
