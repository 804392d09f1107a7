/* A text or a file of tokens, looked at: how many there are, and of how many kinds. */
#include "runtime/data/look_table.h"

tr_status tr_look_at_tokens(const char *path, const char *labels, tr_look *l)
{
    enum { LEAST = 32 };
    tr_status st = TR_OK;
    uint64_t most;
    const bool text = l->format == TR_FORMAT_TEXT;
    TR_NEED(!labels, TR_DATA, "%s: the labels of tokens are the tokens behind them, not \"%s\"",
            path, labels);
    l->dtype = !text && tr_tokens_wide(path) ? TR_TOKENS_U32 : TR_TOKENS_AUTO;
    TR_TRY(tr_tokens_count(path, text ? -1 : l->dtype, &l->samples, &most));
    TR_NEED(l->samples >= LEAST, TR_DATA, "%s: %llu tokens, expected %d at least", path,
            (unsigned long long)l->samples, LEAST);
    TR_NEED(most < INT32_MAX, TR_DATA, "%s: token %llu, expected less than %d", path,
            (unsigned long long)most, INT32_MAX);
    l->vocabulary = text ? 256 : (int64_t)most + 1;
    TR_HAVE(l->train.path = tr_strdup(path));
    if (l->dtype == TR_TOKENS_U32)
        st = tr_look_note(l, tr_strdup("dtype: uint32 is a guess, by how its numbers look; where "
                                       "they have 16 bits: dtype: uint16"));
out:
    return st;
}
