/* Learning rate schedules against values worked out by hand and against PyTorch's recurrences, and
 * the state machines of the plateau and of dynamic loss scaling. */
#include "given.h"

#include "trainer/schedule.h"

static tr_config *scheduled(const char *schedule)
{
    char train[200];
    snprintf(train, sizeof train, "optimizer: {sgd: {lr: 0.5}}, schedule: %s", schedule);
    return given(GIVEN_MLP, train);
}

static const tr_train_state fresh = {.lr_factor = 1, .loss_scale = 1, .plateau_best = NAN};

static void expect(const tr_config *c, const tr_train_state *s, uint64_t step, uint64_t total,
                   uint64_t epoch, double want)
{
    double got = tr_schedule_lr(c, s, step, total, epoch);
    if (!(fabs(got - want) <= 1e-15 * fabs(want)))
        fail_msg("step %llu: %.17g, expected %.17g", (unsigned long long)step, got, want);
}

static void test_constant(void **state)
{
    (void)state;
    tr_config *c = scheduled("constant");
    tr_train_state s = fresh;
    expect(c, &s, 0, 10, 5, 0.5);
    expect(c, &s, 99, 10, 5, 0.5);
    s.lr_factor = 0.25; /* a rollback's */
    expect(c, &s, 3, 10, 5, 0.125);
    tr_config_close(c);
}

/* From warmup_start at the first step to 1 at the last of the warm-up, in a line: PyTorch's
 * LinearLR(start_factor=warmup_start, total_iters=warmup-1). */
static void test_warmup(void **state)
{
    (void)state;
    tr_config *c = scheduled("{constant: {warmup: 4}}");
    tr_train_state s = fresh;
    static const double want[] = {0.125, 0.25, 0.375, 0.5, 0.5, 0.5};
    for (uint64_t i = 0; i < TR_COUNT(want); i++) expect(c, &s, i, 10, 5, want[i]);
    tr_config_close(c);
    c = scheduled("{cosine: {warmup: 5, warmup_start: 0.5, final: 0.1}}");
    expect(c, &s, 0, 25, 5, 0.5 * 0.5);
    expect(c, &s, 1, 25, 5, 0.5 * 0.625);
    expect(c, &s, 3, 25, 5, 0.5 * 0.875);
    expect(c, &s, 4, 25, 5, 0.5);
    expect(c, &s, 5, 25, 5, 0.5);                    /* where the cosine starts */
    expect(c, &s, 15, 25, 5, 0.5 * (0.1 + 0.9 / 2)); /* half-way through the 20 steps left */
    s.lr_factor = 0.5;
    expect(c, &s, 0, 25, 5, 0.25 * 0.5);
    tr_config_close(c);
    c = scheduled("{constant: {warmup: 1, warmup_start: 0.25}}");
    s = fresh;
    expect(c, &s, 0, 25, 5, 0.125);
    expect(c, &s, 1, 25, 5, 0.5);
    tr_config_close(c);
    c = scheduled("{linear: {warmup: 10}}"); /* nothing but warm-up */
    s = fresh;
    expect(c, &s, 9, 10, 5, 0.5);
    expect(c, &s, 10, 10, 5, 0);
    tr_config_close(c);
}

/* torch.optim.lr_scheduler.CosineAnnealingLR(T_max=total, eta_min=final*lr), by its recurrence:
 * lr += ..., eta_min + (lr - eta_min) (1 + cos(pi t / T)) / (1 + cos(pi (t - 1) / T)). */
static void test_cosine(void **state)
{
    (void)state;
    tr_config *c = scheduled("{cosine: {final: 0.05}}");
    tr_train_state s = fresh;
    const uint64_t total = 37;
    double lr = 0.5, least = 0.025;
    for (uint64_t t = 0; t < total; t++) {
        if (t > 0)
            lr = least + (lr - least) * (1 + cos(M_PI * (double)t / (double)total)) /
                             (1 + cos(M_PI * (double)(t - 1) / (double)total));
        double got = tr_schedule_lr(c, &s, t, total, 5);
        assert_true(fabs(got - lr) <= 1e-12 * lr);
    }
    expect(c, &s, 0, total, 5, 0.5);
    assert_true(fabs(tr_schedule_lr(c, &s, total, total, 5) - least) <= 1e-15);
    assert_true(fabs(tr_schedule_lr(c, &s, 2 * total, total, 5) - least) <= 1e-15); /* and stays */
    tr_config_close(c);
}

/* LinearLR(start_factor=1, end_factor=0.2, total_iters=10). */
static void test_linear(void **state)
{
    (void)state;
    tr_config *c = scheduled("{linear: {final: 0.2}}");
    tr_train_state s = fresh;
    static const double want[] = {0.5,  0.46, 0.42, 0.38, 0.34, 0.3,
                                  0.26, 0.22, 0.18, 0.14, 0.1,  0.1};
    for (uint64_t i = 0; i < TR_COUNT(want); i++)
        assert_true(fabs(tr_schedule_lr(c, &s, i, 10, 5) - want[i]) <= 1e-15);
    tr_config_close(c);
}

/* MultiStepLR(milestones=[2, 5], gamma=0.1), epochs of 3 steps. */
static void test_step(void **state)
{
    (void)state;
    tr_config *c = scheduled("{step: {milestones: [2, 5], gamma: 0.1, warmup: 1}}");
    tr_train_state s = fresh;
    for (uint64_t i = 0; i < 30; i++) {
        double want = 0.5;
        if (i / 3 >= 2) want *= 0.1;
        if (i / 3 >= 5) want *= 0.1;
        expect(c, &s, i, 100, 3, want);
    }
    expect(c, &s, 5, 100, 3, 0.5);
    expect(c, &s, 6, 100, 3, 0.05);
    assert_true(fabs(tr_schedule_lr(c, &s, 15, 100, 3) - 0.005) <= 1e-17);
    tr_config_close(c);
}

/* ReduceLROnPlateau(factor=0.5, patience=2, threshold=0.1, threshold_mode="rel"): the third
 * evaluation in a row that is not better than best (1 - 0.1) halves the rate. */
static void test_plateau(void **state)
{
    (void)state;
    tr_config *c = scheduled("{plateau: {patience: 2, threshold: 0.1, gamma: 0.5, warmup: 2}}");
    tr_train_state s = fresh;
    static const struct {
        double loss, best, factor;
        uint64_t bad;
    } evals[] = {
        {4.0, 4.0, 1, 0},   {3.7, 4.0, 1, 1},   {3.5, 3.5, 1, 0},   {3.4, 3.5, 1, 1},
        {5.0, 3.5, 1, 2},   {3.3, 3.5, 0.5, 0}, {3.3, 3.5, 0.5, 1}, {NAN, 3.5, 0.5, 2},
        {9.0, 3.5, .25, 0}, {3.0, 3.0, .25, 0},
    };
    for (size_t i = 0; i < TR_COUNT(evals); i++) {
        tr_schedule_observe(c, &s, evals[i].loss);
        assert_true(s.plateau_best == evals[i].best && s.lr_factor == evals[i].factor);
        assert_int_equal(s.plateau_bad, evals[i].bad);
        expect(c, &s, 50, 100, 3, 0.5 * evals[i].factor);
    }
    expect(c, &s, 0, 100, 3, 0.5 * 0.25 * 0.5); /* the warm-up goes on top */
    tr_config_close(c);
    c = scheduled("{plateau: {patience: 0, gamma: 0.5, threshold: 0.1}}"); /* below zero too */
    s = fresh;
    tr_schedule_observe(c, &s, -1.0);
    tr_schedule_observe(c, &s, -1.05);
    assert_true(s.lr_factor == 0.5 && s.plateau_best == -1.0);
    tr_schedule_observe(c, &s, -1.11);
    assert_true(s.lr_factor == 0.5 && s.plateau_best == -1.11);
    tr_config_close(c);
    c = scheduled("constant"); /* others do not listen */
    s = fresh;
    for (int i = 0; i < 50; i++) tr_schedule_observe(c, &s, 1.0);
    assert_true(s.lr_factor == 1 && isnan(s.plateau_best));
    tr_config_close(c);
}

static void test_scale_start(void **state)
{
    (void)state;
    static const struct {
        const char *train;
        double want;
    } table[] = {{"precision: fp32", 1},
                 {"loss_scale: none", 1},
                 {"loss_scale: 128", 128},
                 {"loss_scale: dynamic", 65536},
                 {"loss_scale: dynamic, loss_scale_init: 512", 512}};
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        tr_config *c = given(GIVEN_MLP, table[i].train);
        assert_true(tr_loss_scale_start(c) == table[i].want);
        tr_config_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),    cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_cosine),      cmocka_unit_test(test_linear),
        cmocka_unit_test(test_step),        cmocka_unit_test(test_plateau),
        cmocka_unit_test(test_scale_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
