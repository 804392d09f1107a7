/* The fuzzers' corpora of a sweep's file and of its trials' records, and their files with bytes
 * changed, or as the fuzzer changes them: tests/fuzz/fuzz_sweep.c and fuzz_trial.c say what must
 * hold. */
#include "tests/fuzz/changed.h"
#define LLVMFuzzerTestOneInput  fuzz_trial
#define LLVMFuzzerCustomMutator mutate_trial
#include "tests/fuzz/fuzz_trial.c"
#undef LLVMFuzzerTestOneInput
#undef LLVMFuzzerCustomMutator
#define LLVMFuzzerTestOneInput  fuzz_sweep
#define LLVMFuzzerCustomMutator mutate_sweep
#include "tests/fuzz/fuzz_sweep.c"

#include "tests/fuzz/mutated.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most)
{
    if (n == most) return n;
    bytes[n] = '\n';
    return n + 1;
}

static void trial(void **state)
{
    (void)state;
    corpus_fuzz = fuzz_trial;
    assert_true(corpus_run("trial", corpus_changed) > 10);
}

static void sweep(void **state)
{
    (void)state;
    assert_true(corpus_run("sweep", fuzz_sweep) > 10);
}

static void sweep_changes(void **state)
{
    (void)state;
    assert_true(corpus_run("sweep", corpus_mutated) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(trial), cmocka_unit_test(sweep),
                                       cmocka_unit_test(sweep_changes)};
    return cmocka_run_group_tests_name("trainer: corpora of sweeps", tests, NULL, NULL);
}
