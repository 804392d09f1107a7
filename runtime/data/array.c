/* Arrays of samples: shape checks, holding one in memory, and the flat array that most formats are:
 * samples at a fixed stride in one file or in several, one after the other. */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <string.h>

tr_status tr_array_shape(tr_array *a, tr_elem elem, int ndim, const uint64_t *dims)
{
    if (ndim < 1 || ndim > TR_MAX_DIMS)
        return TR_FAIL(TR_DATA,
                       "%s: has %d dimensions, expected 1 to %d, the first one counting samples",
                       a->name, ndim, TR_MAX_DIMS);
    size_t count = 1, nbytes, total;
    for (int d = 0; d < ndim; d++) {
        if (dims[d] == 0 || dims[d] > INT64_MAX)
            return TR_FAIL(TR_DATA, "%s: dimension %d is %" PRIu64 ", expected at least 1", a->name,
                           d, dims[d]);
        if (d > 0 && !tr_mul_size(count, (size_t)dims[d], &count))
            return TR_FAIL(TR_DATA, "%s: a sample's size does not fit the machine", a->name);
    }
    if (!tr_mul_size(count, tr_elem_size(elem), &nbytes) ||
        !tr_mul_size(nbytes, (size_t)dims[0], &total) || total > INT64_MAX)
        return TR_FAIL(TR_DATA, "%s: its size does not fit the machine", a->name);
    a->elem = elem;
    a->samples = dims[0];
    a->ndim = ndim - 1;
    for (int d = 1; d < ndim; d++) a->dims[d - 1] = (int64_t)dims[d];
    a->count = count;
    a->nbytes = nbytes;
    return TR_OK;
}

static tr_status read_held(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    memcpy(to, (const char *)a->held + first * a->nbytes, (size_t)n * a->nbytes);
    return TR_OK;
}

static void no_release(tr_array *a)
{
    (void)a;
}

tr_status tr_array_held_open(const char *name, const tr_header *h, tr_array **out)
{
    tr_status st = TR_OK;
    tr_array *a = TR_NEW(TR_MEM_OTHER, tr_array);
    TR_HAVE(a);
    a->read = read_held;
    a->release = no_release;
    TR_HAVE(a->name = tr_strdup(name));
    TR_TRY(tr_array_shape(a, h->elem, h->ndim, h->dims));
    *out = a;
    a = NULL;
out:
    tr_array_close(a);
    return st;
}

tr_status tr_array_hold(tr_array *a)
{
    if (a->held || a->computed || a->lazy) return TR_OK;
    char *held = tr_alloc(TR_MEM_DATA, a->samples, a->nbytes);
    if (!held) return tr_last_status();
    tr_status st = a->read(a, 0, a->samples, held);
    if (st != TR_OK) {
        tr_free(held);
        return st;
    }
    a->held = held;
    a->release(a);
    return TR_OK;
}

void tr_array_close(tr_array *a)
{
    if (!a) return;
    if (a->release) a->release(a);
    if (a->fini) a->fini(a);
    tr_free(a->held);
    tr_free(a->name);
    tr_free(a);
}

tr_status tr_array_at(tr_array *a, uint64_t i, void *scratch, const void **raw)
{
    if (a->held) {
        *raw = (const char *)a->held + i * a->nbytes;
        return TR_OK;
    }
    *raw = scratch;
    return a->read(a, i, 1, scratch);
}

void tr_array_where(const tr_array *a, uint64_t i, char *buf, size_t size)
{
    if (a->where)
        a->where(a, i, buf, size);
    else
        snprintf(buf, size, "%s: sample %" PRIu64, a->name, i);
}

/* ---- Flat arrays ----------------------------------------------------------------------------- */

typedef struct {
    tr_array base;
    bool swap;
    size_t nsegments;
    tr_file_segment segments[];
} flat;

/* Samples apart from each other are read in blocks of records and picked out; this many bytes of
 * stack are enough for 20 CIFAR records a call. */
#define BLOCK 65536

static tr_status read_segment(const flat *f, const tr_file_segment *s, uint64_t first, uint64_t n,
                              char *to)
{
    size_t nbytes = f->base.nbytes;
    if (s->stride == nbytes)
        return tr_data_file_read(&s->file, s->offset + first * nbytes, to, (size_t)n * nbytes);
    if (n == 1 || s->stride > BLOCK) {
        for (uint64_t i = 0; i < n; i++) {
            tr_status st = tr_data_file_read(&s->file, s->offset + (first + i) * s->stride,
                                             to + i * nbytes, nbytes);
            if (st != TR_OK) return st;
        }
        return TR_OK;
    }
    char block[BLOCK];
    uint64_t per = BLOCK / s->stride;
    for (uint64_t i = 0; i < n; i += per) {
        uint64_t k = n - i < per ? n - i : per;
        tr_status st = tr_data_file_read(&s->file, s->offset + (first + i) * s->stride, block,
                                         (size_t)((k - 1) * s->stride + nbytes));
        if (st != TR_OK) return st;
        for (uint64_t j = 0; j < k; j++)
            memcpy(to + (i + j) * nbytes, block + j * s->stride, nbytes);
    }
    return TR_OK;
}

static tr_status flat_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const flat *f = (const flat *)a;
    char *p = to;
    uint64_t left = n;
    for (size_t k = 0; k < f->nsegments && left > 0; k++) {
        const tr_file_segment *s = &f->segments[k];
        if (first >= s->samples) {
            first -= s->samples;
            continue;
        }
        uint64_t here = left < s->samples - first ? left : s->samples - first;
        tr_status st = read_segment(f, s, first, here, p);
        if (st == TR_OK) st = tr_data_file_unchanged(&s->file);
        if (st != TR_OK) return st;
        p += here * a->nbytes;
        left -= here;
        first = 0;
    }
    if (left > 0) return TR_FAIL(TR_INTERNAL, "%s: read past the last sample", a->name);
    if (f->swap) tr_elem_swap(a->elem, to, (size_t)n * a->count);
    return TR_OK;
}

static void flat_where(const tr_array *a, uint64_t i, char *buf, size_t size)
{
    const flat *f = (const flat *)a;
    uint64_t k = i;
    for (size_t j = 0; j < f->nsegments; j++) {
        const tr_file_segment *s = &f->segments[j];
        if (k < s->samples) {
            snprintf(buf, size, "%s: sample %" PRIu64 " (byte %" PRIu64 ")",
                     f->nsegments > 1 ? s->file.path : a->name, i, s->offset + k * s->stride);
            return;
        }
        k -= s->samples;
    }
    snprintf(buf, size, "%s: sample %" PRIu64, a->name, i);
}

static void flat_release(tr_array *a)
{
    flat *f = (flat *)a;
    for (size_t k = 0; k < f->nsegments; k++) tr_data_file_shut(&f->segments[k].file);
}

static void flat_fini(tr_array *a)
{
    flat *f = (flat *)a;
    for (size_t k = 0; k < f->nsegments; k++) tr_data_file_close(&f->segments[k].file);
}

tr_status tr_flat_open(const tr_file_segment *segments, size_t nsegments, bool swap, tr_array **out)
{
    flat *f = tr_alloc(TR_MEM_OTHER, 1, sizeof *f + nsegments * sizeof *segments);
    if (!f) {
        for (size_t k = 0; k < nsegments; k++) {
            tr_data_file file = segments[k].file;
            tr_data_file_close(&file);
        }
        return tr_last_status();
    }
    f->base.read = flat_read;
    f->base.where = flat_where;
    f->base.release = flat_release;
    f->base.fini = flat_fini;
    f->swap = swap;
    f->nsegments = nsegments;
    memcpy(f->segments, segments, nsegments * sizeof *segments);
    *out = &f->base;
    return TR_OK;
}
