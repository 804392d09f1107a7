/* links: trireme_cpu trireme_runtime trireme_onnx_messages */
/* The fuzzer's corpus, and its files changed as the fuzzer changes them, read as users' files are:
 * tests/fuzz/fuzz_onnx.c says what must hold. */
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

/* ---- Which operators there are --------------------------------------------------------------- */

static bool seen[OPERATORS];

static int look(const uint8_t *bytes, size_t n)
{
    size_t count;
    const char *const *all = operators(&count);
    tr_pool pool = {.most = 64 << 20};
    const Onnx__ModelProto *m = model_of(&pool, bytes, n);
    for (size_t k = 0; m && m->graph && k < m->graph->n_node; k++)
        for (size_t i = 0; i < count; i++)
            if (strcmp(m->graph->node[k]->op_type, all[i]) == 0) seen[i] = true;
    tr_pool_close(&pool);
    return 0;
}

/* Changes begin with what is there: each operator that is read has a place in a file. */
static void every_operator(void **state)
{
    (void)state;
    size_t count, missing = 0;
    const char *const *all = operators(&count);
    corpus_run("onnx", look);
    for (size_t i = 0; i < count; i++) {
        if (!seen[i]) print_message("no file in the corpus has the operator %s\n", all[i]);
        missing += !seen[i];
    }
    assert_true(count > 60 && count < OPERATORS);
    assert_int_equal(missing, 0);
}

/* ---- Reading --------------------------------------------------------------------------------- */

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_operator), cmocka_unit_test(corpus),
                                       cmocka_unit_test(changes), cmocka_unit_test(crossings)};
    return cmocka_run_group_tests_name("onnx: corpora", tests, NULL, NULL);
}
