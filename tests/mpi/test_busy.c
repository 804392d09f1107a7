/* ranks: 2 3 4 */
/* Who is waited for beyond the timeout: ranks that are busy, as long as they run; and a job that
 * was suspended. */
#include "late.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* A busy peer is waited for longer than the timeout, in every kind of wait; one that is not is
 * not. */
static void test_busy(void **state)
{
    (void)state;
    static const tr_range bucket = {0, 64};
    const test_mode *const kinds[] = {&modes[0], &modes[3]};
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        tr_comm *c = open_mode(kinds[k], LATE / 2);
        tr_params *p = NULL;
        tr_reducer *r = open_reducer(c, &bucket, 1, &p);
        double squares;
        bool slow = tr_comm_topology(c)->rank == last(c);
        for (int wait = 0; wait < 2; wait++) {
            assert_int_equal(tr_comm_barrier(c), TR_OK);
            if (slow) tr_comm_busy(c, TR_BUSY_READS);
            if (slow) usleep(1200000);
            if (wait == 0) assert_int_equal(tr_comm_barrier(c), TR_OK);
            tr_reducer_ready(r, 0);
            assert_int_equal(tr_reducer_finish(r, NULL, 0, &squares), TR_OK);
            assert_int_equal(tr_reducer_publish(r), TR_OK);
            tr_comm_busy(c, TR_BUSY_NOT);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        tr_reducer_close(r);
        tr_comm_params_close(p);
        if (k == 0 && !slow) assert_int_equal(tr_comm_barrier(c), TR_PEER); /* no longer busy */
        MPI_Barrier(MPI_COMM_WORLD);
        if (k || !slow) tr_comm_close(c);
    }
}

/* Stops every rank of the job for a while, from a process of its own. */
static void suspend_all(const int *pids, int n, int seconds)
{
    if (fork() != 0) return;
    usleep(300000);
    for (int i = 0; i < n; i++) kill(pids[i], SIGSTOP);
    sleep((unsigned)seconds);
    for (int i = 0; i < n; i++) kill(pids[i], SIGCONT);
    _exit(0);
}

/* A rank that is busy, or that is waited for with patience, is so while it runs. Once it is stopped
 * it is late: the others name it after the timeout, and then let it go on. */
static void stopped_while(const test_mode *m, bool patient)
{
    tr_comm *c = open_mode(m, LATE);
    const tr_topology *t = tr_comm_topology(c);
    const bool stops = t->rank == last(c);
    int pid = getpid();
    MPI_Comm others; /* or the one itself */
    MPI_Comm_split(MPI_COMM_WORLD, stops, 0, &others);
    MPI_Bcast(&pid, 1, MPI_INT, last(c), MPI_COMM_WORLD);
    tr_comm_patient(c, patient);
    if (stops) {
        if (!patient) tr_comm_busy(c, TR_BUSY_READS);
        usleep(1500000); /* is excused */
        assert_false(tr_comm_broken(c));
        raise(SIGSTOP);
    } else {
        char name[96];
        const double start = tr_now();
        assert_int_equal(tr_comm_barrier(c), TR_PEER);
        assert_in_range((uint64_t)(10 * (tr_now() - start)), 15, 85);
        snprintf(name, sizeof name, "not arrived: rank %d (pid %d%s", last(c), pid,
                 patient ? ", stopped)" : ", busy reading files for ");
        const char *who = strstr(tr_last_error()->text, name);
        if (!who || !strstr(who, ", stopped)")) fail_msg("%s: %s", m->name, tr_last_error()->text);
        MPI_Barrier(others);
        kill(pid, SIGCONT);
    }
    MPI_Comm_free(&others);
    MPI_Barrier(MPI_COMM_WORLD);
    if (stops) tr_comm_break(c, TR_FAIL(TR_PEER, "stopped"));
    tr_comm_close(c);
}

static void test_stopped(void **state)
{
    (void)state;
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int patient = 0; patient < 2; patient++) {
        stopped_while(&modes[0], patient);
        stopped_while(&modes[1], patient);
        if (size == 4)
            stopped_while(&modes[3], patient); /* seen by a rank of its node, told to all */
    }
}

/* A suspended job has not waited. */
static void test_suspended(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 3);
    const tr_topology *t = tr_comm_topology(c);
    int mine = getpid(), pids[8];
    assert_int_equal(tr_comm_all_gather(c, &mine, pids, sizeof mine), TR_OK);
    if (t->rank == last(c)) {
        bool paused = false;
        suspend_all(pids, t->size, 4);
        for (int after = 0; after < 500;) { /* the others wait, before the pause and after it */
            const double before = tr_now();
            usleep(1000);
            if (tr_now() - before > 2) paused = true;
            after += paused;
        }
    }
    tr_status st = tr_comm_barrier(c);
    if (st != TR_OK) print_message("%s\n", tr_last_error()->text);
    assert_int_equal(st, TR_OK);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_busy),
    cmocka_unit_test(test_stopped),
    cmocka_unit_test(test_suspended),
};

RUN_MPI_TESTS(tests)
