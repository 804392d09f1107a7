/* Blocks that a config defines: lists of layers with parameters, which stand for one layer wherever
 * they are used.
 *
 *     define: {unit: {params: {out: , stride: 1}, layers: [{conv2d: {out: $out, stride: $stride,
 *     kernel: 3}}, relu]}} layers: [{unit: {out: 64}}, {unit: {name: second, out: 128, stride: 2}}]
 *
 * Names inside begin with the block's own: unit1.conv2d1, second.conv2d1. `input` is what the block
 * reads. */
#include <string.h>

#include "runtime/graph/parse.h"

/* ---- What is defined ------------------------------------------------------------------------- */

static tr_status read_params(tr_parser *p, const tr_node *params)
{
    if (params->kind != TR_NODE_MAP || params->count > TR_PARAMETERS / 2)
        return tr_node_fail(params, "model.params: a map of at most %d names to values",
                            TR_PARAMETERS / 2);
    for (size_t i = 0; i < params->count; i++) {
        const tr_node *key = params->keys[i];
        if (!tr_parameter_valid(key->text))
            return tr_node_fail(key, "a parameter's name has letters, digits and _ only");
        tr_status st = tr_template_bind(p->t, params->values[i], p->params, p->nparams,
                                        &p->params[p->nparams].value);
        if (st != TR_OK) return st;
        p->params[p->nparams++].name = key->text;
    }
    return TR_OK;
}

static tr_status read_define(tr_parser *p, const tr_node *key, const tr_node *value)
{
    const tr_op_def *type = tr_type_find(key->text);
    tr_define d = {.name = key->text,
                   .params = tr_node_get(value, "params"),
                   .layers = tr_node_get(value, "layers")};
    if (!tr_name_valid(d.name) || strlen(d.name) > TR_LAYER_NAME / 2)
        return tr_node_fail(key, "a block's name has at most %d letters, digits and _.-",
                            TR_LAYER_NAME / 2);
    if (type && type != &tr_type_block) /* a plain block says nothing that this one does not */
        return tr_node_fail(key, "model.define: \"%s\" is a layer already", d.name);
    if (value->kind != TR_NODE_MAP || !d.layers)
        return tr_node_fail(key,
                            "model.define: block \"%s\" is a map with layers, and params "
                            "where it has some",
                            d.name);
    for (size_t i = 0; i < value->count; i++)
        if (strcmp(value->keys[i]->text, "params") != 0 &&
            strcmp(value->keys[i]->text, "layers") != 0)
            return tr_node_fail(value->keys[i], "unknown key \"%s\"; there are: params, layers",
                                value->keys[i]->text);
    if (d.params && (d.params->kind != TR_NODE_MAP || d.params->count > TR_PARAMETERS / 2))
        return tr_node_fail(d.params,
                            "params: a map of at most %d names to defaults, {out: , stride: 1}",
                            TR_PARAMETERS / 2);
    for (size_t i = 0; d.params && i < d.params->count; i++) {
        const char *name = d.params->keys[i]->text;
        if (!tr_parameter_valid(name))
            return tr_node_fail(d.params->keys[i],
                                "a parameter's name has letters, digits and _ only");
        if (strcmp(name, "name") == 0 || strcmp(name, "from") == 0)
            return tr_node_fail(d.params->keys[i], "every layer has a \"%s\": another word", name);
    }
    p->defines[p->ndefines++] = d;
    return TR_OK;
}

tr_status tr_defines_read(tr_parser *p, const tr_config *c)
{
    tr_status st = TR_OK;
    const tr_node *defines = c->model.define;
    if (c->model.params) TR_TRY(read_params(p, c->model.params));
    if (!defines) return TR_OK;
    if (defines->kind != TR_NODE_MAP || defines->count > TR_DEFINES)
        return tr_node_fail(defines, "model.define: a map of at most %d blocks", TR_DEFINES);
    for (size_t i = 0; i < defines->count; i++)
        TR_TRY(read_define(p, defines->keys[i], defines->values[i]));
out:
    return st;
}

tr_define *tr_define_find(tr_parser *p, const char *name)
{
    for (size_t i = 0; i < p->ndefines; i++)
        if (strcmp(p->defines[i].name, name) == 0) return &p->defines[i];
    return NULL;
}

const char *tr_define_nearest(const tr_parser *p, const char *word)
{
    const char *names[TR_DEFINES];
    for (size_t i = 0; i < p->ndefines; i++) names[i] = p->defines[i].name;
    return p->ndefines ? tr_nearest(word, names, p->ndefines) : NULL;
}

bool tr_define_unnamed(tr_parser *p, const tr_node *item)
{
    const tr_node *options, *word = tr_item_type(item, &options);
    return word && tr_define_find(p, word->text) && !tr_node_get(options, "name");
}

/* ---- One use --------------------------------------------------------------------------------- */

static bool has(const tr_define *d, const char *key)
{
    return d->params && tr_node_get(d->params, key);
}

static tr_status unknown_option(const tr_define *d, const tr_node *key)
{
    const char *names[TR_PARAMETERS / 2 + 2] = {"name", "from"};
    size_t n = 2;
    for (size_t i = 0; d->params && i < d->params->count; i++)
        names[n++] = d->params->keys[i]->text;
    const char *near = tr_nearest(key->text, names, n);
    return tr_node_fail(key, "block \"%s\" has no parameter \"%s\"%s%s%s", d->name, key->text,
                        near ? ": did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* The model's parameters, then the block's: as given, else its default, which may speak of those
 * before it. */
static tr_status bind_options(tr_parser *p, const tr_define *d, const tr_node *at,
                              const tr_node *options, tr_parameter bound[TR_PARAMETERS],
                              size_t *count)
{
    memcpy(bound, p->params, p->nparams * sizeof *bound);
    *count = p->nparams;
    for (size_t i = 0; options && i < options->count; i++) {
        const char *key = options->keys[i]->text;
        if (strcmp(key, "name") != 0 && strcmp(key, "from") != 0 && !has(d, key))
            return unknown_option(d, options->keys[i]);
    }
    for (size_t i = 0; d->params && i < d->params->count; i++) {
        const char *name = d->params->keys[i]->text;
        const tr_node *value = tr_node_get(options, name), *dflt = d->params->values[i];
        const bool none = dflt->kind == TR_NODE_SCALAR && !dflt->quoted && !*dflt->text;
        if (!value && none)
            return tr_node_fail(at, "block \"%s\": its parameter \"%s\" is missing", d->name, name);
        if (!value) {
            tr_status st = tr_template_bind(p->t, dflt, bound, *count, &value);
            if (st != TR_OK) return st;
        }
        bound[(*count)++] = (tr_parameter){name, value};
    }
    return TR_OK;
}

/* What every layer has: its name and what it reads. */
static tr_status common_options(const tr_node *options, tr_node *keys[2], tr_node *values[2],
                                tr_node *out)
{
    *out = *options;
    out->keys = keys;
    out->values = values;
    out->count = 0;
    if (options->kind != TR_NODE_MAP)
        return tr_node_fail(options, "a block's options are a map of its parameters");
    for (size_t i = 0; i < options->count; i++) {
        const char *key = options->keys[i]->text;
        if (strcmp(key, "name") != 0 && strcmp(key, "from") != 0) continue;
        keys[out->count] = options->keys[i];
        values[out->count++] = options->values[i];
    }
    return TR_OK;
}

static tr_status read_layers(tr_parser *p, tr_define *d, const tr_layer *l, const tr_node *layers,
                             int *output)
{
    tr_status st = TR_OK;
    tr_scope scope;
    tr_counter before[TR_COUNTERS];
    memcpy(before, p->mk->counters, sizeof before);
    TR_TRY(tr_scope_open(p->mk, &scope, l, l->name, NULL));
    scope.input = l->in[0];
    memset(p->mk->counters, 0, sizeof p->mk->counters);
    d->open = true;
    bool opened = tr_maker_open_block(p->mk);
    TR_TRY(tr_parse_list(p, layers, l->in[0], output));
    if (opened) tr_maker_close_block(p->mk);
    d->open = false;
    memcpy(p->mk->counters, before, sizeof before);
    tr_scope_close(p->mk);
    st = tr_name_add(p->mk, l->where, l->name, *output);
out:
    return st;
}

tr_status tr_define_use(tr_parser *p, tr_define *d, const tr_node *at, const tr_node *options,
                        const char *name, int before, int *output)
{
    tr_status st = TR_OK;
    tr_node common, *keys[2], *values[2];
    tr_layer l = {0};
    tr_parameter bound[TR_PARAMETERS];
    size_t count;
    const tr_node *layers;
    const tr_op_def def = {.name = d->name, .min_in = 1, .max_in = 1};
    if (d->open) return tr_node_fail(at, "block \"%s\" stands within itself", d->name);
    if (options) TR_TRY(common_options(options, keys, values, &common));
    TR_TRY(bind_options(p, d, at, options, bound, &count));
    TR_TRY(tr_template_bind(p->t, d->layers, bound, count, &layers));
    TR_TRY(tr_make_begin(p->mk, &l, &def, at, name, options ? &common : NULL));
    TR_TRY(tr_make_inputs(p->mk, &l, 0, NULL, before));
    st = read_layers(p, d, &l, layers, output);
out:
    tr_type_free(&l);
    return st;
}
