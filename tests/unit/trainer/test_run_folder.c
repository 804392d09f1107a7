/* The run folder: made, held, refused, replaced, and given back without a trace when no run came of
 * it; also by jobs that are started at the same time for one folder. */
#include "run_folder_harness.h"

#include <fcntl.h>
#include <sys/wait.h>

static void test_nothing_is_left(void **state)
{
    (void)state;
    char absolute[512];
    assert_non_null(getcwd(absolute, 256));
    strcat(absolute, "/abs/run");
    const char *const paths[] = {"run", "a/b/c", "a//b/c/", "./a/b", "a/../b/c", absolute};
    for (size_t i = 0; i < TR_COUNT(paths); i++) {
        tr_run_folder *f = opened(paths[i], false, false);
        assert_true(exists(paths[i]));
        tr_run_folder_close(f);
        assert_false(exists("run") || exists("a") || exists("b") || exists("abs"));
    }
    tr_run_folder_close(NULL);
}

/* Memory may run out at any point: it is told, and what was made so far goes. */
static void test_out_of_memory(void **state)
{
    tr_status st = TR_MEMORY;
    (void)state;
    for (uint64_t n = 1; st != TR_OK; n++) {
        tr_run_folder *f = NULL;
        tr_mem_fail_at(n);
        st = tr_run_folder_open("a/b", false, false, &f);
        tr_mem_fail_at(0);
        assert_true(st == TR_OK || st == TR_MEMORY);
        assert_true(exists("a") == (st == TR_OK));
        tr_run_folder_close(f);
    }
}

static void test_what_was_there_stays(void **state)
{
    (void)state;
    assert_int_equal(mkdir("a", 0777), 0);
    tr_run_folder_close(opened("a/b/c", false, false));
    assert_true(exists("a"));
    assert_false(exists("a/b"));
    assert_int_equal(mkdir("a/b", 0777), 0);
    tr_run_folder_close(opened("a/b", false, false));
    assert_true(exists("a/b"));
    assert_false(exists("a/b/.lock") || exists("a/b/checkpoints"));
    assert_int_equal(mkdir("a/b/checkpoints", 0777), 0);
    touch("a/b/notes");
    tr_run_folder_close(opened("a/b", false, false));
    assert_true(exists("a/b/checkpoints") && exists("a/b/notes"));
    assert_false(exists("a/b/.lock"));
    /* what came into a folder of ours meanwhile keeps it */
    tr_run_folder *f = opened("a/d", false, false);
    touch("a/d/config.yaml");
    tr_run_folder_close(f);
    assert_true(exists("a/d/config.yaml"));
}

static void test_a_run_stays(void **state)
{
    (void)state;
    tr_run_folder *f = opened("a/run", false, false);
    begin(f);
    tr_run_folder_undo(f);
    tr_run_folder_close(f);
    assert_true(exists("a/run/checkpoints") && exists("a/run/.lock"));
    assert_true(unlink("a/run/config.yaml") == 0);
    tr_run_folder_close(opened("a/run", false, false));
    assert_true(exists("a/run/checkpoints") && exists("a/run/.lock"));
}

static const char *config(void)
{
    static char text[64];
    FILE *f = fopen("run/config.yaml", "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* The run that is replaced stays whole until the new one begins, and goes then, but nothing
 * else. */
static void test_replaces(void **state)
{
    (void)state;
    put_run();
    tr_run_folder *f = opened("run", false, true);
    assert_int_equal(there(ours, TR_COUNT(ours)), TR_COUNT(ours));
    tr_run_folder_close(f);
    assert_int_equal(there(ours, TR_COUNT(ours)), TR_COUNT(ours));

    f = opened("run", false, true);
    begin(f);
    assert_int_equal(there(ours, TR_COUNT(ours)), 1);
    assert_int_equal(there(others, TR_COUNT(others)), TR_COUNT(others));
    assert_string_equal(config(), "seed: 1\n");
    touch("run/model.h5"); /* the new one's own */
    begin(f);
    tr_run_folder_close(f);
    assert_true(exists("run/model.h5"));

    put_run();
    f = opened("run", true, false);
    begin(f);
    tr_run_folder_close(f);
    assert_int_equal(there(ours, TR_COUNT(ours)), TR_COUNT(ours));
    assert_string_equal(config(), "seed: 1\n");
}

static void test_cannot_begin(void **state)
{
    (void)state;
    put_run();
    assert_int_equal(unlink("run/config.yaml"), 0);
    assert_int_equal(mkdir("run/config.yaml", 0777), 0);
    tr_run_folder *f = opened("run", false, true);
    assert_int_equal(tr_run_folder_begin(f, "seed: 1\n"), TR_IO);
    assert_non_null(strstr(tr_last_error()->text, "run/config.yaml: rename: Is a directory"));
    tr_run_folder_close(f);
    assert_int_equal(there(ours, TR_COUNT(ours)), TR_COUNT(ours));
    assert_int_equal(there(others, TR_COUNT(others)), TR_COUNT(others));
    assert_int_equal(system("test -z \"$(ls run | grep config.yaml.tmp)\""), 0);
}

/* A job that ends while it removes the old run leaves none of it to be taken for the new one. */
static void test_ends_in_the_midst(void **state)
{
    (void)state;
    for (int resume = 0; resume < 2; resume++) {
        put_run();
        assert_int_equal(mkdir("run/checkpoints/step-00000099.h5", 0777), 0); /* is in the way */
        tr_run_folder *f = opened("run", false, true);
        assert_int_equal(tr_run_folder_begin(f, "seed: 1\n"), TR_IO);
        assert_non_null(strstr(tr_last_error()->text, "step-00000099.h5 cannot be removed"));
        tr_run_folder_close(f);
        refused("run", resume, false, TR_IO, "step-00000099.h5 cannot be removed");
        assert_int_equal(rmdir("run/checkpoints/step-00000099.h5"), 0);

        f = opened("run", resume, false); /* not refused: there is no run */
        assert_int_equal(there(ours, TR_COUNT(ours)), 0);
        assert_int_equal(there(others, TR_COUNT(others)), TR_COUNT(others));
        begin(f);
        tr_run_folder_close(f);
        assert_false(exists("run/.replacing"));
        assert_int_equal(unlink("run/config.yaml"), 0);
    }
}

/* Where locks do not work another job may have been first. */
static void test_begun_meanwhile(void **state)
{
    (void)state;
    tr_run_folder *f = opened("run", false, false);
    touch("run/checkpoints/step-00000004.h5");
    assert_int_equal(tr_run_folder_begin(f, "seed: 1\n"), TR_USAGE);
    assert_non_null(strstr(tr_last_error()->text, "another job began meanwhile"));
    tr_run_folder_close(f);
    assert_true(exists("run/checkpoints/step-00000004.h5"));
    assert_false(exists("run/config.yaml"));
}

/* What refuses leaves nothing either. */
static void test_refuses(void **state)
{
    (void)state;
    assert_int_equal(mkdir("run", 0777), 0);
    touch("run/model.h5");
    for (int how = 0; how < 3; how++) {
        refused("run", how == 1, how == 2, TR_USAGE, "run/model.h5 is there, and no run");
        assert_false(exists("run/.lock") || exists("run/checkpoints"));
    }
    /* of a run from before folders were marked */
    put("run/metrics.jsonl", "{\"event\":\"start\",\"ranks\":1}\n");
    refused("run", false, false, TR_USAGE, "already holds a run");
    tr_run_folder_close(opened("run", true, false));
    tr_run_folder_close(opened("run", false, true));
    assert_true(exists("run/model.h5"));

    tr_run_folder *f = opened("two", false, false);
    refused("two", true, false, TR_USAGE, "in use");
    assert_true(exists("two/.lock") && exists("two/checkpoints"));
    tr_run_folder_close(f);
    assert_false(exists("two"));

    touch("file");
    refused("file/run", false, false, TR_IO, "file");
    char longer[400] = "new/";
    memset(longer + 4, 'x', 300);
    refused(longer, false, false, TR_IO, "cannot be made");
    assert_false(exists("new"));
}

static void test_moved_and_removed(void **state)
{
    (void)state;
    bool moved = true;
    tr_run_folder *f = opened("a/run", false, false);
    begin(f);
    assert_int_equal(tr_run_folder_follow(f, &moved), TR_OK);
    assert_false(moved);
    assert_int_equal(rename("a", "b"), 0);
    assert_int_equal(mkdir("a", 0777), 0);
    assert_int_equal(mkdir("a/run", 0777), 0); /* another one */
    assert_int_equal(tr_run_folder_follow(f, &moved), TR_OK);
    assert_true(moved);
    assert_non_null(strstr(tr_run_folder_path(f), "/b/run"));
    assert_int_equal(rmdir("b/run/checkpoints"), 0);
    assert_int_equal(tr_run_folder_follow(f, &moved), TR_OK);
    assert_true(!moved && exists("b/run/checkpoints"));
    assert_int_equal(system("rm -r b"), 0);
    assert_int_equal(tr_run_folder_follow(f, &moved), TR_IO);
    assert_non_null(strstr(tr_last_error()->text, "was removed while the job runs"));
    tr_run_folder_close(f);
    assert_false(exists("b"));
}

/* Holds the folder alone, so many times, and while it does all of it is there. */
static int contend(int times)
{
    for (int had = 0; had < times;) {
        tr_run_folder *f = NULL;
        const tr_status st = tr_run_folder_open("x/y/run", false, false, &f);
        if (st == TR_USAGE && strstr(tr_last_error()->text, "in use")) continue;
        if (st != TR_OK) return 1;
        const int mark = open("x/y/run/checkpoints/mark", O_CREAT | O_EXCL | O_WRONLY, 0666);
        if (mark < 0 || !exists("x/y/run/.lock")) return 1;
        close(mark);
        if (unlink("x/y/run/checkpoints/mark") != 0) return 1;
        tr_run_folder_close(f);
        had++;
    }
    return 0;
}

static void test_started_together(void **state)
{
    (void)state;
    enum { JOBS = 4 };
    pid_t jobs[JOBS];
    for (int j = 0; j < JOBS; j++) {
        jobs[j] = fork();
        assert_true(jobs[j] >= 0);
        if (jobs[j] == 0) _exit(contend(200));
    }
    for (int j = 0; j < JOBS; j++) {
        int status;
        assert_int_equal(waitpid(jobs[j], &status, 0), jobs[j]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_nothing_is_left),  IN_FOLDER(test_what_was_there_stays),
        IN_FOLDER(test_a_run_stays),      IN_FOLDER(test_refuses),
        IN_FOLDER(test_replaces),         IN_FOLDER(test_cannot_begin),
        IN_FOLDER(test_started_together), IN_FOLDER(test_ends_in_the_midst),
        IN_FOLDER(test_begun_meanwhile),  IN_FOLDER(test_moved_and_removed),
        IN_FOLDER(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
