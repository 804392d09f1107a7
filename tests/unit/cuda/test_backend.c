/* The context: devices, opening, what it says of itself, what it refuses; without a device. */
#include "core_harness.h"

#include <stdio.h>

static void test_devices(void **state)
{
    (void)state;
    char why[512] = "", id[64] = "";
    const int n = b->devices(why, sizeof why);
    if (n < 1) fail_msg("%s", why);
    assert_ok(b->device_id(0, id, sizeof id));
    unsigned at[4];
    char uuid[40] = "";
    assert_int_equal(sscanf(id, "%x:%x:%x.%x/%39[0-9a-f]", &at[0], &at[1], &at[2], &at[3], uuid),
                     5);
    assert_int_equal(strlen(uuid), 32);
    assert_told(b->device_id(n, id, sizeof id), TR_KERNEL, "cudaErrorInvalidDevice");

    void *ctx = NULL;
    const tr_backend_options o = {.device = n};
    char text[64];
    snprintf(text, sizeof text, "no CUDA device %d, only %d can be seen", n, n);
    assert_told(b->open(&o, &ctx), TR_KERNEL, text);
    assert_null(ctx);
    assert_int_equal(held(), 0);
}

static void test_describe(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    char text[300], end[64];
    unsigned v[9];
    assert_non_null(b->stream->handle(cuda));
    assert_true(cuda->sms > 0 && cuda->max_shared >= 48 * 1024);
    b->describe(cuda, text, sizeof text);
    const char *rest = strstr(text, " (sm_");
    if (!rest || sscanf(rest, " (sm_%u), CUDA %u.%u, cuBLASLt %u.%u.%u, cuDNN %u.%u.%u%63[^\n]",
                        &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], end) != 10)
        fail_msg("\"%s\"", text);
    assert_int_equal(v[0], cuda->major * 10 + cuda->minor);
    assert_string_equal(end, ", graphs on");
    assert_true(v[1] >= 12 && v[3] >= 12 && v[6] == 9);
    b->close(cuda);
    cuda = open_with(false);
    b->describe(cuda, text, sizeof text);
    assert_non_null(strstr(text, "graphs off"));
    b->close(cuda);
    b->close(NULL);
    assert_int_equal(held(), 0);
}

static const tr_op_def *op_named(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (strcmp(tr_op_def_name(tr_op_at(i)), name) == 0) return tr_op_at(i);
    fail_msg("no op %s", name);
    return NULL;
}

/* Every op of the registry is there in every precision, but bf16 on what came before Ampere, and
 * 8-bit convolutions with groups. */
static void test_unsupported(void **state)
{
    (void)state;
    void *ctx;
    const tr_backend_options o = {.dry = true};
    assert_ok(b->open(&o, &ctx));
    for (size_t i = 0; i < tr_op_count(); i++) {
        const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};
        for (size_t k = 0; k < TR_COUNT(types); k++) {
            const char *why = b->kernels->unsupported(ctx, tr_op_at(i), types[k]);
            const bool groups = strcmp(tr_op_def_name(tr_op_at(i)), "conv2d.int8_groups") == 0;
            if (groups != (why && strstr(why, "on CPUs alone")) || (why && !groups))
                fail_msg("%s: %s", tr_op_def_name(tr_op_at(i)), why ? why : "is there");
        }
    }
    ((tr_cuda *)ctx)->major = 7;
    const tr_op_def *linear = op_named("linear");
    assert_null(b->kernels->unsupported(ctx, linear, TR_F32));
    assert_null(b->kernels->unsupported(ctx, linear, TR_F16));
    assert_non_null(strstr(b->kernels->unsupported(ctx, linear, TR_BF16), "8.0"));
    b->close(ctx);
}

/* Planning needs no device, and says which it plans for. */
static void test_dry(void **state)
{
    (void)state;
    void *ctx = NULL;
    char text[300];
    const tr_backend_options o = {.dry = true, .graphs = true};
    assert_ok(b->open(&o, &ctx));
    assert_null(b->stream->handle(ctx));
    b->describe(ctx, text, sizeof text);
    assert_non_null(strstr(text, "planned for NVIDIA H100 (sm_90), CUDA "));
    b->close(ctx);
    assert_int_equal(held(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
