/* ranks: 2 3 4 */
/* What goes wrong: peers that come late or give up, calls that do not match. With the
 * argument `die MODE` it is the victim of dead_peer.sh: the last rank kills itself in the middle of
 * a step, the others must say so and end the job. */
#include "late.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static int count_ranks(bool yes)
{
    int mine = yes, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* The last rank comes after the others gave up: they name it, and everything after fails at once,
 * or would wait for ever. */
static void late_barrier(const test_mode *m)
{
    tr_comm *c = open_mode(m, LATE);
    const tr_topology *t = tr_comm_topology(c);
    bool late = t->rank == last(c), said = false;
    if (!late) {
        char name[64];
        assert_int_equal(tr_comm_barrier(c), TR_PEER);
        assert_true(tr_comm_broken(c));
        snprintf(name, sizeof name, "not arrived: rank %d (pid ", last(c));
        assert_non_null(strstr(tr_last_error()->text, name));
        assert_null(strstr(strstr(tr_last_error()->text, name) + strlen(name), "rank "));
        assert_non_null(strstr(tr_last_error()->text, t->host));
        assert_non_null(strstr(tr_last_error()->text, "barrier"));
        double v = 0;
        c->job->timeout = FOR_EVER; /* none of these waits again */
        assert_int_equal(tr_comm_all_reduce(c, &v, 1, TR_F64), TR_PEER);
        assert_int_equal(tr_agree(c, TR_OK, &said), TR_PEER);
    }
    int speakers = count_ranks(said);
    /* without shared memory: as many as find out before they hear of it */
    assert_in_range(speakers, 1, m->shared ? 1 : last(c));
    if (!late) tr_comm_close(c); /* must not wait for the others */
}

static void test_late_barrier(void **state)
{
    (void)state;
    late_barrier(&modes[0]);
    late_barrier(&modes[1]);
}

/* A rank gives up over something of its own, and ends: the others hear what it was, also of another
 * node, and one rank of all says it. */
static void gives_up(const test_mode *m)
{
    tr_comm *c = open_mode(m, FOR_EVER);
    bool first = tr_comm_topology(c)->rank == last(c), said = false;
    tr_status st;
    MPI_Barrier(MPI_COMM_WORLD);
    if (first)
        st = tr_comm_break(c, TR_FAIL(TR_KERNEL, "the device is on fire"));
    else
        st = tr_comm_barrier(c);
    assert_int_equal(st, first ? TR_KERNEL : TR_PEER);
    assert_int_equal(tr_agree(c, st, &said), st);
    assert_non_null(strstr(tr_last_error()->text, "the device is on fire"));
    if (!first) {
        char name[32];
        snprintf(name, sizeof name, "rank %d ", last(c));
        assert_memory_equal(tr_last_error()->text, name, strlen(name));
    }
    assert_int_equal(count_ranks(said), 1);
    tr_comm_close(c);
}

/* All know already what failed, and then give up: still one says it. */
static void gives_up_agreed(const test_mode *m)
{
    tr_comm *c = open_mode(m, FOR_EVER);
    const bool first = tr_comm_topology(c)->rank == last(c);
    bool said = false;
    tr_status st = tr_agree(c, TR_OK, NULL);
    assert_int_equal(st, TR_OK);
    st = first ? TR_FAIL(TR_KERNEL, "the device is on fire") : TR_OK;
    st = tr_agree(c, st, NULL);
    assert_int_equal(st, first ? TR_KERNEL : TR_PEER);
    tr_comm_break(c, st);
    assert_int_equal(tr_agree(c, st, &said), st);
    assert_int_equal(count_ranks(said), 1);
    tr_comm_close(c);
}

static void test_gives_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(modes); i++)
        if (i != 2 && i != 5 && !modes[i].shard)
            gives_up(&modes[i]), gives_up_agreed(&modes[i]); /* not in pieces */
}

/* A rank that comes after the others gave up reports what they gave up over: its own lateness. */
static void test_blame(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], LATE);
    char start[64], end[64];
    bool late = tr_comm_topology(c)->rank == last(c), said = false;
    if (!late) assert_int_equal(tr_comm_barrier(c), TR_PEER);
    MPI_Barrier(MPI_COMM_WORLD);
    if (late) {
        assert_int_equal(tr_comm_barrier(c), TR_OK); /* for this one they had come */
        assert_int_equal(tr_comm_barrier(c), TR_PEER);
    }
    snprintf(start, sizeof start, "rank %d (", last(c));
    snprintf(end, sizeof end, "not arrived: rank %d (pid ", last(c));
    assert_memory_not_equal(tr_last_error()->text, start, strlen(start));
    assert_non_null(strstr(tr_last_error()->text, end));
    assert_int_equal(tr_agree(c, TR_OK, &said), TR_PEER);
    assert_non_null(strstr(tr_last_error()->text, end));
    assert_int_equal(count_ranks(said), 1);
    tr_agree(c, TR_OK, &said); /* the one that was chosen stays it */
    assert_int_equal(count_ranks(said), 1);

    /* whoever ends the job waits until it has spoken */
    if (said) usleep(300000);
    double spoke = said ? tr_now() : 0;
    tr_notes_spoken(c->job);
    double went = tr_now();
    MPI_Allreduce(MPI_IN_PLACE, &spoke, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    assert_true(went >= spoke);
    tr_comm_close(c);
}

static tr_status failing_poll(tr_reducer *r, bool *moved)
{
    (void)r, (void)moved;
    return TR_FAIL(TR_MPI, "the wire is cut");
}

/* What made a poll fail is what finish, publish and agreement say after it. */
static void test_failed_poll(void **state)
{
    (void)state;
    static const tr_range bucket = {0, 64};
    tr_comm *c = open_mode(&modes[0], 5);
    tr_params *p = NULL;
    tr_reducer *r = open_reducer(c, &bucket, 1, &p);
    double squares;
    tr_reducer_ops ops = *r->ops;
    const tr_reducer_ops *whole = r->ops;
    ops.poll = failing_poll;
    r->ops = &ops;
    tr_reducer_ready(r, 0);
    assert_int_equal(tr_reducer_poll(r), TR_MPI);
    r->ops = whole;
    for (int call = 0; call < 4; call++) {
        (void)TR_FAIL(TR_DATA, "something else");
        tr_status st = call == 0   ? tr_reducer_poll(r)
                       : call == 1 ? tr_reducer_finish(r, NULL, 0, &squares)
                       : call == 2 ? tr_reducer_publish(r)
                                   : tr_agree(c, TR_OK, NULL);
        assert_int_equal(st, TR_MPI);
        assert_string_equal(tr_last_error()->text, "the wire is cut");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    tr_reducer_close(r);
    tr_comm_params_close(p);
    tr_comm_close(c);
}

static void test_late_bucket(void **state)
{
    (void)state;
    static const tr_range buckets[] = {{0, 64}, {64, 128}, {128, 160}};
    tr_comm *c = open_mode(&modes[0], LATE);
    tr_params *p = NULL;
    tr_reducer *r = open_reducer(c, buckets, 3, &p);
    double squares;
    tr_reducer_ready(r, 2);
    assert_int_equal(tr_reducer_finish(r, NULL, 0, &squares), TR_OK);
    assert_int_equal(tr_reducer_publish(r), TR_OK);
    bool late = tr_comm_topology(c)->rank == last(c);
    tr_reducer_ready(r, late ? 0 : 2);
    if (!late) {
        char name[64];
        assert_int_equal(tr_reducer_finish(r, NULL, 0, &squares), TR_PEER);
        snprintf(name, sizeof name, "not arrived: rank %d (pid ", last(c));
        assert_non_null(strstr(tr_last_error()->text, name));
        assert_non_null(strstr(tr_last_error()->text, "of step 1, bucket 1"));
        assert_int_equal(tr_reducer_publish(r), TR_PEER);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!late) {
        tr_reducer_close(r);
        tr_comm_params_close(p);
        tr_comm_close(c);
    }
}

/* A rank that finishes a step it did not complete is a bug that is named, not a hang. */
static void test_unready(void **state)
{
    (void)state;
    static const tr_range buckets[] = {{0, 64}, {64, 128}};
    tr_comm *c = open_mode(&modes[0], 5);
    tr_params *p = NULL;
    tr_reducer *r = open_reducer(c, buckets, 2, &p);
    double squares;
    tr_reducer_ready(r, 0);
    assert_int_equal(tr_reducer_finish(r, NULL, 0, &squares), TR_INTERNAL);
    MPI_Barrier(MPI_COMM_WORLD);
    tr_reducer_close(r);
    tr_comm_params_close(p);
    tr_comm_close(c);
}

/* A rank gives up while the others wait in groups without it, some for each other, some of them
 * only later in one with it: all hear of it, one says it. */
static void group_gives_up(const test_mode *m)
{
    tr_comm *c = open_mode(m, FOR_EVER), *others = NULL, *pair = NULL;
    const tr_topology *t = tr_comm_topology(c);
    const bool fails = t->rank == last(c), partner = t->rank == 0;
    bool said = false;
    assert_int_equal(tr_comm_split(c, fails ? -1 : 0, 0, &others), TR_OK);
    assert_int_equal(tr_comm_split(c, fails || partner ? 0 : -1, 0, &pair), TR_OK);
    tr_status st;
    if (fails)
        st = tr_comm_break(pair, TR_FAIL(TR_KERNEL, "the device is on fire"));
    else
        st = tr_comm_barrier(partner ? pair : others);  /* these wait for the one that waits */
    if (!fails && st == TR_OK) st = tr_comm_barrier(c); /* nobody there to wait for */
    assert_int_equal(st, fails ? TR_KERNEL : TR_PEER);
    assert_true(tr_comm_broken(c));
    assert_int_equal(tr_agree(c, st, &said), st);
    assert_non_null(strstr(tr_last_error()->text, "the device is on fire"));
    assert_int_equal(count_ranks(said), 1);
    tr_comm_close(c);
    if (others) assert_int_equal(tr_comm_barrier(others), st);
    tr_comm_close(others);
    tr_comm_close(pair);
}

static void test_group_gives_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(modes); i++)
        if (i != 2 && i != 5) group_gives_up(&modes[i]);
}

/* Ranks of a group that call different things; a message of another length than is expected. */
static void test_group_mismatch(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 5), *group = NULL;
    const tr_topology *t = tr_comm_topology(c);
    int64_t v[4] = {0}, sum[4];
    assert_int_equal(tr_comm_split(c, 0, -t->rank, &group), TR_OK);
    if (t->rank == 0)
        assert_int_equal(tr_comm_all_reduce(group, v, 1, TR_I64), TR_INTERNAL);
    else
        assert_int_equal(tr_comm_all_reduce(group, v, 1, TR_F64), TR_INTERNAL);
    assert_non_null(strstr(tr_last_error()->text, "all-reduce of 1"));
    assert_int_equal(tr_comm_barrier(c), TR_INTERNAL); /* the job is broken, the same is said */
    MPI_Barrier(MPI_COMM_WORLD);
    tr_comm_close(group);
    tr_comm_close(c);

    c = open_mode(&modes[0], 5);
    t = tr_comm_topology(c);
    assert_int_equal(tr_comm_send(c, v, 8, t->rank == 0 ? t->size : t->rank), TR_INTERNAL);
    MPI_Barrier(MPI_COMM_WORLD);
    tr_comm_close(c);

    c = open_mode(&modes[0], 5);
    t = tr_comm_topology(c);
    if (t->rank == 0) assert_int_equal(tr_comm_send(c, v, 8, 1), TR_OK);
    if (t->rank == 1) {
        assert_int_equal(tr_comm_receive(c, sum, 16, 0), TR_INTERNAL);
        assert_non_null(strstr(tr_last_error()->text, "16 bytes from rank 0, which sent 8"));
    } else
        assert_int_equal(tr_comm_barrier(c), TR_PEER);
    MPI_Barrier(MPI_COMM_WORLD);
    tr_comm_close(c);
}

/* A partner that does not come is named. */
static void test_late_message(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], LATE);
    const tr_topology *t = tr_comm_topology(c);
    int64_t v = 0;
    if (t->rank == 0) {
        char name[96];
        assert_int_equal(tr_comm_receive(c, &v, sizeof v, last(c)), TR_PEER);
        snprintf(name, sizeof name, "receive from rank %d: not arrived: rank %d (pid ", last(c),
                 last(c));
        assert_non_null(strstr(tr_last_error()->text, name));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (t->rank > 0) assert_int_equal(tr_comm_barrier(c), TR_PEER);
    MPI_Barrier(MPI_COMM_WORLD);
    tr_comm_close(c);
}

static void test_mismatch(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 5);
    double v[2] = {0};
    size_t n = tr_comm_topology(c)->rank == 0 ? 1 : 2;
    assert_int_equal(tr_comm_all_reduce(c, v, n, TR_F64), TR_INTERNAL);
    assert_non_null(strstr(tr_last_error()->text, "all-reduce of 1"));
    MPI_Barrier(MPI_COMM_WORLD);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_late_barrier),   cmocka_unit_test(test_late_bucket),
    cmocka_unit_test(test_blame),          cmocka_unit_test(test_failed_poll),
    cmocka_unit_test(test_unready),        cmocka_unit_test(test_mismatch),
    cmocka_unit_test(test_gives_up),       cmocka_unit_test(test_group_gives_up),
    cmocka_unit_test(test_group_mismatch), cmocka_unit_test(test_late_message),
};

/* The last rank dies while the others wait: rank 0 in a group with it, the rest in one with rank
 * 0. */
static tr_status die_in_group(tr_comm *c)
{
    tr_status st = TR_OK;
    const tr_topology *t = tr_comm_topology(c);
    const bool dies = t->rank == last(c);
    tr_comm *pair = NULL, *others = NULL;
    TR_TRY(tr_comm_split(c, dies || t->rank == 0 ? 0 : -1, 0, &pair));
    TR_TRY(tr_comm_split(c, dies ? -1 : 0, 0, &others));
    for (int step = 0;; step++) {
        int64_t v = step;
        if (step == 3 && dies) raise(SIGKILL);
        if (pair) TR_TRY(tr_comm_all_reduce(pair, &v, 1, TR_I64));
        if (others) TR_TRY(tr_comm_barrier(others));
    }
out:
    return st;
}

static int die(const char *mode)
{
    static const tr_range buckets[] = {{0, 80000}, {80000, 160000}};
    bool busy = !strcmp(mode, "busy"), group = !strncmp(mode, "group", 5), said = true;
    bool shared = busy || !strcmp(mode, "group") || !strcmp(mode, "shared");
    const tr_params_options o = {.count = 160000, .buckets = buckets, .nbuckets = 2};
    const tr_reducer_options ro = {0};
    tr_params *p = NULL;
    tr_comm_options co = {.mpi = true, .shared_allowed = shared, .timeout = 60};
    tr_comm *c = NULL;
    tr_reducer *r = NULL;
    tr_status st = TR_OK;
    double squares;
    TR_TRY(tr_comm_open(&co, &c));
    if (group) TR_TRY(die_in_group(c));
    TR_TRY(tr_comm_params_open(c, &o, &ro, &p));
    TR_TRY(tr_reducer_open(c, p, &ro, &r));
    for (int step = 0;; step++) {
        tr_reducer_ready(r, 0);
        TR_TRY(tr_reducer_poll(r));
        if (step == 3 && tr_comm_topology(c)->rank == last(c)) {
            if (busy) tr_comm_busy(c, TR_BUSY_WRITES); /* which must not hide its death */
            raise(SIGKILL);
        }
        tr_reducer_ready(r, 1);
        TR_TRY(tr_reducer_finish(r, NULL, 0, &squares));
        TR_TRY(tr_reducer_publish(r));
    }
out:
    st = c ? tr_agree(c, st, &said) : st;
    if (said && st != TR_OK) fprintf(stderr, "failed: %s\n", tr_last_error()->text);
    tr_comm_abort(c, tr_status_exit_code(st));
    return 1;
}

int main(int argc, char **argv)
{
    int provided, rank, size, failed;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (argc == 3 && !strcmp(argv[1], "die")) return die(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_log_init(rank, size, TR_LOG_ERROR);
    failed = RUN_RANK_TESTS(tests);
    MPI_Finalize(); /* with broken communicators left behind: it is PMIx that ranks meet in */
    return failed;
}
