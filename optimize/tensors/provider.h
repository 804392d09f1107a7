/* What a kind of file brings to arrays.h. Private. */
#ifndef TR_TENSORS_PROVIDER_H
#define TR_TENSORS_PROVIDER_H

#include "optimize/tensors/arrays.h"

typedef struct {
    /* Checks the file, adds its arrays, and keeps what it needs in a->own; after a failure, too,
     * `close` follows. */
    tr_status (*open)(tr_arrays *a);
    /* Array number `id` of those that open added, in its order. */
    tr_status (*read)(tr_arrays *a, size_t id, const tr_named_array *info, float *to);
    void (*close)(void *own); /* NULL, too */
} tr_arrays_provider;

extern const tr_arrays_provider tr_arrays_safetensors, tr_arrays_npz, tr_arrays_run_file,
    tr_arrays_hdf5;

typedef struct {
    tr_named_array info;
    size_t id;
} tr_arrays_entry;

struct tr_arrays {
    char *path;
    const tr_variant_def *stages;
    const tr_arrays_provider *provider;
    void *own;
    size_t count, cap;
    tr_arrays_entry *v;
};

/* Takes its number from how many there are. TR_FILE where the shape has no size. *added, of the
 * array as it stands in the list, holds until the next one is added. */
tr_status tr_arrays_add(tr_arrays *a, const tr_named_array *info, tr_named_array **added);

#endif
