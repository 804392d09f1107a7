/* links: trireme_cpu trireme_plan
 * Which attention is multiplied by matrix instructions: that of 16-bit types, and its gradient with
 * heads of up to 128 values. */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/attention_trial.h"

static void expect_way(tr_precision p, int64_t D, bool backward, bool matrix)
{
    const shape s = {"ways", 1, 2, 1, 3, 3, D, 0, true, false, true, false, 0, 0, false};
    trial t;
    (backward ? prepare_backward : prepare_forward)(&t, &s, p, 0, 1, false);
    assert_string_equal(t.h.kernel->impl, matrix ? "own, tensor cores" : "own");
    close_trial(&t);
}

static void by_type_and_size(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 33, 64, 128, 129, 256};
    for (size_t i = 0; i < TR_COUNT(sizes); i++) FOR_PRECISIONS(p)
        {
            const int64_t D = sizes[i];
            expect_way(p, D, false, p != TR_PRECISION_FP32);
            expect_way(p, D, true, p != TR_PRECISION_FP32 && D <= 128);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_type_and_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
