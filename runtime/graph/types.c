/* Layer types as the config names them: those of the op registry and those that give structure. */
#include "runtime/graph/maker.h"

#include <string.h>

static const tr_field residual_fields[] = {
    TR_SHAPED("body", offsetof(tr_residual_attrs, body), NULL, "list of layers", TR_SCHEMA_LAYERS),
    TR_SHAPED("shortcut", offsetof(tr_residual_attrs, shortcut), "",
              "list of layers; default: the input itself",
              "{\"maxItems\":0,\"type\":\"array\"}," TR_SCHEMA_LAYERS),
    {0},
};

static const char *const name_kinds[] = {"suffix", "path", "none", NULL};
static const tr_field repeat_fields[] = {
    {.key = "times",
     .kind = TR_FIELD_INT,
     .offset = offsetof(tr_repeat_attrs, times),
     .dflt = "auto",
     .auto_text = "auto",
     .auto_value = -1,
     .min = 0,
     .max = TR_LAYERS_MAX,
     .doc = "how often; auto: once for each of `values`"},
    TR_SHAPED("params", offsetof(tr_repeat_attrs, params), "",
              "names of parameters that differ from time to time: [out, stride]", TR_SCHEMA_LIST),
    TR_SHAPED("values", offsetof(tr_repeat_attrs, values), "",
              "of the parameters, a list for each time: [[64, 1], [128, 2]]; of one parameter its "
              "values: [64, 128]",
              TR_SCHEMA_LIST),
    TR_CHOICE("names", offsetof(tr_repeat_attrs, names), name_kinds, "suffix",
              "suffix: names inside get `.1`, `.2`, ...; path: they begin with the repeat's name "
              "and `.0.`, `.1.`, ..., and "
              "a block without a name that is all there is inside gets just this; none: they "
              "differ by themselves, "
              "as with `${n}`"),
    TR_SHAPED("layers", offsetof(tr_repeat_attrs, layers), NULL, "list of layers",
              TR_SCHEMA_LAYERS),
    {0},
};

static const tr_field block_fields[] = {
    TR_SHAPED("layers", offsetof(tr_block_attrs, layers), NULL, "list of layers", TR_SCHEMA_LAYERS),
    {0},
};

const tr_op_def tr_type_residual = {
    .name = "residual",
    .example = "residual: {body: [{conv2d: {out: 8, kernel: 3, padding: 1}}, batchnorm]}",
    .doc =
        "Sum of what `body` and `shortcut` make of the same input. The layer's name is the sum's.",
    .fields = residual_fields,
    .attrs_size = sizeof(tr_residual_attrs),
    .min_in = 1,
    .max_in = 1,
};

const tr_op_def tr_type_repeat = {
    .name = "repeat",
    .example = "repeat: {times: 3, layers: [{conv2d: {out: 8, kernel: 1}}, relu]}",
    .doc =
        "The layers again and again, each time with parameters of its own. The repeat's own name "
        "stands for its last output.",
    .fields = repeat_fields,
    .attrs_size = sizeof(tr_repeat_attrs),
    .min_in = 1,
    .max_in = 1,
};

const tr_op_def tr_type_block = {
    .name = "block",
    .example = "block: {name: stem, layers: [{conv2d: {out: 8, kernel: 3}}, relu]}",
    .doc =
        "The layers as they are. With `train.recompute: blocks` they are forgotten and recomputed "
        "together, as those of a residual or of one time of a repeat are. A name that it is given "
        "stands for its last output.",
    .fields = block_fields,
    .attrs_size = sizeof(tr_block_attrs),
    .min_in = 1,
    .max_in = 1,
};

static const tr_op_def *const structures[] = {
    &tr_type_residual, &tr_type_repeat,      &tr_type_block,          &tr_type_lstm,
    &tr_type_gru,      &tr_type_transformer, &tr_type_patch_embedding};

static const tr_field common_fields[] = {
    TR_TEXT("name", offsetof(tr_common, name), "",
            "letters, digits, `_.-`; default: the type and a running number"),
    TR_SHAPED("from", offsetof(tr_common, from), "",
              "name of an earlier layer or input (of several: a list); default: the layer before",
              TR_SCHEMA_NAMES),
};

static const tr_field learned_fields[] = {
    TR_BOOL("freeze", offsetof(tr_common, freeze), "false", "its own parameters stay as they are"),
    TR_REAL("init_factor", offsetof(tr_common, init_factor), "1", 0, 1e6, NULL,
            "times the initial values of its own weights; its biases are as without"),
    TR_REAL("lr_factor", offsetof(tr_common, lr_factor), "1", 0, 1e6, NULL,
            "times the learning rate, for its own parameters"),
    TR_REAL("decay_factor", offsetof(tr_common, decay_factor), "1", 0, 1e6, NULL,
            "times the weight decay, for those of its own parameters that decay"),
};

static const char *const stored_choices[] = {"float32", "bfloat16",    "float16",
                                             "int8",    "int8_tensor", NULL};
const tr_dtype tr_stored_types[] = {TR_F32, TR_BF16, TR_F16, TR_I8, TR_I8};

static const tr_field tied_fields[] = {
    TR_TEXT(
        "weight_of", offsetof(tr_common, weight_of), "",
        "name of an earlier layer whose weight, of the same shape, is this layer's, too; a bias "
        "stays its own"),
    TR_CHOICE(
        "stored", offsetof(tr_common, stored), stored_choices, "float32",
        "type of the weight in a model's file, of values that it holds exactly; int8 with a scale "
        "for each output, int8_tensor with one for all. In training int8 rounds what the layer "
        "reads, and the gradient passes straight through; 16 bits cannot be trained"),
    TR_BOOL("masked", offsetof(tr_common, masked), "false",
            "elements of the weight that are 0 stay 0 while it is trained: what pruning leaves"),
    TR_BOOL("learn_scale", offsetof(tr_common, learn_scale), "false",
            "with stored: int8 or int8_tensor: the scales are parameters that are trained with the "
            "weight (LSQ; Esser et al. 2020), else those of the weight as it is"),
};
_Static_assert(sizeof(tr_common) <= TR_COMMON_SIZE, "storage layout");

static size_t append(tr_field *out, size_t n, const tr_field *more, size_t count)
{
    for (size_t i = 0; i < count; i++) out[n++] = more[i];
    return n;
}

size_t tr_type_count(void)
{
    size_t n = TR_COUNT(structures);
    for (size_t i = 0; i < tr_op_count(); i++) n += tr_op_at(i)->doc != NULL;
    return n;
}

const tr_op_def *tr_type_at(size_t i)
{
    for (size_t k = 0; k < tr_op_count(); k++)
        if (tr_op_at(k)->doc && i-- == 0) return tr_op_at(k);
    return i < TR_COUNT(structures) ? structures[i] : NULL;
}

bool tr_type_is_structure(const tr_op_def *type)
{
    for (size_t i = 0; i < TR_COUNT(structures); i++)
        if (type == structures[i]) return true;
    return false;
}

const tr_op_def *tr_type_find(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (tr_op_at(i)->doc && strcmp(tr_op_at(i)->name, name) == 0) return tr_op_at(i);
    for (size_t i = 0; i < TR_COUNT(structures); i++)
        if (strcmp(structures[i]->name, name) == 0) return structures[i];
    return NULL;
}

void tr_type_fields(const tr_op_def *type, tr_field out[TR_LAYER_FIELDS])
{
    size_t n = append(out, 0, common_fields, TR_COUNT(common_fields));
    if (type->tied) n = append(out, n, tied_fields, TR_COUNT(tied_fields));
    if (type->learned) n = append(out, n, learned_fields, TR_COUNT(learned_fields));
    for (const tr_field *f = type->fields; f && f->key; f++, n++) {
        out[n] = *f;
        out[n].offset += TR_COMMON_SIZE;
    }
    out[n] = (tr_field){0};
}

const char *tr_type_nearest(const char *word)
{
    const char *names[TR_COUNTERS];
    size_t n = tr_type_count();
    for (size_t i = 0; i < n; i++) names[i] = tr_type_at(i)->name;
    return tr_nearest(word, names, n);
}

tr_status tr_type_read(const tr_maker *mk, tr_layer *l, const tr_node *at, const tr_node *options)
{
    tr_status st = TR_OK;
    tr_field fields[TR_LAYER_FIELDS];
    tr_type_fields(l->def, fields);
    l->storage = tr_alloc(TR_MEM_OTHER, 1, TR_COMMON_SIZE + l->def->attrs_size);
    if (!l->storage) return tr_last_status();
    l->attrs = (char *)l->storage + TR_COMMON_SIZE;
    if (options && options->kind != TR_NODE_MAP) {
        st = tr_layer_fail(l, TR_CONFIG, "its options are a map");
        goto out;
    }
    /* No options still have a place, so that what is missing is missed there. */
    tr_node none = {.kind = TR_NODE_MAP};
    if (at) none.source = at->source, none.line = at->line, none.column = at->column;
    char what[TR_NAME + 16];
    snprintf(what, sizeof what, "layer \"%s\"", l->name);
    TR_TRY(tr_fields_read(options ? options : at ? &none : NULL, fields, what, l->storage));
    if (l->def->finish) st = l->def->finish(mk, l, l->attrs);
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
    tr_free(l->where);
    l->where = NULL;
    if (!l->storage) return;
    tr_field fields[TR_LAYER_FIELDS];
    tr_type_fields(l->def, fields);
    tr_fields_free(fields, l->storage);
    tr_free(l->storage);
    l->storage = NULL;
}
