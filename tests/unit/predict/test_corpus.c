/* The fuzzer's corpus of PATH.part, whole and with bytes changed and cut: tests/fuzz/fuzz_part.c
 * says what must hold. */
#include "tests/fuzz/changed.h"
#include "tests/fuzz/fuzz_part.c"

static void part(void **state)
{
    (void)state;
    corpus_fuzz = LLVMFuzzerTestOneInput;
    assert_true(corpus_run("part", corpus_changed) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(part)};
    return cmocka_run_group_tests_name("predict: corpus", tests, NULL, NULL);
}
