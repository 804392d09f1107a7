/* What the tests of run folders share: a folder of their own for each, a run's files in it, opening
 * it. */
#ifndef TR_TEST_RUN_FOLDER_HARNESS_H
#define TR_TEST_RUN_FOLDER_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "trainer/run/run_folder.h"

static inline bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static inline void touch(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

/* Every test works in a folder of its own. */
static inline int enter(void **state)
{
    char *path = strdup("/tmp/run-folder-XXXXXX");
    *state = path;
    return path && mkdtemp(path) && chdir(path) == 0 ? 0 : -1;
}

static inline int leave(void **state)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", (char *)*state);
    const int rc = chdir("/") == 0 ? system(command) : -1;
    free(*state);
    return rc;
}

static inline tr_run_folder *opened(const char *path, bool resume, bool force)
{
    tr_run_folder *f = NULL;
    if (tr_run_folder_open(path, resume, force, &f) != TR_OK) fail_msg("%s", tr_last_error()->text);
    return f;
}

static inline void begin(tr_run_folder *f)
{
    if (tr_run_folder_begin(f, "seed: 1\n") != TR_OK) fail_msg("%s", tr_last_error()->text);
}

static inline void refused(const char *path, bool resume, bool force, tr_status st, const char *why)
{
    tr_run_folder *f = NULL;
    assert_int_equal(tr_run_folder_open(path, resume, force, &f), st);
    assert_non_null(strstr(tr_last_error()->text, why));
    assert_null(f);
}

static const char *const ours[] = {"config.yaml",
                                   "metrics.jsonl",
                                   "model.h5",
                                   "report.html",
                                   "trace.json",
                                   "profile.folded",
                                   "profile.roofline.svg",
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

static inline void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* The files of a run, in a folder that says that a run began there. */
static inline void put_run(void)
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
static inline size_t there(const char *const *names, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        char path[256];
        snprintf(path, sizeof path, "run/%s", names[i]);
        count += exists(path);
    }
    return count;
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter, leave)

#endif
