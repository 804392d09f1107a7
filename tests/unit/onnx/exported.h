/* Networks as other exporters write them: a golden file has a group a case, with the bytes of the
 * ONNX file. */
#ifndef TR_TESTS_ONNX_EXPORTED_H
#define TR_TESTS_ONNX_EXPORTED_H

#include <hdf5.h>
#include <stdlib.h>

#include "runtime/graph/ops.h"
#include "tests/unit/onnx/back.h"

#include "tests/unit/groups.h"

static inline void *exported_set(hid_t at, const char *name, hid_t type, size_t size, size_t *n)
{
    const hid_t d = H5Dopen2(at, name, H5P_DEFAULT), space = H5Dget_space(d);
    assert_true(d >= 0 && space >= 0);
    *n = (size_t)H5Sget_simple_extent_npoints(space);
    void *v = calloc(*n, size);
    assert_non_null(v);
    assert_true(H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
    H5Sclose(space);
    H5Dclose(d);
    return v;
}

/* The case's file, at `path`. */
static inline void exported_put(hid_t at)
{
    size_t n;
    void *v = exported_set(at, "file", H5T_NATIVE_UINT8, 1, &n);
    put(v, n);
    free(v);
}

/* Runs `one` on each group of a group of tests/golden/FILE; how many there are. */
static inline int exported_each(const char *file, const char *group,
                                void (*one)(hid_t at, const char *name))
{
    const char *carried = getenv("TR_SOURCE_DIR");
    char *golden = tr_sprintf("%s/tests/golden/%s", carried ? carried : TR_SOURCE_DIR, file);
    const hid_t h5 = H5Fopen(golden, H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t g = H5Gopen2(h5, group, H5P_DEFAULT);
    const int count = test_each_group(g, one);
    H5Gclose(g);
    H5Fclose(h5);
    tr_free(golden);
    return count;
}

static inline void exported_same(const char *name, const tr_network *n, int64_t batch,
                                 const float *x, const float *y, size_t count, double bound)
{
    float *ours = net_run(n, batch, x);
    double worst = 0, most = 1;
    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)ours[i] - (double)y[i]));
        most = fmax(most, fabs((double)y[i]));
    }
    if (!(worst <= bound * most))
        print_message("%s, batch %d: differs by %g of %g\n", name, (int)batch, worst, most);
    assert_true(worst <= bound * most);
    tr_free(ours);
}

/* What is read answers `y` to the case's 3 samples `x`, together and one by one, within `bound` of
 * the largest answer, and does when it was written and read again. */
static inline tr_network *exported_answers(hid_t at, const char *name, double bound)
{
    const tr_onnx_import in = {.loss = NULL};
    tr_network *n = NULL;
    size_t nx, ny;
    float *x = exported_set(at, "x", H5T_NATIVE_FLOAT, sizeof *x, &nx);
    float *y = exported_set(at, "y", H5T_NATIVE_FLOAT, sizeof *y, &ny);
    exported_put(at);
    if (tr_onnx_read(path, &in, &n, NULL) != TR_OK) fail_msg("%s: %s", name, tr_last_error()->text);
    assert_int_equal(nx, 3 * net_input_count(n->model));
    exported_same(name, n, 3, x, y, ny, bound);
    for (size_t i = 0; i < 3; i++)
        exported_same(name, n, 1, x + i * nx / 3, y + i * ny / 3, ny / 3, bound);
    tr_network *back = read_back(&(tr_onnx_options){.opset = 17}, n, NULL);
    same_outputs(name, n, back, bound);
    tr_network_close(back);
    free(x);
    free(y);
    return n;
}

static inline size_t exported_layers(const tr_network *n, const char *type)
{
    size_t found = 0;
    for (size_t i = 0; i < n->model->nlayers; i++)
        found += strcmp(tr_op_def_name(n->model->layers[i].def), type) == 0;
    return found;
}

static inline void exported_text(hid_t at, const char *name, char *text, size_t size)
{
    const hid_t a = H5Aopen(at, name, H5P_DEFAULT), type = H5Aget_type(a);
    assert_true(H5Tget_size(type) < size);
    memset(text, 0, size);
    assert_true(H5Aread(a, type, text) >= 0);
    H5Tclose(type);
    H5Aclose(a);
}

/* The case's file is refused, in the words that it has of it. */
static inline void exported_refused(hid_t at, const char *name)
{
    char node[128], text[128];
    exported_text(at, "node", node, sizeof node);
    exported_text(at, "text", text, sizeof text);
    exported_put(at);
    const tr_status st = try_read();
    const char *said = st == TR_OK ? "it was read" : tr_last_error()->text;
    if (st != TR_UNSUPPORTED || !strstr(said, node) || !strstr(said, text))
        fail_msg("%s: %s", name, said);
}

#endif
