/* The run folder: made, held, refused, replaced, and given back without a trace when no run came of
 * it; also by jobs that are started at the same time for one folder. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "trainer/pipeline/stage_files.h"
#include "trainer/run/run_folder.h"

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void touch(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

/* Every test works in a folder of its own. */
static int enter(void **state)
{
    char *path = strdup("/tmp/run-folder-XXXXXX");
    *state = path;
    return path && mkdtemp(path) && chdir(path) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", (char *)*state);
    const int rc = chdir("/") == 0 ? system(command) : -1;
    free(*state);
    return rc;
}

static tr_run_folder *opened(const char *path, bool resume, bool force)
{
    tr_run_folder *f = NULL;
    if (tr_run_folder_open(path, resume, force, &f) != TR_OK) fail_msg("%s", tr_last_error()->text);
    return f;
}

static void begin(tr_run_folder *f)
{
    if (tr_run_folder_begin(f, "seed: 1\n") != TR_OK) fail_msg("%s", tr_last_error()->text);
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

static void refused(const char *path, bool resume, bool force, tr_status st, const char *why)
{
    tr_run_folder *f = NULL;
    assert_int_equal(tr_run_folder_open(path, resume, force, &f), st);
    assert_non_null(strstr(tr_last_error()->text, why));
    assert_null(f);
}

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

static const char *const ours[] = {"config.yaml",
                                   "metrics.jsonl",
                                   "model.h5",
                                   "report.html",
                                   "trace.json",
                                   "events.out.tfevents.1.host.2.0.trireme",
                                   "checkpoints/step-00000004.h5",
                                   "checkpoints/best.h5",
                                   "checkpoints/step-00000002.h5.damaged",
                                   "checkpoints/best.h5.damaged",
                                   "checkpoints/step-00000003.h5.other"};
static const char *const others[] = {"notes",
                                     "results.html",
                                     "events.out.tfevents.1.host.2.0",
                                     "model.h5.tmp-",
                                     "checkpoints/best.h5.bak",
                                     "model.h5.bak",
                                     "notes.tmp-1",
                                     "checkpoints/notes",
                                     "checkpoints/keep-this.h5",
                                     "checkpoints/step-4.h5.bak",
                                     "checkpoints/step-.h5",
                                     "checkpoints/bestest.h5"};

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* The files of a run, in a folder that says that a run began there. */
static void put_run(void)
{
    (void)mkdir("run", 0777);
    (void)mkdir("run/checkpoints", 0777);
    put("run/.lock", "trireme run folder\n");
    for (size_t i = 0; i < TR_COUNT(ours) + TR_COUNT(others); i++) {
        char path[256];
        snprintf(path, sizeof path, "run/%s",
                 i < TR_COUNT(ours) ? ours[i] : others[i - TR_COUNT(ours)]);
        touch(path);
    }
}

/* How many of these are in run/. */
static size_t there(const char *const *names, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        char path[256];
        snprintf(path, sizeof path, "run/%s", names[i]);
        count += exists(path);
    }
    return count;
}

/* The run that is replaced stays whole until the new one begins, and goes then, but nothing else. */
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

/* Somebody's files with names of ours are neither written over nor removed, whatever the flags. */
static void test_files_of_others(void **state)
{
    (void)state;
    static const char *const names[] = {"config.yaml", "metrics.jsonl", "checkpoints/best.h5",
                                        "report.html", "trace.json"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        char path[64];
        assert_int_equal(system("rm -rf run; mkdir -p run/checkpoints"), 0);
        snprintf(path, sizeof path, "run/%s", names[i]);
        put(path, "theirs");
        touch("run/.replacing");
        for (int how = 0; how < 3; how++) {
            if (how == 1 && i == 2) continue; /* checkpoints alone may be gone on with */
            refused("run", how == 1, how == 2, TR_USAGE, path);
        }
        assert_true(exists(path) && exists("run/.replacing") && !exists("run/.lock"));
    }
    assert_int_equal(system("rm -rf run; mkdir -p run"), 0);
    put("run/.lock", "of another program");
    refused("run", false, true, TR_USAGE, "run/.lock was made by no run");
    put("run/.lock", "");
    touch("run/results.json");
    touch("run/events.out.tfevents.1.host.2.0");
    tr_run_folder *f = opened("run", false, true);
    begin(f);
    tr_run_folder_close(f);
    assert_true(exists("run/results.json") && exists("run/events.out.tfevents.1.host.2.0"));
}

/* Links and pipes in the place of what a run makes: errors at once, and what a link leads to stays as it is. */
static void test_links_and_pipes(void **state)
{
    (void)state;
    static const char *const names[] = {"checkpoints", ".lock", ".replacing"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        for (int pipe = 0; pipe < 2; pipe++) {
            char path[64], why[128];
            const char *to = i == 0 ? "../away/checkpoints" : "../new";
            snprintf(path, sizeof path, "run/%s", names[i]);
            assert_int_equal(system("rm -rf run away"), 0);
            put_run();
            assert_int_equal(rename("run", "away"), 0);
            put_run();
            snprintf(why, sizeof why, "rm -rf %s", path);
            assert_int_equal(system(why), 0);
            if (i == 1) put("run/metrics.jsonl", "{\"event\":\"start\",\"ranks\":1}\n");
            assert_int_equal(pipe ? mkfifo(path, 0666) : symlink(to, path), 0);
            snprintf(why, sizeof why, "%s: is a %s, expected a %s", path, pipe ? "pipe" : "link",
                     i == 0 ? "folder" : "file");
            refused("run", false, true, i == 0 ? TR_USAGE : TR_IO, why);
            assert_false(exists("new"));
            assert_true(exists("away/checkpoints/best.h5") && exists("run/config.yaml"));
        }
}

/* Nor does what a run writes later follow a link of such a name: the link is replaced, or nothing is written. */
static void test_links_of_files(void **state)
{
    (void)state;
    static const char *const names[] = {"run/config.yaml", "run/metrics.jsonl", "run/model.h5"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        for (int kind = 0; kind < 4; kind++) {
            const bool pipe = kind & 1, resume = kind & 2;
            assert_int_equal(system("rm -rf run; mkdir run"), 0);
            put_run();
            put("theirs", "theirs");
            unlink(names[i]);
            assert_int_equal(pipe ? mkfifo(names[i], 0666) : symlink("../theirs", names[i]), 0);
            tr_run_folder *f = opened("run", resume, !resume);
            begin(f);
            struct stat info;
            const bool there = lstat(names[i], &info) == 0;
            /* a replaced run's names go; the config is written anew in any case */
            assert_int_equal(there, i == 0 || resume);
            if (i == 0) assert_true(S_ISREG(info.st_mode));
            tr_run_folder_close(f);
            FILE *to = fopen("theirs", "r");
            char text[16] = "";
            assert_true(to && fgets(text, sizeof text, to));
            fclose(to);
            assert_string_equal(text, "theirs");
        }
    assert_int_equal(system("rm -rf run; mkdir -p run away/stages"), 0);
    for (int pipe = 0; pipe < 2; pipe++) {
        unlink("run/stages");
        assert_int_equal(
            pipe ? mkfifo("run/stages", 0666) : symlink("../away/stages", "run/stages"), 0);
        assert_int_equal(tr_stage_files_make("run"), TR_USAGE);
        assert_non_null(
            strstr(tr_last_error()->text, pipe ? "run/stages: is a pipe, expected a folder"
                                               : "run/stages: is a link, expected a folder"));
        put("away/stages/00-fold.h5", "theirs");
        assert_int_equal(tr_stage_files_remove("run", 0, NULL, false), TR_OK);
        assert_true(exists("away/stages/00-fold.h5"));
    }
}

/* What killed writers left goes when a run begins; what may still be written to stays, and what is not ours. */
static void test_leftovers(void **state)
{
    (void)state;
    static const char *const names[] = {"run/model.h5.tmp-%s",
                                        "run/config.yaml.tmp-%s",
                                        "run/metrics.jsonl.tmp-%s",
                                        "run/notes.tmp-%s",
                                        "run/checkpoints/step-00000006.h5.tmp-%s",
                                        "run/checkpoints/best.h5.tmp-%s",
                                        "run/stages/notes.tmp-%s",
                                        "run/stages/01-fold.candidate.h5.tmp-%s",
                                        "run/stages/02-export.onnx.tmp-%s"};
    const pid_t gone = fork();
    if (gone == 0) _exit(0);
    assert_int_equal(waitpid(gone, NULL, 0), gone);
    for (int resume = 0; resume < 2; resume++)
        for (int kind = 0; kind < 4; kind++) {
            char who[128], host[65] = "", path[200];
            struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
            gethostname(host, 64);
            /* its process gone, alive, another host's, another host's and long quiet */
            snprintf(who, sizeof who, "%ld.%s%s", (long)(kind == 1 ? getppid() : gone), host,
                     kind >= 2 ? "-other" : "");
            put_run();
            assert_int_equal(mkdir("run/stages", 0777), 0);
            for (size_t i = 0; i < TR_COUNT(names); i++) {
                snprintf(path, sizeof path, names[i], who);
                touch(path);
                if (kind == 3) assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
            }
            tr_run_folder *f = opened("run", resume, !resume);
            snprintf(path, sizeof path, names[0], who);
            assert_true(exists(path)); /* no run began */
            begin(f);
            tr_run_folder_close(f);
            for (size_t i = 0; i < TR_COUNT(names); i++) {
                snprintf(path, sizeof path, names[i], who);
                /* a run that is replaced takes its stages with it */
                assert_int_equal(exists(path),
                                 i == 3 || i == 6 || (kind % 3 != 0 && (i < 7 || resume)));
            }
            assert_int_equal(system("rm -rf run"), 0);
        }
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

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_nothing_is_left),  IN_FOLDER(test_what_was_there_stays),
        IN_FOLDER(test_a_run_stays),      IN_FOLDER(test_refuses),
        IN_FOLDER(test_replaces),         IN_FOLDER(test_cannot_begin),
        IN_FOLDER(test_started_together), IN_FOLDER(test_ends_in_the_midst),
        IN_FOLDER(test_begun_meanwhile),  IN_FOLDER(test_files_of_others),
        IN_FOLDER(test_links_and_pipes),  IN_FOLDER(test_links_of_files),
        IN_FOLDER(test_leftovers),        IN_FOLDER(test_moved_and_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
