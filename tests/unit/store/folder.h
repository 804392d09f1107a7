/* What the tests of run folders share: a folder with checkpoints, some of them damaged. */
#ifndef TR_TEST_STORE_FOLDER_H
#define TR_TEST_STORE_FOLDER_H

#include "fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

static inline int folder_open(void **state)
{
    char path[128];
    if (fixture_open(state) != 0) return -1;
    snprintf(path, sizeof path, "%s/checkpoints", ((fixture *)*state)->folder);
    return mkdir(path, 0700);
}

static inline void save_as(fixture *f, uint64_t step, bool unsound)
{
    char *path = tr_store_checkpoint_path(f->folder, step);
    fixture_values(f, step);
    f->snapshot.train.unsound = unsound;
    assert_ok(tr_store_write(path, &f->model, &f->snapshot, NULL));
    tr_free(path);
}

static inline void save(fixture *f, uint64_t step)
{
    save_as(f, step, false);
}

static inline bool there(const fixture *f, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/checkpoints/%s", f->folder, name);
    return access(path, F_OK) == 0;
}

static inline void damage(const fixture *f, uint64_t step, off_t at)
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

static inline void assert_latest(const fixture *f, uint64_t step)
{
    char *path = NULL, *want = tr_store_checkpoint_path(f->folder, step);
    uint64_t got = 0;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &got));
    assert_non_null(path);
    assert_string_equal(path, want);
    assert_int_equal(got, step);
    tr_free(path);
    tr_free(want);
}

#endif
