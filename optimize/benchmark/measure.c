/* Calls one after the other, and calls that are due at times of their own. Times are kept in an array
 * that is there before the first call: measuring allocates nothing. */
#include "optimize/benchmark/benchmark.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 200000, ROUND = 8, ROUNDS = 40 };
#define SETTLED         0.03 /* by which two rounds may differ */
#define ROUND_SECONDS   0.02
#define WARM_UP_SECONDS 3 /* at most, where times do not settle */
#define SAMPLE_EVERY    0.02

/* ---- Clocks ---------------------------------------------------------------------------------- */

static double machine_now(void *ctx)
{
    (void)ctx;
    return tr_now();
}

static double machine_cpu(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Sleeps, but for the end of the wait: waking up takes about as long as a short call. */
static void machine_wait_until(void *ctx, double when)
{
    const double sleep = when - tr_now() - 2e-4;
    (void)ctx;
    if (sleep > 0) {
        const struct timespec t = {(time_t)sleep, (long)((sleep - floor(sleep)) * 1e9)};
        nanosleep(&t, NULL);
    }
    while (tr_now() < when) continue;
}

static tr_bench_clock clock_of(const tr_bench_options *o)
{
    if (o->clock.now) return o->clock;
    return (tr_bench_clock){machine_now, machine_cpu, machine_wait_until, NULL};
}

/* ---- One after the other --------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct {
    tr_bench_clock clock;
    tr_bench_call call;
    void *ctx;
    double *times; /* [MOST] */
} loop;

static tr_status timed(const loop *l, double *seconds)
{
    const double begin = l->clock.now(l->clock.ctx);
    const tr_status st = l->call(l->ctx);
    *seconds = l->clock.now(l->clock.ctx) - begin;
    return st;
}

/* One round of the warm-up: its median. */
static tr_status warm_up_round(const loop *l, tr_timing *out, double *median)
{
    tr_status st = TR_OK;
    double sum = 0;
    size_t n = 0;
    for (; n < MOST && (n < ROUND || sum < ROUND_SECONDS); n++) {
        TR_TRY(timed(l, &l->times[n]));
        sum += l->times[n];
    }
    out->warmup += n;
    qsort(l->times, n, sizeof *l->times, ascending);
    *median = l->times[n / 2];
out:
    return st;
}

static tr_status warm_up(const loop *l, tr_timing *out)
{
    tr_status st = TR_OK;
    double before = 0, median = 0;
    const double begin = l->clock.now(l->clock.ctx);
    TR_TRY(timed(l, &out->first));
    out->warmup = 1;
    for (int round = 0; round < ROUNDS && !out->stable; round++) {
        if (round > 1 && l->clock.now(l->clock.ctx) - begin > WARM_UP_SECONDS) break;
        TR_TRY(warm_up_round(l, out, &median));
        out->stable = round > 0 && fabs(median - before) <= SETTLED * before;
        before = median;
    }
out:
    return st;
}

tr_status tr_bench_calls(const tr_bench_options *o, tr_bench_call call, void *ctx, tr_timing *out)
{
    tr_status st = TR_OK;
    loop l = {.clock = clock_of(o), .call = call, .ctx = ctx};
    size_t n = 0;
    double sum = 0, sampled = 0;
    *out = (tr_timing){.stable = false};
    l.times = tr_alloc(TR_MEM_OTHER, MOST, sizeof *l.times);
    TR_HAVE(l.times);
    TR_TRY(warm_up(&l, out));
    const double begin = l.clock.now(l.clock.ctx), cpu = l.clock.cpu(l.clock.ctx);
    for (; n < MOST && (n < o->runs || n == 0 || sum < o->seconds); n++) {
        TR_TRY(timed(&l, &l.times[n]));
        sum += l.times[n];
        if (!o->sample || sum < sampled) continue;
        o->sample(o->sample_ctx);
        sampled = sum + SAMPLE_EVERY;
    }
    const double wall = l.clock.now(l.clock.ctx) - begin;
    out->busy = wall > 0 ? (l.clock.cpu(l.clock.ctx) - cpu) / wall : 0;
    TR_TRY(tr_spread_of(l.times, n, o->seed, &out->spread));
out:
    tr_free(l.times);
    return st;
}

/* ---- When they are due ----------------------------------------------------------------------- */

/* An exponential gap of mean 1. */
static double gap(uint64_t seed, size_t i)
{
    const tr_philox r = tr_philox_at(seed, TR_RNG_BOOTSTRAP, 1, i, 0);
    return -log1p(-((double)r.v[0] + 0.5) / 4294967296.0);
}

tr_status tr_bench_load(const tr_bench_options *o, double rate, tr_bench_call call, void *ctx,
                        tr_load *out)
{
    tr_status st = TR_OK;
    const tr_bench_clock clock = clock_of(o);
    size_t n = 0, waited = 0;
    *out = (tr_load){.rate = rate};
    double *times = tr_alloc(TR_MEM_OTHER, MOST, sizeof *times);
    TR_HAVE(times);
    const double begin = clock.now(clock.ctx);
    double due = begin, end = begin;
    for (; n < MOST && (n < o->runs || n == 0 || due - begin < o->seconds); n++) {
        due += gap(o->seed, n) / rate;
        if (clock.now(clock.ctx) < due)
            clock.wait_until(clock.ctx, due);
        else
            waited++;
        TR_TRY(call(ctx));
        end = clock.now(clock.ctx);
        times[n] = end - due;
    }
    out->achieved = end > begin ? (double)n / (end - begin) : 0;
    out->waited = (double)waited / (double)n;
    TR_TRY(tr_spread_of(times, n, o->seed, &out->spread));
out:
    tr_free(times);
    return st;
}
