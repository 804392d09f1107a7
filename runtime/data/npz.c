/* NPZ, as numpy.savez and savez_compressed write it: a ZIP archive of NPY files. An array that is
 * stored and does not fit into memory is read in place, sample by sample; a deflated one is
 * unpacked into memory, for deflate cannot be read from the middle. Whatever is unpacked or held is
 * checked against the archive's CRC-32. */
#include <inttypes.h>
#include <string.h>

#include "runtime/data/internal.h"
#include "runtime/data/zip.h"

tr_status tr_npz_head(const tr_zip *z, const tr_zip_member *m, uint8_t *bytes, size_t *n)
{
    enum { START = 12 };
    tr_status st;
    tr_zip_stream s;
    const size_t most = m->size < TR_NPY_HEADER ? (size_t)m->size : TR_NPY_HEADER;
    const size_t first = most < START ? most : START;
    TR_TRY(tr_zip_begin(z, m, &s));
    TR_TRY(tr_zip_read(&s, bytes, first));
    *n = first;
    if (first == START) {
        const size_t own = bytes[6] == 1 ? 10 + (bytes[8] | (size_t)bytes[9] << 8) : most;
        const size_t all = own < START ? START : own < most ? own : most;
        TR_TRY(tr_zip_read(&s, bytes + START, all - START));
        *n = all;
    }
out:
    tr_zip_end(&s);
    return st;
}

tr_status tr_npz_skip(tr_zip_stream *s, uint64_t nbytes)
{
    uint8_t piece[4096];
    tr_status st = TR_OK;
    for (uint64_t n; nbytes > 0; nbytes -= n) {
        n = nbytes < sizeof piece ? nbytes : sizeof piece;
        TR_TRY(tr_zip_read(s, piece, (size_t)n));
    }
out:
    return st;
}

/* What is wrong with an archive is wrong with the data. */
static tr_status of_data(tr_status st)
{
    if (st != TR_FILE) return st;
    const tr_error why = *tr_last_error();
    return TR_FAIL(TR_DATA, "%s", why.text);
}

/* The name of the array that a member is; its length 0: of none. */
static size_t array_name(const tr_zip_member *m)
{
    const size_t n = strlen(m->name);
    return n > 4 && strcmp(m->name + n - 4, ".npy") == 0 ? n - 4 : 0;
}

static tr_status no_member(const tr_zip *z, const char *name)
{
    char text[300] = "none";
    size_t n = 0;
    for (size_t i = 0; i < z->count && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.*s", i ? ", " : "",
                              (int)array_name(&z->v[i]), z->v[i].name);
    return TR_FAIL(TR_DATA, "%s: there is no array \"%.100s\"; it has: %s", z->path, name, text);
}

static tr_status find(const tr_zip *z, const char *name, const tr_zip_member **out)
{
    tr_status st = TR_OK;
    const size_t n = strlen(name);
    *out = NULL;
    for (size_t i = 0; i < z->count; i++) {
        if (array_name(&z->v[i]) != n || memcmp(z->v[i].name, name, n) != 0) continue;
        TR_NEED(!*out, TR_DATA, "%s: two arrays are named \"%.100s\"", z->path, name);
        *out = &z->v[i];
    }
    if (!*out) st = no_member(z, name);
out:
    return st;
}

/* Type and shape; all of the member's bytes are the array. */
static tr_status check(const tr_zip_member *m, const uint8_t *head, size_t n, tr_header *h)
{
    tr_status st;
    uint64_t nbytes;
    TR_TRY(tr_npy_parse(head, n, h));
    TR_TRY(tr_npy_check(h));
    st = tr_header_check(h, m->size, &nbytes);
out:
    return st;
}

/* `of`: stands before what is wrong with the array, "array x: " or "". */
static tr_status see(const tr_zip *z, const tr_zip_member *m, const char *of, tr_header *h)
{
    tr_status st = TR_OK;
    size_t n = 0;
    uint8_t *head = tr_alloc(TR_MEM_OTHER, TR_NPY_HEADER, 1);
    TR_HAVE(head);
    TR_TRY(tr_npz_head(z, m, head, &n));
    st = check(m, head, n, h);
    if (st != TR_OK) st = tr_fail_before(st, "%s", of);
out:
    tr_free(head);
    return st;
}

static tr_status unpack(const tr_zip *z, const tr_zip_member *m, const tr_header *h, tr_array *a)
{
    tr_status st;
    tr_zip_stream s;
    char *held = NULL;
    const size_t nbytes = (size_t)a->samples * a->nbytes;
    TR_TRY(tr_zip_begin(z, m, &s));
    TR_HAVE(held = tr_alloc(TR_MEM_DATA, 1, nbytes));
    TR_TRY(tr_npz_skip(&s, h->offset));
    TR_TRY(tr_zip_read(&s, held, nbytes));
    TR_TRY(tr_zip_check(&s));
    if (tr_header_swapped(h)) tr_elem_swap(a->elem, held, nbytes / tr_elem_size(a->elem));
    a->held = held;
    held = NULL;
out:
    tr_zip_end(&s);
    tr_free(held);
    return st;
}

/* In place. */
static tr_status open_stored(const char *path, const char *label, const tr_zip_member *m,
                             const tr_header *h, tr_array **out)
{
    tr_status st;
    tr_file_segment segment = {.file = {.fd = -1}, .offset = m->data + h->offset};
    tr_array *a = NULL;
    TR_TRY(tr_data_file_open(path, &segment.file));
    segment.samples = h->dims[0];
    segment.stride = (m->size - h->offset) / h->dims[0];
    st = tr_flat_open(&segment, 1, tr_header_swapped(h), &a);
    TR_TRY(st);
    TR_HAVE(a->name = tr_strdup(label));
    TR_TRY(tr_array_shape(a, h->elem, h->ndim, h->dims));
    *out = a;
    a = NULL;
out:
    tr_array_close(a);
    return st;
}

tr_status tr_npz_open(const char *path, const char *name, uint64_t limit, tr_array **out)
{
    tr_status st;
    tr_zip z = {.fd = -1};
    tr_array *a = NULL;
    tr_header h;
    const tr_zip_member *m = NULL;
    char *label = tr_sprintf("%s: array %s", path, name), *of = tr_sprintf("array %s: ", name);
    TR_HAVE(label && of);
    TR_TRY(tr_zip_open(path, &z));
    TR_TRY(find(&z, name, &m));
    st = see(&z, m, of, &h);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", path));
    const uint64_t nbytes = m->size - h.offset;
    if (m->method == 0 && nbytes > limit) {
        st = open_stored(path, label, m, &h, out);
        goto out;
    }
    TR_NEED(nbytes <= limit, TR_DATA,
            "%s: unpacks to %" PRIu64 " bytes, more than data.cache_mb leaves for it (%" PRIu64
            "), and what is deflated cannot be streamed: raise data.cache_mb, or save it with "
            "numpy.savez, which does not pack",
            label, nbytes, limit);
    TR_TRY(tr_array_held_open(label, &h, &a));
    st = unpack(&z, m, &h, a);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", path));
    *out = a;
    a = NULL;
out:
    st = of_data(st);
    tr_array_close(a);
    tr_zip_close(&z);
    tr_free(label);
    tr_free(of);
    return st;
}

tr_status tr_npz_list(const char *path, tr_hdf5_listed **out, size_t *count)
{
    tr_status st;
    tr_zip z = {.fd = -1};
    tr_hdf5_listed *v = NULL;
    size_t n = 0;
    TR_TRY(tr_zip_open(path, &z));
    TR_HAVE(v = tr_alloc(TR_MEM_OTHER, z.count, sizeof *v));
    for (size_t i = 0; i < z.count; i++) {
        tr_hdf5_listed *l = &v[n];
        tr_header h;
        const size_t length = array_name(&z.v[i]);
        if (length == 0) continue;
        snprintf(l->name, sizeof l->name, "%.*s", (int)length, z.v[i].name);
        if (see(&z, &z.v[i], "", &h) != TR_OK)
            snprintf(l->fault, sizeof l->fault, "%.250s", tr_last_error()->text);
        else {
            l->sight = (tr_hdf5_sight){.elem = h.elem, .big = h.big, .ndim = h.ndim};
            memcpy(l->sight.dims, h.dims, sizeof h.dims);
        }
        n++;
    }
    *out = v;
    *count = n;
    v = NULL;
out:
    st = of_data(st);
    tr_zip_close(&z);
    tr_free(v);
    return st;
}
