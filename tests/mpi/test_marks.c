/* ranks: 4 */
/* What ranks say of themselves where no memory is shared: who is busy, who waits, and so who is
 * late. */
#include "modes.h"

#include <string.h>
#include <unistd.h>

#include "collectives/waiting/waiting.h"

static const test_mode *const kinds[] = {&modes[1], &modes[3], &modes[6]};

static int last(const tr_comm *c)
{
    return tr_comm_topology(c)->size - 1;
}

/* What a rank says as it goes off reaches those that it never spoke to before, though it calls MPI
 * no more until it is back. The first case, as connections stay. */
static void test_first_mark(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[1], 1);
    const bool off = tr_comm_topology(c)->rank == 0;
    if (off) tr_comm_busy(c, TR_BUSY_READS);
    if (off) usleep(2500000);
    if (tr_comm_barrier(c) != TR_OK) fail_msg("%s", tr_last_error()->text);
    tr_comm_busy(c, TR_BUSY_NOT);
    tr_comm_close(c);
}

/* The last rank does not come: the others, who also wait for each other, name it and it alone, with
 * its host where that is another one, after the timeout and not much more. */
static void late_rank(const test_mode *m)
{
    tr_comm *c = open_mode(m, 0.6);
    const tr_topology *t = tr_comm_topology(c);
    if (t->rank != last(c)) {
        char name[128], own[32];
        const double start = tr_now();
        assert_int_equal(tr_comm_barrier(c), TR_PEER);
        assert_true(tr_now() - start < 5); /* ten, were it not known that it is not busy */
        const char *text = tr_last_error()->text, *who = strstr(text, "not arrived: ");
        const bool ours = tr_peers_local(c->job, last(c)) >= 0;
        snprintf(own, sizeof own, "rank %d ", t->rank);
        snprintf(name, sizeof name, "not arrived: rank %d (", last(c));
        if (strncmp(text, own, strlen(own)) == 0) /* not heard from another */
            snprintf(name, sizeof name, "not arrived: rank %d (%s%spid ", last(c),
                     ours ? "" : t->host, ours ? "" : ", ");
        if (!who || strncmp(who, name, strlen(name)) != 0 || strstr(who + strlen(name), "rank "))
            fail_msg("%s: %s", m->name, text);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (t->rank == last(c)) tr_comm_break(c, TR_FAIL(TR_PEER, "late"));
    tr_comm_close(c);
}

static void test_late_rank(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) late_rank(kinds[k]);
}

/* A rank that others wait for, and that waits for another itself, is not blamed: the other is. */
static void test_late_beyond_group(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        tr_comm *c = open_mode(kinds[k], 0.6), *others = NULL;
        const tr_topology *t = tr_comm_topology(c);
        const bool absent = t->rank == last(c);
        assert_int_equal(tr_comm_split(c, absent ? -1 : 0, 0, &others), TR_OK);
        if (!absent) {
            char name[32];
            tr_status st = t->rank == 0 ? tr_comm_barrier(c) : tr_comm_barrier(others);
            assert_int_equal(st, TR_PEER);
            snprintf(name, sizeof name, ": rank %d (", last(c));
            if (!strstr(tr_last_error()->text, name)) fail_msg("%s", tr_last_error()->text);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (absent) tr_comm_break(c, TR_FAIL(TR_PEER, "absent"));
        tr_comm_close(others);
        tr_comm_close(c);
    }
}

/* A busy rank is waited for beyond the timeout, wherever it is; then its mark is taken back. Marks
 * that nobody waited to hear do not reach the next communicator. */
static void test_busy_far(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        tr_comm *c = open_mode(kinds[k], 0.4);
        const bool slow = tr_comm_topology(c)->rank == last(c);
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        if (slow) tr_comm_busy(c, TR_BUSY_READS);
        if (slow) usleep(1200000);
        tr_status st = tr_comm_barrier(c);
        if (st != TR_OK) fail_msg("%s: %s", kinds[k]->name, tr_last_error()->text);
        tr_comm_busy(c, TR_BUSY_NOT);
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        tr_marks_hear(c->job);
        for (int i = 0; i < 3 && slow; i++) tr_comm_busy(c, TR_BUSY_READS);
        tr_comm_close(c);

        c = open_mode(kinds[k], 5);
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        for (int r = 0; r < tr_comm_topology(c)->size; r++)
            assert_false(tr_marks_business(c->job, r).what || tr_marks_waits(c->job, r));
        tr_comm_close(c);
    }
}

/* Nobody sees whether a rank that is alone on its node runs: */
static const test_mode alone = {"4 nodes", true, 4, NULL, false, false};

/* One that said it is busy, and then is heard of no more, is waited for longer, but not for ever,
 * and named. */
static void test_busy_and_gone(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&alone, 0.6);
    const bool gone = tr_comm_topology(c)->rank == last(c);
    assert_int_equal(tr_comm_barrier(c), TR_OK);
    if (gone) tr_comm_busy(c, TR_BUSY_WRITES);
    if (!gone) {
        char name[32];
        const double start = tr_now();
        assert_int_equal(tr_comm_barrier(c), TR_PEER);
        assert_true(tr_now() - start > 5);
        snprintf(name, sizeof name, "rank %d (", last(c));
        const char *text = tr_last_error()->text, *late = strstr(text, "not arrived: "),
                   *who = late ? strstr(late, name) : NULL;
        if (!who || !strstr(who, ", busy writing files for ")) fail_msg("%s", text);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (gone) tr_comm_break(c, TR_FAIL(TR_PEER, "gone"));
    tr_comm_close(c);
}

/* One that is heard of is waited for as long as it takes: by its own word, as it looks for a stop,
 * or by that of a rank of its node, which waits as well and sees it run. */
static void busy_for_long(const test_mode *m, bool looks)
{
    tr_comm *c = open_mode(m, 0.4);
    const bool slow = tr_comm_topology(c)->rank == last(c);
    assert_int_equal(tr_comm_barrier(c), TR_OK);
    if (slow) tr_comm_busy(c, TR_BUSY_COMPUTES);
    for (const double start = tr_now(); slow && tr_now() - start < 6; usleep(10000))
        if (looks) assert_false(tr_comm_stop_asked(c));
    if (tr_comm_barrier(c) != TR_OK) fail_msg("%s: %s", m->name, tr_last_error()->text);
    tr_comm_busy(c, TR_BUSY_NOT);
    tr_comm_close(c);
}

static void test_busy_for_long(void **state)
{
    (void)state;
    busy_for_long(&alone, true);
    busy_for_long(&modes[3], false);
}

static volatile bool asked;

static bool was_asked(void)
{
    return asked;
}

/* A rank that waits is asked to stop: the one that is busy finds it as it looks, wherever it is. */
static void test_stop_while_busy(void **state)
{
    (void)state;
    static const test_mode *const all[] = {&modes[0], &modes[1], &modes[3], &alone};
    for (size_t k = 0; k < TR_COUNT(all); k++) {
        tr_comm *c = open_mode(all[k], 20);
        const bool busy = tr_comm_topology(c)->rank == 0;
        c->job->stop_asked = was_asked;
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        if (busy) tr_comm_busy(c, TR_BUSY_MEASURES);
        asked = tr_comm_topology(c)->rank == last(c);
        const double start = tr_now();
        while (busy && !tr_comm_stop_asked(c) && tr_now() - start < 15) usleep(10000);
        if (tr_now() - start > 15) fail_msg("%s: not heard", all[k]->name);
        tr_comm_busy(c, TR_BUSY_NOT);
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        asked = false;
        tr_comm_close(c);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_first_mark),        cmocka_unit_test(test_late_rank),
    cmocka_unit_test(test_late_beyond_group), cmocka_unit_test(test_busy_far),
    cmocka_unit_test(test_busy_and_gone),     cmocka_unit_test(test_busy_for_long),
    cmocka_unit_test(test_stop_while_busy),
};

RUN_MPI_TESTS(tests)
