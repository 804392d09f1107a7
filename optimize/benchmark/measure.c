/* Calls one after the other, and calls that are due at times of their own. Times are kept in an
 * array that is there before the first call: measuring allocates nothing. */
#include "optimize/benchmark/benchmark.h"
#include "runtime/base/numbers.h"

#include <math.h>
#include <time.h>

enum { MOST = 200000, ROUNDS = 40, QUIET = 3 };
#define SETTLED       0.03 /* by which two rounds may differ */
#define AGREED        0.1  /* and quiet turns */
#define ROUND_SECONDS 0.02
#define SAMPLE_EVERY  0.02
#define ASK_EVERY     0.02 /* seconds between two looks for a stop; longer calls apart */

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

/* Looks for a stop, not too often: it takes about as long as a short call. */
static tr_status go_on(const tr_bench_options *o, double now, double *asked)
{
    if (!o->stop || now - *asked < ASK_EVERY) return TR_OK;
    *asked = now;
    if (!o->stop(o->stop_ctx)) return TR_OK;
    return TR_FAIL(TR_STOPPED, "stopped between two calls, which begin again when the stage does");
}

static const tr_bench_pace usual = {.warm_up = 3, .turn = 0.05, .calls = 8};

typedef struct {
    const tr_bench_options *o;
    tr_bench_pace pace;
    tr_bench_clock clock;
    tr_bench_call call;
    void *ctx;
    double *times; /* [MOST] */
    double asked;  /* when a stop was last looked for */
} loop;

static tr_status timed(loop *l, double *seconds)
{
    tr_status st;
    TR_TRY(go_on(l->o, l->clock.now(l->clock.ctx), &l->asked));
    const double begin = l->clock.now(l->clock.ctx);
    TR_TRY(l->call(l->ctx));
    *seconds = l->clock.now(l->clock.ctx) - begin;
out:
    return st;
}

/* One round of the warm-up: its median. */
static tr_status warm_up_round(loop *l, tr_timing *out, double *median)
{
    tr_status st = TR_OK;
    double sum = 0;
    size_t n = 0;
    for (; n < MOST && (n < l->pace.calls || sum < ROUND_SECONDS); n++) {
        TR_TRY(timed(l, &l->times[n]));
        sum += l->times[n];
    }
    out->warmup += n;
    *median = tr_median(l->times, n);
out:
    return st;
}

static tr_status warm_up(loop *l, tr_timing *out)
{
    tr_status st = TR_OK;
    double before = 0, median = 0;
    const double begin = l->clock.now(l->clock.ctx);
    TR_TRY(timed(l, &out->first));
    out->warmup = 1;
    for (int round = 0; round < ROUNDS && !out->stable; round++) {
        if (round > 1 && l->clock.now(l->clock.ctx) - begin > l->pace.warm_up) break;
        TR_TRY(warm_up_round(l, out, &median));
        out->stable = round > 0 && fabs(median - before) <= SETTLED * before;
        before = median;
    }
out:
    return st;
}

/* What takes turns. */
typedef struct {
    loop l;
    const tr_bench_subject *subject;
    size_t n;
    double sum, sampled, wall, cpu; /* seconds of calls; of calls at the next sample; of turns */
    double quiet[QUIET];            /* the least medians of turns, ascending */
} turns;

static bool is_full(const turns *t)
{
    return t->n >= MOST;
}

static bool enough(const turns *t)
{
    const tr_bench_options *o = t->l.o;
    return is_full(t) || (t->n > 0 && t->n >= o->runs && t->sum >= o->seconds);
}

static int quiet_turns(const turns *t)
{
    int n = 0;
    while (n < QUIET && t->quiet[n] <= (1 + AGREED) * t->quiet[0]) n++;
    return n;
}

/* A turn of fewer calls than others, the last one, says less. */
static void keep_median(turns *t, size_t first)
{
    if (t->n == first || (first > 0 && t->n - first < t->l.pace.calls)) return;
    double median = tr_median(t->l.times + first, t->n - first);
    for (int i = 0; i < QUIET; i++) {
        const double was = t->quiet[i];
        t->quiet[i] = fmin(was, median);
        median = fmax(was, median);
    }
}

/* A turn of one among several begins with a call that does not count: caches are the others'.
 * `whole`: it does not end with what was asked for. */
static tr_status take_turn(turns *t, bool alone, bool whole)
{
    const tr_bench_clock *c = &t->l.clock;
    tr_status st = TR_OK;
    double cold;
    const size_t first = t->n;
    const double until = t->sum + t->l.pace.turn;
    if (!alone) TR_TRY(timed(&t->l, &cold));
    const double begin = c->now(c->ctx), cpu = c->cpu(c->ctx);
    while (!is_full(t) && (whole || !enough(t)) &&
           (t->n - first < t->l.pace.calls || t->sum < until)) {
        TR_TRY(timed(&t->l, &t->l.times[t->n]));
        t->sum += t->l.times[t->n++];
        if (!t->subject->sample || t->sum < t->sampled) continue;
        t->subject->sample(t->subject->ctx);
        t->sampled = t->sum + SAMPLE_EVERY;
    }
    t->wall += c->now(c->ctx) - begin;
    t->cpu += c->cpu(c->ctx) - cpu;
    keep_median(t, first);
out:
    return st;
}

/* Turns as long as one of them has not enough. */
static tr_status measure_enough(turns *t, size_t count)
{
    tr_status st = TR_OK;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < count; i++) {
            if (enough(&t[i])) continue;
            TR_TRY(take_turn(&t[i], count == 1, false));
            more = more || !enough(&t[i]);
        }
    }
out:
    return st;
}

/* More turns of all, while one of them has met too few quiet ones. */
static tr_status measure_quiet(turns *t, size_t count)
{
    tr_status st = TR_OK;
    const tr_bench_clock *c = &t[0].l.clock;
    const double begin = c->now(c->ctx);
    for (;;) {
        bool more = false, full = false;
        for (size_t i = 0; i < count; i++) {
            more = more || quiet_turns(&t[i]) < QUIET;
            full = full || is_full(&t[i]);
        }
        if (!more || full || c->now(c->ctx) - begin >= t[0].l.pace.quiet) break;
        for (size_t i = 0; i < count; i++) TR_TRY(take_turn(&t[i], count == 1, true));
    }
out:
    return st;
}

static tr_status fill_timing(const turns *t, uint64_t seed)
{
    tr_timing *out = t->subject->timing;
    out->busy = t->wall > 0 ? t->cpu / t->wall : 0;
    out->quiet = t->quiet[0];
    out->quiet_turns = quiet_turns(t);
    return tr_spread_of(t->l.times, t->n, seed, &out->spread);
}

static tr_status measure_all(turns *t, size_t count)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < count; i++) TR_TRY(warm_up(&t[i].l, t[i].subject->timing));
    TR_TRY(measure_enough(t, count));
    TR_TRY(measure_quiet(t, count));
    for (size_t i = 0; i < count; i++) TR_TRY(fill_timing(&t[i], t[i].l.o->seed));
out:
    return st;
}

tr_status tr_bench_calls(const tr_bench_options *o, const tr_bench_subject *subjects, size_t count)
{
    tr_status st = TR_OK;
    turns *t = tr_alloc(TR_MEM_OTHER, count, sizeof *t);
    TR_HAVE(t);
    for (size_t i = 0; i < count; i++) {
        *subjects[i].timing = (tr_timing){.stable = false};
        t[i] = (turns){.subject = &subjects[i],
                       .quiet = {INFINITY, INFINITY, INFINITY},
                       .l = {.o = o,
                             .pace = o->pace ? *o->pace : usual,
                             .asked = -INFINITY,
                             .clock = clock_of(o),
                             .call = subjects[i].call,
                             .ctx = subjects[i].ctx,
                             .times = tr_alloc(TR_MEM_OTHER, MOST, sizeof(double))}};
        TR_HAVE(t[i].l.times);
    }
    st = measure_all(t, count);
out:
    for (size_t i = 0; t && i < count; i++) tr_free(t[i].l.times);
    tr_free(t);
    return st;
}

/* ---- When they are due ----------------------------------------------------------------------- */

/* An exponential gap of mean 1. */
static double gap(uint64_t seed, size_t i)
{
    const tr_philox r = tr_philox_at(seed, TR_RNG_BOOTSTRAP, 1, i, 0);
    return -log1p(-((double)r.v[0] + 0.5) / 4294967296.0);
}

/* In parts, so that a stop is heard where calls are far apart. */
static tr_status wait_for(const tr_bench_options *o, const tr_bench_clock *clock, double due,
                          double *asked)
{
    static const double part = 0.25;
    for (double now; (now = clock->now(clock->ctx)) < due;) {
        const tr_status st = go_on(o, now, asked);
        if (st != TR_OK) return st;
        clock->wait_until(clock->ctx, due - now > part ? now + part : due);
    }
    return TR_OK;
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
    double due = begin, end = begin, asked = -INFINITY;
    for (; n < MOST && (n < o->runs || n == 0 || due - begin < o->seconds); n++) {
        due += gap(o->seed, n) / rate;
        waited += clock.now(clock.ctx) >= due;
        TR_TRY(wait_for(o, &clock, due, &asked));
        TR_TRY(go_on(o, clock.now(clock.ctx), &asked));
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
