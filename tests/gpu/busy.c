/* How much of the time a GPU is idle: a library that CUDA loads into a program unchanged
 * (CUDA_INJECTION64_PATH=libtrireme_busy.so) and that has CUPTI note when each kernel, those inside
 * replayed graphs too, began and ended. At exit it writes to $TRIREME_BUSY
 *
 *     {"kernels": N, "window_s": T, "kernel_share": A, "device_share": B, "dropped": D,
 *      "longest": [{"name": MANGLED, "calls": C, "us": U}, ...]}
 *
 * over the window from the kernel at 40 % of all to that at 80 %, which leaves out the set-up, its
 * trial runs and the end. kernel_share: part of the window in which at least one kernel ran;
 * device_share: a kernel, a memset or a copy. longest: the kernels that took most of the window,
 * with how often and how long in all. Noting costs time too, so that the idle share is an
 * upper bound. CUPTI's user's guide, "Activity API". */
#include <cupti.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 4 << 20, ALIGN = 8, NAMES = 1 << 13, LONGEST = 40 };
#define MOST ((size_t)1 << 22) /* spans */

enum { NOT_A_KERNEL = -1, NAMELESS = NAMES };

typedef struct {
    uint64_t begin, end; /* ns */
    int name;            /* of a kernel: place in all.names, or NAMELESS; else NOT_A_KERNEL */
} span;

typedef struct {
    char *name;
    uint64_t calls, ns; /* in the window */
} named;

/* CUPTI gives its callbacks no argument of ours: so these are global. */
static struct {
    pthread_mutex_t mutex;
    span *spans;
    size_t count, dropped;
    named names[NAMES + 1]; /* a hash table, open addressing; the last: all that did not fit */
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* CUPTI's own text does not outlive the record. */
static int name_of(const char *text)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (const char *p = text; p && *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211u;
    for (size_t i = 0; text && i < NAMES; i++) {
        named *n = &all.names[(h + i) % NAMES];
        if (!n->name) n->name = strdup(text);
        if (!n->name) break;
        if (strcmp(n->name, text) == 0) return (int)(n - all.names);
    }
    return NAMELESS;
}

static void add(uint64_t begin, uint64_t end, int name)
{
    if (all.count == MOST)
        all.dropped++;
    else
        all.spans[all.count++] = (span){begin, end, name};
}

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = aligned_alloc(ALIGN, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0;
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                          size_t valid)
{
    CUpti_Activity *r = NULL;
    size_t lost = 0;
    (void)size;
    pthread_mutex_lock(&all.mutex);
    while (cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS) {
        if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const TR_CUPTI_KERNEL *k = (const TR_CUPTI_KERNEL *)r;
            add(k->start, k->end, name_of(k->name));
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const TR_CUPTI_MEMCPY *c = (const TR_CUPTI_MEMCPY *)r;
            add(c->start, c->end, NOT_A_KERNEL);
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const TR_CUPTI_MEMSET *m = (const TR_CUPTI_MEMSET *)r;
            add(m->start, m->end, NOT_A_KERNEL);
        }
    }
    if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS)
        all.dropped += lost;
    pthread_mutex_unlock(&all.mutex);
    free(buffer);
}

static int by_begin(const void *x, const void *y)
{
    const span *p = x, *q = y;
    return (p->begin > q->begin) - (p->begin < q->begin);
}

/* Part of [from, to] in which a span lies, of spans in order of their beginnings. */
static double share(uint64_t from, uint64_t to, int kernels_only)
{
    uint64_t busy = 0, at = from;
    for (size_t i = 0; i < all.count && all.spans[i].begin < to; i++) {
        const span *s = &all.spans[i];
        const uint64_t begin = s->begin > at ? s->begin : at, end = s->end < to ? s->end : to;
        if ((kernels_only && s->name < 0) || end <= begin) continue;
        busy += end - begin;
        at = end;
    }
    return to > from ? (double)busy / (double)(to - from) : 0;
}

static int by_time(const void *x, const void *y)
{
    const named *p = x, *q = y;
    return (p->ns < q->ns) - (p->ns > q->ns);
}

/* Sorts the table: no name is looked up any more. Mangled names need no escapes. */
static void print_longest(FILE *f, uint64_t from, uint64_t to)
{
    for (size_t i = 0; i < all.count; i++) {
        const span *s = &all.spans[i];
        if (s->name < 0 || s->begin < from || s->begin >= to) continue;
        all.names[s->name].calls++;
        all.names[s->name].ns += s->end - s->begin;
    }
    qsort(all.names, NAMES + 1, sizeof *all.names, by_time);
    for (size_t i = 0; i < LONGEST && all.names[i].calls > 0; i++)
        fprintf(f, "%s{\"name\":\"%s\",\"calls\":%llu,\"us\":%.3f}", i ? "," : "",
                all.names[i].name ? all.names[i].name : "?", (unsigned long long)all.names[i].calls,
                (double)all.names[i].ns * 1e-3);
}

static void report(void)
{
    const char *path = getenv("TRIREME_BUSY");
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    size_t kernels = 0, seen = 0;
    uint64_t from = 0, to = 0;
    pthread_mutex_lock(&all.mutex);
    qsort(all.spans, all.count, sizeof *all.spans, by_begin);
    for (size_t i = 0; i < all.count; i++) kernels += all.spans[i].name >= 0;
    for (size_t i = 0; i < all.count; i++) {
        seen += all.spans[i].name >= 0;
        if (seen * 10 <= kernels * 4) from = all.spans[i].begin;
        if (seen * 10 <= kernels * 8) to = all.spans[i].begin;
    }
    fprintf(f,
            "{\"kernels\":%zu,\"window_s\":%.6f,\"kernel_share\":%.6f,\"device_share\":%.6f,"
            "\"dropped\":%zu,\"longest\":[",
            kernels, (double)(to - from) * 1e-9, share(from, to, 1), share(from, to, 0),
            all.dropped);
    print_longest(f, from, to);
    fprintf(f, "]}\n");
    pthread_mutex_unlock(&all.mutex);
    fclose(f);
}

/* CUDA calls this when it starts. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
    all.spans = malloc(MOST * sizeof *all.spans);
    if (!all.spans || cuptiActivityRegisterCallbacks(give, take) != CUPTI_SUCCESS) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (cuptiActivityEnable(kinds[i]) != CUPTI_SUCCESS) {
            fprintf(stderr, "trireme_busy: CUPTI cannot note activities here\n");
            return 0;
        }
    return atexit(report) == 0;
}
