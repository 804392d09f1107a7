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
    json_spread(&r->timing.spread, to);
    json_number("samples_per_s", r->samples_per_s, to);
    json_number("batches_per_s", r->batches_per_s, to);
    json_number("speedup", r->speedup, to);
    json_number("first_ms", ms(r->timing.first), to);
    json_number("load_ms", ms(r->load), to);
    json_number("warmup_runs", (double)r->timing.warmup, to);
    fprintf(to, ", \"stable\": %s", r->timing.stable ? "true" : "false");
    json_number("processors", r->timing.busy, to);
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

/* One cell of a row: the same for both forms. */
typedef struct {
    FILE *to;
    bool markdown;
} table;

static void cell(const table *t, int width, const char *text)
{
    if (!t->markdown) {
        fprintf(t->to, "%*s", width, text);
        return;
    }
    fputs("| ", t->to);
    for (const char *c = text; *c; c++) {
        if (*c == '|') fputc('\\', t->to);
        fputc(*c, t->to);
    }
    fputc(' ', t->to);
}

static void number(const table *t, int width, const char *form, double v)
{
    char text[64] = "-";
    if (isfinite(v)) snprintf(text, sizeof text, form, v);
    cell(t, width, text);
}

static void end(const table *t)
{
    fputs(t->markdown ? "|\n" : "\n", t->to);
}

static void head(const table *t, const char *const *names, const int *widths, size_t n)
{
    for (size_t i = 0; i < n; i++) cell(t, widths[i], names[i]);
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

static void bytes(const table *t, int width, double v)
{
    char text[32];
    cell(t, width, isfinite(v) && v > 0 ? tr_format_bytes(v, text, sizeof text) : "-");
}

static void call(const tr_bench_row *r, const table *t, const int *w)
{
    static const int percents[] = {50, 90, 95, 99, 100, 0};
    const tr_spread *s = &r->timing.spread;
    char text[64];
    cell(t, *w++, r->name);
    cell(t, *w++, r->place);
    cell(t, *w++, tr_bench_precision(r->precision));
    number(t, *w++, "%.0f", (double)r->batch);
    for (size_t i = 0; i < TR_COUNT(percents); i++) {
        number(t, *w++, "%.4f", ms(s->percent[percents[i]]));
        if (i > 0) continue;
        snprintf(text, sizeof text, "%.4f-%.4f", ms(s->low), ms(s->high));
        cell(t, *w++, text);
    }
    number(t, *w++, "%.4f", ms(s->mean));
    number(t, *w++, "%.4f", ms(s->deviation));
    number(t, *w++, "%.1f", r->samples_per_s);
    number(t, *w++, "%.2f", r->speedup);
    number(t, *w++, "%.1f", ms(r->load));
    number(t, *w++, "%.2f", ms(r->timing.first));
    bytes(t, *w++, r->memory);
    bytes(t, *w++, r->rss_peak);
    bytes(t, *w++, r->rss_mean);
    bytes(t, *w++, r->size);
    number(t, *w++, "%.4f", r->accuracy);
    snprintf(text, sizeof text, "%.0f %%", r->gpu_percent);
    cell(t, *w++, isnan(r->gpu_percent) ? "not measured" : text);
    cell(t, *w,
         isnan(r->gpu_memory) ? "not measured" : tr_format_bytes(r->gpu_memory, text, sizeof text));
    end(t);
}

static void calls(const tr_benchmark *b, const table *t)
{
    const char *const names[] = {"model",      "backend",  "type",      "batch",        "median ms",
                                 "95 % of it", "p90",      "p95",       "p99",          "max",
                                 "min",        "mean",     "deviation", "samples/s",    "speedup",
                                 "load ms",    "first ms", "memory",    "process peak", "its mean",
                                 "file",       "accuracy", "GPU",       "GPU memory"};
    const int w[] = {name_width(b),
                     11,
                     6,
                     7,
                     11,
                     20,
                     10,
                     10,
                     10,
                     10,
                     10,
                     10,
                     11,
                     12,
                     9,
                     9,
                     10,
                     11,
                     14,
                     11,
                     11,
                     10,
                     14,
                     14};
    head(t, names, w, TR_COUNT(names));
    for (size_t i = 0; i < b->nrows; i++) call(&b->rows[i], t, w);
}

static void loads(const tr_benchmark *b, const table *t)
{
    const char *const names[] = {"model",  "backend",   "type", "due/s", "done/s",
                                 "waited", "median ms", "p90",  "p99",   "max"};
    const int w[] = {name_width(b), 11, 6, 10, 10, 8, 11, 10, 10, 10};
    if (b->nloads == 0) return;
    end(&(table){t->to, false});
    head(t, names, w, TR_COUNT(names));
    for (size_t i = 0; i < b->nloads; i++) {
        const tr_load *l = &b->loads[i].load;
        cell(t, w[0], b->loads[i].name);
        cell(t, w[1], b->loads[i].place);
        cell(t, w[2], tr_bench_precision(b->loads[i].precision));
        number(t, w[3], "%.1f", l->rate);
        number(t, w[4], "%.1f", l->achieved);
        number(t, w[5], "%.3f", l->waited);
        number(t, w[6], "%.4f", ms(l->spread.percent[50]));
        number(t, w[7], "%.4f", ms(l->spread.percent[90]));
        number(t, w[8], "%.4f", ms(l->spread.percent[99]));
        number(t, w[9], "%.4f", ms(l->spread.percent[100]));
        end(t);
    }
}

static void whole(const tr_benchmark *b, const table *t)
{
    calls(b, t);
    loads(b, t);
    if (b->nbest) end(&(table){t->to, false});
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
    if (b->nmissing) end(&(table){t->to, false});
    for (size_t i = 0; i < b->nmissing; i++)
        fprintf(t->to, "%s%s cannot run here: %s\n", t->markdown ? "- " : "", b->missing[i].place,
                b->missing[i].why);
}

void tr_benchmark_markdown(const tr_benchmark *b, FILE *to)
{
    whole(b, &(table){to, true});
}

void tr_benchmark_table(const tr_benchmark *b, FILE *to)
{
    whole(b, &(table){to, false});
}
