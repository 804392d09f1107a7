/* data.normalize: auto, {mean: ..., std: ...}, or a map of these by the model's inputs. Which it
 * is, the values tell: those of the second are maps. */
#include "runtime/config/schema.h"

#include <string.h>

const tr_field tr_normalize_fields[] = {
    TR_REALS("mean", offsetof(tr_normalize_config, mean), "", -1e30, 1e30, NULL,
             "subtracted from the input"),
    TR_REALS("std", offsetof(tr_normalize_config, std), "", 1e-30, 1e30, NULL,
             "the input is divided by it after the mean is taken off"),
    TR_END,
};

static bool by_name(const tr_node *n)
{
    for (size_t i = 0; i < n->count; i++)
        if (n->values[i]->kind == TR_NODE_MAP) return true;
    return false;
}

static bool is_auto(const tr_node *n)
{
    return n->kind == TR_NODE_SCALAR && strcmp(n->text, "auto") == 0;
}

static tr_status read_one(const tr_node *n, const char *path, tr_normalize_config *to)
{
    tr_status st;
    TR_TRY(tr_fields_read(n, tr_normalize_fields, path, to));
    if (to->mean.count > 1 && to->std.count > 1 && to->mean.count != to->std.count)
        st = tr_node_fail(tr_node_get(n, "std"), "%s.std: %zu values, where mean has %zu", path,
                          to->std.count, to->mean.count);
out:
    return st;
}

tr_status tr_normalize_read(tr_config *c)
{
    const tr_node *n = c->data.normalize.written;
    const char *names[TR_YAML_KEYS];
    char path[TR_PATH], show[TR_SHOW];
    tr_status st = TR_OK;
    if (tr_node_empty(n)) n = c->data.normalize.written = NULL;
    if (!n) return TR_OK;
    c->data.normalize.automatic = is_auto(n);
    if (c->data.normalize.automatic) return TR_OK;
    if (n->kind != TR_NODE_MAP)
        return tr_node_fail(n, "data.normalize: found %s, expected a map of mean and std, or auto",
                            tr_node_show(n, show));
    if (n->count == 0) return TR_OK;
    const bool named = by_name(n);
    const size_t count = named ? n->count : 1, inputs = tr_input_names(c, names);
    c->data.normalize.inputs = tr_alloc(TR_MEM_OTHER, count, sizeof *c->data.normalize.inputs);
    if (!c->data.normalize.inputs) return tr_last_status();
    for (size_t i = 0; i < count; i++) {
        tr_normalize_config *to = &c->data.normalize.inputs[c->data.normalize.count++];
        if (!named) return read_one(n, "data.normalize", to);
        TR_TRY(tr_input_check(n->keys[i], "data.normalize", names, inputs));
        to->input = n->keys[i]->text;
        tr_path_join("data.normalize", to->input, path);
        TR_TRY(read_one(n->values[i], path, to));
    }
out:
    return st;
}

tr_status tr_normalize_targets_read(tr_config *c)
{
    const tr_node *n = c->data.normalize_targets.written;
    char show[TR_SHOW];
    if (tr_node_empty(n)) n = c->data.normalize_targets.written = NULL;
    if (!n) return TR_OK;
    c->data.normalize_targets.present = true;
    c->data.normalize_targets.automatic = is_auto(n);
    if (c->data.normalize_targets.automatic) return TR_OK;
    if (n->kind != TR_NODE_MAP)
        return tr_node_fail(
            n, "data.normalize_targets: found %s, expected a map of mean and std, or auto",
            tr_node_show(n, show));
    return read_one(n, "data.normalize_targets", &c->data.normalize_targets.stats);
}

void tr_normalize_free(tr_config *c)
{
    tr_fields_free(tr_normalize_fields, &c->data.normalize_targets.stats);
    for (size_t i = 0; i < c->data.normalize.count; i++)
        tr_fields_free(tr_normalize_fields, &c->data.normalize.inputs[i]);
    tr_free(c->data.normalize.inputs);
}

tr_status tr_config_settled(const tr_config *c)
{
    const tr_node *n = c->data.table.categories;
    bool categories = false;
    for (size_t i = 0; n && i < n->count; i++) categories |= n->values[i]->kind == TR_NODE_SCALAR;
    static const char weights[] = "model.loss.cross_entropy.class_weights";
    const char *key = c->data.normalize.automatic           ? "data.normalize"
                      : c->data.normalize_targets.automatic ? "data.normalize_targets"
                      : categories                          ? "data.table.categories"
                      : tr_config_balances(c)               ? weights
                                                            : NULL;
    if (!key) return TR_OK;
    return tr_config_fail(c, key,
                          "%s: training finds the values and keeps them in its run files; here "
                          "they must be given (trainer check CONFIG --data says what they are)",
                          key == weights ? "balanced" : "auto");
}
