/* The step's decision: factor, clipping, bias corrections, and the search for a loss scale. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/device/control.h"

static tr_control step(double weight, double sum_squares)
{
    tr_control c = {.loss_scale = 4, .beta1 = 0.5, .beta2 = 0.75, .sum_squares = sum_squares};
    c.sums[TR_TALLY_WEIGHT] = weight;
    return c;
}

static void divides_and_clips(void **state)
{
    (void)state;
    tr_control c = step(8, 1024 * 1024);
    tr_control_decide(&c);
    assert_true(c.apply == 1 && c.grad_scale == 1.0 / 32 && c.grad_norm == 32);
    assert_true(c.updates == 1 && c.correct1 == 0.5 && c.correct2 == 0.25 && c.used_scale == 4);
    c.clip_norm = 8;
    tr_control_decide(&c);
    assert_true(c.grad_norm == 32 && c.grad_scale == 1.0 / 128); /* the norm is from before */
    assert_true(c.updates == 2 && c.correct1 == 0.75 && c.correct2 == 1 - 0.75 * 0.75);
    c = step(0, 0); /* no sample had weight */
    tr_control_decide(&c);
    assert_true(c.apply == 1 && c.grad_scale == 0 && c.grad_norm == 0);
}

static void skips_what_is_not_finite(void **state)
{
    (void)state;
    const double bad[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 6; i++) {
        tr_control c = step(8, i < 3 ? bad[i] : 1);
        if (i >= 3) c.sums[TR_TALLY_LOSS] = bad[i - 3];
        tr_control_decide(&c);
        assert_true(c.apply == 0 && c.searched == 0 && c.updates == 0 && c.skipped == 1);
        assert_true(isnan(c.grad_norm) && c.loss_scale == 4 && c.held == 0);
    }
}

/* After a failure that is no search nothing moves any more, if that is wanted. */
static void holds(void **state)
{
    (void)state;
    tr_control c = step(8, NAN);
    c.hold = 1;
    c.scale_window = 10;
    for (int i = 0; i < 2; i++) { /* 4, 2, 1: the search */
        tr_control_decide(&c);
        assert_true(c.searched == 1 && c.held == 0);
    }
    tr_control_decide(&c);
    assert_true(c.loss_scale == 1 && c.searched == 0 && c.held == 1 && c.skipped == 3);
    c.sum_squares = 1;
    tr_control_decide(&c);
    assert_true(c.apply == 0 && c.updates == 0 && c.skipped == 3);
    c = step(8, NAN); /* the loss has no scale */
    c.hold = 1;
    c.scale_window = 10;
    c.sums[TR_TALLY_LOSS] = INFINITY;
    tr_control_decide(&c);
    assert_true(c.loss_scale == 2 && c.searched == 1 && c.held == 1);
}

/* Halves at once, down to 1, where an overflow is an error; doubles after `window` good steps in a
 * row, up to 2^24. */
static void searches_the_scale(void **state)
{
    (void)state;
    tr_control c = {.loss_scale = 8, .scale_window = 3};
    for (int i = 0; i < 2; i++) tr_control_good(&c);
    assert_true(c.loss_scale == 8 && c.scale_good == 2);
    assert_true(tr_control_overflow(&c));
    assert_true(c.loss_scale == 4 && c.scale_good == 0); /* counting starts again */
    for (int i = 0; i < 3; i++) tr_control_good(&c);
    assert_true(c.loss_scale == 8 && c.scale_good == 0);
    for (int i = 0; i < 3; i++) assert_true(tr_control_overflow(&c));
    assert_true(c.loss_scale == 1);
    assert_false(tr_control_overflow(&c));
    assert_true(c.loss_scale == 1);
    for (int i = 0; i < 100; i++) tr_control_good(&c);
    assert_true(c.loss_scale == 0x1p24);
    c.loss_scale = 1.5; /* from an init that is no power of two */
    assert_true(tr_control_overflow(&c) && c.loss_scale == 1);
    c = (tr_control){.loss_scale = 128}; /* fixed */
    assert_false(tr_control_overflow(&c));
    for (int i = 0; i < 5000; i++) tr_control_good(&c);
    assert_true(c.loss_scale == 128);
}

/* Every nanosecond between the first lap and the last counts once, but for what went by while no
 * step was under way. */
static void laps_add_up(void **state)
{
    (void)state;
    tr_control c = {.in = {.fresh = 1}};
    tr_control_lap(&c, TR_LAP_IDLE, 1000);
    assert_true(c.laps[TR_LAP_IDLE] == 0);
    tr_control_lap(&c, TR_LAP_COMPUTE, 1010);
    tr_control_lap(&c, TR_LAP_COMM, 1013);
    tr_control_lap(&c, TR_LAP_COMPUTE, 1113);
    c.in.fresh = 0;
    tr_control_lap(&c, TR_LAP_IDLE, 1120);
    tr_control_lap(&c, TR_LAP_COMPUTE, 1120);
    assert_true(c.laps[TR_LAP_IDLE] == 7);
    assert_true(c.laps[TR_LAP_COMPUTE] == 110 && c.laps[TR_LAP_COMM] == 3);
    tr_control_lap(&c, TR_LAP_COMM, 1100); /* a clock that was set back */
    tr_control_lap(&c, TR_LAP_COMM, 1101);
    assert_true(c.laps[TR_LAP_COMM] == 4);
    c.in.fresh = 1;
    tr_control_lap(&c, TR_LAP_IDLE, 99999);
    assert_true(c.laps[TR_LAP_IDLE] == 7 && c.clock == 99999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(laps_add_up),
        cmocka_unit_test(divides_and_clips),
        cmocka_unit_test(skips_what_is_not_finite),
        cmocka_unit_test(holds),
        cmocka_unit_test(searches_the_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
