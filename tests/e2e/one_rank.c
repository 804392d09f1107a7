/* To be loaded before a trainer (LD_PRELOAD) by test_one_rank.py: on one of its ranks, ONE_RANK, no
 * memory is left from the program's allocation number FAIL_ALLOC on, or files whose path has
 * FAIL_OPEN in it cannot be opened. The file FAIL_NOTE.RANK gets the number of allocations that
 * each rank asked for by its end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uintptr_t begin, end; /* the program's code */
static const char *rank;
static bool chosen; /* this rank */
static unsigned long fail_alloc;
static const char *fail_open;
static atomic_ulong allocations;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int find_program(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size, (void)ctx;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD || !(h->p_flags & PF_X)) continue;
        begin = info->dlpi_addr + h->p_vaddr;
        end = begin + h->p_memsz;
    }
    return 1; /* the first object is the program */
}

__attribute__((constructor)) static void choose(void)
{
    const char *wanted = getenv("ONE_RANK"), *alloc = getenv("FAIL_ALLOC");
    rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank) return;
    dl_iterate_phdr(find_program, NULL);
    fail_alloc = alloc ? strtoul(alloc, NULL, 10) : 0;
    fail_open = getenv("FAIL_OPEN");
    chosen = wanted && strcmp(rank, wanted) == 0;
}

__attribute__((destructor)) static void note(void)
{
    char path[4096];
    if (!rank) return;
    snprintf(path, sizeof path, "%s.%s", getenv("FAIL_NOTE"), rank);
    fail_open = NULL; /* this one can be */
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(f, "%lu\n", allocations);
    fclose(f);
}

void *aligned_alloc(size_t align, size_t n)
{
    const uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    const bool ours = caller >= begin && caller < end;
    if (ours && ++allocations >= fail_alloc && chosen && fail_alloc) return NULL;
    return REAL(aligned_alloc)(align, n);
}

static bool fails(const char *path)
{
    if (!chosen || !fail_open || !strstr(path, fail_open)) return false;
    errno = ENOENT;
    return true;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;            \
        va_end(more);                                                                              \
        return fails(path) ? -1 : REAL(name)(path, flags, mode);                                   \
    }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                                                                \
    FILE *name(const char *path, const char *mode)                                                 \
    {                                                                                              \
        return fails(path) ? NULL : REAL(name)(path, mode);                                        \
    }
FOPEN(fopen)
FOPEN(fopen64)
