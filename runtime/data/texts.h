/* Private to the data room: texts of a column. Different ones, with how often each stands there;
 * places in a list, found by text. All Local. */
#ifndef TR_DATA_TEXTS_H
#define TR_DATA_TEXTS_H

#include "runtime/base/base.h"

typedef struct {
    char *text; /* owned; NULL: free */
    uint64_t count;
} tr_text;

/* A hash table, at most half full. Begins as {.most = ...}. */
typedef struct {
    tr_text *v; /* [room] */
    size_t count, room;
    size_t most; /* that are held */
} tr_texts;
/* *many: it was one too many, and none is held any more. */
tr_status tr_texts_add(tr_texts *t, const char *text, bool *many);
void tr_texts_forget(tr_texts *t);

/* A text that is borrowed, and where it stands. */
typedef struct {
    const char *text;
    size_t place;
} tr_text_place;
/* By text, then by place. */
void tr_text_places_sort(tr_text_place *v, size_t count);
/* Of a text in a sorted list: its first one; NULL: it is not there. */
const tr_text_place *tr_text_places_find(const tr_text_place *v, size_t count, const char *text);

#endif
