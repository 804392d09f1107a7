/* metrics.jsonl: the exact lines, what a resume keeps, and files that cannot be written. */
#include "tests/unit/metrics/folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

static void expect(const char *folder, const char *expected)
{
    char *text = file_text(folder, "metrics.jsonl", NULL);
    assert_string_equal(text, expected);
    tr_free(text);
}

#define STEP_LINE(n)                                                                               \
    "{\"event\":\"step\",\"step\":" #n ",\"epoch\":1,\"loss\":0.1,\"lr\":0.001,"                   \
    "\"grad_norm\":0.3333333333333333,\"loss_scale\":65536,\"samples_per_s\":14600.1,"             \
    "\"step_ms\":8.8,\"compute_ms\":3.1,\"comm_wait_ms\":0,\"data_wait_ms\":0.25}\n"

static void test_lines(void **state)
{
    tr_metrics *m = open_metrics(*state, false, 0);
    tr_step_record s = STEP;
    tr_eval_record e = EVAL;
    e.step = 10;
    e.samples = 300;
    e.seconds = 2;
    assert_int_equal(
        tr_metrics_event(m, "start", "ranks:u device:s note:s seconds:d bad:d resumed:b fresh:b",
                         (uint64_t)2, "a \"cpu\"\\\n\x01", (const char *)NULL, 1.5, NAN, 0, 1),
        TR_OK);
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    s.loss = INFINITY;
    s.skipped = "overflow";
    s.loss_scale = 32768;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    assert_int_equal(tr_metrics_eval(m, &e), TR_OK);
    e.accuracy = NAN;
    e.top5 = 1;
    assert_int_equal(tr_metrics_eval(m, &e), TR_OK);
    tr_metrics_close(m);
    expect(
        *state,
        "{\"event\":\"start\",\"ranks\":2,\"device\":\"a "
        "\\\"cpu\\\"\\\\\\u000a\\u0001\",\"note\":null,"
        "\"seconds\":1.5,\"bad\":null,\"resumed\":false,\"fresh\":true}\n" STEP_LINE(
            10) "{\"event\":\"step\",\"step\":10,\"epoch\":1,\"loss\":null,\"lr\":0.001,"
                "\"grad_norm\":0.3333333333333333,\"loss_scale\":32768,\"samples_per_s\":14600.1,"
                "\"step_ms\":8.8,\"compute_ms\":3.1,\"comm_wait_ms\":0,\"data_wait_ms\":0.25,"
                "\"skipped\":\"overflow\"}\n"
                "{\"event\":\"eval\",\"step\":10,\"loss\":0.5,\"accuracy\":0.25,\"samples\":300,"
                "\"seconds\":2}\n"
                "{\"event\":\"eval\",\"step\":10,\"loss\":0.5,\"top5\":1,\"samples\":300,"
                "\"seconds\":2}\n");
}

/* What is not known of a GPU is left out, one by one. */
static void test_of_a_gpu(void **state)
{
    tr_metrics *m = open_metrics(*state, false, 0);
    tr_step_record s = STEP;
    s.compute_ms = NAN;
    s.idle_ms = 0.5;
    s.gpu_memory_mb = 3000.5;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    s.idle_ms = s.gpu_memory_mb = NAN;
    s.gpu_utilization = 0;
    s.skipped = "overflow";
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    assert_int_equal(tr_metrics_event(m, "end", "a:o b:d c:o d:o", NAN, NAN, 0.0, (double)INFINITY),
                     TR_OK);
    tr_metrics_close(m);
#define HEAD                                                                                       \
    "{\"event\":\"step\",\"step\":10,\"epoch\":1,\"loss\":0.1,\"lr\":0.001,"                       \
    "\"grad_norm\":0.3333333333333333,\"loss_scale\":65536,\"samples_per_s\":14600.1,"             \
    "\"step_ms\":8.8,\"compute_ms\":null,\"comm_wait_ms\":0,\"data_wait_ms\":0.25,"
    expect(*state, HEAD "\"idle_ms\":0.5,\"gpu_memory_mb\":3000.5}\n" HEAD
                        "\"gpu_utilization\":0,\"skipped\":\"overflow\"}\n"
                        "{\"event\":\"end\",\"b\":null,\"c\":0,\"d\":null}\n");
#undef HEAD
}

static void test_fresh_start_empties(void **state)
{
    put_file(*state, "metrics.jsonl", "old\n");
    put_file(*state, "events.out.tfevents.0000000001.h.1.0", "another program's");
    tr_metrics_close(open_metrics(*state, false, 0));
    expect(*state, "");
    char *theirs = file_text(*state, "events.out.tfevents.0000000001.h.1.0", NULL);
    assert_string_equal(theirs, "another program's");
    tr_free(theirs);
}

static void test_resume(void **state)
{
    static const char start[] = "{\"event\":\"start\",\"total_steps\":90,\"step\":0}\n"
                                "{\"event\":\"note\",\"text\":\"a ,\\\"step\\\":99 b\"}\n";
    char *text = tr_sprintf("%s%s%s%s%s%s", start, STEP_LINE(10), STEP_LINE(20),
                            "torn in the midd\n" STEP_LINE(30),
                            "{\"event\":\"end\",\"steps\":30}\n", "{\"event\":\"step\",\"step\":1");
    put_file(*state, "metrics.jsonl", text);
    put_file(*state, "events.out.tfevents.0000000001.h.1.0", "kept");
    tr_metrics *m = open_metrics(*state, true, 20);
    tr_step_record s = STEP;
    s.step = 25;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    tr_metrics_close(m);
    tr_free(text);
    text = tr_sprintf("%s%s%s%s", start, STEP_LINE(10), STEP_LINE(20), STEP_LINE(25));
    expect(*state, text);
    tr_free(text);
    text = file_text(*state, "events.out.tfevents.0000000001.h.1.0", NULL);
    assert_string_equal(text, "kept");
    tr_free(text);
    /* nothing is left over, and an end at the step itself stays */
    char *pattern = tr_sprintf("%s/*.tmp-*", (char *)*state);
    glob_t found;
    assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
    globfree(&found);
    tr_free(pattern);
    put_file(*state, "metrics.jsonl", "{\"event\":\"end\",\"steps\":20}\n");
    tr_metrics_close(open_metrics(*state, true, 20));
    expect(*state, "{\"event\":\"end\",\"steps\":20}\n");
}

#define ROLLBACK_LINE(from, back) "{\"event\":\"rollback\",\"step\":" #from ",\"to\":" #back "}\n"

/* Where steps went back, the record that says so stays as long as its steps do. */
static void test_resume_after_rollback(void **state)
{
    put_file(*state, "metrics.jsonl",
             STEP_LINE(10) STEP_LINE(20) STEP_LINE(30) ROLLBACK_LINE(30, 10) STEP_LINE(20)
                 STEP_LINE(30) STEP_LINE(40) ROLLBACK_LINE(40, 30));
    tr_metrics_close(open_metrics(*state, true, 20));
    expect(*state, STEP_LINE(10) STEP_LINE(20) ROLLBACK_LINE(30, 10) STEP_LINE(20));
}

/* A line longer than any record is dropped whole, not in pieces that look like records. */
static void test_resume_long_line(void **state)
{
    char *line = tr_alloc(TR_MEM_OTHER, 3 * TR_LINE, 1);
    memset(line, 'x', 2 * TR_LINE);
    memcpy(line + TR_LINE, "{\"event\":\"note\"}\n", 18);
    put_file(*state, "metrics.jsonl", line);
    tr_metrics_close(open_metrics(*state, true, 20));
    expect(*state, "");
    tr_free(line);
}

static void test_resume_nothing(void **state)
{
    tr_metrics_close(open_metrics(*state, true, 0));
    expect(*state, "");
}

static void test_bad_spec(void **state)
{
    tr_metrics *m = open_metrics(*state, false, 0);
    assert_int_equal(tr_metrics_event(m, "x", "a:q", 1), TR_INTERNAL);
    assert_int_equal(tr_metrics_event(m, "x", "a", 1), TR_INTERNAL);
    assert_int_equal(tr_metrics_event(m, "x", ":u", 1), TR_INTERNAL);
    tr_metrics_close(m);
    expect(*state, "");
}

static void test_long_text(void **state)
{
    char *text = tr_alloc(TR_MEM_OTHER, 100001, 1);
    memset(text, '\n', 100000);
    tr_metrics *m = open_metrics(*state, false, 0);
    assert_int_equal(tr_metrics_event(m, "x", "a:s", text), TR_OK);
    tr_free(text);
    tr_metrics_close(m);
    size_t n;
    text = file_text(*state, "metrics.jsonl", &n);
    assert_int_equal(n, strlen("{\"event\":\"x\",\"a\":\"\"}\n") + 6 * 1024);
    assert_string_equal(text + n - 3, "\"}\n");
    tr_free(text);
}

static void test_no_folder(void **state)
{
    (void)state;
    tr_metrics *m = NULL;
    tr_metrics_options o = {.folder = "no/such/folder", .quiet = true};
    assert_int_equal(tr_metrics_open(&o, &m), TR_IO);
    assert_string_equal(
        tr_last_error()->text,
        "no/such/folder/metrics.jsonl: cannot be opened for writing: No such file or directory");
    assert_null(m);
    tr_mem_fail_at(1);
    assert_int_equal(tr_metrics_open(&o, &m), TR_MEMORY);
    tr_mem_fail_at(0);
    tr_metrics_close(NULL);
}

/* A full disk: the file ends with a whole record, training goes on, and so does the file later. */
static void test_full_disk(void **state)
{
    struct rlimit old, tight;
    size_t n;
    tr_metrics *m = open_metrics(*state, false, 0);
    tr_step_record s = STEP;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    char *text = file_text(*state, "metrics.jsonl", &n);
    tr_free(text);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = n + 10;
    /* the warning goes through a pipe, which the limit does not touch */
    int ends[2], err = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    setrlimit(RLIMIT_FSIZE, &tight);
    tr_status first = tr_metrics_event(m, "x", "a:s", "longer than ten bytes");
    tr_status second = tr_metrics_event(m, "x", "a:s", "longer than ten bytes");
    setrlimit(RLIMIT_FSIZE, &old);
    dup2(err, STDERR_FILENO);
    close(err);
    close(ends[1]);
    char said[2048];
    ssize_t length = read(ends[0], said, sizeof said - 1);
    close(ends[0]);
    assert_true(length > 0);
    said[length] = 0;
    char *warning =
        tr_sprintf("trainer: warning: %s/metrics.jsonl: a record was not written: File too large; "
                   "training goes on\n",
                   (char *)*state);
    assert_string_equal(said, warning); /* once */
    tr_free(warning);
    assert_int_equal(first, TR_OK);
    assert_int_equal(second, TR_OK);
    expect(*state, STEP_LINE(10));
    assert_int_equal(tr_metrics_event(m, "end", "steps:u", (uint64_t)10), TR_OK);
    tr_metrics_close(m);
    expect(*state, STEP_LINE(10) "{\"event\":\"end\",\"steps\":10}\n");
}

static void test_no_allocation(void **state)
{
    tr_metrics *m = open_metrics(*state, false, 0);
    tr_step_record s = STEP;
    tr_eval_record e = {
        .step = 10, .samples = 300, .loss = 0.5, .accuracy = 0.25, .top5 = 0.5, .seconds = 2};
    uint64_t calls = tr_mem_calls();
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tr_metrics_step(m, &s), TR_OK);
        assert_int_equal(tr_metrics_eval(m, &e), TR_OK);
        assert_int_equal(tr_metrics_event(m, "x", "a:u", (uint64_t)i), TR_OK);
        tr_metrics_progress(m, &(tr_progress_record){.step = (uint64_t)i, .loss = 1});
    }
    tr_metrics_progress_end(m);
    assert_int_equal(tr_mem_calls(), calls);
    tr_metrics_close(m);
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_lines),
        IN_FOLDER(test_of_a_gpu),
        IN_FOLDER(test_fresh_start_empties),
        IN_FOLDER(test_resume),
        IN_FOLDER(test_resume_long_line),
        IN_FOLDER(test_resume_nothing),
        IN_FOLDER(test_bad_spec),
        IN_FOLDER(test_long_text),
        IN_FOLDER(test_no_folder),
        IN_FOLDER(test_resume_after_rollback),
        IN_FOLDER(test_full_disk),
        IN_FOLDER(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
