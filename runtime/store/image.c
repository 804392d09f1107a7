/* A run file in the making. HDF5 on a full disk fails in H5Fclose, keeps the dead file's ids, and
 * can take the process down with them at exit. So HDF5 never writes to the disk here:
 *
 *   1. HDF5 lays the file out in a memfd (memory, sparse). Arrays get their place at once (early
 *      allocation, no fill) but are never written there, so the memfd holds kilobytes of metadata
 * and holes as large as the arrays: memory does not grow with the model.
 *   2. H5Dget_offset says where each array belongs. Commit copies the metadata between the arrays
 * from the memfd and the arrays from the caller's memory with plain pwrite(2), where a short write
 * or an error is an ordinary event.
 *
 * It costs one pass of checksums and one of writing; the HDF5 lock is held for the layout only, not
 * for the gigabytes. The stdio driver is used because it alone opens /proc/self/fd/N as the name it
 * is. Superblock 2 and version-2 object headers: HDF5 checksums its own metadata; readable by
 * HDF5 1.8+. */
#include "runtime/base/crc32c.h"
#include "runtime/store/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define METADATA_ALLOWANCE (64u << 10)
#define COMPACT_MAX        65535 /* links a group may have in its header */
#define LINKS              2     /* a layer's group mostly has: "weight", "bias" */
#define LINK_NAME          6

typedef struct {
    uint64_t offset;
    tr_image_piece piece;
    void *owned; /* the same, or NULL: the caller's */
} extent;

struct tr_image {
    char *path;
    int fd; /* memfd */
    bool packed;
    uint32_t together; /* packed: checksum of the small arrays so far */
    hid_t file, groups, layout;
    size_t count, room; /* of the extents: that are there, that fit */
    extent *extents;
    size_t nbytes; /* at least so many will be written */
};

/* A float of 16 bits, as IEEE's are laid out; HDF5 knows none before 1.14.4. */
static hid_t half_type(size_t exponent_bits, size_t bias)
{
    const size_t mantissa = 15 - exponent_bits;
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t >= 0 && H5Tset_fields(t, 15, mantissa, exponent_bits, 0, mantissa) >= 0 &&
        H5Tset_size(t, 2) >= 0 && H5Tset_ebias(t, bias) >= 0)
        return t;
    if (t >= 0) H5Tclose(t);
    return -1;
}

/* The file's type: little-endian, to be closed; -1 when arrays cannot have it. */
static hid_t type_of(tr_dtype t)
{
    switch (t) {
    case TR_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case TR_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case TR_BF16:
        return half_type(8, 127);
    case TR_F16:
        return half_type(5, 15);
    case TR_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case TR_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case TR_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case TR_I8:
        return H5Tcopy(H5T_STD_I8LE);
    case TR_DTYPES:
        break;
    }
    return -1;
}

/* With `ulimit -f` even the memfd is limited, and the kernel's answer is a signal: ask before. */
static tr_status check_limit(tr_image *im, size_t more)
{
    struct rlimit limit;
    if (!tr_add_size(im->nbytes, more, &im->nbytes))
        return TR_FAIL(TR_FILE, "%s: too large", im->path);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        im->nbytes > limit.rlim_cur)
        return TR_FAIL(TR_IO, "%s: %s: at least %zu bytes, the limit (ulimit -f) is %llu", im->path,
                       strerror(EFBIG), im->nbytes, (unsigned long long)limit.rlim_cur);
    return TR_OK;
}

/* Arrays of this size on begin at a multiple of ALIGNMENT; between smaller ones the gaps would cost
 * more than they bring. */
#define ALIGNED_FROM TR_TOGETHER
#define ALIGNMENT    64

/* A dataset has one attribute: without the hint its header is 256 bytes at least. */
static bool no_spare_room(hid_t layout)
{
#if H5_VERSION_GE(1, 10, 5)
    return H5Pset_dset_no_attrs_hint(layout, true) >= 0;
#else
    return layout >= 0;
#endif
}

/* HDF5 opens it again, and some versions look at it meanwhile; of why they cannot, nothing is
 * said. */
#define OPENS 2

/* The memory file, and room for as many again. */
static tr_status open_memory(tr_image *im)
{
    tr_status st = TR_OK;
    int more[OPENS] = {-1, -1};
    im->fd = memfd_create("trireme run file", MFD_CLOEXEC);
    bool all = im->fd >= 0;
    for (int i = 0; all && i < OPENS; i++) {
        more[i] = fcntl(im->fd, F_DUPFD_CLOEXEC, 0);
        all = more[i] >= 0;
    }
    if (!all && (errno == EMFILE || errno == ENFILE))
        st = tr_file_open_failed(im->path, O_RDONLY, TR_IO, "file");
    else if (!all)
        st = TR_FAIL(TR_IO, "%s: memfd_create: %s", im->path, strerror(errno));
    for (int i = 0; i < OPENS; i++)
        if (more[i] >= 0) close(more[i]);
    return st;
}

static tr_status create(tr_image *im)
{
    tr_status st = TR_OK;
    hid_t access = -1, creation = -1;
    char name[64];
    TR_TRY(check_limit(im, METADATA_ALLOWANCE));
    TR_TRY(open_memory(im));
    snprintf(name, sizeof name, "/proc/self/fd/%d", im->fd);

    access = H5Pcreate(H5P_FILE_ACCESS);
    creation = H5Pcreate(H5P_FILE_CREATE);
    im->groups = H5Pcreate(H5P_GROUP_CREATE);
    im->layout = H5Pcreate(H5P_DATASET_CREATE);
    TR_H5_NEED(access >= 0 && creation >= 0 && im->groups >= 0 && im->layout >= 0, TR_FILE,
               "%s: property lists", im->path);
    TR_H5_NEED(H5Pset_fapl_stdio(access) >= 0 &&
                   H5Pset_alignment(access, ALIGNED_FROM, ALIGNMENT) >= 0 &&
                   H5Pset_small_data_block_size(access, 0) >= 0 &&
                   (!im->packed || H5Pset_meta_block_size(access, 0) >= 0) &&
                   H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 &&
                   H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
                   H5Pset_attr_phase_change(creation, 64, 32) >= 0 &&
                   H5Pset_link_phase_change(creation, COMPACT_MAX, COMPACT_MAX) >= 0 &&
                   H5Pset_link_phase_change(im->groups, COMPACT_MAX, COMPACT_MAX) >= 0 &&
                   H5Pset_attr_phase_change(im->groups, 64, 32) >= 0 &&
                   H5Pset_obj_track_times(im->groups, 0) >= 0 &&
                   H5Pset_layout(im->layout, H5D_CONTIGUOUS) >= 0 &&
                   H5Pset_alloc_time(im->layout, H5D_ALLOC_TIME_EARLY) >= 0 &&
                   H5Pset_fill_time(im->layout, H5D_FILL_TIME_NEVER) >= 0 &&
                   no_spare_room(im->layout) && H5Pset_obj_track_times(im->layout, 0) >= 0,
               TR_FILE, "%s: property lists", im->path);
    im->file = H5Fcreate(name, H5F_ACC_TRUNC, creation, access);
    TR_H5_NEED(im->file >= 0, TR_FILE, "%s: cannot lay out the file in memory", im->path);
out:
    if (access >= 0) H5Pclose(access);
    if (creation >= 0) H5Pclose(creation);
    return st;
}

/* The attribute of `object` that is our checksum by this name: made, or written again. */
static tr_status put_sum(tr_image *im, hid_t object, const char *where, const char *name,
                         uint32_t crc)
{
    tr_status st = TR_OK;
    hid_t scalar = H5Screate(H5S_SCALAR);
    hid_t attr = H5Aexists(object, name) > 0
                     ? H5Aopen(object, name, H5P_DEFAULT)
                     : H5Acreate2(object, name, H5T_STD_U32LE, scalar, H5P_DEFAULT, H5P_DEFAULT);
    TR_H5_NEED(attr >= 0 && H5Awrite(attr, H5T_STD_U32LE, &crc) >= 0, TR_FILE,
               "%s: %s@%s: cannot be written", im->path, where, name);
out:
    if (attr >= 0) H5Aclose(attr);
    if (scalar >= 0) H5Sclose(scalar);
    return st;
}

tr_status tr_image_open(const char *path, bool packed, tr_image **out)
{
    tr_image *im = TR_NEW(TR_MEM_OTHER, tr_image);
    if (!im) return tr_last_status();
    im->packed = packed;
    im->fd = -1;
    im->file = im->groups = im->layout = -1;
    im->path = tr_strdup(path);
    tr_status st = im->path ? TR_OK : tr_last_status();
    if (st == TR_OK) {
        tr_h5_guard g;
        tr_h5_enter(&g);
        st = create(im);
        /* its place, before arrays stand behind the header of / */
        if (st == TR_OK && packed) st = put_sum(im, im->file, "/", TR_TOGETHER_SUM, 0);
        tr_h5_leave(&g);
    }
    if (st != TR_OK) {
        tr_image_close(im);
        return st;
    }
    *out = im;
    return TR_OK;
}

static tr_status make_group(tr_image *im, const char *where, size_t nlinks, size_t name)
{
    if (H5Lexists(im->file, where, H5P_DEFAULT) > 0) return TR_OK;
    hid_t group = -1;
    if (H5Pset_est_link_info(im->groups, (unsigned)nlinks, (unsigned)name) >= 0)
        group = H5Gcreate2(im->file, where, H5P_DEFAULT, im->groups, H5P_DEFAULT);
    if (group < 0) return TR_H5_FAIL(TR_FILE, "%s: %s: cannot make the group", im->path, where);
    H5Gclose(group);
    return TR_OK;
}

/* Makes the groups above the last name of `where`. Links stay in the
 * group's header however many there are: HDF5 1.10 frees what it never filled when the other, dense
 * form turns out damaged. */
static tr_status make_groups(tr_image *im, const char *where)
{
    tr_status st = TR_OK;
    char *name = tr_strdup(where);
    if (!name) return tr_last_status();
    for (char *p = strchr(name + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        TR_TRY(make_group(im, name, LINKS, LINK_NAME));
        *p = '/';
    }
out:
    tr_free(name);
    return st;
}

tr_status tr_image_group_of(tr_image *im, const char *where, size_t nlinks, size_t nbytes)
{
    enum { MOST = 4096 }; /* links that are reserved for: a header's first part is limited */
    const size_t n = nlinks < 1 ? 1 : nlinks > MOST ? MOST : nlinks;
    tr_h5_guard g;
    tr_h5_enter(&g);
    tr_status st = make_groups(im, where);
    if (st == TR_OK) st = make_group(im, where, n, nlinks ? (nbytes + nlinks - 1) / nlinks : 1);
    tr_h5_leave(&g);
    return st;
}

tr_status tr_image_group(tr_image *im, const char *where)
{
    return tr_image_group_of(im, where, LINKS, LINKS * LINK_NAME);
}

/* *at: where its bytes go, if it has any. */
static tr_status lay_out(tr_image *im, const char *where, tr_dtype dtype, int ndim,
                         const int64_t *dims, size_t nbytes, uint32_t crc, uint64_t *at)
{
    tr_status st = TR_OK;
    const hid_t type = type_of(dtype);
    hid_t space = -1, set = -1;
    hsize_t n[TR_STORE_DIMS];
    TR_H5_NEED(type >= 0, TR_FILE, "%s: %s: cannot make its type", im->path, where);
    TR_TRY(make_groups(im, where));
    for (int i = 0; i < ndim; i++) n[i] = (hsize_t)dims[i];
    space = ndim == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(ndim, n, NULL);
    TR_H5_NEED(space >= 0, TR_FILE, "%s: %s: bad dims", im->path, where);
    set = H5Dcreate2(im->file, where, type, space, H5P_DEFAULT, im->layout, H5P_DEFAULT);
    TR_H5_NEED(set >= 0, TR_FILE, "%s: %s: cannot make the dataset", im->path, where);
    if (im->packed && nbytes < TR_TOGETHER)
        im->together += tr_together_part(where, crc);
    else
        TR_TRY(put_sum(im, set, where, "crc32c", crc));
    if (nbytes > 0) {
        haddr_t place = H5Dget_offset(set);
        TR_H5_NEED(place != HADDR_UNDEF, TR_FILE, "%s: %s: has no place in the file", im->path,
                   where);
        *at = place;
    }
out:
    if (set >= 0) H5Dclose(set);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return st;
}

/* A piece from byte `at` on, as much as is taken at once. */
static tr_image_piece cut(const tr_image_piece *p, size_t at)
{
    enum { MAPPED = 4 << 20 };
    static const char zeros[4096];
    size_t n = p->nbytes - at;
    if (!p->data && n > sizeof zeros) n = sizeof zeros;
    if (p->mapped && n > MAPPED) n = MAPPED;
    return (tr_image_piece){p->data ? (const char *)p->data + at : zeros, n, p->mapped};
}

static uint32_t checksum(const tr_image_piece *v, size_t count)
{
    uint32_t crc = 0;
    tr_image_piece now;
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < v[i].nbytes; at += now.nbytes) {
            now = cut(&v[i], at);
            crc = tr_crc32c(crc, now.data, now.nbytes);
            if (now.mapped) tr_let_go(now.data, now.nbytes);
        }
    return crc;
}

/* `owned`: the one piece is the image's, also when this fails. */
static tr_status add(tr_image *im, const char *where, tr_dtype type, int ndim, const int64_t *dims,
                     const tr_image_piece *v, size_t count, void *owned)
{
    tr_status st = TR_OK;
    size_t nbytes = tr_dtype_size(type);
    uint64_t at = 0;
    TR_NEED(type < TR_DTYPES && ndim >= 0 && ndim <= TR_STORE_DIMS, TR_INTERNAL,
            "%s: %s: an array of this type or rank has no place in a run file", im->path, where);
    for (int i = 0; i < ndim; i++)
        TR_NEED(dims[i] >= 0 && tr_mul_size(nbytes, (size_t)dims[i], &nbytes), TR_FILE,
                "%s: %s: too large", im->path, where);
    TR_TRY(check_limit(im, nbytes));
    if (im->count + count > im->room) {
        const size_t room = 2 * im->room + count;
        extent *grown = tr_realloc(TR_MEM_OTHER, im->extents, room, sizeof *grown);
        TR_HAVE(grown);
        im->extents = grown;
        im->room = room;
    }

    tr_image_piece whole = {.nbytes = nbytes};
    if (count == 1) {
        whole.data = v->data;
        whole.mapped = v->mapped;
        v = &whole;
    }
    const uint32_t crc = checksum(v, count);
    tr_h5_guard g;
    tr_h5_enter(&g);
    st = lay_out(im, where, type, ndim, dims, nbytes, crc, &at);
    tr_h5_leave(&g);
    if (st == TR_OK && nbytes > 0) {
        for (size_t i = 0; i < count; at += v[i++].nbytes)
            im->extents[im->count++] = (extent){at, v[i], owned};
        return TR_OK;
    }
out:
    tr_free(owned);
    return st;
}

tr_status tr_image_array(tr_image *im, const char *where, tr_dtype type, int ndim,
                         const int64_t *dims, const void *data)
{
    return add(im, where, type, ndim, dims, &(tr_image_piece){.data = data}, 1, NULL);
}

tr_status tr_image_take(tr_image *im, const char *where, tr_dtype type, int ndim,
                        const int64_t *dims, void *data)
{
    return add(im, where, type, ndim, dims, &(tr_image_piece){.data = data}, 1, data);
}

tr_status tr_image_pieces(tr_image *im, const char *where, tr_dtype type, int ndim,
                          const int64_t *dims, const tr_image_piece *v, size_t count)
{
    return add(im, where, type, ndim, dims, v, count, NULL);
}

tr_status tr_image_attrs(tr_image *im, const char *where, const tr_attrs *a)
{
    tr_status st = TR_OK;
    tr_h5_guard g;
    tr_h5_enter(&g);
    hid_t object = H5Oopen(im->file, where, H5P_DEFAULT);
    TR_H5_NEED(object >= 0, TR_FILE, "%s: %s", im->path, where);
    TR_TRY(tr_attrs_write(a, object, im->path, where, im->packed));
out:
    if (object >= 0) H5Oclose(object);
    tr_h5_leave(&g);
    return st;
}

static int by_offset(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* [from, to) of the memfd: metadata and padding, never an array. */
static tr_status copy_metadata(tr_image *im, tr_commit *c, uint64_t from, uint64_t to)
{
    tr_status st = TR_OK;
    char piece[16384];
    while (from < to) {
        size_t n = to - from < sizeof piece ? (size_t)(to - from) : sizeof piece;
        ssize_t got = pread(im->fd, piece, n, (off_t)from);
        if (got < 0 && errno == EINTR) continue;
        TR_NEED(got > 0, TR_IO, "%s: reading the layout: %s", im->path,
                got < 0 ? strerror(errno) : "too short");
        TR_TRY(tr_commit_write(c, from, piece, (size_t)got));
        from += (uint64_t)got;
    }
out:
    return st;
}

static tr_status write_extent(tr_commit *c, const extent *e)
{
    tr_status st = TR_OK;
    tr_image_piece now;
    for (size_t at = 0; at < e->piece.nbytes; at += now.nbytes) {
        now = cut(&e->piece, at);
        TR_TRY(tr_commit_write(c, e->offset + at, now.data, now.nbytes));
        if (now.mapped) tr_let_go(now.data, now.nbytes);
    }
out:
    return st;
}

tr_status tr_image_commit(tr_image *im, size_t *nbytes)
{
    tr_status st = TR_OK;
    tr_commit c = {.fd = -1};
    struct stat info;
    tr_h5_guard g;
    uint64_t done = 0;

    tr_h5_enter(&g);
    if (im->packed) st = put_sum(im, im->file, "/", TR_TOGETHER_SUM, im->together);
    hid_t file = im->file;
    im->file = -1;
    if (H5Fclose(file) < 0 && st == TR_OK)
        st = TR_H5_FAIL(TR_FILE, "%s: cannot finish the layout", im->path);
    tr_h5_leave(&g);
    if (st != TR_OK) goto out;
    TR_NEED(fstat(im->fd, &info) == 0, TR_IO, "%s: %s", im->path, strerror(errno));

    if (im->count > 0) qsort(im->extents, im->count, sizeof(extent), by_offset);
    TR_TRY(tr_commit_open(&c, im->path, (uint64_t)info.st_size));
    for (size_t i = 0; i < im->count; i++) {
        const extent *e = &im->extents[i];
        TR_NEED(e->offset >= done, TR_INTERNAL, "%s: arrays overlap", im->path);
        TR_TRY(copy_metadata(im, &c, done, e->offset));
        TR_TRY(write_extent(&c, e));
        done = e->offset + e->piece.nbytes;
    }
    TR_NEED(done <= (uint64_t)info.st_size, TR_INTERNAL, "%s: arrays past the end", im->path);
    TR_TRY(copy_metadata(im, &c, done, (uint64_t)info.st_size));
    TR_TRY(tr_commit_finish(&c));
    if (nbytes) *nbytes = (size_t)info.st_size;
out:
    tr_commit_close(&c);
    return st;
}

void tr_image_close(tr_image *im)
{
    if (!im) return;
    tr_h5_guard g;
    tr_h5_enter(&g);
    if (im->layout >= 0) H5Pclose(im->layout);
    if (im->groups >= 0) H5Pclose(im->groups);
    if (im->file >= 0) H5Fclose(im->file);
    tr_h5_leave(&g);
    if (im->fd >= 0) close(im->fd);
    for (size_t i = 0; i < im->count; i++) tr_free(im->extents[i].owned);
    tr_free(im->extents);
    tr_free(im->path);
    tr_free(im);
}
