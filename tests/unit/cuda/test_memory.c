/* Device and pinned memory: zeroed, aligned, counted, copied in stream order; what is told when
 * there is no more. */
#include "core_harness.h"

static void test_alloc(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    const size_t before = tr_mem_held(TR_MEM_ACTIVATIONS);
    const size_t sizes[] = {0, 1, 255, 257, 100003};
    void *p[TR_COUNT(sizes)];
    size_t sum = 0;
    for (size_t i = 0; i < TR_COUNT(sizes); i++) {
        p[i] = b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, sizes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % TR_CUDA_ALIGN, 0);
        sum += sizes[i];
        assert_int_equal(tr_mem_held(TR_MEM_ACTIVATIONS), before + sum);
        unsigned char *host = malloc(sizes[i] + 1);
        memset(host, 1, sizes[i] + 1);
        assert_ok(b->memory->download(cuda, host, p[i], sizes[i]));
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(host[j], 0);
        assert_int_equal(host[sizes[i]], 1);
        free(host);
    }
    assert_true(tr_mem_peak(TR_MEM_ACTIVATIONS) >= before + sum);
    for (size_t i = 0; i < TR_COUNT(sizes); i++)
        b->memory->free(cuda, p[(i * 2 + 1) % TR_COUNT(sizes)]);
    assert_int_equal(tr_mem_held(TR_MEM_ACTIVATIONS), before);
    b->memory->free(cuda, NULL);
    b->memory->host_free(cuda, NULL);

    /* Many at once: some share a chain. */
    enum { MANY = 300 };
    void **many = calloc(MANY, sizeof *many);
    for (size_t i = 0; i < MANY; i++)
        assert_non_null(many[i] = b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, i));
    for (size_t i = 0; i < MANY; i++) b->memory->free(cuda, many[i]);
    free(many);
    assert_int_equal(tr_mem_held(TR_MEM_ACTIVATIONS), before);

    const uint64_t calls = tr_mem_calls();
    b->memory->free(cuda, b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, 4));
    assert_true(tr_mem_calls() > calls); /* the step loop's check sees it */
    b->close(cuda);
    assert_int_equal(held(), 0);
}

static void test_host_alloc(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    const size_t before = tr_mem_held(TR_MEM_DATA);
    unsigned char *p = b->memory->host_alloc(cuda, TR_MEM_DATA, 4097);
    assert_non_null(p);
    for (size_t i = 0; i < 4097; i++) assert_int_equal(p[i], 0);
    assert_int_equal(tr_mem_held(TR_MEM_DATA), before + 4097);
    b->memory->host_free(cuda, p);
    assert_int_equal(tr_mem_held(TR_MEM_DATA), before);
    b->close(cuda);
}

/* Small, large, pinned and pageable, with sizes around those of the pieces. */
static void test_copies(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    const size_t piece = 4 << 20, small = 1 << 20;
    const size_t sizes[] = {0, 1, small, small + 1, piece, piece + 1, 2 * piece, 5 * piece + 3};
    const size_t most = sizes[TR_COUNT(sizes) - 1];
    unsigned char *host = malloc(most), *back = malloc(most);
    unsigned char *pinned = b->memory->host_alloc(cuda, TR_MEM_DATA, most);
    char *one = b->memory->alloc(cuda, TR_MEM_OTHER, most),
         *two = b->memory->alloc(cuda, TR_MEM_OTHER, most);
    assert_true(pinned && one && two);
    for (size_t i = 0; i < TR_COUNT(sizes); i++) {
        const size_t n = sizes[i];
        fill(host, n, (unsigned)i);
        assert_ok(b->memory->upload(cuda, one, host, n));
        memset(host, 0xee, n); /* it may be overwritten at once */
        assert_filled(cuda, one, n, (unsigned)i);
        fill(pinned, n, (unsigned)i + 100);
        assert_ok(b->memory->upload(cuda, one, pinned, n));
        memset(pinned, 0xee, n);
        assert_ok(b->memory->copy(cuda, two, one, n));
        assert_ok(b->memory->zero(cuda, one, n));
        assert_ok(b->memory->download(cuda, pinned, two, n));
        fill(back, n, (unsigned)i + 100);
        assert_memory_equal(pinned, back, n);
        assert_ok(b->memory->download(cuda, back, one, n));
        for (size_t j = 0; j < n; j++)
            if (back[j] != 0) fail_msg("byte %zu of %zu is not zero", j, n);
    }
    assert_ok(b->stream->finish(cuda));
    b->memory->free(cuda, one);
    b->memory->free(cuda, two);
    b->memory->host_free(cuda, pinned);
    free(host);
    free(back);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

static void test_too_much(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    const size_t before = tr_mem_held(TR_MEM_ACTIVATIONS);
    assert_null(b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, (size_t)1 << 46));
    assert_int_equal(tr_last_error()->status, TR_MEMORY);
    assert_int_equal(tr_last_error()->hint, TR_HINT_DEVICE_MEMORY);
    const char *const told[] = {"70.4 TB", "activations", "free", "cudaErrorMemoryAllocation"};
    for (size_t i = 0; i < TR_COUNT(told); i++)
        if (!strstr(tr_last_error()->text, told[i]))
            fail_msg("\"%s\" is not in \"%s\"", told[i], tr_last_error()->text);
    assert_int_equal(tr_mem_held(TR_MEM_ACTIVATIONS), before);
    assert_null(b->memory->alloc(cuda, TR_MEM_OTHER, (size_t)1 << 46));
    assert_non_null(
        strstr(tr_last_error()->text, "70.4 TB of device memory could not be allocated"));
    /* It is over: the next calls do not find that error. */
    void *p = b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, 16);
    assert_non_null(p);
    b->memory->free(cuda, p);

    tr_mem_fail_at(1); /* of the table's entries */
    assert_null(b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, 16));
    tr_mem_fail_at(1);
    assert_null(b->memory->host_alloc(cuda, TR_MEM_ACTIVATIONS, 16));
    tr_mem_fail_at(0);
    assert_int_equal(tr_mem_held(TR_MEM_ACTIVATIONS), before);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

#ifndef TR_REAL_GPU
/* A failure with memory to spare: nothing is advised that would not help. */
static void test_not_for_lack(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    assert_null(b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, 4096));
    assert_int_equal(tr_last_error()->status, TR_MEMORY);
    assert_non_null(
        strstr(tr_last_error()->text, "of device memory for activations could not be allocated"));
    assert_non_null(strstr(tr_last_error()->text, "(cudaMalloc: "));
    assert_int_equal(tr_last_error()->hint, TR_HINT_NONE);
    void *p = b->memory->alloc(cuda, TR_MEM_ACTIVATIONS, 4096);
    assert_non_null(p);
    b->memory->free(cuda, p);
    b->close(cuda);
    assert_int_equal(held(), 0);
}
#endif

int main(void)
{
#ifndef TR_REAL_GPU
    setenv("FAKEGPU_FAIL", "cudaMalloc:2", 1); /* the first is the context's own */
#endif
    const struct CMUnitTest tests[] = {
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_not_for_lack), /* first, as calls are counted */
#endif
        cmocka_unit_test(test_alloc),        cmocka_unit_test(test_host_alloc),
        cmocka_unit_test(test_copies),       cmocka_unit_test(test_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
