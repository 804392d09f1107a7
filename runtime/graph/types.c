/* Layer types as the config names them: those of the op registry and the two that give structure.
 */
#include "runtime/graph/maker.h"

#include <string.h>

static const tr_field residual_fields[] = {
    {.key = "body",
     .kind = TR_FIELD_NODE,
     .offset = offsetof(tr_residual_attrs, body),
     .doc = "list of layers"},
    {.key = "shortcut",
     .kind = TR_FIELD_NODE,
     .offset = offsetof(tr_residual_attrs, shortcut),
     .dflt = "",
     .doc = "list of layers; default: the input itself"},
    {0},
};

static const tr_field repeat_fields[] = {
    {.key = "times",
     .kind = TR_FIELD_INT,
     .offset = offsetof(tr_repeat_attrs, times),
     .min = 1,
     .max = TR_LAYERS_MAX,
     .doc = "how often"},
    {.key = "layers",
     .kind = TR_FIELD_NODE,
     .offset = offsetof(tr_repeat_attrs, layers),
     .doc = "list of layers"},
    {0},
};

const tr_op_def tr_type_residual = {
    .name = "residual",
    .doc =
        "Sum of what `body` and `shortcut` make of the same input. The layer's name is the sum's.",
    .fields = residual_fields,
    .attrs_size = sizeof(tr_residual_attrs),
    .min_in = 1,
    .max_in = 1,
};

const tr_op_def tr_type_repeat = {
    .name = "repeat",
    .doc =
        "The layers again and again, each time with parameters of its own. Names inside get `.1`, "
        "`.2`, ... The repeat's own name stands for its last output.",
    .fields = repeat_fields,
    .attrs_size = sizeof(tr_repeat_attrs),
    .min_in = 1,
    .max_in = 1,
};

static const tr_field common_fields[] = {
    {.key = "name",
     .kind = TR_FIELD_STRING,
     .offset = offsetof(tr_common, name),
     .dflt = "",
     .doc = "letters, digits, `_.-`; default: the type and a running number"},
    {.key = "from",
     .kind = TR_FIELD_NODE,
     .offset = offsetof(tr_common, from),
     .dflt = "",
     .doc = "name of an earlier layer or input (of several: a list); default: the layer before"},
};
_Static_assert(sizeof(tr_common) <= TR_COMMON_SIZE, "storage layout");

size_t tr_type_count(void)
{
    size_t n = 2;
    for (size_t i = 0; i < tr_op_count(); i++) n += tr_op_at(i)->doc != NULL;
    return n;
}

const tr_op_def *tr_type_at(size_t i)
{
    for (size_t k = 0; k < tr_op_count(); k++)
        if (tr_op_at(k)->doc && i-- == 0) return tr_op_at(k);
    return i == 0 ? &tr_type_residual : i == 1 ? &tr_type_repeat : NULL;
}

const tr_op_def *tr_type_find(const char *name)
{
    for (size_t i = 0; i < tr_type_count(); i++)
        if (strcmp(tr_type_at(i)->name, name) == 0) return tr_type_at(i);
    return NULL;
}

void tr_type_fields(const tr_op_def *type, tr_field out[TR_LAYER_FIELDS])
{
    size_t n = 0;
    for (; n < TR_COUNT(common_fields); n++) out[n] = common_fields[n];
    for (const tr_field *f = type->fields; f && f->key; f++, n++) {
        out[n] = *f;
        out[n].offset += TR_COMMON_SIZE;
    }
    out[n] = (tr_field){0};
}

tr_status tr_type_of(const tr_node *item, const tr_op_def **type, const tr_node **options)
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
    const char *names[TR_COUNTERS];
    size_t n = tr_type_count();
    for (size_t i = 0; i < n; i++) names[i] = tr_type_at(i)->name;
    const char *near = tr_nearest(word->text, names, n);
    return near ? tr_node_fail(word, "unknown layer \"%s\": did you mean \"%s\"?", word->text, near)
                : tr_node_fail(word, "unknown layer \"%s\"", word->text);
}

tr_status tr_type_read(const tr_config *c, tr_layer *l, const tr_node *options)
{
    tr_status st = TR_OK;
    tr_field fields[TR_LAYER_FIELDS];
    tr_type_fields(l->def, fields);
    l->storage = tr_alloc(TR_MEM_OTHER, 1, TR_COMMON_SIZE + l->def->attrs_size);
    if (!l->storage) return TR_MEMORY;
    l->attrs = (char *)l->storage + TR_COMMON_SIZE;
    if (options && options->kind != TR_NODE_MAP) {
        st = tr_layer_fail(l, TR_CONFIG, "its options are a map");
        goto out;
    }
    /* No options still have a place, so that what is missing is missed there. */
    tr_node none = {
        .kind = TR_NODE_MAP, .source = l->at->source, .line = l->at->line, .column = l->at->column};
    char what[TR_NAME + 16];
    snprintf(what, sizeof(what), "layer \"%s\"", l->name);
    TR_TRY(tr_fields_read(options ? options : &none, fields, what, l->storage));
    if (l->def->finish) st = l->def->finish(c, l, (char *)l->storage + TR_COMMON_SIZE);
    if (st != TR_OK) tr_fields_free(fields, l->storage);
out:
    if (st != TR_OK) {
        tr_free(l->storage);
        l->storage = NULL;
    }
    return st;
}

void tr_type_free(tr_layer *l)
{
    if (!l->storage) return;
    tr_field fields[TR_LAYER_FIELDS];
    tr_type_fields(l->def, fields);
    tr_fields_free(fields, l->storage);
    tr_free(l->storage);
    l->storage = NULL;
}
