/* The curve that run files carry: when its room is used up every other row goes, and the newest
 * stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "trainer/run/history.h"

/* The steps that are kept, of `count` rows in a room of `room`. */
static size_t kept(size_t room, uint64_t count, uint64_t *steps)
{
    tr_history h = {0};
    assert_int_equal(tr_history_reserve(&h, room, 0, 0), TR_OK);
    for (uint64_t i = 0; i < count; i++)
        tr_history_add_step(&h, &(struct tr_history_step){.step = i});
    const size_t n = h.nsteps;
    for (size_t i = 0; i < n; i++) steps[i] = h.steps[i].step;
    tr_history_free(&h);
    return n;
}

static void newest_stays(void **state)
{
    (void)state;
    uint64_t steps[8];
    assert_int_equal(kept(4, 5, steps), 3); /* 1 and 3 of the first four */
    assert_memory_equal(steps, ((uint64_t[]){1, 3, 4}), 3 * sizeof *steps);
    assert_int_equal(kept(3, 4, steps), 3); /* 0 and 2 of the first three */
    assert_memory_equal(steps, ((uint64_t[]){0, 2, 3}), 3 * sizeof *steps);
    assert_int_equal(kept(5, 6, steps), 4);
    assert_memory_equal(steps, ((uint64_t[]){0, 2, 4, 5}), 4 * sizeof *steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(newest_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
