/* The fuzzer's corpus of models, and its files changed as the fuzzer changes them:
 * tests/fuzz/fuzz_model.c says what must hold. */
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz_model.c"
#include "tests/fuzz/mutated.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most)
{
    if (n == most) return n;
    bytes[n] = '\n';
    return n + 1;
}

static void corpus(void **state)
{
    (void)state;
    assert_true(corpus_run("model", LLVMFuzzerTestOneInput) > 40);
}

static void changes(void **state)
{
    (void)state;
    assert_true(corpus_run("model", corpus_mutated) > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus), cmocka_unit_test(changes)};
    return cmocka_run_group_tests_name("graph: corpora", tests, NULL, NULL);
}
