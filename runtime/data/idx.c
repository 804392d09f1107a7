/* IDX, the format of MNIST: 0, 0, element type, number of dimensions, the dimensions as big-endian
 * uint32, then the elements, big endian. Plain files are read in place; a .gz (told by its first
 * bytes, not its name) is unpacked into memory, for gzip cannot be read from the middle.
 * http://yann.lecun.com/exdb/mnist */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <unistd.h>
#include <zlib.h>

static const struct {
    uint8_t code;
    tr_elem elem;
} types[] = {{0x08, TR_ELEM_U8},  {0x09, TR_ELEM_I8},  {0x0b, TR_ELEM_I16},
             {0x0c, TR_ELEM_I32}, {0x0d, TR_ELEM_F32}, {0x0e, TR_ELEM_F64}};

tr_status tr_idx_parse(const char *path, const uint8_t *bytes, size_t nbytes, tr_header *h)
{
    if (nbytes < 4 || bytes[0] != 0 || bytes[1] != 0)
        return TR_FAIL(TR_DATA,
                       "%s: is not an IDX file: expected two zero bytes, a type and a number of "
                       "dimensions at byte 0",
                       path);
    size_t t = 0;
    while (t < TR_COUNT(types) && types[t].code != bytes[2]) t++;
    if (t == TR_COUNT(types))
        return TR_FAIL(TR_DATA,
                       "%s: byte 2: element type 0x%02x, expected 08, 09, 0b, 0c, 0d or 0e", path,
                       bytes[2]);
    int ndim = bytes[3];
    if (ndim < 1 || ndim > TR_MAX_DIMS)
        return TR_FAIL(TR_DATA, "%s: byte 3: %d dimensions, expected 1 to %d", path, ndim,
                       TR_MAX_DIMS);
    if (nbytes < 4 + 4 * (size_t)ndim)
        return TR_FAIL(TR_DATA, "%s: ends at byte %zu, inside its header of %d bytes", path, nbytes,
                       4 + 4 * ndim);
    *h = (tr_header){
        .elem = types[t].elem, .big = true, .ndim = ndim, .offset = 4 + 4 * (uint64_t)ndim};
    for (int d = 0; d < ndim; d++) {
        const uint8_t *p = bytes + 4 + 4 * d;
        h->dims[d] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    return TR_OK;
}

/* ---- Unpacked from gzip ---------------------------------------------------------------------- */

/* All of `want` bytes, or told what is wrong: cut, damaged, or too short. */
static tr_status unpack(gzFile gz, const char *path, void *to, uint64_t want, uint64_t *got)
{
    *got = 0;
    while (*got < want) {
        uint64_t left = want - *got;
        int n = gzread(gz, (char *)to + *got, left < (1u << 30) ? (unsigned)left : 1u << 30);
        int code;
        const char *why = gzerror(gz, &code);
        if (n < 0 || code == Z_BUF_ERROR)
            return TR_FAIL(TR_DATA,
                           "%s: is a damaged or cut gzip file at unpacked byte %" PRIu64 ": %s",
                           path, *got, why);
        if (n == 0) break;
        *got += (uint64_t)n;
    }
    return TR_OK;
}

static tr_status open_gz(const tr_data_file *file, uint64_t limit, tr_array **out)
{
    tr_status st = TR_OK;
    tr_array *a = NULL;
    char *held = NULL;
    uint8_t head[4 + 4 * TR_MAX_DIMS];
    uint64_t got = 0, need = 4, nbytes, room;
    tr_header h;
    int fd = dup(file->fd);
    gzFile gz = fd >= 0 ? gzdopen(fd, "rb") : NULL;
    if (!gz && fd >= 0) close(fd);
    TR_NEED(gz, TR_DATA, "%s: cannot be opened as gzip", file->path);

    TR_TRY(unpack(gz, file->path, head, need, &got));
    if (got == need && head[3] >= 1 && head[3] <= TR_MAX_DIMS) {
        TR_TRY(unpack(gz, file->path, head + 4, 4 * (uint64_t)head[3], &need));
        got += need;
    }
    TR_TRY(tr_idx_parse(file->path, head, (size_t)got, &h));

    TR_TRY(tr_array_held_open(file->path, &h, &a));
    nbytes = a->samples * a->nbytes;
    /* deflate packs at most 1032:1, so what cannot be in the file is known before memory is asked
     * for */
    TR_NEED(nbytes / 1032 <= file->size, TR_DATA,
            "%s: its header claims %" PRIu64 " bytes, more than %" PRIu64 " bytes of gzip can hold",
            file->path, nbytes, file->size);
    TR_NEED(nbytes <= limit, TR_DATA,
            "%s: unpacks to %" PRIu64 " bytes, more than data.cache_mb leaves for it (%" PRIu64
            "), and gzip cannot be streamed: unpack the file, or raise data.cache_mb",
            file->path, nbytes, limit);
    held = tr_alloc(TR_MEM_DATA, 1, (size_t)nbytes);
    TR_HAVE(held);
    TR_TRY(unpack(gz, file->path, held, nbytes, &got));
    TR_NEED(got == nbytes, TR_DATA,
            "%s: unpacks to %" PRIu64 " bytes, expected %" PRIu64 " by its header: it is cut short",
            file->path, got + h.offset, nbytes + h.offset);
    /* one byte more: the end is where gzip's checksum is verified */
    TR_TRY(unpack(gz, file->path, head, 1, &room));
    TR_NEED(room == 0, TR_DATA,
            "%s: unpacks to more than the %" PRIu64 " bytes of its header: it is too long",
            file->path, nbytes + h.offset);
    if (tr_header_swapped(&h))
        tr_elem_swap(a->elem, held, (size_t)(nbytes / tr_elem_size(a->elem)));
    a->held = held;
    held = NULL;

out:
    if (gz) gzclose(gz);
    tr_free(held);
    if (st != TR_OK) {
        tr_array_close(a);
        return st;
    }
    *out = a;
    return TR_OK;
}

tr_status tr_idx_open(const char *path, uint64_t unpack_limit, tr_array **out)
{
    tr_status st = TR_OK;
    tr_data_file file = {.fd = -1};
    uint8_t head[TR_IDX_HEADER];
    tr_header h;
    TR_TRY(tr_data_file_open(path, &file));
    size_t n = file.size < sizeof head ? (size_t)file.size : sizeof head;
    TR_TRY(tr_data_file_read(&file, 0, head, n));
    if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b) {
        st = open_gz(&file, unpack_limit, out);
        goto out;
    }
    TR_TRY(tr_idx_parse(path, head, n, &h));
    TR_TRY(tr_header_open(&file, path, &h, out));

out:
    tr_data_file_close(&file);
    return st;
}
