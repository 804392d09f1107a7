/* Arrays in files of other programs, for whoever reads them whole: types of elements, headers of
 * NPY files, the datasets of HDF5 files. Bytes are nobody's we trust. All Local. */
#ifndef TR_DATA_ARRAYS_H
#define TR_DATA_ARRAYS_H

#include "runtime/graph/model.h"

/* ---- Elements as they lie in files ----------------------------------------------------------- */

typedef enum {
    TR_ELEM_U8,
    TR_ELEM_I8,
    TR_ELEM_U16,
    TR_ELEM_I16,
    TR_ELEM_U32,
    TR_ELEM_I32,
    TR_ELEM_U64,
    TR_ELEM_I64,
    TR_ELEM_F16,
    TR_ELEM_F32,
    TR_ELEM_F64,
    TR_ELEMS
} tr_elem;

size_t tr_elem_size(tr_elem e);
const char *tr_elem_name(tr_elem e);
double tr_elem_value(tr_elem e, const void *raw, size_t k);
void tr_elem_to_f32(tr_elem e, const void *raw, size_t count, float *out);
/* Reverses the bytes of each element in place. */
void tr_elem_swap(tr_elem e, void *raw, size_t count);

/* ---- NPY ------------------------------------------------------------------------------------- */

typedef struct {
    tr_elem elem;
    bool big;     /* byte order */
    bool fortran; /* the first dimension varies fastest */
    int ndim;     /* 0: one value */
    uint64_t dims[TR_MAX_DIMS];
    uint64_t offset; /* of the first element */
} tr_header;

#define TR_NPY_HEADER 65536
/* A header as bytes; `nbytes` may be less than the file: at least TR_NPY_HEADER, or all of it.
 * TR_DATA without the file's name, which goes before it. */
tr_status tr_npy_parse(const uint8_t *bytes, size_t nbytes, tr_header *h);
bool tr_header_swapped(const tr_header *h);

/* ---- HDF5 ------------------------------------------------------------------------------------ */

typedef struct {
    tr_elem elem;
    bool big; /* byte order */
    int ndim;
    uint64_t dims[TR_MAX_DIMS];
    bool flat; /* contiguous: all of its bytes lie at `offset` */
    uint64_t offset;
    size_t chunk_bytes; /* 0: not chunked */
} tr_hdf5_sight;

#define TR_HDF5_NAME 256
typedef struct {
    char name[TR_HDF5_NAME];
    char fault[256]; /* why it cannot be read; "": it can, and is as seen: */
    tr_hdf5_sight sight;
} tr_hdf5_listed;

/* The datasets at a file's root, by name, also those that a link within the file leads to; looked
 * at in a process of its own, since HDF5 crashes on hostile files. *out: to be freed with tr_free.
 * TR_DATA: no HDF5 file, or one that HDF5 breaks down on. */
#define TR_HDF5_LISTED_MOST 65536
tr_status tr_hdf5_list(const char *path, tr_hdf5_listed **out, size_t *count);
/* The arrays of an NPZ archive, in its order, likewise: type, byte order and shape, or why not. */
tr_status tr_npz_list(const char *path, tr_hdf5_listed **out, size_t *count);
/* One of those of HDF5, [product of dims] float32. */
tr_status tr_hdf5_listed_read(const char *path, const tr_hdf5_listed *l, float *to);

#endif
