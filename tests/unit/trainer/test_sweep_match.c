/* Which recorded trials are those of a sweep that is gone on with, and which folders the others get. */
#include "given.h"

#include "tests/fuzz/fuzz_folder.h"
#include "trainer/sweep/internal.h"

static void make_folder(const char *name)
{
    char path[FUZZ_PATH];
    fuzz_make_folder();
    if (mkdir(fuzz_path(name, path), 0777) != 0) fail_msg("%s", path);
}

/* A trial's folder, with this text as its record; NULL: none. */
static void make_trial(const char *name, const char *record, bool model)
{
    char file[32];
    make_folder(name);
    snprintf(file, sizeof file, "%s/trial.yaml", name);
    if (record) fuzz_write(file, record, strlen(record));
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

static void test_folders(void **state)
{
    (void)state;
    make_trial("trial-000", "key: a\ntraining: x\nsettings: {}\nstate: done\n", true);
    make_trial("trial-001", "settings: b\nstate: failed\n", false); /* of an earlier version */
    make_trial("trial-002", "key: c\ntraining: y\nstate: open\n", false);
    make_trial("trial-004", "key: a\nstate: gone\n", true);
    make_trial("trial-005", NULL, true);
    make_trial("trial-0006", "key: d\nstate: done\n", true);
    make_trial("trial-1000000001", "key: d\nstate: done\n", true);
    make_trial("trial-10000", "key: e\nstate: done\n", false);
    tr_sweep s = {.spec.output = fuzz_folder};
    tr_log_init(0, 1, TR_LOG_ERROR);
    assert_int_equal(tr_sweep_find_known(&s), TR_OK);
    static const tr_known_trial all[] = {
        {.number = 0, .state = TR_TRIAL_DONE, .key = "a", .training = "x"},
        {.number = 1, .state = TR_TRIAL_FAILED, .key = "b"},
        {.number = 2, .state = TR_TRIAL_OPEN, .key = "c", .training = "y"},
        {.number = 4, .state = TR_TRIAL_OPEN},
        {.number = 10000, .state = TR_TRIAL_DONE, .key = "e"}};
    assert_int_equal(s.nknown, TR_COUNT(all));
    for (size_t i = 0; i < s.nknown; i++) {
        assert_int_equal(s.known[i].number, all[i].number);
        assert_int_equal(s.known[i].state, all[i].state);
        assert_string_equal(s.known[i].key, all[i].key);
        assert_string_equal(s.known[i].training, all[i].training);
    }

    /* the failed one, the killed one for its training, two others that may have a training lent, and one that may not */
    tr_trial trials[] = {asked(0, "n", "x"), asked(1, "m", "y"), asked(2, "b", "x"),
                         asked(3, "o", "z"), asked(4, "p", "z"), asked(5, "q", "")};
    tr_trial_match m[TR_COUNT(trials)];
    static const tr_trial_match
        found
            [TR_COUNT(
                trials)] = {{3, 0, false},          {2, TR_NO_TRIAL, false},
                            {1, TR_NO_TRIAL, true}, {5, TR_NO_TRIAL, false},
                            {6, 4, false}, /* nobody knows what is in 4, which is its place: it is to be asked */
                            {7, TR_NO_TRIAL, false}};
    s.trials = trials;
    s.ntrials = TR_COUNT(trials);
    assert_int_equal(tr_trials_find(&s, 0, m), TR_OK);
    for (size_t i = 0; i < TR_COUNT(trials); i++) {
        assert_int_equal(m[i].number, found[i].number);
        assert_int_equal(m[i].lender, found[i].lender);
        assert_int_equal(m[i].ended, found[i].ended);
    }
    char *text = NULL;
    assert_int_equal(tr_sweep_earlier_text(&s, &text), TR_OK);
    assert_string_equal(text, "2 trials of before (0, 10000)");
    tr_free(text);
    tr_sweep_free_known(&s);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_folders), cmocka_unit_test(test_any)};
    return cmocka_run_group_tests_name("trainer: trials of before", tests, NULL, NULL);
}
