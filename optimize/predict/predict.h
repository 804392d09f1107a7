/* Predictions: what a model puts out for samples, on its way to a file that people read. Rows of
 * raw outputs are appended to PATH.part, so that a killed prediction goes on where it was; from the
 * whole of them the file is written. All Local, one process. */
#ifndef TR_PREDICT_H
#define TR_PREDICT_H

#include "runtime/graph/model.h"

/* ---- PATH.part ------------------------------------------------------------------------------- */

/* A header that names the job, then records: a count of rows, a checksum, the rows. What follows
 * the last whole record of consecutive ones is cut off when it is opened again. */
typedef struct tr_part tr_part;
/* *out: locked, at its end. `job`: SHA-256 of all that decides about the rows, each of `outputs`
 * float32, which come `batch` at a time but for the last. `replace`: one of another job starts
 * over; else that is TR_USAGE, as one that is being written, and a file that is none, always is. */
tr_status tr_part_open(const char *path, const char job[65], uint64_t samples, size_t outputs,
                       uint64_t batch, bool replace, tr_part **out);
void tr_part_close(tr_part *p);          /* NULL is fine */
uint64_t tr_part_rows(const tr_part *p); /* that it has */
/* The next batch, a record. TR_IO may leave it half written. */
tr_status tr_part_append(tr_part *p, const float *rows, uint64_t count);
/* Reading starts over; then a batch at a time, in their order: TR_DATA where a checksum differs. */
void tr_part_rewind(tr_part *p);
tr_status tr_part_next(tr_part *p, float *rows, uint64_t *count);
uint64_t tr_part_batch(const tr_part *p);
tr_status tr_part_remove(tr_part *p);

/* ---- The file -------------------------------------------------------------------------------- */

typedef enum {
    TR_PREDICT_H5,
    TR_PREDICT_NPY,
    TR_PREDICT_CSV,
    TR_PREDICT_FORMATS
} tr_predict_format;
/* By the extension. TR_USAGE. */
tr_status tr_predict_format_of(const char *path, tr_predict_format *out);

typedef struct {
    const char *path;
    int loss; /* tr_loss_kind: softmax of cross_entropy, sigmoid of binary ones, else as it is */
    bool raw; /* what the model puts out, instead of probabilities (h5: beside them) */
    size_t outputs; /* of a sample */
    size_t rows;    /* of a sample, each with a class: places of an image or a sequence; 1 */
    bool planes;    /* classes of a row lie apart from each other, (classes, height, width) */
    int ndim;       /* of values: the shape of a sample's */
    int64_t dims[TR_MAX_DIMS];
    size_t top; /* classes a row, the most probable first; 0: none */
    uint64_t samples;
    const char *const *names; /* of classes; NULL: their numbers */
    const char *const
        *targets; /* [outputs]: columns of a table that outputs stand for; NULL: their numbers */
    const char *model; /* SHA-256 of its file */
    /* the file that sample i is, from (files, i); NULL: samples are numbered alone */
    const char *(*file)(const void *files, uint64_t i);
    const void *files;
} tr_predictions;
/* Whether the loss compares values, which are no probabilities. */
static inline bool tr_predict_values(int loss)
{
    return loss != TR_LOSS_CROSS_ENTROPY && !tr_loss_binary(loss);
}
/* Whether a row of so many outputs has a class: of cross_entropy, and of one output of bce (0 and
 * 1). */
bool tr_predict_has_class(int loss, size_t outputs);
size_t tr_predict_classes(int loss, size_t outputs);

/* Rows as they are written. */
typedef struct {
    uint64_t first, count;
    const float *raw, *values; /* [count * outputs] */
    const int32_t
        *top; /* [count * rows * top], as classes lie; -1 where an output is not a number */
    const float *top_values; /* their probabilities */
} tr_predict_rows;
/* From raw outputs; values: probabilities, computed in double; top, top_values: with o->top. */
void tr_predict_compute(const tr_predictions *o, uint64_t count, const float *raw, float *values,
                        int32_t *top, float *top_values);

/* Samples of which some output is not finite. */
typedef struct {
    uint64_t count, first;
} tr_predict_nonfinite;
/* All rows of `p`, which has them all. The file appears whole or not at all, and is the same bytes
 * each time. */
tr_status tr_predict_write(const tr_predictions *o, tr_part *p, tr_predict_nonfinite *bad);

#endif
