/* What NVML's stand-in says comes through; where it fails, the CUDA runtime's numbers take its
 * place. On a real GPU only what must hold for any. */
#include "core_harness.h"

#include <math.h>

static void test_any(void **state)
{
    (void)state;
    tr_device_load load = {0};
    tr_cuda *cuda = open_with(true);
    char *p = b->memory->alloc(cuda, TR_MEM_OTHER, 64 << 20);
    assert_true(b->load(cuda, &load));
    assert_true(load.total > 0 && load.used <= load.total);
    assert_true(isnan(load.utilization) || (load.utilization >= 0 && load.utilization <= 100));
    b->memory->free(cuda, p);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

/* What lies on the device and is not small change; neither pinned memory nor what was freed. */
static void test_held(void **state)
{
    (void)state;
    tr_device_load load = {0};
    tr_cuda *cuda = open_with(true);
    assert_true(b->load(cuda, &load));
    assert_int_equal(load.held, 0);
    void *host = b->memory->host_alloc(cuda, TR_MEM_IO, 4096),
         *other = b->memory->alloc(cuda, TR_MEM_OTHER, 512);
    void *p = b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, 1000),
         *q = b->memory->alloc(cuda, TR_MEM_WEIGHTS, 24);
    void *stage;
    assert_ok(b->staging->open(cuda, 1000, &stage));
    assert_true(b->load(cuda, &load));
    assert_int_equal(load.held, 1000 + 24 + 2 * 1024);
    b->memory->free(cuda, p);
    assert_true(b->load(cuda, &load));
    assert_int_equal(load.held, 24 + 2 * 1024);
    assert_int_equal(held(), b->pinned + 4096 + 24 + 2 * 1024 + tr_mem_held(TR_MEM_OTHER));
    b->memory->free(cuda, q);
    b->memory->free(cuda, other);
    b->memory->host_free(cuda, host);
    b->staging->close(stage);
    b->close(cuda);
}

#ifndef TR_REAL_GPU
static tr_device_load load_with(const char *fail)
{
    tr_device_load load = {0};
    if (fail) setenv("FAKENVML_FAIL", fail, 1);
    tr_cuda *cuda = open_with(true);
    assert_true(b->load(cuda, &load));
    b->close(cuda);
    unsetenv("FAKENVML_FAIL");
    return load;
}

static void test_numbers(void **state)
{
    (void)state;
    setenv("FAKENVML_UTILIZATION", "93", 1);
    setenv("FAKENVML_USED", "12345", 1);
    setenv("FAKENVML_TOTAL", "99999", 1);
    tr_device_load load = load_with(NULL);
    assert_true(load.utilization == 93);
    assert_int_equal(load.used, 12345);
    assert_int_equal(load.total, 99999);

    setenv("FAKENVML_UTILIZATION", "none", 1);
    load = load_with(NULL);
    assert_true(isnan(load.utilization));
    assert_int_equal(load.used, 12345);
}

static void test_failures(void **state)
{
    (void)state;
    setenv("FAKENVML_UTILIZATION", "93", 1);
    setenv("FAKENVML_TOTAL", "99999", 1);
    static const char *const all[] = {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2"};
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        const tr_device_load load = load_with(all[i]);
        assert_true(isnan(load.utilization));
        assert_true(load.total > 99999); /* of the CUDA runtime */
    }
    tr_device_load load = load_with("nvmlDeviceGetMemoryInfo");
    assert_true(load.utilization == 93 && load.total > 99999);
    load = load_with("nvmlDeviceGetUtilizationRates");
    assert_true(isnan(load.utilization) && load.total == 99999);
}
#endif

static void test_dry(void **state)
{
    (void)state;
    tr_device_load load;
    void *ctx;
    const tr_backend_options o = {.dry = true};
    assert_ok(b->open(&o, &ctx));
    assert_false(b->load(ctx, &load));
    b->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any),     cmocka_unit_test(test_held),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_failures),
#endif
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
