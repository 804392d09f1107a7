/* The error record: a thread's own, what is added to it, what of it is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "runtime/base/base.h"

static void *fail_elsewhere(void *arg)
{
    (void)arg;
    (void)TR_FAIL(TR_DATA, "elsewhere");
    return NULL;
}

static void error_records_are_a_threads_own(void **state)
{
    (void)state;
    assert_int_equal(TR_FAIL(TR_IO, "here %d", 1), TR_IO);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, fail_elsewhere, NULL), 0);
    pthread_join(t, NULL);
    assert_string_equal(tr_last_error()->text, "here 1");
    assert_int_equal(tr_status_exit_code(TR_STOPPED), 75);
    assert_int_equal(tr_status_exit_code(TR_CONFIG), 2);
}

static void who_hands_a_failure_on_adds_to_its_record(void **state)
{
    (void)state;
    const tr_error *e = tr_last_error();
    (void)TR_FAIL(TR_SHAPE, "it is %s", "too wide");
    assert_int_equal(e->hint, TR_HINT_NONE);
    assert_int_equal(tr_fail_hint(TR_SHAPE, TR_HINT_BATCH), TR_SHAPE);
    (void)tr_fail_hearsay(TR_SHAPE);
    const int line = e->line;
    assert_int_equal(tr_fail_before(TR_SHAPE, "layer %d: ", 3), TR_SHAPE);
    assert_int_equal(tr_fail_behind(TR_CONFIG, "; so it is"), TR_CONFIG);
    assert_string_equal(e->text, "layer 3: it is too wide; so it is");
    assert_int_equal(tr_fail_place(TR_CONFIG, "%s:%d:%d", "c.yaml", 4, 5), TR_CONFIG);
    (void)tr_fail_before(TR_CONFIG, "model %s: ", "a");
    assert_string_equal(e->text, "c.yaml:4:5: model a: layer 3: it is too wide; so it is");
    assert_int_equal(e->place, strlen("c.yaml:4:5: "));
    /* A place of one record is what another says. */
    (void)tr_fail_place(TR_CONFIG, "command line: a=1");
    assert_string_equal(e->text + e->place,
                        "c.yaml:4:5: model a: layer 3: it is too wide; so it is");
    assert_int_equal(e->status, TR_CONFIG);
    assert_int_equal(e->hint, TR_HINT_BATCH);
    assert_true(e->hearsay);
    assert_int_equal(e->line, line);
    (void)tr_fail_before(TR_CONFIG, "%s", e->text); /* the record itself as an argument */
    assert_memory_equal(e->text, "command line: a=1: command line: a=1: c.yaml", 44);
    /* A new one has none of it, whatever its text. */
    const tr_error kept = *e;
    (void)TR_FAIL(TR_IO, "%s", kept.text);
    assert_string_equal(e->text, kept.text);
    assert_int_equal(e->hint, TR_HINT_NONE);
    assert_false(e->hearsay);
    assert_int_equal(e->place, 0);
    tr_set_error(&kept);
    assert_int_equal(e->hint, TR_HINT_BATCH);
}

/* What does not fit is cut from what was said, not from what is added. */
static void error_records_are_cut_in_the_middle(void **state)
{
    (void)state;
    const tr_error *e = tr_last_error();
    char longest[TR_ERROR_TEXT];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    (void)TR_FAIL(TR_IO, "%s", longest);
    (void)tr_fail_place(TR_IO, "c.yaml");
    (void)tr_fail_before(TR_IO, "before: ");
    (void)tr_fail_behind(TR_IO, ", behind");
    assert_int_equal(strlen(e->text), TR_ERROR_TEXT - 1);
    assert_memory_equal(e->text, "c.yaml: before: xxx", 19);
    assert_string_equal(e->text + TR_ERROR_TEXT - 1 - 11, "xxx, behind");
    (void)tr_fail_behind(TR_IO, "%s", longest);
    assert_memory_equal(e->text, "c.yaml: xxx", 11);
    (void)tr_fail_place(TR_IO, "%s", longest);
    assert_int_equal(e->place, TR_ERROR_TEXT - 1);
    (void)tr_fail_before(TR_IO, "lost");
    (void)tr_fail_behind(TR_IO, "lost");
    assert_int_equal(strlen(e->text), TR_ERROR_TEXT - 1);
    assert_string_equal(e->text + TR_ERROR_TEXT - 4, "x: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_records_are_a_threads_own),
        cmocka_unit_test(who_hands_a_failure_on_adds_to_its_record),
        cmocka_unit_test(error_records_are_cut_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
