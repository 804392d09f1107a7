/* HDF5 datasets. A contiguous, unfiltered one is looked up once: type, shape and where its bytes
 * lie in the file; from then on it is a flat array read by pread, without HDF5 or its lock. Chunked
 * and compressed ones are read by selections under the lock of the store, one sample a call; each
 * call unpacks the chunks it touches, which the chunk cache softens for reads in file order. What
 * HDF5 would fill in for bytes that were never written is refused: it would read as if complete. */
#include "runtime/data/internal.h"
#include "runtime/store/store.h"

#include <hdf5.h>
#include <inttypes.h>
#include <string.h>

typedef struct {
    tr_array base;
    tr_data_file file; /* to tell that it changed */
    hid_t h5, dset, space, type;
} selected;

/* HDF5 handles of one look; -1: not open */
typedef struct {
    hid_t h5, dset, space, type, dcpl, dapl;
} handles;

static const handles none = {-1, -1, -1, -1, -1, -1};

static void close_handles(handles *h)
{
    if (h->dapl >= 0) H5Pclose(h->dapl);
    if (h->dcpl >= 0) H5Pclose(h->dcpl);
    if (h->type >= 0) H5Tclose(h->type);
    if (h->space >= 0) H5Sclose(h->space);
    if (h->dset >= 0) H5Dclose(h->dset);
    if (h->h5 >= 0) H5Fclose(h->h5);
    *h = none;
}

/* Every use of HDF5 here stands between these two. */
static void enter(void)
{
    tr_hdf5_lock();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5Eclear2(H5E_DEFAULT);
}

static void leave(void)
{
    tr_hdf5_unlock();
}

static herr_t innermost(unsigned n, const H5E_error2_t *e, void *ctx)
{
    if (n == 0) snprintf(ctx, 200, "%s", e->desc ? e->desc : "");
    return 0;
}

static const char *reason(char buf[200])
{
    snprintf(buf, 200, "HDF5 gives no reason");
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, buf);
    return buf;
}

/* The element type, and whether its bytes are in the other order; false when we do not read it. */
static bool element_of(hid_t type, tr_elem *elem, bool *big)
{
    const struct {
        tr_elem elem;
        hid_t little, big;
    } types[] = {
        {TR_ELEM_U8, H5T_STD_U8LE, H5T_STD_U8BE},
        {TR_ELEM_I8, H5T_STD_I8LE, H5T_STD_I8BE},
        {TR_ELEM_U16, H5T_STD_U16LE, H5T_STD_U16BE},
        {TR_ELEM_I16, H5T_STD_I16LE, H5T_STD_I16BE},
        {TR_ELEM_U32, H5T_STD_U32LE, H5T_STD_U32BE},
        {TR_ELEM_I32, H5T_STD_I32LE, H5T_STD_I32BE},
        {TR_ELEM_U64, H5T_STD_U64LE, H5T_STD_U64BE},
        {TR_ELEM_I64, H5T_STD_I64LE, H5T_STD_I64BE},
        {TR_ELEM_F32, H5T_IEEE_F32LE, H5T_IEEE_F32BE},
        {TR_ELEM_F64, H5T_IEEE_F64LE, H5T_IEEE_F64BE},
    };
    for (size_t t = 0; t < TR_COUNT(types); t++) {
        if (H5Tequal(type, types[t].little) > 0 || H5Tequal(type, types[t].big) > 0) {
            *elem = types[t].elem;
            *big = H5Tequal(type, types[t].little) <= 0;
            return true;
        }
    }
    return false;
}

static hid_t native_type(tr_elem e)
{
    switch (e) {
    case TR_ELEM_U8:
        return H5T_NATIVE_UINT8;
    case TR_ELEM_I8:
        return H5T_NATIVE_INT8;
    case TR_ELEM_U16:
        return H5T_NATIVE_UINT16;
    case TR_ELEM_I16:
        return H5T_NATIVE_INT16;
    case TR_ELEM_U32:
        return H5T_NATIVE_UINT32;
    case TR_ELEM_I32:
        return H5T_NATIVE_INT32;
    case TR_ELEM_U64:
        return H5T_NATIVE_UINT64;
    case TR_ELEM_I64:
        return H5T_NATIVE_INT64;
    case TR_ELEM_F32:
        return H5T_NATIVE_FLOAT;
    default:
        return H5T_NATIVE_DOUBLE;
    }
}

/* The error for a name that is not there, with the nearest that is. */
static tr_status no_dataset(hid_t h5, const char *path, const char *name)
{
    enum { MOST = 64 };
    char names[MOST][64], why[200];
    const char *list[MOST];
    size_t count = 0;
    H5G_info_t info;
    reason(why);
    if (H5Gget_info(h5, &info) >= 0) {
        for (hsize_t i = 0; i < info.nlinks && count < MOST; i++) {
            if (H5Lget_name_by_idx(h5, ".", H5_INDEX_NAME, H5_ITER_INC, i, names[count],
                                   sizeof names[0], H5P_DEFAULT) <= 0)
                break;
            list[count] = names[count];
            count++;
        }
    }
    const char *nearest = tr_nearest(name, list, count);
    if (nearest)
        return TR_FAIL(TR_DATA, "%s: has no dataset \"%s\"; did you mean \"%s\"?", path, name,
                       nearest);
    char all[256] = "";
    for (size_t i = 0, n = 0; i < count && n + 70 < sizeof all; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", list[i]);
    return TR_FAIL(TR_DATA, "%s: has no dataset \"%s\" (%s); it has: %s", path, name, why,
                   count ? all : "nothing");
}

static tr_status open_handles(const char *path, const char *name, handles *h)
{
    tr_status st = TR_OK;
    char why[200];
    TR_NEED(H5Fis_hdf5(path) > 0, TR_DATA, "%s: is not an HDF5 file", path);
    h->h5 = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    TR_NEED(h->h5 >= 0, TR_DATA, "%s: cannot be opened as HDF5: %s", path, reason(why));
    h->dset = H5Dopen2(h->h5, name, H5P_DEFAULT);
    if (h->dset < 0) return no_dataset(h->h5, path, name);
    h->space = H5Dget_space(h->dset);
    h->type = H5Dget_type(h->dset);
    h->dcpl = H5Dget_create_plist(h->dset);
    TR_NEED(h->space >= 0 && h->type >= 0 && h->dcpl >= 0, TR_DATA, "%s: dataset %s: %s", path,
            name, reason(why));
out:
    return st;
}

/* Chunks as HDF5 will unpack them: all there, and of a size the file can hold. */
static tr_status check_chunks(const handles *h, const tr_data_file *file, const char *name,
                              size_t elem_size, int ndim, const uint64_t *dims, size_t *chunk_bytes)
{
    hsize_t chunk[H5S_MAX_RANK], have = 0;
    size_t nbytes = elem_size, expected = 1;
    if (H5Pget_chunk(h->dcpl, H5S_MAX_RANK, chunk) != ndim)
        return TR_FAIL(TR_DATA, "%s: dataset %s: its chunks have other dimensions than itself",
                       file->path, name);
    for (int d = 0; d < ndim; d++) {
        if (chunk[d] == 0 || !tr_mul_size(nbytes, chunk[d], &nbytes) ||
            !tr_mul_size(expected, (dims[d] - 1) / chunk[d] + 1, &expected))
            return TR_FAIL(TR_DATA, "%s: dataset %s: its chunks are of no possible size",
                           file->path, name);
    }
    /* no filter packs better than deflate's 1032:1 on anything but constants */
    if (nbytes / 1032 > file->size)
        return TR_FAIL(TR_DATA,
                       "%s: dataset %s: a chunk of %zu bytes, more than a file of %" PRIu64
                       " can hold",
                       file->path, name, nbytes, file->size);
    if (H5Dget_num_chunks(h->dset, h->space, &have) < 0 || have != expected)
        return TR_FAIL(
            TR_DATA,
            "%s: dataset %s: %llu chunks are stored, expected %zu: it was not written in full",
            file->path, name, (unsigned long long)have, expected);
    *chunk_bytes = nbytes;
    return TR_OK;
}

/* ---- By selection ------------------------------------------------------------------------------
 */

static tr_status selected_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    selected *s = (selected *)a;
    hsize_t start[TR_MAX_DIMS] = {first}, count[TR_MAX_DIMS] = {n}, total = n * a->count;
    for (int d = 0; d < a->ndim; d++) count[d + 1] = (hsize_t)a->dims[d];
    tr_status st = TR_OK;
    char why[200];
    enter();
    hid_t mem = H5Screate_simple(1, &total, NULL);
    if (mem < 0 || H5Sselect_hyperslab(s->space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dread(s->dset, s->type, mem, s->space, H5P_DEFAULT, to) < 0)
        st = TR_FAIL(TR_DATA, "%s: samples %" PRIu64 " to %" PRIu64 ": %s", a->name, first,
                     first + n - 1, reason(why));
    if (mem >= 0) H5Sclose(mem);
    leave();
    return st == TR_OK ? tr_data_file_unchanged(&s->file) : st;
}

static void selected_release(tr_array *a)
{
    selected *s = (selected *)a;
    handles h = none;
    h.h5 = s->h5;
    h.dset = s->dset;
    h.space = s->space;
    enter();
    close_handles(&h);
    leave();
    s->h5 = s->dset = s->space = -1;
    tr_data_file_shut(&s->file);
}

static void selected_fini(tr_array *a)
{
    tr_data_file_close(&((selected *)a)->file);
}

/* Takes the handles and the file. The dataset is opened anew with a cache for a few of its chunks.
 */
static tr_status open_selected(const char *name, handles *h, tr_data_file *file, tr_elem elem,
                               size_t chunk_bytes, tr_array **out)
{
    selected *s = TR_NEW(TR_MEM_OTHER, selected);
    if (!s) return TR_MEMORY;
    if (chunk_bytes > 0) {
        size_t cache = chunk_bytes > ((size_t)4 << 20) ? chunk_bytes : (size_t)4 << 20;
        h->dapl = H5Pcreate(H5P_DATASET_ACCESS);
        if (h->dapl >= 0 && H5Pset_chunk_cache(h->dapl, 1009, cache, 1.0) >= 0) {
            H5Dclose(h->dset);
            h->dset = H5Dopen2(h->h5, name, h->dapl);
        }
    }
    s->base.read = selected_read;
    s->base.release = selected_release;
    s->base.fini = selected_fini;
    s->file = *file;
    s->h5 = h->h5;
    s->dset = h->dset;
    s->space = h->space;
    s->type = native_type(elem);
    *file = (tr_data_file){.fd = -1};
    h->h5 = h->dset = h->space = -1;
    *out = &s->base;
    return TR_OK;
}

/* ---- Opening -----------------------------------------------------------------------------------
 */

/* Under the lock. What stands in the file becomes a flat array, or one read by selections. */
static tr_status look(handles *h, tr_data_file *file, const char *name, int *ndim_out,
                      uint64_t *dims, tr_elem *elem, tr_array **out)
{
    tr_status st = TR_OK;
    const char *path = file->path;
    bool big;
    hsize_t hdims[H5S_MAX_RANK];
    size_t total, chunk_bytes = 0;
    char why[200];
    TR_TRY(open_handles(path, name, h));
    TR_NEED(
        element_of(h->type, elem, &big), TR_DATA,
        "%s: dataset %s: its element type is not read, expected 8 to 64 bit integers, float32 or "
        "float64",
        path, name);
    int ndim = H5Sget_simple_extent_ndims(h->space);
    TR_NEED(ndim >= 1 && ndim <= TR_MAX_DIMS, TR_DATA,
            "%s: dataset %s: has %d dimensions, expected 1 to %d, the first one counting samples",
            path, name, ndim, TR_MAX_DIMS);
    TR_NEED(H5Sget_simple_extent_dims(h->space, hdims, NULL) == ndim, TR_DATA, "%s: dataset %s: %s",
            path, name, reason(why));
    total = tr_elem_size(*elem);
    for (int d = 0; d < ndim; d++) {
        dims[d] = hdims[d];
        TR_NEED(hdims[d] > 0, TR_DATA, "%s: dataset %s: dimension %d is 0, expected at least 1",
                path, name, d);
        TR_NEED(tr_mul_size(total, hdims[d], &total), TR_DATA,
                "%s: dataset %s: claims an impossible size", path, name);
    }
    *ndim_out = ndim;

    H5D_layout_t layout = H5Pget_layout(h->dcpl);
    TR_NEED(H5Pget_external_count(h->dcpl) <= 0 && layout != H5D_VIRTUAL, TR_DATA,
            "%s: dataset %s: its bytes lie in other files, expected all in this one: copy it with "
            "h5repack",
            path, name);
    if (layout == H5D_CHUNKED)
        TR_TRY(check_chunks(h, file, name, tr_elem_size(*elem), ndim, dims, &chunk_bytes));
    if (layout != H5D_CONTIGUOUS) {
        st = open_selected(name, h, file, *elem, chunk_bytes, out);
        goto out;
    }
    haddr_t at = H5Dget_offset(h->dset);
    TR_NEED(at != HADDR_UNDEF, TR_DATA, "%s: dataset %s: was never written", path, name);
    TR_NEED(at <= file->size && total <= file->size - at, TR_DATA,
            "%s: dataset %s: ends at byte %" PRIu64 ", expected within the file's %" PRIu64
            ": it is cut short",
            path, name, (uint64_t)at + total, file->size);
    tr_segment segment = {.file = *file, .offset = at, .samples = dims[0]};
    segment.stride = total / dims[0];
    *file = (tr_data_file){.fd = -1};
    st = tr_flat_open(&segment, 1, big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__), out);
out:
    return st;
}

tr_status tr_hdf5_array_open(const char *path, const char *dataset, tr_array **out)
{
    tr_status st = TR_OK;
    tr_array *a = NULL;
    tr_data_file file = {.fd = -1};
    uint64_t dims[TR_MAX_DIMS] = {0};
    int ndim = 0;
    tr_elem elem = TR_ELEM_U8;
    handles h = none;
    TR_TRY(tr_data_file_open(path, &file));
    enter();
    st = look(&h, &file, dataset, &ndim, dims, &elem, &a);
    close_handles(&h);
    leave();
    TR_TRY(st);
    a->name = tr_sprintf("%s: dataset %s", path, dataset);
    TR_HAVE(a->name);
    TR_TRY(tr_array_shape(a, elem, ndim, dims));

out:
    tr_data_file_close(&file);
    if (st != TR_OK) {
        tr_array_close(a);
        return st;
    }
    *out = a;
    return TR_OK;
}
