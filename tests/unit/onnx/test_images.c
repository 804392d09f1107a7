/* links: trireme_cpu trireme_runtime trireme_hdf5 */
/* Networks of images as torchvision has them (tests/golden/exported_images.h5), by both exporters of torch: what is read answers as
 * PyTorch does in float64, at any batch. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
