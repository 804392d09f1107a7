/* The fuzzers' corpora, and their files with a byte changed at places all over, read as users'
 * files are: tests/fuzz/fuzz_arrays.h says what must hold. */
#include "tests/fuzz/fuzz_arrays.h"

#include <string.h>

#include "tests/fuzz/corpus.h"

static const tr_arrays_provider *provider;
static int taken, refused;

static int as_it_is(const uint8_t *bytes, size_t n)
{
    if (fuzz_arrays(provider, bytes, n))
        taken++;
    else
        refused++;
    return 0;
}

static int with_changes(const uint8_t *bytes, size_t n)
{
    static uint8_t changed[1 << 16];
    for (uint32_t i = 0; n > 0 && i < 200; i++) {
        const tr_philox r = tr_philox_at(5, TR_RNG_TEST, (uint32_t)n, i, 0);
        memcpy(changed, bytes, n);
        changed[r.v[0] % n] = (uint8_t)r.v[1];
        as_it_is(changed, i % 4 ? n : r.v[2] % n); /* some are cut, too */
    }
    return 0;
}

static void corpus(const tr_arrays_provider *p, const char *name)
{
    provider = p;
    taken = refused = 0;
    const int files = corpus_run(name, as_it_is);
    assert_true(taken >= 2 && refused >= 1);
    corpus_run(name, with_changes);
    assert_true(taken > files && refused > files);
}

static void npz(void **state)
{
    (void)state;
    corpus(&tr_arrays_npz, "npz");
}

static void safetensors(void **state)
{
    (void)state;
    corpus(&tr_arrays_safetensors, "safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(npz), cmocka_unit_test(safetensors)};
    return cmocka_run_group_tests_name("tensors: corpora", tests, NULL, NULL);
}
