/* Reading NPZ, as numpy.savez and savez_compressed write it: a ZIP archive of NPY files. */
#include <string.h>

#include "optimize/tensors/provider.h"
#include "runtime/data/arrays.h"
#include "runtime/data/zip.h"

typedef struct {
    tr_zip zip;
    tr_header *headers; /* [zip.count] */
} archive;

static void close_archive(void *own)
{
    archive *z = own;
    tr_zip_close(&z->zip);
    tr_free(z->headers);
    tr_free(z);
}

/* What keeps the member from being read is a fault of its own: others may be what is wanted. */
static void describe(const tr_zip_member *m, const uint8_t *head, size_t n, tr_header *h,
                     tr_named_array *info)
{
    size_t nbytes;
    bool fits = true;
    if (tr_npy_parse(head, n, h) != TR_OK) {
        snprintf(info->fault, sizeof info->fault, "%.190s", tr_last_error()->text);
        return;
    }
    nbytes = tr_elem_size(h->elem);
    snprintf(info->type, sizeof info->type, "%s", tr_elem_name(h->elem));
    for (int d = 0; d < h->ndim; d++) fits = fits && tr_mul_size(nbytes, h->dims[d], &nbytes);
    if (!fits || m->size - h->offset != nbytes) {
        snprintf(info->fault, sizeof info->fault,
                 "its header says another size than its %llu bytes", (unsigned long long)m->size);
        return;
    }
    info->ndim = h->ndim;
    for (int d = 0; d < h->ndim; d++) info->dims[d] = (int64_t)h->dims[d];
    if (h->elem < TR_ELEM_F16)
        snprintf(info->fault, sizeof info->fault, "of type %s, expected float16, 32 or 64",
                 info->type);
}

static tr_status add_member(tr_arrays *a, archive *z, size_t i, uint8_t *head)
{
    tr_status st = TR_OK;
    const tr_zip_member *m = &z->zip.v[i];
    const size_t length = strlen(m->name);
    tr_named_array info = {.type = "?"};
    size_t n = 0;
    TR_NEED(!strstr(m->name, "data.pkl"), TR_FILE,
            "%s: a file of torch.save, which holds a program (pickle): save its state_dict with "
            "safetensors.torch.save_file, or numpy.savez",
            a->path);
    TR_NEED(length > 4 && strcmp(m->name + length - 4, ".npy") == 0, TR_FILE,
            "%s: %s is no array: expected NPY files, as numpy.savez writes them", a->path, m->name);
    snprintf(info.name, sizeof info.name, "%.*s", (int)(length - 4), m->name);
    st = tr_npz_head(&z->zip, m, head, &n);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", a->path));
    describe(m, head, n, &z->headers[i], &info);
    TR_TRY(tr_arrays_add(a, &info, NULL));
out:
    return st;
}

static tr_status open_archive(tr_arrays *a)
{
    tr_status st = TR_OK;
    uint8_t *head = tr_alloc(TR_MEM_OTHER, TR_NPY_HEADER, 1);
    archive *z = a->own = TR_NEW(TR_MEM_OTHER, archive);
    TR_HAVE(head && z);
    TR_TRY(tr_zip_open(a->path, &z->zip));
    TR_HAVE(z->headers = tr_alloc(TR_MEM_OTHER, z->zip.count, sizeof *z->headers));
    for (size_t i = 0; i < z->zip.count; i++) TR_TRY(add_member(a, z, i, head));
out:
    tr_free(head);
    return st;
}

/* An array whose first dimension varies fastest, as others have it. */
static void transpose(const tr_named_array *info, const float *from, float *to)
{
    int64_t at[TR_ARRAY_DIMS] = {0};
    size_t step[TR_ARRAY_DIMS], n = 1, k = 0;
    for (int d = 0; d < info->ndim; d++) {
        step[d] = n;
        n *= (size_t)info->dims[d];
    }
    for (size_t i = 0; i < info->count; i++) {
        to[i] = from[k];
        for (int d = info->ndim - 1; d >= 0; d--) {
            k += step[d];
            if (++at[d] < info->dims[d]) break;
            k -= step[d] * (size_t)info->dims[d];
            at[d] = 0;
        }
    }
}

static tr_status read_values(tr_zip_stream *s, const tr_header *h, size_t count, float *to)
{
    enum { PIECE = 1 << 14 };
    _Alignas(8) unsigned char piece[PIECE];
    tr_status st = TR_OK;
    const size_t size = tr_elem_size(h->elem), room = PIECE / size;
    TR_TRY(tr_npz_skip(s, h->offset));
    for (size_t i = 0; i < count; i += room) {
        const size_t some = count - i < room ? count - i : room;
        TR_TRY(tr_zip_read(s, piece, some * size));
        if (tr_header_swapped(h)) tr_elem_swap(h->elem, piece, some);
        tr_elem_to_f32(h->elem, piece, some, to + i);
    }
    TR_TRY(tr_zip_check(s));
out:
    return st;
}

static tr_status read_array(tr_arrays *a, size_t id, const tr_named_array *info, float *to)
{
    const archive *z = a->own;
    const tr_header *h = &z->headers[id];
    const bool turn = h->fortran && info->ndim > 1;
    tr_status st;
    tr_zip_stream s;
    float *turned = NULL;
    TR_TRY(tr_zip_begin(&z->zip, &z->zip.v[id], &s));
    if (turn) TR_HAVE(turned = tr_alloc(TR_MEM_OTHER, info->count, sizeof *turned));
    st = read_values(&s, h, info->count, turn ? turned : to);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", a->path));
    if (turn) transpose(info, turned, to);
out:
    tr_zip_end(&s);
    tr_free(turned);
    return st;
}

const tr_arrays_provider tr_arrays_npz = {
    .open = open_archive, .read = read_array, .close = close_archive};
