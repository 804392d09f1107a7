/* The fuzzer's corpus of machine.json, whole and with bytes changed and cut:
 * tests/fuzz/fuzz_machine.c says what must hold. */
#include "tests/fuzz/changed.h"
#include "tests/fuzz/fuzz_machine.c"

static void machine(void **state)
{
    (void)state;
    corpus_fuzz = LLVMFuzzerTestOneInput;
    assert_true(corpus_run("machine", corpus_changed) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(machine)};
    return cmocka_run_group_tests_name("profile: corpus", tests, NULL, NULL);
}
