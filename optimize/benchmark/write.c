/* What was measured, as JSON, Markdown, and a table for terminals. Times in milliseconds. */
#include "optimize/benchmark/internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/json.h"

const char *tr_bench_precision(int p)
{
    return p == TR_PRECISION_BF16 ? "bf16" : p == TR_PRECISION_FP16 ? "fp16" : "fp32";
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_number(const char *name, double v, FILE *to)
{
    fprintf(to, ", \"%s\": ", name);
    if (isfinite(v))
        fprintf(to, "%.9g", v);
    else
        fprintf(to, "null");
}

static void json_spread(const tr_spread *s, FILE *to)
{
    json_number("runs", (double)s->runs, to);
    json_number("mean_ms", ms(s->mean), to);
    json_number("deviation_ms", ms(s->deviation), to);
    json_number("min_ms", ms(s->percent[0]), to);
    json_number("median_ms", ms(s->percent[50]), to);
    json_number("p90_ms", ms(s->percent[90]), to);
    json_number("p95_ms", ms(s->percent[95]), to);
    json_number("p99_ms", ms(s->percent[99]), to);
    json_number("max_ms", ms(s->percent[100]), to);
    json_number("median_low_ms", ms(s->low), to);
    json_number("median_high_ms", ms(s->high), to);
}

static void json_timing(const tr_timing *t, FILE *to)
{
    json_spread(&t->spread, to);
    json_number("quiet_ms", ms(t->quiet), to);
    json_number("first_ms", ms(t->first), to);
    json_number("warmup_runs", (double)t->warmup, to);
    fprintf(to, ", \"stable\": %s", t->stable ? "true" : "false");
    json_number("processors", t->busy, to);
}

static void json_head(const char *name, const char *place, int precision, FILE *to)
{
    fprintf(to, "    {\"model\": ");
    tr_json_text(name, to);
    fprintf(to, ", \"backend\": ");
    tr_json_text(place, to);
    fprintf(to, ", \"precision\": \"%s\"", tr_bench_precision(precision));
}

static void json_row(const tr_bench_row *r, FILE *to)
{
    json_head(r->name, r->place, r->precision, to);
    json_number("batch", (double)r->batch, to);
    json_timing(&r->timing, to);
    json_number("samples_per_s", r->samples_per_s, to);
    json_number("batches_per_s", r->batches_per_s, to);
    json_number("speedup", r->speedup, to);
    json_number("load_ms", ms(r->load), to);
    json_number("memory_bytes", r->memory, to);
    json_number("rss_peak_bytes", r->rss_peak, to);
    json_number("rss_mean_bytes", r->rss_mean, to);
    json_number("gpu_percent", r->gpu_percent, to);
    json_number("gpu_memory_bytes", r->gpu_memory, to);
    json_number("file_bytes", r->size > 0 ? r->size : NAN, to);
    json_number("accuracy", r->accuracy, to);
    fputc('}', to);
}

void tr_benchmark_json(const tr_benchmark *b, FILE *to)
{
    fprintf(to, "{\n  \"calls\": [\n");
    for (size_t i = 0; i < b->nrows; i++) {
        json_row(&b->rows[i], to);
        fprintf(to, i + 1 < b->nrows ? ",\n" : "\n");
    }
    fprintf(to, "  ],\n  \"load\": [\n");
    for (size_t i = 0; i < b->nloads; i++) {
        const tr_bench_load_row *r = &b->loads[i];
        json_head(r->name, r->place, r->precision, to);
        json_number("rate", r->load.rate, to);
        json_number("achieved", r->load.achieved, to);
        json_number("waited", r->load.waited, to);
        json_spread(&r->load.spread, to);
        fprintf(to, i + 1 < b->nloads ? "},\n" : "}\n");
    }
    fprintf(to, "  ],\n  \"best\": [\n");
    for (size_t i = 0; i < b->nbest; i++) {
        json_head(b->best[i].name, b->best[i].place, b->best[i].precision, to);
        json_number("target_ms", ms(b->target), to);
        json_number("batch", b->best[i].batch ? (double)b->best[i].batch : NAN, to);
        fprintf(to, i + 1 < b->nbest ? "},\n" : "}\n");
    }
    fprintf(to, "  ],\n  \"unavailable\": [\n");
    for (size_t i = 0; i < b->nmissing; i++) {
        fprintf(to, "    {\"backend\": ");
        tr_json_text(b->missing[i].place, to);
        fprintf(to, ", \"reason\": ");
        tr_json_text(b->missing[i].why, to);
        fprintf(to, i + 1 < b->nmissing ? "},\n" : "}\n");
    }
    fprintf(to, "  ]\n}\n");
}

/* ---- Tables ---------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int width; /* for terminals, which have not room for all; 0: left out there, but for the first
                */
} column;

/* In one of both forms, cell by cell. */
typedef struct {
    FILE *to;
    bool markdown;
    const column *columns, *at; /* at: of the next cell */
    int first;                  /* width of the first column, whose texts are of any length */
} table;

static void cell(table *t, const char *text)
{
    const int width = t->at == t->columns ? t->first : t->at->width;
    t->at++;
    if (!t->markdown) {
        if (width) fprintf(t->to, "%*s", width, text);
        return;
    }
    fputs("| ", t->to);
    for (const char *c = text; *c; c++) {
        if (*c == '|') fputc('\\', t->to);
        fputc(*c, t->to);
    }
    fputc(' ', t->to);
}

static void number(table *t, const char *form, double v)
{
    char text[64] = "-";
    if (isfinite(v)) snprintf(text, sizeof text, form, v);
    cell(t, text);
}

static void bytes(table *t, double v, const char *unknown)
{
    char text[32];
    cell(t, isfinite(v) && v > 0 ? tr_format_bytes(v, text, sizeof text) : unknown);
}

static void end(table *t)
{
    t->at = t->columns;
    fputs(t->markdown ? "|\n" : "\n", t->to);
}

static void head(table *t, const column *columns, size_t n)
{
    t->columns = t->at = columns;
    for (size_t i = 0; i < n; i++) cell(t, columns[i].name);
    end(t);
    for (size_t i = 0; t->markdown && i < n; i++) fputs(i ? "| ---: " : "| --- ", t->to);
    if (t->markdown) end(t);
}

static int name_width(const tr_benchmark *b)
{
    size_t most = 5;
    for (size_t i = 0; i < b->nrows; i++)
        if (strlen(b->rows[i].name) > most) most = strlen(b->rows[i].name);
    return -(int)most;
}

static const column call_columns[] = {
    {"model", 0},       {"backend", 10},   {"type", 5},      {"batch", 6},        {"median ms", 10},
    {"95 % of it", 16}, {"p90", 0},        {"p95", 0},       {"p99", 9},          {"max", 0},
    {"min", 0},         {"mean", 0},       {"deviation", 0}, {"quietest", 9},     {"samples/s", 10},
    {"batches/s", 0},   {"speedup", 8},    {"load ms", 0},   {"first ms", 0},     {"warm-up", 0},
    {"stable", 0},      {"processors", 0}, {"memory", 9},    {"process peak", 0}, {"its mean", 0},
    {"file", 9},        {"accuracy", 9},   {"GPU", 0},       {"GPU memory", 0}};

static void times(const tr_spread *s, table *t)
{
    static const int percents[] = {90, 95, 99, 100, 0};
    char text[64];
    number(t, "%.4f", ms(s->percent[50]));
    snprintf(text, sizeof text, "%.4f-%.4f", ms(s->low), ms(s->high));
    cell(t, text);
    for (size_t i = 0; i < TR_COUNT(percents); i++) number(t, "%.4f", ms(s->percent[percents[i]]));
    number(t, "%.4f", ms(s->mean));
    number(t, "%.4f", ms(s->deviation));
}

static void call(const tr_bench_row *r, table *t)
{
    static const char unknown[] = "not measured";
    char percent[32];
    cell(t, r->name);
    cell(t, r->place);
    cell(t, tr_bench_precision(r->precision));
    number(t, "%.0f", (double)r->batch);
    times(&r->timing.spread, t);
    number(t, "%.4f", ms(r->timing.quiet));
    number(t, "%.1f", r->samples_per_s);
    number(t, "%.1f", r->batches_per_s);
    number(t, "%.2f", r->speedup);
    number(t, "%.1f", ms(r->load));
    number(t, "%.2f", ms(r->timing.first));
    number(t, "%.0f", (double)r->timing.warmup);
    cell(t, r->timing.stable ? "yes" : "no");
    number(t, "%.2f", r->timing.busy);
    bytes(t, r->memory, "-");
    bytes(t, r->rss_peak, "-");
    bytes(t, r->rss_mean, "-");
    bytes(t, r->size, "-");
    number(t, "%.4f", r->accuracy);
    snprintf(percent, sizeof percent, "%.0f %%", r->gpu_percent);
    cell(t, isnan(r->gpu_percent) ? unknown : percent);
    bytes(t, r->gpu_memory, unknown);
    end(t);
}

static void calls(const tr_benchmark *b, table *t)
{
    head(t, call_columns, TR_COUNT(call_columns));
    for (size_t i = 0; i < b->nrows; i++) call(&b->rows[i], t);
}

static const column load_columns[] = {
    {"model", 0},  {"backend", 11},   {"type", 6}, {"due/s", 10}, {"done/s", 10},
    {"waited", 8}, {"median ms", 11}, {"p90", 10}, {"p99", 10},   {"max", 10}};

static void loads(const tr_benchmark *b, table *t)
{
    if (b->nloads == 0) return;
    fputc('\n', t->to);
    head(t, load_columns, TR_COUNT(load_columns));
    for (size_t i = 0; i < b->nloads; i++) {
        const tr_load *l = &b->loads[i].load;
        cell(t, b->loads[i].name);
        cell(t, b->loads[i].place);
        cell(t, tr_bench_precision(b->loads[i].precision));
        number(t, "%.1f", l->rate);
        number(t, "%.1f", l->achieved);
        number(t, "%.3f", l->waited);
        number(t, "%.4f", ms(l->spread.percent[50]));
        number(t, "%.4f", ms(l->spread.percent[90]));
        number(t, "%.4f", ms(l->spread.percent[99]));
        number(t, "%.4f", ms(l->spread.percent[100]));
        end(t);
    }
}

static void whole(const tr_benchmark *b, table *t)
{
    calls(b, t);
    loads(b, t);
    if (b->nbest) fputc('\n', t->to);
    for (size_t i = 0; i < b->nbest; i++) {
        const tr_bench_best *best = &b->best[i];
        fprintf(t->to, "%s%s on %s in %s: ", t->markdown ? "- " : "", best->name, best->place,
                tr_bench_precision(best->precision));
        if (best->batch)
            fprintf(t->to, "a batch of %lld gives most samples within %g ms\n",
                    (long long)best->batch, ms(b->target));
        else
            fprintf(t->to, "no batch is within %g ms\n", ms(b->target));
    }
    if (b->nmissing) fputc('\n', t->to);
    for (size_t i = 0; i < b->nmissing; i++)
        fprintf(t->to, "%s%s cannot run here: %s\n", t->markdown ? "- " : "", b->missing[i].place,
                b->missing[i].why);
}

/* What a row's times are not to be trusted for. */
static void doubts(const tr_bench_row *r, const char *mark, FILE *to)
{
    const tr_timing *t = &r->timing;
    char name[3 * TR_NAME];
    snprintf(name, sizeof name, "%s%s on %s in %s, batch %lld", mark, r->name, r->place,
             tr_bench_precision(r->precision), (long long)r->batch);
    if (!t->stable)
        fprintf(to, "%s: times did not settle in the warm-up, of %zu calls\n", name, t->warmup);
    if (t->spread.percent[50] > TR_BENCH_DISTURBED * t->quiet)
        fprintf(to,
                "%s: other work met these calls: half took more than %.4g ms, in the quietest turn "
                "%.4g ms\n",
                name, ms(t->spread.percent[50]), ms(t->quiet));
}

static void all_doubts(const tr_benchmark *b, const char *mark, FILE *to)
{
    for (size_t i = 0; i < b->nrows; i++) doubts(&b->rows[i], mark, to);
}

void tr_benchmark_doubts(const tr_benchmark *b, FILE *to)
{
    all_doubts(b, "", to);
}

void tr_benchmark_markdown(const tr_benchmark *b, FILE *to)
{
    whole(b, &(table){.to = to, .markdown = true, .first = name_width(b)});
    fputc('\n', to);
    all_doubts(b, "- ", to);
}

void tr_benchmark_table(const tr_benchmark *b, FILE *to)
{
    whole(b, &(table){.to = to, .first = name_width(b)});
}
