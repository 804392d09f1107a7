/* Packed files: those of models with rows in fewer bits, where a config is as long as some layers.
 * Their long texts are deflated, and their small arrays have one checksum together. */
#include "runtime/base/crc32c.h"
#include "runtime/store/metadata.h"

#include <string.h>
#include <zlib.h>

enum {
    LONG = 128,    /* bytes of a text from which on it is deflated */
    MOST_RATIO = 8 /* so that a file takes no more memory than so many times its size */
};

tr_status tr_text_deflate(const char *text, void **out, size_t *nbytes)
{
    const size_t n = strlen(text);
    *out = NULL;
    if (n < LONG) return TR_OK;
    uLongf made = compressBound((uLong)n);
    void *bytes = tr_alloc(TR_MEM_OTHER, made, 1);
    if (!bytes) return tr_last_status();
    if (compress2(bytes, &made, (const Bytef *)text, (uLong)n, Z_BEST_COMPRESSION) != Z_OK ||
        made >= n || made < n / MOST_RATIO + 1) {
        tr_free(bytes);
        return TR_OK;
    }
    *out = bytes;
    *nbytes = made;
    return TR_OK;
}

tr_status tr_text_inflate(const void *bytes, size_t nbytes, size_t most, char **out)
{
    *out = NULL;
    if (nbytes > most) return TR_OK;
    if (nbytes < most / MOST_RATIO) most = nbytes * MOST_RATIO;
    char *text = tr_alloc(TR_MEM_OTHER, most + 1, 1);
    if (!text) return tr_last_status();
    uLongf made = (uLongf)most;
    uLong taken = (uLong)nbytes;
    if (uncompress2((Bytef *)text, &made, bytes, &taken) != Z_OK || taken != nbytes) {
        tr_free(text);
        return TR_OK;
    }
    text[made] = 0;
    *out = text;
    return TR_OK;
}

uint32_t tr_together_part(const char *where, uint32_t crc)
{
    return tr_crc32c(tr_crc32c(0, where, strlen(where) + 1), &crc, sizeof crc);
}

/* What / says they must be; false: nothing. */
static bool expected(const tr_header *root, uint32_t *sum)
{
    tr_attribute at;
    for (size_t i = 0; i < root->count; i++) {
        if (root->v[i].kind != TR_MSG_ATTRIBUTE || !tr_msg_attribute(root->v[i].body, &at) ||
            strcmp(at.name, TR_TOGETHER_SUM) != 0 || at.type.kind != TR_STORED_U32 ||
            at.space.ndim > 0 || at.space.null)
            continue;
        memcpy(sum, at.value, sizeof *sum);
        return true;
    }
    return false;
}

tr_status tr_together_read(tr_index *ix, const tr_header *root)
{
    tr_status st = TR_OK;
    const bool known = expected(root, &ix->expected);
    for (size_t i = 0; i < ix->count; i++) {
        tr_entry *e = &ix->entries[i];
        uint8_t bytes[TR_TOGETHER];
        if (!e->together || e->fault[0]) continue;
        if (!known) {
            tr_entry_fault(e, "it has no checksum (attribute crc32c, a uint32)");
            continue;
        }
        TR_TRY(tr_entry_piece(ix, e, 0, bytes, e->nbytes));
        e->crc = tr_crc32c(0, bytes, e->nbytes);
        ix->together += tr_together_part(e->where, e->crc);
    }
out:
    return st;
}
