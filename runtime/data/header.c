/* What IDX and NPY have in common: a header that says type and shape, then the elements to the end
 * of the file. A file that is longer or shorter than its header says is bad, so one that was cut is
 * never taken for whole. */
#include "runtime/data/internal.h"

#include <inttypes.h>

bool tr_header_swapped(const tr_header *h)
{
    return h->big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

tr_status tr_header_check(const tr_header *h, uint64_t size, uint64_t *nbytes)
{
    size_t n = tr_elem_size(h->elem), end;
    bool fits = true;
    for (int d = 0; d < h->ndim; d++) {
        if (h->dims[d] == 0) return TR_FAIL(TR_DATA, "dimension %d is 0, expected at least 1", d);
        fits = fits && tr_mul_size(n, (size_t)h->dims[d], &n);
    }
    if (!fits || !tr_add_size(n, (size_t)h->offset, &end))
        return TR_FAIL(TR_DATA, "its header claims more bytes than any file has");
    if (end != size)
        return TR_FAIL(TR_DATA,
                       "has %" PRIu64 " bytes, expected %zu by its header (%" PRIu64 " of %" PRIu64
                       " bytes each, from byte %" PRIu64 "): %s",
                       size, end, h->dims[0], n / h->dims[0], h->offset,
                       size < end ? "it is cut short" : "it is too long");
    *nbytes = n;
    return TR_OK;
}

tr_status tr_header_open(tr_data_file *file, const char *path, const tr_header *h, tr_array **out)
{
    tr_status st = TR_OK;
    tr_array *a = NULL;
    uint64_t nbytes;
    st = tr_header_check(h, file->size, &nbytes);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", path));
    tr_file_segment segment = {.file = *file, .offset = h->offset, .samples = h->dims[0]};
    segment.stride = nbytes / h->dims[0];
    *file = (tr_data_file){.fd = -1};
    TR_TRY(tr_flat_open(&segment, 1, tr_header_swapped(h), &a));
    a->name = tr_strdup(path);
    TR_HAVE(a->name);
    TR_TRY(tr_array_shape(a, h->elem, h->ndim, h->dims));

out:
    if (st != TR_OK) {
        tr_array_close(a);
        return st;
    }
    *out = a;
    return TR_OK;
}
