/* links: trireme_cpu trireme_runtime trireme_onnx_messages */
/* The fuzzer's corpus, and its files changed as the fuzzer changes them, read as users' files are: tests/fuzz/fuzz_onnx.c
 * says what must hold. */
#include <string.h>

#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz_onnx.c"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most)
{
    if (n == most) return n;
    bytes[n / 2] ^= 0x11;
    bytes[n] = 0;
    return n + 1;
}

static uint8_t last[1 << 16];
static size_t nlast;

static int changed(const uint8_t *bytes, size_t n)
{
    static uint8_t v[1 << 16];
    for (unsigned k = 0; k < 24; k++) {
        memcpy(v, bytes, n);
        size_t now = n;
        for (unsigned more = 0; more <= k; more++)
            now = LLVMFuzzerCustomMutator(v, now, sizeof v, (unsigned)n * 64 + k + more);
        LLVMFuzzerTestOneInput(v, now);
        now = LLVMFuzzerCustomCrossOver(bytes, n, last, nlast, v, sizeof v, (unsigned)n + k);
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
    assert_true(corpus_run("onnx", changed) > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus), cmocka_unit_test(changes)};
    return cmocka_run_group_tests_name("onnx: corpora", tests, NULL, NULL);
}
