/* A folder in memory for what a fuzzer's files must have beside them, removed at the program's
 * end. */
#ifndef TR_FUZZ_FOLDER_H
#define TR_FUZZ_FOLDER_H

#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FUZZ_PATH = 96 };

static char fuzz_folder[64]; /* "": not yet made */

static inline char *fuzz_path(const char *name, char path[FUZZ_PATH])
{
    snprintf(path, FUZZ_PATH, "%s/%s", fuzz_folder, name);
    return path;
}

static inline void fuzz_write(const char *name, const void *bytes, size_t n)
{
    char path[FUZZ_PATH];
    FILE *f = fopen(fuzz_path(name, path), "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

static inline int fuzz_remove(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s, (void)type, (void)at;
    return remove(path);
}

static inline void fuzz_remove_folder(void)
{
    nftw(fuzz_folder, fuzz_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* False: it is there already. */
static inline bool fuzz_make_folder(void)
{
    if (fuzz_folder[0]) return false;
    snprintf(fuzz_folder, sizeof fuzz_folder, "/dev/shm/fuzz-XXXXXX");
    if (!mkdtemp(fuzz_folder) || atexit(fuzz_remove_folder) != 0) abort();
    return true;
}

#endif
