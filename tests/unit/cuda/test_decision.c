/* Whether an update is made, and at which scale: the device decides as the host would, with its
 * search. */
#include "tests/unit/cuda/optimizer_harness.h"

static tr_control undecided(void)
{
    return (tr_control){.clip_norm = 1,
                        .beta1 = 0.9,
                        .beta2 = 0.99,
                        .scale_window = 100,
                        .loss_scale = 1024,
                        .updates = 4,
                        .sums = {[TR_TALLY_LOSS] = 3, [TR_TALLY_WEIGHT] = 32},
                        .sum_squares = 1e12,
                        .first_nonfinite = 5};
}

/* The device decides as the host would. */
static void check_decision(bench *x, void *updater, tr_control c, uint64_t first)
{
    set_control(x, &c);
    assert_ok(b->training->updater_decide(updater, x->control));
    const tr_control got = get_control(x);
    tr_control_decide(&c);
    assert_true(got.first_nonfinite == first);
    assert_true(got.apply == c.apply && got.searched == c.searched && got.held == c.held);
    assert_true(got.updates == c.updates && got.skipped == c.skipped &&
                got.scale_good == c.scale_good);
    assert_true(got.loss_scale == c.loss_scale && got.used_scale == c.used_scale);
    if (c.apply) {
        assert_true(near(got.grad_norm / c.grad_norm, 1, 1e-14));
        assert_true(near(got.grad_scale / c.grad_scale, 1, 1e-14));
        assert_true(near(got.correct1, c.correct1, 1e-14) && near(got.correct2, c.correct2, 1e-14));
    } else {
        assert_true(isnan(got.grad_norm));
    }
}

static void decisions_match(void **state)
{
    (void)state;
    bench x = open_bench(false);
    const tr_update u = update_of(&x, &variants[0]);
    void *updater;
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    tr_control good = undecided(), bad = undecided(), loss = undecided();
    bad.sum_squares = NAN;
    loss.sums[TR_TALLY_LOSS] = INFINITY;
    loss.scale_window = 0;
    loss.hold = 1;
    check_decision(&x, updater, good, UINT64_MAX);
    check_decision(&x, updater, loss, UINT64_MAX);
    check_decision(&x, updater, bad, UINT64_MAX); /* another rank's gradient */
    static const size_t at[] = {FLAT - 1, 2 * 8192 + GAP + 16, GAP + 5, 5000, 16, 0};
    uint64_t lowest = UINT64_MAX;
    for (size_t k = 0; k < TR_COUNT(at); k++) {
        x.g.host[at[k]] = k % 2 ? -INFINITY : NAN;
        put(x.cuda, &x.g);
        if (segment_of(at[k])) lowest = at[k]; /* the gap is not this rank's */
        check_decision(&x, updater, bad, lowest);
    }
    check_decision(&x, updater, good, UINT64_MAX); /* nobody looks */
    b->training->updater_close(updater);
    close_bench(&x);
}

/* A rank that owns nothing decides like all others. */
static void no_segments(void **state)
{
    (void)state;
    bench x = open_bench(false);
    tr_update u = update_of(&x, &variants[1]);
    u.nsegments = 0;
    void *updater;
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    tr_control c = undecided();
    check_decision(&x, updater, c, UINT64_MAX);
    c.sum_squares = INFINITY;
    check_decision(&x, updater, c, UINT64_MAX);
    assert_ok(b->training->updater_run(updater, x.control));
    assert_ok(b->training->updater_swap_ema(updater));
    b->training->updater_close(updater);
    b->training->updater_close(NULL);
    close_bench(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_match),
        cmocka_unit_test(no_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
