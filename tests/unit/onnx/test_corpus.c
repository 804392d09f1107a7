/* links: trireme_cpu trireme_runtime trireme_onnx_messages */
/* The fuzzer's corpus, and its files changed as the fuzzer changes them, read as users' files are: tests/fuzz/fuzz_onnx.c
 * says what must hold. */
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz_onnx.c"
#include "tests/fuzz/mutated.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most)
{
    if (n == most) return n;
    bytes[n / 2] ^= 0x11;
    bytes[n] = 0;
    return n + 1;
}

/* A file and the one before it, crossed. */
static int crossed(const uint8_t *bytes, size_t n)
{
    static uint8_t last[1 << 16], v[1 << 16];
    static size_t nlast;
    for (unsigned k = 0; k < MUTATED_VERSIONS; k++) {
        const size_t now =
            LLVMFuzzerCustomCrossOver(bytes, n, last, nlast, v, sizeof v, (unsigned)n + k);
        LLVMFuzzerTestOneInput(v, now);
    }
    memcpy(last, bytes, n);
    nlast = n;
    return 0;
}

static void corpus(void **state)
{
    (void)state;
    assert_true(corpus_run("onnx", LLVMFuzzerTestOneInput) > 50);
}

static void changes(void **state)
{
    (void)state;
    assert_true(corpus_run("onnx", corpus_mutated) > 50);
}

static void crossings(void **state)
{
    (void)state;
    assert_true(corpus_run("onnx", crossed) > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus), cmocka_unit_test(changes),
                                       cmocka_unit_test(crossings)};
    return cmocka_run_group_tests_name("onnx: corpora", tests, NULL, NULL);
}
