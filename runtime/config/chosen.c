/* Keys whose values memory chose: what the user had in their place. */
#include "runtime/config/chosen.h"
#include "runtime/config/internal.h"

#include <string.h>

static const struct {
    const char *path, *was, *back;
} chosen[] = {{"train.micro_batch", "auto", "train.micro_batch=auto"},
              {"train.micro_batch", "max", "train.micro_batch=max"},
              {"train.eval.batch", "auto", "train.eval.batch=auto"},
              {"train.recompute", "auto", "train.recompute=auto"},
              {"run.offload", "auto", "run.offload=auto"}};

static const tr_node *node_at(const tr_node *n, const char *path)
{
    char key[32];
    for (size_t k; n && *path; path += k + (path[k] == '.')) {
        k = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)k, path);
        n = tr_node_get(n, key);
    }
    return n;
}

size_t tr_config_unchoose(const tr_config *c, const char *overrides[TR_CHOSEN_MOST])
{
    size_t n = 0;
    for (size_t i = 0; i < TR_COUNT(chosen); i++) {
        const tr_node *was = node_at(c->run.chosen, chosen[i].path);
        if (was && was->kind == TR_NODE_SCALAR && strcmp(was->text, chosen[i].was) == 0)
            overrides[n++] = chosen[i].back;
    }
    if (n > 0) overrides[n++] = "run.chosen=null";
    return n;
}

const char *tr_config_asked(const tr_config *c, const char *path)
{
    const tr_node *was = node_at(c->run.chosen, path);
    return was && was->kind == TR_NODE_SCALAR ? was->text : NULL;
}

/* accumulate says in the place of micro_batch how the batch is cut. */
void tr_chosen_forget(tr_document *doc, const char *path)
{
    char below[TR_PATH + 16];
    const tr_node *run = tr_node_get(doc->root, "run"), *all = tr_node_get(run, "chosen");
    if (!all) return;
    if (strcmp(path, "train.accumulate") == 0 && node_at(all, "train.micro_batch")) {
        tr_document_drop(doc, "train.micro_batch");
        tr_document_drop(doc, "run.chosen.train.micro_batch");
    }
    snprintf(below, sizeof below, "run.chosen.%s", path);
    tr_document_drop(doc, below);
}
