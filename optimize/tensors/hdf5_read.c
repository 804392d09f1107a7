/* Arrays of HDF5 files: of run files, checkpoints too, the rows of their network; of any other the
 * datasets at the root. */
#include <string.h>

#include "optimize/tensors/provider.h"
#include "optimize/tensors/rows.h"
#include "runtime/data/arrays.h"

/* ---- Run files ------------------------------------------------------------------------------- */

static void close_network(void *own)
{
    tr_network_close(own);
}

static tr_status open_run_file(tr_arrays *a)
{
    tr_status st;
    tr_network *n = NULL;
    TR_TRY(tr_network_read(a->path, NULL, 0, a->stages, &n, NULL));
    a->own = n;
    for (size_t i = 0; i < tr_row_count(n); i++) {
        const tr_row r = tr_row_at(n, i);
        tr_named_array info = {.type = "float32", .ndim = r.ndim, .sketch = r.sketch};
        memcpy(info.name, r.name, sizeof info.name);
        memcpy(info.dims, r.dims, (size_t)r.ndim * sizeof *r.dims);
        TR_TRY(tr_arrays_add(a, &info, NULL));
    }
out:
    return st;
}

static tr_status read_row(tr_arrays *a, size_t id, const tr_named_array *info, float *to)
{
    memcpy(to, tr_row_at(a->own, id).v, info->count * sizeof *to);
    return TR_OK;
}

const tr_arrays_provider tr_arrays_run_file = {
    .open = open_run_file, .read = read_row, .close = close_network};

/* ---- Plain HDF5 ------------------------------------------------------------------------------ */

static tr_status open_datasets(tr_arrays *a)
{
    tr_status st;
    size_t n = 0;
    tr_hdf5_listed *v = NULL;
    TR_TRY(tr_hdf5_list(a->path, &v, &n));
    a->own = v;
    for (size_t i = 0; i < n; i++) {
        const tr_hdf5_listed *l = &v[i];
        tr_named_array info = {.type = "?"};
        TR_NEED(strlen(l->name) < sizeof info.name, TR_FILE,
                "%s: %s: a name of more than %zu bytes", a->path, l->name, sizeof info.name - 1);
        memcpy(info.name, l->name, strlen(l->name) + 1);
        snprintf(info.fault, sizeof info.fault, "%.190s", l->fault);
        if (!l->fault[0]) {
            snprintf(info.type, sizeof info.type, "%s", tr_elem_name(l->sight.elem));
            info.ndim = l->sight.ndim;
            for (int d = 0; d < info.ndim; d++) info.dims[d] = (int64_t)l->sight.dims[d];
            if (l->sight.elem < TR_ELEM_F16)
                snprintf(info.fault, sizeof info.fault, "of type %s, expected float32 or float64",
                         info.type);
        }
        TR_TRY(tr_arrays_add(a, &info, NULL));
    }
out:
    return st;
}

static tr_status read_dataset(tr_arrays *a, size_t id, const tr_named_array *info, float *to)
{
    (void)info;
    return tr_hdf5_listed_read(a->path, (const tr_hdf5_listed *)a->own + id, to);
}

const tr_arrays_provider tr_arrays_hdf5 = {
    .open = open_datasets, .read = read_dataset, .close = tr_free};
