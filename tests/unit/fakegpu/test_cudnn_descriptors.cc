// Statuses of cuDNN's backend descriptors. All that is here needs no device, and the real library
// answers the same: link this file with -lcudnn instead of the stand-in to see it.
#include "tests/unit/fakegpu/cudnn_harness.h"

enum { BAD = CUDNN_STATUS_BAD_PARAM };

static void test_attributes(void **)
{
    Bag b;
    const Desc t = b.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t types[2] = {CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT};
    const int64_t one = 1;
    char text[200];
    assert_int_equal(set1(nullptr, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, types[0]),
                     CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    assert_int_equal(set1(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, one),
                     CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    assert_int_equal(
        cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 2, types),
        BAD);
    assert_int_equal(
        cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 0, types),
        BAD);
    assert_int_equal(
        cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, nullptr),
        BAD);
    assert_int_equal(set1(t, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, types[0]),
                     BAD);
    cudnnGetLastErrorString(text, sizeof text);
    assert_true(text[0] != 0);
    assert_int_equal(cudnnBackendDestroyDescriptor(nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    assert_int_equal(cudnnBackendFinalize(nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

static void test_tensors(void **)
{
    const struct {
        Ints dim, stride;
        int64_t align;
        int status;
    } cases[] = {
        {{2, 3, 4, 5}, {60, 1, 15, 3}, 16, 0},  {{2, 3, 4, 5}, {60, 1, 15, 3}, 12, 0},
        {{2, 3, 4, 5}, {60, 1, 15, 3}, 2, BAD}, {{2, 3, 4, 5}, {60, 1, 15, 3}, 6, BAD},
        {{2, 3, 4}, {60, 1, 15, 3}, 16, BAD},   {{2, 3, 4, 5}, {60, -1, 15, 3}, 16, BAD},
        {{0, 3, 4, 5}, {60, 1, 15, 3}, 16, 0},  {{5}, {1}, 16, 0},
    };
    Bag b;
    int64_t n = 0, got[8] = {0};
    for (const auto &c : cases)
        assert_int_equal(
            cudnnBackendFinalize(tensor(b, 1, c.dim, c.stride, CUDNN_DATA_FLOAT, false, c.align)),
            c.status);
    const Desc t = tensor(b, 1, {2, 3, 4, 5}, {60, 1, 15, 3});
    assert_int_equal(
        cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8, &n, got),
        CUDNN_STATUS_NOT_INITIALIZED);
    OK(cudnnBackendFinalize(t));
    OK(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8, &n, got));
    assert_int_equal(n, 4);
    assert_int_equal(got[3], 5);
    OK(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 0, &n, nullptr));
    assert_int_equal(n, 4);
    OK(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 2, &n, got));
    assert_int_equal(n, 2);
    assert_int_equal(
        cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_FLOAT, 8, &n, got),
        CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    assert_int_equal(set1(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT),
                     BAD);
    assert_int_equal(cudnnBackendFinalize(t), BAD);
}

static void test_convolutions(void **)
{
    Bag b;
    OK(cudnnBackendFinalize(conv(b)));
    assert_int_equal(cudnnBackendFinalize(conv(b, {0, 1})), BAD);
    assert_int_equal(cudnnBackendFinalize(conv(b, {1, 1}, {-1, 1})), BAD);
    assert_int_equal(cudnnBackendFinalize(conv(b, {1, 1}, {1, 1}, {0, 1})), BAD);
    assert_int_equal(cudnnBackendFinalize(b.make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)), BAD);
}

static void test_operations(void **)
{
    Bag b;
    const Desc c = b.finished(conv(b));
    const auto t = [&](int64_t uid, const Ints &d) {
        return b.finished(tensor(b, uid, d, last(d)));
    };
    const Desc x = t(1, {2, 8, 6, 6}), w = t(2, {16, 8, 3, 3}), y = t(3, {2, 16, 6, 6});
    for (const Pass pass : {FORWARD, DATA, FILTER}) {
        OK(cudnnBackendFinalize(conv_op(b, pass, c, x, w, y)));
        OK(cudnnBackendFinalize(conv_op(b, pass, c, x, t(2, {16, 4, 3, 3}), y))); // two groups
        assert_int_equal(cudnnBackendFinalize(conv_op(b, pass, nullptr, x, w, y)), BAD);
        assert_int_equal(cudnnBackendFinalize(conv_op(b, pass, c, nullptr, w, y)), BAD);
        for (const Ints &d : {Ints{2, 16, 5, 6}, Ints{3, 16, 6, 6}, Ints{2, 15, 6, 6}})
            assert_int_equal(cudnnBackendFinalize(conv_op(b, pass, c, x, w, t(3, d))), BAD);
        assert_int_equal(cudnnBackendFinalize(conv_op(b, pass, c, x, t(2, {16, 3, 3, 3}), y)), BAD);
        assert_int_equal(
            cudnnBackendFinalize(conv_op(b, pass, c, x, t(2, {15, 4, 3, 3}), t(3, {2, 15, 6, 6}))),
            BAD);
    }
    // A tensor is copied as it was: finalizing it afterwards comes too late.
    const Desc late = tensor(b, 1, {2, 8, 6, 6}, last({2, 8, 6, 6}));
    const Desc op = conv_op(b, FORWARD, c, late, w, y);
    OK(cudnnBackendFinalize(late));
    assert_int_equal(cudnnBackendFinalize(op), BAD);
    const Desc bias = t(4, {1, 16, 1, 1}), out = t(5, {2, 16, 6, 6});
    OK(cudnnBackendFinalize(pointwise_op(b, CUDNN_POINTWISE_ADD, y, bias, out)));
    OK(cudnnBackendFinalize(pointwise_op(b, CUDNN_POINTWISE_RELU_FWD, y, nullptr, out)));
    assert_int_equal(cudnnBackendFinalize(pointwise_op(b, CUDNN_POINTWISE_ADD, y, nullptr, out)),
                     BAD);
    assert_int_equal(
        cudnnBackendFinalize(pointwise_op(b, CUDNN_POINTWISE_RELU_FWD, y, nullptr, nullptr)), BAD);
    const Desc flat = b.finished(tensor(b, 4, {16}, {1}));
    assert_int_equal(cudnnBackendFinalize(pointwise_op(b, CUDNN_POINTWISE_ADD, y, flat, out)), BAD);
}

static void test_graphs(void **)
{
    Bag b;
    const auto t = [&](int64_t uid, const Ints &d) {
        return b.finished(tensor(b, uid, d, last(d)));
    };
    const Desc c = b.finished(conv(b));
    const Desc op =
        conv_op(b, FORWARD, c, t(1, {2, 8, 6, 6}), t(2, {16, 8, 3, 3}), t(3, {2, 16, 6, 6}));
    const Desc graph = b.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    assert_int_equal(part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op),
                     CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    OK(cudnnBackendFinalize(op));
    OK(part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op));
    OK(cudnnBackendFinalize(graph));
    assert_int_equal(cudnnBackendFinalize(graph), BAD);
    assert_int_equal(cudnnBackendFinalize(b.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)), BAD);
    assert_int_equal(cudnnBackendFinalize(b.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR)),
                     CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

static int graph_of(Bag &b, const std::vector<Desc> &ops)
{
    const Desc g = b.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    OK(cudnnBackendSetAttribute(g, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                (int64_t)ops.size(), ops.data()));
    return cudnnBackendFinalize(g);
}

static void test_chains(void **)
{
    Bag b;
    const Ints dim = {2, 16, 6, 6}, per_channel = {1, 16, 1, 1};
    const auto t = [&](int64_t uid, const Ints &d, bool inner = false) {
        return b.finished(tensor(b, uid, d, last(d), CUDNN_DATA_FLOAT, inner));
    };
    const Desc v = t(10, dim, true), u = t(11, dim, true), y = t(3, dim), c = b.finished(conv(b));
    const Desc x = t(1, {2, 8, 6, 6}), w = t(2, {16, 8, 3, 3}), bias = t(4, per_channel);
    const Desc first = b.finished(conv_op(b, FORWARD, c, x, w, v));
    const Desc add = b.finished(pointwise_op(b, CUDNN_POINTWISE_ADD, v, bias, u));
    const Desc relu = b.finished(pointwise_op(b, CUDNN_POINTWISE_RELU_FWD, u, nullptr, y));
    const Desc back = b.finished(pointwise_op(b, CUDNN_POINTWISE_RELU_FWD, u, nullptr, v));
    const Desc direct = b.finished(conv_op(b, FORWARD, c, x, w, y));
    assert_int_equal(graph_of(b, {first, add, relu}), CUDNN_STATUS_SUCCESS);
    assert_int_equal(graph_of(b, {relu, add, first}), CUDNN_STATUS_SUCCESS); // any order
    assert_int_equal(graph_of(b, {direct, direct}), BAD);                    // y twice
    assert_int_equal(graph_of(b, {add, back}), BAD);                         // a cycle
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attributes),   cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_convolutions), cmocka_unit_test(test_operations),
        cmocka_unit_test(test_graphs),       cmocka_unit_test(test_chains),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
