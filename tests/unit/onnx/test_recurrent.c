/* links: trireme_cpu trireme_runtime trireme_hdf5 */
/* LSTM and GRU as both exporters of torch write them (tests/golden/exported_recurrent.h5), for any
 * batch and for one sample: what is read answers as PyTorch does in float64, and is written and
 * read again; what is no layer says why. */
#include "tests/unit/onnx/exported.h"

#define GOLDEN    "exported_recurrent.h5"
#define TOLERANCE 1e-5

static void check_read(hid_t at, const char *name)
{
    const bool stacked = strstr(name, "stacked") || strcmp(name, "lstm_both_states") == 0;
    const char *type = *name == 'l' ? "lstm_layer" : "gru_layer";
    tr_network *n = exported_answers(at, name, TOLERANCE);
    assert_true(exported_layers(n, type) >= (stacked ? 2 : 1));
    assert_int_equal(exported_layers(n, "permute"),
                     strstr(name, "columns") != NULL || strncmp(name, "gru_both_mean", 13) == 0);
    tr_network_close(n);
}

static void test_read(void **state)
{
    (void)state;
    assert_int_equal(exported_each(GOLDEN, "read", check_read), 39);
}

static void test_refused(void **state)
{
    (void)state;
    assert_int_equal(exported_each(GOLDEN, "refused", exported_refused), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
