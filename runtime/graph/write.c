/* A model as the text that makes it again, and the reference page of all layers, from the same
 * tables. Layers are written one after the other, each with what the reader would not find out by
 * itself: a name that is not its type and number, inputs other than the value before. */
#include "runtime/graph/maker.h"

#include <stdlib.h>
#include <string.h>

/* Common options are written where they are not as usual; name and inputs by the layer's own. */
static bool says_nothing(const tr_common *c, size_t offset)
{
    switch (offset) {
    case offsetof(tr_common, weight_of):
        return !c->weight_of;
    case offsetof(tr_common, stored):
        return c->stored == 0;
    case offsetof(tr_common, masked):
        return !c->masked;
    case offsetof(tr_common, learn_scale):
        return !c->learn_scale;
    case offsetof(tr_common, freeze):
        return !c->freeze;
    case offsetof(tr_common, init_factor):
        return c->init_factor == 1;
    case offsetof(tr_common, lr_factor):
        return c->lr_factor == 1;
    case offsetof(tr_common, decay_factor):
        return c->decay_factor == 1;
    default:
        return offset < TR_COMMON_SIZE;
    }
}

static size_t option_fields(const tr_layer *l, tr_field out[TR_LAYER_FIELDS])
{
    tr_field all[TR_LAYER_FIELDS];
    size_t n = 0;
    tr_type_fields(l->def, all);
    for (const tr_field *f = all; f->key; f++)
        if (!says_nothing(l->storage, f->offset)) out[n++] = *f;
    out[n] = (tr_field){0};
    return n;
}

tr_status tr_layer_write_options(const tr_layer *l, int indent, FILE *to)
{
    tr_field fields[TR_LAYER_FIELDS];
    return option_fields(l, fields) ? tr_fields_write(fields, l->storage, indent, to) : TR_OK;
}

static const char *value_name(const tr_model *m, int value)
{
    return (size_t)value < m->ninputs ? m->inputs[value].name
                                      : m->layers[(size_t)value - m->ninputs].name;
}

static void write_from(const tr_model *m, const tr_layer *l, int indent, FILE *to)
{
    fprintf(to, "%*sfrom: ", indent, "");
    for (int k = 0; k < l->nin; k++)
        fprintf(to, "%s\"%s\"", k ? ", " : l->nin > 1 ? "[" : "", value_name(m, l->in[k]));
    fprintf(to, "%s\n", l->nin > 1 ? "]" : "");
}

static tr_status write_layer(const tr_model *m, const tr_layer *l, int number, int indent, FILE *to)
{
    char usual[TR_NAME];
    tr_field fields[TR_LAYER_FIELDS];
    const int before = l->index ? (int)m->ninputs + l->index - 1 : 0;
    snprintf(usual, sizeof usual, "%s%d", l->def->name, number);
    const bool named = strcmp(usual, l->name) != 0, from = l->nin > 1 || l->in[0] != before;
    const bool plain = !named && !from && option_fields(l, fields) == 0;
    fprintf(to, "%*s- %s%s\n", indent, "", l->def->name, plain ? "" : ":");
    if (named) fprintf(to, "%*sname: \"%s\"\n", indent + 4, "", l->name);
    if (from) write_from(m, l, indent + 4, to);
    return tr_layer_write_options(l, indent + 4, to);
}

static tr_status write_layers(const tr_model *m, int indent, FILE *to)
{
    tr_status st = TR_OK;
    tr_counter counters[TR_COUNTERS] = {{0}};
    int block = -1;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        if (l->block >= 0 && l->block != block)
            fprintf(to, "%*s- block:\n%*slayers:\n", indent, "", indent + 4, "");
        block = l->block;
        TR_TRY(write_layer(m, l, tr_count_next(counters, l->def->name),
                           block >= 0 ? indent + 6 : indent, to));
    }
out:
    return st;
}

static void write_dims(const tr_input *in, FILE *to)
{
    for (int i = 0; i < in->ndim; i++)
        fprintf(to, "%s%lld", i ? ", " : "[", (long long)in->dims[i]);
    fputs("]\n", to);
}

static void write_inputs(const tr_model *m, int indent, FILE *to)
{
    if (m->ninputs == 1 && strcmp(m->inputs[0].name, "input") == 0) {
        fprintf(to, "%*sinput: ", indent, "");
        write_dims(&m->inputs[0], to);
        return;
    }
    fprintf(to, "%*sinputs:\n", indent, "");
    for (size_t i = 0; i < m->ninputs; i++) {
        fprintf(to, "%*s\"%s\": ", indent + 2, "", m->inputs[i].name);
        write_dims(&m->inputs[i], to);
    }
}

static void write_skipped(const tr_model *m, int indent, FILE *to)
{
    const char *between = "";
    if (!m->skip_passes) return;
    fprintf(to, "%*sskip_passes: [", indent, "");
    for (int i = 0; i < TR_GRAPH_PASSES; i++) {
        if (!(m->skip_passes & TR_PASS_IS(i))) continue;
        fprintf(to, "%s%s", between, tr_graph_pass_at((tr_graph_pass_id)i)->name);
        between = ", ";
    }
    fputs("]\n", to);
}

tr_status tr_model_write(const tr_model *m, int indent, FILE *to)
{
    tr_status st = TR_OK;
    write_inputs(m, indent, to);
    fprintf(to, "%*slayers:\n", indent, "");
    TR_TRY(write_layers(m, indent + 2, to));
    TR_TRY(tr_fields_write(tr_loss_fields, &m->loss_config, indent, to));
    write_skipped(m, indent, to);
    TR_NEED(!ferror(to), TR_IO, "writing a model failed");
out:
    return st;
}

tr_status tr_model_write_config(const tr_model *m, const tr_config *c, FILE *to)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t n = 0;
    tr_document doc = {NULL, NULL};
    FILE *f = open_memstream(&text, &n);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for a model's text");
    st = tr_model_write(m, 0, f);
    if (fclose(f) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a model's text");
    if (st == TR_OK) TR_TRY(tr_document_parse("model", text, n, &doc));
    if (st == TR_OK) st = tr_config_write_with(c, doc.root, to);
out:
    tr_document_close(&doc);
    free(text);
    return st;
}

tr_status tr_model_config(const tr_model *m, const tr_config *c, const tr_overrides *o,
                          tr_config **out)
{
    size_t n;
    char *text = NULL;
    FILE *to = open_memstream(&text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "out of memory for a config");
    tr_status st = tr_model_write_config(m, c, to);
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a config");
    if (st == TR_OK) st = tr_config_reopen(c, text, o, out);
    free(text);
    return st;
}
