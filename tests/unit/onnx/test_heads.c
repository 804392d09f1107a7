/* links: trireme_cpu trireme_runtime trireme_hdf5 */
/* Attention as other exporters write it (tests/golden/exported_attention.h5): what is read answers as PyTorch does at any batch,
 * within some tens of roundings in a row, and is written and read again; what looks alike is refused, by node. */
#include <hdf5.h>
#include <stdlib.h>

#include "runtime/graph/ops.h"
#include "tests/unit/onnx/back.h"

#include "tests/unit/groups.h"

#define TOLERANCE 1e-5

static void *read_set(hid_t at, const char *name, hid_t type, size_t size, size_t *n)
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

static void put_file(hid_t at)
{
    size_t n;
    void *v = read_set(at, "file", H5T_NATIVE_UINT8, 1, &n);
    put(v, n);
    free(v);
}

/* Runs `one` on each group of a group; how many there are. */
static int each(const char *group, void (*one)(hid_t at, const char *name))
{
    const char *carried = getenv("TR_SOURCE_DIR");
    char *golden =
        tr_sprintf("%s/tests/golden/exported_attention.h5", carried ? carried : TR_SOURCE_DIR);
    const hid_t file = H5Fopen(golden, H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t g = H5Gopen2(file, group, H5P_DEFAULT);
    const int count = test_each_group(g, one);
    H5Gclose(g);
    H5Fclose(file);
    tr_free(golden);
    return count;
}

static void same_answers(const char *name, const tr_network *n, int64_t batch, const float *x,
                         const float *y, size_t count)
{
    float *ours = net_run(n, batch, x);
    double worst = 0, most = 1;
    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)ours[i] - (double)y[i]));
        most = fmax(most, fabs((double)y[i]));
    }
    if (!(worst <= TOLERANCE * most))
        print_message("%s, batch %d: differs by %g of %g\n", name, (int)batch, worst, most);
    assert_true(worst <= TOLERANCE * most);
    tr_free(ours);
}

static size_t layers_of(const tr_network *n, const char *type)
{
    size_t found = 0;
    for (size_t i = 0; i < n->model->nlayers; i++)
        found += strcmp(tr_op_def_name(n->model->layers[i].def), type) == 0;
    return found;
}

static void check_read(hid_t at, const char *name)
{
    const tr_onnx_import in = {.loss = NULL};
    tr_network *n = NULL;
    size_t nx, ny;
    float *x = read_set(at, "x", H5T_NATIVE_FLOAT, sizeof *x, &nx);
    float *y = read_set(at, "y", H5T_NATIVE_FLOAT, sizeof *y, &ny);
    put_file(at);
    if (tr_onnx_read(path, &in, &n, NULL) != TR_OK) fail_msg("%s: %s", name, tr_last_error()->text);
    assert_int_equal(layers_of(n, "attention"), strncmp(name, "vit", 3) == 0 ? 2 : 1);
    assert_int_equal(layers_of(n, "reshape"), strncmp(name, "vit", 3) == 0 ? 1 : 0);
    assert_int_equal(nx, 3 * net_input_count(n->model));
    same_answers(name, n, 3, x, y, ny);
    for (size_t i = 0; i < 3; i++) same_answers(name, n, 1, x + i * nx / 3, y + i * ny / 3, ny / 3);
    tr_network *back = read_back(&(tr_onnx_options){.opset = 17}, n, NULL);
    same_outputs(name, n, back, TOLERANCE);
    tr_network_close(back);
    tr_network_close(n);
    free(x);
    free(y);
}

static void test_read(void **state)
{
    (void)state;
    assert_int_equal(each("read", check_read), 24);
}

static void read_text(hid_t at, const char *name, char *text, size_t size)
{
    const hid_t a = H5Aopen(at, name, H5P_DEFAULT), type = H5Aget_type(a);
    assert_true(H5Tget_size(type) < size);
    memset(text, 0, size);
    assert_true(H5Aread(a, type, text) >= 0);
    H5Tclose(type);
    H5Aclose(a);
}

static void check_refused(hid_t at, const char *name)
{
    char node[128], text[128];
    read_text(at, "node", node, sizeof node);
    read_text(at, "text", text, sizeof text);
    put_file(at);
    const tr_status st = try_read();
    const char *said = st == TR_OK ? "it was read" : tr_last_error()->text;
    if (st != TR_UNSUPPORTED || !strstr(said, node) || !strstr(said, text))
        fail_msg("%s: %s", name, said);
}

static void test_refused(void **state)
{
    (void)state;
    assert_int_equal(each("refused", check_refused), 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
