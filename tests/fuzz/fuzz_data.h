/* What the fuzzers of data files share: the input as a file in memory, and reading an array to its
 * end. */
#ifndef TR_FUZZ_DATA_H
#define TR_FUZZ_DATA_H

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/data/internal.h"

__attribute__((unused)) static int fuzz_file(const uint8_t *bytes, size_t n, char path[32])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

/* The first, the last and, where they are few, all samples; every byte is used. Closes the
 * array. */
__attribute__((unused)) static void fuzz_read(tr_array *a)
{
    enum { MOST = 1 << 20 };
    double sum = 0;
    if (a->nbytes <= MOST) {
        const void *raw;
        void *scratch = tr_alloc(TR_MEM_OTHER, 1, a->nbytes);
        const uint64_t at[] = {0, a->samples - 1, a->samples / 2};
        for (int i = 0; scratch && i < 3; i++) {
            if (tr_array_at(a, at[i], scratch, &raw) != TR_OK) continue;
            for (size_t k = 0; k < a->count; k++) sum += tr_elem_value(a->elem, raw, k);
        }
        tr_free(scratch);
        if (a->samples <= MOST / a->nbytes && !a->lazy && tr_array_hold(a) == TR_OK)
            for (size_t k = 0; k < a->samples * a->count; k++)
                sum += tr_elem_value(a->elem, a->held, k);
    }
    volatile double use = sum;
    (void)use;
    tr_array_close(a);
}

#endif
