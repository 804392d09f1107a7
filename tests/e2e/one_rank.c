/* To be loaded before a trainer (LD_PRELOAD) by test_one_rank.py: on one of its ranks, ONE_RANK, no memory is left from the
 * program's allocation number FAIL_ALLOC on, or files whose path has FAIL_OPEN in it cannot be opened. FAIL_NOTE is a file
 * for the number of allocations that the rank asked for by its end, and a mark when something failed. */
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
static bool chosen;          /* this rank */
static unsigned long fail_alloc;
static const char *fail_open;
static atomic_ulong allocations;
static atomic_bool failed;

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
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("ONE_RANK");
    const char *alloc = getenv("FAIL_ALLOC");
    if (!rank || !wanted || strcmp(rank, wanted) != 0) return;
    dl_iterate_phdr(find_program, NULL);
    fail_alloc = alloc ? strtoul(alloc, NULL, 10) : 0;
    fail_open = getenv("FAIL_OPEN");
    chosen = true;
}

__attribute__((destructor)) static void note(void)
{
    const char *path = getenv("FAIL_NOTE");
    FILE *f = chosen && path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "%lu%s\n", allocations, failed ? " failed" : "");
    fclose(f);
}

void *aligned_alloc(size_t align, size_t n)
{
    const uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (chosen && caller >= begin && caller < end && ++allocations >= fail_alloc && fail_alloc) {
        failed = true;
        return NULL;
    }
    return REAL(aligned_alloc)(align, n);
}

static bool fails(const char *path)
{
    if (!chosen || !fail_open || !strstr(path, fail_open)) return false;
    failed = true;
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
