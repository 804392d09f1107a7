/* ranks: 1 2 3 4 */
/* Traces of ranks whose clocks differ: how far each is ahead is found, and what is written stands
 * on rank 0's. */
#include "modes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/profile/trace.h"
#include "runtime/base/file.h"

#define APART 1e6 /* seconds: no message takes so long */

static double shift;

static double shifted(void)
{
    return tr_now() + shift;
}

/* Rank 1 ahead, rank 2 behind, and so on: rank 0's clock is off, too. */
static void set_clock(int rank)
{
    shift = rank % 2 ? APART * rank : -APART * (rank + 1);
}

/* What a clock shows in the middle of a message there and back is off by half of what that took at
 * most, however long the machine lets it wait. */
static void test_clocks(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const int rank = tr_comm_topology(c)->rank;
    double ahead, trip;
    set_clock(rank);
    const double want = shift + APART; /* to rank 0's, which is behind by that much */
    assert_int_equal(tr_trace_clock(c, shifted, &ahead, &trip), TR_OK);
    if (rank == 0)
        assert_true(ahead == 0 && trip == 0);
    else
        assert_true(trip > 0 && trip < APART / 2 && fabs(ahead - want) <= trip / 2 + 1e-6);
    tr_comm_close(c);
}

/* Times of all events in the file, in microseconds behind the first. */
static double latest(const char *text, int *count)
{
    double most = 0;
    *count = 0;
    for (const char *at = text; (at = strstr(at, "\"ts\": ")); ++*count) {
        at += strlen("\"ts\": ");
        most = fmax(most, strtod(at, NULL));
    }
    return most;
}

static void test_written(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    tr_trace trace;
    char path[] = "/tmp/trace-XXXXXX", *text;
    size_t n;
    int count;
    set_clock(t->rank);
    if (t->rank == 0) close(mkstemp(path));
    assert_int_equal(tr_trace_open(&trace, 1), TR_OK);
    assert_non_null(tr_trace_add(&trace, TR_TRACK_STEP, "step", shifted(), 1e-3));
    assert_int_equal(tr_trace_write(&trace, c, shifted, path), TR_OK);
    if (t->rank == 0) {
        assert_int_equal(tr_read_text(path, &text, &n), TR_OK);
        assert_true(latest(text, &count) < APART / 2 * 1e6);
        assert_int_equal(count, t->size);
        tr_free(text);
        unlink(path);
    }
    tr_trace_free(&trace);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_clocks),
                                          cmocka_unit_test(test_written)};

RUN_MPI_TESTS(tests)
