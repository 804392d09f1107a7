/* The host does not run far ahead of the device; recorded work is not held up. */
#include "core_harness.h"

enum { AHEAD = 64, ROUNDS = 5, BYTES = 64 };

/* However late the device works: what came two rounds ago is done. */
static void test_far_work_is_done(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    char *to = b->memory->alloc(cuda, TR_MEM_OTHER, BYTES);
    cudaEvent_t there[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        assert_int_equal(cudaEventCreateWithFlags(&there[k], cudaEventDisableTiming), cudaSuccess);
        for (int i = 0; i < AHEAD; i++) {
            bool done = false;
            assert_ok(b->memory->zero(cuda, to, BYTES));
            while (!done) assert_ok(b->stream->poll(cuda, &done));
        }
        assert_int_equal(cudaEventRecord(there[k], cuda->stream), cudaSuccess);
        if (k < 2) continue;
        bool done = false; /* the op after the last of this round */
        while (!done) assert_ok(b->stream->poll(cuda, &done));
        assert_int_equal(cudaEventQuery(there[k - 2]), cudaSuccess);
    }
    assert_ok(b->stream->finish(cuda));
    for (int k = 0; k < ROUNDS; k++) assert_int_equal(cudaEventDestroy(there[k]), cudaSuccess);
    b->memory->free(cuda, to);
    close_with(cuda);
}

static void test_recordings_are_not_held_up(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    char *to = b->memory->alloc(cuda, TR_MEM_OTHER, BYTES);
    for (int run = 0; run < 3; run++) {
        bool replay = false, done = true;
        assert_ok(b->sections->begin(sections_of(cuda), 3, &replay));
        for (int i = 0; !replay && i < 3 * AHEAD; i++) {
            assert_ok(b->memory->zero(cuda, to, BYTES));
            do assert_ok(b->stream->poll(cuda, &done));
            while (run == 0 && !done);
            assert_true(done);
        }
        assert_ok(b->sections->end(sections_of(cuda), TR_OK));
        assert_int_equal(replay, run == 2);
    }
    b->memory->free(cuda, to);
    close_with(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_work_is_done),
        cmocka_unit_test(test_recordings_are_not_held_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
