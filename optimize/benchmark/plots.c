/* What was measured, as plots. Times in milliseconds. */
#include <math.h>
#include <string.h>

#include "optimize/benchmark/internal.h"
#include "optimize/plot/plot.h"

/* Rows of one model on one place stand together. */
static size_t rows_of(const tr_benchmark *b, size_t first)
{
    size_t n = 1;
    while (first + n < b->nrows && b->rows[first + n].batch != b->rows[first].batch &&
           strcmp(b->rows[first + n].name, b->rows[first].name) == 0 &&
           strcmp(b->rows[first + n].place, b->rows[first].place) == 0)
        n++;
    return n;
}

enum { SERIES = 3 * TR_NAME };

typedef struct {
    tr_plot_series *series;
    char (*names)[SERIES];
    double *x, *y;
} drawing;

static tr_status drawing_open(size_t nseries, size_t npoints, drawing *d)
{
    *d = (drawing){.series = tr_alloc(TR_MEM_OTHER, nseries, sizeof *d->series),
                   .names = tr_alloc(TR_MEM_OTHER, nseries, sizeof *d->names),
                   .x = tr_alloc(TR_MEM_OTHER, npoints, sizeof(double)),
                   .y = tr_alloc(TR_MEM_OTHER, npoints, sizeof(double))};
    return d->series && d->names && d->x && d->y ? TR_OK : tr_last_status();
}

static void drawing_close(drawing *d)
{
    tr_free(d->series);
    tr_free(d->names);
    tr_free(d->x);
    tr_free(d->y);
}

/* The length. */
static size_t name_series(const tr_bench_row *r, char name[SERIES])
{
    return (size_t)snprintf(name, SERIES, "%s, %s %s", r->name, r->place,
                            tr_bench_precision(r->precision));
}

tr_status tr_benchmark_svg_batches(const tr_benchmark *b, FILE *to)
{
    tr_status st = TR_OK;
    drawing d;
    size_t n = 0, at = 0;
    TR_TRY(drawing_open(2 * b->nrows, 2 * b->nrows, &d));
    for (size_t first = 0; first < b->nrows; first += rows_of(b, first))
        for (int p99 = 0; p99 < 2; p99++, n++) {
            const size_t count = rows_of(b, first);
            d.series[n] = (tr_plot_series){
                .name = d.names[n], .n = count, .x = d.x + at, .y = d.y + at, .points = p99};
            const size_t length = name_series(&b->rows[first], d.names[n]);
            snprintf(d.names[n] + length, sizeof d.names[n] - length, "%s", p99 ? ", p99" : "");
            for (size_t i = 0; i < count; i++, at++) {
                d.x[at] = (double)b->rows[first + i].batch;
                d.y[at] = ms(b->rows[first + i].timing.spread.percent[p99 ? 99 : 50]);
            }
        }
    TR_TRY(tr_svg_lines(&(tr_plot_lines){.title = "Latency over batch",
                                         .x_label = "samples a call",
                                         .y_label = "ms a call",
                                         .log_x = true,
                                         .log_y = true,
                                         .nseries = n,
                                         .series = d.series},
                        to));
out:
    drawing_close(&d);
    return st;
}

tr_status tr_benchmark_svg_percentiles(const tr_benchmark *b, FILE *to)
{
    tr_status st = TR_OK;
    drawing d;
    size_t n = 0;
    TR_TRY(drawing_open(b->nrows, b->nrows * TR_PERCENTS, &d));
    for (size_t first = 0; first < b->nrows; first += rows_of(b, first), n++) {
        const tr_bench_row *r = &b->rows[first];
        double *x = d.x + n * TR_PERCENTS, *y = d.y + n * TR_PERCENTS;
        d.series[n] = (tr_plot_series){.name = d.names[n], .n = TR_PERCENTS, .x = x, .y = y};
        const size_t length = name_series(r, d.names[n]);
        snprintf(d.names[n] + length, sizeof d.names[n] - length, ", batch %lld",
                 (long long)r->batch);
        for (int p = 0; p < TR_PERCENTS; p++) {
            x[p] = p;
            y[p] = ms(r->timing.spread.percent[p]);
        }
    }
    TR_TRY(tr_svg_lines(&(tr_plot_lines){.title = "Latency by percentile",
                                         .x_label = "percent of calls within",
                                         .y_label = "ms a call",
                                         .log_y = true,
                                         .nseries = n,
                                         .series = d.series},
                        to));
out:
    drawing_close(&d);
    return st;
}

bool tr_benchmark_has_accuracy(const tr_benchmark *b)
{
    bool any = false;
    for (size_t i = 0; i < b->nrows; i++) any = any || isfinite(b->rows[i].accuracy);
    return any;
}

tr_status tr_benchmark_svg_accuracy(const tr_benchmark *b, FILE *to)
{
    tr_status st = TR_OK;
    drawing d;
    size_t n = 0;
    double *sizes = tr_alloc(TR_MEM_OTHER, b->nrows, sizeof *sizes);
    TR_TRY(drawing_open(b->nrows, 2 * b->nrows, &d));
    TR_HAVE(sizes);
    for (size_t first = 0; first < b->nrows; first += rows_of(b, first)) {
        const tr_bench_row *r = &b->rows[first];
        if (!isfinite(r->accuracy)) continue;
        d.x[n] = ms(r->timing.spread.percent[50]);
        d.y[n] = 100 * r->accuracy;
        sizes[n] = r->size;
        d.series[n] = (tr_plot_series){.name = d.names[n],
                                       .n = 1,
                                       .x = d.x + n,
                                       .y = d.y + n,
                                       .sizes = r->size > 0 ? sizes + n : NULL,
                                       .points = true,
                                       .filled = true};
        name_series(r, d.names[n++]);
    }
    TR_TRY(tr_svg_lines(&(tr_plot_lines){.title = "Accuracy over latency",
                                         .x_label = "ms a call, median, at the first batch "
                                                    "(area of a mark: file)",
                                         .y_label = "accuracy, %",
                                         .nseries = n,
                                         .series = d.series},
                        to));
out:
    tr_free(sizes);
    drawing_close(&d);
    return st;
}
