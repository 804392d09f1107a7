/* links: trireme_cpu
 * Times by a clock that the test moves: percentiles, intervals, warm-up, load without coordinated
 * omission; then a small network, of which only what does not depend on time is looked at. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "optimize/benchmark/benchmark.h"
#include "tests/unit/graph/models.h"

static void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

/* ---- Spread ---------------------------------------------------------------------------------- */

static void percentiles(void **state)
{
    (void)state;
    double v[] = {4, 1, 3, 2, 5};
    tr_spread s, again;
    ok(tr_spread_of(v, 5, 1, &s));
    assert_true(s.runs == 5 && s.mean == 3 && s.percent[0] == 1 && s.percent[100] == 5);
    assert_true(s.percent[50] == 3 && fabs(s.percent[90] - 4.6) < 1e-12);
    assert_true(fabs(s.deviation - sqrt(2.5)) < 1e-12);
    assert_true(s.low >= 1 && s.low <= 3 && s.high >= 3 && s.high <= 5);
    ok(tr_spread_of(v, 5, 1, &again));
    assert_memory_equal(&s, &again, sizeof s);
    ok(tr_spread_of(v, 1, 1, &s));
    assert_true(s.low == 1 && s.high == 1 && s.percent[50] == 1 && s.deviation == 0);
    assert_int_not_equal(tr_spread_of(v, 0, 1, &s), TR_OK);
}

/* Of normal numbers, the interval of the median holds 0 about 95 times of 100, and narrows as 1.253
 * * 1.96 / sqrt(n). */
static void interval_of_the_median(void **state)
{
    (void)state;
    enum { N = 400, TIMES = 100 };
    int holds = 0;
    double width = 0;
    for (uint64_t k = 0; k < TIMES; k++) {
        double v[N];
        tr_spread s;
        for (uint64_t i = 0; i < N; i += 2) {
            float pair[2];
            const tr_philox r = tr_philox_at(k, TR_RNG_TEST, 0, i, 0);
            tr_normal2(r.v[0], r.v[1], pair);
            v[i] = pair[0];
            v[i + 1] = pair[1];
        }
        ok(tr_spread_of(v, N, 7, &s));
        holds += s.low <= 0 && s.high >= 0;
        width += (s.high - s.low) / TIMES;
    }
    assert_in_range(holds, 88, 100);
    assert_true(fabs(width / (2 * 1.253 * 1.96 / sqrt(N)) - 1) < 0.15);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

typedef struct {
    double time, cpu;
    size_t calls, samples, fail_at;
    const double *takes; /* of the first calls, then the last of them again and again */
    size_t ntakes;
} world;

static double now(void *ctx)
{
    return ((world *)ctx)->time;
}

static double cpu_time(void *ctx)
{
    return ((world *)ctx)->cpu;
}

static void wait_until(void *ctx, double when)
{
    ((world *)ctx)->time = when;
}

static tr_status call(void *ctx)
{
    world *w = ctx;
    const double t = w->takes[w->calls < w->ntakes ? w->calls : w->ntakes - 1];
    w->time += t;
    w->cpu += t / 2;
    return ++w->calls == w->fail_at ? TR_FAIL(TR_KERNEL, "call %zu", w->calls) : TR_OK;
}

static void sample(void *ctx)
{
    world *w = ctx;
    w->samples++;
    w->time += 5; /* looking takes long, and is in no call's time */
}

static tr_bench_options options(world *w)
{
    return (tr_bench_options){
        .seconds = 1, .runs = 20, .seed = 3, .clock = {now, cpu_time, wait_until, w}};
}

static void calls_after_warming_up(void **state)
{
    (void)state;
    static double takes[40];
    for (int i = 0; i < 40; i++) takes[i] = (i < 16 ? 1.0 / (i + 1) : 0.0625) / 16;
    world w = {.takes = takes, .ntakes = 40};
    tr_bench_options o = options(&w);
    tr_timing t;
    tr_bench_subject s = {.call = call, .sample = sample, .ctx = &w, .timing = &t};
    ok(tr_bench_calls(&o, &s, 1));
    assert_true(t.first == 0.0625 && t.stable && t.warmup > 16);
    assert_true(t.spread.runs >= 20 && t.spread.percent[100] < 0.004);
    assert_true(w.samples > 2);
    s.sample = NULL;
    o.runs = 1;
    o.seconds = 0.0625;
    ok(tr_bench_calls(&o, &s, 1));
    assert_true(t.spread.runs >= 16 && t.spread.runs <= 17 && fabs(t.busy - 0.5) < 1e-9);
    w.fail_at = w.calls + 30;
    assert_int_equal(tr_bench_calls(&o, &s, 1), TR_KERNEL);
}

static void never_stable(void **state)
{
    (void)state;
    static double takes[5000];
    for (int i = 0; i < 5000; i++) takes[i] = 1e-3 * (1 + i * 0.1);
    world w = {.takes = takes, .ntakes = 5000};
    tr_bench_options o = options(&w);
    tr_timing t;
    const tr_bench_subject s = {.call = call, .ctx = &w, .timing = &t};
    ok(tr_bench_calls(&o, &s, 1));
    assert_true(t.warmup <= 40 * 21 + 1);
}

/* Two that share a clock: calls of 1 and of 2 ms, twice that for a turn's first one, and half as
 * much again for both from a moment on, as where the machine is given other work. */
typedef struct {
    world *w;
    double takes;
    size_t calls, turns;
} runner;

static runner *last_called;

static tr_status call_runner(void *ctx)
{
    runner *r = ctx;
    const bool cold = last_called != r;
    const double takes = r->takes * (cold ? 2 : 1) * (r->w->time > 1.2 ? 1.5 : 1);
    last_called = r;
    r->calls++;
    r->turns += cold;
    r->w->time += takes;
    r->w->cpu += takes;
    return r->w->fail_at && r->calls == r->w->fail_at ? TR_FAIL(TR_KERNEL, "failed") : TR_OK;
}

static void several_take_turns(void **state)
{
    (void)state;
    world w = {.fail_at = 0};
    runner a = {.w = &w, .takes = 1e-3}, b = {.w = &w, .takes = 2e-3};
    tr_timing ta, tb;
    tr_bench_options o = options(&w);
    const tr_bench_subject s[] = {{.call = call_runner, .ctx = &a, .timing = &ta},
                                  {.call = call_runner, .ctx = &b, .timing = &tb}};
    ok(tr_bench_calls(&o, s, 2));
    assert_true(a.turns > 10 && b.turns > 10);
    assert_true(fabs(ta.spread.percent[50] - 1e-3) < 1e-9);
    assert_true(fabs(ta.spread.percent[90] - 1.5e-3) < 1e-9);
    for (int p = 5; p < 100;
         p += 5) /* one after the other, only the second would have met the drift */
        assert_true(fabs(tb.spread.percent[p] / ta.spread.percent[p] - 2) < 1e-6 ||
                    (p > 50 && p < 80));
    assert_true(ta.spread.percent[100] < 1.6e-3 && tb.spread.percent[100] < 3.1e-3);
    assert_true(fabs(ta.busy - 1) < 1e-9);
    w.fail_at = b.calls + 20;
    assert_int_equal(tr_bench_calls(&o, s, 2), TR_KERNEL);
}

/* Calls of 1 ms, of 30 ms while other work runs, which comes and goes: for 0.2 s of 0.3 s. */
static tr_status call_beside_work(void *ctx)
{
    world *w = ctx;
    w->time += fmod(w->time, 0.3) < 0.2 ? 0.03 : 1e-3;
    w->calls++;
    return TR_OK;
}

/* Work that grows: no turn is as the one before. */
static tr_status call_beside_growing_work(void *ctx)
{
    world *w = ctx;
    w->time += 1e-3 + 0.1 * w->time;
    w->calls++;
    return TR_OK;
}

/* Two of the same, whose quietest turns say so whatever else the machine does. More turns are taken
 * until these are known, and for no longer than was said. */
static void quiet_turns(void **state)
{
    (void)state;
    static const tr_bench_pace pace = {.warm_up = 0.1, .turn = 0.02, .calls = 3, .quiet = 10};
    double worst = 1;
    for (int i = 0; i < 40; i++) {
        world w = {.time = 0.01 * i};
        tr_timing t[2];
        tr_bench_options o = options(&w);
        const tr_bench_subject s[] = {{.call = call_beside_work, .ctx = &w, .timing = &t[0]},
                                      {.call = call_beside_work, .ctx = &w, .timing = &t[1]}};
        o.seconds = 0.2;
        o.runs = 12;
        o.pace = &pace;
        ok(tr_bench_calls(&o, s, 2));
        assert_true(t[0].quiet_turns == 3 && t[1].quiet_turns == 3);
        assert_true(fabs(t[0].quiet - 1e-3) < 1e-9 && fabs(t[1].quiet - 1e-3) < 1e-9);
        worst = fmax(worst, t[0].spread.mean / t[0].quiet);
    }
    assert_true(worst > 2); /* there was something to do */
    world w = {.time = 0};
    tr_timing t;
    tr_bench_options o = options(&w);
    const tr_bench_subject s = {.call = call_beside_growing_work, .ctx = &w, .timing = &t};
    const tr_bench_pace short_pace = {.warm_up = 0.1, .turn = 0.02, .calls = 3, .quiet = 2};
    o.seconds = 0.1;
    o.runs = 1;
    o.pace = &short_pace;
    ok(tr_bench_calls(&o, &s, 1));
    assert_true(t.quiet_turns < 3 && t.quiet > 0 && t.quiet <= t.spread.percent[50]);
    assert_true(w.time < 5);
}

/* A call of a second among calls of a millisecond, 100 due a second: the hundred that became due in
 * that second waited for half of it in the mean. Counted from the call they would take a
 * millisecond. */
static void load_counts_from_when_it_was_due(void **state)
{
    (void)state;
    static double takes[300];
    for (int i = 0; i < 300; i++) takes[i] = i == 100 ? 1 : 1e-3;
    world w = {.takes = takes, .ntakes = 300};
    tr_bench_options o = options(&w);
    o.runs = 300;
    tr_load l;
    ok(tr_bench_load(&o, 100, call, &w, &l));
    assert_int_equal(l.spread.runs, 300);
    assert_true(l.spread.percent[50] < 0.3 && l.spread.percent[80] > 0.2);
    assert_true(l.spread.percent[100] > 1 && l.spread.percent[10] < 2e-3);
    assert_true(l.waited > 0.25 && l.waited < 0.7 && fabs(l.achieved / 100 - 1) < 0.25);

    const double slow = 0.02; /* 50 a second are done of 100 due: the line grows */
    w = (world){.takes = &slow, .ntakes = 1};
    ok(tr_bench_load(&o, 100, call, &w, &l));
    assert_true(fabs(l.achieved - 50) < 2 && l.spread.percent[100] > 2);
}

static int asks;

static bool at_third(void *ctx)
{
    (void)ctx;
    return ++asks == 3;
}

/* Short calls are asked between now and then, long ones each time, and so is who waits for the next
 * one. */
static void stops_are_heard(void **state)
{
    (void)state;
    static const double takes[] = {1e-3, 10};
    for (size_t i = 0; i < 2; i++) {
        world w = {.takes = &takes[i], .ntakes = 1};
        tr_bench_options o = options(&w);
        tr_timing t;
        tr_load l;
        const tr_bench_subject s = {.call = call, .ctx = &w, .timing = &t};
        o.seconds = 1e9;
        o.stop = at_third;
        asks = 0;
        assert_int_equal(tr_bench_calls(&o, &s, 1), TR_STOPPED);
        assert_in_range(w.calls, i ? 2 : 20, i ? 2 : 60);
        asks = 0;
        w.time = 0;
        assert_int_equal(tr_bench_load(&o, 1e-3, call, &w, &l), TR_STOPPED);
        assert_true(w.time < 2);
    }
}

/* ---- Networks -------------------------------------------------------------------------------- */

static char *text_of(const tr_benchmark *b, void (*write)(const tr_benchmark *, FILE *))
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    write(b, f);
    fclose(f);
    return text;
}

static void has(char *text, const char *const *all)
{
    for (; *all; all++)
        if (!strstr(text, *all)) fail_msg("no \"%s\" in:\n%s", *all, text);
    free(text);
}

static void networks(void **state)
{
    (void)state;
    test_model t = test_model_open("  input: [4]\n  layers:\n    - linear: {out: 8}\n    - relu\n"
                                   "    - linear: {out: 3}\n  loss: cross_entropy\n");
    tr_network *n;
    void *cpu = NULL;
    tr_benchmark *b;
    ok(tr_network_open(t.model, &n));
    t.model = NULL;
    ok(tr_cpu_backend.open(&(tr_backend_options){0}, &cpu));
    const tr_bench_place places[] = {{"cpu", &tr_cpu_backend, cpu, 1, TR_PRECISION_FP32},
                                     {"cpu-bf16", &tr_cpu_backend, cpu, 1, TR_PRECISION_BF16}};
    const tr_bench_model models[] = {{"big \"one\"", n, &places[0], 4096, 0.75},
                                     {"small|one", n, &places[1], 0, NAN}};
    const tr_bench_missing missing = {"cuda", "no \"driver\""};
    const tr_benchmark_options o = {.models = models,
                                    .nmodels = 2,
                                    .missing = &missing,
                                    .nmissing = 1,
                                    .batches = (const int64_t[]){1, 4},
                                    .nbatches = 2,
                                    .rates = (const double[]){10000},
                                    .nrates = 1,
                                    .target = 1000,
                                    .runs = 5};
    ok(tr_benchmark_open(&o, &b));
    ok(tr_benchmark_run(&o, b));
    assert_true(b->nrows == 4 && b->nloads == 2 && b->nbest == 2);
    assert_true(b->rows[1].batch == 4 && b->rows[0].speedup == 1 && b->rows[2].speedup > 0);
    assert_true(b->rows[3].timing.spread.runs == 5 && b->rows[3].memory > 0);
    assert_true(b->best[0].batch == 1 || b->best[0].batch == 4);
    has(text_of(b, tr_benchmark_json),
        (const char *const[]){"\"model\": \"big \\\"one\\\"\"", "\"batch\": 4",
                              "\"backend\": \"cpu-bf16\", \"precision\": \"bf16\"",
                              "{\"backend\": \"cuda\", \"reason\": \"no \\\"driver\\\"\"}",
                              "\"accuracy\": 0.75", "\"accuracy\": null", "\"rate\": 10000",
                              "\"p99_ms\"", NULL});
    has(text_of(b, tr_benchmark_markdown),
        (const char *const[]){"| model | backend | type | batch |",
                              "| small\\|one | cpu-bf16 | bf16 | 4 |", "- big",
                              "- cuda cannot run here: no \"driver\"", NULL});
    has(text_of(b, tr_benchmark_table), (const char *const[]){"samples/s", "small|one", NULL});
    for (size_t i = 0; i < b->nrows; i++) { /* one row is not to be trusted, for two reasons */
        b->rows[i].timing.stable = i != 2;
        b->rows[i].timing.warmup = 77;
        b->rows[i].timing.quiet = b->rows[i].timing.spread.percent[50] / (i == 2 ? 900 : 1);
    }
    char *doubts = text_of(b, tr_benchmark_doubts);
    assert_ptr_equal(strstr(doubts, "small|one on cpu-bf16 in bf16, batch 1: times did not settle "
                                    "in the warm-up, of 77 calls\n"),
                     doubts);
    has(doubts, (const char *const[]){"batch 1: other work met these calls: half took", NULL});
    has(text_of(b, tr_benchmark_markdown),
        (const char *const[]){"\n- small|one on cpu-bf16 in bf16, batch 1: times", "| yes |",
                              "| no |", NULL});
    FILE *f = tmpfile();
    ok(tr_benchmark_svg_batches(b, f));
    ok(tr_benchmark_svg_percentiles(b, f));
    assert_true(tr_benchmark_has_accuracy(b));
    ok(tr_benchmark_svg_accuracy(b, f));
    assert_true(ftell(f) > 1000);
    fclose(f);
    tr_benchmark_close(b);
    tr_cpu_backend.close(cpu);
    tr_network_close(n);
    test_model_close(&t);
}

/* Of most samples a second among those within the target, however many are not. */
static void best_batch(void **state)
{
    (void)state;
    const tr_bench_model model = {.name = "m", .place = &(tr_bench_place){.name = "cpu"}};
    const struct {
        double target;
        int64_t best;
    } cases[] = {{1, 32}, {0.009, 8}, {0.0025, 1}, {0.0005, 0}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        const tr_benchmark_options o = {
            .models = &model, .nmodels = 1, .nbatches = 4, .target = cases[i].target};
        tr_bench_row rows[4] = {{.batch = 1}, {.batch = 4}, {.batch = 8}, {.batch = 32}};
        static const double seconds[] = {0.001, 0.0056, 0.0072, 0.016};
        tr_bench_best best = {.batch = 0};
        tr_benchmark b = {.nrows = 4, .rows = rows, .nbest = 1, .best = &best, .target = o.target};
        for (size_t k = 0; k < 4; k++) {
            rows[k].timing.spread.percent[50] = seconds[k];
            rows[k].samples_per_s = (double)rows[k].batch / seconds[k];
        }
        tr_benchmark_find_best(&o, &b, 0);
        assert_int_equal(best.batch, cases[i].best);
        assert_string_equal(best.name, "m");
        char text[64];
        snprintf(text, sizeof text,
                 cases[i].best ? "a batch of %d gives most" : "no batch is within",
                 (int)cases[i].best);
        has(text_of(&b, tr_benchmark_markdown), (const char *const[]){text, NULL});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles),
        cmocka_unit_test(interval_of_the_median),
        cmocka_unit_test(calls_after_warming_up),
        cmocka_unit_test(never_stable),
        cmocka_unit_test(several_take_turns),
        cmocka_unit_test(quiet_turns),
        cmocka_unit_test(load_counts_from_when_it_was_due),
        cmocka_unit_test(stops_are_heard),
        cmocka_unit_test(best_batch),
        cmocka_unit_test(networks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
