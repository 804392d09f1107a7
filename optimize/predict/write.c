/* From PATH.part to the file: a record's rows at a time. */
#include "optimize/predict/internal.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const tr_predict_writer *const writers[] = {[TR_PREDICT_H5] = &tr_predict_h5,
                                                   [TR_PREDICT_NPY] = &tr_predict_npy,
                                                   [TR_PREDICT_CSV] = &tr_predict_csv};

tr_status tr_predict_format_of(const char *path, tr_predict_format *out)
{
    static const struct {
        const char *end;
        tr_predict_format format;
    } ends[] = {{".h5", TR_PREDICT_H5},
                {".hdf5", TR_PREDICT_H5},
                {".npy", TR_PREDICT_NPY},
                {".csv", TR_PREDICT_CSV}};
    const size_t n = strlen(path);
    for (size_t i = 0; i < TR_COUNT(ends); i++) {
        const size_t m = strlen(ends[i].end);
        if (n <= m || strcasecmp(path + n - m, ends[i].end) != 0) continue;
        *out = ends[i].format;
        return TR_OK;
    }
    return TR_FAIL(TR_USAGE, "%s: expected a file that ends in .h5, .npy or .csv", path);
}

tr_status tr_predict_put(tr_predict_sink *s, const void *bytes, size_t n)
{
    const tr_status st = tr_commit_write(&s->file, s->at, bytes, n);
    s->at += n;
    return st;
}

static void look(const tr_predict_rows *r, size_t outputs, tr_predict_nonfinite *bad)
{
    for (uint64_t i = 0; i < r->count; i++) {
        size_t k = 0;
        while (k < outputs && isfinite(r->raw[i * outputs + k])) k++;
        if (k < outputs && bad->count++ == 0) bad->first = r->first + i;
    }
}

static tr_status write_rows(const tr_predictions *o, tr_part *p, const tr_predict_writer *w,
                            tr_predict_sink *s, tr_predict_nonfinite *bad)
{
    tr_status st = TR_OK;
    const size_t most = (size_t)tr_part_batch(p);
    float *raw = tr_alloc(TR_MEM_OTHER, most * o->outputs, sizeof *raw);
    float *values = tr_alloc(TR_MEM_OTHER, most * o->outputs, sizeof *values);
    int32_t *top = tr_alloc(TR_MEM_OTHER, most * o->rows * o->top, sizeof *top);
    float *top_values = tr_alloc(TR_MEM_OTHER, most * o->rows * o->top, sizeof *top_values);
    TR_HAVE(raw && values && top && top_values);
    tr_part_rewind(p);
    for (uint64_t at = 0, n; at < o->samples; at += n) {
        TR_TRY(tr_part_next(p, raw, &n));
        tr_predict_compute(o, n, raw, values, top, top_values);
        const tr_predict_rows r = {.first = at,
                                   .count = n,
                                   .raw = raw,
                                   .values = values,
                                   .top = top,
                                   .top_values = top_values};
        TR_TRY(w->rows(s, &r));
        look(&r, o->outputs, bad);
    }
out:
    tr_free(raw);
    tr_free(values);
    tr_free(top);
    tr_free(top_values);
    return st;
}

tr_status tr_predict_write(const tr_predictions *o, tr_part *p, tr_predict_nonfinite *bad)
{
    tr_status st;
    *bad = (tr_predict_nonfinite){0};
    tr_predict_format format = (tr_predict_format)0; /* -O3 does not see that it is set */
    tr_predict_sink s = {.o = o, .file = {.fd = -1}};
    const tr_predict_writer *w = NULL;
    TR_TRY(tr_predict_format_of(o->path, &format));
    TR_TRY(tr_commit_open(&s.file, o->path, 0));
    w = writers[format];
    TR_TRY(w->open(&s));
    TR_TRY(write_rows(o, p, w, &s, bad));
    TR_TRY(w->end(&s));
    st = tr_commit_finish(&s.file);
out:
    if (w && w->close) w->close(&s);
    tr_commit_close(&s.file);
    return st;
}
