/* Learning rate schedules against values worked out by hand and against PyTorch's recurrences, and
 * the state machines of the plateau and of dynamic loss scaling. */
#include "given.h"

#include "trainer/optimizer/schedule.h"

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

/* Each part is as a run of its length, warm-up and all; so a run that is extended repeats what it
 * was. */
static void test_restart(void **state)
{
    (void)state;
    tr_config *whole = scheduled("{cosine: {warmup: 3, final: 0.1}}");
    tr_config *parts = scheduled("{cosine: {warmup: 3, final: 0.1, restart: [20, 50]}}");
    tr_train_state s = fresh;
    for (uint64_t i = 0; i < 60; i++) {
        const uint64_t begin = i < 20 ? 0 : i < 50 ? 20 : 50, end = i < 20 ? 20 : i < 50 ? 50 : 60;
        expect(parts, &s, i, 60, 5, tr_schedule_lr(whole, &s, i - begin, end - begin, 5));
        if (i < 15) /* a restart behind the end changes nothing */
            expect(parts, &s, i, 15, 5, tr_schedule_lr(whole, &s, i, 15, 5));
    }
    tr_config_close(whole);
    tr_config_close(parts);
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

/* torch.optim.lr_scheduler, 24 steps at lr 0.5 in epochs of 5, a step of the scheduler after every
 * update: OneCycleLR(0.5, 24, cycle_momentum=False), the same with the options' names,
 * PolynomialLR(24, 2.5), CosineAnnealingWarmRestarts(3, 2, eta_min=0.05) and (5),
 * ExponentialLR(0.9). */
static void test_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *schedule;
        double want[24];
    } cases[] = {
        {"one_cycle", {0.02,
                       0.0501568121253,
                       0.133048637522,
                       0.247844199479,
                       0.365694596374,
                       0.45698322589,
                       0.498768637614,
                       0.497207717725,
                       0.485970888694,
                       0.466506484921,
                       0.439493172815,
                       0.405872826975,
                       0.3668176898,
                       0.323689498848,
                       0.277992007061,
                       0.231318551333,
                       0.185296497543,
                       0.141530499104,
                       0.101546547427,
                       0.0667387650944,
                       0.0383207969171,
                       0.0172834937127,
                       0.00436036425815,
                       2e-06}},
        {"{one_cycle: {three_phase: true, anneal_strategy: linear, pct_start: 0.4, div_factor: 10, "
         "final_div_factor: 100}}",
         {0.05,
          0.102325581395,
          0.154651162791,
          0.206976744186,
          0.259302325581,
          0.311627906977,
          0.363953488372,
          0.416279069767,
          0.468604651163,
          0.479069767442,
          0.426744186047,
          0.374418604651,
          0.322093023256,
          0.26976744186,
          0.217441860465,
          0.16511627907,
          0.112790697674,
          0.0604651162791,
          0.0431724137931,
          0.0346379310345,
          0.0261034482759,
          0.0175689655172,
          0.00903448275862,
          0.0005}},
        {"{polynomial: {power: 2.5}}",
         {0.5,
          0.449532908409,
          0.402252361245,
          0.358088304594,
          0.31696907263,
          0.278821270904,
          0.243569644814,
          0.211136930497,
          0.181443684651,
          0.154408088875,
          0.129945722832,
          0.107969298785,
          0.0883883476483,
          0.0711088430961,
          0.0560327451708,
          0.0430574368849,
          0.032075014955,
          0.0229713754501,
          0.015625,
          0.0099052835197,
          0.00567011514533,
          0.00276213586401,
          0.00100234421734,
          0.000177191098292}},
        {"{restarts: {period: 3 steps, mult: 2, final: 0.1}}",
         {0.5,
          0.3875,
          0.1625,
          0.5,
          0.469855715851,
          0.3875,
          0.275,
          0.1625,
          0.0801442841485,
          0.5,
          0.492333310915,
          0.469855715851,
          0.434099025767,
          0.3875,
          0.333234285148,
          0.275,
          0.216765714852,
          0.1625,
          0.115900974233,
          0.0801442841485,
          0.057666689085,
          0.5,
          0.498075093809,
          0.492333310915}},
        {"{restarts: {period: 1}}",
         {0.5, 0.452254248594, 0.327254248594, 0.172745751406, 0.0477457514063,
          0.5, 0.452254248594, 0.327254248594, 0.172745751406, 0.0477457514063,
          0.5, 0.452254248594, 0.327254248594, 0.172745751406, 0.0477457514063,
          0.5, 0.452254248594, 0.327254248594, 0.172745751406, 0.0477457514063,
          0.5, 0.452254248594, 0.327254248594, 0.172745751406}},
        {"{exponential: {gamma: 0.9, period: 1 step}}",
         {0.5,
          0.45,
          0.405,
          0.3645,
          0.32805,
          0.295245,
          0.2657205,
          0.23914845,
          0.215233605,
          0.1937102445,
          0.17433922005,
          0.156905298045,
          0.141214768241,
          0.127093291416,
          0.114383962275,
          0.102945566047,
          0.0926510094426,
          0.0833859084983,
          0.0750473176485,
          0.0675425858836,
          0.0607883272953,
          0.0547094945658,
          0.0492385451092,
          0.0443146905983}},
    };
    for (size_t k = 0; k < TR_COUNT(cases); k++) {
        tr_config *c = scheduled(cases[k].schedule);
        for (uint64_t i = 0; i < 24; i++) {
            const double got = tr_schedule_lr(c, &fresh, i, 24, 5), want = cases[k].want[i];
            if (!(fabs(got - want) <= 1e-11 * want))
                fail_msg("%s, step %llu: %.15g, expected %.15g", cases[k].schedule,
                         (unsigned long long)i, got, want);
        }
        tr_config_close(c);
    }
}

/* Steps, epochs and shares of the run say the same; a run is 40 steps, an epoch 5. */
static void test_spans(void **state)
{
    (void)state;
    static const char *const alike[] = {
        "{restarts: {period: 2, warmup: 10}}",
        "{restarts: {period: 10 steps, warmup: 2 epochs}}",
        "{restarts: {period: 25%, warmup: 10 steps}}",
        "{restarts: {period: 2.0 epochs, warmup: \"25%\"}}",
    };
    tr_config *first = scheduled(alike[0]), *c;
    for (size_t k = 1; k < TR_COUNT(alike); k++) {
        c = scheduled(alike[k]);
        for (uint64_t i = 0; i < 40; i++)
            expect(c, &fresh, i, 40, 5, tr_schedule_lr(first, &fresh, i, 40, 5));
        tr_config_close(c);
    }
    tr_config_close(first);
    c = scheduled("{step: {milestones: [7 steps, 2, 50%], gamma: 0.5}}");
    expect(c, &fresh, 6, 40, 5, 0.5);
    expect(c, &fresh, 7, 40, 5, 0.25);
    expect(c, &fresh, 10, 40, 5, 0.125);
    expect(c, &fresh, 20, 40, 5, 0.0625);
    char *text;
    assert_int_equal(tr_config_text(c, &text), TR_OK); /* written so that it says the same */
    assert_non_null(strstr(text, "- \"7 steps\"\n      - 2\n      - \"50%\"\n"));
    free(text);
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
        cmocka_unit_test(test_pytorch),     cmocka_unit_test(test_spans),
        cmocka_unit_test(test_scale_start), cmocka_unit_test(test_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
