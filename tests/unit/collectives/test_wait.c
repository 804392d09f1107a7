/* How a wait goes on: by how long it is, who shares the cores, and what it waits for. Times are
 * made up. */
#include "collectives/waiting/waiting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* after those it needs */
#include <cmocka.h>

static tr_wait_way way(tr_wait *w, double waited, double now)
{
    w->waited = waited;
    return tr_wait_way_at(w, now);
}

static void alone_and_crowded(void **state)
{
    (void)state;
    tr_job job = {.oversubscribed = false};
    tr_comm comm = {.job = &job};
    tr_wait w = {.c = &comm};
    assert_int_equal(way(&w, 1e-3, 5), TR_WAIT_SPIN);
    assert_int_equal(way(&w, 3e-3, 5), TR_WAIT_YIELD);
    assert_int_equal(way(&w, 60e-3, 5), TR_WAIT_SLEEP);
    job.oversubscribed = true;
    assert_int_equal(way(&w, 20e-6, 5), TR_WAIT_SPIN);
    assert_int_equal(way(&w, 1e-3, 5), TR_WAIT_YIELD);
    tr_wait_lost(&w, 5, 4e-3); /* to another rank */
    assert_int_equal(way(&w, 1e-3, 5), TR_WAIT_YIELD);
}

/* A spin that lost its core to somebody else makes the next waits sleep early, for a while. */
static void beside_a_neighbour(void **state)
{
    (void)state;
    tr_job job = {.oversubscribed = false};
    tr_comm comm = {.job = &job};
    tr_wait w = {.c = &comm}, mpi = {.c = &comm, .mpi = true},
            device = {.c = &comm, .device = true};
    tr_wait_lost(&w, 5, 100e-6); /* an interrupt */
    tr_wait_lost(&mpi, 5, 1);
    tr_wait_lost(&device, 5, 1);
    assert_int_equal(way(&w, 1e-3, 5), TR_WAIT_SPIN);
    tr_wait_lost(&w, 5, 4e-3);
    assert_int_equal(way(&w, 20e-6, 5.001), TR_WAIT_SPIN);
    assert_int_equal(way(&w, 1e-3, 5.001), TR_WAIT_SLEEP);
    assert_int_equal(way(&mpi, 1e-3, 5.001), TR_WAIT_YIELD);
    tr_wait_lost(&w, 5.1, 0.5e-3); /* less, later: what was known stays known */
    assert_int_equal(way(&w, 1e-3, 5.39), TR_WAIT_SLEEP);
    assert_int_equal(way(&w, 1e-3, 5.41), TR_WAIT_SPIN);
}

/* In a job of one rank without MPI it is the device that is waited for: the time limit holds, and
 * names nobody. */
static void one_rank_alone(void **state)
{
    (void)state;
    const tr_comm_options o = {.timeout = 0.2};
    tr_comm *c = NULL;
    tr_wait w;
    tr_status st = TR_OK;
    assert_int_equal(tr_comm_open(&o, &c), TR_OK);
    assert_int_equal(c->topology.size, 1);
    tr_wait_init(&w, c, "device");
    while (st == TR_OK) st = tr_wait_turn(&w);
    assert_int_equal(st, TR_PEER);
    assert_non_null(strstr(tr_last_error()->text, "s for the device"));
    assert_null(strstr(tr_last_error()->text, "other ranks"));
    tr_comm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_crowded),
        cmocka_unit_test(beside_a_neighbour),
        cmocka_unit_test(one_rank_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
