/* Different texts as a hash table with linear probing (FNV-1a), and places by text as a sorted
 * list. */
#include "runtime/data/texts.h"

#include <stdlib.h>
#include <string.h>

/* ---- Different ones -------------------------------------------------------------------------- */

static uint64_t hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
    return h;
}

static tr_text *place_of(const tr_texts *t, const char *s)
{
    size_t i = hash(s) & (t->room - 1);
    while (t->v[i].text && strcmp(t->v[i].text, s) != 0) i = (i + 1) & (t->room - 1);
    return &t->v[i];
}

void tr_texts_forget(tr_texts *t)
{
    for (size_t i = 0; i < t->room; i++) tr_free(t->v[i].text);
    tr_free(t->v);
    t->v = NULL;
    t->room = 0;
}

static tr_status grow(tr_texts *t)
{
    tr_texts wider = {.room = t->room ? 2 * t->room : 32, .count = t->count, .most = t->most};
    wider.v = tr_alloc(TR_MEM_OTHER, wider.room, sizeof *wider.v);
    if (!wider.v) return tr_last_status();
    for (size_t i = 0; i < t->room; i++)
        if (t->v[i].text) *place_of(&wider, t->v[i].text) = t->v[i];
    tr_free(t->v);
    *t = wider;
    return TR_OK;
}

tr_status tr_texts_add(tr_texts *t, const char *s, bool *many)
{
    tr_status st = TR_OK;
    if (2 * (t->count + 1) > t->room) TR_TRY(grow(t));
    tr_text *e = place_of(t, s);
    if (!e->text) {
        *many = t->count == t->most;
        if (*many) {
            tr_texts_forget(t);
            goto out;
        }
        TR_HAVE(e->text = tr_strdup(s));
        t->count++;
    }
    e->count++;
out:
    return st;
}

/* ---- Places ---------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    const tr_text_place *x = a, *y = b;
    const int order = strcmp(x->text, y->text);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

void tr_text_places_sort(tr_text_place *v, size_t count)
{
    qsort(v, count, sizeof *v, by_text);
}

const tr_text_place *tr_text_places_find(const tr_text_place *v, size_t count, const char *text)
{
    size_t low = 0, high = count; /* the first that is not before `text` is in [low, high] */
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (strcmp(v[mid].text, text) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < count && strcmp(v[low].text, text) == 0 ? &v[low] : NULL;
}
