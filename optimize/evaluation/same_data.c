/* Samples that all ranks read. Each opens files of its own, and those of another host may be others: what they hold is
 * compared before any of it is used, so that no number is of two data sets. */
#include "optimize/evaluation/evaluation.h"

#include <stdlib.h>

const char *tr_over_source_name(tr_over_source s)
{
    static const char *const names[] = {"data.eval", "data.train", "data.predict"};
    return names[s];
}

const tr_source_config *tr_over_source_config(const tr_config *c, tr_over_source s)
{
    const tr_source_config *const sources[] = {&c->data.eval, &c->data.train, &c->data.predict};
    return sources[s];
}

/* Allocated by open_memstream. */
static tr_status describe(tr_dataset *d, const char *block, uint64_t seed, char **text)
{
    size_t n;
    FILE *to = open_memstream(text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory to describe the data");
    const tr_status st = tr_dataset_describe(d, block, seed, to);
    if (fclose(to) != 0 && st == TR_OK) return TR_FAIL(TR_MEMORY, "no memory to describe the data");
    return st;
}

tr_status tr_same_data_open(tr_comm *comm, const tr_config *c, tr_over_source s, const tr_model *m,
                            tr_dataset **out)
{
    char *text = NULL;
    tr_dataset *d = NULL;
    tr_comm_busy(comm, TR_BUSY_READS);
    tr_status st = tr_dataset_open(c, tr_over_source_config(c, s), m, &d);
    if (st == TR_OK && tr_comm_topology(comm)->size > 1)
        st = describe(d, tr_over_source_name(s), (uint64_t)c->seed, &text);
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    if (text) TR_TRY(tr_same_text(comm, TR_DIFFERENT, "the data", text));
    *out = d;
    d = NULL;
out:
    tr_dataset_close(d);
    free(text);
    return st;
}
