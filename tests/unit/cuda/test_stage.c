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

static void wait_staged(void *stage)
{
    for (bool done = false; !done;) assert_ok(b->staging->poll(stage, &done));
}

static void many_batches(bool graphs, bool sections)
{
    tr_cuda *cuda = open_with(graphs);
    unsigned char *pinned = b->memory->host_alloc(cuda, TR_MEM_DATA, 1000 + 300);
    char *seen = b->memory->alloc(cuda, TR_MEM_OTHER, BATCHES * PARTS * 1024);
    /* In a section: always the same address, taken out of there afterwards. */
    char *here = b->memory->alloc(cuda, TR_MEM_OTHER, PARTS * 1024);
    assert_true(pinned && seen && here);
    void *stage;
    assert_ok(
        b->staging->open(cuda, 1024 + 300, &stage)); /* each part rounded up, as sessions do */
    const void *slot[2] = {NULL, NULL};
    int replayed = 0;
    for (int k = 0; k < BATCHES; k++) {
        void *where[PARTS];
        bool replay = false;
        wait_staged(stage);
        assert_ok(b->staging->begin(stage));
        for (int i = 0; i < PARTS; i++) {
            unsigned char *from = pinned + (i == PARTS - 1 ? 1000 : 0);
            fill(from, part[i], seed_of(k, i));
            assert_ok(b->staging->part(stage, from, part[i], &where[i]));
            assert_int_equal((uintptr_t)where[i] % TR_CUDA_ALIGN, 0);
        }
        assert_int_equal(b->staging->slot(stage), k % 2);
        if (k < 2) slot[k] = where[0];
        assert_ptr_equal(where[0], slot[k % 2]);
        if (sections) assert_ok(b->sections->begin(sections_of(cuda), (uint64_t)k % 2, &replay));
        replayed += replay;
        for (int i = 0; i < PARTS && !replay; i++)
            assert_ok(b->memory->copy(cuda, here + i * 1024, where[i], part[i]));
        if (sections) assert_ok(b->sections->end(sections_of(cuda), TR_OK));
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
    b->staging->close(stage);
    b->memory->host_free(cuda, pinned);
    close_with(cuda);
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

/* Two stages of one context, of different sizes, batch by batch in turn, neither waiting for the
 * other: what stands in one's slots is not touched by the other's. The second is closed first, and
 * the first goes on. */
static void test_two_stages(void **state)
{
    (void)state;
    enum { FEW = 256, MANY = 1024 };
    static const size_t size[2] = {FEW, MANY};
    tr_cuda *cuda = open_with(true);
    unsigned char *pinned[2];
    char *seen[2];
    void *stages[2];
    for (int s = 0; s < 2; s++) {
        pinned[s] = b->memory->host_alloc(cuda, TR_MEM_DATA, size[s]);
        seen[s] = b->memory->alloc(cuda, TR_MEM_OTHER, BATCHES * size[s]);
        assert_true(pinned[s] && seen[s]);
        assert_ok(b->staging->open(cuda, size[s], &stages[s]));
    }
    for (int k = 0; k < BATCHES; k++)
        for (int s = 0; s < 2; s++) {
            void *stage = stages[s], *where;
            if (s == 1 && k > BATCHES / 2) continue;
            wait_staged(stage);
            assert_ok(b->staging->begin(stage));
            fill(pinned[s], size[s], seed_of(k, s));
            assert_ok(b->staging->part(stage, pinned[s], size[s], &where));
            assert_int_equal(b->staging->slot(stage), k % 2);
            assert_ok(b->memory->copy(cuda, seen[s] + (size_t)k * size[s], where, size[s]));
            if (s == 1 && k == BATCHES / 2) b->staging->close(stage);
        }
    for (int k = 0; k < BATCHES; k++)
        for (int s = 0; s < 2; s++)
            if (s == 0 || k <= BATCHES / 2)
                assert_filled(cuda, seen[s] + (size_t)k * size[s], size[s], seed_of(k, s));
    b->staging->close(stages[0]);
    for (int s = 0; s < 2; s++) {
        b->memory->free(cuda, seen[s]);
        b->memory->host_free(cuda, pinned[s]);
    }
    b->close(cuda);
    assert_int_equal(held(), 0);
}

/* An empty share begins its batch, too, and nothing else. */
static void test_empty(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    void *stage;
    assert_ok(b->staging->open(cuda, 0, &stage));
    assert_int_equal(b->staging->slot(stage), 0);
    for (int k = 0; k < 5; k++) {
        void *where;
        wait_staged(stage);
        assert_ok(b->staging->begin(stage));
        assert_ok(b->staging->part(stage, NULL, 0, &where));
        assert_int_equal(b->staging->slot(stage), k % 2);
    }
    b->staging->close(stage);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

static void test_refused(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    unsigned char *pinned = b->memory->host_alloc(cuda, TR_MEM_DATA, 2048);
    void *where, *stage;
    bool replay;
    assert_ok(b->staging->open(cuda, 700, &stage)); /* rounded up to 768 */
    assert_told(b->staging->part(stage, pinned, 1, &where), TR_INTERNAL, "before the batch");
    assert_ok(b->staging->begin(stage));
    assert_told(b->staging->part(stage, pinned, 769, &where), TR_INTERNAL, "larger than its slot");
    assert_ok(b->staging->part(stage, pinned, 513, &where)); /* takes up all */
    assert_told(b->staging->part(stage, pinned, 1, &where), TR_INTERNAL, "larger than its slot");
    assert_ok(b->sections->begin(sections_of(cuda), 1, &replay));
    assert_told(b->staging->begin(stage), TR_INTERNAL, "begin inside a section");
    assert_told(b->staging->part(stage, pinned, 0, &where), TR_INTERNAL, "inside a section");
    assert_told(b->staging->poll(stage, &replay), TR_INTERNAL, "inside a section");
    assert_ok(b->sections->end(sections_of(cuda), TR_OK));
    b->staging->close(stage);
    b->memory->host_free(cuda, pinned);
    close_with(cuda);
    assert_int_equal(held(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),      cmocka_unit_test(test_in_sections),
        cmocka_unit_test(test_two_stages), cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
