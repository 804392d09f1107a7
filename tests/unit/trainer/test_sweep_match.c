/* Which recorded trials are those of a sweep that is gone on with, and which folders the others
 * get. */
#include <math.h>

#include "given.h"

#include "tests/fuzz/fuzz_folder.h"
#include "trainer/sweep/internal.h"

static void make_folder(const char *name)
{
    char path[FUZZ_PATH];
    fuzz_make_folder();
    if (mkdir(fuzz_path(name, path), 0777) != 0) fail_msg("%s", path);
}

enum { KEY = 64 };

/* A key of one letter. */
static const char *key_of(char letter, char key[KEY + 1])
{
    memset(key, letter, KEY);
    key[letter ? KEY : 0] = 0;
    return key;
}

/* A trial's folder, with this text as its record, in which %s are keys of these letters; NULL:
 * none. */
static void make_trial(const char *name, const char *format, char key, char training, bool model)
{
    char file[32], record[300], a[KEY + 1], b[KEY + 1];
    make_folder(name);
    if (format)
        snprintf(record, sizeof record, format, key_of(key, a), key_of(training, b));
    else
        record[0] = 0;
    snprintf(file, sizeof file, "%s/trial.yaml", name);
    if (format) fuzz_write(file, record, strlen(record));
    snprintf(file, sizeof file, "%s/model.h5", name);
    if (model) fuzz_write(file, "m", 1);
}

static tr_trial asked(size_t place, const char *key, const char *training)
{
    tr_trial t = {.place = place, .lender = TR_NO_TRIAL};
    snprintf(t.key, sizeof t.key, "%s", key);
    snprintf(t.training, sizeof t.training, "%s", training);
    return t;
}

static tr_trial asked_long(size_t place, char key, char training)
{
    char a[KEY + 1], b[KEY + 1];
    return asked(place, key_of(key, a), key_of(training, b));
}

static void check_known(const tr_sweep *s)
{
    static const struct {
        size_t number;
        int state;
        char key, training;
    } all[] = {
        {0, TR_TRIAL_DONE, 'a', 'x'}, {1, TR_TRIAL_FAILED, 'b', 0}, {2, TR_TRIAL_OPEN, 'c', 'y'},
        {4, TR_TRIAL_OPEN, 0, 0},     {5, TR_TRIAL_OPEN, 0, 0},     {7, TR_TRIAL_OPEN, 'f', 'w'},
        {8, TR_TRIAL_OPEN, 0, 0},     {9, TR_TRIAL_OPEN, 0, 0},     {10000, TR_TRIAL_DONE, 'e', 0}};
    char key[KEY + 1];
    assert_int_equal(s->nknown, TR_COUNT(all));
    for (size_t i = 0; i < s->nknown; i++) {
        assert_int_equal(s->known[i].number, all[i].number);
        assert_int_equal(s->known[i].state, all[i].state);
        assert_string_equal(s->known[i].key, key_of(all[i].key, key));
        assert_string_equal(s->known[i].training, key_of(all[i].training, key));
    }
}

static void test_folders(void **state)
{
    (void)state;
    make_trial("trial-000",
               "key: %s\ntraining: %s\nsettings: {}\nstate: done\n"
               "trained: {bytes: 1, latency_ms: 1}\nlast: {bytes: 1, latency_ms: 1}\n",
               'a', 'x', true);
    make_trial("trial-001", "settings: %s\nstate: failed\n", 'b', 0,
               false); /* of an earlier version */
    make_trial("trial-002", "key: %s\ntraining: %s\nstate: open\n", 'c', 'y', false);
    make_trial("trial-003", "state: replaced\n", 0, 0, true);
    make_trial("trial-004", "key: %s\nstate: gone\n", 'a', 0, true);
    make_trial("trial-005", NULL, 0, 0, true); /* somebody's */
    make_trial("trial-006", NULL, 0, 0, false);
    make_trial("trial-0006", "key: %s\nstate: failed\n", 'd', 0, true);
    make_trial("trial-007", "key: %s\ntraining: %s\nstate: open\n", 'f', 'w', true);
    make_trial("trial-008", "key: %.63s\nstate: failed\n", 'a', 0, false);
    make_trial("trial-009", "key: %s\nstate: done\ntrained: {bytes: 1, latency_ms: 0}\n", 'a', 0,
               false);
    make_trial("trial-1000000001", "key: %s\nstate: failed\n", 'd', 0, true);
    make_trial("trial-10000",
               "key: %s\nstate: done\n"
               "trained: {bytes: 1, latency_ms: 1}\nlast: {bytes: 1, latency_ms: 1}\n",
               'e', 0, false);
    tr_sweep s = {.spec.output = fuzz_folder};
    tr_log_init(0, 1, TR_LOG_ERROR);
    assert_int_equal(tr_sweep_find_known(&s), TR_OK);
    check_known(&s);
    for (size_t i = 0; i < s.nknown; i++) s.known[i].whole = s.known[i].model;

    /* the failed one; the killed one for its training; two that may have a training lent; one that
     * may not; who has the training of a killed one that is finished has it lent */
    tr_trial trials[] = {asked_long(0, 'n', 'x'), asked_long(1, 'm', 'y'), asked_long(2, 'b', 'x'),
                         asked_long(3, 'o', 'z'), asked_long(4, 'p', 'z'), asked_long(5, 'q', 0),
                         asked_long(6, 'g', 'w')};
    tr_trial_match m[TR_COUNT(trials)];
    static const tr_trial_match found[TR_COUNT(trials)] = {
        {3, 0, 0, false},
        {2, TR_NO_TRIAL, 0, false},
        {1, TR_NO_TRIAL, 0, true},
        {6, TR_NO_TRIAL, 0, false},
        {10, 4, 0, false}, /* nobody knows what is in 4, which is its place: it is to be asked */
        {11, TR_NO_TRIAL, 0, false},
        {12, 7, 0, false}};
    s.trials = trials;
    s.ntrials = TR_COUNT(trials);
    assert_int_equal(tr_trials_find(&s, 0, m), TR_OK);
    for (size_t i = 0; i < TR_COUNT(trials); i++) {
        assert_int_equal(m[i].number, found[i].number);
        assert_int_equal(m[i].lender, found[i].lender);
        assert_int_equal(m[i].start, found[i].start);
        assert_int_equal(m[i].ended, found[i].ended);
    }
    char *text = NULL;
    assert_int_equal(tr_sweep_earlier_text(&s, &text), TR_OK);
    assert_string_equal(text, "2 trials of before (0, 10000)");
    tr_free(text);
    tr_sweep_free_known(&s);
}

/* Trials that are the same stay each where it is, be there one more before them; a damaged model
 * lends nothing. */
static void test_same(void **state)
{
    (void)state;
    tr_known_trial known[] = {{.number = 1, .state = TR_TRIAL_DONE, .key = "a", .training = "x"},
                              {.number = 2, .state = TR_TRIAL_DONE, .key = "a", .training = "x"}};
    tr_trial trials[] = {asked(0, "a", "x"), asked(1, "a", "x"), asked(2, "a", "x")};
    tr_trial_match m[3];
    tr_sweep s = {.spec.output = fuzz_folder, .known = known, .nknown = 2};
    s.trials = trials;
    s.ntrials = 3;
    known[0].model = known[1].model = true;
    known[0].whole = -1;
    known[1].whole = 1;
    assert_int_equal(tr_trials_find(&s, 0, m), TR_OK);
    for (size_t i = 0; i < 3; i++) assert_int_equal(m[i].number, i);
    assert_true(!m[0].ended && m[1].ended && m[2].ended);
    assert_int_equal(m[0].lender, 2);
}

/* Whose training others take. */
static void test_sources(void **state)
{
    (void)state;
    tr_trial t[5];
    tr_sweep s = {.trials = t, .ntrials = 5};
    for (size_t i = 0; i < 5; i++) {
        t[i] = asked(i, "a", "x");
        t[i].number = i;
        t[i].result.trained_by = (int64_t)i;
    }
    t[4].first = 4; /* of another training */
    const struct {
        size_t of;
        tr_trial is;
        size_t source;
    } steps[] = {
        {0, {.start = 0}, 0},
        {2, {.start = 1}, 2}, /* killed */
        {3, {.start = 2}, 3}, /* behind its training */
        {1, {.recorded = true, .result = {.state = TR_TRIAL_FAILED, .training_failed = true}}, 3},
        {3, {.result = {.state = TR_TRIAL_FAILED, .has_model = true}}, 3},
        {3, {.result = {.state = TR_TRIAL_FAILED}}, 2},
        {2, {.result = {.state = TR_TRIAL_FAILED, .training_failed = true}}, 2},
        {0, {.result = {.state = TR_TRIAL_DONE}}, 0},
    };
    for (size_t k = 0; k < TR_COUNT(steps); k++) {
        tr_trial *x = &t[steps[k].of];
        x->start = steps[k].is.start;
        x->recorded = steps[k].is.recorded;
        x->result = steps[k].is.result;
        x->result.trained_by = (int64_t)x->number;
        tr_trials_sources(&s);
        for (size_t i = 0; i < 4; i++) assert_int_equal(t[i].source, steps[k].source);
        assert_int_equal(t[4].source, 4);
    }
    assert_true(tr_trial_fails_others(&t[2]) && !tr_trial_fails_others(&t[1]));
    t[3].result = t[2].result; /* as one of its training does */
    assert_false(tr_trial_fails_others(&t[3]));
}

/* Latencies in turns are held against those of the same timing. */
static void test_timings(void **state)
{
    (void)state;
    tr_trial t[3] = {{.place = 0}, {.place = 1}, {.place = 2}};
    const bool in[3] = {true, true, false};
    tr_sweep s = {.trials = t, .ntrials = 3};
    assert_string_equal(tr_sweep_timed(&s, in), "");
    for (size_t i = 0; i < 3; i++) {
        t[i].result = (tr_trial_result){.state = TR_TRIAL_DONE, .turns_ms = 1};
        snprintf(t[i].result.turns, sizeof t[i].result.turns, "a");
    }
    assert_string_equal(tr_sweep_timed(&s, in), "a");
    t[2].result.turns[0] = 'b'; /* it is none of those that decide: its latency is not shown */
    assert_string_equal(tr_sweep_timed(&s, in), "a");
    assert_true(isnan(tr_turns_ms(&t[2].result, "a")) && tr_turns_ms(&t[1].result, "a") == 1);
    t[1].result.turns[0] = 'b';
    assert_string_equal(tr_sweep_timed(&s, in), "");
    t[0].result.turns[0] = t[1].result.turns[0] = 0; /* of records of earlier versions */
    assert_string_equal(tr_sweep_timed(&s, in), "");
    assert_true(isnan(tr_turns_ms(&t[0].result, "")));
    /* a bound on speedup: the training that others are held against, too */
    t[0].result.turns[0] = t[1].result.turns[0] = 'c';
    s.spec.search.present = true;
    s.spec.search.subject_to.speedup = 2;
    assert_string_equal(tr_sweep_timed(&s, in), "");
    t[0].result.trained_turns_ms = 1;
    assert_string_equal(tr_sweep_timed(&s, in), "c");
}

/* Of a draw: keys and trainings are letters. */
static void draw(uint32_t round, uint32_t i, char key[2], char training[2], uint32_t *more)
{
    const tr_philox r = tr_philox_at(3, TR_RNG_TEST, round, i, 0);
    snprintf(key, 2, "%c", (int)('a' + r.v[0] % 8));
    snprintf(training, 2, "%c", (int)('x' + *key % 3));
    *more = r.v[1];
}

enum { MOST = 12 };

static size_t count(const tr_sweep *s, const char *key, bool recorded)
{
    size_t n = 0;
    for (size_t i = 0; recorded && i < s->nknown; i++)
        n += s->known[i].state != TR_TRIAL_OPEN && strcmp(s->known[i].key, key) == 0;
    for (size_t i = 0; !recorded && i < s->ntrials; i++) n += strcmp(s->trials[i].key, key) == 0;
    return n;
}

static void check_match(const tr_sweep *s, const tr_trial_match *m)
{
    for (size_t i = 0; i < s->ntrials; i++) {
        const tr_trial *t = &s->trials[i];
        const tr_known_trial *k = NULL;
        size_t ended = 0;
        for (size_t j = 0; j < s->nknown; j++)
            if (s->known[j].number == m[i].number) k = &s->known[j];
        for (size_t j = 0; j < i; j++) assert_true(m[j].number != m[i].number);
        for (size_t j = 0; j < s->ntrials; j++)
            ended += m[j].ended && strcmp(s->trials[j].key, t->key) == 0;
        const size_t there = count(s, t->key, true), wanted = count(s, t->key, false);
        assert_int_equal(ended, there < wanted ? there : wanted); /* all that can be are */
        assert_int_equal(k != NULL && k->state != TR_TRIAL_OPEN, m[i].ended);
        assert_true(!k || k->taken);
        assert_true(!m[i].ended || strcmp(k->key, t->key) == 0);
        assert_true(!k || m[i].ended || strcmp(k->training, t->training) == 0);
        assert_true(m[i].number < s->ntrials + 3 * MOST); /* no higher than need be */
    }
}

static void test_any(void **state)
{
    (void)state;
    fuzz_make_folder();
    for (uint32_t round = 0; round < 500; round++) {
        tr_known_trial known[MOST] = {{0}};
        tr_trial trials[MOST] = {{0}};
        tr_trial_match m[MOST];
        uint32_t more, number = 0;
        char key[2], training[2];
        tr_sweep s = {.spec.output = fuzz_folder, .known = known, .trials = trials};
        s.nknown = round % MOST;
        for (uint32_t i = 0; i < s.nknown; i++) {
            tr_known_trial *k = &known[i];
            draw(round, i, k->key, k->training, &more);
            k->state = (int)(more % 3);
            k->number = number += i ? 1 + (more / 3 % 3 == 0) : more / 3 % 2;
        }
        s.ntrials = MOST - round / 7 % 5;
        for (uint32_t i = 0; i < s.ntrials; i++) {
            draw(round, MOST + i, key, training, &more);
            trials[i] = asked(i, key, training);
        }
        assert_int_equal(tr_trials_find(&s, 0, m), TR_OK);
        check_match(&s, m);
        /* gone on with as it is: all where they were */
        for (size_t i = 0; i < s.ntrials; i++) {
            known[i] = (tr_known_trial){.number = i, .state = 1 + (int)(i % 2)};
            snprintf(known[i].key, sizeof known[i].key, "%s", trials[i].key);
        }
        s.nknown = s.ntrials;
        assert_int_equal(tr_trials_find(&s, 0, m), TR_OK);
        for (size_t i = 0; i < s.ntrials; i++) assert_true(m[i].number == i && m[i].ended);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_folders), cmocka_unit_test(test_same),
                                       cmocka_unit_test(test_sources),
                                       cmocka_unit_test(test_timings), cmocka_unit_test(test_any)};
    return cmocka_run_group_tests_name("trainer: trials of before", tests, NULL, NULL);
}
