/* CSV (RFC 4180) with a header: the sample's number, and its file where it is one; with classes the
 * most probable ones and their probabilities, by name where these are known; then, unless classes
 * alone were asked for, a column an output, by name where it stands for a table's. */
#include "optimize/predict/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A field, between quotes where it must be. */
static void field(FILE *to, const char *prefix, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fprintf(to, "%s%s", prefix, text);
        return;
    }
    fprintf(to, "\"%s", prefix);
    for (; *text; text++) fprintf(to, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', to);
}

static void class_name(const tr_predictions *o, FILE *to, const char *prefix, int64_t k)
{
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, k);
    field(to, prefix, k >= 0 && o->names ? o->names[k] : number);
}

/* What was written to memory goes to the file. */
static tr_status flush(tr_predict_sink *s, FILE *to, char **text, size_t *n)
{
    tr_status st = TR_OK;
    const bool failed = ferror(to) != 0;
    TR_NEED(fclose(to) == 0 && !failed, TR_MEMORY, "no memory for %s", s->o->path);
    st = tr_predict_put(s, *text, *n);
out:
    free(*text);
    return st;
}

static void header(const tr_predictions *o, FILE *to)
{
    const char *prefix = tr_predict_values(o->loss) || o->raw ? "output_" : "p_";
    fputs(o->file ? "sample,file" : "sample", to);
    for (size_t k = 1; k <= o->top; k++)
        if (o->top == 1)
            fputs(",class,probability", to);
        else
            fprintf(to, ",class_%zu,probability_%zu", k, k);
    for (size_t k = 0; k < o->outputs; k++) {
        fputc(',', to);
        if (o->targets)
            field(to, prefix, o->targets[k]);
        else if (tr_predict_classes(o->loss, o->outputs) == o->outputs &&
                 !tr_predict_values(o->loss))
            class_name(o, to, prefix, (int64_t)k);
        else if (tr_loss_binary(o->loss))
            class_name(o, to, prefix, 1); /* of the second class */
        else
            fprintf(to, "%s%zu", prefix, k);
    }
    fputs("\n", to);
}

static tr_status csv_open(tr_predict_sink *s)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory for %s", s->o->path);
    header(s->o, to);
    return flush(s, to, &text, &n);
}

static tr_status csv_rows(tr_predict_sink *s, const tr_predict_rows *r)
{
    const tr_predictions *o = s->o;
    const float *values = o->raw ? r->raw : r->values;
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory for %s", o->path);
    for (uint64_t i = 0; i < r->count; i++) {
        fprintf(to, "%" PRIu64, r->first + i);
        if (o->file) {
            fputc(',', to);
            field(to, "", o->file(o->files, r->first + i));
        }
        for (size_t k = 0; k < o->top; k++) {
            fputc(',', to);
            class_name(o, to, "", r->top[i * o->top + k]);
            fprintf(to, ",%.9g", (double)r->top_values[i * o->top + k]);
        }
        for (size_t k = 0; k < o->outputs; k++)
            fprintf(to, ",%.9g", (double)values[i * o->outputs + k]);
        fputc('\n', to);
    }
    return flush(s, to, &text, &n);
}

static tr_status csv_end(tr_predict_sink *s)
{
    (void)s;
    return TR_OK;
}

const tr_predict_writer tr_predict_csv = {csv_open, csv_rows, csv_end, NULL};
