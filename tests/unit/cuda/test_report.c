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
    assert_ok(b->training->set_input(training_of(cuda), c, &later));
    assert_ok(b->memory->download(cuda, &is, c, sizeof is));
    tr_control should = full;
    should.in = later;
    assert_memory_equal(&is, &should, sizeof is);

    for (int stop = 0; stop < 2; stop++) {
        const tr_control_input first = {.ordinal = 3, .lr = 0.25, .stop = stop, .first = 1};
        assert_ok(b->training->set_input(training_of(cuda), c, &first));
        assert_ok(b->memory->download(cuda, &is, c, sizeof is));
        memset(should.sums, 0, sizeof should.sums);
        should.sums[TR_SUM_STOP] = stop;
        should.in = first;
        assert_memory_equal(&is, &should, sizeof is);
    }
    b->memory->free(cuda, c);
    close_with(cuda);
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
        assert_ok(b->training->set_input(training_of(cuda), c, &in));
        assert_ok(b->memory->copy(cuda, &seen[i], &c->in, sizeof in));
    }
    assert_ok(b->memory->download(cuda, is, seen, sizeof is));
    for (int i = 0; i < N; i++) {
        assert_int_equal(is[i].ordinal, (uint64_t)i * 1000);
        assert_true(is[i].lr == 1.0 / (i + 1));
    }
    b->memory->free(cuda, seen);
    b->memory->free(cuda, c);
    close_with(cuda);
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
    for (int step = 0; step < 8; step++) {
        bool replay;
        const struct timespec nap = {.tv_nsec = 3000000};
        assert_ok(b->training->set_input(training_of(cuda), c, step % 4 == 0 ? &fresh : &next));
        assert_ok(b->sections->begin(sections_of(cuda), (uint64_t)step % 2, &replay));
        assert_true(replay == (step >= 4)); /* each ran once and was recorded once */
        if (!replay) {
            assert_ok(b->training->lap(training_of(cuda), c, TR_LAP_IDLE));
            assert_ok(b->training->lap(training_of(cuda), c, TR_LAP_COMPUTE));
        }
        assert_ok(b->sections->end(sections_of(cuda), TR_OK));
        assert_ok(b->stream->finish(cuda)); /* or the stand-in does all of it after the nap */
        nanosleep(&nap, NULL);
        assert_ok(b->training->lap(training_of(cuda), c, TR_LAP_COMM));
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
    close_with(cuda);
}

static void await(tr_cuda *cuda, int slot, tr_control *out)
{
    bool done = false;
    for (int tries = 0; !done && tries < 100000; tries++) {
        const struct timespec nap = {.tv_nsec = 100000};
        assert_ok(b->training->report_poll(training_of(cuda), slot, out, &done));
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
    assert_told(b->training->report_poll(training_of(cuda), 0, &is, &done), TR_INTERNAL,
                "no report");
    assert_false(done);
    for (int step = 0; step < 6; step++) {
        const tr_control_input in = {.ordinal = (uint64_t)step, .lr = step, .first = 1};
        assert_ok(b->training->set_input(training_of(cuda), c, &in));
        assert_ok(b->training->report_begin(training_of(cuda), c, step % 2));
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
    assert_told(b->training->report_begin(training_of(cuda), c, 2), TR_INTERNAL, "report slot 2");
    b->memory->free(cuda, c);
    close_with(cuda);
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
    void *marks;
    assert_ok(b->training->report_begin(training_of(cuda), c, 0));
    assert_ok(b->marks->open(cuda, 2, &marks));
    for (int k = 0; k < 3; k++) {
        assert_ok(b->sections->begin(sections_of(cuda), 1, &replay));
        assert_told(b->training->set_input(training_of(cuda), c, &in), TR_INTERNAL,
                    "set_input inside a section");
        assert_told(b->training->report_begin(training_of(cuda), c, 0), TR_INTERNAL,
                    "report_begin inside a section");
        assert_told(b->training->report_poll(training_of(cuda), 0, &is, &done), TR_INTERNAL,
                    "inside a section");
        assert_told(b->marks->set(marks, 0), TR_INTERNAL, "mark inside a section");
        if (!replay) assert_ok(b->memory->zero(cuda, c, 8));
        assert_ok(b->sections->end(sections_of(cuda), TR_OK));
    }
    b->marks->close(marks);
    b->memory->free(cuda, c);
    close_with(cuda);
}

/* Two runs on one device, step by step in turn: each has its own inputs and reports. */
static void test_two_runs(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    tr_control *c[2] = {open_control(cuda, &full), open_control(cuda, &full)}, is;
    void *run[2];
    for (int r = 0; r < 2; r++) assert_ok(b->training->open(cuda, 1, &run[r]));
    for (int step = 0; step < 100; step++) {
        for (int r = 0; r < 2; r++) {
            const tr_control_input in = {.ordinal = (uint64_t)(1000 * r + step), .first = 1};
            assert_ok(b->training->set_input(run[r], c[r], &in));
            assert_ok(b->training->report_begin(run[r], c[r], step % 2));
        }
        assert_ok(b->stream->finish(cuda));
        for (int r = 0; r < 2; r++) {
            bool done;
            assert_ok(b->training->report_poll(run[r], step % 2, &is, &done));
            assert_true(done);
            assert_int_equal(is.in.ordinal, 1000 * r + step);
        }
    }
    for (int r = 0; r < 2; r++) b->training->close(run[r]);
    for (int r = 0; r < 2; r++) b->memory->free(cuda, c[r]);
    b->close(cuda);
    assert_int_equal(held(), 0);
}

static void test_marks(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(true);
    const size_t n = 1 << 20;
    char *p = b->memory->alloc(cuda, TR_MEM_OTHER, n);
    double seconds[3];
    void *marks, *more;
    assert_ok(b->marks->open(cuda, 4, &marks));
    assert_ok(b->marks->open(cuda, 2, &more));
    const uint64_t calls = tr_mem_calls();
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            assert_ok(b->marks->set(marks, i));
            assert_ok(b->marks->set(more, i % 2)); /* another's are no business of these */
            if (i < 3) assert_ok(b->memory->zero(cuda, p, n));
        }
        assert_ok(b->marks->read(marks, seconds, 3));
        for (int i = 0; i < 3; i++) assert_true(seconds[i] >= 0 && seconds[i] < 60);
    }
    assert_int_equal(tr_mem_calls(), calls);
    assert_told(b->marks->set(marks, 4), TR_INTERNAL, "no mark 4");
    assert_told(b->marks->read(marks, seconds, 4), TR_INTERNAL, "no 5 marks");
    b->marks->close(marks);
    b->marks->close(more);
    b->memory->free(cuda, p);
    close_with(cuda);
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
        cmocka_unit_test(test_two_runs),
        cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
