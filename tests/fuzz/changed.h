/* A file of a fuzzer's corpus, and versions of it with a byte changed, some also cut, as an
 * ordinary test (corpus.h). */
#ifndef TR_FUZZ_CHANGED_H
#define TR_FUZZ_CHANGED_H

#include <string.h>

#include "runtime/base/base.h"
#include "tests/fuzz/corpus.h"

static int (*corpus_fuzz)(const uint8_t *bytes, size_t n); /* what they go through */

static int corpus_changed(const uint8_t *bytes, size_t n)
{
    static const char by[] = ",\n\"{}:0 \xff";
    static uint8_t v[1 << 16];
    corpus_fuzz(bytes, n);
    for (uint32_t i = 0; n > 0 && i < 40; i++) {
        const tr_philox r = tr_philox_at(5, TR_RNG_TEST, (uint32_t)n, i, 0);
        memcpy(v, bytes, n);
        v[r.v[0] % n] = i % 3 ? (uint8_t)by[r.v[1] % (sizeof by - 1)] : (uint8_t)r.v[1];
        corpus_fuzz(v, i % 4 ? n : r.v[2] % n);
    }
    return 0;
}

#endif
