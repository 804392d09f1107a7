/* What lies in a run folder already: files, links and pipes that others put there stay as they are,
 * what a process that is gone left goes. */
#include "run_folder_harness.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "trainer/run/stage_files.h"

/* Somebody's files with names of ours are neither written over nor removed, whatever the flags. */
static void test_files_of_others(void **state)
{
    (void)state;
    static const char *const names[] = {"config.yaml", "metrics.jsonl", "checkpoints/best.h5",
                                        "report.html", "trace.json",    "profile.txt"};
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

/* Links and pipes in the place of what a run makes: errors at once, and what a link leads to stays
 * as it is. */
static void test_links_and_pipes(void **state)
{
    (void)state;
    static const char *const names[] = {"checkpoints", "stages", ".lock", ".replacing"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        for (int pipe = 0; pipe < 2; pipe++) {
            char path[64], why[128];
            const char *to = i < 2 ? "../away/checkpoints" : "../new";
            snprintf(path, sizeof path, "run/%s", names[i]);
            assert_int_equal(system("rm -rf run away"), 0);
            put_run();
            assert_int_equal(rename("run", "away"), 0);
            put_run();
            snprintf(why, sizeof why, "rm -rf %s", path);
            assert_int_equal(system(why), 0);
            if (i == 2) put("run/metrics.jsonl", "{\"event\":\"start\",\"ranks\":1}\n");
            assert_int_equal(pipe ? mkfifo(path, 0666) : symlink(to, path), 0);
            snprintf(why, sizeof why, "%s: is a %s, expected a %s", path, pipe ? "pipe" : "link",
                     i < 2 ? "folder" : "file");
            refused("run", false, true, i < 2 ? TR_USAGE : TR_IO, why);
            assert_false(exists("new"));
            assert_true(exists("away/checkpoints/best.h5") && exists("run/config.yaml"));
        }
}

/* Nor does what a run writes later follow a link of such a name: the link is replaced, or nothing
 * is written. */
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
        assert_int_equal(tr_stage_files_remove("run", 0, NULL, false), TR_IO);
        assert_non_null(strstr(tr_last_error()->text, "run/stages: is a "));
        assert_true(exists("away/stages/00-fold.h5"));
    }
}

/* What killed writers left goes when a run begins; what may still be written to stays, and what is
 * not ours. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_files_of_others),
        IN_FOLDER(test_links_and_pipes),
        IN_FOLDER(test_links_of_files),
        IN_FOLDER(test_leftovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
