/* The progress line, into a pipe, at times that the test makes up. */
#include "tests/unit/metrics/folder.h"

#include <fcntl.h>

typedef struct {
    tr_progress p;
    int out;
} line;

static void open_line(line *l, bool terminal, size_t columns, uint64_t total)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    l->out = ends[0];
    const tr_metrics_options o = {.total_steps = total, .total_epochs = total / 30};
    setenv("NO_COLOR", "1", 1);
    tr_progress_init(&l->p, ends[1], terminal, -1, columns, &o);
}

static void step(line *l, double now, uint64_t at, uint64_t epoch, double loss, double rate)
{
    tr_progress_step(
        &l->p, now,
        &(tr_progress_record){
            .step = at, .epoch = epoch, .loss = loss, .accuracy = NAN, .samples_per_s = rate});
}

static void close_line(line *l)
{
    int in = l->p.fd;
    tr_progress_fini(&l->p);
    close(in);
    close(l->out);
}

static void said(line *l, const char *expected)
{
    char text[4096];
    ssize_t n = read(l->out, text, sizeof text - 1);
    text[n < 0 ? 0 : n] = 0;
    assert_string_equal(text, expected);
}

static void test_terminal(void **state)
{
    (void)state;
    line l;
    open_line(&l, true, 120, 1000);
    step(&l, 100.0, 1, 0, NAN, 0);
    said(&l, "\r[----------------]   0 %  epoch 1/33  step 1/1000\033[K");
    step(&l, 100.05, 2, 0, 2.5, 100); /* too soon */
    said(&l, "");
    step(&l, 110.0, 101, 3, 0.123456, 14600);
    said(&l,
         "\r[#---------------]  10 %  epoch 4/33  step 101/1000  loss 0.12346  14.6 k samples/s  "
         "1:29 left\033[K");
    tr_progress_eval(&l.p, 0.5, 0.75);
    tr_progress_before_log(&l.p);
    said(&l, "\r\033[K");
    tr_progress_after_log(&l.p);
    said(&l,
         "\r[#---------------]  10 %  epoch 4/33  step 101/1000  loss 0.12346  14.6 k samples/s  "
         "1:29 left  eval 0.5, 75.00 %\033[K");
    step(&l, 110.01, 102, 3, 0.5, 14600); /* too soon, but the newest at the end */
    said(&l, "");
    tr_progress_end(&l.p);
    said(&l,
         "\r[#---------------]  10 %  epoch 4/33  step 102/1000  loss 0.5  14.6 k samples/s  1:28 "
         "left  eval 0.5, 75.00 %\033[K\n");
    tr_progress_before_log(&l.p); /* nothing stands there any more */
    tr_progress_after_log(&l.p);
    tr_progress_end(&l.p);
    said(&l, "");
    close_line(&l);
}

/* What matters most stays; of that, as much as fits. */
static void test_narrow(void **state)
{
    (void)state;
    static const struct {
        size_t columns;
        const char *expected;
    } widths[] = {{12, "step 101/10"},
                  {27, "step 101/1000  1:29 left"},
                  {28, "step 101/1000  loss 0.12345"},
                  {38, "step 101/1000  loss 0.12345"},
                  {39, "step 101/1000  loss 0.12345  1:29 left"},
                  {52, "epoch 4/33  step 101/1000  loss 0.12345  1:29 left"}};
    for (size_t i = 0; i < TR_COUNT(widths); i++) {
        line l;
        char text[128];
        open_line(&l, true, widths[i].columns, 1000);
        step(&l, 100, 1, 0, 1, 1);
        while (read(l.out, text, sizeof text) > 0)
            ;
        step(&l, 110, 101, 3, 0.12345, 14600);
        ssize_t n = read(l.out, text, sizeof text - 1);
        text[n < 0 ? 0 : n] = 0;
        assert_true(n > 4 && (size_t)n - 4 < widths[i].columns);
        text[n - 3] = 0;
        assert_string_equal(text + 1, widths[i].expected);
        close_line(&l);
    }
}

/* A line that was drawn when the terminal was wider stands on three rows. */
static void test_resized(void **state)
{
    (void)state;
    line l;
    open_line(&l, true, 120, 1000);
    step(&l, 100, 1, 0, NAN, 0);
    said(&l, "\r[----------------]   0 %  epoch 1/33  step 1/1000\033[K");
    l.p.columns = 20;
    step(&l, 110, 2, 0, NAN, 0);
    said(&l, "\r\033[2A\033[J\rstep 2/1000\033[K");
    close_line(&l);
}

static void test_plain(void **state)
{
    (void)state;
    line l;
    open_line(&l, false, 80, 0);
    step(&l, 100, 1, 0, 1, 50);
    step(&l, 109, 10, 0, 1, 50);
    said(&l, "");
    step(&l, 110, 11, 0, 1, 50);
    said(&l, "step 11  epoch 0  loss 1  50 samples/s\n");
    tr_progress_before_log(&l.p);
    tr_progress_after_log(&l.p);
    said(&l, "");
    step(&l, 111, 12, 0, 1, 50);
    tr_progress_end(&l.p);
    said(&l, "step 12  epoch 0  loss 1  50 samples/s\n");
    tr_progress_end(&l.p);
    said(&l, "");
    close_line(&l);
}

static void test_nothing_said(void **state)
{
    (void)state;
    line l;
    open_line(&l, true, 80, 10);
    tr_progress_end(&l.p);
    said(&l, "");
    close_line(&l);
}

/* A pipe is no terminal unless a launcher stands behind it. */
static void test_pipe_is_plain(void **state)
{
    (void)state;
    int ends[2], err = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("PMIX_RANK");
    unsetenv("PMI_RANK");
    setenv("TERM", "xterm", 1);
    dup2(ends[1], STDERR_FILENO);
    const int terminal = tr_progress_terminal();
    dup2(err, STDERR_FILENO);
    close(err);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(terminal, -1);
    setenv("TERM", "dumb", 1);
    assert_int_equal(tr_progress_terminal(), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terminal),     cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_resized),      cmocka_unit_test(test_plain),
        cmocka_unit_test(test_nothing_said), cmocka_unit_test(test_pipe_is_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
