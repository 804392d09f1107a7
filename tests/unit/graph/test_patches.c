/* The structure `patch_embedding`, and rows of images and sequences, which are views of what lies
 * channels-last. */
#include "runtime/graph/ops/op.h"
#include "tests/unit/graph/expands.h"

#define IMAGE(layers) "  input: [3, 8, 12]\n  layers:\n" layers "  loss: mse\n"

static void test_layers(void **state)
{
    (void)state;
    expands(
        IMAGE("    - patch_embedding: {size: 4, dim: 10}\n    - tanh: {from: patch_embedding1}\n"),
        "conv2d patch_embedding1.proj<-input (10, 2, 3)\n"
        "reshape patch_embedding1.grid<-patch_embedding1.proj (10, 6)\n"
        "permute patch_embedding1.rows<-patch_embedding1.grid (6, 10)\n"
        "tanh tanh1<-patch_embedding1.rows (6, 10)");
}

/* Of what rearranges, in both directions: how many there are, all of which are views. */
static void all_views(const char *model, size_t count)
{
    test_model t = test_model_open(model);
    const tr_graph_options o = {
        .mode = TR_MODE_TRAIN, .batch = 3, .ranks = 1, .passes = TR_PASSES_ALL};
    tr_graph *g = test_graph(t.model, &o);
    size_t n = 0;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op_def *d = g->ops[i].def;
        if (d->share != TR_SHARE_VIEW) continue;
        n++;
        if (!d->view(g, &g->ops[i])) fail_msg("%s: %s moves", g->ops[i].layer, d->name);
    }
    assert_int_equal(n, count);
    tr_graph_close(g);
    test_model_close(&t);
}

static void test_views(void **state)
{
    (void)state;
    all_views(IMAGE("    - patch_embedding: {size: [4, 3], dim: 10}\n    - class_token\n"
                    "    - linear: {out: 2}\n"),
              4);
    all_views(IMAGE("    - conv2d: {out: 4, kernel: 1}\n    - reshape: {dims: [4, -1]}\n"
                    "    - conv1d: {out: 5, kernel: 3}\n    - permute: {dims: [2, 1]}\n"
                    "    - linear: {out: 2}\n"),
              4);
    all_views(IMAGE("    - conv2d: {out: 4, kernel: 1}\n    - reshape: {dims: [4, -1]}\n"
                    "    - conv1d: {out: 4, kernel: 1}\n    - reshape: {dims: [4, 12, 8]}\n"
                    "    - conv2d: {out: 4, kernel: 1}\n"),
              4);
}

static void test_errors(void **state)
{
    (void)state;
    test_model_fails(IMAGE("    - patch_embedding: {size: 5, dim: 10}\n"), TR_SHAPE,
                     "m.yaml:6:7: layer \"patch_embedding1\": patches of (5, 5) do not cover its "
                     "input (3, 8, 12)");
    test_model_fails(IMAGE("    - patch_embedding: {size: [4, 2, 2], dim: 10}\n"), TR_CONFIG,
                     "m.yaml:6:7: layer \"patch_embedding1\": size: one number or [height, width], "
                     "not 3 numbers");
    test_model_fails("  input: [8, 12]\n  layers:\n    - patch_embedding: {size: 4, dim: 10}\n"
                     "  loss: mse\n",
                     TR_SHAPE,
                     "m.yaml:6:7: layer \"patch_embedding1\": its input is (8, 12), but it takes "
                     "(channels, height, width)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers), cmocka_unit_test(test_views),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
