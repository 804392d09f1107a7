/* Sizes of memory as texts, and the keys that take them; keys whose values memory chose. */
#include "runtime/config/internal.h"

#include <stdlib.h>
#include <string.h>

bool tr_parse_size(const char *text, size_t *nbytes)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},
                 {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    if (!strchr("0123456789.", *text)) return false;
    char *end;
    const double n = strtod(text, &end);
    while (end != text && *end == ' ') end++;
    for (size_t i = 0; end != text && i < TR_COUNT(units); i++) {
        if (strcmp(end, units[i].name) != 0 || !(n * units[i].bytes >= 1)) continue;
        if (!(n * units[i].bytes <= 1e18)) return false;
        *nbytes = (size_t)(n * units[i].bytes);
        return true;
    }
    return false;
}

size_t tr_memory_limit_of(const tr_config *c)
{
    size_t nbytes = 0;
    if (strcmp(c->run.memory_limit, "auto") == 0) return TR_MEMORY_AUTO;
    return tr_parse_size(c->run.memory_limit, &nbytes) ? nbytes : 0;
}

tr_status tr_memory_check(const tr_config *c)
{
    size_t nbytes;
    char show[TR_SHOW];
    const char *text = c->run.memory_limit;
    if (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0 || tr_parse_size(text, &nbytes))
        return TR_OK;
    const tr_node *run = tr_node_get(c->document.root, "run");
    return tr_node_fail(tr_node_get(run, "memory_limit"),
                        "run.memory_limit: found %s, expected none, auto, or a size such as 8GiB, "
                        "512MB",
                        tr_text_show(text, show));
}

/* ---- What memory chose -------------------------------------------------------------------------------- */

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
