/* A run folder's checkpoints: what is removed, and what never; kill -9 at any moment; two
 * writers. */
#include "folder.h"
#include "runtime/store/internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static void prune_and_best(void **state)
{
    fixture *f = *state;
    char best[128], *path;
    struct stat a, b;
    for (uint64_t s = 1; s <= 5; s++) save(f, s * 100);
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    path = tr_store_checkpoint_path(f->folder, 100);
    for (int twice = 0; twice < 2; twice++) {
        assert_ok(tr_store_link(path, best));
        assert_int_equal(stat(path, &a), 0);
        assert_int_equal(stat(best, &b), 0);
        assert_int_equal(a.st_ino, b.st_ino);
        assert_int_equal(a.st_nlink, 2); /* no third name is left */
    }
    tr_free(path);
    assert_ok(tr_store_prune(f->folder, 0, 500));
    assert_true(there(f, "step-00000100.h5"));
    assert_ok(tr_store_prune(f->folder, 2, 500));
    assert_false(there(f, "step-00000100.h5"));
    assert_false(there(f, "step-00000300.h5"));
    assert_true(there(f, "step-00000400.h5"));
    assert_true(there(f, "step-00000500.h5"));
    assert_ok(tr_store_verify(best, NULL));
    path = tr_store_checkpoint_path(f->folder, 500);
    assert_ok(tr_store_link(path, best)); /* over an older one */
    assert_int_equal(stat(best, &b), 0);
    assert_int_equal(b.st_nlink, 2);
    tr_free(path);
    assert_error(tr_store_link("store-nowhere.h5", best), TR_IO, "No such file");
    assert_ok(tr_store_verify(best, NULL));
}

/* A full disk: unsound ones go first, and no sound one for the sake of an unsound one. */
static void make_room_beside_unsound(void **state)
{
    fixture *f = *state;
    bool removed;
    save(f, 100);
    save(f, 200);
    save_as(f, 500, true);
    assert_latest(f, 200); /* sets 500 aside */
    save_as(f, 300, true);
    save_as(f, 400, true);
    static const struct {
        bool sound; /* what the room is for */
        const char *goes;
    } going[] = {{false, "step-00000500.h5.unsound"},
                 {false, "step-00000300.h5"},
                 {false, NULL},
                 {true, "step-00000100.h5"},
                 {true, NULL}};
    for (size_t i = 0; i < TR_COUNT(going); i++) {
        if (going[i].goes) assert_true(there(f, going[i].goes));
        assert_ok(tr_store_make_room(f->folder, 350, going[i].sound, &removed));
        assert_int_equal(removed, going[i].goes != NULL);
        if (removed) assert_false(there(f, going[i].goes));
    }
    assert_true(there(f, "step-00000200.h5"));
    assert_true(there(f, "step-00000400.h5")); /* of a later step */
}

/* A full disk: the oldest goes, one at a time, and never the newest whole one. */
static void make_room(void **state)
{
    fixture *f = *state;
    bool removed = true;
    assert_ok(tr_store_make_room(f->folder, 500, true, &removed));
    assert_false(removed);
    for (uint64_t s = 1; s <= 5; s++) save(f, s * 100);
    damage(f, 400, 12);
    static const char *const going[] = {"step-00000100.h5", "step-00000200.h5", NULL};
    for (size_t i = 0; i < TR_COUNT(going); i++) { /* 500 was given up: a run goes on from 300 */
        assert_ok(tr_store_make_room(f->folder, 400, true, &removed));
        assert_int_equal(removed, going[i] != NULL);
        if (removed) assert_false(there(f, going[i]));
    }
    assert_true(there(f, "step-00000300.h5"));
    assert_true(there(f, "step-00000400.h5"));
    assert_true(there(f, "step-00000500.h5"));
}

/* A run that went on from an older checkpoint keeps what it writes, whatever lies past it. */
static void prune_below_newer(void **state)
{
    fixture *f = *state;
    char path[128];
    for (uint64_t s = 1; s <= 4; s++) save(f, s * 100);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000400.h5", f->folder);
    assert_int_equal(truncate(path, 100), 0);
    assert_ok(tr_store_prune(f->folder, 1, 300));
    assert_false(there(f, "step-00000100.h5"));
    assert_false(there(f, "step-00000200.h5"));
    assert_true(there(f, "step-00000300.h5"));
    assert_true(there(f, "step-00000400.h5"));
    assert_latest(f, 300);
}

/* Another device than the test's folder, where a hard link cannot reach. */
static void link_becomes_copy(void **state)
{
    fixture *f = *state;
    char target[64];
    struct stat here, shm;
    readback r;
    if (stat("/dev/shm", &shm) != 0 || stat(f->folder, &here) != 0 || shm.st_dev == here.st_dev ||
        access("/dev/shm", W_OK) != 0) {
        print_message("skipped: /dev/shm is not another file system\n");
        skip();
    }
    save(f, 100);
    char *path = tr_store_checkpoint_path(f->folder, 100);
    snprintf(target, sizeof target, "/dev/shm/trireme-test-%ld.h5", (long)getpid());
    tr_status st = tr_store_link(path, target);
    tr_status back = read_back(f, target, &r);
    unlink(target);
    assert_int_equal(st, TR_OK);
    assert_int_equal(back, TR_OK);
    assert_true(same_snapshot(f, &r));
    tr_history_free(&r.history);
    tr_free(path);
}

static void stale_temporaries(void **state)
{
    fixture *f = *state;
    char host[65] = "", name[256], path[400];
    gethostname(host, 64);
    pid_t gone = fork();
    if (gone == 0) _exit(0);
    waitpid(gone, NULL, 0);
    static const char *const kinds[] = {"gone", "parent", "other host"};
    const long pids[] = {gone, getppid(), gone};
    for (size_t i = 0; i < TR_COUNT(kinds); i++) {
        char *p = NULL;
        uint64_t step;
        snprintf(name, sizeof name, "step-00000001.h5.tmp-%ld.%s%s", pids[i], host,
                 i == 2 ? "-other" : "");
        snprintf(path, sizeof path, "%s/checkpoints/%s", f->folder, name);
        close(open(path, O_CREAT | O_WRONLY, 0600));
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &p, &step));
        assert_null(p);
        assert_int_equal(there(f, name), i != 0);
    }
    /* our own number, but older than this process: a container's run before */
    snprintf(name, sizeof name, "step-00000002.h5.tmp-%ld.%s", (long)getpid(), host);
    snprintf(path, sizeof path, "%s/checkpoints/%s", f->folder, name);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    char *p = NULL;
    uint64_t step;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &p, &step));
    assert_true(there(f, name));
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &p, &step));
    assert_false(there(f, name));
}

/* A child saves step after step; it is killed at many moments. What is left is always a whole file,
 * at least as new as the last one the child reported. */
static void killed_while_saving(void **state)
{
    fixture *f = *state;
    for (int round = 0; round < 60; round++) {
        int report[2];
        char byte;
        assert_int_equal(pipe(report), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(report[0]);
            for (uint64_t s = 1; s < 1000000; s++) {
                char *path = tr_store_checkpoint_path(f->folder, s);
                fixture_values(f, s);
                if (tr_store_write(path, &f->model, &f->snapshot, NULL) != TR_OK ||
                    tr_store_prune(f->folder, 2, s) != TR_OK)
                    _exit(1);
                tr_free(path);
                byte = (char)s;
                if (write(report[1], &byte, 1) != 1) _exit(1);
            }
            _exit(0);
        }
        close(report[1]);
        int whole = 0;
        while (whole < 1 + round % 4 && read(report[0], &byte, 1) == 1) whole++;
        /* somewhere within the next save or two: which call it meets is left to the scheduler */
        uint32_t wait = tr_philox_at(5, TR_RNG_TEST, 0, (uint64_t)round, 0).v[0] % 4000000;
        nanosleep(&(struct timespec){.tv_nsec = (long)wait}, NULL);
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        while (read(report[0], &byte, 1) == 1) whole++;
        close(report[0]);

        char *path = NULL;
        uint64_t step = 0;
        readback r;
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step));
        assert_non_null(path);
        assert_true(step >= (uint64_t)whole);
        fixture_values(f, step);
        assert_ok(read_back(f, path, &r));
        assert_true(same_snapshot(f, &r));
        tr_history_free(&r.history);
        tr_free(path);
        char command[160];
        snprintf(command, sizeof command, "ls '%s/checkpoints' | grep -q tmp", f->folder);
        assert_int_not_equal(system(command), 0); /* tr_store_latest tidied */
        snprintf(command, sizeof command, "rm -f '%s'/checkpoints/*", f->folder);
        assert_int_equal(system(command), 0);
    }
}

static void two_writers(void **state)
{
    fixture *f = *state;
    readback r;
    pid_t child[2];
    for (int c = 0; c < 2; c++) {
        child[c] = fork();
        assert_true(child[c] >= 0);
        if (child[c]) continue;
        fixture_values(f, 300 + (uint64_t)c);
        for (int i = 0; i < 100; i++)
            if (tr_store_write(f->path, &f->model, &f->snapshot, NULL) != TR_OK) _exit(1);
        _exit(0);
    }
    int left = 2, seen = 0;
    while (left > 0) { /* a reader in between sees one or the other, whole */
        int status;
        if (access(f->path, F_OK) == 0) {
            assert_ok(read_back(f, f->path, &r));
            fixture_values(f, r.snapshot.train.step);
            assert_true(r.snapshot.train.step == 300 || r.snapshot.train.step == 301);
            assert_true(same_snapshot(f, &r));
            tr_history_free(&r.history);
            seen++;
        }
        while (left > 0 && waitpid(-1, &status, seen ? WNOHANG : 0) > 0) {
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            left--;
        }
    }
    assert_true(access(f->path, F_OK) == 0);
    assert_ok(tr_store_verify(f->path, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(prune_and_best, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(make_room_beside_unsound, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(prune_below_newer, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(make_room, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(link_becomes_copy, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(stale_temporaries, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(killed_while_saving, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(two_writers, folder_open, fixture_close),
    };
    return cmocka_run_group_tests_name("store: folder", tests, NULL, NULL);
}
