/* links: trireme_cpu trireme_runtime trireme_hdf5 */
/* Attention as other exporters write it (tests/golden/exported_attention.h5): what is read answers
 * as PyTorch does at any batch, within some tens of roundings in a row, and is written and read
 * again; what looks alike is refused, by node. */
#include "tests/unit/onnx/exported.h"

#define GOLDEN    "exported_attention.h5"
#define TOLERANCE 1e-5

static void check_read(hid_t at, const char *name)
{
    tr_network *n = exported_answers(at, name, TOLERANCE);
    assert_int_equal(exported_layers(n, "attention"), strncmp(name, "vit", 3) == 0 ? 2 : 1);
    assert_int_equal(exported_layers(n, "reshape"), strncmp(name, "vit", 3) == 0 ? 1 : 0);
    tr_network_close(n);
}

static void test_read(void **state)
{
    (void)state;
    assert_int_equal(exported_each(GOLDEN, "read", check_read), 24);
}

static void test_refused(void **state)
{
    (void)state;
    assert_int_equal(exported_each(GOLDEN, "refused", exported_refused), 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
