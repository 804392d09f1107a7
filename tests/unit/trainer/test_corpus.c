/* The fuzzers' corpora of data files that are looked at and of records, whole and with bytes changed and cut:
 * tests/fuzz/fuzz_look.c and fuzz_records.c say what must hold. */
#include <string.h>

#include "tests/fuzz/corpus.h"
#define LLVMFuzzerTestOneInput fuzz_look
#include "tests/fuzz/fuzz_look.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_records
#include "tests/fuzz/fuzz_records.c"
#undef LLVMFuzzerTestOneInput

static int (*fuzz)(const uint8_t *bytes, size_t n);

static int changed(const uint8_t *bytes, size_t n)
{
    static const char by[] = ",\n\"{}:0 \xff";
    static uint8_t v[1 << 16];
    fuzz(bytes, n);
    for (uint32_t i = 0; n > 0 && i < 40; i++) {
        const tr_philox r = tr_philox_at(5, TR_RNG_TEST, (uint32_t)n, i, 0);
        memcpy(v, bytes, n);
        v[r.v[0] % n] = i % 3 ? (uint8_t)by[r.v[1] % (sizeof by - 1)] : (uint8_t)r.v[1];
        fuzz(v, i % 4 ? n : r.v[2] % n);
    }
    return 0;
}

static void look(void **state)
{
    (void)state;
    fuzz = fuzz_look;
    assert_true(corpus_run("look", changed) > 20);
}

static void records(void **state)
{
    (void)state;
    fuzz = fuzz_records;
    assert_true(corpus_run("records", changed) > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(look), cmocka_unit_test(records)};
    return cmocka_run_group_tests_name("trainer: corpora", tests, NULL, NULL);
}
