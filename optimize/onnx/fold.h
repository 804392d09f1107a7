/* Steps on constants, in parts: fold.c has the table of them. Private. */
#ifndef TR_ONNX_FOLD_H
#define TR_ONNX_FOLD_H

#include "optimize/onnx/reader.h"

/* A constant of floats (*f) or whole numbers (*i), as large as a file may make; NULL. */
tr_onnx_const *tr_onnx_fold_new(tr_onnx_reader *r, int ndim, const int64_t *dims, bool floats,
                                float **f, int64_t **i);
/* The operators that are done on constants, by number; NULL: there are no more. */
const char *tr_onnx_fold_type(size_t i);
/* ---- choose.c: of any dimensions, broadcast: whole numbers and what is asked of numbers. NULL: it
 * cannot. */
const tr_onnx_const *tr_onnx_fold_whole(tr_onnx_reader *r, const tr_onnx_step *s);
const tr_onnx_const *tr_onnx_fold_equal(tr_onnx_reader *r, const tr_onnx_step *s);
const tr_onnx_const *tr_onnx_fold_where(tr_onnx_reader *r, const tr_onnx_step *s);
const tr_onnx_const *tr_onnx_fold_expand(tr_onnx_reader *r, const tr_onnx_step *s);
const tr_onnx_const *tr_onnx_fold_trilu(tr_onnx_reader *r, const tr_onnx_step *s);
const tr_onnx_const *tr_onnx_fold_cut(tr_onnx_reader *r, const tr_onnx_step *s);
bool tr_onnx_any_batches(const tr_onnx_const *c);

#endif
