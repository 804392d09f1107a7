/* The stage `benchmark`: what answers of this network cost, beside other run files. */
#include "optimize/benchmark/benchmark.h"

#include <math.h>
#include <string.h>

#include "optimize/stages/benchmark_models.h"
#include "optimize/stages/stages.h"
#include "runtime/base/file.h"

typedef struct {
    tr_stage_common common;
    tr_ints batches;
    double seconds;
    int64_t runs;
    int precision;
    tr_reals rates;
    double target_ms;
    const tr_node *models, *backends;
} benchmark_options;

static const char *const precisions[] = {"fp32", "bf16", "fp16", "auto", NULL};

static const tr_field fields[] = {
    TR_STAGE_COMMON(benchmark_options),
    TR_INTS("batches", offsetof(benchmark_options, batches), "[1, 8, 32]", 1, 1 << 20, "samples",
            "samples a call; each is measured"),
    TR_REAL("seconds", offsetof(benchmark_options, seconds), "1", 0, 1e6, "s",
            "a measurement takes at least so long, behind its warm-up, or 200000 calls"),
    TR_INT("runs", offsetof(benchmark_options, runs), "50", 1, 200000, "calls",
           "and at least so many calls"),
    TR_CHOICE("precision", offsetof(benchmark_options, precision), precisions, "auto",
              "what is computed in; auto: train.precision, on CPUs fp32 for fp16"),
    TR_REALS("rates", offsetof(benchmark_options, rates), "", 1e-3, 1e7, "calls/s",
             "open-loop load of single samples: calls are due at these rates (Poisson), and their "
             "time counts from when they are due"),
    TR_REAL("target_ms", offsetof(benchmark_options, target_ms), "0", 0, 1e9, "ms",
            "also finds the batch with most samples a second whose median call is within this; 0: "
            "not asked for"),
    TR_SHAPED("backends", offsetof(benchmark_options, backends), "",
              "devices to measure every model on, side by side: [cpu, cpu-bf16, cuda, cuda-fp16]; "
              "without a precision that of `precision`. One that cannot run here is named with the "
              "reason. Not given: the job's own device",
              TR_SCHEMA_LIST),
    TR_NODE("models", offsetof(benchmark_options, models), "",
            "run files to measure beside this model, the first being what the others are compared "
            "with: [model.h5]; paths are from where the job was started, or from the run's folder"),
    TR_END,
};

static tr_status check(const tr_config *c, size_t place)
{
    const benchmark_options *o = c->pipeline.items[place].options;
    if (o->batches.count == 0) return tr_stage_fail(c, place, "batches", "none to measure");
    return tr_benchmark_models_check(c, place, o->models, o->backends);
}

static const char *file(const void *options, size_t i, const char **option)
{
    const tr_node *models = ((const benchmark_options *)options)->models;
    *option = "models";
    return models && i < models->count ? models->values[i]->text : NULL;
}

/* ---- What is written ------------------------------------------------------------------------- */

static tr_status write_text(const tr_benchmark *b, FILE *to, int form)
{
    switch (form) {
    case 0:
        tr_benchmark_json(b, to);
        return TR_OK;
    case 1:
        tr_benchmark_markdown(b, to);
        return TR_OK;
    case 2:
        return tr_benchmark_svg_batches(b, to);
    case 3:
        return tr_benchmark_svg_accuracy(b, to);
    default:
        return tr_benchmark_svg_percentiles(b, to);
    }
}

static tr_status write_files(const tr_stage_job *job, const tr_benchmark *b)
{
    static const char *const ends[] = {".json", ".md", ".batches.svg", ".accuracy.svg",
                                       ".percentiles.svg"};
    tr_status st = TR_OK;
    for (int i = 0; st == TR_OK && i < (int)TR_COUNT(ends); i++) {
        if (i == 3 && !tr_benchmark_has_accuracy(b)) continue;
        char *path = tr_sprintf("%s%s", job->path, ends[i]);
        tr_text_file f;
        st = tr_text_file_open(&f, path);
        if (st == TR_OK) st = write_text(b, f.to, i);
        st = tr_text_file_close(&f, st);
        if (st == TR_OK) st = tr_stage_wrote(job, path);
        tr_free(path);
    }
    return st;
}

typedef struct {
    const char *name;
    double (*of)(const tr_bench_row *r);
} column;

#define COLUMN(name, expr)                                                                         \
    static double of_##name(const tr_bench_row *r)                                                 \
    {                                                                                              \
        return expr;                                                                               \
    }
COLUMN(batch, (double)r->batch)
COLUMN(runs, (double)r->timing.spread.runs)
COLUMN(median_ms, 1e3 * r->timing.spread.percent[50])
COLUMN(quiet_ms, 1e3 * r->timing.quiet)
COLUMN(low_ms, 1e3 * r->timing.spread.low)
COLUMN(high_ms, 1e3 * r->timing.spread.high)
COLUMN(p90_ms, 1e3 * r->timing.spread.percent[90])
COLUMN(p95_ms, 1e3 * r->timing.spread.percent[95])
COLUMN(p99_ms, 1e3 * r->timing.spread.percent[99])
COLUMN(min_ms, 1e3 * r->timing.spread.percent[0])
COLUMN(max_ms, 1e3 * r->timing.spread.percent[100])
COLUMN(mean_ms, 1e3 * r->timing.spread.mean)
COLUMN(deviation_ms, 1e3 * r->timing.spread.deviation)
COLUMN(samples_per_s, r->samples_per_s)
COLUMN(batches_per_s, r->batches_per_s)
COLUMN(speedup, r->speedup)
COLUMN(first_ms, 1e3 * r->timing.first)
COLUMN(warmup_runs, (double)r->timing.warmup)
COLUMN(stable, r->timing.stable)
COLUMN(load_ms, 1e3 * r->load)
COLUMN(processors, r->timing.busy)
COLUMN(memory_bytes, r->memory)
COLUMN(rss_peak_bytes, r->rss_peak)
COLUMN(rss_mean_bytes, r->rss_mean)
COLUMN(gpu_percent, r->gpu_percent)
COLUMN(gpu_memory_bytes, r->gpu_memory)

static const column columns[] = {
#define C(name)                                                                                    \
    {                                                                                              \
#name, of_##name                                                                           \
    }
    C(batch),          C(runs),
    C(median_ms),      C(low_ms),
    C(high_ms),        C(p90_ms),
    C(p95_ms),         C(p99_ms),
    C(min_ms),         C(max_ms),
    C(mean_ms),        C(deviation_ms),
    C(quiet_ms),       C(samples_per_s),
    C(batches_per_s),  C(speedup),
    C(first_ms),       C(warmup_runs),
    C(stable),         C(load_ms),
    C(processors),     C(memory_bytes),
    C(rss_peak_bytes), C(rss_mean_bytes),
    C(gpu_percent),    C(gpu_memory_bytes),
#undef C
};

enum { ROW_NAME = 3 * TR_NAME };

/* "this, cuda, 32"; `place` NULL: there is one; batch 0: none. */
static void name_row(const char *model, const char *place, int64_t batch, char out[ROW_NAME])
{
    size_t n =
        (size_t)snprintf(out, ROW_NAME, "%s%s%s", model, place ? ", " : "", place ? place : "");
    if (batch) snprintf(out + n, ROW_NAME - n, ", %lld", (long long)batch);
}

static tr_status find_missing(tr_findings *f, const tr_benchmark *b)
{
    tr_status st = TR_OK;
    char name[TR_NAME + 32];
    for (size_t i = 0; i < b->nmissing; i++) {
        snprintf(name, sizeof name, "%s_cannot_run", b->missing[i].place);
        TR_TRY(tr_attrs_add_text(&f->values, name, b->missing[i].why));
    }
out:
    return st;
}

/* A table in the making: rows by name, then columns. */
typedef struct {
    size_t count;
    char (*names)[ROW_NAME];
    const char **rows; /* of these */
    double *v;         /* of a column */
} rows;

static void close_rows(rows *r)
{
    tr_free(r->names);
    tr_free((void *)r->rows);
    tr_free(r->v);
}

/* To be closed, also after a failure. */
static tr_status open_rows(size_t count, rows *r)
{
    tr_status st = TR_OK;
    *r = (rows){.count = count};
    r->names = tr_alloc(TR_MEM_OTHER, count, sizeof *r->names);
    r->rows = tr_alloc(TR_MEM_OTHER, count, sizeof *r->rows);
    r->v = tr_alloc(TR_MEM_OTHER, count, sizeof *r->v);
    TR_HAVE(r->names && r->rows && r->v);
    for (size_t i = 0; i < count; i++) r->rows[i] = r->names[i];
out:
    return st;
}

static tr_status find_calls(tr_findings *f, const tr_benchmark *b, bool places)
{
    rows r;
    tr_status st = open_rows(b->nrows, &r);
    TR_TRY(st);
    for (size_t i = 0; i < r.count; i++)
        name_row(b->rows[i].name, places ? b->rows[i].place : NULL, b->rows[i].batch, r.names[i]);
    TR_TRY(tr_findings_table(f, "calls", r.count, r.rows));
    for (size_t k = 0; k < TR_COUNT(columns); k++) {
        bool known = false; /* nothing is told of counters that no row has */
        for (size_t i = 0; i < r.count; i++) known |= !isnan(r.v[i] = columns[k].of(&b->rows[i]));
        if (known) TR_TRY(tr_findings_column(f, columns[k].name, r.v));
    }
out:
    close_rows(&r);
    return st;
}

static tr_status find_loads(tr_findings *f, const tr_benchmark *b, bool places)
{
    static const char *const names[] = {"rate", "achieved", "waited", "median_ms", "p99_ms"};
    rows r;
    tr_status st = open_rows(b->nloads, &r);
    TR_TRY(st);
    for (size_t i = 0; i < r.count; i++)
        name_row(b->loads[i].name, places ? b->loads[i].place : NULL, 0, r.names[i]);
    TR_TRY(tr_findings_table(f, "load", r.count, r.rows));
    for (size_t k = 0; k < TR_COUNT(names); k++) {
        for (size_t i = 0; i < r.count; i++) {
            const tr_load *l = &b->loads[i].load;
            const double all[] = {l->rate, l->achieved, l->waited, 1e3 * l->spread.percent[50],
                                  1e3 * l->spread.percent[99]};
            r.v[i] = all[k];
        }
        TR_TRY(tr_findings_column(f, names[k], r.v));
    }
out:
    close_rows(&r);
    return st;
}

/* Of each model and place the batch, NaN where none is within the target. */
static tr_status find_best(tr_findings *f, const tr_benchmark *b, bool places)
{
    rows r;
    tr_status st = open_rows(b->nbest, &r);
    TR_TRY(st);
    for (size_t i = 0; i < r.count; i++)
        name_row(b->best[i].name, places ? b->best[i].place : NULL, 0, r.names[i]);
    TR_TRY(tr_findings_table(f, "best", r.count, r.rows));
    for (size_t i = 0; i < r.count; i++) r.v[i] = 1e3 * b->target;
    TR_TRY(tr_findings_column(f, "target_ms", r.v));
    for (size_t i = 0; i < r.count; i++) r.v[i] = b->best[i].batch ? (double)b->best[i].batch : NAN;
    TR_TRY(tr_findings_column(f, "batch", r.v));
out:
    close_rows(&r);
    return st;
}

/* A table of calls, a row a model, place and batch; of load; of the best batches; and what cannot
 * be measured here. */
static tr_status find(tr_findings *f, const tr_benchmark *b, bool places)
{
    tr_status st;
    TR_TRY(find_calls(f, b, places));
    if (b->nloads) TR_TRY(find_loads(f, b, places));
    if (b->nbest) TR_TRY(find_best(f, b, places));
    TR_TRY(find_missing(f, b));
out:
    return st;
}

/* ---- Running --------------------------------------------------------------------------------- */

static tr_status say(tr_log_level level, void (*write)(const tr_benchmark *, FILE *),
                     const tr_benchmark *b)
{
    tr_text_file f;
    const tr_status st = tr_text_file_open(&f, "the table of a benchmark");
    if (st == TR_OK) write(b, f.to);
    return tr_text_file_log(&f, level, st);
}

static tr_status measure(const tr_stage_job *job, const tr_benchmark_options *o, tr_benchmark *b)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < o->nbatches; i++) { /* before anything is measured */
        size_t nbytes;
        TR_TRY(tr_benchmark_needs(o, o->batches[i], &nbytes));
        TR_TRY(tr_stage_fits(job, "batches", o->batches[i], nbytes));
    }
    TR_TRY(tr_benchmark_run(o, b));
    TR_TRY(write_files(job, b));
    TR_TRY(say(TR_LOG_INFO, tr_benchmark_table, b));
    TR_TRY(say(TR_LOG_WARN, tr_benchmark_doubts, b));
out:
    return st;
}

/* *Collective.* What rank 0 measured, to all; the others slept. */
static tr_status share(tr_comm *comm, tr_benchmark *b)
{
    tr_status st = TR_OK;
    TR_TRY(tr_comm_broadcast(comm, b->rows, b->nrows * sizeof *b->rows, 0));
    if (b->nloads) TR_TRY(tr_comm_broadcast(comm, b->loads, b->nloads * sizeof *b->loads, 0));
    if (b->nbest) TR_TRY(tr_comm_broadcast(comm, b->best, b->nbest * sizeof *b->best, 0));
out:
    return st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const benchmark_options *o = job->options;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    tr_status st;
    tr_benchmark_models all;
    tr_benchmark *b = NULL;
    (void)out;
    *agreed = true;
    TR_TRY(tr_benchmark_models_open(job, o->models, o->backends, o->precision, &all));
    const tr_benchmark_options bo = {.target = o->target_ms / 1e3,
                                     .skip_passes = tr_graph_skip(job->config),
                                     .seconds = o->seconds,
                                     .runs = (size_t)o->runs,
                                     .seed = (uint64_t)job->config->seed,
                                     .batches = o->batches.v,
                                     .nbatches = o->batches.count,
                                     .rates = o->rates.v,
                                     .nrates = o->rates.count,
                                     .missing = all.missing,
                                     .nmissing = all.nmissing,
                                     .stop = job->stop,
                                     .stop_ctx = job->trainer,
                                     .models = all.v,
                                     .nmodels = all.count};
    TR_TRY(tr_agree(job->comm, tr_benchmark_open(&bo, &b), NULL));
    if (root) tr_comm_busy(job->comm, TR_BUSY_MEASURES);
    st = root ? measure(job, &bo, b) : TR_OK;
    tr_comm_busy(job->comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(job->comm, st, NULL));
    TR_TRY(share(job->comm, b));
    TR_TRY(tr_agree(job->comm, find(job->findings, b, o->backends), NULL));
out:
    tr_benchmark_close(b);
    tr_benchmark_models_close(&all);
    return st;
}

static const char *timed(const void *options)
{
    (void)options;
    return "all that it finds";
}

const tr_stage tr_stage_benchmark = {
    .name = "benchmark",
    .doc = "Measures what answers cost: latency by batch with percentiles and an interval, "
           "throughput, load time, memory, on one rank while the others sleep; written as "
           "`NN-benchmark.json`, `.md`, and plots",
    .fields = fields,
    .options_size = sizeof(benchmark_options),
    .check = check,
    .file = file,
    .timed = timed,
    .run = run,
};
