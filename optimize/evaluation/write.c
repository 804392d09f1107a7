/* A full evaluation as a table and as JSON. */
#include "optimize/evaluation/metrics.h"

#include <math.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/base/visible.h"

#define SHOWN 20 /* rows at most of what has a row an output, or a class a side */

static tr_status written(FILE *to)
{
    return ferror(to) ? TR_FAIL(TR_IO, "an evaluation could not be written") : TR_OK;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void line(FILE *to, const char *name, double v)
{
    if (!isnan(v)) fprintf(to, "%-10s %.6g\n", name, v);
}

/* Characters of a name that are shown, at most. */
enum { NAME = 24, NARROW = 12 };

/* What class or output k goes by, at most so many characters. */
static const char *name_of(const tr_full_evaluation *f, size_t k, size_t most,
                           char name[TR_BRIEF(NAME)])
{
    char text[256];
    snprintf(text, sizeof text, "%zu", k);
    if (f->names) tr_visible(f->names[k], strlen(f->names[k]), text, sizeof text);
    return tr_utf8_brief(text, most, name);
}

/* What the names' column takes. */
static int widest(const tr_full_evaluation *f, size_t count, int least, size_t most)
{
    char name[TR_BRIEF(NAME)];
    for (size_t k = 0; k < count; k++) {
        if (f->classes && !tr_class_occurs(f, k)) continue;
        const int n = (int)tr_utf8_count(name_of(f, k, most, name));
        if (n > least) least = n;
    }
    return least;
}

static void class_row(FILE *to, int width, const char *name, const tr_class_metrics *m)
{
    tr_write_cell(to, width, name);
    fprintf(to, " %10.4f %10.4f %10.4f ", m->precision, m->recall, m->f1);
    if (isnan(m->auc))
        fprintf(to, "%10s", "-");
    else
        fprintf(to, "%10.4f", m->auc);
    fprintf(to, " %10llu\n", (unsigned long long)m->support);
}

static void write_confusion(const tr_full_evaluation *f, FILE *to)
{
    char name[TR_BRIEF(NAME)];
    const int width = widest(f, f->classes, 10, NAME), each = widest(f, f->classes, 7, NARROW);
    fprintf(to, "\nconfusion matrix: a row for each class, a column for each prediction\n");
    tr_write_cell(to, width, "");
    for (size_t k = 0; k < f->classes; k++) {
        if (!tr_class_occurs(f, k)) continue;
        tr_write_cell(to, each + 1, name_of(f, k, NARROW, name));
    }
    for (size_t i = 0; i < f->classes; i++) {
        if (!tr_class_occurs(f, i)) continue;
        fputc('\n', to);
        tr_write_cell(to, width, name_of(f, i, NAME, name));
        for (size_t k = 0; k < f->classes; k++)
            if (tr_class_occurs(f, k))
                fprintf(to, " %*lld", each, (long long)f->confusion[i * f->classes + k]);
    }
    fputc('\n', to);
}

static void write_classes(const tr_full_evaluation *f, FILE *to)
{
    char name[TR_BRIEF(NAME)];
    const int width = widest(f, f->classes, 10, NAME);
    fputc('\n', to);
    tr_write_cell(to, width, "class");
    fprintf(to, " %10s %10s %10s %10s %10s\n", "precision", "recall", "f1", "auc", "support");
    for (size_t k = 0; k < f->classes; k++) {
        if (!tr_class_occurs(f, k)) continue;
        class_row(to, width, name_of(f, k, NAME, name), &f->of[k]);
    }
    class_row(to, width, "macro", &f->macro);
    class_row(to, width, "weighted", &f->weighted);
    if (f->absent > 0)
        fprintf(to, "left out: %zu of %zu classes, of which no sample is, nor is taken for one\n",
                f->absent, f->classes);
    if (f->confusion && f->classes - f->absent <= SHOWN) write_confusion(f, to);
}

static void value_row(FILE *to, int width, const char *name, const tr_value_metrics *m)
{
    tr_write_cell(to, width, name);
    fprintf(to, " %12.6g %12.6g %12.6g ", m->mae, m->mse, m->rmse);
    if (isnan(m->r2))
        fprintf(to, "%12s\n", "-");
    else
        fprintf(to, "%12.6g\n", m->r2);
}

static void write_values(const tr_full_evaluation *f, FILE *to)
{
    char name[TR_BRIEF(NAME)];
    const size_t shown = f->outputs <= SHOWN ? f->outputs : 0;
    const int width = widest(f, shown, 10, NAME);
    fputc('\n', to);
    tr_write_cell(to, width, "output");
    fprintf(to, " %12s %12s %12s %12s\n", "mae", "mse", "rmse", "r2");
    for (size_t k = 0; k < shown; k++) {
        value_row(to, width, name_of(f, k, NAME, name), &f->values[k]);
    }
    value_row(to, width, "all", &f->all);
}

tr_status tr_full_write_text(const tr_full_evaluation *f, FILE *to)
{
    fprintf(to, "%-10s %llu\n", "samples", (unsigned long long)f->mean.samples);
    if (f->rows > 1) fprintf(to, "%-10s %llu\n", "targets", (unsigned long long)f->mean.targets);
    fprintf(to, "%-10s %.6g\n", "loss", f->mean.loss); /* also where it is not a number */
    line(to, "perplexity", f->perplexity);
    line(to, "bits/byte", f->bits_per_byte);
    line(to, "accuracy", f->mean.accuracy);
    line(to, "top5", f->mean.top5);
    line(to, "auc", f->classes ? f->auc : NAN);
    (f->classes ? write_classes : write_values)(f, to);
    return written(to);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void real(FILE *to, const char *key, double v)
{
    fprintf(to, ", \"%s\": ", key);
    tr_json_real(v, to);
}

/* "name": "...", where there is one. */
static void name_json(const tr_full_evaluation *f, size_t k, FILE *to)
{
    if (!f->names) return;
    fputs("\"name\": ", to);
    tr_json_text(f->names[k], to);
    fputs(", ", to);
}

static void class_numbers(FILE *to, const tr_class_metrics *m)
{
    fprintf(to, "\"support\": %llu, \"predicted\": %llu", (unsigned long long)m->support,
            (unsigned long long)m->predicted);
    real(to, "precision", m->precision);
    real(to, "recall", m->recall);
    real(to, "f1", m->f1);
    real(to, "auc", m->auc);
    fputc('}', to);
}

static void classes_json(const tr_full_evaluation *f, FILE *to)
{
    fputs(",\n \"classes\": [", to);
    for (size_t k = 0; k < f->classes; k++) {
        fputs(k ? ",\n  " : "\n  ", to);
        fputc('{', to);
        name_json(f, k, to);
        class_numbers(to, &f->of[k]);
    }
    fputs("],\n \"macro\": {", to);
    class_numbers(to, &f->macro);
    fputs(",\n \"weighted\": {", to);
    class_numbers(to, &f->weighted);
    if (f->absent > 0) fprintf(to, ",\n \"absent\": %zu", f->absent);
    if (!f->confusion) return;
    fputs(",\n \"confusion\": [", to);
    for (size_t i = 0; i < f->classes; i++)
        for (size_t k = 0; k < f->classes; k++)
            fprintf(to, "%s%lld%s",
                    k   ? ", "
                    : i ? ",\n  ["
                        : "\n  [",
                    (long long)f->confusion[i * f->classes + k], k + 1 < f->classes ? "" : "]");
    fputc(']', to);
}

static void value_numbers(FILE *to, const tr_value_metrics *m)
{
    fputs("\"mae\": ", to);
    tr_json_real(m->mae, to);
    real(to, "mse", m->mse);
    real(to, "rmse", m->rmse);
    real(to, "r2", m->r2);
    fputc('}', to);
}

static void values_json(const tr_full_evaluation *f, FILE *to)
{
    fputs(",\n \"outputs\": [", to);
    for (size_t k = 0; k < f->outputs; k++) {
        fputs(k ? ",\n  " : "\n  ", to);
        fputc('{', to);
        name_json(f, k, to);
        value_numbers(to, &f->values[k]);
    }
    fputs("],\n \"all\": {", to);
    value_numbers(to, &f->all);
}

tr_status tr_full_write_json(const tr_full_evaluation *f, FILE *to)
{
    fprintf(to, "{\"samples\": %llu", (unsigned long long)f->mean.samples);
    if (f->rows > 1) fprintf(to, ", \"targets\": %llu", (unsigned long long)f->mean.targets);
    real(to, "loss", f->mean.loss);
    if (!isnan(f->perplexity)) real(to, "perplexity", f->perplexity);
    if (!isnan(f->bits_per_byte)) real(to, "bits_per_byte", f->bits_per_byte);
    if (!isnan(f->mean.accuracy)) real(to, "accuracy", f->mean.accuracy);
    if (!isnan(f->mean.top5)) real(to, "top5", f->mean.top5);
    if (f->classes) real(to, "auc", f->auc);
    (f->classes ? classes_json : values_json)(f, to);
    fputs("}\n", to);
    return written(to);
}
