/* What is in a run file, and how two differ. Works from the files alone. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

static const char *first_fault(const tr_summary *s)
{
    if (s->ix.root_fault[0]) return s->ix.root_fault;
    if (s->ix.train_fault[0]) return s->ix.train_fault;
    for (size_t i = 0; i < s->ix.count; i++)
        if (s->faults[i]) return s->faults[i];
    return s->history_fault ? s->history_fault : s->lineage_fault;
}

tr_status tr_store_inspect(const char *path, bool json, int width, FILE *to)
{
    tr_summary s;
    tr_trained t;
    tr_status st = tr_summary_open(path, &s);
    if (st != TR_OK) return st;
    TR_TRY(tr_trained_open(&s, &t));
    if (json)
        tr_inspect_json(&s, &t, to);
    else
        tr_inspect_text(&s, &t, width > 0 ? width : 80, to);
    if (s.nfaults > 0)
        st = TR_FAIL(TR_FILE, "%s: damaged: %s%s", path, first_fault(&s),
                     s.nfaults > 1 ? " (and more)" : "");
out:
    tr_trained_close(&t);
    tr_summary_close(&s);
    return st;
}
