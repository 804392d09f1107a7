/* One dataset of a run file: what the messages of its header say, held against what can be true
 * (our types, contiguous, unfiltered, inside the file), and its bytes, read with pread(2) from
 * where they lie and checked on the way. A hostile header can so ask for no more memory than the
 * file has bytes. */
#include "runtime/base/crc32c.h"
#include "runtime/store/metadata.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool accept_unverified;

void tr_store_accept_unverified(bool accept)
{
    accept_unverified = accept;
}

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

static bool describe_type(tr_entry *e, const tr_header *h)
{
    tr_type type;
    const tr_message *msg = tr_header_find(h, TR_MSG_TYPE);
    if (msg && tr_msg_type(msg->body, &type) && type.kind == TR_STORED_ARRAY) {
        e->type = type.dtype;
        return true;
    }
    tr_entry_fault(
        e, "expected a little-endian float32, float64, bfloat16, float16, int32, int64, int8 or "
           "uint8 array, found another type");
    return false;
}

static bool describe_space(tr_entry *e, const tr_header *h)
{
    tr_space space;
    const tr_message *msg = tr_header_find(h, TR_MSG_SPACE);
    if (!msg || !tr_msg_space(msg->body, &space) || space.null || space.ndim > TR_STORE_DIMS) {
        tr_entry_fault(e, "expected at most %d dims, found another dataspace", TR_STORE_DIMS);
        return false;
    }
    e->ndim = space.ndim;
    e->count = 1;
    bool fits = true;
    for (int i = 0; i < e->ndim; i++) {
        const uint64_t n = space.dims[i];
        fits = fits && n <= INT64_MAX && tr_mul_size(e->count, (size_t)n, &e->count);
        e->dims[i] = fits ? (int64_t)n : 0;
    }
    if (fits && tr_mul_size(e->count, tr_dtype_size(e->type), &e->nbytes)) return true;
    tr_entry_fault(e, "its dims do not fit a size");
    return false;
}

static void describe_place(tr_entry *e, const tr_header *h, uint64_t file_nbytes)
{
    uint64_t at, nbytes;
    const tr_message *layout = tr_header_find(h, TR_MSG_LAYOUT);
    if (tr_header_find(h, TR_MSG_EXTERNAL) || tr_header_find(h, TR_MSG_FILTERS) || !layout ||
        !tr_msg_layout(layout->body, &at, &nbytes)) {
        tr_entry_fault(e, "expected a contiguous dataset, found one that is chunked, compact, "
                          "filtered or external");
        return;
    }
    if (e->nbytes == 0) return;
    if (at == TR_UNDEFINED || at > file_nbytes || e->nbytes > file_nbytes - at) {
        tr_entry_fault(e, "its %zu bytes do not lie in the file", e->nbytes);
        return;
    }
    if (nbytes != e->nbytes) {
        tr_entry_fault(e, "it has %llu bytes, expected %zu of its dims", (unsigned long long)nbytes,
                       e->nbytes);
        return;
    }
    e->offset = at;
}

static void describe_checksum(tr_entry *e, const tr_header *h)
{
    tr_attribute at;
    for (size_t i = 0; i < h->count; i++) {
        if (h->v[i].kind != TR_MSG_ATTRIBUTE || !tr_msg_attribute(h->v[i].body, &at) ||
            strcmp(at.name, "crc32c") != 0 || at.type.kind != TR_STORED_U32 || at.space.ndim > 0 ||
            at.space.null)
            continue;
        memcpy(&e->crc, at.value, sizeof e->crc);
        return;
    }
    e->together = e->nbytes < TR_TOGETHER;
    if (!e->together) tr_entry_fault(e, "it has no checksum (attribute crc32c, a uint32)");
}

void tr_entry_describe(tr_entry *e, const tr_header *h, uint64_t file_nbytes)
{
    if (describe_type(e, h) && describe_space(e, h)) {
        describe_place(e, h, file_nbytes);
        describe_checksum(e, h);
    }
}

tr_status tr_entry_piece(const tr_index *ix, const tr_entry *e, size_t from, void *to,
                         size_t nbytes)
{
    for (size_t n = 0; n < nbytes;) {
        const off_t at = (off_t)(e->offset + from + n);
        const ssize_t got = pread(ix->fd, (char *)to + n, nbytes - n, at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return TR_FAIL(got < 0 ? TR_IO : TR_FILE, "%s%s: reading at byte %llu: %s", ix->of,
                           e->where, (unsigned long long)at,
                           got < 0 ? strerror(errno) : "the file ends");
        n += (size_t)got;
    }
    return TR_OK;
}

/* The checksum that was found against the one that must be. */
static tr_status compare(const tr_index *ix, const tr_entry *e, uint32_t found, uint32_t want)
{
    static const char of[] = " of the small arrays together";
    if (found == want) return TR_OK;
    if (!accept_unverified)
        return TR_FAIL(
            TR_FILE,
            "%s%s: damaged: checksum%s %08x, expected %08x: %s values were changed after "
            "the file was written, by hand or by a fault; --accept-unverified takes "
            "them as they are",
            ix->of, e->where, e->together ? of : "", found, want, e->together ? "some" : "its");
    tr_log(TR_LOG_WARN,
           "%s: %s: %s values were changed after the file was written (checksum%s %08x, expected "
           "%08x): taken as they are (--accept-unverified)",
           ix->path, e->where, e->together ? "some" : "its", e->together ? of : "", found, want);
    return TR_OK;
}

tr_status tr_entry_read(const tr_index *ix, const tr_entry *e, void *to, tr_take *take, void *ctx)
{
    _Alignas(64) char piece[65536];
    uint32_t crc = 0;
    if (e->fault[0]) return TR_FAIL(TR_FILE, "%s%s: %s", ix->of, e->where, e->fault);
    for (size_t done = 0; done < e->nbytes;) {
        const size_t left = e->nbytes - done;
        const size_t want = left < sizeof piece ? left : sizeof piece;
        char *at = to ? (char *)to + done : piece;
        tr_status st = tr_entry_piece(ix, e, done, at, want); /* `take` sees whole elements */
        if (st != TR_OK) return st;
        crc = tr_crc32c(crc, at, want);
        if (take) take(ctx, at, want);
        done += want;
    }
    tr_status st = compare(ix, e, crc, e->crc);
    return st == TR_OK && e->together ? compare(ix, e, ix->together, ix->expected) : st;
}
