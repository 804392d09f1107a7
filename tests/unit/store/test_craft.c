/* Run files made on purpose, a fixed choice of them: tests/fuzz/fuzz_craft.c says what must hold.
 * TRIREME_FUZZ=N in the environment tries N. */
#define LLVMFuzzerTestOneInput craft_input
#include "../../fuzz/fuzz_craft.c"

#include <setjmp.h>
#include <cmocka.h>

static void crafted(void **state)
{
    (void)state;
    const char *count = getenv("TRIREME_FUZZ");
    const uint64_t n = count ? strtoull(count, NULL, 10) : 500;
    uint8_t bytes[1 + 8 * 4];
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t edits = 1 + tr_philox_at(1, TR_RNG_TEST, 99, i, 0).v[0] % 4;
        for (uint32_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)tr_philox_at(1, TR_RNG_TEST, k, i, 0).v[0];
        craft_input(bytes, 1 + 8 * edits); /* aborts when something does not hold */
    }
}

/* An address far beyond the end in the place of each, one by one: HDF5 1.10 reads there, as in an
 * array's header that says its attributes are in a heap, and dies. */
static void addresses_beyond_the_end(void **state)
{
    (void)state;
    uint8_t bytes[9] = {[4] = 4, [5] = 14}; /* an address; which of the interesting ones */
    for (bytes[0] = 0; bytes[0] < 2; bytes[0]++)
        for (bytes[1] = 0; bytes[1] < 36; bytes[1]++)
            for (bytes[2] = 0; bytes[2] < 192; bytes[2] += 32) craft_input(bytes, sizeof bytes);
}

static int leave(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -rf 'fuzz-craft-%ld'", (long)getpid());
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_beyond_the_end),
        cmocka_unit_test_teardown(crafted, leave),
    };
    return cmocka_run_group_tests_name("store: craft", tests, NULL, NULL);
}
