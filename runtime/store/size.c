/* What of a run file is the model: all but the arrays of what its training left beside it. How
 * often that wrote a row of its history, or whether it is a checkpoint, says nothing of how large a
 * model is. */
#include "runtime/store/internal.h"

#include <string.h>

static bool is_beside(const char *where)
{
    static const char *const groups[] = {"/history/", "/optimizer/"};
    bool any = false;
    for (size_t i = 0; i < TR_COUNT(groups); i++)
        any = any || strncmp(where, groups[i], strlen(groups[i])) == 0;
    return any;
}

uint64_t tr_index_model_nbytes(const tr_index *ix)
{
    uint64_t nbytes = ix->nbytes;
    for (size_t i = 0; i < ix->count; i++) {
        const tr_entry *e =
            &ix->entries[i]; /* lies in the file, but may share its bytes with another */
        if (!e->fault[0] && is_beside(e->where) && e->nbytes < nbytes) nbytes -= e->nbytes;
    }
    return nbytes;
}

tr_status tr_store_model_nbytes(const char *path, uint64_t *nbytes)
{
    tr_index ix;
    const tr_status st = tr_index_open(path, &ix);
    if (st == TR_OK) *nbytes = tr_index_model_nbytes(&ix);
    tr_index_close(&ix);
    return st;
}
