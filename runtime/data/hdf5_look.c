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

/* What is at a name that no dataset opens at. What lies behind a link to another file, or cannot be
 * opened, is not known. */
typedef enum { SOMETHING, GROUP, NOTHING } thing;

/* At the first link of a path, or the next: soft ones are followed within the file, as `access`
 * (open_dataset) has it. */
static thing next_thing(hid_t h5, const char *name, hid_t access, bool last)
{
    H5L_info_t link;
    const htri_t exists = H5Lexists(h5, name, access);
    if (exists <= 0) return exists == 0 ? NOTHING : SOMETHING;
    if (H5Lget_info(h5, name, &link, access) < 0 ||
        (link.type != H5L_TYPE_HARD && link.type != H5L_TYPE_SOFT))
        return SOMETHING;
    const hid_t object = H5Oopen(h5, name, access);
    if (object < 0) return SOMETHING;
    const bool group = H5Iget_type(object) == H5I_GROUP;
    H5Oclose(object);
    if (group) return GROUP;
    return last ? SOMETHING : NOTHING; /* in a dataset nothing is */
}

/* H5Lexists finds no link called ".", which is the group itself. */
static thing thing_at(hid_t h5, const char *name, hid_t access)
{
    char *part = tr_strdup(name);
    thing is = part ? GROUP : SOMETHING;
    for (size_t n = 0, begin; is == GROUP && name[n];) {
        begin = n += strspn(name + n, "/");
        n += strcspn(name + n, "/");
        if (n == begin || (n == begin + 1 && name[begin] == '.')) continue;
        memcpy(part, name, n);
        part[n] = 0;
        is = next_thing(h5, part, access, !name[n + strspn(name + n, "/")]);
    }
    tr_free(part);
    return is;
}

/* With the nearest name that is there. */
static tr_status no_dataset(hid_t h5, const char *name, const char *why)
{
    enum { MOST = 64 };
    char names[MOST][64];
    const char *list[MOST];
    size_t count = 0;
    H5G_info_t info;
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
        return TR_FAIL(TR_DATA, "has no dataset \"%s\"; did you mean \"%s\"?", name, nearest);
    char all[256] = "";
    for (size_t i = 0, n = 0; i < count && n + 70 < sizeof all; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", list[i]);
    return TR_FAIL(TR_DATA, "has no dataset \"%s\" (%s); it has: %s", name, why,
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

/* In h->h5. What is wrong is said without file and name; *is: what is there, where it does not
 * open. */
static tr_status open_dataset(const char *name, tr_hdf5_handles *h, thing *is)
{
    tr_status st = TR_OK;
    char link[LINK_TEXT] = "",
         why[TR_H5_REASON]; /* link: where it leads, if one stood in the way */
    *is = SOMETHING;
    h->dapl = H5Pcreate(H5P_DATASET_ACCESS);
    TR_H5_NEED(h->dapl >= 0 && H5Pset_elink_cb(h->dapl, refuse_link, link) >= 0, TR_DATA,
               "property lists");
    h->dset = H5Dopen2(h->h5, name, h->dapl);
    TR_NEED(h->dset >= 0 || !link[0], TR_DATA,
            "is an external link, which is not followed: it leads to %s; name that file as the "
            "path, or copy what it holds (h5repack, h5copy)",
            link);
    if (h->dset < 0) {
        tr_h5_reason(why);
        *is = thing_at(h->h5, name, h->dapl);
        TR_TRY(*is == NOTHING ? no_dataset(h->h5, name, why)
                              : TR_FAIL(TR_DATA, "cannot be opened: %s", why));
    }
    h->space = H5Dget_space(h->dset);
    h->type = H5Dget_type(h->dset);
    h->dcpl = H5Dget_create_plist(h->dset);
    TR_H5_NEED(h->space >= 0 && h->type >= 0 && h->dcpl >= 0, TR_DATA, "cannot be read");
out:
    /* `link` is gone when this returns */
    if (h->dapl >= 0) H5Pset_elink_cb(h->dapl, NULL, NULL);
    return st;
}

static tr_status open_file(const tr_data_file *file, hid_t *h5)
{
    const htri_t is = H5Fis_hdf5(file->path);
    if (is < 0) return not_opened(file->path);
    if (is == 0) return TR_FAIL(TR_DATA, "%s: is not an HDF5 file", file->path);
    return tr_hdf5_file_open(file, h5);
}

/* Before what was said of a dataset. */
static tr_status name_it(const tr_data_file *file, const char *name, thing is, tr_status st)
{
    return is == NOTHING ? tr_fail_before(st, "%s: ", file->path)
                         : tr_fail_before(st, "%s: dataset %s: ", file->path, name);
}

tr_status tr_hdf5_open(const tr_data_file *file, const char *name, tr_hdf5_handles *h)
{
    thing is;
    tr_status st = open_file(file, &h->h5);
    if (st != TR_OK) return st;
    st = open_dataset(name, h, &is);
    return st == TR_OK ? TR_OK : name_it(file, name, is, st);
}

/* Chunks as HDF5 will unpack them: all there, and of a size the file can hold. */
static tr_status check_chunks(const tr_hdf5_handles *h, const tr_data_file *file, size_t elem_size,
                              int ndim, const uint64_t *dims, size_t *chunk_bytes)
{
    hsize_t chunk[H5S_MAX_RANK], have = 0;
    size_t nbytes = elem_size, expected = 1;
    H5Z_filter_t filters[TR_HDF5_MOST_FILTERS];
    int nfilters;
    const tr_status st = tr_hdf5_filters(h->dcpl, filters, &nfilters);
    if (st != TR_OK) return st;
    if (H5Pget_chunk(h->dcpl, H5S_MAX_RANK, chunk) != ndim)
        return TR_FAIL(TR_DATA, "its chunks have other dimensions than itself");
    for (int d = 0; d < ndim; d++) {
        if (chunk[d] == 0 || !tr_mul_size(nbytes, chunk[d], &nbytes) ||
            !tr_mul_size(expected, (dims[d] - 1) / chunk[d] + 1, &expected))
            return TR_FAIL(TR_DATA, "its chunks are of no possible size");
    }
    if (nbytes > TR_HDF5_MOST_CHUNK)
        return TR_FAIL(TR_DATA,
                       "a chunk of %zu bytes, expected at most %zu, for a whole "
                       "one is unpacked to read a sample: rewrite it with smaller chunks (h5repack "
                       "-l), or contiguous",
                       nbytes, TR_HDF5_MOST_CHUNK);
    /* no filter packs better than deflate's 1032:1 on anything but constants */
    if (nbytes / 1032 > file->size)
        return TR_FAIL(TR_DATA, "a chunk of %zu bytes, more than a file of %" PRIu64 " can hold",
                       nbytes, file->size);
    if (H5Dget_num_chunks(h->dset, h->space, &have) < 0 || have != expected)
        return TR_FAIL(TR_DATA, "%llu chunks are stored, expected %zu: it was not written in full",
                       (unsigned long long)have, expected);
    *chunk_bytes = nbytes;
    return TR_OK;
}

/* ---- The look -------------------------------------------------------------------------------- */

/* In h->h5; as open_dataset. */
static tr_status see(tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                     tr_hdf5_sight *s, thing *is)
{
    tr_status st = TR_OK;
    hsize_t hdims[H5S_MAX_RANK];
    size_t total;
    memset(s, 0, sizeof *s); /* what only some layouts have */
    TR_TRY(open_dataset(name, h, is));
    TR_NEED(element_of(h->type, &s->elem, &s->big), TR_DATA,
            "its element type is not read, expected 8 to 64 bit integers, float32 or "
            "float64");
    int ndim = H5Sget_simple_extent_ndims(h->space);
    TR_NEED(ndim >= 1 && ndim <= TR_MAX_DIMS, TR_DATA,
            "has %d dimensions, expected 1 to %d, the first one counting samples", ndim,
            TR_MAX_DIMS);
    TR_H5_NEED(H5Sget_simple_extent_dims(h->space, hdims, NULL) == ndim, TR_DATA, "cannot be read");
    total = tr_elem_size(s->elem);
    for (int d = 0; d < ndim; d++) {
        s->dims[d] = hdims[d];
        TR_NEED(hdims[d] > 0, TR_DATA, "dimension %d is 0, expected at least 1", d);
        TR_NEED(tr_mul_size(total, hdims[d], &total), TR_DATA, "claims an impossible size");
    }
    s->ndim = ndim;

    H5D_layout_t layout = H5Pget_layout(h->dcpl);
    TR_NEED(H5Pget_external_count(h->dcpl) <= 0 && layout != H5D_VIRTUAL, TR_DATA,
            "its bytes lie in other files, expected all in this one: copy it with "
            "h5repack");
    s->flat = layout == H5D_CONTIGUOUS;
    if (layout == H5D_COMPACT) {
        const hsize_t held = H5Dget_storage_size(h->dset); /* HDF5 reads on behind it */
        TR_NEED(held == total, TR_DATA, "%llu bytes in its header, expected the %zu of its shape",
                (unsigned long long)held, total);
    }
    if (layout == H5D_CHUNKED)
        TR_TRY(check_chunks(h, file, tr_elem_size(s->elem), ndim, s->dims, &s->chunk_bytes));
    if (s->flat) {
        haddr_t at = H5Dget_offset(h->dset);
        TR_NEED(at != HADDR_UNDEF, TR_DATA, "was never written");
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
            st = TR_H5_FAIL(TR_DATA, "sample 0");
        tr_free(to);
    }
out:
    return st;
}

tr_status tr_hdf5_see(tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                      tr_hdf5_sight *s, bool *missing)
{
    thing is;
    *missing = false;
    tr_status st = open_file(file, &h->h5);
    if (st != TR_OK) return st;
    st = see(h, file, name, s, &is);
    *missing = is != SOMETHING;
    return st == TR_OK ? TR_OK : name_it(file, name, is, st);
}

tr_status tr_hdf5_see_open(tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                           tr_hdf5_sight *s)
{
    thing is;
    return see(h, file, name, s, &is);
}
