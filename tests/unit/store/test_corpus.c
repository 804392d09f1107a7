/* The fuzzer's corpus and what fuzzing found, as a test: tests/fuzz/fuzz_store.c says what must
 * hold. */
#include "../../fuzz/fuzz_store.c"

#include "tests/fuzz/corpus.h"

static void corpus(void **state)
{
    (void)state;
    assert_true(corpus_run("store", LLVMFuzzerTestOneInput) >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus)};
    return cmocka_run_group_tests_name("store: corpus", tests, NULL, NULL);
}
