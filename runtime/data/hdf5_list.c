/* The datasets at the root of an HDF5 file, as files of arrays by name have them: listed in a
 * process of its own (hdf5_process.c), then read one by one. Groups are passed over; links are
 * named, and followed only within the file. */
#include "runtime/data/hdf5.h"

#include <string.h>

enum { PIECE = 1 << 20 }; /* bytes read at once */

/* Of a hard link: who follows others may leave the file. */
static bool is_group(hid_t h5, const char *name)
{
    const hid_t object = H5Oopen(h5, name, H5P_DEFAULT);
    const bool group = object >= 0 && H5Iget_type(object) == H5I_GROUP;
    if (object >= 0) H5Oclose(object);
    return group;
}

/* One link; *kept false: it is a group. */
static tr_status see_link(hid_t h5, const tr_data_file *file, hsize_t i, tr_hdf5_listed *l,
                          bool *kept)
{
    tr_status st = TR_OK;
    H5L_info_t link;
    tr_hdf5_handles h = tr_hdf5_none;
    *kept = true;
    memset(l, 0, sizeof *l);
    const ssize_t n = H5Lget_name_by_idx(h5, ".", H5_INDEX_NAME, H5_ITER_INC, i, l->name,
                                         sizeof l->name, H5P_DEFAULT);
    TR_H5_NEED(n > 0, TR_DATA, "%s: its names cannot be read", file->path);
    if ((size_t)n >= sizeof l->name)
        snprintf(l->fault, sizeof l->fault, "its name has %zd bytes, expected less than %zu", n,
                 sizeof l->name);
    else if (H5Lget_info(h5, l->name, &link, H5P_DEFAULT) < 0 ||
             (link.type != H5L_TYPE_HARD && link.type != H5L_TYPE_SOFT))
        snprintf(l->fault, sizeof l->fault, "is a link to another file, which is not followed");
    else if (link.type == H5L_TYPE_HARD && is_group(h5, l->name))
        *kept = false;
    else {
        h.h5 = h5;
        if (tr_hdf5_see_open(&h, file, l->name, &l->sight) != TR_OK)
            snprintf(l->fault, sizeof l->fault, "%.250s", tr_last_error()->text);
        h.h5 = -1;
    }
out:
    tr_hdf5_close(&h);
    return st;
}

tr_status tr_hdf5_see_all(const tr_data_file *file, tr_hdf5_listed **out, size_t *count)
{
    tr_status st = TR_OK;
    H5G_info_t info = {.nlinks = 0};
    hid_t h5 = -1;
    tr_hdf5_listed *v = NULL;
    bool kept;
    size_t n = 0;
    TR_TRY(tr_hdf5_file_open(file, &h5));
    TR_H5_NEED(H5Gget_info(h5, &info) >= 0, TR_DATA, "%s: its root cannot be read", file->path);
    TR_NEED(info.nlinks <= TR_HDF5_LISTED_MOST, TR_DATA, "%s: %llu datasets, expected at most %d",
            file->path, (unsigned long long)info.nlinks, TR_HDF5_LISTED_MOST);
    TR_HAVE(v = tr_alloc(TR_MEM_OTHER, (size_t)info.nlinks, sizeof *v));
    for (hsize_t i = 0; i < info.nlinks; i++) {
        TR_TRY(see_link(h5, file, i, &v[n], &kept));
        n += kept;
    }
    *out = v;
    *count = n;
    v = NULL;
out:
    if (h5 >= 0) H5Fclose(h5);
    tr_free(v);
    return st;
}

tr_status tr_hdf5_list(const char *path, tr_hdf5_listed **out, size_t *count)
{
    tr_status st;
    tr_data_file file = {.fd = -1};
    TR_TRY(tr_data_file_open(path, &file));
    TR_TRY(tr_hdf5_signature(&file));
    TR_TRY(tr_hdf5_look_all(&file, TR_HDF5_LOOK_SECONDS, out, count));
out:
    tr_data_file_close(&file);
    return st;
}

tr_status tr_hdf5_listed_read(const char *path, const tr_hdf5_listed *l, float *to)
{
    tr_status st;
    tr_data_file file = {.fd = -1};
    tr_array *a = NULL;
    void *raw = NULL;
    TR_TRY(tr_data_file_open(path, &file));
    TR_TRY(tr_hdf5_seen_open(&file, path, l->name, &l->sight, &a));
    /* "samples" are what the first dimension counts, such as a weight's outputs */
    const uint64_t some = a->nbytes < PIECE ? PIECE / a->nbytes : 1;
    TR_HAVE(raw = tr_alloc(TR_MEM_OTHER, (size_t)some, a->nbytes));
    for (uint64_t i = 0; i < a->samples; i += some) {
        const uint64_t n = a->samples - i < some ? a->samples - i : some;
        TR_TRY(a->read(a, i, n, raw));
        tr_elem_to_f32(a->elem, raw, (size_t)n * a->count, to + i * a->count);
    }
out:
    tr_free(raw);
    tr_array_close(a);
    tr_data_file_close(&file);
    return st;
}
