/* Measuring what answers cost: the times of calls, open-loop load, and networks over batch sizes,
 * devices and precisions side by side. All Local. Arithmetic is deterministic; clocks can be given,
 * for tests. */
#ifndef TR_BENCHMARK_H
#define TR_BENCHMARK_H

#include "optimize/inference/inference.h"

/* ---- Times ----------------------------------------------------------------------------------- */

#define TR_PERCENTS 101

/* Of times in seconds. Percentiles are interpolated between neighbors (type 7 of Hyndman and
 * Fan). */
typedef struct {
    size_t runs;
    double mean, deviation;      /* deviation: of the sample, n - 1 */
    double percent[TR_PERCENTS]; /* [0]: least, [50]: median, [100]: most */
    /* 95 % bootstrap interval of the median (Efron, 1979): resampled by Philox of `seed`. More than
     * 2000 times are thinned to that first, which makes it a little wide, never narrow. */
    double low, high;
} tr_spread;
/* Sorts `seconds`; n >= 1. */
tr_status tr_spread_of(double *seconds, size_t n, uint64_t seed, tr_spread *out);

/* ---- Calls ----------------------------------------------------------------------------------- */

typedef struct {
    double (*now)(void *ctx); /* seconds, monotonic; NULL: the machine's */
    double (*cpu)(void *ctx); /* seconds of processor time of the process */
    void (*wait_until)(void *ctx, double when);
    void *ctx;
} tr_bench_clock;

/* How calls are dealt out. */
typedef struct {
    double warm_up; /* seconds at most, where times do not settle */
    double turn;    /* seconds of calls, where the subject is not through before */
    size_t calls;   /* of a turn and of a round of the warm-up, at least */
    /* Turns go on for so many seconds at most, until of each subject the three quietest agree
     * within 10 %; 0: they do not. */
    double quiet;
} tr_bench_pace;

typedef struct {
    double seconds; /* measured at least: so long, */
    size_t runs;    /* and so many calls */
    uint64_t seed;
    const tr_bench_pace *pace; /* NULL: 3 s, 50 ms, 8 calls, no more */
    tr_bench_clock clock;
    bool (*stop)(void *ctx); /* asked between calls: TR_STOPPED; NULL: never */
    void *stop_ctx;
} tr_bench_options;

typedef tr_status (*tr_bench_call)(void *ctx);

typedef struct {
    double first;  /* seconds of the first call */
    size_t warmup; /* calls before what is measured */
    bool stable;   /* false: the warm-up ended before the times did settle */
    tr_spread spread;
    /* The least of its turns' medians: what a call takes while the machine has least else to do;
     * how often it was met within 10 %, up to three times. */
    double quiet;
    int quiet_turns;
    double busy; /* processor time over wall time: 1 is one processor */
} tr_timing;

typedef struct {
    tr_bench_call call;
    void (*sample)(
        void *ctx); /* may be NULL; between calls, about every 20 ms, in no call's time */
    void *ctx;
    tr_timing *timing; /* out */
} tr_bench_subject;
/* One call after the other. Warm-up: rounds of calls until the medians of two rounds differ by less
 * than 3 %, at most 40 rounds, or pace->warm_up. Several subjects are all warmed up, then take
 * turns, so that what drifts on the machine meets all alike; a turn's first call, which finds
 * others' caches, does not count. */
tr_status tr_bench_calls(const tr_bench_options *o, const tr_bench_subject *subjects, size_t count);

/* Open-loop load: calls are due at times of their own (Poisson, by Philox), whether those before
 * are done or not, and a call's time counts from when it was due: what waits in line is not left
 * out (coordinated omission: Tene, "How NOT to Measure Latency"). One call is under way at a
 * time. */
typedef struct {
    double rate, achieved; /* calls a second: due, done */
    tr_spread spread;
    double waited; /* fraction of the calls that had to wait */
} tr_load;
tr_status tr_bench_load(const tr_bench_options *o, double rate, tr_bench_call call, void *ctx,
                        tr_load *out);

/* ---- Networks -------------------------------------------------------------------------------- */

/* Where a model is run, and in what. */
typedef struct {
    const char *name; /* "cpu", "cuda-fp16" */
    const tr_backend *backend;
    void *ctx;
    int threads;
    tr_precision precision;
} tr_bench_place;

typedef struct {
    const char *name; /* of the row */
    const tr_network *network;
    const tr_bench_place *place;
    double size;     /* bytes of its file; 0: not known */
    double accuracy; /* NaN: not known */
} tr_bench_model;

typedef struct {
    unsigned skip_passes;         /* of the graphs: a set of TR_PASS_IS */
    const tr_bench_model *models; /* the first is what the others are compared with */
    size_t nmodels;
    const int64_t *batches;
    size_t nbatches;
    const double *rates; /* of single samples, calls a second */
    size_t nrates;
    const struct tr_bench_missing *missing; /* handed on to what is written */
    size_t nmissing;
    double
        target; /* seconds: the best batch is the one of most samples a second within it; 0: none */
    double seconds;
    size_t runs;
    uint64_t seed;
    bool (*stop)(void *ctx); /* as in tr_bench_options */
    void *stop_ctx;
} tr_benchmark_options;

/* One network at one batch; no pointers, so that ranks can send it. */
typedef struct {
    char name[TR_NAME], place[TR_NAME];
    int precision; /* tr_precision */
    int64_t batch;
    double load; /* seconds to open the engine, packing included */
    tr_timing timing;
    double samples_per_s, batches_per_s; /* by the median */
    double speedup;                      /* over the first model at this batch */
    double memory;                       /* bytes of the engine, planned */
    double rss_peak, rss_mean;           /* bytes of the process, with all models, while it ran */
    /* By the device's counters, of all processes: percent of the time in which a kernel ran, mean;
     * bytes of its memory, peak. NaN: not measured. */
    double gpu_percent, gpu_memory;
    double size, accuracy;
} tr_bench_row;

typedef struct {
    char name[TR_NAME], place[TR_NAME];
    int precision;
    tr_load load;
} tr_bench_load_row;

typedef struct {
    char name[TR_NAME], place[TR_NAME];
    int precision;
    int64_t batch; /* 0: none keeps to the target */
} tr_bench_best;

/* A place that was asked for, and cannot be had. */
typedef struct tr_bench_missing {
    char place[TR_NAME];
    char why[TR_ERROR_TEXT];
} tr_bench_missing;

typedef struct {
    size_t nrows, nloads, nbest;
    tr_bench_row *rows; /* models in their order, batches in theirs */
    tr_bench_load_row *loads;
    tr_bench_best *best;             /* [models] with a target */
    const tr_bench_missing *missing; /* borrowed */
    size_t nmissing;
    double target;
} tr_benchmark;

/* *out has room for all rows at once, zeroed: what another rank measured can be written there. */
tr_status tr_benchmark_open(const tr_benchmark_options *o, tr_benchmark **out);
void tr_benchmark_close(tr_benchmark *b);
/* Bytes of the host that a batch takes, which all models have at once. */
tr_status tr_benchmark_needs(const tr_benchmark_options *o, int64_t batch, size_t *nbytes);
tr_status tr_benchmark_run(const tr_benchmark_options *o, tr_benchmark *b);
/* Of b's rows, for this model: b->best[model]. */
void tr_benchmark_find_best(const tr_benchmark_options *o, tr_benchmark *b, size_t model);

/* ---- As text and pictures -------------------------------------------------------------------- */

void tr_benchmark_json(const tr_benchmark *b, FILE *to);
void tr_benchmark_markdown(const tr_benchmark *b, FILE *to);
void tr_benchmark_table(const tr_benchmark *b,
                        FILE *to); /* for terminals: the columns that matter most */
/* A line for each row whose times did not settle, or whose median is so many times that of its
 * quietest turn. In the Markdown, too. */
void tr_benchmark_doubts(const tr_benchmark *b, FILE *to);
#define TR_BENCH_DISTURBED 1.25
/* Milliseconds a call over batch, a line a model (median, and 99th percentile as points); and by
 * percentile, a line a model at its first batch. */
tr_status tr_benchmark_svg_batches(const tr_benchmark *b, FILE *to);
tr_status tr_benchmark_svg_percentiles(const tr_benchmark *b, FILE *to);
/* Accuracy over latency at the first batch, a mark a model and place, its area the file's size;
 * where some accuracy is known. */
tr_status tr_benchmark_svg_accuracy(const tr_benchmark *b, FILE *to);
bool tr_benchmark_has_accuracy(const tr_benchmark *b); /* of some row */

#endif
