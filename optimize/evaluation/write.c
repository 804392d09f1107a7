/* A full evaluation as a table and as JSON. */
#include "optimize/evaluation/metrics.h"

#include <math.h>

#define SHOWN 20 /* rows at most of what has a row an output, or a class a side */

static tr_status written(FILE *to)
{
    return ferror(to) ? TR_FAIL(TR_IO, "an evaluation could not be written") : TR_OK;
}

/* ---- Text ----------------------------------------------------------------------------------------- */

static void line(FILE *to, const char *name, double v)
{
    if (!isnan(v)) fprintf(to, "%-10s %.6g\n", name, v);
}

static void class_row(FILE *to, const char *name, const tr_class_metrics *m)
{
    fprintf(to, "%10s %10.4f %10.4f %10.4f ", name, m->precision, m->recall, m->f1);
    if (isnan(m->auc))
        fprintf(to, "%10s", "-");
    else
        fprintf(to, "%10.4f", m->auc);
    fprintf(to, " %10llu\n", (unsigned long long)m->support);
}

static void write_classes(const tr_full_evaluation *f, FILE *to)
{
    char name[24];
    fprintf(to, "\n%10s %10s %10s %10s %10s %10s\n", "class", "precision", "recall", "f1", "auc",
            "support");
    for (size_t k = 0; k < f->classes; k++) {
        snprintf(name, sizeof name, "%zu", k);
        class_row(to, name, &f->of[k]);
    }
    class_row(to, "macro", &f->macro);
    class_row(to, "weighted", &f->weighted);
    if (!f->confusion || f->classes > SHOWN) return;
    fprintf(to, "\nconfusion matrix: a row for each class, a column for each prediction\n%10s", "");
    for (size_t k = 0; k < f->classes; k++) fprintf(to, " %7zu", k);
    for (size_t i = 0; i < f->classes; i++) {
        fprintf(to, "\n%10zu", i);
        for (size_t k = 0; k < f->classes; k++)
            fprintf(to, " %7lld", (long long)f->confusion[i * f->classes + k]);
    }
    fputc('\n', to);
}

static void value_row(FILE *to, const char *name, const tr_value_metrics *m)
{
    fprintf(to, "%10s %12.6g %12.6g %12.6g ", name, m->mae, m->mse, m->rmse);
    if (isnan(m->r2))
        fprintf(to, "%12s\n", "-");
    else
        fprintf(to, "%12.6g\n", m->r2);
}

static void write_values(const tr_full_evaluation *f, FILE *to)
{
    char name[24];
    fprintf(to, "\n%10s %12s %12s %12s %12s\n", "output", "mae", "mse", "rmse", "r2");
    for (size_t k = 0; k < f->outputs && f->outputs <= SHOWN; k++) {
        snprintf(name, sizeof name, "%zu", k);
        value_row(to, name, &f->values[k]);
    }
    value_row(to, "all", &f->all);
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

/* ---- JSON ----------------------------------------------------------------------------------------- */

/* A number that is none is null. */
static void real(FILE *to, const char *key, double v)
{
    fprintf(to, ", \"%s\": ", key);
    if (isfinite(v))
        fprintf(to, "%.17g", v);
    else
        fputs("null", to);
}

static void class_object(FILE *to, const tr_class_metrics *m)
{
    fprintf(to, "{\"support\": %llu", (unsigned long long)m->support);
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
        class_object(to, &f->of[k]);
    }
    fputs("],\n \"macro\": ", to);
    class_object(to, &f->macro);
    fputs(",\n \"weighted\": ", to);
    class_object(to, &f->weighted);
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

static void values_object(FILE *to, const tr_value_metrics *m)
{
    fputs("{\"mae\": ", to);
    fprintf(to, isfinite(m->mae) ? "%.17g" : "null", m->mae);
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
        values_object(to, &f->values[k]);
    }
    fputs("],\n \"all\": ", to);
    values_object(to, &f->all);
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
