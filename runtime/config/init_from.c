/* model.init_from: a file, or a map with how its arrays become the model's. */
#include "runtime/config/internal.h"

typedef struct {
    char *file;
    bool strict;
    tr_renames_written names;
} written;

static const tr_field fields[] = {
    TR_TEXT("file", offsetof(written, file), NULL, "relative to the config file, as data is"),
    TR_BOOL("strict", offsetof(written, strict), "true",
            "every parameter and state of the model, and every array of the file"),
    TR_NODE("map", offsetof(written, names.map), "", "patterns of names"),
    TR_NODE("transpose", offsetof(written, names.transpose), "", "patterns of names"),
    TR_NODE("ndim", offsetof(written, names.ndim), "", "patterns of names"),
    TR_END,
};

tr_status tr_config_init_from(const tr_config *c, tr_init_from *out)
{
    const tr_node *n = c->model.init_from;
    tr_status st = TR_OK;
    char show[TR_SHOW];
    written w = {.file = NULL};
    *out = (tr_init_from){.strict = true};
    if (tr_node_empty(n)) return TR_OK;
    if (n->kind == TR_NODE_LIST)
        return tr_node_fail(n, "model.init_from: found %s, expected a file, or a map with one",
                            tr_node_show(n, show));
    if (n->kind == TR_NODE_SCALAR) {
        TR_HAVE(out->file = tr_strdup(n->text));
        return TR_OK;
    }
    TR_TRY(tr_fields_read(n, fields, "model.init_from", &w));
    if (!*w.file) {
        st = tr_node_fail(n, "model.init_from.file: expected a file, found \"\"");
        goto out;
    }
    out->file = w.file;
    out->strict = w.strict;
    w.file = NULL;
    st = tr_renames_read(&w.names, "model.init_from", &out->names);
out:
    tr_free(w.file);
    if (st != TR_OK) tr_init_from_free(out);
    return st;
}

void tr_init_from_free(tr_init_from *o)
{
    tr_free(o->file);
    tr_renames_free(&o->names);
    *o = (tr_init_from){.strict = true};
}
