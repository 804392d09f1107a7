/* What the tests of files of arrays share: a folder with one of each kind, networks, and reading
 * into these. */
#ifndef TR_TEST_TENSORS_H
#define TR_TEST_TENSORS_H

#include "optimize/tensors/arrays.h"
#include "optimize/tensors/tensors.h"
#include "tests/unit/onnx/cases.h"

#include <unistd.h>

static const onnx_case model = {
    "m", IMAGE("    - conv2d: {out: 6, kernel: 3}\n    - batchnorm\n    - flatten\n"
               "    - linear: {out: 3, name: head}\n")};
static const onnx_case small = {"s", FEATURES("    - linear: {out: 2, name: a}\n")};
static char folder[64], path[96], zip[96], hdf5[96];

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/trireme-tensors-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.safetensors", folder);
    snprintf(zip, sizeof zip, "%s/m.npz", folder);
    snprintf(hdf5, sizeof hdf5, "%s/m.h5", folder);
    return 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    unlink(zip);
    unlink(hdf5);
    return rmdir(folder);
}

static inline char *whole_of(const char *file, size_t *n)
{
    FILE *f = fopen(file, "rb");
    char *v = calloc(1, 1 << 16);
    *n = fread(v, 1, (1 << 16) - 1, f);
    fclose(f);
    return v;
}

static inline char *whole(size_t *n)
{
    return whole_of(path, n);
}

/* `rules`: pairs of patterns, ended by NULL; all: [8]. */
static inline tr_renames names_of(const char *const *rules, tr_rename *all)
{
    tr_renames names = {.key = "k", .rules = all};
    for (; rules && rules[2 * names.nrules]; names.nrules++)
        all[names.nrules] = (tr_rename){rules[2 * names.nrules], rules[2 * names.nrules + 1]};
    return names;
}

static inline tr_status take(const char *file, bool strict, const char *const *rules, tr_network *n,
                             tr_arrays_taken *t)
{
    tr_rename all[8];
    tr_init_from o = {.file = (char *)file, .strict = strict, .names = names_of(rules, all)};
    tr_arrays *a = NULL;
    tr_status st = tr_arrays_open(file, NULL, &a);
    if (st == TR_OK) st = tr_arrays_take(a, &o, n, t);
    tr_arrays_close(a);
    return st;
}

static inline tr_status read_all(const char *file, tr_network *n)
{
    return take(file, true, NULL, n, NULL);
}

static inline void same_values(const tr_network *a, const tr_network *b)
{
    assert_memory_equal(a->params, b->params, a->model->flat_count * sizeof(float));
    assert_memory_equal(a->states, b->states, a->model->state_count * sizeof(float));
}

#endif
