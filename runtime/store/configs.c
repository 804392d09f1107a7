/* The configs that a run went by: attributes of /. `config` is the one in force, since step
 * `config_step`; `past_config_00000000` the one that was, from that step to where the next one
 * began. A run whose config never changed has `config` alone. */
#include "runtime/store/internal.h"

#include <stdlib.h>
#include <string.h>

#define PAST "past_config_"
enum {
    MOST = 64
}; /* a file keeps; a job that is requeued with other settings has one more each time */

tr_status tr_past_configs_write(const tr_past_configs *p, tr_attrs *root)
{
    tr_status st = TR_OK;
    char name[TR_NAME];
    if (p->count < 2) return TR_OK;
    for (size_t i = 0; i + 1 < p->count; i++) {
        snprintf(name, sizeof name, PAST "%08llu", (unsigned long long)p->v[i].step);
        TR_TRY(tr_attrs_add_text(root, name, p->v[i].text));
    }
    TR_TRY(tr_attrs_add_count(root, "config_step", p->v[p->count - 1].step));
out:
    return st;
}

tr_status tr_past_configs_add(tr_past_configs *p, uint64_t step, const char *text)
{
    tr_status st = TR_OK;
    struct tr_past_config *grown;
    char *copy = tr_strdup(text);
    TR_HAVE(copy);
    while (p->count > 0 && p->v[p->count - 1].step >= step) tr_free(p->v[--p->count].text);
    if (p->count >= MOST) { /* the first one stays, and the newest */
        tr_free(p->v[1].text);
        memmove(p->v + 1, p->v + 2, (--p->count - 1) * sizeof *p->v);
    }
    TR_HAVE(grown = tr_realloc(TR_MEM_OTHER, p->v, p->count + 1, sizeof *grown));
    p->v = grown;
    p->v[p->count++] = (struct tr_past_config){step, copy};
    return TR_OK;
out:
    tr_free(copy);
    return st;
}

static int by_step(const void *a, const void *b)
{
    const struct tr_past_config *x = a, *y = b;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* Those before the one in force, by their step. */
static tr_status read_past(const tr_attrs *root, tr_past_configs *out)
{
    const size_t length = strlen(PAST);
    out->v = tr_alloc(TR_MEM_OTHER, root->count + 1, sizeof *out->v);
    if (!out->v) return tr_last_status();
    for (size_t i = 0; i < root->count; i++) {
        const tr_attr *a = &root->v[i];
        if (strncmp(a->name, PAST, length) != 0 || a->kind != TR_ATTR_TEXT) continue;
        char *copy = tr_strdup(a->text);
        if (!copy) return tr_last_status();
        out->v[out->count++] = (struct tr_past_config){strtoull(a->name + length, NULL, 10), copy};
    }
    if (out->count > 0) qsort(out->v, out->count, sizeof *out->v, by_step);
    return TR_OK;
}

tr_status tr_past_configs_read(const char *path, tr_past_configs *out)
{
    tr_status st;
    tr_index ix;
    char *text = NULL;
    *out = (tr_past_configs){0};
    TR_TRY(tr_store_config(path, &text));
    TR_TRY(tr_index_open(path, &ix));
    const tr_attr *step = tr_attrs_get(&ix.root, "config_step");
    const uint64_t began = step && step->kind == TR_ATTR_COUNT ? step->u : 0;
    st = read_past(&ix.root, out);
    tr_index_close(&ix);
    if (st == TR_OK) st = tr_past_configs_add(out, began, text);
out:
    tr_free(text);
    if (st != TR_OK) tr_past_configs_free(out);
    return st;
}

void tr_past_configs_free(tr_past_configs *p)
{
    for (size_t i = 0; i < p->count; i++) tr_free(p->v[i].text);
    tr_free(p->v);
    *p = (tr_past_configs){0};
}
