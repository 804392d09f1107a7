/* Attributes that are not in their object's header. HDF5 moves all of an object's attributes into a
 * fractal heap once one of them is larger than a header's message may be: a config of 64 KiB. The
 * heap's objects are listed by a B-tree of names; large ones lie by themselves in the file and are
 * found by another B-tree.
 *
 *     attribute info -> BTHD -> BTLF   names: heap ids
 *                    -> FRHP -> FHDB, or FHIB -> FHDB...   small ones, by offset
 *                            -> BTHD -> BTLF   large ones, by number -> the bytes
 *
 * Read is what 256 attributes need: B-trees of one leaf, and a heap's first two rows of blocks.
 * Sections "Fractal Heap", "Version 2 B-trees", "Attribute Info Message". */
#include "runtime/store/metadata.h"

#include <string.h>

#define BLOCKS_MAX 8
#define LARGE_MAX  ((uint64_t)(16 << 20) + 65536) /* an attribute's text and its name */

typedef struct {
    uint8_t *block; /* owned: the leaf; NULL when empty */
    tr_cursor rows; /* its records */
    size_t nrecords, record;
} leaf;

typedef struct {
    unsigned offset_bytes, id_bytes;
    uint64_t block_bytes, nblocks;
    uint64_t blocks[BLOCKS_MAX]; /* addresses of direct blocks, equally large */
    leaf large;
} heap;

static tr_status read_leaf(tr_metadata *m, uint64_t at, unsigned type, size_t record, leaf *out)
{
    uint8_t *head, *block;
    *out = (leaf){.record = record};
    if (at == TR_UNDEFINED) return TR_OK;
    tr_status st = tr_metadata_block(m, at, 38, "BTHD", &head);
    if (st != TR_OK || !head) return st;
    tr_cursor c = {.at = head + 4, .left = 30};
    const uint64_t version = tr_cursor_take(&c, 1), kind = tr_cursor_take(&c, 1);
    tr_cursor_skip(&c, 4);
    const uint64_t size = tr_cursor_take(&c, 2), depth = tr_cursor_take(&c, 2);
    tr_cursor_skip(&c, 2);
    const uint64_t root = tr_cursor_take(&c, 8), count = tr_cursor_take(&c, 2);
    tr_free(head);
    if (version != 0 || kind != type || size != record || depth != 0) {
        tr_metadata_fault(m, "its attributes are in a B-tree of another kind than run files have");
        return TR_OK;
    }
    if (count == 0) return TR_OK;
    st = tr_metadata_block(m, root, 6 + count * record + 4, "BTLF", &block);
    if (st != TR_OK || !block) return st;
    *out = (leaf){.block = block,
                  .rows = {.at = block + 6, .left = (size_t)count * record},
                  .nrecords = (size_t)count,
                  .record = record};
    return TR_OK;
}

static tr_cursor record_at(const leaf *l, size_t i)
{
    return (tr_cursor){.at = l->rows.at + i * l->record, .left = l->record};
}

/* The root of the heap: a direct block, or an indirect one whose first rows are direct blocks. */
static tr_status read_root(tr_metadata *m, heap *h, uint64_t root, uint64_t rows, uint64_t width)
{
    uint8_t *block;
    if (root == TR_UNDEFINED) return TR_OK;
    if (rows == 0) {
        h->blocks[h->nblocks++] = root;
        return TR_OK;
    }
    if (rows > 2 || width == 0 || rows * width > BLOCKS_MAX) {
        tr_metadata_fault(m, "its attributes are in a larger heap than run files have");
        return TR_OK;
    }
    const size_t prefix = 4 + 1 + 8 + h->offset_bytes;
    tr_status st = tr_metadata_block(m, root, prefix + rows * width * 8 + 4, "FHIB", &block);
    if (st != TR_OK || !block) return st;
    tr_cursor c = {.at = block + prefix, .left = (size_t)(rows * width * 8)};
    for (uint64_t i = 0; i < rows * width; i++) h->blocks[h->nblocks++] = tr_cursor_take(&c, 8);
    tr_free(block);
    return TR_OK;
}

static tr_status read_heap(tr_metadata *m, uint64_t at, heap *h)
{
    uint8_t *head;
    tr_status st = tr_metadata_block(m, at, 146, "FRHP", &head);
    if (st != TR_OK || !head) return st;
    tr_cursor c = {.at = head + 4, .left = 138};
    const uint64_t version = tr_cursor_take(&c, 1);
    h->id_bytes = (unsigned)tr_cursor_take(&c, 2);
    const uint64_t filters = tr_cursor_take(&c, 2);
    tr_cursor_skip(&c, 1);
    tr_cursor_skip(&c, 4 + 8);
    const uint64_t large = tr_cursor_take(&c, 8);
    tr_cursor_skip(&c, 10 * 8);
    const uint64_t width = tr_cursor_take(&c, 2);
    h->block_bytes = tr_cursor_take(&c, 8);
    tr_cursor_skip(&c, 8);
    const uint64_t bits = tr_cursor_take(&c, 2);
    tr_cursor_skip(&c, 2);
    const uint64_t root = tr_cursor_take(&c, 8), rows = tr_cursor_take(&c, 2);
    tr_free(head);
    h->offset_bytes = (unsigned)((bits + 7) / 8);
    if (version != 0 || filters != 0 || h->id_bytes != 8 || h->offset_bytes < 1 ||
        h->offset_bytes > 5 || h->block_bytes < 64 || h->block_bytes > 65536) {
        tr_metadata_fault(m, "its attributes are in a heap of another kind than run files have");
        return TR_OK;
    }
    st = read_root(m, h, root, rows, width);
    if (st != TR_OK || m->fault[0]) return st;
    return read_leaf(m, large, 1, 24, &h->large);
}

/* Where the object of a heap id lies. false: nowhere. */
static bool find_object(const heap *h, tr_cursor id, uint64_t *at, uint64_t *nbytes)
{
    const unsigned head = (unsigned)tr_cursor_take(&id, 1);
    if (head == 0x00) {
        const uint64_t offset = tr_cursor_take(&id, h->offset_bytes),
                       block = offset / h->block_bytes, within = offset % h->block_bytes;
        *nbytes = tr_cursor_take(&id, 7 - h->offset_bytes);
        if (block >= h->nblocks || h->blocks[block] == TR_UNDEFINED ||
            *nbytes > h->block_bytes - within)
            return false;
        *at = h->blocks[block] + within;
        return *at >= within;
    }
    if (head != 0x10) return false;
    const uint64_t number = tr_cursor_take(&id, 7);
    for (size_t i = 0; i < h->large.nrecords; i++) {
        tr_cursor c = record_at(&h->large, i);
        *at = tr_cursor_take(&c, 8);
        *nbytes = tr_cursor_take(&c, 8);
        if (tr_cursor_take(&c, 8) == number) return *nbytes <= LARGE_MAX;
    }
    return false;
}

/* One attribute's bytes, for the header to keep. */
static tr_status add_attribute(tr_metadata *m, const heap *p, tr_cursor record, tr_header *h)
{
    uint64_t at = 0, nbytes = 0;
    tr_cursor id = {.at = tr_cursor_skip(&record, 8), .left = 8};
    const uint8_t flags = (uint8_t)tr_cursor_take(&record, 1);
    if (!find_object(p, id, &at, &nbytes) || at > m->nbytes || nbytes > m->nbytes - at) {
        tr_metadata_fault(m, "an attribute does not lie in the file");
        return TR_OK;
    }
    uint8_t *bytes = tr_alloc(TR_MEM_OTHER, 1, (size_t)nbytes);
    if (!bytes) return tr_last_status();
    tr_status st = tr_header_keep(h, bytes);
    if (st != TR_OK) return st;
    if (!tr_metadata_bytes(m, at, nbytes, "an attribute", bytes)) return TR_OK;
    return tr_header_add(h, (tr_message){.kind = TR_MSG_ATTRIBUTE,
                                         .flags = flags,
                                         .body = {.at = bytes, .left = (size_t)nbytes}});
}

/* Values of attributes are checksummed by the run file itself; the blocks that hold them are not
 * looked at here again. */
tr_status tr_dense_attributes(tr_metadata *m, tr_cursor info, tr_header *h)
{
    tr_status st = TR_OK;
    heap p = {0};
    leaf names = {0};
    tr_cursor_skip(&info, 1);
    const unsigned flags = (unsigned)tr_cursor_take(&info, 1);
    if (flags & 1) tr_cursor_skip(&info, 2);
    const uint64_t at = tr_cursor_take(&info, 8), list = tr_cursor_take(&info, 8);
    if (info.bad) {
        tr_metadata_fault(m, "it does not say where its attributes are");
        return TR_OK;
    }
    if (at == TR_UNDEFINED) return TR_OK;
    TR_TRY(read_heap(m, at, &p));
    if (!m->fault[0]) TR_TRY(read_leaf(m, list, 8, 17, &names));
    for (size_t i = 0; i < names.nrecords && !m->fault[0]; i++)
        TR_TRY(add_attribute(m, &p, record_at(&names, i), h));
out:
    tr_free(names.block);
    tr_free(p.large.block);
    return st;
}
