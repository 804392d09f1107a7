/* HDF5: a dataset for each array at the root, named as the array; float32, contiguous. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "optimize/tensors/rows.h"
#include "runtime/base/file.h"
#include "runtime/h5/h5.h"

static tr_status write_row(hid_t file, const char *path, const tr_row *r)
{
    tr_status st = TR_OK;
    hsize_t dims[TR_ARRAY_DIMS];
    hid_t space = -1, set = -1;
    const float *v;
    float *own = NULL;
    TR_NEED(!strchr(r->name, '/'), TR_CONFIG,
            "%s: %s: a name with a slash would be a group here; safetensors and npz take it", path,
            r->name);
    TR_TRY(tr_row_values(r, &v, &own));
    for (int d = 0; d < r->ndim; d++) dims[d] = (hsize_t)r->dims[d];
    space = H5Screate_simple(r->ndim, dims, NULL);
    if (space >= 0)
        set =
            H5Dcreate2(file, r->name, H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    TR_H5_NEED(set >= 0 && H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0,
               TR_IO, "%s: %s cannot be written", path, r->name);
out:
    if (set >= 0) H5Dclose(set);
    if (space >= 0) H5Sclose(space);
    tr_free(own);
    return st;
}

/* As an image in memory, which then becomes the file whole. */
static tr_status make_image(const char *path, const tr_row *rows, size_t count, void **image,
                            size_t *nbytes)
{
    tr_status st = TR_OK;
    hid_t file = -1, access = H5Pcreate(H5P_FILE_ACCESS);
    TR_H5_NEED(access >= 0 && H5Pset_fapl_core(access, 1 << 20, 0) >= 0, TR_IO,
               "%s: no file in memory", path);
    file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    TR_H5_NEED(file >= 0, TR_IO, "%s: no file in memory", path);
    for (size_t i = 0; i < count; i++) TR_TRY(write_row(file, path, &rows[i]));
    TR_H5_NEED(H5Fflush(file, H5F_SCOPE_LOCAL) >= 0, TR_IO, "%s cannot be made", path);
    const ssize_t size = H5Fget_file_image(file, NULL, 0);
    TR_H5_NEED(size > 0, TR_IO, "%s cannot be made", path);
    TR_HAVE(*image = tr_alloc(TR_MEM_OTHER, (size_t)size, 1));
    TR_H5_NEED(H5Fget_file_image(file, *image, (size_t)size) == size, TR_IO, "%s cannot be made",
               path);
    *nbytes = (size_t)size;
out:
    if (file >= 0) H5Fclose(file);
    if (access >= 0) H5Pclose(access);
    return st;
}

tr_status tr_hdf5_write(const char *path, const tr_network *n, const tr_renames *names)
{
    tr_status st;
    tr_h5_guard guard;
    tr_commit c = {.fd = -1};
    void *image = NULL;
    size_t nbytes = 0;
    tr_row *rows = NULL;
    TR_TRY(tr_rows_of_file(n, names, &rows));
    tr_h5_enter(&guard);
    st = make_image(path, rows, tr_row_count(n), &image, &nbytes);
    tr_h5_leave(&guard);
    TR_TRY(st);
    TR_TRY(tr_commit_open(&c, path, nbytes));
    TR_TRY(tr_commit_write(&c, 0, image, nbytes));
    TR_TRY(tr_commit_finish(&c));
out:
    tr_commit_close(&c);
    tr_free(rows);
    tr_free(image);
    return st;
}
