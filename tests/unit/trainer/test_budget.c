/* What a budget says of what was measured: each bound that is missed, not finite numbers, attempts;
 * and the same numbers as a sweep sees them. */
#include "given.h"

#include "trainer/pipeline/budget.h"
#include "trainer/sweep/internal.h"

static tr_budget none(void)
{
    return (tr_budget){.accuracy_drop = -1,
                       .loss_rise = -1,
                       .size = -1,
                       .speedup = -1,
                       .accuracy = -1,
                       .loss = -1,
                       .size_mb = -1,
                       .latency_ms = -1};
}

static tr_measured measured(double loss, double accuracy)
{
    return (tr_measured){.evaluated = true,
                         .before = {.loss = 0.5, .accuracy = 0.875},
                         .after = {.loss = loss, .accuracy = accuracy},
                         .parent_bytes = 1000,
                         .bytes = 500,
                         .parent_ms = 3,
                         .ms = 1.5};
}

static tr_miss judged(tr_budget b, tr_measured m)
{
    tr_miss miss = {.cost = true, .text = "of before"};
    tr_budget_judge(&b, &m, &miss);
    return miss;
}

static void test_kept(void **state)
{
    (void)state;
    tr_budget b = {.accuracy_drop = 0.125,
                   .loss_rise = 0.25,
                   .size = 0.5,
                   .speedup = 2,
                   .accuracy = 0.75,
                   .loss = 0.75,
                   .size_mb = 0.0005,
                   .latency_ms = 1.5};
    const tr_miss miss = judged(b, measured(0.75, 0.75));
    assert_string_equal(miss.text, "");
    assert_false(miss.cost);
    assert_string_equal(judged(none(), measured(NAN, NAN)).text, "");
}

static void test_each_is_said(void **state)
{
    (void)state;
    tr_budget b = none();
    b.loss = 0.25;
    b.size = 0.25;
    b.speedup = 4;
    tr_miss miss = judged(b, measured(0.75, 0.75));
    assert_string_equal(
        miss.text,
        "budget.loss: 0.75, at most 0.25 was asked for (of data.eval); budget.size: 0.5, "
        "at most 0.25 was asked for (500 bytes of 1000); budget.speedup: 2, at least 4 was "
        "asked for (1.5 ms, before 3 ms)");
    assert_true(miss.cost);
    b = none();
    b.accuracy_drop = 0.0625;
    miss = judged(b, measured(0.75, 0.75));
    assert_string_equal(miss.text,
                        "budget.accuracy_drop: 0.125, at most 0.0625 was asked for (accuracy "
                        "0.75, before 0.875)");
    assert_false(miss.cost);
}

/* Minus infinity is below each bound; the accuracy of answers that are none may be above it. */
static void test_not_finite(void **state)
{
    (void)state;
    static const double losses[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < TR_COUNT(losses); i++)
        for (int k = 0; k < 4; k++) {
            tr_budget b = none();
            *(double *[]){&b.accuracy_drop, &b.loss_rise, &b.accuracy, &b.loss}[k] = 0.5;
            const tr_miss miss = judged(b, measured(losses[i], 0.875));
            assert_non_null(strstr(miss.text, ": not finite, at "));
            assert_false(miss.cost);
        }
    tr_budget b = none();
    b.latency_ms = 1;
    tr_measured m = measured(0.5, 0.5);
    m.ms = 0; /* not measured */
    assert_true(judged(b, m).cost);
}

static void test_attempt(void **state)
{
    (void)state;
    tr_attrs found = {0};
    const tr_evaluation e = {.loss = 1.5, .accuracy = NAN};
    const tr_attempt a = {.number = 2, .evaluation = &e, .nbytes = 7};
    const tr_miss miss = {.text = "budget.loss"};
    static const char options[] =
        "train:\n  optimizer:\n    sgd:\n      lr: 0.1\nmatch: \"a, b\"\nlist:\n  - 1\n  - x\n";
    assert_int_equal(tr_attempt_note(&a, &miss, options, &found), TR_OK);
    const tr_attr *line = tr_attrs_get(&found, "attempt_2_options");
    assert_non_null(line);
    tr_document d;
    assert_null(strchr(line->text, '\n'));
    assert_int_equal(tr_document_parse("line", line->text, strlen(line->text), &d), TR_OK);
    const tr_node *lr = tr_node_get(
        tr_node_get(tr_node_get(tr_node_get(d.root, "train"), "optimizer"), "sgd"), "lr");
    assert_string_equal(lr->text, "0.1");
    assert_string_equal(tr_node_get(d.root, "match")->text, "a, b");
    assert_int_equal(tr_node_get(d.root, "list")->count, 2);
    tr_document_close(&d);
    assert_null(tr_attrs_get(&found, "attempt_2_accuracy"));
    assert_string_equal(tr_attrs_get(&found, "attempt_2")->text, "budget.loss");
    tr_attrs_free(&found);
}

/* A trial whose loss is not finite is on no front, nor within a bound of its answers, however fast
 * it is. */
static void test_sweep(void **state)
{
    (void)state;
    tr_trial trials[3] = {0};
    tr_sweep s = {.ntrials = 3, .trials = trials};
    s.spec.search.present = true;
    s.spec.search.minimize = TR_MINIMIZE_LATENCY;
    s.spec.search.subject_to = none();
    for (size_t i = 0; i < 3; i++) {
        trials[i].number = i;
        trials[i].result.state = TR_TRIAL_DONE;
        trials[i].result.trained = trials[i].result.last =
            (tr_trial_model){.bytes = 100,
                             .ms = i == 1 ? 1 : 10 + (double)i,
                             .evaluated = true,
                             .loss = 0.5,
                             .accuracy = 0.75};
        trials[i].result.turns_ms = trials[i].result.last.ms;
    }
    static const double losses[] = {NAN, INFINITY, -INFINITY};
    tr_verdict verdicts[3];
    size_t best;
    assert_int_equal(tr_sweep_judge(&s, verdicts, &best), TR_OK);
    assert_int_equal(best, 1);
    for (size_t i = 0; i < TR_COUNT(losses); i++) {
        tr_trial_model *m = &trials[1].result.last;
        m->loss = losses[i];
        s.spec.search.subject_to = none();
        assert_int_equal(tr_sweep_judge(&s, verdicts, &best), TR_OK);
        assert_int_equal(best, 0);
        assert_true(verdicts[0].front);
        assert_false(verdicts[1].front);
        for (int k = 0; k < 4; k++) {
            tr_budget *b = &s.spec.search.subject_to;
            *b = none();
            *(double *[]){&b->accuracy_drop, &b->loss_rise, &b->accuracy, &b->loss}[k] = 0.5;
            assert_true(tr_sweep_violation(&s, m) > 0);
            assert_true(tr_sweep_violation(&s, &trials[0].result.last) == 0);
        }
        s.spec.search.minimize = TR_MINIMIZE_ERROR;
        assert_true(tr_sweep_minimized(&s, m) == INFINITY);
        s.spec.search.minimize = TR_MINIMIZE_LATENCY;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),       cmocka_unit_test(test_each_is_said),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_attempt),
        cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
