/* Batches: every one is seen whole by what is put into the stream behind it, while the host already
 * overwrites its buffer and stages the next. "Kernels" are copies from the slot: on the stand-in
 * they run as late as events allow, so that a missing dependency shows as another batch's bytes. */
#include "core_harness.h"

enum { PARTS = 3, BATCHES = 9 };
static const size_t part[PARTS] = {1000, 0, 300};

static unsigned seed_of(int batch, int i)
{
    return (unsigned)(batch * PARTS + i + 1);
}

static void wait_staged(tr_cuda *cuda)
{
    for (bool done = false; !done;) assert_ok(b->staging->poll(cuda, &done));
}

static void many_batches(bool graphs, bool sections)
{
    tr_cuda *cuda = open_with(graphs);
    unsigned char *pinned = b->memory->host_alloc(cuda, TR_MEM_DATA, 1000 + 300);
    char *seen = b->memory->alloc(cuda, TR_MEM_OTHER, BATCHES * PARTS * 1024);
    /* In a section: always the same address, taken out of there afterwards. */
    char *here = b->memory->alloc(cuda, TR_MEM_OTHER, PARTS * 1024);
    assert_true(pinned && seen && here);
    assert_ok(
        b->staging->reserve(cuda, 1024 + 300)); /* as a session reserves: each part rounded up */
    const void *slot[2] = {NULL, NULL};
    int replayed = 0;
    for (int k = 0; k < BATCHES; k++) {
        void *where[PARTS];
        bool replay = false;
        wait_staged(cuda);
        assert_ok(b->staging->begin(cuda));
        for (int i = 0; i < PARTS; i++) {
            unsigned char *from = pinned + (i == PARTS - 1 ? 1000 : 0);
            fill(from, part[i], seed_of(k, i));
            assert_ok(b->staging->part(cuda, from, part[i], &where[i]));
            assert_int_equal((uintptr_t)where[i] % TR_CUDA_ALIGN, 0);
        }
        assert_int_equal(tr_cuda_stage_slot(cuda), k % 2);
        if (k < 2) slot[k] = where[0];
        assert_ptr_equal(where[0], slot[k % 2]);
        if (sections) assert_ok(b->sections->begin(cuda, 5, &replay));
        replayed += replay;
        for (int i = 0; i < PARTS && !replay; i++)
            assert_ok(b->memory->copy(cuda, here + i * 1024, where[i], part[i]));
        if (sections) assert_ok(b->sections->end(cuda, TR_OK));
        assert_ok(b->memory->copy(cuda, seen + (size_t)k * PARTS * 1024, here, PARTS * 1024));
    }
    assert_ptr_not_equal(slot[0], slot[1]);
    assert_int_equal(replayed, graphs && sections ? BATCHES - 4 : 0);
    for (int k = 0; k < BATCHES; k++)
        for (int i = 0; i < PARTS; i++)
            if (part[i] > 0)
                assert_filled(cuda, seen + (k * PARTS + i) * 1024, part[i], seed_of(k, i));
    b->memory->free(cuda, seen);
    b->memory->free(cuda, here);
    b->memory->host_free(cuda, pinned);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

static void test_plain(void **state)
{
    (void)state;
    many_batches(false, false);
}

static void test_in_sections(void **state)
{
    (void)state;
    many_batches(true, true);
    many_batches(false, true);
}

/* An empty share begins its batch, too, and nothing else. */
static void test_empty(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    assert_int_equal(tr_cuda_stage_slot(cuda), 0);
    wait_staged(cuda);
    assert_ok(b->staging->reserve(cuda, 0));
    for (int k = 0; k < 5; k++) {
        void *where;
        wait_staged(cuda);
        assert_ok(b->staging->begin(cuda));
        assert_ok(b->staging->part(cuda, NULL, 0, &where));
        assert_int_equal(tr_cuda_stage_slot(cuda), k % 2);
    }
    b->close(cuda);
    assert_int_equal(held(), 0);
}

static void test_refused(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    unsigned char *pinned = b->memory->host_alloc(cuda, TR_MEM_DATA, 2048);
    void *where;
    bool replay;
    assert_told(b->staging->begin(cuda), TR_INTERNAL, "reserved");
    assert_ok(b->staging->reserve(cuda, 700)); /* rounded up to 768 */
    assert_told(b->staging->reserve(cuda, 700), TR_INTERNAL, "twice");
    assert_told(b->staging->part(cuda, pinned, 1, &where), TR_INTERNAL, "stage_begin");
    assert_ok(b->staging->begin(cuda));
    assert_told(b->staging->part(cuda, pinned, 769, &where), TR_INTERNAL, "larger than its slot");
    assert_ok(b->staging->part(cuda, pinned, 513, &where)); /* takes up all */
    assert_told(b->staging->part(cuda, pinned, 1, &where), TR_INTERNAL, "larger than its slot");
    assert_ok(b->sections->begin(cuda, 1, &replay));
    assert_told(b->staging->begin(cuda), TR_INTERNAL, "stage_begin inside a section");
    assert_told(b->staging->part(cuda, pinned, 0, &where), TR_INTERNAL, "inside a section");
    assert_told(b->staging->poll(cuda, &replay), TR_INTERNAL, "inside a section");
    assert_ok(b->sections->end(cuda, TR_OK));
    b->memory->host_free(cuda, pinned);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_in_sections),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
