/* A comparison as a table, as CSV with a row a run, and as JSON. */
#include <math.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/visible.h"
#include "trainer/compare/compare.h"

/* What came of a run, one value after the other. */
enum { RESULTS = 4 + 3 * TR_COMPARED_COUNT + 1 };
typedef struct {
    char key[32];
    double v;
} result;

static size_t results(const tr_compared *r, result out[RESULTS])
{
    size_t n = 0;
    out[n++] = (result){"steps", r->steps};
    out[n++] = (result){"seconds", r->seconds};
    out[n++] = (result){"samples_per_s", r->samples_per_s};
    out[n++] = (result){"parameters", r->parameters};
    out[n++] = (result){"training_loss",
                        r->training.count > 0 ? r->training.value[0][r->training.count - 1] : NAN};
    for (int m = 0; m < TR_COMPARED_COUNT; m++) {
        static const char *const which[] = {"best", "last", "best_step"};
        double v[3];
        tr_compared_best(r, (tr_compared_metric)m, &v[0], &v[2], &v[1]);
        for (int k = 0; k < 3; k++, n++) {
            snprintf(out[n].key, sizeof out[n].key, k < 2 ? "%s_%s" : "best_%s_step",
                     k < 2 ? which[k] : tr_compared_metrics[m].name, tr_compared_metrics[m].name);
            out[n].v = v[k];
        }
    }
    return n;
}

static const char *number(double v, char buf[32])
{
    if (isnan(v)) return "-";
    snprintf(buf, 32, v == floor(v) && fabs(v) < 1e15 ? "%.0f" : "%.6g", v);
    return buf;
}

/* Characters of a config's value, and of a pipeline's stages, that a table shows; CSV and JSON have
 * all. */
enum { VALUE = 32, STAGES = 80 };

/* Cells [row][1 + runs], owned. */
typedef struct {
    size_t rows, columns;
    char **cells;
} table;

static tr_status put(table *t, size_t row, size_t column, const char *text)
{
    char *copy = tr_strdup(text);
    if (!copy) return tr_last_status();
    t->cells[row * t->columns + column] = copy;
    return TR_OK;
}

static void table_close(table *t)
{
    for (size_t i = 0; t->cells && i < t->rows * t->columns; i++) tr_free(t->cells[i]);
    tr_free(t->cells);
}

/* Differences, a line of its own for what came of it, then results that some run has. */
static tr_status fill(const tr_comparison *c, const tr_differences *d, table *t)
{
    tr_status st = TR_OK;
    result r[RESULTS];
    char text[TR_BRIEF(STAGES)];
    *t = (table){.columns = 1 + c->count};
    TR_HAVE(t->cells =
                tr_alloc(TR_MEM_OTHER, (d->count + RESULTS + 2) * t->columns, sizeof(char *)));
    t->rows = 1;
    TR_TRY(put(t, 0, 0, ""));
    for (size_t k = 0; k < c->count; k++) TR_TRY(put(t, 0, 1 + k, c->runs[k].path));
    for (size_t i = 0; i < d->count; i++, t->rows++) {
        const size_t most = strcmp(d->v[i].key, "pipeline") == 0 ? STAGES : VALUE;
        TR_TRY(put(t, t->rows, 0, d->v[i].key));
        for (size_t k = 0; k < c->count; k++)
            TR_TRY(put(t, t->rows, 1 + k,
                       d->v[i].values[k] ? tr_utf8_brief(d->v[i].values[k], most, text) : "-"));
    }
    TR_TRY(put(t, t->rows, 0, "status"));
    for (size_t k = 0; k < c->count; k++) TR_TRY(put(t, t->rows, 1 + k, c->runs[k].status));
    t->rows++;
    const size_t n = results(&c->runs[0], r);
    for (size_t i = 0; i < n; i++) {
        bool any = false;
        for (size_t k = 0; k < c->count; k++) {
            results(&c->runs[k], r);
            any = any || !isnan(r[i].v);
            tr_free(t->cells[t->rows * t->columns + 1 + k]);
            t->cells[t->rows * t->columns + 1 + k] = NULL;
            TR_TRY(put(t, t->rows, 1 + k, number(r[i].v, text)));
        }
        if (!any) continue;
        TR_TRY(put(t, t->rows, 0, r[i].key));
        t->rows++;
    }
out:
    return st;
}

/* A row that was begun, and not kept. */
static void forget_rest(table *t, size_t rows)
{
    for (size_t i = t->rows * t->columns; i < rows * t->columns; i++) {
        tr_free(t->cells[i]);
        t->cells[i] = NULL;
    }
}

static int widest(const table *t, size_t column)
{
    size_t wide = 0;
    for (size_t i = 0; i < t->rows; i++) {
        const size_t n = tr_utf8_count(t->cells[i * t->columns + column]);
        if (n > wide) wide = n;
    }
    return (int)wide;
}

/* Whether a row says something of these columns. */
static bool says(const table *t, size_t row, size_t first, size_t end)
{
    while (first < end && strcmp(t->cells[row * t->columns + first], "-") == 0) first++;
    return first < end;
}

static void print_columns(const table *t, size_t differences, size_t first, size_t end, FILE *to)
{
    for (size_t i = 0; i < t->rows; i++) {
        if (i == 1) fputs(differences ? "config\n" : "config: the same\n", to);
        if (i == 1 + differences) fputs("results\n", to);
        if (!says(t, i, first, end)) continue;
        if (i > 0) fputs("  ", to);
        tr_write_cell(to, -widest(t, 0) - (i > 0 ? 0 : 2), t->cells[i * t->columns]);
        for (size_t k = first; k < end; k++) {
            fputs("  ", to);
            tr_write_cell(to, widest(t, k), t->cells[i * t->columns + k]);
        }
        fputc('\n', to);
    }
}

tr_status tr_comparison_write_text(const tr_comparison *c, const tr_differences *d, int width,
                                   FILE *to)
{
    table t;
    const tr_status st = fill(c, d, &t);
    for (size_t first = 1, end; st == TR_OK && first < t.columns; first = end) {
        int used = 2 + widest(&t, 0);
        for (end = first; end < t.columns; end++) {
            used += 2 + widest(&t, end);
            if (used > width && end > first) break;
        }
        if (first > 1) fputc('\n', to);
        print_columns(&t, d->count, first, end, to);
    }
    if (t.cells) forget_rest(&t, d->count + RESULTS + 2);
    table_close(&t);
    return st;
}

static void csv_text(const char *s, FILE *to)
{
    if (!strpbrk(s, ",\"\r\n")) {
        fputs(s, to);
        return;
    }
    fputc('"', to);
    for (; *s; s++) fprintf(to, *s == '"' ? "\"\"" : "%c", *s);
    fputc('"', to);
}

tr_status tr_comparison_write_csv(const tr_comparison *c, const tr_differences *d, FILE *to)
{
    result r[RESULTS];
    char number[32];
    size_t n = results(&c->runs[0], r);
    fputs("run", to);
    for (size_t i = 0; i < d->count; i++) {
        fputc(',', to);
        csv_text(d->v[i].key, to);
    }
    fputs(",status", to);
    for (size_t i = 0; i < n; i++) fprintf(to, ",%s", r[i].key);
    fputc('\n', to);
    for (size_t k = 0; k < c->count; k++) {
        csv_text(c->runs[k].path, to);
        for (size_t i = 0; i < d->count; i++) {
            fputc(',', to);
            if (d->v[i].values[k]) csv_text(d->v[i].values[k], to);
        }
        fputc(',', to);
        csv_text(c->runs[k].status, to);
        n = results(&c->runs[k], r);
        for (size_t i = 0; i < n; i++)
            fprintf(to, ",%s", isnan(r[i].v) ? "" : tr_format_real(r[i].v, number));
        fputc('\n', to);
    }
    return TR_OK;
}

static void write_curve(const char *key, const tr_curve *c, int metrics, FILE *to)
{
    fprintf(to, ",\n   \"%s\": {\"step\": [", key);
    for (size_t i = 0; i < c->count; i++) fprintf(to, "%s%.0f", i ? ", " : "", c->step[i]);
    fputc(']', to);
    for (int m = 0; m < metrics; m++) {
        bool any = false;
        for (size_t i = 0; i < c->count; i++) any = any || !isnan(c->value[m][i]);
        if (!any) continue;
        fprintf(to, ", \"%s\": [", tr_compared_metrics[m].name);
        for (size_t i = 0; i < c->count; i++) {
            fputs(i ? ", " : "", to);
            tr_json_real(c->value[m][i], to);
        }
        fputc(']', to);
    }
    fputc('}', to);
}

tr_status tr_comparison_write_json(const tr_comparison *c, const tr_differences *d, FILE *to)
{
    result r[RESULTS];
    fputs("{\"runs\": [", to);
    for (size_t k = 0; k < c->count; k++) {
        const size_t n = results(&c->runs[k], r);
        fprintf(to, "%s\n  {\"run\": ", k ? "," : "");
        tr_json_text(c->runs[k].path, to);
        fputs(", \"status\": ", to);
        tr_json_text(c->runs[k].status, to);
        fputs(",\n   \"config\": {", to);
        for (size_t i = 0, first = 1; i < d->count; i++) {
            if (!d->v[i].values[k]) continue;
            fputs(first ? "" : ", ", to);
            first = 0;
            tr_json_text(d->v[i].key, to);
            fputs(": ", to);
            tr_json_text(d->v[i].values[k], to);
        }
        fputs("},\n   \"results\": {", to);
        for (size_t i = 0, first = 1; i < n; i++) {
            if (isnan(r[i].v)) continue;
            fprintf(to, "%s\"%s\": ", first ? "" : ", ", r[i].key);
            first = 0;
            tr_json_real(r[i].v, to);
        }
        fputc('}', to);
        write_curve("training", &c->runs[k].training, 1, to);
        write_curve("evaluation", &c->runs[k].evaluation, TR_COMPARED_COUNT, to);
        fputc('}', to);
    }
    fputs("\n]}\n", to);
    return TR_OK;
}
