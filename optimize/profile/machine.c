/* The roofline of this machine: the peaks of probe.c, and copies, by as many threads as kernels
 * have; the fastest of some rounds each. */
#include "optimize/profile/probe.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/host.h"

enum { MOST = 64 }; /* threads that copy */

/* ---- Copies ---------------------------------------------------------------------------------- */

typedef struct {
    const tr_backend *b;
    void *ctx;
    size_t nbytes;
    void *from, *to;
    double rate; /* bytes a second, read and written */
    tr_status st;
} copier;

/* For a while, so that all threads are at it together most of the time; the fastest round counts,
 * as others may have the core now and then. */
static void *copy(void *arg)
{
    copier *c = arg;
    enum { LEAST = 5 };
    const double seconds = 0.1, begin = tr_now();
    const int times = (int)(((size_t)4 << 20) / c->nbytes) + 1; /* a round */
    for (int r = 0; c->st == TR_OK && (r < LEAST || tr_now() - begin < seconds); r++) {
        const double from = tr_now();
        for (int i = 0; i < times && c->st == TR_OK; i++)
            c->st = c->b->memory->copy(c->ctx, c->to, c->from, c->nbytes);
        if (c->st == TR_OK) c->st = tr_device_finish(c->b, c->ctx);
        const double rate = 2 * (double)c->nbytes * times / (tr_now() - from);
        if (r > 0 && rate > c->rate) c->rate = rate;
    }
    return NULL;
}

/* Threads that cannot be started are not counted. */
static double run_copiers(copier *c, int n)
{
    pthread_t threads[MOST];
    bool started[MOST] = {0};
    double sum = 0;
    for (int i = 1; i < n; i++) started[i] = pthread_create(&threads[i], NULL, copy, &c[i]) == 0;
    copy(&c[0]);
    for (int i = 1; i < n; i++)
        if (started[i]) pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++) sum += c[i].rate;
    return sum;
}

static tr_status measure_copies(const tr_backend *b, void *ctx, int threads, size_t nbytes,
                                double *rate)
{
    tr_status st = TR_OK;
    copier c[MOST];
    const int n = !b->host ? 1 : threads < MOST ? threads : MOST;
    memset(c, 0, sizeof c);
    for (int i = 0; i < n; i++) {
        c[i] = (copier){.b = b, .ctx = ctx, .nbytes = nbytes};
        c[i].from = b->memory->alloc(ctx, TR_MEM_OTHER, nbytes);
        c[i].to = b->memory->alloc(ctx, TR_MEM_OTHER, nbytes);
        TR_HAVE(c[i].from && c[i].to);
        TR_TRY(b->memory->copy(ctx, c[i].from, c[i].to, nbytes)); /* pages of their own */
    }
    *rate = run_copiers(c, n);
    for (int i = 0; i < n; i++) TR_TRY(c[i].st);
out:
    for (int i = 0; i < n; i++) {
        b->memory->free(ctx, c[i].from);
        b->memory->free(ctx, c[i].to);
    }
    return st;
}

/* Larger than the last cache, as far as there is memory; a thread's part of it. */
static size_t beyond_cache(int threads)
{
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t nbytes = (size_t)64 << 20;
    if (l3 > 0 && (size_t)l3 > nbytes / 2) nbytes = 2 * (size_t)l3;
    if (nbytes > (size_t)128 << 20) nbytes = (size_t)128 << 20;
    while (nbytes > (size_t)4 << 20 && nbytes > tr_mem_available() / 8) nbytes /= 2;
    nbytes /= (size_t)threads;
    return nbytes > (size_t)4 << 20 ? nbytes : (size_t)4 << 20;
}

/* ---- The whole ------------------------------------------------------------------------------- */

void tr_machine_name(const tr_backend *b, void *ctx, int threads, tr_machine *out)
{
    *out = (tr_machine){.threads = threads};
    char what[112];
    tr_host host = {.cpu = ""};
    b->describe(ctx, what, sizeof what);
    if (b->host) tr_host_look(&host);
    snprintf(out->device, sizeof out->device, "%s%s%s", host.cpu, host.cpu[0] ? ", " : "", what);
}

tr_status tr_machine_measure(const tr_backend *b, void *ctx, int threads, tr_machine *out)
{
    tr_status st;
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const size_t cache =
        b->host ? (l2 > (256 << 10) ? (size_t)l2 : (size_t)256 << 10) : (size_t)8 << 20;
    const size_t peak = tr_mem_peak_rss();
    tr_machine m;
    tr_machine_name(b, ctx, threads, &m);
    m.cache_bytes = (double)cache * (b->host ? threads : 1);
    TR_TRY(tr_probe_peaks(b, ctx, threads, &m));
    TR_TRY(measure_copies(b, ctx, threads, cache / 4, &m.cache));
    TR_TRY(measure_copies(b, ctx, threads, b->host ? beyond_cache(threads) : (size_t)256 << 20,
                          &m.memory));
    m.cache = fmax(m.cache, m.memory);
    *out = m;
out:
    tr_mem_peak_rss_again(peak); /* arrays beyond caches are no part of what a run takes */
    return st;
}
