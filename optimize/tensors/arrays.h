/* Arrays by name in files of whatever kind, and how they become a network's values: safetensors,
 * NumPy's NPZ, run files (checkpoints too), plain HDF5. Bytes are nobody's we trust. All Local. */
#ifndef TR_ARRAYS_H
#define TR_ARRAYS_H

#include "optimize/network/network.h"
#include "runtime/config/init_from.h"

#define TR_ARRAY_NAME (2 * TR_NAME)
#define TR_ARRAY_DIMS 8

typedef struct {
    char name[TR_ARRAY_NAME]; /* "conv1.weight" */
    char type[16];            /* as the file calls it */
    int ndim;
    int64_t dims[TR_ARRAY_DIMS];
    size_t count;
    /* Of run files, and of safetensors that we wrote: the signs beside which it was learned,
     * whatever `side` says; TR_SKETCH_NONE: none, or none known. */
    tr_sketch sketch;
    char fault[200]; /* why it cannot be read as float32; "": it can */
} tr_named_array;

/* By the file's extension (.safetensors, .npz, .h5, .hdf5), or else by what it begins with.
 * `stages`: as tr_config_open takes them, for run files, whose stored rows (int8, ...) come as
 * their values. TR_FILE, TR_DATA or TR_IO: damaged, of none of these kinds, not to be read. */
typedef struct tr_arrays tr_arrays;
tr_status tr_arrays_open(const char *path, const tr_variant_def *stages, tr_arrays **out);
void tr_arrays_close(tr_arrays *a);
size_t tr_arrays_count(const tr_arrays *a);
const tr_named_array *tr_arrays_at(const tr_arrays *a, size_t i); /* in the order of their names */
/* to: [count], float32 from float16, bfloat16, float32 or float64. TR_DATA where a value is not
 * finite. */
tr_status tr_arrays_read(tr_arrays *a, size_t i, float *to);

/* What became of arrays and rows: how many, and the first ones by name. */
typedef struct {
    size_t count, told;
    char text[220];
} tr_name_list;
typedef struct {
    size_t rows, taken;
    tr_name_list missing; /* rows that the file has no array for */
    tr_name_list unused;  /* arrays that the model has no row for */
    tr_name_list unlike;  /* rows whose array has another shape, or a type without fractions */
} tr_arrays_taken;

/* Sets rows of the network to the arrays of their names, once o->names changed these. PyTorch's
 * num_batches_tracked and what a rule leaves out are passed over. o->strict: all rows and all other
 * arrays, or TR_CONFIG with what does not fit; else those that fit (one at least), and the other
 * rows keep what they have. TR_CONFIG, too, where a row is learned beside other signs than the
 * file's. `found` may be NULL. Values are undefined after a failure. */
tr_status tr_arrays_take(tr_arrays *a, const tr_init_from *o, tr_network *n,
                         tr_arrays_taken *found);
/* "62 of 64 arrays taken; 2 missing: fc.weight, fc.bias". Returns buf. */
const char *tr_arrays_taken_text(const tr_arrays_taken *t, char *buf, size_t size);

#endif
