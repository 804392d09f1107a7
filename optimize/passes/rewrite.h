/* What a pass may note about a network, which is then made in one go. Private. */
#ifndef TR_PASSES_REWRITE_H
#define TR_PASSES_REWRITE_H

#include "optimize/passes/passes.h"
#include "runtime/graph/facts.h"

/* What is to become of a layer. Inputs are values of the model as it was. */
typedef struct {
    int nin, in[TR_MAX_IN];
    const char *type;               /* another type, without options; NULL: its own */
    int64_t out;                    /* 0: as it is */
    tr_merged merged;               /* options that are others */
    int bias;                       /* 1: it gets one; -1: it loses it */
    double *row[TR_MAX_PARAMS + 1]; /* new values of its rows; the last: of a bias that it gets */
    size_t count[TR_MAX_PARAMS + 1];
    double *factor; /* [out] of its weight in 8 bits, which keeps its steps: of their scales */
    size_t uses;    /* of its output, by layers that stay; as an operand twice: 2 */
    bool stays;
} tr_edit;

struct tr_rewrite {
    const tr_network *n;
    const tr_model *m;
    const tr_normalize_config *normalize;
    size_t nnormalize;
    bool raw;       /* is set: it takes raw data from now on */
    int *as;        /* [values] the value that stands for it: itself, or an earlier one */
    tr_edit *edits; /* [layers] */
    char note[TR_PASS_NOTE];
};

tr_status tr_rewrite_open(const tr_network *n, tr_rewrite **out);
void tr_rewrite_close(tr_rewrite *rw);
/* *out NULL where it cannot be done, with a note. */
tr_status tr_rewrite_apply(tr_rewrite *rw, tr_network **out);
/* "what": why something is left alone; the first one stays. Returns false. */
bool tr_rewrite_note(tr_rewrite *rw, const char *fmt, ...) TR_PRINTF(2, 3);

/* ---- The network as noted so far; after each change tr_rewrite_look. */
void tr_rewrite_look(tr_rewrite *rw);
int tr_rewrite_value(const tr_rewrite *rw, int value); /* what stands for it */
/* The layer that makes a value, NULL: it is an input. */
const tr_layer *tr_rewrite_maker(const tr_rewrite *rw, int value);
tr_edit *tr_rewrite_edit(const tr_rewrite *rw, const tr_layer *l);
int tr_rewrite_output(const tr_rewrite *rw, const tr_layer *l); /* value of a layer */
int tr_rewrite_last(const tr_rewrite *rw);                      /* the model's output */
/* What it reads: the value that stands for operand k. */
int tr_rewrite_input(const tr_rewrite *rw, const tr_layer *l, int k);
/* No other layer has one of its rows, and they may hold any float32. */
bool tr_rewrite_owns(const tr_rewrite *rw, const tr_layer *l);
/* Likewise of a product but for its weight, which is in 8 bits with a scale of its own for each
 * output. */
bool tr_rewrite_owns_steps(const tr_rewrite *rw, const tr_layer *l);
/* From now on `value` stands for the output of `l`. */
void tr_rewrite_replace(tr_rewrite *rw, const tr_layer *l, int value);

/* ---- Values, in double. NULL: out of memory. */
double *tr_rewrite_row(tr_rewrite *rw, const tr_layer *l, int k); /* its k-th parameter */
/* tr_rewrite_owns_steps: what its outputs are multiplied by, [out]; below 0 the steps change their
 * sign. */
double *tr_rewrite_factor(tr_rewrite *rw, const tr_layer *l);
/* The bias of a product, [out], added where it has none. */
double *tr_rewrite_bias(tr_rewrite *rw, const tr_layer *l);
bool tr_rewrite_has_bias(const tr_rewrite *rw, const tr_layer *l);
int64_t tr_rewrite_out(const tr_rewrite *rw, const tr_layer *l); /* of a product */
/* Of an affine layer, what its states say (tr_layer_affine). */
void tr_rewrite_affine(const tr_rewrite *rw, const tr_layer *l, int64_t c, double *scale,
                       double *shift);

/* ---- affine.c: y = scale * x + shift, by channel, [channels of the value] */
typedef struct {
    double *scale, *shift;
    int64_t count;
} tr_affine;
tr_status tr_affine_open(int64_t count, tr_affine *out);                   /* the identity */
tr_status tr_affine_of(tr_rewrite *rw, const tr_layer *l, tr_affine *out); /* an affine layer's */
void tr_affine_close(tr_affine *a);
/* Into the layers that make `value`, which one layer reads; *done false: that cannot be, and
 * nothing was changed. */
tr_status tr_affine_into_makers(tr_rewrite *rw, int value, const tr_affine *a, bool *done);
/* Into all layers that read `value`, as if each read scale * value + shift. */
tr_status tr_affine_into_readers(tr_rewrite *rw, int value, const tr_affine *a, bool *done);

extern const tr_pass tr_pass_identity, tr_pass_merge, tr_pass_common, tr_pass_constants,
    tr_pass_pool, tr_pass_normalize, tr_pass_batchnorm, tr_pass_batchnorm_before, tr_pass_products,
    tr_pass_bias;

#endif
