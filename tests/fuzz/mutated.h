/* What a fuzzer's own mutator makes of a file of its corpus, as an ordinary test (corpus.h). It is
 * included behind the fuzzer, and who includes it says what LLVMFuzzerMutate does, which libFuzzer
 * is not there to do. */
#ifndef TR_FUZZ_MUTATED_H
#define TR_FUZZ_MUTATED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MUTATED_VERSIONS = 24 };

/* Through the fuzzer's function go so many versions of a file, each changed once more often than
 * the one before it. */
static int corpus_mutated(const uint8_t *bytes, size_t n)
{
    static uint8_t v[1 << 16];
    for (unsigned k = 0; k < MUTATED_VERSIONS; k++) {
        memcpy(v, bytes, n);
        size_t now = n;
        for (unsigned more = 0; more <= k; more++)
            now = LLVMFuzzerCustomMutator(v, now, sizeof v, (unsigned)n * 64 + k + more);
        LLVMFuzzerTestOneInput(v, now);
    }
    return 0;
}

#endif
