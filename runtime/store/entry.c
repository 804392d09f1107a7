/* One dataset of a run file: what HDF5's metadata says of it, held against what can be true (our
 * types, contiguous, unfiltered, inside the file), and its bytes, read with pread(2) from where
 * they lie and checked on the way. A hostile header can so ask for no more memory than the file has
 * bytes. */
#include "runtime/base/crc32c.h"
#include "runtime/store/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

char *tr_entry_shape(tr_dtype type, int ndim, const int64_t *dims, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "%s[", tr_dtype_name(type));
    for (int i = 0; i < ndim && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, i ? ",%lld" : "%lld", (long long)dims[i]);
    if (n < size) snprintf(buf + n, size - n, "]");
    return buf;
}

void tr_entry_fault(tr_entry *e, const char *fmt, ...)
{
    va_list args;
    if (e->fault[0]) return; /* the first one counts */
    va_start(args, fmt);
    vsnprintf(e->fault, sizeof e->fault, fmt, args);
    va_end(args);
}

static bool describe_type(tr_entry *e, hid_t type)
{
    static const tr_dtype ours[] = {TR_F32, TR_F64, TR_I32, TR_I64, TR_U8};
    for (size_t i = 0; i < TR_COUNT(ours); i++)
        if (H5Tequal(type, tr_h5_type(ours[i])) > 0) {
            e->type = ours[i];
            return true;
        }
    tr_entry_fault(e,
                   "expected a little-endian float32, float64, int32, int64 or uint8 array, found "
                   "another type");
    return false;
}

static bool describe_space(tr_entry *e, hid_t space)
{
    hsize_t n[H5S_MAX_RANK] = {0};
    int ndim = H5Sget_simple_extent_ndims(space);
    if (ndim < 0 || ndim > TR_STORE_DIMS || H5Sget_simple_extent_type(space) == H5S_NULL) {
        tr_entry_fault(e, "expected at most %d dims, found %d", TR_STORE_DIMS, ndim);
        return false;
    }
    H5Sget_simple_extent_dims(space, n, NULL);
    e->ndim = ndim;
    e->count = 1;
    bool fits = true;
    for (int i = 0; i < ndim; i++) {
        fits = fits && n[i] <= INT64_MAX && tr_mul_size(e->count, (size_t)n[i], &e->count);
        e->dims[i] = fits ? (int64_t)n[i] : 0;
    }
    if (fits && tr_mul_size(e->count, tr_dtype_size(e->type), &e->nbytes)) return true;
    tr_entry_fault(e, "its dims do not fit a size");
    return false;
}

static void describe_place(tr_entry *e, hid_t set, hid_t plist, uint64_t file_nbytes)
{
    if (H5Pget_layout(plist) != H5D_CONTIGUOUS || H5Pget_external_count(plist) != 0 ||
        H5Pget_nfilters(plist) != 0) {
        tr_entry_fault(e, "expected a contiguous dataset, found one that is chunked, compact, "
                          "filtered or external");
        return;
    }
    if (e->nbytes == 0) return;
    haddr_t at = H5Dget_offset(set);
    if (at == HADDR_UNDEF || at > file_nbytes || e->nbytes > file_nbytes - at) {
        tr_entry_fault(e, "its %zu bytes do not lie in the file", e->nbytes);
        return;
    }
    e->offset = at;
}

static void describe_checksum(tr_entry *e, hid_t set)
{
    hid_t attr = H5Aexists(set, "crc32c") > 0 ? H5Aopen(set, "crc32c", H5P_DEFAULT) : -1;
    hid_t type = attr >= 0 ? H5Aget_type(attr) : -1;
    hid_t space = attr >= 0 ? H5Aget_space(attr) : -1;
    if (type < 0 || space < 0 || H5Tequal(type, H5T_STD_U32LE) <= 0 ||
        H5Sget_simple_extent_type(space) != H5S_SCALAR || H5Aread(attr, type, &e->crc) < 0)
        tr_entry_fault(e, "it has no checksum (attribute crc32c, a uint32)");
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (attr >= 0) H5Aclose(attr);
}

void tr_entry_describe(tr_entry *e, hid_t set, uint64_t file_nbytes)
{
    char why[200];
    hid_t type = H5Dget_type(set), space = H5Dget_space(set), plist = H5Dget_create_plist(set);
    if (type < 0 || space < 0 || plist < 0) {
        tr_entry_fault(e, "its header cannot be read: %s", tr_h5_reason(why, sizeof why));
    } else if (describe_type(e, type) && describe_space(e, space)) {
        describe_place(e, set, plist, file_nbytes);
        describe_checksum(e, set);
    }
    if (plist >= 0) H5Pclose(plist);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
}

tr_status tr_entry_read(const tr_index *ix, const tr_entry *e, void *to, tr_take *take, void *ctx)
{
    _Alignas(64) char piece[65536];
    uint32_t crc = 0;
    if (e->fault[0]) return TR_FAIL(TR_FILE, "%s: %s: %s", ix->path, e->where, e->fault);
    for (size_t done = 0; done < e->nbytes;) {
        size_t left = e->nbytes - done, n = 0;
        size_t want = left < sizeof piece ? left : sizeof piece;
        char *at = to ? (char *)to + done : piece;
        while (n < want) { /* whole pieces: `take` sees whole elements */
            ssize_t got = pread(ix->fd, at + n, want - n, (off_t)(e->offset + done + n));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0)
                return TR_FAIL(got < 0 ? TR_IO : TR_FILE, "%s: %s: reading at byte %llu: %s",
                               ix->path, e->where, (unsigned long long)(e->offset + done + n),
                               got < 0 ? strerror(errno) : "the file ends");
            n += (size_t)got;
        }
        crc = tr_crc32c(crc, at, want);
        if (take) take(ctx, at, want);
        done += want;
    }
    if (crc != e->crc)
        return TR_FAIL(TR_FILE, "%s: %s: damaged: checksum %08x, expected %08x", ix->path, e->where,
                       crc, e->crc);
    return TR_OK;
}
