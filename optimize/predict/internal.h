/* What writes predictions in a format: opened, given all rows in their order, closed. */
#ifndef TR_PREDICT_INTERNAL_H
#define TR_PREDICT_INTERNAL_H

#include "optimize/predict/predict.h"
#include "runtime/base/file.h"

typedef struct {
    const tr_predictions *o;
    tr_commit file;
    uint64_t at; /* bytes written; of CSV and NPY */
    void *own;
} tr_predict_sink;

typedef struct {
    tr_status (*open)(tr_predict_sink *s); /* s->file is open */
    tr_status (*rows)(tr_predict_sink *s, const tr_predict_rows *r);
    tr_status (*end)(tr_predict_sink *s);
    void (*close)(tr_predict_sink *s); /* also after a failure; NULL: nothing to do */
} tr_predict_writer;

extern const tr_predict_writer tr_predict_h5, tr_predict_npy, tr_predict_csv;

tr_status tr_predict_put(tr_predict_sink *s, const void *bytes, size_t n);

#endif
