/* The backend's entry: every op of the registry has a kernel, what is not supported says why, the
 * description, failing allocations, and a context at a lower instruction set level. */
#include "tests/unit/cpu/op_harness.h"

static void *open_backend(int threads, int isa)
{
    void *ctx = NULL;
    tr_backend_options o = {.threads = threads, .isa = isa};
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    assert_non_null(ctx);
    return ctx;
}

static void test_every_op(void **state)
{
    (void)state;
    void *ctx = open_backend(1, 0);
    for (size_t i = 0; i < tr_op_count(); i++) {
        const char *why = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(i), TR_PRECISION_FP32);
        if (why) fail_msg("%s: %s", tr_op_def_name(tr_op_at(i)), why);
    }
    tr_cpu_backend.close(ctx);
}

static void test_fp16_names_bf16(void **state)
{
    (void)state;
    void *ctx = open_backend(1, 0);
    for (size_t i = 0; i < tr_op_count(); i++)
        assert_string_equal(
            tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(i), TR_PRECISION_FP16),
            "fp16 has no CPU kernels here: use precision bf16");
    tr_graph g = {.precision = TR_PRECISION_FP16, .batch = 1};
    tr_op op = {.def = h_def("linear"), .layer = "linear1"};
    tr_kernel *k = NULL;
    assert_int_equal(tr_cpu_backend.kernels->prepare(ctx, &g, &op, &k), TR_UNSUPPORTED);
    assert_null(k);
    assert_non_null(strstr(tr_last_error()->text, "linear1"));
    assert_non_null(strstr(tr_last_error()->text, "bf16"));
    tr_cpu_backend.close(ctx);
}

static void test_describe(void **state)
{
    (void)state;
    char text[128];
    void *ctx = open_backend(1, 0);
    tr_cpu_backend.describe(ctx, text, sizeof text);
    assert_non_null(strstr(text, "oneDNN "));
    assert_non_null(strstr(text, ", 1 thread"));
    assert_null(strstr(text, "threads"));
    tr_cpu_backend.close(ctx);
    ctx = open_backend(2, 0);
    tr_cpu_backend.describe(ctx, text, sizeof text);
    assert_non_null(strstr(text, ", 2 threads"));
    tr_cpu_backend.describe(ctx, text, 8); /* cut, not overrun */
    assert_int_equal(strlen(text), 7);
    tr_cpu_backend.close(ctx);
    tr_cpu_backend.close(NULL);
}

/* A convolution with everything, prepared while each allocation fails in turn: an error, no leak.
 */
static tr_status prepare_conv(void *ctx)
{
    static const tr_conv2d_attrs attrs = {.out = 4,
                                          .groups = 1,
                                          .kernel = {3, 3},
                                          .stride = {1, 1},
                                          .padding = {1, 1},
                                          .dilation = {1, 1}};
    tr_tensor t[4] = {
        {.id = 0, .dtype = TR_F32, .ndim = 4, .dims = {2, 3, 6, 6}, .count = 216},
        {.id = 1,
         .role = TR_ROLE_PARAM,
         .dtype = TR_F32,
         .ndim = 4,
         .dims = {4, 3, 3, 3},
         .count = 108},
        {.id = 2, .role = TR_ROLE_PARAM, .dtype = TR_F32, .ndim = 1, .dims = {4}, .count = 4},
        {.id = 3, .dtype = TR_F32, .ndim = 4, .dims = {2, 4, 6, 6}, .count = 288},
    };
    tr_op op = {.def = h_def("conv2d"), .nin = 4, .in = {0, 1, 2, -1}, .nout = 1, .out = {3}};
    op.attrs = &attrs;
    tr_graph g = {.batch = 2, .train = true, .tensors = t, .ntensors = 4, .ops = &op, .nops = 1};
    tr_kernel *k = NULL;
    tr_status st = tr_cpu_backend.kernels->prepare(ctx, &g, &op, &k);
    if (st == TR_OK) k->close(k);
    return st;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_status st = TR_MEMORY;
    for (uint64_t n = 1; st != TR_OK; n++) {
        assert_true(n < 100);
        void *ctx = NULL;
        tr_backend_options o = {.threads = 1};
        tr_mem_fail_at(n);
        st = tr_cpu_backend.open(&o, &ctx);
        if (st == TR_OK) st = prepare_conv(ctx);
        tr_mem_fail_at(0);
        assert_true(st == TR_OK || st == TR_MEMORY);
        tr_cpu_backend.close(ctx);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
    }
}

/* Last: oneDNN takes no lower level once it has made primitives, but our loops do. */
static void test_lower_level(void **state)
{
    (void)state;
    char text[128];
    for (int isa = TR_ISA_BASE; isa <= tr_cpu_isa(); isa++) {
        static const char *const names[] = {"", "baseline", "AVX2", "AVX-512"};
        void *ctx = open_backend(1, isa);
        tr_cpu_backend.describe(ctx, text, sizeof text);
        assert_int_equal(strncmp(text, names[isa], strlen(names[isa])), 0);
        assert_int_equal(prepare_conv(ctx), TR_OK);
        tr_cpu_backend.close(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op),    cmocka_unit_test(test_fp16_names_bf16),
        cmocka_unit_test(test_describe),    cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_lower_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
