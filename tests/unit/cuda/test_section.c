/* Sections: run as they come, recorded, replayed; apart by key and set; errors on the way. */
#include "core_harness.h"

enum { BYTES = 512 };

/* One array moves on to the next at each run: to[0] = from, to[1] = what to[0] was. */
typedef struct {
    tr_cuda *cuda;
    char *from, *to[2];
    int ran; /* times that the calls were made */
} chain;

static void open_chain(chain *c, bool graphs)
{
    *c = (chain){.cuda = open_with(graphs)};
    c->from = b->memory->alloc(c->cuda, TR_MEM_OTHER, BYTES);
    for (int i = 0; i < 2; i++) c->to[i] = b->memory->alloc(c->cuda, TR_MEM_OTHER, BYTES);
    assert_true(c->from && c->to[0] && c->to[1]);
}

static void close_chain(chain *c)
{
    b->memory->free(c->cuda, c->from);
    for (int i = 0; i < 2; i++) b->memory->free(c->cuda, c->to[i]);
    close_with(c->cuda);
    assert_int_equal(held(), 0);
}

static tr_status move_on(chain *c)
{
    tr_status st = TR_OK;
    c->ran++;
    TR_TRY(b->memory->copy(c->cuda, c->to[1], c->to[0], BYTES));
    TR_TRY(b->memory->copy(c->cuda, c->to[0], c->from, BYTES));
out:
    return st;
}

static bool once(chain *c, uint64_t key)
{
    bool replay = false;
    assert_ok(b->sections->begin(sections_of(c->cuda), key, &replay));
    assert_ok(b->sections->end(sections_of(c->cuda), replay ? TR_OK : move_on(c)));
    return replay;
}

static void give(chain *c, unsigned seed)
{
    unsigned char bytes[BYTES];
    fill(bytes, BYTES, seed);
    assert_ok(b->memory->upload(c->cuda, c->from, bytes, BYTES));
}

static void run_times(bool graphs)
{
    chain c;
    open_chain(&c, graphs);
    for (int k = 0; k < 6; k++) {
        give(&c, (unsigned)k + 1);
        const bool replay = once(&c, 9);
        assert_int_equal(replay, graphs && k >= 2);
        assert_filled(c.cuda, c.to[0], BYTES, (unsigned)k + 1);
        if (k > 0) assert_filled(c.cuda, c.to[1], BYTES, (unsigned)k);
    }
    assert_int_equal(c.ran, graphs ? 2 : 6);
    close_chain(&c);
}

static void test_three_times(void **state)
{
    (void)state;
    run_times(true);
}

static void test_graphs_off(void **state)
{
    (void)state;
    run_times(false);
}

/* Each key has its own count; behind the table's end sections run as they come. */
static void test_keys(void **state)
{
    (void)state;
    chain c;
    open_chain(&c, true);
    for (int k = 0; k < 3; k++)
        for (uint64_t key = 0; key < 70; key++) assert_int_equal(once(&c, key), k == 2 && key < 64);
    assert_int_equal(c.ran, 3 * 70 - 64);
    b->sections->drop(c.cuda);
    for (int k = 0; k < 3; k++) assert_int_equal(once(&c, 69), k == 2);

    close_chain(&c);
}

/* Two sets of recordings: each has its own count of the same key, one is closed before the other,
 * and what is dropped is dropped in all. */
static void test_two_sets(void **state)
{
    (void)state;
    chain c;
    bool replay;
    void *other;
    open_chain(&c, true);
    assert_ok(b->sections->open(c.cuda, &other));
    for (int k = 0; k < 6; k++) {
        give(&c, (unsigned)k + 1);
        assert_int_equal(once(&c, 9), k >= 2);
        assert_filled(c.cuda, c.to[0], BYTES, (unsigned)k + 1);
        assert_ok(b->sections->begin(other, 9, &replay));
        assert_int_equal(replay, k >= 2);
        assert_told(b->sections->begin(sections_of(c.cuda), 9, &replay), TR_INTERNAL,
                    "inside another");
        assert_int_equal(b->sections->end(sections_of(c.cuda), TR_NONFINITE), TR_NONFINITE);
        if (k < 2) assert_ok(b->memory->zero(c.cuda, c.to[0], BYTES));
        assert_ok(b->sections->end(other, TR_OK));
        assert_filled(c.cuda, c.from, BYTES, (unsigned)k + 1);
    }
    b->sections->drop(c.cuda);
    assert_false(once(&c, 9));
    assert_ok(b->sections->begin(other, 9, &replay));
    assert_false(replay);
    b->sections->close(other); /* the one that is open */
    assert_false(once(&c, 9));
    assert_true(once(&c, 9));
    close_chain(&c);
}

/* A replay is in stream order with what stands around it, without anybody waiting. */
static void test_order(void **state)
{
    (void)state;
    chain c;
    open_chain(&c, true);
    char *all = b->memory->alloc(c.cuda, TR_MEM_OTHER, 8 * BYTES),
         *source = b->memory->alloc(c.cuda, TR_MEM_OTHER, 8 * BYTES);
    unsigned char bytes[8 * BYTES];
    for (unsigned k = 0; k < 8; k++) fill(bytes + k * BYTES, BYTES, k + 1);
    assert_ok(b->memory->upload(c.cuda, source, bytes, sizeof bytes));
    for (int k = 0; k < 8; k++) {
        assert_ok(b->memory->copy(c.cuda, c.from, source + k * BYTES, BYTES));
        once(&c, 2);
        assert_ok(b->memory->copy(c.cuda, all + k * BYTES, c.to[1], BYTES));
    }
    for (int k = 1; k < 8; k++) assert_filled(c.cuda, all + k * BYTES, BYTES, (unsigned)k);
    b->memory->free(c.cuda, all);
    b->memory->free(c.cuda, source);
    close_chain(&c);
}

/* What goes wrong while recording ends the recording; the first error is told; the stream is as
 * before. */
static void test_failure_inside(void **state)
{
    (void)state;
    chain c;
    bool replay;
    open_chain(&c, true);
    give(&c, 1);
    for (int k = 0; k < 4; k++) { /* plain, then recording */
        assert_ok(b->sections->begin(sections_of(c.cuda), 4, &replay));
        assert_false(replay);
        if (k != 0) {
            const tr_status st = TR_FAIL(TR_NONFINITE, "a kernel's own trouble");
            assert_told(b->sections->end(sections_of(c.cuda), st), TR_NONFINITE,
                        "a kernel's own trouble");
            continue;
        }
        assert_ok(b->sections->end(sections_of(c.cuda), move_on(&c)));
    }
    assert_ok(b->stream->finish(c.cuda));
    assert_false(once(&c, 4)); /* recorded now */
    assert_true(once(&c, 4));
    assert_filled(c.cuda, c.to[1], BYTES, 1);

    assert_ok(b->sections->begin(sections_of(c.cuda), 4, &replay));
    assert_told(b->sections->begin(sections_of(c.cuda), 5, &replay), TR_INTERNAL, "inside another");
    assert_ok(b->sections->end(sections_of(c.cuda), TR_OK));
    assert_told(b->sections->end(sections_of(c.cuda), TR_OK), TR_INTERNAL, "no section");

    /* Closed in the midst of a recording. */
    once(&c, 6);
    assert_ok(b->sections->begin(sections_of(c.cuda), 6, &replay));
    assert_ok(move_on(&c));
    b->sections->drop(c.cuda);
    assert_ok(b->stream->finish(c.cuda));
    close_chain(&c);
}

/* Waiting is no part of a step: the device's library refuses it, and the section says so. */
static void test_not_recordable(void **state)
{
    (void)state;
    chain c;
    bool replay;
    open_chain(&c, true);
    once(&c, 8);
    assert_ok(b->sections->begin(sections_of(c.cuda), 8, &replay));
    assert_ok(move_on(&c));
    const tr_status st = b->stream->finish(c.cuda);
    assert_int_equal(st, TR_KERNEL);
    assert_told(b->sections->end(sections_of(c.cuda), st), TR_KERNEL, "cudaErrorStreamCapture");
    assert_ok(b->stream->finish(c.cuda));
    assert_ok(b->memory->zero(c.cuda, c.from, BYTES));
    close_chain(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_times),    cmocka_unit_test(test_graphs_off),
        cmocka_unit_test(test_keys),           cmocka_unit_test(test_two_sets),
        cmocka_unit_test(test_order),          cmocka_unit_test(test_failure_inside),
        cmocka_unit_test(test_not_recordable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
