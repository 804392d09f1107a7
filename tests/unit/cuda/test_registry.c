/* Every op of the list is prepared by the CUDA backend in every type, as planned for an H100, and
 * is held to account here by the tests of the CPU's kernels: whatever file tests an op there has
 * its counterpart here, and so have the golden cases and the gradient checks, which walk the
 * list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <glob.h>

#include "kernels/cuda/cuda.h"
#include "tests/unit/cpu/every_kernel.h"

static void test_kernels(void **state)
{
    (void)state;
    const tr_backend_options o = {.dry = true};
    void *ctx = NULL;
    assert_int_equal(tr_cuda_backend.open(&o, &ctx), TR_OK);
    for (int p = TR_PRECISION_FP32; p <= TR_PRECISION_FP16; p++)
        prepare_every_op(&tr_cuda_backend, ctx, (tr_precision)p);
    tr_cuda_backend.close(ctx);
}

/* Of the tests of CPU kernels these are about that machine alone. */
static bool about_cpus(const char *name)
{
    static const char *const names[] = {"test_attention_samples.c",
                                        "test_backend.c",
                                        "test_batchnorm_apart.c",
                                        "test_batchnorm_rounding.c",
                                        "test_conv2d_avx2.c",
                                        "test_int8.c",
                                        "test_isa.c",
                                        "test_linear_avx2.c",
                                        "test_linear_wide.c",
                                        "test_optimizer.c",
                                        "test_panels.c",
                                        "test_pool2d_avx2.c",
                                        "test_product.c",
                                        "test_registry.c",
                                        "test_sketch_rows.c"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void test_counterparts(void **state)
{
    (void)state;
    const char *root = getenv("TR_SOURCE_DIR");
    if (!root) root = TR_SOURCE_DIR;
    char pattern[512];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/tests/unit/cpu/test_*.c", root);
    if (glob(pattern, 0, NULL, &found) != 0) {
        print_message("[  SKIPPED ] the sources are not here (%s)\n", pattern);
        return;
    }
    assert_true(found.gl_pathc > 15);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        if (about_cpus(name)) continue;
        char path[512], line[256], include[256];
        snprintf(path, sizeof path, "%s/tests/unit/cuda/test_op_%s", root, name + strlen("test_"));
        snprintf(include, sizeof include, "#include \"tests/unit/cpu/%s\"\n", name);
        FILE *f = fopen(path, "r");
        if (!f) fail_msg("%s is missing: include %s there, behind mirror.h", path, name);
        bool included = false;
        while (fgets(line, sizeof line, f)) included |= strcmp(line, include) == 0;
        assert_int_equal(fclose(f), 0);
        if (!included) fail_msg("%s does not %s", path, include);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_counterparts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
