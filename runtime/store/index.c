/* Opening a run file: who it is, its attributes, and a flat sorted list of its datasets. HDF5 is
 * asked once and closed again; everything later reads bytes at known offsets from one file
 * descriptor, so a checkpoint replaced in the meantime does no harm and no long read holds the HDF5
 * lock.
 *
 * The file may be hostile: only regular files, only superblocks 2 and 3 (what this program writes,
 * with checksummed metadata; the older format has none), only hard links (a soft or external one is
 * named as a fault, never followed), bounded depth and number of objects. Damage below the root
 * becomes a fault of the entry it hits, so that the rest can still be shown. */
#include "runtime/store/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX   6
#define ENTRIES_MAX 200000
#define LINKS_MAX   400000

typedef struct {
    tr_index *ix;
    tr_status st;
    const char *where;
    int depth;
    size_t *seen; /* links visited: a file may link a group into itself */
} walk;

static tr_status add(tr_index *ix, const char *where, tr_entry **out)
{
    if (ix->count >= ENTRIES_MAX)
        return TR_FAIL(TR_FILE, "%s: more than %d datasets", ix->path, ENTRIES_MAX);
    if (ix->count == 0 || (ix->count & (ix->count - 1)) == 0) {
        tr_entry *grown =
            tr_realloc(TR_MEM_OTHER, ix->entries, ix->count ? 2 * ix->count : 1, sizeof *grown);
        if (!grown) return TR_MEMORY;
        ix->entries = grown;
    }
    tr_entry *e = &ix->entries[ix->count];
    *e = (tr_entry){.where = tr_strdup(where)};
    if (!e->where) return TR_MEMORY;
    ix->count++;
    *out = e;
    return TR_OK;
}

static tr_status walk_group(tr_index *ix, hid_t group, const char *where, int depth, size_t *seen);

static tr_status visit_object(walk *w, hid_t group, const char *name, const char *where)
{
    tr_status st = TR_OK;
    tr_entry *e;
    char why[200];
    hid_t object = H5Oopen(group, name, H5P_DEFAULT);
    H5I_type_t kind = object >= 0 ? H5Iget_type(object) : H5I_BADID;
    if (object < 0) tr_h5_reason(why, sizeof why);
    if (kind == H5I_GROUP && w->depth < DEPTH_MAX) {
        TR_TRY(walk_group(w->ix, object, where, w->depth + 1, w->seen));
        goto out;
    }
    TR_TRY(add(w->ix, where, &e));
    if (kind == H5I_DATASET)
        tr_entry_describe(e, object, w->ix->nbytes);
    else if (kind == H5I_GROUP)
        tr_entry_fault(e, "groups are nested deeper than %d", DEPTH_MAX);
    else if (object < 0)
        tr_entry_fault(e, "cannot be opened: %s", why);
    else
        tr_entry_fault(e, "expected a group or a dataset, found another kind of object");
out:
    if (object >= 0) H5Oclose(object);
    return st;
}

static herr_t visit_link(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    walk *w = ctx;
    tr_entry *e;
    char *where = tr_sprintf("%s/%s", w->where, name);
    if (!where) {
        w->st = TR_MEMORY;
    } else if (++*w->seen > LINKS_MAX) {
        w->st = TR_FAIL(TR_FILE, "%s: more than %d links", w->ix->path, LINKS_MAX);
    } else if (info->type != H5L_TYPE_HARD) {
        w->st = add(w->ix, where, &e);
        if (w->st == TR_OK)
            tr_entry_fault(e, "expected a group or a dataset, found %s link (not followed)",
                           info->type == H5L_TYPE_SOFT ? "a soft" : "an external");
    } else {
        w->st = visit_object(w, group, name, where);
    }
    tr_free(where);
    return w->st == TR_OK ? 0 : 1;
}

static tr_status walk_group(tr_index *ix, hid_t group, const char *where, int depth, size_t *seen)
{
    walk w = {.ix = ix, .where = where, .depth = depth, .seen = seen};
    hsize_t at = 0;
    char why[200];
    /* native order: the sorted ones make HDF5 build tables, whose clean-up crashes on damaged
     * groups */
    if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &at, visit_link, &w) < 0 &&
        w.st == TR_OK) {
        tr_entry *e;
        tr_h5_reason(why, sizeof why);
        w.st = add(ix, where[0] ? where : "/", &e);
        if (w.st == TR_OK) tr_entry_fault(e, "the group cannot be read: %s", why);
    }
    return w.st;
}

/* What the first bytes say, before HDF5 sees any. */
static tr_status check_start(const char *path, uint64_t *nbytes)
{
    static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    tr_status st = TR_OK;
    unsigned char start[9] = {0};
    struct stat info;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    TR_NEED(fd >= 0 && fstat(fd, &info) == 0, TR_IO, "%s: cannot open: %s", path, strerror(errno));
    TR_NEED(S_ISREG(info.st_mode), TR_FILE, "%s: expected a file, found a %s", path,
            S_ISDIR(info.st_mode) ? "folder" : "device or pipe");
    TR_NEED(info.st_size > 0, TR_FILE, "%s: the file is empty", path);
    ssize_t n = pread(fd, start, sizeof start, 0);
    TR_NEED(n == (ssize_t)sizeof start && memcmp(start, magic, sizeof magic) == 0, TR_FILE,
            "%s: not an HDF5 file", path);
    TR_NEED(start[8] == 2 || start[8] == 3, TR_FILE,
            "%s: not a run file: HDF5 superblock version %d, expected 2 or 3", path, start[8]);
    *nbytes = (uint64_t)info.st_size;
out:
    if (fd >= 0) close(fd);
    return st;
}

static tr_status open_hdf5(tr_index *ix, hid_t *out)
{
    tr_status st = TR_OK;
    int *fd = NULL;
    hid_t file = -1, access = H5Pcreate(H5P_FILE_ACCESS);
    TR_H5_NEED(access >= 0 && H5Pset_fapl_sec2(access) >= 0 &&
                   H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0,
               TR_FILE, "%s: property list", ix->path);
#if H5_VERSION_GE(1, 10, 7)
    /* reading needs no lock: a run file never changes once it has its name */
    H5Pset_file_locking(access, false, true);
#endif
    file = H5Fopen(ix->path, H5F_ACC_RDONLY, access);
    TR_H5_NEED(file >= 0, TR_FILE, "%s: damaged or not an HDF5 file", ix->path);
    TR_H5_NEED(H5Fget_vfd_handle(file, H5P_DEFAULT, (void **)&fd) >= 0 && fd, TR_FILE,
               "%s: no file descriptor", ix->path);
    ix->fd = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
    TR_NEED(ix->fd >= 0, TR_IO, "%s: %s", ix->path, strerror(errno));
    *out = file;
    file = -1;
out:
    if (file >= 0) H5Fclose(file);
    if (access >= 0) H5Pclose(access);
    return st;
}

static tr_status check_kind(tr_index *ix)
{
    const tr_attr *format = tr_attrs_get(&ix->root, "format");
    const tr_attr *version = tr_attrs_get(&ix->root, "format_version");
    if (!format || format->kind != TR_ATTR_TEXT || strcmp(format->text, TR_FORMAT_NAME) != 0)
        return ix->root_fault[0]
                   ? TR_FAIL(TR_FILE, "%s: %s", ix->path, ix->root_fault)
                   : TR_FAIL(TR_FILE,
                             "%s: not a run file: expected the attribute format \"%s\" "
                             "at /, found %s",
                             ix->path, TR_FORMAT_NAME, format ? "another" : "none");
    if (!version || version->kind != TR_ATTR_COUNT || version->u == 0)
        return TR_FAIL(TR_FILE, "%s: /@format_version: expected a positive uint64", ix->path);
    ix->newer = version->u > TR_FORMAT_VERSION;
    if (ix->newer)
        return TR_FAIL(TR_FILE,
                       "%s: format_version %llu is newer than this program reads (%d): use a newer "
                       "trainer",
                       ix->path, (unsigned long long)version->u, TR_FORMAT_VERSION);
    return TR_OK;
}

static tr_status read_train(tr_index *ix, hid_t file)
{
    char why[200];
    if (H5Lexists(file, "train", H5P_DEFAULT) <= 0) {
        snprintf(ix->train_fault, TR_FAULT, "/train: missing");
        return TR_OK;
    }
    H5L_info_t info;
    hid_t group = -1;
    if (H5Lget_info(file, "train", &info, H5P_DEFAULT) >= 0 && info.type == H5L_TYPE_HARD)
        group = H5Oopen(file, "train", H5P_DEFAULT);
    if (group < 0) {
        snprintf(ix->train_fault, TR_FAULT, "/train: cannot be opened: %s",
                 tr_h5_reason(why, sizeof why));
        return TR_OK;
    }
    tr_status st = tr_attrs_read(&ix->train, group, "/train", ix->train_fault);
    H5Oclose(group);
    return st;
}

static int by_where(const void *a, const void *b)
{
    return strcmp(((const tr_entry *)a)->where, ((const tr_entry *)b)->where);
}

tr_status tr_index_open(const char *path, tr_index *ix)
{
    tr_status st = TR_OK;
    tr_h5_guard g;
    hid_t file = -1;
    size_t seen = 0;
    *ix = (tr_index){.fd = -1};
    tr_h5_enter(&g);
    ix->path = tr_strdup(path);
    TR_NEED(ix->path, TR_MEMORY, "%s: out of memory", path);
    TR_TRY(check_start(path, &ix->nbytes));
    TR_TRY(open_hdf5(ix, &file));
    TR_TRY(tr_attrs_read(&ix->root, file, "/", ix->root_fault));
    TR_TRY(check_kind(ix));
    TR_TRY(read_train(ix, file));
    TR_TRY(walk_group(ix, file, "", 0, &seen));
    if (ix->count > 0) qsort(ix->entries, ix->count, sizeof(tr_entry), by_where);
out:
    if (file >= 0) H5Fclose(file);
    tr_h5_leave(&g);
    if (st != TR_OK) tr_index_close(ix);
    return st;
}

void tr_index_close(tr_index *ix)
{
    if (ix->fd >= 0) close(ix->fd);
    for (size_t i = 0; i < ix->count; i++) tr_free(ix->entries[i].where);
    tr_free(ix->entries);
    tr_attrs_free(&ix->root);
    tr_attrs_free(&ix->train);
    tr_free(ix->path);
    *ix = (tr_index){.fd = -1, .newer = ix->newer};
}

const tr_entry *tr_index_find(const tr_index *ix, const char *where)
{
    tr_entry key = {.where = (char *)where};
    if (ix->count == 0) return NULL;
    return bsearch(&key, ix->entries, ix->count, sizeof key, by_where);
}
