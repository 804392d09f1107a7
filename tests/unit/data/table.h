/* Datasets of CSV tables that a test writes. */
#ifndef TEST_DATA_TABLE_H
#define TEST_DATA_TABLE_H

#include "helpers.h"

static inline void write_text(const world *w, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* A model of two values and two classes, trained on t.csv with labels "y". */
static inline void table_world(world *w, const char *text)
{
    world_open(w, 1, (int64_t[]){2}, 2);
    w->c.data.table.delimiter = ",";
    w->c.data.table.header = true;
    w->c.data.train = (tr_source_config){.present = true, .path = "t.csv", .labels = "y"};
    write_text(w, "t.csv", text);
}

static inline tr_dataset *opens_other(const world *w, const tr_source_config *s)
{
    tr_dataset *d = NULL;
    const tr_status st = tr_dataset_open(&w->c, s, &w->m, &d);
    if (st != TR_OK) fail_msg("%s: %s", tr_status_text(st), tr_last_error()->text);
    return d;
}

static inline void fails_other(const world *w, const tr_source_config *s, tr_status want,
                               const char *text)
{
    tr_dataset *d = NULL;
    assert_int_equal(tr_dataset_open(&w->c, s, &w->m, &d), want);
    if (!strstr(tr_last_error()->text, text))
        fail_msg("no \"%s\" in: %s", text, tr_last_error()->text);
}

#endif
