/* HDF5 datasets as arrays. A contiguous, unfiltered one is looked up once (hdf5_look.c): type,
 * shape and where its bytes lie in the file; from then on it is a flat array read by pread, without
 * HDF5 or its lock. Chunked and compressed ones are read by selections under the lock around HDF5,
 * one sample a call; each call unpacks the chunks it touches, which the chunk cache softens for
 * reads in file order. What HDF5 would fill in for bytes that were never written is refused: it
 * would read as if complete. */
#include "runtime/data/hdf5.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    tr_array base;
    tr_data_file file; /* to tell that it changed */
    hid_t h5, dset, space, type;
    tr_hdf5_chunks *chunks; /* NULL: not chunked */
} selected;

/* In memory; -1: HDF5 has none. */
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
    case TR_ELEM_F64:
        return H5T_NATIVE_DOUBLE;
    case TR_ELEM_F16:
    case TR_ELEMS:
        break;
    }
    return -1;
}

/* ---- By selection ---------------------------------------------------------------------------- */

static tr_status selected_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    selected *s = (selected *)a;
    hsize_t start[TR_MAX_DIMS] = {first}, count[TR_MAX_DIMS] = {n}, total = n * a->count;
    for (int d = 0; d < a->ndim; d++) count[d + 1] = (hsize_t)a->dims[d];
    tr_status st = TR_OK;
    tr_h5_guard g;
    tr_h5_enter(&g);
    if (s->chunks) st = tr_hdf5_chunks_check(s->chunks, s->dset, a->name, start, count);
    if (st != TR_OK) goto out;
    const hid_t mem = H5Screate_simple(1, &total, NULL);
    if (mem < 0 || H5Sselect_hyperslab(s->space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dread(s->dset, s->type, mem, s->space, H5P_DEFAULT, to) < 0)
        st = TR_H5_FAIL(TR_DATA, "%s: samples %" PRIu64 " to %" PRIu64, a->name, first,
                        first + n - 1);
    if (mem >= 0) H5Sclose(mem);
out:
    tr_h5_leave(&g);
    return st == TR_OK ? tr_data_file_unchanged(&s->file) : st;
}

static void selected_release(tr_array *a)
{
    selected *s = (selected *)a;
    tr_hdf5_handles h = tr_hdf5_none;
    tr_h5_guard g;
    h.h5 = s->h5;
    h.dset = s->dset;
    h.space = s->space;
    tr_h5_enter(&g);
    tr_hdf5_close(&h);
    tr_h5_leave(&g);
    s->h5 = s->dset = s->space = -1;
    tr_mem_count(TR_MEM_DATA, -(int64_t)(a->cache - tr_hdf5_chunks_held(s->chunks)));
    tr_hdf5_chunks_close(s->chunks);
    s->chunks = NULL;
    a->cache = 0;
    tr_data_file_shut(&s->file);
}

static void selected_fini(tr_array *a)
{
    tr_data_file_close(&((selected *)a)->file);
}

#define CACHE ((size_t)4 << 20)

/* Opens the dataset here, with a cache for at least one of its chunks. Takes the file. */
static tr_status open_selected(const char *name, const tr_hdf5_sight *sight, tr_data_file *file,
                               tr_array **out)
{
    tr_status st = TR_OK;
    size_t cache = 0;
    const hid_t type = native_type(sight->elem);
    tr_hdf5_handles h = tr_hdf5_none;
    selected *s = TR_NEW(TR_MEM_OTHER, selected);
    TR_HAVE(s);
    TR_NEED(type >= 0, TR_UNSUPPORTED, "%s: dataset %s: elements of type %s are not read",
            file->path, name, tr_elem_name(sight->elem));
    TR_TRY(tr_hdf5_open(file, name, &h));
    if (sight->chunk_bytes > 0) {
        TR_TRY(tr_hdf5_chunks_open(&h, file, name, sight, &s->chunks));
        const size_t held = tr_hdf5_chunks_held(s->chunks), rest = held < CACHE ? CACHE - held : 0;
        cache = sight->chunk_bytes > rest ? sight->chunk_bytes : rest;
        TR_H5_NEED(H5Pset_chunk_cache(h.dapl, 1009, cache, 1.0) >= 0, TR_DATA,
                   "%s: dataset %s: no cache for its chunks", file->path, name);
        H5Dclose(h.dset);
        h.dset = H5Dopen2(h.h5, name, h.dapl);
        TR_H5_NEED(h.dset >= 0, TR_DATA, "%s: dataset %s", file->path, name);
    }
    s->base.unit = sight->chunk_bytes;
    s->base.cache = cache + tr_hdf5_chunks_held(s->chunks);
    tr_mem_count(TR_MEM_DATA, (int64_t)cache);
    s->base.read = selected_read;
    s->base.release = selected_release;
    s->base.fini = selected_fini;
    s->file = *file;
    s->h5 = h.h5;
    s->dset = h.dset;
    s->space = h.space;
    s->type = type;
    *file = (tr_data_file){.fd = -1};
    h.h5 = h.dset = h.space = -1;
out:
    tr_hdf5_close(&h);
    if (st != TR_OK) {
        if (s) tr_hdf5_chunks_close(s->chunks);
        tr_free(s);
        return st;
    }
    *out = &s->base;
    return TR_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* The format's signature at 0, 512, 1024, 2048, ...: anything else needs no HDF5 to be refused. */
tr_status tr_hdf5_signature(const tr_data_file *file)
{
    static const char signature[8] = "\x89HDF\r\n\x1a\n";
    char found[sizeof signature];
    for (uint64_t at = 0; at + sizeof found <= file->size; at = at ? 2 * at : 512)
        if (pread(file->fd, found, sizeof found, (off_t)at) == sizeof found &&
            memcmp(found, signature, sizeof found) == 0)
            return TR_OK;
    return TR_FAIL(TR_DATA, "%s: is not an HDF5 file", file->path);
}

tr_status tr_hdf5_seen_open(tr_data_file *file, const char *path, const char *dataset,
                            const tr_hdf5_sight *sight, tr_array **out)
{
    tr_status st = TR_OK;
    tr_array *a = NULL;
    if (!sight->flat) {
        tr_h5_guard g;
        tr_h5_enter(&g);
        st = open_selected(dataset, sight, file, &a);
        tr_h5_leave(&g);
        TR_TRY(st);
    }
    if (sight->flat) {
        size_t nbytes = tr_elem_size(sight->elem);
        for (int d = 1; d < sight->ndim; d++) nbytes *= (size_t)sight->dims[d];
        tr_file_segment segment = {
            .file = *file, .offset = sight->offset, .stride = nbytes, .samples = sight->dims[0]};
        *file = (tr_data_file){.fd = -1};
        TR_TRY(
            tr_flat_open(&segment, 1, sight->big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__), &a));
    }
    a->name = tr_sprintf("%s: dataset %s", path, dataset);
    TR_HAVE(a->name);
    TR_TRY(tr_array_shape(a, sight->elem, sight->ndim, sight->dims));

out:
    tr_data_file_close(file);
    if (st != TR_OK) {
        tr_array_close(a);
        return st;
    }
    *out = a;
    return TR_OK;
}

/* Opened once more: TR_DATA where another file lies there by now. */
static tr_status open_again(const char *path, const tr_data_file *seen, tr_data_file *out)
{
    tr_status st;
    TR_TRY(tr_data_file_open(path, out));
    TR_NEED(out->device == seen->device && out->inode == seen->inode && out->size == seen->size,
            TR_DATA, "%s: was replaced or written to while it was opened", path);
out:
    return st;
}

tr_status tr_hdf5_arrays_look(const char *path, const char *const *datasets, size_t needed,
                              size_t count, tr_failed_set *failed)
{
    tr_status st;
    tr_data_file file = {.fd = -1};
    *failed = (tr_failed_set){.at = count};
    TR_TRY(tr_data_file_open(path, &file));
    TR_TRY(tr_hdf5_signature(&file));
    TR_TRY(tr_hdf5_look_ahead(&file, datasets, needed, count, TR_HDF5_LOOK_SECONDS, failed));
out:
    tr_data_file_close(&file);
    return st;
}

tr_status tr_hdf5_arrays_open(const char *path, const char *const *datasets, size_t count,
                              tr_array **out, tr_failed_set *failed)
{
    tr_status st = TR_OK;
    tr_data_file file = {.fd = -1}, own = {.fd = -1};
    size_t n = 0;
    tr_failed_set at = {.at = count};
    tr_hdf5_sight *sights = tr_alloc(TR_MEM_OTHER, count, sizeof *sights);
    tr_array **arrays = tr_alloc(TR_MEM_OTHER, count, sizeof(tr_array *));
    TR_HAVE(sights);
    TR_HAVE(arrays);
    TR_TRY(tr_data_file_open(path, &file));
    TR_TRY(tr_hdf5_signature(&file));
    TR_TRY(tr_hdf5_look(&file, datasets, count, TR_HDF5_LOOK_SECONDS, sights, &at));
    for (; n < count; n++) {
        at.at = n;
        TR_TRY(open_again(path, &file, &own));
        TR_TRY(tr_hdf5_seen_open(&own, path, datasets[n], &sights[n], &arrays[n]));
    }
    memcpy(out, arrays, count * sizeof(tr_array *));
    n = 0;
out:
    if (failed) *failed = at;
    while (n > 0) tr_array_close(arrays[--n]);
    tr_free(arrays);
    tr_free(sights);
    tr_data_file_close(&own);
    tr_data_file_close(&file);
    return st;
}
