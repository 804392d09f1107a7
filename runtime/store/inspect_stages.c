/* `trainer inspect`: the stages that made a file. A row a stage with what can be compared from one
 * to the next, then all that the last one found. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

static void cell(double v, const char *text, FILE *to)
{
    fprintf(to, " %11s", isfinite(v) ? text : "-");
}

/* The size of what a stage wrote is known to the one behind it, and of the last one is this
 * file's. */
static double size_of(const tr_summary *s, size_t i)
{
    const tr_lineage *l = &s->lineage;
    return i + 1 < l->count ? tr_attrs_number(&l->v[i + 1].values, "parent_bytes")
                            : (double)tr_index_model_nbytes(&s->ix);
}

static void line(const tr_summary *s, size_t i, FILE *to)
{
    const tr_findings *f = &s->lineage.v[i];
    char text[32];
    double v = tr_attrs_number(&f->values, "parameters");
    fputs("  ", to);
    tr_plain_text(f->stage, 24, to);
    fprintf(to, "%*s", (int)(strlen(f->stage) < 20 ? 20 - strlen(f->stage) : 0), "");
    cell(v, tr_format_count(v, text, sizeof text), to);
    v = size_of(s, i);
    cell(v, tr_format_bytes(v, text, sizeof text), to);
    v = tr_attrs_number(&f->values, "multiply_adds");
    cell(v, tr_format_count(v, text, sizeof text), to);
    v = tr_attrs_number(&f->values, "latency_ms");
    snprintf(text, sizeof text, "%.4g ms", v);
    cell(v, text, to);
    v = tr_attrs_number(&f->values, "loss");
    snprintf(text, sizeof text, "%.6g", v);
    cell(v, text, to);
    v = tr_attrs_number(&f->values, "accuracy");
    snprintf(text, sizeof text, "%.2f%%", 100 * v);
    cell(v, text, to);
    fputc('\n', to);
}

static void one_value(const tr_attr *a, FILE *to)
{
    if (a->kind == TR_ATTR_COUNT) fprintf(to, "%llu", (unsigned long long)a->u);
    if (a->kind == TR_ATTR_REAL) fprintf(to, "%.6g", a->f);
    if (a->kind == TR_ATTR_TEXT) tr_plain_text(a->text, 400, to);
}

static int row_width(const char *rows)
{
    size_t width = 8;
    for (const char *p = rows, *end; (end = strchr(p, '\n')); p = end + 1)
        if ((size_t)(end - p) > width) width = (size_t)(end - p);
    return width < 40 ? (int)width : 40;
}

static void findings_table(const tr_table *t, FILE *to)
{
    const int width = row_width(t->rows);
    const char *row = t->rows;
    fputs("\n  ", to);
    tr_plain_text(t->name, 40, to);
    fprintf(to, "\n  %-*s", width, "");
    for (size_t k = 0; k < t->ncolumns; k++) {
        fputc(' ', to);
        const int n = (int)strlen(t->columns[k].name);
        fprintf(to, "%*s", n < 12 ? 12 - n : 0, "");
        tr_plain_text(t->columns[k].name, TR_NAME, to);
    }
    fputc('\n', to);
    for (size_t i = 0; i < t->nrows; i++) {
        const char *end = strchr(row, '\n');
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(end - row), row);
        fputs("  ", to);
        tr_plain_text(name, width, to);
        fprintf(to, "%*s", width > (int)strlen(name) ? width - (int)strlen(name) : 0, "");
        for (size_t k = 0; k < t->ncolumns; k++) {
            const int n = (int)strlen(t->columns[k].name);
            fprintf(to, " %*.6g", n < 12 ? 12 : n, t->columns[k].v[i]);
        }
        fputc('\n', to);
        row = end + 1;
    }
}

void tr_inspect_stages_text(const tr_summary *s, FILE *to)
{
    const tr_lineage *l = &s->lineage;
    if (l->count == 0) return;
    fprintf(to, "\nStages\n  %-20s %11s %11s %11s %11s %11s %11s\n", "stage", "parameters", "file",
            "mult-adds", "latency", "loss", "accuracy");
    for (size_t i = 0; i < l->count; i++) line(s, i, to);
    const tr_findings *last = &l->v[l->count - 1];
    fputs("\nFound by ", to);
    tr_plain_text(last->stage, 40, to);
    fputc('\n', to);
    for (size_t i = 0; i < last->values.count; i++) {
        const tr_attr *a = &last->values.v[i];
        if (a->kind == TR_ATTR_TEXT && strchr(a->text, '\n')) continue;
        fputs("  ", to);
        tr_plain_text(a->name, 40, to);
        fputs(": ", to);
        one_value(a, to);
        fputc('\n', to);
    }
    for (size_t i = 0; i < last->ntables; i++) findings_table(&last->tables[i], to);
}

static void json_table(const tr_table *t, FILE *to)
{
    const char *row = t->rows;
    fputs("{\"name\": ", to);
    tr_json_text(t->name, to);
    fputs(", \"rows\": [", to);
    for (size_t i = 0; i < t->nrows; i++) {
        const char *end = strchr(row, '\n');
        char *name = tr_sprintf("%.*s", (int)(end - row), row);
        fputs(i ? ", " : "", to);
        tr_json_text(name ? name : "", to);
        tr_free(name);
        row = end + 1;
    }
    fputs("], \"columns\": {", to);
    for (size_t k = 0; k < t->ncolumns; k++) {
        fputs(k ? ", " : "", to);
        tr_json_text(t->columns[k].name, to);
        fputs(": [", to);
        for (size_t i = 0; i < t->nrows; i++) {
            fputs(i ? ", " : "", to);
            tr_json_real(t->columns[k].v[i], to);
        }
        fputc(']', to);
    }
    fputs("}}", to);
}

void tr_inspect_stages_json(const tr_summary *s, FILE *to)
{
    fputc('[', to);
    for (size_t i = 0; i < s->lineage.count; i++) {
        const tr_findings *f = &s->lineage.v[i];
        fputs(i ? ",\n  {\"stage\": " : "\n  {\"stage\": ", to);
        tr_json_text(f->stage, to);
        fputs(", \"values\": ", to);
        tr_json_attrs(&f->values, to);
        fputs(", \"tables\": [", to);
        for (size_t k = 0; k < f->ntables; k++) {
            fputs(k ? ", " : "", to);
            json_table(&f->tables[k], to);
        }
        fputs("]}", to);
    }
    fputc(']', to);
}
