/* Every op of the list is prepared by the CPU in every type that it has, from graphs in which it
 * occurs. Its gradient is held to finite differences (the walk at the end of test_gradients.c) and
 * to PyTorch (that of test_golden_ops.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "every_kernel.h"
#include "kernels/cpu/cpu.h"

static void test_names(void **state)
{
    (void)state;
    assert_true(tr_op_count() > 40);
    assert_null(tr_op_at(tr_op_count()));
    for (size_t i = 0; i < tr_op_count(); i++) {
        const char *name = tr_op_def_name(tr_op_at(i));
        assert_int_equal(tr_op_place(tr_op_at(i)), i);
        for (size_t j = 0; j < i; j++)
            if (strcmp(tr_op_def_name(tr_op_at(j)), name) == 0)
                fail_msg("two ops are called %s", name);
    }
}

static void test_kernels(void **state)
{
    (void)state;
    const tr_backend_options o = {0};
    void *ctx = NULL;
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    prepare_every_op(&tr_cpu_backend, ctx, TR_PRECISION_FP32);
    const char *why = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_BF16);
    if (why)
        print_message("bf16 is skipped: %s\n", why);
    else
        prepare_every_op(&tr_cpu_backend, ctx, TR_PRECISION_BF16);
    assert_non_null(tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_F16));
    tr_cpu_backend.close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
