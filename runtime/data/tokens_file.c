/* Files of tokens, which lie one after the other from some byte of the file on: all of a text; of llm.c's files
 * (karpathy/llm.c, dev/data) behind a header of 256 int32: magic, version, count; of NPY files a flat array; else the whole
 * file, of a type that the config says. */
#include "runtime/data/tokens.h"

#include <inttypes.h>
#include <string.h>

enum { HEADER = 256 * 4 };

static uint32_t little(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* *known: it is such a file. */
static tr_status parse_llmc(const char *path, const uint8_t *bytes, size_t nbytes, tr_header *h,
                            bool *known)
{
    static const struct {
        uint32_t magic, version;
        tr_elem elem;
    } kinds[] = {{20240520, 1, TR_ELEM_U16}, {20240801, 7, TR_ELEM_U32}};
    *known = false;
    for (size_t i = 0; nbytes >= HEADER && i < TR_COUNT(kinds); i++) {
        if (little(bytes) != kinds[i].magic) continue;
        if (little(bytes + 4) != kinds[i].version)
            return TR_FAIL(TR_DATA,
                           "%s: byte 4: version %" PRIu32 " of llm.c's token files, expected "
                           "%" PRIu32 " (for magic %" PRIu32 ")",
                           path, little(bytes + 4), kinds[i].version, kinds[i].magic);
        *known = true;
        *h = (tr_header){
            .elem = kinds[i].elem, .ndim = 1, .dims = {little(bytes + 8)}, .offset = HEADER};
    }
    return TR_OK;
}

static tr_status check_npy(const char *path, const tr_header *h)
{
    if (h->ndim == 1 && !h->fortran &&
        (h->elem == TR_ELEM_U8 || h->elem == TR_ELEM_U16 || h->elem == TR_ELEM_U32))
        return TR_OK;
    return TR_FAIL(TR_DATA,
                   "%s: an array of %d dimensions of %s, expected tokens: one dimension of uint8, "
                   "uint16 or uint32",
                   path, h->ndim, tr_elem_name(h->elem));
}

tr_status tr_tokens_parse(const char *path, const uint8_t *bytes, size_t nbytes, uint64_t size,
                          int type, tr_header *h)
{
    static const tr_elem elems[] = {[TR_TOKENS_AUTO] = TR_ELEM_U16,
                                    [TR_TOKENS_U8] = TR_ELEM_U8,
                                    [TR_TOKENS_U16] = TR_ELEM_U16,
                                    [TR_TOKENS_U32] = TR_ELEM_U32};
    const size_t each = tr_elem_size(elems[type]);
    bool known = false;
    tr_status st = TR_OK;
    if (nbytes >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0) {
        TR_TRY(tr_npy_parse(path, bytes, nbytes, h));
        TR_TRY(check_npy(path, h));
        known = true;
    } else {
        TR_TRY(parse_llmc(path, bytes, nbytes, h, &known));
    }
    TR_NEED(!known || type == TR_TOKENS_AUTO || h->elem == elems[type], TR_DATA,
            "%s: its tokens are %s by its header, expected %s, as dtype says", path,
            tr_elem_name(h->elem), tr_elem_name(elems[type]));
    if (known) goto out;
    TR_NEED(size % each == 0, TR_DATA,
            "%s: has %" PRIu64 " bytes, expected a multiple of %zu: tokens of type %s (dtype)",
            path, size, each, tr_elem_name(elems[type]));
    *h = (tr_header){.elem = elems[type], .ndim = 1, .dims = {size / each}};
out:
    return st;
}

tr_status tr_tokens_flat(const char *path, int type, uint64_t *offset, tr_array **out)
{
    tr_status st = TR_OK;
    tr_data_file file = {.fd = -1};
    tr_header h = {.elem = TR_ELEM_U8, .ndim = 1};
    uint8_t *head = NULL;
    TR_TRY(tr_data_file_open(path, &file));
    TR_NEED(file.size > 0, TR_DATA, "%s: is empty", path);
    h.dims[0] = file.size;
    if (type >= 0) {
        const size_t n = file.size < TR_NPY_HEADER ? (size_t)file.size : TR_NPY_HEADER;
        TR_HAVE(head = tr_alloc(TR_MEM_OTHER, n, 1));
        TR_TRY(tr_data_file_read(&file, 0, head, n));
        TR_TRY(tr_tokens_parse(path, head, n, file.size, type, &h));
    }
    *offset = h.offset;
    TR_TRY(tr_header_open(&file, path, &h, out));
out:
    tr_free(head);
    tr_data_file_close(&file);
    return st;
}

tr_status tr_tokens_count(const char *path, int type, uint64_t *tokens, uint64_t *most)
{
    enum { BLOCK = 1 << 16 };
    tr_status st = TR_OK;
    tr_array *a = NULL;
    char *block = NULL;
    uint64_t offset;
    TR_TRY(tr_tokens_flat(path, type, &offset, &a));
    TR_HAVE(block = tr_alloc(TR_MEM_OTHER, BLOCK, a->nbytes));
    *tokens = a->samples;
    *most = 0;
    for (uint64_t i = 0; i < a->samples; i += BLOCK) {
        const uint64_t n = a->samples - i < BLOCK ? a->samples - i : BLOCK;
        TR_TRY(a->read(a, i, n, block));
        for (size_t k = 0; k < n; k++) {
            const double v = tr_elem_value(a->elem, block, k);
            if (v > (double)*most) *most = (uint64_t)v;
        }
    }
out:
    tr_array_close(a);
    tr_free(block);
    return st;
}

bool tr_tokens_known(const char *path)
{
    tr_data_file file = {.fd = -1};
    uint8_t head[HEADER];
    tr_header h;
    bool known = false;
    if (tr_data_file_open(path, &file) == TR_OK && file.size >= HEADER &&
        tr_data_file_read(&file, 0, head, HEADER) == TR_OK &&
        parse_llmc(path, head, HEADER, &h, &known) != TR_OK)
        known = true; /* of another version */
    tr_data_file_close(&file);
    return known;
}

tr_status tr_token_stream_read(const tr_token_stream *s, uint64_t first, uint64_t n, void *to)
{
    tr_array *a = s->flat;
    if (!a->held) return a->read(a, first, n, to);
    memcpy(to, (const char *)a->held + first * a->nbytes, (size_t)n * a->nbytes);
    return TR_OK;
}
