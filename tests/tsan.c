/* For ThreadSanitizer: what libgomp orders between threads. It is not built for it, so that
 * everything that one thread of a parallel region writes and another one reads behind it would be
 * told as a race. These stand before libgomp's own functions, and say what begins after what: the
 * region after what came before it, what comes behind it after all of its threads, and in it what
 * is behind a barrier after all that was before. Those that our loops call; oneDNN's come here as
 * well. */
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <stdlib.h>

typedef void region_fn(void *);

/* A region, which lies with the thread that opens it. Threads meet in different places, as one that
 * is late would otherwise seem to come after all that others do: at the begin, the end, and every
 * second barrier. */
typedef struct {
    region_fn *run;
    void *data;
    char begin, barrier[2], end; /* only their addresses count */
} region;

static _Thread_local struct {
    region *region; /* NULL: none */
    unsigned barriers;
} within; /* the innermost */

static void *real_of(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    if (!f) abort();
    return f;
}

/* Each thread of it. */
static void run(void *arg)
{
    region *r = arg;
    const __typeof__(within) outer = within;
    within.region = r;
    within.barriers = 0;
    __tsan_acquire(&r->begin);
    r->run(r->data);
    __tsan_release(&r->end);
    within = outer;
}

void GOMP_parallel(region_fn *f, void *data, unsigned threads, unsigned flags);
void GOMP_parallel(region_fn *f, void *data, unsigned threads, unsigned flags)
{
    typedef void parallel_fn(region_fn *, void *, unsigned, unsigned);
    region r = {.run = f, .data = data};
    parallel_fn *const real = (parallel_fn *)real_of("GOMP_parallel");
    __tsan_release(&r.begin);
    real(run, &r, threads, flags);
    __tsan_acquire(&r.end);
}

static void barrier(const char *name)
{
    typedef void barrier_fn(void);
    barrier_fn *const real = (barrier_fn *)real_of(name);
    char *at = within.region ? &within.region->barrier[within.barriers++ % 2] : NULL;
    if (at) __tsan_release(at);
    real();
    if (at) __tsan_acquire(at);
}

void GOMP_barrier(void);
void GOMP_barrier(void)
{
    barrier("GOMP_barrier");
}

void GOMP_loop_end(void);
void GOMP_loop_end(void)
{
    barrier("GOMP_loop_end");
}
