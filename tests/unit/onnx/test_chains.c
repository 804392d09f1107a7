/* links: trireme_cpu trireme_runtime */
/* What takes others' graphs several nodes is one layer here, or none. */
#include "tests/unit/onnx/back.h"
#include "tests/unit/onnx/crafted.h"

/* What is done to an input one after the other is one data.normalize: `(x / 255 - m) / d`, which
 * pixels usually go through, and sums and products in any order; also where something asks for the
 * input's dimensions. */
static void test_composed(void **state)
{
    (void)state;
    static const int64_t rgb[] = {3, 1, 1}, pixels[] = {3, 5, 5}, row[] = {3};
    static const float full = 255, m[] = {0.485f, 0.456f, 0.406f}, d[] = {0.229f, 0.224f, 0.225f},
                       minus = -1, four = 4;
    static const char usual[] = "{mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]}";
    static const struct {
        bool rows;
        struct {
            const char *type, *with; /* operand */
        } steps[4];
        const char *normalize;
    } cases[] = {{false, {{"Div", "full"}, {"Sub", "m"}, {"Div", "d"}}, usual},
                 {true, {{"Div", "full"}, {"Sub", "m"}, {"Div", "d"}}, usual},
                 {false,
                  {{"Div", "d"}, {"Add", "minus"}},
                  "{mean: [0.229, 0.224, 0.225], std: [0.229, 0.224, 0.225]}"},
                 {false,
                  {{"Sub", "m"}, {"Div", "d"}, {"Mul", "four"}},
                  "{mean: [0.485, 0.456, 0.406], std: [0.05725, 0.056, 0.05625]}"},
                 {true, {{"Sub", "m"}, {"Add", "minus"}}, "{mean: [1.485, 1.456, 1.406]}"},
                 {true, {{"Mul", "four"}, {"Sub", "full"}}, "{mean: [63.75], std: [0.25]}"}};
    for (size_t c = 0; c < 2 * TR_COUNT(cases); c++) {
        const size_t i = c / 2;
        message g = {0};
        const int ndim = cases[i].rows ? 1 : 3;
        const char *at = "x", *const names[] = {"a", "b", "c"};
        graph_tensor(&g, "m", ONNX_FLOAT, ndim, cases[i].rows ? row : rgb, m, sizeof m);
        graph_tensor(&g, "d", ONNX_FLOAT, ndim, cases[i].rows ? row : rgb, d, sizeof d);
        graph_tensor(&g, "full", ONNX_FLOAT, 0, rgb, &full, sizeof full);
        graph_tensor(&g, "four", ONNX_FLOAT, 0, rgb, &four, sizeof four);
        graph_tensor(&g, "minus", ONNX_FLOAT, 0, rgb, &minus, sizeof minus);
        for (size_t k = 0; cases[i].steps[k].type; k++) {
            graph_node(&g, cases[i].steps[k].type, names[k], IN(at, cases[i].steps[k].with));
            at = names[k];
        }
        graph_node(&g, "Relu", c % 2 ? "y" : "z", IN(at));
        if (c % 2 == 0) {
            graph_node(&g, "Shape", "dims", IN("x"));
            graph_node(&g, "Reshape", "y", IN("z", "dims"));
        }
        graph_value(&g, GRAPH_INPUT, "x", ndim, cases[i].rows ? row : pixels);
        graph_value(&g, GRAPH_OUTPUT, "y", ndim, cases[i].rows ? row : pixels);
        graph_write(path, &g);
        const tr_onnx_import in = {.loss = NULL};
        tr_network *n = NULL;
        tr_onnx_found found;
        char wanted[128];
        snprintf(wanted, sizeof wanted, "{x: %s}", cases[i].normalize);
        if (tr_onnx_read(path, &in, &n, &found) != TR_OK) fail_msg("%s", tr_last_error()->text);
        assert_string_equal(found.normalize, wanted);
        assert_int_equal(n->model->nlayers, 1);
        tr_onnx_found_free(&found);
        tr_network_close(n);
    }
}

/* Mean and maximum over the rows of (5, 3) and over its values a row, kept as one and then not, as
 * `mean(dim, keepdim=True)` and squeeze have it, and not kept. */
static void test_reduced(void **state)
{
    (void)state;
    static const int64_t one = 1, rows[] = {5, 3}, axes[] = {1, -2, 2, -1};
    for (size_t c = 0; c < 4 * TR_COUNT(axes); c++) {
        const size_t i = c % TR_COUNT(axes);
        const bool over_rows = i < 2, most = c / TR_COUNT(axes) % 2, kept = c / TR_COUNT(axes) < 2;
        const int64_t left = over_rows ? 3 : 5;
        message g = {0};
        graph_tensor(&g, "axis", ONNX_INT64, 1, &one, &axes[i], sizeof axes[i]);
        if (kept) {
            graph_node(&g, most ? "ReduceMax" : "ReduceMean", "m", IN("x", "axis"));
            graph_node(&g, "Squeeze", "y", IN("m", "axis"));
        } else {
            graph_node_with(&g, most ? "ReduceMax" : "ReduceMean", "y", IN("x", "axis"), "keepdims",
                            0);
        }
        graph_value(&g, GRAPH_INPUT, "x", 2, rows);
        graph_value(&g, GRAPH_OUTPUT, "y", 1, &left);
        graph_write(path, &g);
        const tr_onnx_import in = {.loss = NULL};
        tr_network *n = NULL;
        if (tr_onnx_read(path, &in, &n, NULL) != TR_OK) fail_msg("%s", tr_last_error()->text);
        float *x = net_inputs(n->model, 1, 5), *y = net_run(n, 1, x);
        for (int64_t k = 0; k < left; k++) {
            float sum = 0, top = -INFINITY;
            for (int64_t j = 0; j < 15 / left; j++) {
                const float v = x[over_rows ? j * 3 + k : k * 3 + j];
                sum += v;
                if (v > top) top = v;
            }
            assert_true(fabsf((most ? top : sum / (float)(15 / left)) - y[k]) < 1e-6f);
        }
        tr_free(x);
        tr_free(y);
        tr_network_close(n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_composed),
                                       cmocka_unit_test(test_reduced)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
