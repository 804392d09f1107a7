/* A run folder's checkpoints: the newest whole one, also after kill -9 at any moment; two writers;
 * tidying; best.h5. */
#include "fixture.h"
#include "runtime/store/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static int folder_open(void **state)
{
    char path[128];
    if (fixture_open(state) != 0) return -1;
    snprintf(path, sizeof path, "%s/checkpoints", ((fixture *)*state)->folder);
    return mkdir(path, 0700);
}

static void save_as(fixture *f, uint64_t step, bool unsound)
{
    char *path = tr_store_checkpoint_path(f->folder, step);
    fixture_values(f, step);
    f->snapshot.train.unsound = unsound;
    assert_ok(tr_store_write(path, &f->model, &f->snapshot, NULL));
    tr_free(path);
}

static void save(fixture *f, uint64_t step)
{
    save_as(f, step, false);
}

static bool there(const fixture *f, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/checkpoints/%s", f->folder, name);
    return access(path, F_OK) == 0;
}

static void damage(const fixture *f, uint64_t step, off_t at)
{
    char *path = tr_store_checkpoint_path(f->folder, step);
    int fd = open(path, O_RDWR);
    struct stat info;
    unsigned char byte;
    assert_int_equal(fstat(fd, &info), 0);
    if (at < 0) at += info.st_size;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    tr_free(path);
}

/* As a later program would write it: the checksum over the attributes holds. */
static void write_version(const char *path, uint64_t version)
{
    tr_h5_guard g;
    tr_index ix;
    assert_ok(tr_index_open(path, &ix));
    for (size_t i = 0; i < ix.root.count; i++)
        if (strcmp(ix.root.v[i].name, "format_version") == 0) ix.root.v[i].u = version;
    tr_h5_enter(&g);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(file >= 0);
    for (size_t i = 0; i < ix.root.count; i++) H5Adelete(file, ix.root.v[i].name);
    H5Adelete(file, "crc32c");
    assert_ok(tr_attrs_write(&ix.root, file, path, "/"));
    assert_true(H5Fclose(file) >= 0);
    tr_h5_leave(&g);
    tr_index_close(&ix);
}

static void assert_latest(const fixture *f, uint64_t step)
{
    char *path = NULL, *want = tr_store_checkpoint_path(f->folder, step);
    uint64_t got = 0;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &got, NULL));
    assert_non_null(path);
    assert_string_equal(path, want);
    assert_int_equal(got, step);
    tr_free(path);
    tr_free(want);
}

static void latest(void **state)
{
    fixture *f = *state;
    char *path = (char *)"unset", name[192];
    uint64_t step = 1;
    assert_ok(tr_store_latest("store-nowhere", NULL, NULL, &path, &step, NULL));
    assert_null(path);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, NULL));
    assert_null(path);
    save(f, 9);
    save(f, 100);
    save(f, 100000000); /* nine digits: by number, not by name */
    assert_latest(f, 100000000);
    damage(f, 100000000, 40); /* the superblock's checksum field or its neighbours */
    assert_latest(f, 100);
    damage(f, 100, 12); /* the superblock */
    assert_latest(f, 9);
    snprintf(name, sizeof name, "%s/checkpoints/step-00000010.h5", f->folder);
    assert_int_equal(mkdir(name, 0700), 0); /* a folder of that name */
    snprintf(name, sizeof name, "%s/checkpoints/step-00000011.h5.bak", f->folder);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    assert_latest(f, 9);
}

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

/* What fails is set aside once and stays counted; what cannot be opened, or only a newer program
 * reads, keeps its name. */
static void damaged_ones(void **state)
{
    fixture *f = *state;
    char *path = NULL, file[128];
    uint64_t step = 0;
    size_t rejected = 9;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected));
    assert_int_equal(rejected, 0);
    for (uint64_t s = 1; s <= 3; s++) save(f, s * 100);
    damage(f, 300, 12);
    for (int start = 0; start < 2; start++) {
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected));
        assert_int_equal(step, 200);
        assert_int_equal(rejected, 1);
        tr_free(path);
        assert_false(there(f, "step-00000300.h5"));
        assert_true(there(f, "step-00000300.h5.damaged"));
    }
    damage(f, 200, -1);
    damage(f, 100, 12);
    for (int start = 0; start < 2; start++) {
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected));
        assert_null(path);
        assert_int_equal(rejected, 3);
    }
    assert_true(there(f, "step-00000100.h5.damaged"));
    snprintf(file, sizeof file, "%s/checkpoints/step-00000400.h5", f->folder);
    assert_int_equal(symlink("nowhere", file), 0);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected));
    assert_int_equal(rejected, 4);
    unlink(file);
    save(f, 400);
    write_version(file, 2);
    assert_error(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected), TR_FILE,
                 "newer trainer");
    assert_null(path);
    assert_true(there(f, "step-00000400.h5"));
}

static void save_best(fixture *f, uint64_t step)
{
    char best[128];
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    fixture_values(f, step);
    assert_ok(tr_store_write(best, &f->model, &f->snapshot, NULL));
}

static void unlink_best(const fixture *f)
{
    char best[128];
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    assert_int_equal(unlink(best), 0);
}

static uint64_t latest_step(const fixture *f, const char *name)
{
    char *path = NULL;
    uint64_t step = 0;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, NULL));
    assert_non_null(path);
    assert_string_equal(strrchr(path, '/') + 1, name);
    tr_free(path);
    return step;
}

/* best.h5 where files of steps are of no use: the newest that is left, whichever it is. */
static void best_when_others_fail(void **state)
{
    fixture *f = *state;
    char *path = NULL, best[128];
    uint64_t step;
    size_t rejected;
    save_best(f, 350);
    assert_int_equal(latest_step(f, "best.h5"), 350); /* nothing else is there */
    for (uint64_t s = 1; s <= 3; s++) save(f, s * 100);
    assert_int_equal(latest_step(f, "step-00000300.h5"), 300); /* all is well: as ever */
    save_best(f, 250);
    damage(f, 300, 12);
    assert_int_equal(latest_step(f, "best.h5"), 250);
    assert_int_equal(latest_step(f, "best.h5"), 250); /* at the next start, too */
    save_best(f, 150);
    assert_int_equal(latest_step(f, "step-00000200.h5"), 200);
    damage(f, 200, 12);
    damage(f, 100, 12);
    assert_int_equal(latest_step(f, "best.h5"), 150);
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    assert_int_equal(truncate(best, 1000), 0);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected));
    assert_null(path);
    assert_int_equal(rejected, 4);
    assert_true(there(f, "best.h5.damaged"));
}

/* Whole, but no run should go on from it: passed over for the newest that is sound, best.h5 among
 * them, and set aside. */
static void unsound_ones(void **state)
{
    fixture *f = *state;
    char *path = NULL;
    uint64_t step;
    size_t rejected;
    save(f, 100);
    save(f, 200);
    save_as(f, 300, true);
    save_as(f, 400, true);
    save_best(f, 150);
    assert_latest(f, 200);
    assert_true(there(f, "step-00000300.h5.unsound") && there(f, "step-00000400.h5.unsound"));
    save_best(f, 250);
    assert_int_equal(latest_step(f, "best.h5"), 250); /* what was set aside before counts */
    save(f, 300);
    assert_latest(f, 300);
    save_as(f, 100, true);
    save_as(f, 200, true);
    save_as(f, 300, true);
    unlink_best(f);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, &rejected));
    assert_null(path); /* from the start, then */
    assert_int_equal(rejected, 0);
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

/* A whole file of another model is passed over and moved aside where one fits; where none does,
 * nothing is touched: the config may be what is wrong. */
static void another_models(void **state)
{
    fixture *f = *state;
    char *path = NULL;
    uint64_t step = 0;
    size_t rejected = 9;
    save(f, 100);
    save(f, 200);
    f->model.nparams--;
    save(f, 300);
    assert_error(tr_store_latest(f->folder, &f->model,
                                 &(tr_snapshot){.nslots = 1, .slot_names = {"other"}}, &path, &step,
                                 &rejected),
                 TR_FILE, "3 whole checkpoints");
    assert_null(path);
    assert_true(there(f, "step-00000300.h5"));
    f->model.nparams++;
    assert_ok(tr_store_latest(f->folder, &f->model, &f->snapshot, &path, &step, &rejected));
    assert_int_equal(step, 200);
    assert_int_equal(rejected, 0);
    tr_free(path);
    assert_false(there(f, "step-00000300.h5"));
    assert_true(there(f, "step-00000300.h5.other"));
    assert_true(there(f, "step-00000200.h5"));
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
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &p, &step, NULL));
        assert_null(p);
        assert_int_equal(there(f, name), i != 0);
    }
    /* our own number, but older than this process: a container's run before */
    snprintf(name, sizeof name, "step-00000002.h5.tmp-%ld.%s", (long)getpid(), host);
    snprintf(path, sizeof path, "%s/checkpoints/%s", f->folder, name);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    char *p = NULL;
    uint64_t step;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &p, &step, NULL));
    assert_true(there(f, name));
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &p, &step, NULL));
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
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step, NULL));
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
        cmocka_unit_test_setup_teardown(latest, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(prune_and_best, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(damaged_ones, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(best_when_others_fail, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(unsound_ones, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(make_room_beside_unsound, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(another_models, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(prune_below_newer, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(make_room, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(link_becomes_copy, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(stale_temporaries, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(killed_while_saving, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(two_writers, folder_open, fixture_close),
    };
    return cmocka_run_group_tests_name("store: folder", tests, NULL, NULL);
}
