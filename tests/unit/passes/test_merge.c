/* links: trireme_cpu trireme_plan */
/* The pass `merge`: what it makes of layers that follow each other, with all options, and what it
 * leaves alone. */
#include "tests/unit/passes/passes.h"

/* The layers are these, with all options, whatever their names. */
static void becomes(const char *pass, size_t count, const char *model, const char *expected)
{
    prover p = {.seed = 3};
    tr_network *n = network_of(expected, 9);
    result r = run(network_of(model, 9), pass, &p);
    if (pass ? report(&r, pass)->undone : changed(&r) < count) fail_msg("%s", model);
    if (pass) assert_int_equal(report(&r, pass)->count, count);
    assert_int_equal(r.after->model->nlayers, n->model->nlayers);
    for (size_t i = 0; i < n->model->nlayers; i++)
        if (!tr_layer_equal(&r.after->model->layers[i], &n->model->layers[i]))
            fail_msg("%s\nlayer %zu is not that of\n%s", model, i, expected);
    done(&r);
    tr_network_close(n);
}

#define PAIR(a, b) IMAGE("relu, {" a "}, {" b "}, relu")
#define ONE(a)     IMAGE("relu, {" a "}, relu")

static void test_merge(void **state)
{
    (void)state;
    /* paddings: left, right, top, bottom */
    becomes("merge", 1, PAIR("pad: {padding: 1}", "pad: {padding: [1, 2, 3, 4]}"),
            ONE("pad: {padding: [2, 3, 4, 5]}"));
    becomes("merge", 1, PAIR("pad: {padding: 2, value: 0.5}", "pad: {padding: [0, -1, -3, -2]}"),
            ONE("pad: {padding: [2, 1, -1, 0], value: 0.5}"));
    becomes("merge", 1, PAIR("pad: {padding: -1}", "pad: {padding: [0, 0, -2, 0], value: 3}"),
            ONE("pad: {padding: [-1, -1, -3, -1], value: 3}"));
    becomes("merge", 1, PAIR("pad: {padding: 2, mode: reflect}", "pad: {padding: [-1, 0, 0, -3]}"),
            ONE("pad: {padding: [1, 2, 2, -1], mode: reflect}"));
    becomes("merge", 1,
            PAIR("pad: {padding: 7, mode: replicate}", "pad: {padding: 2, mode: replicate}"),
            ONE("pad: {padding: [9, 9, 9, 9], mode: replicate}"));
    becomes("merge", 3,
            IMAGE("relu, {pad: {padding: 1}}, {pad: {padding: [1, 0, 0, 0]}}, {pad: {padding: [0, "
                  "1, 0, 0]}}, {pad: {padding: [0, 0, 2, 0]}}, relu"),
            ONE("pad: {padding: [2, 2, 3, 1]}"));
    finds("merge", 0, PAIR("pad: {padding: 1, value: 1}", "pad: {padding: 1}"),
          "relu1 pad1 pad2 relu2");
    finds("merge", 0, PAIR("pad: {padding: 1}", "pad: {padding: 1, mode: replicate}"),
          "relu1 pad1 pad2 relu2");
    finds("merge", 0, PAIR("pad: {padding: 2, mode: reflect}", "pad: {padding: 2, mode: reflect}"),
          "relu1 pad1 pad2 relu2");
    finds("merge", 0, PAIR("pad: {padding: [-1, 0, 0, 0]}", "pad: {padding: [1, 0, 0, 0]}"),
          "relu1 pad1 pad2 relu2");
    /* into a convolution */
    becomes("merge", 2,
            IMAGE("{pad: {padding: [0, 0, 1, 0]}}, {pad: {padding: [0, 0, 0, 1]}}, {conv2d: {out: "
                  "4, kernel: 3, stride: 2, groups: 2}}"),
            IMAGE("{conv2d: {out: 4, kernel: 3, stride: 2, groups: 2, padding: [1, 0]}}"));
    becomes("merge", 1,
            IMAGE("{pad: {padding: [1, 0, 1, 0]}}, {conv2d: {out: 4, kernel: 2, padding: same}}"),
            IMAGE("{conv2d: {out: 4, kernel: 2, padding: [1, 1]}}"));
    finds("merge", 0, IMAGE("{pad: {padding: [0, 1, 0, 1]}}, {conv2d: {out: 4, kernel: 3}}"),
          "pad1 conv2d1");
    finds("merge", 0, IMAGE("{pad: {padding: 1, value: 1}}, {conv2d: {out: 4, kernel: 3}}"),
          "pad1 conv2d1");
    finds("merge", 0, IMAGE("{pad: {padding: -1}}, {" CONV "}}"), "pad1 conv2d1");
    /* orders and shapes */
    becomes("merge", 1, PAIR("permute: {dims: [2, 3, 1]}", "permute: {dims: [1, 3, 2]}"),
            ONE("permute: {dims: [2, 1, 3]}"));
    becomes("merge", 1, PAIR("permute: {dims: [3, 1, 2]}", "permute: {dims: [3, 1, 2]}"),
            ONE("permute: {dims: [2, 3, 1]}"));
    becomes("merge", 1, PAIR("reshape: {dims: [2, -1]}", "reshape: {dims: [3, 4, -1]}"),
            ONE("reshape: {dims: [3, 4, 12]}"));
    becomes("merge", 1, PAIR("reshape: {dims: [2, -1]}", "flatten: {}"), ONE("flatten: {}"));
    becomes("merge", 1, PAIR("flatten: {}", "reshape: {dims: [9, -1]}"),
            ONE("reshape: {dims: [9, 16]}"));
    /* two dimensions of four channels would be a sequence, stored otherwise */
    finds("merge", 0, PAIR("flatten: {}", "reshape: {dims: [4, -1]}"),
          "relu1 flatten1 reshape1 relu2");
    finds("merge", 0,
          IMAGE("relu, {permute: {dims: [2, 3, 1], name: p}}, {permute: {dims: [1, 3, 2], name: "
                "q}}, {flatten: {from: p, name: f}}, {flatten: {from: q, name: g}}, {add: {from: "
                "[f, g]}}"),
          "relu1 p q f g add1");
    /* and what does nothing then goes */
    static const char *const undone[][2] = {
        {"permute: {dims: [3, 1, 2]}", "permute: {dims: [2, 3, 1]}"},
        {"reshape: {dims: [-1, 12]}", "reshape: {dims: [4, 6, 6]}"},
        {"pad: {padding: 1, value: 2}", "pad: {padding: -1}"}};
    for (size_t i = 0; i < TR_COUNT(undone); i++) {
        char *text = tr_sprintf(IMAGE("{" CONV "}}, {%s}, {%s}, relu"), undone[i][0], undone[i][1]);
        becomes(NULL, 2, text, IMAGE("{" CONV "}}, relu"));
        tr_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_merge)};
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
