/* The layers of the config as resolved, and the reference page of all layers, from the same tables.
 */
#include "runtime/graph/maker.h"

#include <string.h>

static tr_status write_list(const tr_config *c, const tr_node *list, int indent, FILE *to);

/* Keys that hold lists of layers are written by recursion, the others by the tables. */
static tr_status write_fields(const tr_layer *l, int indent, FILE *to)
{
    tr_field all[TR_LAYER_FIELDS], rest[TR_LAYER_FIELDS];
    size_t n = 0;
    tr_type_fields(l->def, all);
    for (const tr_field *f = all; f->key; f++)
        if (f->kind != TR_FIELD_NODE) rest[n++] = *f;
    rest[n] = (tr_field){0};
    return tr_fields_write(rest, l->storage, indent, to);
}

static tr_status write_nested(const tr_config *c, const char *key, const tr_node *list, int indent,
                              FILE *to)
{
    if (!list || list->kind != TR_NODE_LIST || list->count == 0) return TR_OK;
    fprintf(to, "%*s%s:\n", indent, "", key);
    return write_list(c, list, indent + 2, to);
}

static void write_from(const tr_node *from, int indent, FILE *to)
{
    if (!from) return;
    if (from->kind == TR_NODE_SCALAR) {
        fprintf(to, "%*sfrom: \"%s\"\n", indent, "", from->text);
        return;
    }
    fprintf(to, "%*sfrom: [", indent, "");
    for (size_t i = 0; i < from->count; i++)
        fprintf(to, "%s\"%s\"", i ? ", " : "", from->values[i]->text);
    fprintf(to, "]\n");
}

static tr_status write_item(const tr_config *c, const tr_node *item, int indent, FILE *to)
{
    tr_status st = TR_OK;
    tr_layer l = {.at = item};
    const tr_node *options;
    TR_TRY(tr_type_of(item, &l.def, &options));
    snprintf(l.name, sizeof(l.name), "%s", l.def->name);
    TR_TRY(tr_type_read(c, &l, options));
    const tr_common *common = l.storage;
    if (!l.def->fields && !common->name && !common->from) {
        fprintf(to, "%*s- %s\n", indent, "", l.def->name);
        goto out;
    }
    fprintf(to, "%*s- %s:\n", indent, "", l.def->name);
    write_from(common->from, indent + 4, to);
    TR_TRY(write_fields(&l, indent + 4, to));
    if (l.def == &tr_type_residual) {
        const tr_residual_attrs *a = l.attrs;
        TR_TRY(write_nested(c, "body", a->body, indent + 4, to));
        TR_TRY(write_nested(c, "shortcut", a->shortcut, indent + 4, to));
    } else if (l.def == &tr_type_repeat) {
        TR_TRY(
            write_nested(c, "layers", ((const tr_repeat_attrs *)l.attrs)->layers, indent + 4, to));
    }
out:
    tr_type_free(&l);
    return st;
}

static tr_status write_list(const tr_config *c, const tr_node *list, int indent, FILE *to)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < list->count; i++) TR_TRY(write_item(c, list->values[i], indent, to));
out:
    return st;
}

tr_status tr_model_write_layers(const tr_model *m, int indent, FILE *to)
{
    return write_list(m->config, m->config->model.layers, indent, to);
}

void tr_layers_help(FILE *to)
{
    fputs(
        "\n# Layers\n\nEach entry of `model.layers` is a name or a map of one name to its options: "
        "`relu`, `linear: {out: 10}`. Several inputs (`add`, `concat`) are named in `from`.\n",
        to);
    for (size_t i = 0; i < tr_type_count(); i++) {
        const tr_op_def *type = tr_type_at(i);
        tr_field fields[TR_LAYER_FIELDS];
        tr_type_fields(type, fields);
        tr_fields_help(fields, type->name, to);
        fprintf(to, "\n%s\n", type->doc);
    }
}
