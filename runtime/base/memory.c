/* The one place that calls malloc: overflow-checked, zeroed, 64-byte aligned, counted by purpose.
 * Large blocks ask for huge pages, which counts where transparent huge pages are set to madvise:
 * arenas are walked from end to end in every step, and small pages cost address translations and
 * stop the hardware's prefetching.
 *
 * Each block carries a 64-byte header with its size and kind, so that a free needs neither.
 * Counters are atomic: loader threads and the checkpoint writer allocate too. */
#include "runtime/base/base.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ALIGN = 64, MAGIC = 0x54524d42, HUGE_PAGE = 2 << 20, LARGE = 2 * HUGE_PAGE };

typedef struct {
    size_t nbytes;
    uint32_t kind;
    uint32_t magic;
} header;

static _Atomic int64_t held[TR_MEM_KINDS];
static _Atomic int64_t peak[TR_MEM_KINDS];
static _Atomic uint64_t calls;
static _Atomic uint64_t fail_in;

const char *tr_mem_kind_name(tr_mem_kind kind)
{
    static const char *const names[] = {
#define X(name, text) text,
        TR_MEMORY_TABLE(X)
#undef X
    };
    return (unsigned)kind < TR_COUNT(names) ? names[kind] : "unknown";
}

void tr_mem_count(tr_mem_kind kind, int64_t nbytes)
{
    int64_t now = atomic_fetch_add(&held[kind], nbytes) + nbytes;
    int64_t seen = atomic_load(&peak[kind]);
    while (now > seen && !atomic_compare_exchange_weak(&peak[kind], &seen, now)) {
    }
}

static bool must_fail(void)
{
    uint64_t n = atomic_load(&fail_in);
    while (n > 0) {
        if (atomic_compare_exchange_weak(&fail_in, &n, n - 1)) return n == 1;
    }
    return false;
}

/* `total` is a multiple of ALIGN. */
static void *take(size_t total)
{
    if (total < LARGE) return aligned_alloc(ALIGN, total);
    if (total > SIZE_MAX - HUGE_PAGE) return NULL;
    void *block = aligned_alloc(HUGE_PAGE, tr_align_up(total, HUGE_PAGE));
#ifdef MADV_HUGEPAGE
    if (block) madvise(block, total / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* a wish */
#endif
    return block;
}

/* Bytes from `set` on are zero; those before it are the caller's to set. */
static void *open_block(tr_mem_kind kind, size_t count, size_t size, size_t set)
{
    size_t nbytes, total;
    if (!tr_mul_size(count, size, &nbytes) || !tr_add_size(nbytes, 2 * ALIGN, &total)) {
        TR_FAIL(TR_MEMORY, "%zu elements of %zu bytes for %s do not fit in memory", count, size,
                tr_mem_kind_name(kind));
        return NULL;
    }
    total = total / ALIGN * ALIGN;
    atomic_fetch_add(&calls, 1);
    char *block = must_fail() ? NULL : take(total);
    if (!block) {
        char text[32];
        TR_FAIL(TR_MEMORY, "%s for %s could not be allocated",
                tr_format_bytes((double)nbytes, text, sizeof text), tr_mem_kind_name(kind));
        return NULL;
    }
    *(header *)block = (header){nbytes, (uint32_t)kind, MAGIC};
    if (set < nbytes) memset(block + ALIGN + set, 0, nbytes - set);
    tr_mem_count(kind, (int64_t)nbytes);
    return block + ALIGN;
}

void *tr_alloc(tr_mem_kind kind, size_t count, size_t size)
{
    return open_block(kind, count, size, 0);
}

void *tr_realloc(tr_mem_kind kind, void *p, size_t count, size_t size)
{
    const size_t had = p ? ((const header *)((char *)p - ALIGN))->nbytes : 0;
    void *q = open_block(kind, count, size, had);
    if (q && p) {
        memcpy(q, p, had < count * size ? had : count * size);
        tr_free(p);
    }
    return q;
}

void *tr_room_for_one(tr_mem_kind kind, void *p, size_t count, size_t size)
{
    if (count & (count - 1)) return p;
    return tr_realloc(kind, p, count ? 2 * count : 1, size);
}

void tr_free(void *p)
{
    if (!p) return;
    header *h = (header *)((char *)p - ALIGN);
    if (h->magic != MAGIC) abort(); /* not ours, or freed twice: a bug */
    h->magic = 0;
    tr_mem_count((tr_mem_kind)h->kind, -(int64_t)h->nbytes);
    free(h);
}

size_t tr_mem_drop(void *p, size_t nbytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)p + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)p + nbytes) / page * page;
    if (end <= begin || madvise((void *)begin, end - begin, MADV_DONTNEED) != 0) return 0;
    return end - begin;
}

char *tr_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = tr_alloc(TR_MEM_OTHER, n, 1);
    if (copy) memcpy(copy, s, n);
    return copy;
}

char *tr_sprintf(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        TR_FAIL(TR_INTERNAL, "\"%s\" cannot be written: %s", fmt, strerror(errno));
        return NULL;
    }
    char *text = tr_alloc(TR_MEM_OTHER, (size_t)n + 1, 1);
    if (!text) return NULL;
    va_start(args, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, args);
    va_end(args);
    return text;
}

size_t tr_mem_held(tr_mem_kind kind)
{
    int64_t n = atomic_load(&held[kind]);
    return n > 0 ? (size_t)n : 0;
}

size_t tr_mem_peak(tr_mem_kind kind)
{
    return (size_t)atomic_load(&peak[kind]);
}

uint64_t tr_mem_calls(void)
{
    return atomic_load(&calls);
}

static _Atomic size_t peak_rss; /* at least */

size_t tr_mem_peak_rss(void)
{
    struct rusage u;
    const size_t now = getrusage(RUSAGE_SELF, &u) == 0 ? (size_t)u.ru_maxrss * 1024 : 0,
                 before = atomic_load(&peak_rss);
    return now > before ? now : before;
}

void tr_mem_peak_rss_again(size_t before)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    atomic_store(&peak_rss, before);
    fputs("5", f); /* the peak is what is resident now: proc(5) */
    fclose(f);
}

size_t tr_mem_rss(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long size, resident = 0;
    if (!f) return 0;
    if (fscanf(f, "%lu %lu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

size_t tr_mem_rss_first(void)
{
    static _Atomic size_t first;
    size_t none = 0;
    if (atomic_load(&first) == 0) atomic_compare_exchange_strong(&first, &none, tr_mem_rss());
    return atomic_load(&first);
}

void tr_mem_fail_at(uint64_t n)
{
    atomic_store(&fail_in, n);
}

bool tr_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool tr_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
