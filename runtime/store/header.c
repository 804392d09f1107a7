/* Object headers of version 2: a chunk of messages with a checksum, and more of them elsewhere
 * (continuations). Section "Disk Format: Level 2A2". */
#include "runtime/store/metadata.h"

#include <string.h>

#define BLOCK_MAX ((uint64_t)16 << 20) /* a group's 65535 links of 255 bytes */

enum { HAS_ORDER = 0x04, HAS_PHASE = 0x10, HAS_TIMES = 0x20 }; /* flags of a header */

tr_status tr_metadata_block(tr_metadata *m, uint64_t at, uint64_t nbytes, const char *signature,
                            uint8_t **out)
{
    *out = NULL;
    if (nbytes > BLOCK_MAX || nbytes < 8 || at > m->nbytes || nbytes > m->nbytes - at) {
        tr_metadata_fault(m, "%s of %llu bytes at byte %llu does not lie in the file", signature,
                          (unsigned long long)nbytes, (unsigned long long)at);
        return TR_OK;
    }
    uint8_t *block = tr_alloc(TR_MEM_OTHER, 1, (size_t)nbytes);
    if (!block) return tr_last_status();
    tr_cursor sum = {.at = block + nbytes - 4, .left = 4};
    if (!tr_metadata_bytes(m, at, nbytes, signature, block)) goto damaged;
    if (memcmp(block, signature, 4) != 0) {
        tr_metadata_fault(m, "no %s at byte %llu", signature, (unsigned long long)at);
        goto damaged;
    }
    if (tr_metadata_checksum(block, (size_t)nbytes - 4) != tr_cursor_take(&sum, 4)) {
        tr_metadata_fault(m, "%s at byte %llu is damaged: its checksum does not fit", signature,
                          (unsigned long long)at);
        goto damaged;
    }
    *out = block;
    return TR_OK;
damaged:
    tr_free(block);
    return TR_OK;
}

tr_status tr_header_keep(tr_header *h, uint8_t *block)
{
    uint8_t **grown = tr_room_for_one(TR_MEM_OTHER, h->blocks, h->nblocks, sizeof *grown);
    if (!grown) {
        tr_free(block);
        return tr_last_status();
    }
    h->blocks = grown;
    h->blocks[h->nblocks++] = block;
    return TR_OK;
}

tr_status tr_header_add(tr_header *h, tr_message msg)
{
    tr_message *grown = tr_room_for_one(TR_MEM_OTHER, h->v, h->count, sizeof *grown);
    if (!grown) return tr_last_status();
    h->v = grown;
    h->v[h->count++] = msg;
    return TR_OK;
}

void tr_header_free(tr_header *h)
{
    for (size_t i = 0; i < h->nblocks; i++) tr_free(h->blocks[i]);
    tr_free(h->blocks);
    tr_free(h->v);
    *h = (tr_header){0};
}

const tr_message *tr_header_find(const tr_header *h, tr_message_kind kind)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->v[i].kind == kind) return &h->v[i];
    return NULL;
}

/* The messages of one chunk; what is left at its end is a gap. */
static tr_status add_messages(tr_metadata *m, tr_header *h, tr_cursor c, unsigned flags)
{
    const size_t prefix = flags & HAS_ORDER ? 6 : 4;
    while (c.left >= prefix) {
        tr_message msg = {.kind = (uint8_t)tr_cursor_take(&c, 1)};
        const size_t nbytes = (size_t)tr_cursor_take(&c, 2);
        msg.flags = (uint8_t)tr_cursor_take(&c, 1);
        tr_cursor_skip(&c, prefix - 4);
        msg.body = (tr_cursor){.at = tr_cursor_skip(&c, nbytes), .left = nbytes};
        if (c.bad) {
            tr_metadata_fault(m, "a message of %zu bytes in a header with fewer", nbytes);
            break;
        }
        if (msg.kind == 0) continue; /* a hole */
        tr_status st = tr_header_add(h, msg);
        if (st != TR_OK) return st;
    }
    return TR_OK;
}

/* Flags and the first chunk. */
static tr_status read_first(tr_metadata *m, uint64_t at, tr_header *h, unsigned *flags)
{
    uint8_t start[32], *block;
    uint64_t n = at < m->nbytes ? m->nbytes - at : 0;
    tr_cursor c = {.at = start, .left = n < sizeof start ? (size_t)n : sizeof start};
    if (!tr_metadata_bytes(m, at, c.left, "an object header", start)) return TR_OK;
    const uint8_t *signature = tr_cursor_skip(&c, 4);
    const unsigned version = (unsigned)tr_cursor_take(&c, 1);
    *flags = (unsigned)tr_cursor_take(&c, 1);
    tr_cursor_skip(&c, (*flags & HAS_TIMES ? 16 : 0) + (*flags & HAS_PHASE ? 4 : 0));
    const uint64_t size = tr_cursor_take(&c, 1u << (*flags & 3));
    if (c.bad || memcmp(signature, "OHDR", 4) != 0 || version != 2) {
        tr_metadata_fault(m, "no object header of version 2 at byte %llu", (unsigned long long)at);
        return TR_OK;
    }
    const size_t prefix = (size_t)(c.at - start);
    tr_status st =
        tr_metadata_block(m, at, size < BLOCK_MAX ? prefix + size + 4 : size, "OHDR", &block);
    if (st != TR_OK || !block) return st;
    st = tr_header_keep(h, block);
    if (st != TR_OK) return st;
    return add_messages(m, h, (tr_cursor){.at = block + prefix, .left = (size_t)size}, *flags);
}

/* Chunks elsewhere; these may name others in turn. */
static tr_status read_more(tr_metadata *m, tr_header *h, unsigned flags)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < h->count && !m->fault[0]; i++) {
        uint8_t *block;
        tr_cursor c = h->v[i].body;
        if (h->v[i].kind != TR_MSG_CONTINUATION) continue;
        const uint64_t at = tr_cursor_take(&c, 8), nbytes = tr_cursor_take(&c, 8);
        TR_TRY(tr_metadata_block(m, at, c.bad ? 0 : nbytes, "OCHK", &block));
        if (!block) break;
        TR_TRY(tr_header_keep(h, block));
        TR_TRY(add_messages(m, h, (tr_cursor){.at = block + 4, .left = (size_t)nbytes - 8}, flags));
    }
out:
    return st;
}

tr_status tr_header_read(tr_metadata *m, uint64_t at, tr_header *h)
{
    tr_status st = TR_OK;
    unsigned flags = 0;
    *h = (tr_header){0};
    TR_TRY(read_first(m, at, h, &flags));
    TR_TRY(read_more(m, h, flags));
    const tr_message *info = m->fault[0] ? NULL : tr_header_find(h, TR_MSG_ATTRIBUTE_INFO);
    if (info) TR_TRY(tr_dense_attributes(m, info->body, h));
out:
    return st;
}
