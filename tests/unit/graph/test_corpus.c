/* The fuzzer's corpus of models, and its files changed as the fuzzer changes them: tests/fuzz/fuzz_model.c says what must
 * hold. */
#include <string.h>

#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz_model.c"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most)
{
    if (n == most) return n;
    bytes[n] = '\n';
    return n + 1;
}

static int changed(const uint8_t *bytes, size_t n)
{
    static uint8_t v[1 << 16];
    for (unsigned k = 0; k < 24; k++) {
        memcpy(v, bytes, n);
        size_t now = n;
        for (unsigned more = 0; more <= k / 2; more++)
            now = LLVMFuzzerCustomMutator(v, now, sizeof v, (unsigned)n * 64 + k + more);
        LLVMFuzzerTestOneInput(v, now);
    }
    return 0;
}

static void corpus(void **state)
{
    (void)state;
    assert_true(corpus_run("model", LLVMFuzzerTestOneInput) > 40);
}

static void changes(void **state)
{
    (void)state;
    assert_true(corpus_run("model", changed) > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus), cmocka_unit_test(changes)};
    return cmocka_run_group_tests_name("graph: corpora", tests, NULL, NULL);
}
