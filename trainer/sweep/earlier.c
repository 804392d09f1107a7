/* Trials that a sweep before has done and this one does not have: what they came to took its time,
 * and stays in sweep.csv, with the settings that their records have. Of this sweep's other keys,
 * and where a record of an earlier version has none, their configs say what they were. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "trainer/sweep/internal.h"

static tr_status read_config(const tr_sweep *s, const char *folder, char **values)
{
    tr_status st = TR_OK;
    tr_document doc = {NULL, NULL};
    char *text = NULL, *path = tr_sprintf("%s/config.yaml", folder);
    size_t n;
    TR_HAVE(path);
    tr_status looked = tr_read_text(path, &text, &n);
    if (looked == TR_OK) looked = tr_document_parse(path, text, n, &doc);
    TR_TRY(tr_unread(looked));
    for (size_t k = 0; looked == TR_OK && k < s->ncolumns; k++) {
        const tr_node *value = tr_node_at(doc.root, s->columns[k]->text, NULL);
        if (value && !values[k]) TR_TRY(tr_node_line(value, &values[k]));
    }
out:
    tr_document_close(&doc);
    tr_free(text);
    tr_free(path);
    return st;
}

static tr_status read_one(const tr_sweep *s, tr_known_trial *t)
{
    tr_status st = TR_OK;
    char *folder = tr_sweep_folder(s, t->number);
    bool found, all = true;
    TR_HAVE(folder);
    TR_HAVE(t->result = TR_NEW(TR_MEM_OTHER, tr_trial_result));
    TR_HAVE(t->values = tr_alloc(TR_MEM_OTHER, s->ncolumns + 1, sizeof *t->values));
    TR_TRY(tr_record_values(s, folder, t->result, t->values, &found));
    if (!found) t->state = TR_TRIAL_OPEN; /* it went meanwhile */
    for (size_t k = 0; k < s->ncolumns; k++) all = all && t->values[k];
    if (found && !all) TR_TRY(read_config(s, folder, t->values));
out:
    tr_free(folder);
    return st;
}

tr_status tr_sweep_read_earlier(const tr_sweep *s)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < s->nknown; i++)
        if (tr_is_earlier(&s->known[i]) && !s->known[i].result) TR_TRY(read_one(s, &s->known[i]));
out:
    return st;
}

tr_status tr_sweep_earlier_text(const tr_sweep *s, char **out)
{
    enum { SHOWN = 8 };
    tr_status st = TR_OK;
    size_t n = 0;
    char numbers[SHOWN * 24] = "", more[40] = "";
    *out = NULL;
    for (size_t i = 0; i < s->nknown; i++) {
        if (!tr_is_earlier(&s->known[i])) continue;
        const size_t length = strlen(numbers);
        if (n++ < SHOWN)
            snprintf(numbers + length, sizeof numbers - length, "%s%zu", n > 1 ? ", " : "",
                     s->known[i].number);
    }
    if (n > SHOWN) snprintf(more, sizeof more, " and %zu more", n - SHOWN);
    if (n > 0)
        TR_HAVE(*out = tr_sprintf("%zu trial%s of before (%s%s)", n, n == 1 ? "" : "s", numbers,
                                  more));
out:
    return st;
}
