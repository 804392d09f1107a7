/* links: trireme_cpu trireme_runtime trireme_hdf5 */
/* Networks of images as torchvision has them (tests/golden/exported_images.h5), by both exporters
 * of torch: what is read answers as PyTorch does in float64, at any batch. */
#include "tests/unit/onnx/exported.h"

#define TOLERANCE 1e-5

static void check_read(hid_t at, const char *name)
{
    tr_network_close(exported_answers(at, name, TOLERANCE));
}

static void test_read(void **state)
{
    (void)state;
    assert_int_equal(exported_each("exported_images.h5", "read", check_read), 10);
}

/* Of pixels: what the graph does to them first is data.normalize. */
static void check_pixels(hid_t at, const char *name)
{
    static const float mean[] = {123.675f, 116.28f, 103.53f}, std[] = {58.395f, 57.12f, 57.375f};
    const tr_onnx_import in = {.loss = NULL};
    tr_network *n = NULL;
    tr_onnx_found found;
    size_t nx, ny;
    float *x = exported_set(at, "x", H5T_NATIVE_FLOAT, sizeof *x, &nx);
    float *y = exported_set(at, "y", H5T_NATIVE_FLOAT, sizeof *y, &ny);
    exported_put(at);
    if (tr_onnx_read(path, &in, &n, &found) != TR_OK)
        fail_msg("%s: %s", name, tr_last_error()->text);
    assert_non_null(found.normalize);
    assert_non_null(strstr(found.normalize,
                           ": {mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]}}"));
    for (size_t i = 0; i < nx; i++) {
        const size_t c = i / (nx / 9) % 3;
        x[i] = (x[i] - mean[c]) / std[c];
    }
    exported_same(name, n, 3, x, y, ny, TOLERANCE);
    tr_onnx_found_free(&found);
    tr_network_close(n);
    free(x);
    free(y);
}

static void test_pixels(void **state)
{
    (void)state;
    assert_int_equal(exported_each("exported_images.h5", "pixels", check_pixels), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_pixels)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
