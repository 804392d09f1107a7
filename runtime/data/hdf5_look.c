/* Looking at a dataset of an HDF5 file: what it holds and where, and whether all of it is there.
 * The library trusts the files it reads: 1.10 crashes within seconds of fuzzing. So this runs in a
 * process of its own (hdf5_process.c); for contiguous datasets it is all of HDF5 that a file ever
 * meets. */
#include "runtime/data/hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/file.h"

#define LINK_TEXT 300 /* of where an external link leads */

const tr_hdf5_handles tr_hdf5_none = {-1, -1, -1, -1, -1, -1};

void tr_hdf5_close(tr_hdf5_handles *h)
{
    if (h->dapl >= 0) H5Pclose(h->dapl);
    if (h->dcpl >= 0) H5Pclose(h->dcpl);
    if (h->type >= 0) H5Tclose(h->type);
    if (h->space >= 0) H5Sclose(h->space);
    if (h->dset >= 0) H5Dclose(h->dset);
    if (h->h5 >= 0) H5Fclose(h->h5);
    *h = tr_hdf5_none;
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

/* The error for a dataset that does not open: its own reason where the name is there, else the
 * nearest name that is. */
static tr_status no_dataset(hid_t h5, const char *path, const char *name)
{
    enum { MOST = 64 };
    char names[MOST][64], why[TR_H5_REASON];
    const char *list[MOST];
    size_t count = 0;
    H5G_info_t info;
    tr_h5_reason(why);
    if (H5Gget_info(h5, &info) >= 0) {
        for (hsize_t i = 0; i < info.nlinks && count < MOST; i++) {
            if (H5Lget_name_by_idx(h5, ".", H5_INDEX_NAME, H5_ITER_INC, i, names[count],
                                   sizeof names[0], H5P_DEFAULT) <= 0)
                break;
            list[count] = names[count];
            count++;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return TR_FAIL(TR_DATA, "%s: dataset %s: cannot be opened: %s", path, name, why);
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

/* What HDF5 has open, against what we do: the path may lead to another file by now. */
static bool same_file(hid_t h5, const tr_data_file *file)
{
    int *fd = NULL;
    struct stat s;
    return H5Fget_vfd_handle(h5, H5P_DEFAULT, (void **)&fd) >= 0 && fd && fstat(*fd, &s) == 0 &&
           (uint64_t)s.st_dev == file->device && (uint64_t)s.st_ino == file->inode;
}

/* Called before HDF5 follows an external link, which then fails. */
static herr_t refuse_link(const char *parent_file, const char *parent_group, const char *file,
                          const char *object, unsigned *flags, hid_t fapl, void *where)
{
    (void)parent_file, (void)parent_group, (void)flags, (void)fapl;
    snprintf(where, LINK_TEXT, "%s in %s", object, file);
    return -1;
}

/* HDF5 could not open the file: why the system did not let it is in one of its messages. */
static tr_status not_opened(const char *path)
{
    const int number = tr_h5_errno();
    if (number == 0) return TR_H5_FAIL(TR_DATA, "%s: cannot be opened as HDF5", path);
    errno = number;
    return tr_file_open_failed(path, O_RDONLY, TR_DATA, "file");
}

tr_status tr_hdf5_file_open(const tr_data_file *file, hid_t *h5)
{
    tr_status st = TR_OK;
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    TR_H5_NEED(access >= 0 && H5Pset_fapl_sec2(access) >= 0, TR_DATA, "%s: property lists",
               file->path);
    *h5 = H5Fopen(file->path, H5F_ACC_RDONLY, access);
    if (*h5 < 0) st = not_opened(file->path);
    if (st != TR_OK) goto out;
    TR_NEED(same_file(*h5, file), TR_DATA, "%s: was replaced by another file while it was opened",
            file->path);
out:
    if (access >= 0) H5Pclose(access);
    return st;
}

/* `link`: where the external link leads that stood in the way; else as it was. */
static tr_status open_dataset(const tr_data_file *file, const char *name, tr_hdf5_handles *h,
                              char link[LINK_TEXT])
{
    const char *path = file->path;
    tr_status st = TR_OK;
    h->dapl = H5Pcreate(H5P_DATASET_ACCESS);
    TR_H5_NEED(h->dapl >= 0 && H5Pset_elink_cb(h->dapl, refuse_link, link) >= 0, TR_DATA,
               "%s: property lists", path);
    TR_TRY(tr_hdf5_file_open(file, &h->h5));
    h->dset = H5Dopen2(h->h5, name, h->dapl);
    TR_NEED(h->dset >= 0 || !link[0], TR_DATA,
            "%s: dataset %s: is an external link, which is not followed: it leads to %s; name that "
            "file as the path, or copy what it holds (h5repack, h5copy)",
            path, name, link);
    if (h->dset < 0) st = no_dataset(h->h5, path, name);
out:
    /* `link` is gone when this returns */
    if (h->dapl >= 0) H5Pset_elink_cb(h->dapl, NULL, NULL);
    return st;
}

tr_status tr_hdf5_open(const tr_data_file *file, const char *name, tr_hdf5_handles *h)
{
    tr_status st = TR_OK;
    char link[LINK_TEXT] = "";
    const htri_t is = H5Fis_hdf5(file->path);
    if (is < 0) return not_opened(file->path);
    TR_NEED(is > 0, TR_DATA, "%s: is not an HDF5 file", file->path);
    TR_TRY(open_dataset(file, name, h, link));
    h->space = H5Dget_space(h->dset);
    h->type = H5Dget_type(h->dset);
    h->dcpl = H5Dget_create_plist(h->dset);
    TR_H5_NEED(h->space >= 0 && h->type >= 0 && h->dcpl >= 0, TR_DATA, "%s: dataset %s", file->path,
               name);
out:
    return st;
}

/* Chunks as HDF5 will unpack them: all there, and of a size the file can hold. */
static tr_status check_chunks(const tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                              size_t elem_size, int ndim, const uint64_t *dims, size_t *chunk_bytes)
{
    hsize_t chunk[H5S_MAX_RANK], have = 0;
    size_t nbytes = elem_size, expected = 1;
    H5Z_filter_t filters[TR_HDF5_MOST_FILTERS];
    int nfilters;
    const tr_status st = tr_hdf5_filters(h->dcpl, file->path, name, filters, &nfilters);
    if (st != TR_OK) return st;
    if (H5Pget_chunk(h->dcpl, H5S_MAX_RANK, chunk) != ndim)
        return TR_FAIL(TR_DATA, "%s: dataset %s: its chunks have other dimensions than itself",
                       file->path, name);
    for (int d = 0; d < ndim; d++) {
        if (chunk[d] == 0 || !tr_mul_size(nbytes, chunk[d], &nbytes) ||
            !tr_mul_size(expected, (dims[d] - 1) / chunk[d] + 1, &expected))
            return TR_FAIL(TR_DATA, "%s: dataset %s: its chunks are of no possible size",
                           file->path, name);
    }
    if (nbytes > TR_HDF5_MOST_CHUNK)
        return TR_FAIL(TR_DATA,
                       "%s: dataset %s: a chunk of %zu bytes, expected at most %zu, for a whole "
                       "one is unpacked to read a sample: rewrite it with smaller chunks (h5repack "
                       "-l), or contiguous",
                       file->path, name, nbytes, TR_HDF5_MOST_CHUNK);
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

/* ---- The look -------------------------------------------------------------------------------- */

tr_status tr_hdf5_see(tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                      tr_hdf5_sight *s)
{
    tr_status st = TR_OK;
    const char *path = file->path;
    hsize_t hdims[H5S_MAX_RANK];
    size_t total;
    memset(s, 0, sizeof *s); /* what only some layouts have */
    TR_TRY(tr_hdf5_open(file, name, h));
    TR_NEED(
        element_of(h->type, &s->elem, &s->big), TR_DATA,
        "%s: dataset %s: its element type is not read, expected 8 to 64 bit integers, float32 or "
        "float64",
        path, name);
    int ndim = H5Sget_simple_extent_ndims(h->space);
    TR_NEED(ndim >= 1 && ndim <= TR_MAX_DIMS, TR_DATA,
            "%s: dataset %s: has %d dimensions, expected 1 to %d, the first one counting samples",
            path, name, ndim, TR_MAX_DIMS);
    TR_H5_NEED(H5Sget_simple_extent_dims(h->space, hdims, NULL) == ndim, TR_DATA, "%s: dataset %s",
               path, name);
    total = tr_elem_size(s->elem);
    for (int d = 0; d < ndim; d++) {
        s->dims[d] = hdims[d];
        TR_NEED(hdims[d] > 0, TR_DATA, "%s: dataset %s: dimension %d is 0, expected at least 1",
                path, name, d);
        TR_NEED(tr_mul_size(total, hdims[d], &total), TR_DATA,
                "%s: dataset %s: claims an impossible size", path, name);
    }
    s->ndim = ndim;

    H5D_layout_t layout = H5Pget_layout(h->dcpl);
    TR_NEED(H5Pget_external_count(h->dcpl) <= 0 && layout != H5D_VIRTUAL, TR_DATA,
            "%s: dataset %s: its bytes lie in other files, expected all in this one: copy it with "
            "h5repack",
            path, name);
    s->flat = layout == H5D_CONTIGUOUS;
    if (layout == H5D_COMPACT) {
        const hsize_t held = H5Dget_storage_size(h->dset); /* HDF5 reads on behind it */
        TR_NEED(held == total, TR_DATA,
                "%s: dataset %s: %llu bytes in its header, expected the %zu of its shape", path,
                name, (unsigned long long)held, total);
    }
    if (layout == H5D_CHUNKED)
        TR_TRY(check_chunks(h, file, name, tr_elem_size(s->elem), ndim, s->dims, &s->chunk_bytes));
    if (s->flat) {
        haddr_t at = H5Dget_offset(h->dset);
        TR_NEED(at != HADDR_UNDEF, TR_DATA, "%s: dataset %s: was never written", path, name);
        s->offset = at;
        goto out;
    }
    /* one sample, so that its filters are met here first */
    size_t nbytes = total / (size_t)hdims[0];
    if (nbytes <= (size_t)16 << 20) {
        hsize_t start[TR_MAX_DIMS] = {0}, n = nbytes / tr_elem_size(s->elem);
        hdims[0] = 1;
        void *to = tr_alloc(TR_MEM_OTHER, 1, nbytes);
        TR_HAVE(to);
        hid_t mem = H5Screate_simple(1, &n, NULL);
        if (mem < 0 ||
            H5Sselect_hyperslab(h->space, H5S_SELECT_SET, start, NULL, hdims, NULL) < 0 ||
            H5Dread(h->dset, h->type, mem, h->space, H5P_DEFAULT, to) < 0)
            st = TR_H5_FAIL(TR_DATA, "%s: dataset %s: sample 0", path, name);
        tr_free(to);
    }
out:
    return st;
}
