/* Trials that a sweep before has done and this one does not have, for it was gone on with and has fewer: what they came to
 * took its time, and stays in sweep.csv, with what their configs say of this sweep's settings. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "trainer/sweep/internal.h"

static tr_status read_values(const tr_sweep *s, const char *folder, tr_earlier_trial *t)
{
    tr_status st = TR_OK;
    tr_document doc = {NULL, NULL};
    char *text = NULL, *path = tr_sprintf("%s/config.yaml", folder);
    size_t n;
    TR_HAVE(path);
    TR_HAVE(t->values = tr_alloc(TR_MEM_OTHER, s->ncolumns + 1, sizeof *t->values));
    tr_status looked = tr_read_text(path, &text, &n);
    if (looked == TR_OK) looked = tr_document_parse(path, text, n, &doc);
    TR_TRY(tr_unread(looked));
    for (size_t k = 0; looked == TR_OK && k < s->ncolumns; k++) {
        const tr_node *value = tr_node_at(doc.root, s->columns[k]->text, NULL);
        if (value) TR_TRY(tr_node_line(value, &t->values[k]));
    }
out:
    tr_document_close(&doc);
    tr_free(text);
    tr_free(path);
    return st;
}

static tr_status add(tr_sweep *s, const char *folder, size_t number)
{
    tr_status st;
    bool done;
    tr_trial_result result;
    TR_TRY(tr_record_look(folder, &result, &done));
    if (!done) goto out;
    tr_earlier_trial *more =
        tr_realloc(TR_MEM_OTHER, s->earlier, s->nearlier + 1, sizeof *s->earlier);
    TR_HAVE(more);
    s->earlier = more;
    size_t at = s->nearlier++;
    for (; at > 0 && more[at - 1].number > number; at--) more[at] = more[at - 1];
    more[at] = (tr_earlier_trial){.number = number, .result = result};
    st = read_values(s, folder, &more[at]);
out:
    return st;
}

tr_status tr_sweep_find_earlier(tr_sweep *s)
{
    tr_status st;
    glob_t found = {0};
    size_t n;
    TR_TRY(tr_sweep_folders(s, &found, &n));
    for (size_t i = 0; i < n; i++) {
        const size_t number = strtoul(strrchr(found.gl_pathv[i], '-') + 1, NULL, 10);
        if (number >= s->planned) TR_TRY(add(s, found.gl_pathv[i], number));
    }
    if (s->nearlier > 0)
        tr_log(TR_LOG_WARN,
               "%s holds %zu trial%s of before that this sweep does not have, from trial %zu on: "
               "they stay, and are `earlier` in sweep.csv, but are not held against the others",
               s->spec.output, s->nearlier, s->nearlier == 1 ? "" : "s", s->earlier[0].number);
out:
    globfree(&found);
    return st;
}

void tr_sweep_free_earlier(tr_sweep *s)
{
    for (size_t i = 0; i < s->nearlier; i++) {
        for (size_t k = 0; s->earlier[i].values && k < s->ncolumns; k++)
            tr_free(s->earlier[i].values[k]);
        tr_free(s->earlier[i].values);
    }
    tr_free(s->earlier);
}
