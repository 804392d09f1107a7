/* Saving when something fails: every system call on the way to the disk in turn, every allocation,
 * a disk that is full, a limit on file sizes. Each time: an error that says so, the older file as
 * it was, nothing left behind, no descriptor lost, and the next save works. */
#include "fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* The program's own definitions come before the C library's. Only calls on temporaries and folders
 * count; HDF5's memory file is left alone. */
static int calls, fail_at, fail_with;
static bool short_writes;

static bool fails(int fd)
{
    char link[64], name[256] = "";
    struct stat info;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    bool ours =
        n > 0 && (strstr(name, ".tmp-") || (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)));
    if (!ours || ++calls != fail_at) return false;
    errno = fail_with;
    return true;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    if (fails(fd)) return fail_with ? -1 : 0;
    if (short_writes && n > 7) n = n / 2;
    return syscall(SYS_pwrite64, fd, p, n, at);
}

int fsync(int fd)
{
    if (fails(fd)) return -1;
    return (int)syscall(SYS_fsync, fd);
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    if (fails(fd)) return -1;
    return (int)syscall(SYS_fallocate, fd, mode, at, n);
}

int rename(const char *from, const char *to)
{
    if (strstr(from, ".tmp-") && ++calls == fail_at) {
        errno = fail_with;
        return -1;
    }
    return (int)syscall(SYS_rename, from, to);
}

static int count_files(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *d; (d = readdir(dir));) n += d->d_name[0] != '.';
    closedir(dir);
    return n;
}

static int next_fd(void)
{
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
}

static void assert_step(const fixture *f, const char *path, uint64_t step)
{
    fixture *expected = malloc(sizeof *expected);
    readback r;
    fixture_model(expected);
    fixture_values(expected, step);
    assert_ok(read_back(f, path, &r));
    assert_true(same_snapshot(expected, &r));
    tr_history_free(&r.history);
    free(expected);
}

static void every_call(void **state)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT};
    fixture *f = *state;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    int fd = next_fd();
    for (size_t e = 0; e < TR_COUNT(errors); e++) {
        tr_status st = TR_IO;
        int n = 1;
        for (; st != TR_OK; n++) {
            assert_in_range(n, 1, 200);
            fixture_values(f, 201);
            calls = 0;
            fail_with = errors[e];
            fail_at = n;
            st = tr_store_write(f->path, &f->model, &f->snapshot, NULL);
            bool all_but_folder = calls == fail_at && strstr(tr_last_error()->text, "folder");
            fail_at = 0;
            assert_int_equal(next_fd(), fd);
            assert_int_equal(count_files(f->folder), 1);
            if (st == TR_OK) break;
            assert_int_equal(st, TR_IO);
            assert_non_null(strstr(tr_last_error()->text, f->folder));
            assert_non_null(strstr(tr_last_error()->text, strerror(errors[e])));
            /* only the folder's fsync comes after the rename */
            assert_step(f, f->path, all_but_folder ? 201 : 200);
            if (all_but_folder) {
                fixture_values(f, 200);
                assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
            }
        }
        assert_true(n > 20); /* fallocate, the writes, fsync, rename, fsync */
        assert_step(f, f->path, 201);
        fixture_values(f, 200);
        assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    }
}

static void without_fallocate(void **state)
{
    fixture *f = *state;
    calls = 0;
    fail_at = 1;
    fail_with = EOPNOTSUPP;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    fail_at = 0;
    assert_step(f, f->path, 200);
    calls = 0;
    fail_at = 3;
    fail_with = 0; /* pwrite returns 0 */
    assert_error(tr_store_write(f->path, &f->model, &f->snapshot, NULL), TR_IO, "No space");
    fail_at = 0;
    short_writes = true;
    fixture_values(f, 201);
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    short_writes = false;
    assert_step(f, f->path, 201);
}

static void every_allocation(void **state)
{
    fixture *f = *state;
    readback r;
    size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_SNAPSHOT);
    int fd = next_fd();
    tr_status st = TR_MEMORY;
    uint64_t n = 1;
    for (; st != TR_OK; n++) {
        tr_mem_fail_at(n);
        st = tr_store_write(f->path, &f->model, &f->snapshot, NULL);
        tr_mem_fail_at(0);
        assert_true(st == TR_OK || st == TR_MEMORY);
        assert_int_equal(count_files(f->folder), st == TR_OK);
        assert_int_equal(next_fd(), fd);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_SNAPSHOT), held);
    }
    assert_true(n > 50);
    st = TR_MEMORY;
    for (n = 1; st != TR_OK; n++) {
        tr_mem_fail_at(n);
        st = read_back(f, f->path, &r);
        tr_mem_fail_at(0);
        assert_true(st == TR_OK || st == TR_MEMORY);
        if (st == TR_OK) assert_true(same_snapshot(f, &r));
        tr_history_free(&r.history);
        assert_int_equal(next_fd(), fd);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_SNAPSHOT), held);
    }
    assert_true(n > 50);
}

static void size_limit(void **state)
{
    fixture *f = *state;
    struct rlimit old, low;
    struct stat info;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_int_equal(stat(f->path, &info), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    fixture_values(f, 201);
    for (rlim_t limit = 0; limit < (rlim_t)info.st_size; limit += 4096) {
        low = old;
        low.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        tr_status st = tr_store_write(f->path, &f->model, &f->snapshot, NULL);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(st, TR_IO);
        assert_non_null(strstr(tr_last_error()->text, "File too large"));
        assert_int_equal(count_files(f->folder), 1);
        assert_step(f, f->path, 200);
    }
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_step(f, f->path, 201);
}

static void full_disk(void **state)
{
    fixture *f = *state;
    char disk[96], path[128];
    snprintf(disk, sizeof disk, "%s/disk", f->folder);
    assert_int_equal(mkdir(disk, 0700), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=100k") != 0) {
        print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
        skip();
    }
    tr_status st = TR_OK;
    int saved = 0;
    snprintf(path, sizeof path, "%s/first.h5", disk);
    tr_status first = tr_store_write(path, &f->model, &f->snapshot, NULL);
    while (st == TR_OK && saved < 20) {
        snprintf(path, sizeof path, "%s/%d.h5", disk, saved);
        st = tr_store_write(path, &f->model, &f->snapshot, NULL);
        saved += st == TR_OK;
    }
    tr_error e = *tr_last_error();
    int files = count_files(disk);
    snprintf(path, sizeof path, "%s/first.h5", disk);
    tr_status verified = tr_store_verify(path, NULL);
    umount(disk);
    assert_int_equal(first, TR_OK);
    assert_int_equal(st, TR_IO);
    assert_non_null(strstr(e.text, "No space left on device"));
    assert_int_equal(files, saved + 1);
    assert_int_equal(verified, TR_OK);
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL)); /* HDF5 is unharmed */
    assert_step(f, f->path, 200);
}

static void no_folder(void **state)
{
    fixture *f = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/none/a.h5", f->folder);
    assert_error(tr_store_write(path, &f->model, &f->snapshot, NULL), TR_IO, "No such file");
    assert_int_equal(count_files(f->folder), 0);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_call, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(without_fallocate, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(every_allocation, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(size_limit, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(full_disk, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(no_folder, fixture_open, fixture_close),
    };
    return cmocka_run_group_tests_name("store: faults", tests, NULL, NULL);
}
