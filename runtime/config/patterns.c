/* Patterns of names: a * stands for any text. And train.groups, which names parameters by them. */
#include "runtime/config/patterns.h"

#include <string.h>

#include "runtime/config/schema.h"

size_t tr_pattern_stars(const char *pattern)
{
    size_t n = 0;
    for (; *pattern; pattern++) n += *pattern == '*';
    return n;
}

/* A pattern that is being matched. */
typedef struct {
    tr_capture caps[TR_PATTERN_STARS];
    tr_pattern_take *take;
    void *arg;
} matching;

static bool match(const char *pattern, const char *name, size_t stars, matching *m)
{
    for (; *pattern && *pattern != '*'; pattern++, name++)
        if (*pattern != *name) return false;
    if (!*pattern) return !*name && m->take(m->arg, m->caps);
    if (stars == TR_PATTERN_STARS) return false; /* refused where patterns are read */
    for (size_t n = 0;; n++) {
        m->caps[stars] = (tr_capture){name, n};
        if (match(pattern + 1, name + n, stars + 1, m)) return true;
        if (!name[n]) return false;
    }
}

bool tr_pattern_each(const char *pattern, const char *name, tr_pattern_take *take, void *arg)
{
    matching m = {.take = take, .arg = arg};
    return match(pattern, name, 0, &m);
}

static bool take_first(void *caps, const tr_capture *found)
{
    memcpy(caps, found, TR_PATTERN_STARS * sizeof *found);
    return true;
}

bool tr_pattern_match(const char *pattern, const char *name, tr_capture *caps)
{
    return tr_pattern_each(pattern, name, take_first, caps);
}

static size_t pattern_count(const tr_node *n)
{
    return tr_node_empty(n) ? 0 : n->kind == TR_NODE_LIST ? n->count : 1;
}

static const tr_node *pattern_at(const tr_node *n, size_t i)
{
    return n->kind == TR_NODE_LIST ? n->values[i] : n;
}

bool tr_patterns_match(const tr_node *patterns, const char *name)
{
    tr_capture caps[TR_PATTERN_STARS];
    for (size_t i = 0; i < pattern_count(patterns); i++)
        if (tr_pattern_match(pattern_at(patterns, i)->text, name, caps)) return true;
    return false;
}

tr_status tr_patterns_check(const tr_node *patterns, const char *key)
{
    char show[TR_SHOW];
    for (size_t i = 0; i < pattern_count(patterns); i++) {
        const tr_node *n = pattern_at(patterns, i);
        if (n->kind != TR_NODE_SCALAR || !*n->text || tr_pattern_stars(n->text) > TR_PATTERN_STARS)
            return tr_node_fail(
                n,
                "%s: found %s, expected a pattern of names such as \"conv1.*\", with at "
                "most %d *",
                key, tr_node_show(n, show), TR_PATTERN_STARS);
    }
    return TR_OK;
}

/* The nearest name, or LAYER.* of one. */
static const char *nearest(const char *pattern, const char *const *names, size_t count,
                           char layer[TR_PATH])
{
    const char *best = tr_nearest(pattern, names, count);
    for (size_t i = 0; i < count && !best; i++) {
        const char *dot = strrchr(names[i], '.');
        if (!dot || dot - names[i] > TR_PATH - 3) continue;
        snprintf(layer, TR_PATH, "%.*s.*", (int)(dot - names[i]), names[i]);
        best = tr_nearest(pattern, (const char *const[]){layer}, 1);
    }
    return best;
}

static bool matches_any(const char *pattern, const char *const *names, size_t count)
{
    tr_capture caps[TR_PATTERN_STARS];
    size_t k = 0;
    while (k < count && !tr_pattern_match(pattern, names[k], caps)) k++;
    return k < count;
}

tr_status tr_patterns_find(const tr_node *patterns, const char *key, const char *what,
                           const char *const *names, size_t count)
{
    for (size_t i = 0; i < pattern_count(patterns); i++) {
        const tr_node *n = pattern_at(patterns, i);
        char layer[TR_PATH];
        if (matches_any(n->text, names, count)) continue;
        return tr_name_missing(n, key, what, nearest(n->text, names, count, layer), names, count);
    }
    return TR_OK;
}

void tr_patterns_left(const tr_node *patterns, const char *const *names, size_t count, FILE *left,
                      FILE *gone)
{
    const char *between = "";
    fputc('[', left);
    for (size_t i = 0; i < pattern_count(patterns); i++) {
        const char *text = pattern_at(patterns, i)->text;
        if (!matches_any(text, names, count)) {
            fprintf(gone, "%s\"%s\"", ftell(gone) > 0 ? ", " : "", text);
            continue;
        }
        char *quoted = tr_yaml_quoted(text);
        fprintf(left, "%s%s", between, quoted ? quoted : "");
        between = ", ";
        tr_free(quoted);
    }
    fputc(']', left);
}

/* ---- train.groups ---------------------------------------------------------------------------- */

static const char *const switches[] = {"false", "true", "auto", NULL};
const tr_field tr_group_fields[] = {
    TR_SHAPED("match", offsetof(tr_group_config, match), NULL, "a pattern, or a list of them",
              TR_SCHEMA_NAMES),
    TR_REAL("lr", offsetof(tr_group_config, lr), "auto", 0, 1e6, NULL, "learning rate",
            .auto_text = "auto", .auto_value = -1),
    TR_REAL("weight_decay", offsetof(tr_group_config, weight_decay), "auto", 0, 1000, NULL,
            "weight decay", .auto_text = "auto", .auto_value = -1),
    TR_CHOICE("decay_all", offsetof(tr_group_config, decay_all), switches, "auto",
              "weight decay for biases and norms too"),
    TR_REAL("momentum", offsetof(tr_group_config, momentum), "auto", 0, 0.999999, NULL, "momentum",
            .auto_text = "auto", .auto_value = -1),
    TR_REAL("beta1", offsetof(tr_group_config, beta1), "auto", 0, 0.999999, NULL,
            "of the optimizer", .auto_text = "auto", .auto_value = -1),
    TR_REAL("beta2", offsetof(tr_group_config, beta2), "auto", 0, 0.999999, NULL,
            "of the optimizer", .was = "alpha", .auto_text = "auto", .auto_value = -1),
    TR_REAL("eps", offsetof(tr_group_config, eps), "auto", 1e-30, 1, NULL, "of the optimizer",
            .auto_text = "auto", .auto_value = -1),
    TR_END,
};

/* What the optimizer has, a group may have for itself; momentum only where there is a buffer for
 * it. */
static tr_status check_rates(const tr_config *c, const tr_node *n, const char *path,
                             const tr_group_config *g)
{
    const int kind = c->train.optimizer.kind.which;
    const bool adam = kind == TR_OPT_ADAMW || kind == TR_OPT_ADAM || kind == TR_OPT_LAMB;
    const bool momentum = kind == TR_OPT_SGD || kind == TR_OPT_LARS || kind == TR_OPT_RMSPROP;
    const struct {
        const char *key;
        double value;
        bool there;
    } keys[] = {{"momentum", g->momentum, momentum},
                {"beta1", g->beta1, adam || kind == TR_OPT_LION},
                {kind == TR_OPT_RMSPROP ? "alpha" : "beta2", g->beta2,
                 adam || kind == TR_OPT_LION || kind == TR_OPT_RMSPROP},
                {"eps", g->eps, adam || kind == TR_OPT_RMSPROP}};
    for (size_t i = 0; i < TR_COUNT(keys); i++)
        if (keys[i].value >= 0 && !keys[i].there)
            return tr_node_fail(n, "%s.%s: train.optimizer has none", path, keys[i].key);
    if (g->momentum > 0 && c->train.optimizer.o.momentum == 0)
        return tr_node_fail(n,
                            "%s.momentum: train.optimizer.momentum is 0: expected momentum there, "
                            "and 0 in groups without",
                            path);
    return TR_OK;
}

static tr_status read_group(const tr_config *c, const tr_node *n, size_t i, tr_group_config *g)
{
    tr_status st;
    char path[TR_PATH], at[2 * TR_PATH];
    snprintf(path, sizeof path, "train.groups.%zu", i);
    TR_TRY(tr_fields_read(n, tr_group_fields, path, g));
    g->at = n;
    snprintf(at, sizeof at, "%s.match", path);
    if (tr_node_empty(g->match))
        return tr_node_fail(n, "%s: expected a pattern of names, or a list of them", at);
    TR_TRY(tr_patterns_check(g->match, at));
    if (g->lr >= 0 && c->train.optimizer.o.lr == 0)
        return tr_node_fail(
            n, "%s.lr: train.optimizer.lr is 0: the schedule has no shape to follow", path);
    st = check_rates(c, n, path, g);
out:
    return st;
}

tr_status tr_config_groups(const tr_config *c, tr_group_config **out, size_t *count)
{
    const tr_node *n = c->train.groups;
    tr_status st = TR_OK;
    char show[TR_SHOW];
    tr_group_config *g = NULL;
    *out = NULL;
    *count = 0;
    if (tr_node_empty(n)) return TR_OK;
    if (n->kind != TR_NODE_LIST)
        return tr_node_fail(n,
                            "train.groups: found %s, expected a list of maps {match, lr, "
                            "weight_decay, ...}",
                            tr_node_show(n, show));
    TR_HAVE(g = tr_alloc(TR_MEM_OTHER, n->count, sizeof *g));
    for (size_t i = 0; i < n->count; i++) TR_TRY(read_group(c, n->values[i], i, &g[i]));
    *out = g;
    *count = n->count;
    g = NULL;
out:
    tr_free(g);
    return st;
}
