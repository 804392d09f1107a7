/* links: trireme_cpu trireme_plan
 * Convolutions by every way that kernels/cuda/ops/conv2d.c and conv2d_grad.c have, each against the
 * plain convolution in double of the CPU's test: with cuDNN's graphs taken away one kind after the
 * other, with little workspace, and with shapes for which another way is the shorter one. */
#include "tests/unit/cuda/mirror.h"

#include <stdlib.h>

#include "kernels/cuda/internal.h"
#include "runtime/device/backend.h"

/* The mirrored backend with other options. */
static tr_backend_options wanted;
static tr_status ways_open(const tr_backend_options *o, void **ctx)
{
    (void)o;
    return tr_cuda_backend.open(&wanted, ctx);
}

static tr_status ways_prepare(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out);
static const tr_device_kernels ways_kernels = {.unsupported = mirror_unsupported,
                                               .prepare = ways_prepare};
static const tr_backend ways = {.name = "cuda, mirrored",
                                .host = true,
                                .open = ways_open,
                                .close = mirror_close,
                                .memory = &tr_host_memory,
                                .kernels = &ways_kernels};
#undef tr_cpu_backend
#define tr_cpu_backend ways
#pragma push_macro("main")
#undef main
#define main cpu_main
int cpu_main(void);
#include "tests/unit/cpu/test_conv2d.c"
#undef main
#pragma pop_macro("main")

/* Which implementations were prepared since they were last forgotten. */
static char seen[4096];
static tr_status ways_prepare(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_status st = mirror_prepare(ctx, g, op, out);
    char name[256] = "";
    if (st == TR_OK) snprintf(name, sizeof name, "|%s|", (*out)->impl);
    if (!strstr(seen, name)) {
        const size_t n = strlen(seen);
        snprintf(seen + n, sizeof seen - n, "%s", name);
    }
    return st;
}

static void set_up(const char *no_graph, size_t workspace)
{
    wanted = (tr_backend_options){.deterministic = true, .workspace = workspace};
    seen[0] = 0;
#ifndef TR_REAL_GPU
    if (*no_graph)
        setenv("FAKEGPU_CUDNN_NO_GRAPH", no_graph, 1);
    else
        unsetenv("FAKEGPU_CUDNN_NO_GRAPH");
#else
    (void)no_graph;
#endif
}

/* With a real library, which way it goes is its own matter. */
static void assert_seen(const char *what)
{
#ifndef TR_REAL_GPU
    if (!strstr(seen, what)) fail_msg("\"%s\" was never taken: %s", what, seen);
#else
    (void)what;
#endif
}

static void check_all(size_t first, size_t step)
{
    for (size_t p = 0; p < TR_COUNT(precisions); p++)
        for (size_t i = first; i < TR_COUNT(shapes); i += step) {
            check_forward(&shapes[i], precisions[p], false, false, TR_ACT_NONE, 1);
            check_forward(&shapes[i], precisions[p], true, false, TR_ACT_RELU, 1);
            check_forward(&shapes[i], precisions[p], false, false, TR_ACT_RELU, 1);
            check_forward(&shapes[i], precisions[p], true, true, TR_ACT_GELU, 1);
            check_backward(&shapes[i], precisions[p], true, 1);
        }
}

static void test_plain(void **state)
{
    (void)state;
    set_up("", (size_t)64 << 20);
    check_all(4, 5);
    check_all(5, 9);
    check_backward(&shapes[3], TR_PRECISION_BF16, true, 1);
    assert_seen(", fused|");
    assert_seen(", fused; own ReLU|");
    assert_seen("; own epilogue|");
    assert_seen("cuBLASLt");
}

static void test_not_fused(void **state)
{
    (void)state;
    set_up("fused", (size_t)64 << 20);
    check_all(1, 4);
    assert_seen(" on x cast to float32; own epilogue|");
}

/* Batches are cast piece by piece: of one sample each where even that is more than is allowed. */
static void test_pieces(void **state)
{
    (void)state;
    static const shape s = {6, 3, 5, 7, 9, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}};
    static const size_t limits[] = {1, 3 * 8 * 63 * sizeof(float), 64 << 20};
    for (size_t i = 0; i < TR_COUNT(limits); i++) {
        set_up("fused", limits[i]);
        check_forward(&s, TR_PRECISION_BF16, true, true, TR_ACT_SILU, 1);
        check_forward(&s, TR_PRECISION_BF16, true, false, TR_ACT_NONE, 1);
        check_backward(&s, TR_PRECISION_BF16, true, 1);
    }
    set_up("", limits[0]);
    check_all(0, 7);
}

/* Where an engine ends in float32 but does not fuse the activation. */
static void test_wide(void **state)
{
    (void)state;
    set_up("epilogue", (size_t)64 << 20);
    check_all(7, 7);
    assert_seen(" to float32; own epilogue|");
}

#ifndef TR_REAL_GPU
/* The way of a weight gradient, alone. */
static void expect_way(const shape *s, bool benchmark, const char *environment, const char *value,
                       const char *way)
{
    const dims d = dims_of(s);
    set_up("", (size_t)64 << 20);
    wanted.benchmark = benchmark;
    wanted.deterministic = !benchmark;
    setenv(environment, value, 1);
    harness h = h_open("conv2d.grad_weight", TR_PRECISION_BF16, true);
    h_in(&h, TR_BF16, 4, d.x);
    h_in(&h, TR_BF16, 4, d.y);
    h_grad(&h, 4, d.w);
    h_grad(&h, 1, d.bias);
    h_prepare(&h, &d.attrs, TR_ACT_NONE);
    h_close(&h);
    unsetenv(environment);
    if (!strstr(seen, way)) fail_msg("%s=%s: %s instead of %s", environment, value, seen, way);
}

/* Windows of one place: a product where its sums are short or are cut, a plan where they are not,
 * either where the other does not run, the faster one where they are timed. */
static void test_one_place(void **state)
{
    (void)state;
    static const shape many = {2, 3, 5, 64, 64, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}};
    static const shape few = {2, 3, 5, 7, 7, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}};
    static const char *const without = "FAKEGPU_CUBLASLT_WITHOUT", *const broken = "FAKEGPU_BROKEN";
    expect_way(&many, false, without, "", "|cuBLASLt, own column sum|");
    expect_way(&many, false, without, "split", "|cuDNN engine 0|");
    expect_way(&few, false, without, "split", "|cuBLASLt, own column sum|");
    expect_way(&few, false, broken, "cublaslt:*", "|cuDNN engine 0|");
    for (int timed = 0; timed < 2; timed++) {
        expect_way(&many, timed, broken, "cublaslt:*", "|cuDNN engine ");
        expect_way(&many, timed, broken, "cudnn:*", "|cuBLASLt");
    }
    /* both at work: the stand-in's clock (main) counts pieces of work */
    const shape *const both[] = {&many, &few};
    for (size_t i = 0; i < TR_COUNT(both); i++) {
        expect_way(both[i], true, broken, "cublaslt:*~", "|cuDNN engine ");
        expect_way(both[i], true, broken, "cudnn:*~", "|cuBLASLt");
    }
    set_up("", (size_t)64 << 20);
    check_backward(&many, TR_PRECISION_FP32, true, 1);
    wanted = (tr_backend_options){.benchmark = true, .workspace = 64 << 20};
    check_backward(&few, TR_PRECISION_BF16, true, 1);
    setenv(without, "split", 1);
    set_up("", (size_t)64 << 20);
    check_backward(&many, TR_PRECISION_FP32, true, 1);
    unsetenv(without);
}
#endif

/* A dry context says what may be asked for, and needs no device. */
static void test_dry(void **state)
{
    (void)state;
    static const char *const ops[] = {"conv2d", "conv2d.grad_input", "conv2d.grad_weight"};
    const shape *s = &shapes[1];
    const dims d = dims_of(s);
    void *ctx = NULL;
    set_up("", 1 << 20);
    wanted.dry = true;
    assert_int_equal(tr_cuda_backend.open(&wanted, &ctx), TR_OK);
    for (size_t i = 0; i < TR_COUNT(ops); i++) {
        harness h;
        memset(&h, 0, sizeof h);
        h.op.def = h_def(ops[i]);
        const int x = h_tensor(&h, TR_ROLE_ACTIVATION, TR_BF16, 4, d.x);
        const int w = h_tensor(&h, i == 2 ? TR_ROLE_GRAD : TR_ROLE_PARAM, TR_F32, 4, d.w);
        const int y = h_tensor(&h, TR_ROLE_ACTIVATION, TR_BF16, 4, d.y);
        const int in[][2] = {{x, w}, {y, w}, {x, y}}, out[] = {y, x, w};
        h.op.nin = 2;
        h.op.in[0] = in[i][0];
        h.op.in[1] = in[i][1];
        h.op.nout = 1;
        h.op.out[0] = out[i];
        h.op.attrs = &d.attrs;
        h.graph.tensors = h.tensors;
        h.graph.mode = TR_MODE_TRAIN;
        tr_kernel *k = NULL;
        assert_int_equal(tr_cuda_backend.kernels->prepare(ctx, &h.graph, &h.op, &k), TR_OK);
        assert_string_equal(k->impl, "cuDNN (engine chosen on the device)");
        assert_true(k->workspace >= wanted.workspace);
        assert_int_equal(k->npacked, i == 2 ? 0 : 1);
        if (k->npacked) assert_int_equal(k->packed[0].nbytes, d.nw * 2);
        k->close(k);
        for (size_t t = 0; t < h.graph.ntensors; t++) tr_free(h.data[t]);
    }
    tr_cuda_backend.close(ctx);
}

/* A layer that cannot be prepared: the error names it and says why. `elements` of the result, 0: as
 * many as there are. */
static void check_refused(const char *no_graph, bool dry, size_t elements, const char *text)
{
    dims d = dims_of(&shapes[1]);
    void *ctx = NULL;
    harness h;
    memset(&h, 0, sizeof h);
    set_up(no_graph, 1 << 20);
    wanted.dry = dry;
    assert_int_equal(tr_cuda_backend.open(&wanted, &ctx), TR_OK);
    h.op.def = h_def("conv2d");
    snprintf(h.op.layer, sizeof h.op.layer, "conv7");
    const int x = h_tensor(&h, TR_ROLE_ACTIVATION, TR_F32, 4, d.x);
    const int w = h_tensor(&h, TR_ROLE_PARAM, TR_F32, 4, d.w);
    const int y = h_tensor(&h, TR_ROLE_ACTIVATION, TR_F32, 4, d.y);
    h.op.nin = 2;
    h.op.in[0] = x;
    h.op.in[1] = w;
    h.op.nout = 1;
    h.op.out[0] = y;
    h.op.attrs = &d.attrs;
    h.graph.tensors = h.tensors;
    if (elements) h.tensors[y].count = elements;
    tr_kernel *k = NULL;
    assert_int_equal(tr_cuda_backend.kernels->prepare(ctx, &h.graph, &h.op, &k), TR_UNSUPPORTED);
    if (!strstr(tr_last_error()->text, text)) fail_msg("%s", tr_last_error()->text);
    for (size_t t = 0; t < h.graph.ntensors; t++) tr_free(h.data[t]);
    tr_cuda_backend.close(ctx);
    set_up("", 0);
}

/* More elements than cuDNN's indices hold. */
static void test_too_large(void **state)
{
    (void)state;
    check_refused("", true, (size_t)INT32_MAX + 1, "layer conv7: 2147483648 elements");
}

#ifndef TR_REAL_GPU
static void test_no_engine(void **state)
{
    (void)state;
    check_refused("all", false, 0, "layer conv7: cuDNN has nothing for conv2d");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),     cmocka_unit_test(test_not_fused),
        cmocka_unit_test(test_pieces),    cmocka_unit_test(test_wide),
        cmocka_unit_test(test_dry),       cmocka_unit_test(test_too_large),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_no_engine), cmocka_unit_test(test_one_place),
#endif
    };
    setenv("FAKEGPU_CLOCK", "work", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
