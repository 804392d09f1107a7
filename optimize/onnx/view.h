/* Values of a file that are other orders, cuts or multiples of the model's: what exporters write
 * between layers. A view waits on its value: a reader that takes heads of attention, or rows in any
 * order, works on what is seen; for any other the steps that made it become layers, or are refused.
 * Private. */
#ifndef TR_ONNX_VIEW_H
#define TR_ONNX_VIEW_H

#include "optimize/onnx/reader.h"

enum { TR_ONNX_ATOMS = 16 };

/* A part of an axis of what is seen: its index is the sum of index * stride over the axis's atoms,
 * plus an offset. */
typedef struct {
    int axis; /* 0: the batch, once in every view; then the dimensions of a sample */
    int64_t stride, size;
} tr_onnx_atom;

/* Scores of an attention: of scores, axes 1, 2 and 3 are heads, queries and keys. */
typedef struct {
    int q, k;               /* values of the model */
    int64_t q_from, k_from; /* features that come before */
    int64_t heads, D, queries, keys;
    double scale;
    bool causal, masked, probable; /* it has had a mask; a softmax */
} tr_onnx_scores;

struct tr_onnx_view {
    int of; /* value of the model; -1: scores */
    const tr_onnx_scores *scores;
    double scale;
    int depth;                             /* steps that wait */
    int ndim, natoms, count[TR_ONNX_RANK]; /* atoms by dimension; 0: its size is 1 */
    tr_onnx_atom atoms[TR_ONNX_ATOMS];
    int64_t offset[TR_MAX_DIMS + 1]; /* by axis */
};

/* What a value is: a copy that may be changed; NULL: it is none, or zeros are still to be put
 * around it. */
tr_onnx_view *tr_onnx_view_of(tr_onnx_reader *r, int value);
/* Of `like`, without dimensions. */
tr_onnx_view *tr_onnx_view_new(tr_onnx_reader *r, const tr_onnx_view *like);
/* A dimension of one atom behind the others; size 1: of none. */
bool tr_onnx_view_add(tr_onnx_view *v, int axis, int64_t stride, int64_t size);
int64_t tr_onnx_view_axis(const tr_onnx_reader *r, const tr_onnx_view *v, int axis);
/* Its size: a number, or a multiple of the batch as constants have it. */
int64_t tr_onnx_view_dim(const tr_onnx_view *v, int d);
const tr_onnx_atom *tr_onnx_view_atoms(const tr_onnx_view *v, int d);
/* Whether dimension d is all of the axis (any of size 1 is). */
bool tr_onnx_view_is_axis(const tr_onnx_reader *r, const tr_onnx_view *v, int d, int axis);
/* Whether two have the same dimensions, of the same parts of the same axes, up to dimension n. */
bool tr_onnx_view_same(const tr_onnx_view *a, const tr_onnx_view *b, int n);
/* Changes; false: it is no such view. */
bool tr_onnx_view_reshape(tr_onnx_view *v, int n, const int64_t *to, bool zeros);
bool tr_onnx_view_transpose(tr_onnx_view *v, int n, const int64_t *perm);
bool tr_onnx_view_cut(tr_onnx_view *v, int d, int64_t begin, int64_t size);
bool tr_onnx_view_drop(tr_onnx_view *v, int d);
bool tr_onnx_view_insert(tr_onnx_view *v, int d);
/* Output k of the step is this: the value itself, or what waits for a reader. */
void tr_onnx_view_give(tr_onnx_reader *r, const tr_onnx_step *s, int k, tr_onnx_view *v);
/* The value of the model whose (rows, features) it is with rows in front of the batch, or whose
 * columns (`columns`); -1: it is neither. */
int tr_onnx_view_rows_first(const tr_onnx_reader *r, int value, bool *columns);
/* Every element of every axis is in it once, and its last dimension is the last axis. */
bool tr_onnx_view_by_row(const tr_onnx_reader *r, const tr_onnx_view *v);

/* ---- waiting.c: whether the step is a view of what it reads. */
bool tr_onnx_waits(tr_onnx_reader *r, const tr_onnx_step *s);
/* Whether there are such steps of its type. */
bool tr_onnx_may_wait(const tr_onnx_step *s);
/* ops/heads.c: scores, probabilities and sums of values. False: the step is none of them. */
bool tr_onnx_attends(tr_onnx_reader *r, const tr_onnx_step *s);

#endif
