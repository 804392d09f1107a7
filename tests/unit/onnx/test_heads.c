/* links: trireme_cpu trireme_runtime trireme_hdf5 */
/* Attention as other exporters write it (tests/golden/exported_attention.h5): what is read answers as PyTorch does at any batch,
 * within some tens of roundings in a row, and is written and read again; what looks alike is refused, by node. */
#include "runtime/graph/ops.h"
#include "tests/unit/onnx/exported.h"

#define GOLDEN    "exported_attention.h5"
#define TOLERANCE 1e-5
static size_t layers_of(const tr_network *n, const char *type)
{
    size_t found = 0;
    for (size_t i = 0; i < n->model->nlayers; i++)
        found += strcmp(tr_op_def_name(n->model->layers[i].def), type) == 0;
    return found;
}

static void check_read(hid_t at, const char *name)
{
    tr_network *n = exported_answers(at, name, TOLERANCE);
    assert_int_equal(layers_of(n, "attention"), strncmp(name, "vit", 3) == 0 ? 2 : 1);
    assert_int_equal(layers_of(n, "reshape"), strncmp(name, "vit", 3) == 0 ? 1 : 0);
    tr_network_close(n);
}

static void test_read(void **state)
{
    (void)state;
    assert_int_equal(exported_each(GOLDEN, "read", check_read), 24);
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
    exported_put(at);
    const tr_status st = try_read();
    const char *said = st == TR_OK ? "it was read" : tr_last_error()->text;
    if (st != TR_UNSUPPORTED || !strstr(said, node) || !strstr(said, text))
        fail_msg("%s: %s", name, said);
}

static void test_refused(void **state)
{
    (void)state;
    assert_int_equal(exported_each(GOLDEN, "refused", check_refused), 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
