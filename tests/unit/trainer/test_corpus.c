/* The fuzzers' corpora of data files that are looked at and of records, whole and with bytes
 * changed and cut: tests/fuzz/fuzz_look.c and fuzz_records.c say what must hold. */
#include "tests/fuzz/changed.h"
#define LLVMFuzzerTestOneInput fuzz_look
#include "tests/fuzz/fuzz_look.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_records
#include "tests/fuzz/fuzz_records.c"
#undef LLVMFuzzerTestOneInput

static void look(void **state)
{
    (void)state;
    corpus_fuzz = fuzz_look;
    assert_true(corpus_run("look", corpus_changed) > 20);
}

static void records(void **state)
{
    (void)state;
    corpus_fuzz = fuzz_records;
    assert_true(corpus_run("records", corpus_changed) > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(look), cmocka_unit_test(records)};
    return cmocka_run_group_tests_name("trainer: corpora", tests, NULL, NULL);
}
