/* Files of arrays by name: which kind a file is of, and what all kinds share. */
#include "optimize/tensors/arrays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/tensors/provider.h"
#include "runtime/base/file.h"
#include "runtime/store/store.h"

enum { ENTRIES_MAX = 200000 };

tr_status tr_arrays_add(tr_arrays *a, const tr_named_array *info, tr_named_array **added)
{
    tr_status st = TR_OK;
    size_t n = 1;
    bool fits = true;
    TR_NEED(a->count < ENTRIES_MAX, TR_FILE, "%s: more than %d arrays", a->path, ENTRIES_MAX);
    for (int d = 0; d < info->ndim; d++) fits = fits && tr_mul_size(n, (size_t)info->dims[d], &n);
    fits = fits && n <= SIZE_MAX / 8;
    TR_NEED(fits, TR_FILE, "%s: %s: a shape that no memory holds", a->path, info->name);
    if (a->count == a->cap) {
        const size_t cap = a->cap ? 2 * a->cap : 64;
        tr_arrays_entry *grown = tr_realloc(TR_MEM_OTHER, a->v, cap, sizeof *grown);
        TR_HAVE(grown);
        a->v = grown;
        a->cap = cap;
    }
    tr_arrays_entry *e = &a->v[a->count];
    *e = (tr_arrays_entry){.info = *info, .id = a->count};
    e->info.count = n;
    a->count++;
    if (added) *added = &e->info;
out:
    return st;
}

/* ---- Which kind? ----------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcasecmp(path + n - m, end) == 0;
}

static tr_status choose_hdf5(tr_arrays *a)
{
    bool is;
    const tr_status st = tr_store_is(a->path, &is);
    a->provider = is ? &tr_arrays_run_file : &tr_arrays_hdf5;
    return st;
}

static tr_status choose(tr_arrays *a)
{
    tr_status st = TR_OK;
    unsigned char start[9] = {0};
    int fd = -1;
    struct stat info;
    TR_TRY(tr_file_open(a->path, O_RDONLY, TR_IO, &fd, &info));
    const size_t n = info.st_size < 9 ? (size_t)info.st_size : sizeof start;
    TR_TRY(tr_file_read_at(fd, a->path, 0, start, n));
    if (ends_in(a->path, ".safetensors"))
        a->provider = &tr_arrays_safetensors;
    else if (ends_in(a->path, ".npz") || memcmp(start, "PK\3\4", 4) == 0)
        a->provider = &tr_arrays_npz;
    else if (ends_in(a->path, ".h5") || ends_in(a->path, ".hdf5") ||
             memcmp(start, "\x89HDF\r\n\x1a\n", 8) == 0)
        TR_TRY(choose_hdf5(a));
    else if (start[8] == '{')
        a->provider = &tr_arrays_safetensors;
    TR_NEED(a->provider, TR_DATA,
            "%s: expected a run file, safetensors, NPZ or HDF5 (.h5, .safetensors, .npz)", a->path);
out:
    if (fd >= 0) close(fd);
    return st;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tr_arrays_entry *)a)->info.name, ((const tr_arrays_entry *)b)->info.name);
}

tr_status tr_arrays_open(const char *path, const tr_variant_def *stages, tr_arrays **out)
{
    tr_status st = TR_OK;
    tr_arrays *a = TR_NEW(TR_MEM_OTHER, tr_arrays);
    TR_HAVE(a);
    a->stages = stages;
    TR_HAVE(a->path = tr_strdup(path));
    TR_TRY(choose(a));
    TR_TRY(a->provider->open(a));
    if (a->count) qsort(a->v, a->count, sizeof *a->v, by_name);
    for (size_t i = 1; i < a->count; i++)
        TR_NEED(strcmp(a->v[i - 1].info.name, a->v[i].info.name) != 0, TR_FILE,
                "%s: %s stands twice", path, a->v[i].info.name);
    *out = a;
out:
    if (st != TR_OK) tr_arrays_close(a);
    return st;
}

void tr_arrays_close(tr_arrays *a)
{
    if (!a) return;
    if (a->own) a->provider->close(a->own);
    tr_free(a->v);
    tr_free(a->path);
    tr_free(a);
}

size_t tr_arrays_count(const tr_arrays *a)
{
    return a->count;
}

const tr_named_array *tr_arrays_at(const tr_arrays *a, size_t i)
{
    return &a->v[i].info;
}

tr_status tr_arrays_read(tr_arrays *a, size_t i, float *to)
{
    tr_status st = TR_OK;
    const tr_named_array *info = &a->v[i].info;
    TR_NEED(!info->fault[0], TR_DATA, "%s: %s: %s", a->path, info->name, info->fault);
    TR_TRY(a->provider->read(a, a->v[i].id, info, to));
    for (size_t k = 0; k < info->count; k++)
        TR_NEED(isfinite(to[k]), TR_DATA, "%s: %s, element %zu: not a finite float32", a->path,
                info->name, k);
out:
    return st;
}
