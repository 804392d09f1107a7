/* What goes to the control before a micro-batch, and what comes back later. */
#include "core_harness.h"

#include <time.h>

static tr_control *open_control(tr_cuda *cuda, const tr_control *now)
{
    tr_control *c = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof *c);
    assert_non_null(c);
    assert_ok(b->memory->upload(cuda, c, now, sizeof *c));
    return c;
}

static const tr_control full = {.clip_norm = 1,
                                .loss_scale = 8,
                                .updates = 5,
                                .sums = {1, 2, 3, 4, 5, 6},
                                .sum_squares = 7,
                                .first_nonfinite = 9,
                                .correct2 = 11};

static void test_set_input(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    tr_control *c = open_control(cuda, &full), is;
    const tr_control_input later = {.ordinal = 1ull << 40, .lr = 0.5, .stop = 1, .first = 0};
    assert_ok(b->training->set_input(cuda, c, &later));
    assert_ok(b->memory->download(cuda, &is, c, sizeof is));
    tr_control should = full;
    should.in = later;
    assert_memory_equal(&is, &should, sizeof is);

    for (int stop = 0; stop < 2; stop++) {
        const tr_control_input first = {.ordinal = 3, .lr = 0.25, .stop = stop, .first = 1};
        assert_ok(b->training->set_input(cuda, c, &first));
        assert_ok(b->memory->download(cuda, &is, c, sizeof is));
        memset(should.sums, 0, sizeof should.sums);
        should.sums[TR_SUM_STOP] = stop;
        should.in = first;
        assert_memory_equal(&is, &should, sizeof is);
    }
    b->memory->free(cuda, c);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

/* Many more than the ring holds, none of them waited for: each is what the stream sees at its
 * place. */
static void test_ring(void **state)
{
    (void)state;
    enum { N = 300 };
    tr_cuda *cuda = open_with(true);
    tr_control *c = open_control(cuda, &full);
    tr_control_input *seen = b->memory->alloc(cuda, TR_MEM_OTHER, N * sizeof *seen), is[N];
    for (int i = 0; i < N; i++) {
        const tr_control_input in = {.ordinal = (uint64_t)i * 1000, .lr = 1.0 / (i + 1)};
        assert_ok(b->training->set_input(cuda, c, &in));
        assert_ok(b->memory->copy(cuda, &seen[i], &c->in, sizeof in));
    }
    assert_ok(b->memory->download(cuda, is, seen, sizeof is));
    for (int i = 0; i < N; i++) {
        assert_int_equal(is[i].ordinal, (uint64_t)i * 1000);
        assert_true(is[i].lr == 1.0 / (i + 1));
    }
    b->memory->free(cuda, seen);
    b->memory->free(cuda, c);
    b->close(cuda);
}

/* The device's clock goes on between laps, outside of sections and inside, where replays count,
 * too; what went by before a fresh step does not. */
static void test_laps(void **state)
{
    (void)state;
    static const tr_control nothing;
    const tr_control_input fresh = {.fresh = 1, .first = 1}, next = {.first = 1};
    tr_cuda *cuda = open_with(true);
    tr_control *c = open_control(cuda, &nothing), is, before = nothing;
    assert_ok(b->staging->reserve(cuda, 64));
    for (int step = 0; step < 8; step++) {
        bool replay;
        const struct timespec nap = {.tv_nsec = 3000000};
        assert_ok(b->staging->begin(cuda));
        assert_ok(b->training->set_input(cuda, c, step % 4 == 0 ? &fresh : &next));
        assert_ok(b->sections->begin(cuda, 1, &replay));
        assert_true(replay == (step >= 4)); /* each slot ran once and was recorded once */
        if (!replay) {
            assert_ok(b->training->lap(cuda, c, TR_LAP_IDLE));
            assert_ok(b->training->lap(cuda, c, TR_LAP_COMPUTE));
        }
        assert_ok(b->sections->end(cuda, TR_OK));
        assert_ok(b->stream->finish(cuda)); /* or the stand-in does all of it after the nap */
        nanosleep(&nap, NULL);
        assert_ok(b->training->lap(cuda, c, TR_LAP_COMM));
        assert_ok(b->memory->download(cuda, &is, c, sizeof is));
        assert_true(is.laps[TR_LAP_COMM] - before.laps[TR_LAP_COMM] >= 2900000);
        if (step > 0 && step % 4 != 0)
            assert_true(is.laps[TR_LAP_IDLE] > before.laps[TR_LAP_IDLE]);
        else
            assert_true(is.laps[TR_LAP_IDLE] == before.laps[TR_LAP_IDLE]);
        if (step > 0 && step % 4 != 0) {
            const uint64_t sum = is.laps[0] + is.laps[1] + is.laps[2];
            const uint64_t was = before.laps[0] + before.laps[1] + before.laps[2];
            assert_true(sum - was == is.clock - before.clock);
        }
        before = is;
    }
    b->memory->free(cuda, c);
    b->close(cuda);
}

static void await(tr_cuda *cuda, int slot, tr_control *out)
{
    bool done = false;
    for (int tries = 0; !done && tries < 100000; tries++) {
        const struct timespec nap = {.tv_nsec = 100000};
        assert_ok(b->training->report_poll(cuda, slot, out, &done));
        if (!done) nanosleep(&nap, NULL);
    }
    assert_true(done);
}

/* A report is of its place in the stream, not of when it is read. */
static void test_report(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    tr_control *c = open_control(cuda, &full), is;
    bool done = true;
    assert_told(b->training->report_poll(cuda, 0, &is, &done), TR_INTERNAL, "no report");
    assert_false(done);
    for (int step = 0; step < 6; step++) {
        const tr_control_input in = {.ordinal = (uint64_t)step, .lr = step, .first = 1};
        assert_ok(b->training->set_input(cuda, c, &in));
        assert_ok(b->training->report_begin(cuda, c, step % 2));
        if (step == 0) continue;
        await(cuda, (step - 1) % 2, &is);
        assert_int_equal(is.in.ordinal, step - 1);
        assert_int_equal(is.updates, full.updates);
        assert_true(is.correct2 == full.correct2);
    }
    await(cuda, 1, &is);
    assert_int_equal(is.in.ordinal, 5);
    await(cuda, 1, &is); /* once more is fine */
    assert_int_equal(is.in.ordinal, 5);
    assert_told(b->training->report_begin(cuda, c, 2), TR_INTERNAL, "report slot 2");
    b->memory->free(cuda, c);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

/* What would be repeated by a replay is refused, the first time already. */
static void test_not_in_sections(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    tr_control *c = open_control(cuda, &full), is;
    const tr_control_input in = {.ordinal = 1};
    bool replay, done;
    assert_ok(b->training->report_begin(cuda, c, 0));
    assert_ok(b->marks->reserve(cuda, 2));
    for (int k = 0; k < 3; k++) {
        assert_ok(b->sections->begin(cuda, 1, &replay));
        assert_told(b->training->set_input(cuda, c, &in), TR_INTERNAL,
                    "set_input inside a section");
        assert_told(b->training->report_begin(cuda, c, 0), TR_INTERNAL,
                    "report_begin inside a section");
        assert_told(b->training->report_poll(cuda, 0, &is, &done), TR_INTERNAL, "inside a section");
        assert_told(b->marks->set(cuda, 0), TR_INTERNAL, "mark inside a section");
        if (!replay) assert_ok(b->memory->zero(cuda, c, 8));
        assert_ok(b->sections->end(cuda, TR_OK));
    }
    b->memory->free(cuda, c);
    b->close(cuda);
}

static void test_marks(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    const size_t n = 1 << 20;
    char *p = b->memory->alloc(cuda, TR_MEM_OTHER, n);
    double seconds[3];
    assert_told(b->marks->set(cuda, 0), TR_INTERNAL, "not reserved");
    assert_ok(b->marks->reserve(cuda, 2));
    assert_ok(b->marks->reserve(cuda, 4));
    const uint64_t calls = tr_mem_calls();
    assert_ok(b->marks->reserve(cuda, 3)); /* there already */
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            assert_ok(b->marks->set(cuda, i));
            if (i < 3) assert_ok(b->memory->zero(cuda, p, n));
        }
        assert_ok(b->marks->read(cuda, seconds, 3));
        for (int i = 0; i < 3; i++) assert_true(seconds[i] >= 0 && seconds[i] < 60);
    }
    assert_int_equal(tr_mem_calls(), calls);
    assert_told(b->marks->set(cuda, 4), TR_INTERNAL, "mark 4 is not reserved");
    assert_told(b->marks->read(cuda, seconds, 4), TR_INTERNAL, "not reserved");
    b->memory->free(cuda, p);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_input),
        cmocka_unit_test(test_laps),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_not_in_sections),
        cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
