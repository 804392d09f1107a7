/* ranks: 1 2 3 4 */
/* standin */
/* A rank that comes late to a step over NCCL, or falls silent in it: the others name it, and only
 * it, with where they wait and how far it is, and end in time. */
#include "gpu_bench.h"

/* Where the last rank stays away in the second step; what the others say of where they wait, and of
 * it. */
typedef struct {
    const char *name;
    double timeout;
    int kind;
    bool replayed; /* the second step is issued as a whole */
    bool gathers;  /* the last rank stays away before its gathers, not before its buckets */
    const char *where, *who;
} absence;

/* Timeouts count from the start, and a real GPU's communicator takes seconds to set up. */
#ifdef TR_REAL_GPU
#define TIMES 5
#else
#define TIMES 1
#endif

static const absence absences[] = {
    {"bucket", 2, 0, false, false, "all-reduce of step 1, bucket 0", ": issued step 0, "},
    {"gather", 2, 0, false, true, "device in step 1, at gather 0, 0 of 3 buckets reduced",
     ": issued step 0, "},
    {"replayed", 2, 0, true, true, "device in step 3, at gather 0, 0 of 3 buckets reduced",
     ": issued step 2, "},
    {"scattered", 2, 6, false, false, "reduce-scatter of step 1, bucket 0", ": issued step 0, "},
    {"blind", 2, 1, false, false, "all-reduce of step 1, bucket 0", "(pid "},
};

/* One whole step; recorded from the second on. */
static tr_status step_of(bench *b, int step, bool gathers, bool recorded)
{
    tr_status st = TR_OK;
    bool replay = false;
    TR_TRY(tr_reducer_step(b->r, (uint64_t)step, 0));
    if (recorded) TR_TRY(gpu->sections->begin(b->sections, 9, &replay));
    if (!replay && gathers) st = run(b, 3);
    if (!replay && !gathers) {
        tr_reducer_ready(b->r, 2);
        st = tr_reducer_finish(b->r, b->n->tally, TALLY, &b->n->squares);
    }
    if (recorded) st = gpu->sections->end(b->sections, st);
    if (st == TR_OK) tr_reducer_issued(b->r);
out:
    return st;
}

static void missed(bench *b, const absence *a, int step)
{
    char name[64];
    double start = tr_now();
    tr_status st = step_of(b, step, a->gathers, a->replayed);
    if (st == TR_OK) st = tr_reducer_wait(b->r, (uint64_t)step, is_done, b);
    assert_int_equal(st, TR_PEER);
    assert_true(tr_now() - start < 20);
    assert_true(tr_comm_broken(b->c));
    const char *text = tr_last_error()->text, *who = strstr(text, "not arrived: ");
    snprintf(name, sizeof name, "not arrived: rank %d (pid ", b->t->size - 1);
    if (!who || (a->kind != 1 && strncmp(who, name, strlen(name)) != 0) || !strstr(who, a->who) ||
        (a->kind != 1 && strstr(who + strlen(name), "rank ")) || !strstr(text, a->where))
        fail_msg("%s: %s", a->name, text);
    assert_non_null(strstr(text, b->t->host));
    assert_int_equal(tr_reducer_finish(b->r, NULL, 0, &b->n->squares), TR_PEER);
    assert_int_equal(tr_reducer_step(b->r, 9, 0), TR_PEER);
    /* the device has given up, too */
    check(b, gpu->stream->finish(b->ctx));
}

static void need_peers(void)
{
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1) return;
    print_message("skipped: one rank waits for nobody\n");
    skip();
}

/* The last rank does not come to a step: the others name it, and only it, in time. */
static void test_late(void **state)
{
    (void)state;
    need_peers();
    for (size_t k = 0; k < TR_COUNT(absences); k++) {
        const absence *a = &absences[k];
        bench b = open_bench(&kinds[a->kind], &layouts[2], a->timeout * TIMES);
        const int steps = a->replayed ? 3 : 1;
        for (int step = 0; step < steps; step++) {
            check(&b, feed(&b, step));
            check(&b, step_of(&b, step, true, a->replayed));
            check_step(&b, step);
        }
        check(&b, feed(&b, steps));
        MPI_Barrier(MPI_COMM_WORLD);
        if (b.t->rank != b.t->size - 1) missed(&b, a, steps);
        MPI_Barrier(MPI_COMM_WORLD); /* here the last one waited, beside the reducer */
        if (b.t->rank == b.t->size - 1) {
            if (a->kind != 1) assert_int_equal(tr_comm_barrier(b.c), TR_PEER); /* it is told */
            if (a->kind == 1) tr_comm_break(b.c, TR_FAIL(TR_PEER, "alone"));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        close_bench(&b);
    }
}

/* All have come as far, but one of them is heard of no more: it is named. */
static void test_silent(void **state)
{
    (void)state;
    need_peers();
    bench b = open_bench(&kinds[0], &layouts[2], 2 * TIMES);
    tr_wait w;
    bool hushed = b.t->rank == b.t->size - 1;
    tr_wait_init(&w, b.c, "test");
    check(&b, tr_reducer_step(b.r, 5, 0));
    check(&b, gpu->stream->finish(b.ctx));
    check(&b, b.r->ops->watch(b.r, &w));
    MPI_Barrier(MPI_COMM_WORLD);
    if (!hushed) {
        tr_status st = TR_OK;
        while (st == TR_OK) {
            st = b.r->ops->watch(b.r, &w);
            if (st == TR_OK) st = tr_wait_turn(&w);
        }
        char name[128];
        snprintf(name, sizeof name,
                 "device in step 5, 0 of 3 buckets reduced: not arrived: rank %d (", b.t->size - 1);
        if (!strstr(tr_last_error()->text, name)) fail_msg("%s", tr_last_error()->text);
        assert_non_null(strstr(tr_last_error()->text, "silent for"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (hushed) tr_comm_break(b.c, TR_FAIL(TR_PEER, "quiet"));
    close_bench(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_late),
    cmocka_unit_test(test_silent),
};

RUN_MPI_TESTS(tests)
