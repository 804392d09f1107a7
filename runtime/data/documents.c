/* Documents of a stream of tokens, cut into pieces of T inputs: one pass over all tokens. With a
 * separator a document begins with it, or with the file, and goes up to the next one, which is its
 * last label, whether separators are written before documents or behind them. None goes on in
 * another file. A separator that the next one follows is an empty document, which makes no piece:
 * that nothing comes is not learnt. So every token is an input once, but a file's last one and the
 * separators of empty documents; and no token is a label twice. */
#include "runtime/data/tokens.h"

typedef struct {
    tr_token_stream *s;
    size_t room;
    uint64_t pieces, separators;
} cutting;

static tr_status set_room(cutting *c, size_t room)
{
    tr_status st = TR_OK;
    tr_token_stream *s = c->s;
    uint64_t *begin = tr_realloc(TR_MEM_DATA, s->begin, room, sizeof *begin);
    TR_HAVE(begin);
    s->begin = begin;
    uint32_t *count = tr_realloc(TR_MEM_DATA, s->count, room, sizeof *count);
    TR_HAVE(count);
    s->count = count;
    c->room = room;
    s->index = room * (sizeof *begin + sizeof *count);
out:
    return st;
}

/* Inputs [from, to) of one document, whose next token is a separator or the file's last. */
static tr_status add_document(cutting *c, uint64_t from, uint64_t to, bool bare)
{
    tr_status st = TR_OK;
    if (bare && to - from == 1) return TR_OK; /* an empty document */
    for (uint64_t at = from; at < to; at += c->s->T) {
        const uint64_t left = to - at;
        if (c->pieces == c->room) TR_TRY(set_room(c, c->room ? 2 * c->room : 1024));
        c->s->begin[c->pieces] = at;
        c->s->count[c->pieces++] = (uint32_t)(left < c->s->T ? left : c->s->T);
    }
out:
    return st;
}

/* Tokens [from, end), all of a file. */
static tr_status cut_file(cutting *c, uint64_t from, uint64_t end, char *block, size_t most)
{
    const tr_token_stream *s = c->s;
    bool bare = false;
    tr_status st = TR_OK;
    for (uint64_t at = from; at < end; at += most) {
        const uint64_t n = end - at < most ? end - at : most;
        TR_TRY(tr_token_stream_read(s, at, n, block));
        for (uint64_t k = 0; k < n; k++) {
            if (tr_elem_value(s->flat->elem, block, (size_t)k) != (double)s->separator) continue;
            if (at + k > from) TR_TRY(add_document(c, from, at + k, bare));
            from = at + k;
            bare = true;
            c->separators++;
        }
    }
    if (end - 1 > from) TR_TRY(add_document(c, from, end - 1, false));
out:
    return st;
}

tr_status tr_documents_cut(tr_token_stream *s, uint64_t *pieces, uint64_t *separators)
{
    enum { BLOCK = 1 << 16 };
    cutting c = {.s = s};
    tr_status st = TR_OK;
    char *block = tr_alloc(TR_MEM_OTHER, BLOCK, s->flat->nbytes);
    TR_HAVE(block);
    for (size_t k = 0; k < s->files; k++)
        TR_TRY(cut_file(&c, k ? s->ends[k - 1] : 0, s->ends[k], block, BLOCK));
    if (c.pieces > 0) TR_TRY(set_room(&c, c.pieces)); /* no more than there are */
    *pieces = c.pieces;
    *separators = c.separators;
out:
    tr_free(block);
    return st;
}
