/* Maps of names as they are written. */
#include "runtime/config/internal.h"
#include "runtime/config/patterns.h"

/* A map of patterns with what each becomes, or a list of patterns alone. */
typedef struct {
    tr_node_kind kind;
    const char *name, *expected;
    bool numbers; /* is what they become */
} form;

static const form map_form = {TR_NODE_MAP, "map",
                              "a map of patterns, such as {\"backbone.*\": \"*\", \"fc.*\": \"\"}",
                              false};
static const form transpose_form = {TR_NODE_LIST, "transpose",
                                    "a list of patterns, such as [\"*.c_attn.weight\"]", false};
static const form ndim_form = {TR_NODE_MAP, "ndim",
                               "a map of patterns, such as {\"*.cls_token\": 3}", true};

/* What a pattern becomes, where it becomes anything. */
static tr_status check_target(const tr_node *from, const tr_node *to, const form *f,
                              const char *key)
{
    char show[TR_SHOW];
    const char *n = to->text;
    if (!f->numbers && tr_pattern_stars(n) > tr_pattern_stars(from->text))
        return tr_node_fail(from, "%s.%s: \"%s\": \"%s\": expected no more * on the right", key,
                            f->name, from->text, n);
    if (f->numbers && (n[0] < '1' || n[0] > '0' + TR_RENAMES_NDIM || n[1]))
        return tr_node_fail(to, "%s.%s: \"%s\": found %s, expected 1 to %d dimensions", key,
                            f->name, from->text, tr_node_show(to, show), TR_RENAMES_NDIM);
    return TR_OK;
}

static tr_status check_pattern(const tr_node *from, const tr_node *to, const form *f,
                               const char *key)
{
    char show[TR_SHOW];
    const tr_node *text = to ? to : from;
    if (text->kind != TR_NODE_SCALAR)
        return tr_node_fail(text, "%s.%s: found %s, expected a name%s", key, f->name,
                            tr_node_show(text, show), to ? "" : " or a pattern");
    if (tr_pattern_stars(from->text) > TR_PATTERN_STARS)
        return tr_node_fail(from, "%s.%s: \"%s\": expected at most %d *", key, f->name, from->text,
                            TR_PATTERN_STARS);
    return to ? check_target(from, to, f, key) : TR_OK;
}

/* *out: allocated; NULL where nothing is written. */
static tr_status read_patterns(const tr_node *n, const form *f, const char *key, tr_rename **out,
                               size_t *count)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    if (tr_node_empty(n)) return TR_OK;
    if (n->kind != f->kind)
        return tr_node_fail(n, "%s.%s: found %s, expected %s", key, f->name, tr_node_show(n, show),
                            f->expected);
    TR_HAVE(*out = tr_alloc(TR_MEM_OTHER, n->count, sizeof **out));
    for (size_t i = 0; i < n->count; i++) {
        const bool map = f->kind == TR_NODE_MAP;
        const tr_node *from = map ? n->keys[i] : n->values[i], *to = map ? n->values[i] : NULL;
        TR_TRY(check_pattern(from, to, f, key));
        (*out)[i] = (tr_rename){from->text, to ? to->text : NULL};
        *count = i + 1;
    }
out:
    return st;
}

tr_status tr_renames_read(const tr_renames_written *w, const char *key, tr_renames *out)
{
    tr_status st;
    *out = (tr_renames){.at = *w};
    snprintf(out->key, sizeof out->key, "%s", key);
    TR_TRY(read_patterns(w->map, &map_form, key, &out->rules, &out->nrules));
    TR_TRY(read_patterns(w->transpose, &transpose_form, key, &out->transposed, &out->ntransposed));
    st = read_patterns(w->ndim, &ndim_form, key, &out->ranks, &out->nranks);
out:
    if (st != TR_OK) tr_renames_free(out);
    return st;
}

void tr_renames_free(tr_renames *r)
{
    tr_free(r->rules);
    tr_free(r->transposed);
    tr_free(r->ranks);
    *r = (tr_renames){.rules = NULL};
}
