/* A file being read: its values by name, and the model made of them. What the operators (ops/) are
 * read with. A failure is kept in the pool; what is not supported is collected, so that all of it
 * is told at once. Private. */
#ifndef TR_ONNX_READER_H
#define TR_ONNX_READER_H

#include "optimize/onnx/onnx.h"
#include "optimize/onnx/pool.h"

#define TR_ONNX_RANK 8

/* A constant: floats or whole numbers. */
typedef struct tr_onnx_const {
    const char *name;                  /* of the initializer that it is, or is made of; NULL */
    const struct tr_onnx_const *scale; /* it is whole numbers of 8 bits times these, by row; NULL */
    const struct tr_onnx_const *turned_of; /* it is the transposed of this matrix; NULL */
    int type; /* of the tensor that it is, of ONNX; 0: it was computed */
    int ndim;
    int64_t dims[TR_ONNX_RANK];
    size_t count;
    const float *f;   /* NULL: of whole numbers */
    const int64_t *i; /* NULL: of floats */
} tr_onnx_const;
/* In a constant of dimensions: the batch, which is any; above it as many times the batch, less
 * one. */
#define TR_ONNX_BATCH       INT64_MIN
#define TR_ONNX_BATCHES_MAX ((int64_t)1 << 40)
static inline bool tr_onnx_is_batches(int64_t v)
{
    return v < TR_ONNX_BATCH + TR_ONNX_BATCHES_MAX;
}
/* n times the batch, 1 to the most; and back. */
static inline int64_t tr_onnx_batches(int64_t n)
{
    return TR_ONNX_BATCH + (n - 1) % TR_ONNX_BATCHES_MAX;
}
static inline int64_t tr_onnx_times_batch(int64_t v)
{
    return v - TR_ONNX_BATCH + 1;
}

/* Names and their places. */
typedef struct {
    const char **names;
    size_t n, nslots;
    int *slots; /* hash table: place + 1, 0 empty; a power of two, at most half full */
} tr_onnx_names;

typedef struct tr_onnx_pattern tr_onnx_pattern;
typedef struct tr_onnx_view tr_onnx_view;
struct tr_onnx_step;

typedef struct {
    const char *name;
    enum { TR_ONNX_NOTHING, TR_ONNX_CONST, TR_ONNX_VALUE, TR_ONNX_REFUSED } kind;
    const tr_onnx_const *constant;
    int value; /* of the model in the making */
    int input; /* it is this input of the model, as it is in the data or scaled; -1: it is not */
    int64_t padding[4]; /* zeros that are still to be put around: top, left, bottom, right */
    /* It is no value of the model yet: what it is of one, and the step that makes it so when it is
     * read; NULL. */
    const tr_onnx_view *view;
    const struct tr_onnx_step *waits;
    int maker; /* node; -1 */
    int uses;  /* nodes that read it, and the graph's output */
    bool needed;
} tr_onnx_value;

/* An operator of the file. */
typedef struct tr_onnx_step {
    const Onnx__NodeProto *proto;
    const char *type;
    int nin, nout;
    int *in, *out; /* values; -1: left out */
    /* What it stands for together with nodes before it; NULL: for itself. */
    const tr_onnx_pattern *pattern;
    int operands[TR_ONNX_RANK], noperands; /* of the pattern: the values it reads */
} tr_onnx_step;

/* Rows that get their values when the model is made. */
typedef struct tr_onnx_fill {
    struct tr_onnx_fill *next;
    const char *layer, *row;
    const float *v;
    size_t count;
    const tr_onnx_const *of; /* the constant that they are, in its order or turned; NULL: others */
    bool turned;
} tr_onnx_fill;

/* (x - mean) / std, of one value or one a place; 0 of them: it is not said. */
typedef struct {
    const char *name;
    const float *mean, *std;
    size_t nmean, nstd;
} tr_onnx_stats;

/* A file of values beside the graph's, and how many bytes of it were read. */
typedef struct tr_onnx_values_file {
    struct tr_onnx_values_file *next;
    uint64_t device, inode, nbytes;
} tr_onnx_values_file;

typedef struct {
    const char *path;
    tr_pool pool;
    Onnx__ModelProto *model;
    int64_t opset;
    int64_t batch; /* the file is for so many samples, which its shapes have as a number; 0: any */
    int64_t sequence;  /* what the dimension of that name stands for; 0: the file does not say */
    size_t file_bytes; /* with those of other files */
    tr_onnx_values_file *values_files;
    bool by_row;   /* rows are read in the model's order, not the file's (tr_onnx_read_by_row) */
    size_t folded; /* elements of constants made of others */
    tr_onnx_names names; /* of values */
    tr_onnx_value *values;
    size_t cap_values;
    tr_onnx_step *steps;
    size_t nsteps;
    tr_maker *maker;
    tr_onnx_fill *fills;
    tr_onnx_stats inputs[TR_MAX_IN]; /* by value */
    tr_onnx_stats targets;           /* what the last nodes undo of them; no name */
    tr_onnx_names taken;             /* names of inputs and layers */
    size_t ntogether;
    tr_onnx_together together[TR_ONNX_TOGETHER_MAX]; /* as tr_onnx_found has them */
    FILE *refusals;                                  /* what is not supported */
    char *refused;
    size_t refused_size, nrefused;
} tr_onnx_reader;

/* ---- names.c: -1: it is not there. */
int tr_onnx_find(const tr_onnx_names *t, const char *name);
/* Adds a name that is not there, which stays the caller's; its place, -1 on failure. */
int tr_onnx_name(tr_pool *p, tr_onnx_names *t, const char *name);

/* ---- Operands and attributes ----------------------------------------------------------------- */

/* NULL: there is none, or it is no constant. */
const tr_onnx_const *tr_onnx_const_at(const tr_onnx_reader *r, int value);
const tr_onnx_const *tr_onnx_const_in(const tr_onnx_reader *r, const tr_onnx_step *s, int i);
/* A layer that puts zeros around: top, left, bottom, right. Its name; NULL on failure. */
const char *tr_onnx_make_pad(tr_onnx_reader *r, const tr_onnx_step *s, const int64_t pads[4], int x,
                             int *value);
/* The model's value that is operand i; false: it is none (then it is refused, or has been). With
 * `padding` NULL, zeros that are to be put around it are a layer. */
bool tr_onnx_operand(tr_onnx_reader *r, const tr_onnx_step *s, int i, int *value,
                     int64_t padding[4]);
bool tr_onnx_operand_at(tr_onnx_reader *r, const tr_onnx_step *s, int at, int *value,
                        int64_t padding[4]);
/* waiting.c: what waits on the value becomes layers; false: it cannot (then it is refused). */
bool tr_onnx_settle(tr_onnx_reader *r, const tr_onnx_step *reader, int value);
int64_t tr_onnx_get_int(const tr_onnx_step *s, const char *name, int64_t otherwise);
double tr_onnx_get_real(const tr_onnx_step *s, const char *name, double otherwise);
/* A number that was float32 in the file, as somebody would write it: 0.1, not 0.10000000149. */
double tr_onnx_short(double v);
/* Whether the word is that; `otherwise` where it is not there. */
bool tr_onnx_is(const tr_onnx_step *s, const char *name, const char *word, bool otherwise);
/* Numbers of an attribute, at most `most`: how many there are; -1: not there. */
int tr_onnx_get_ints(const tr_onnx_step *s, const char *name, int most, int64_t *out);
const Onnx__AttributeProto *tr_onnx_get(const tr_onnx_step *s, const char *name);
/* Whole numbers that are operand i, or where there is none the attribute; count, or -1. */
int tr_onnx_numbers(const tr_onnx_reader *r, const tr_onnx_step *s, int i, const char *name,
                    int most, int64_t *out);
/* The one value of a constant with a single element. */
bool tr_onnx_scalar_of(const tr_onnx_reader *r, int value, double *out);

/* ---- What becomes of it ---------------------------------------------------------------------- */

void tr_onnx_refuse(tr_onnx_reader *r, const tr_onnx_step *s, const char *fmt, ...) TR_PRINTF(3, 4);
/* For `named`: it is not what the node stands for, whose name is another layer's. */
#define TR_ONNX_BESIDE (-2)
/* A layer; options as YAML. Named as the constant `named` without its ".weight", as the node, or by
 * type and number. Returns its name, NULL on failure. */
const char *tr_onnx_make(tr_onnx_reader *r, const tr_onnx_step *s, const char *type, int named,
                         int nin, const int *in, int *value, const char *fmt, ...) TR_PRINTF(8, 9);
/* One more layer of this type was said with several nodes; tr_onnx_make counts those of patterns
 * itself. */
void tr_onnx_count(tr_onnx_reader *r, const char *type);
/* The layer's row is this constant, as it is or as the transposed matrix; or these values, which
 * are the pool's. */
void tr_onnx_fill_const(tr_onnx_reader *r, const char *layer, const char *row,
                        const tr_onnx_const *c, bool turned);
void tr_onnx_fill_values(tr_onnx_reader *r, const char *layer, const char *row, const float *v,
                         size_t count);
/* The layer's weight, and what its options say of how it is kept (", stored: int8, freeze:
 * true"). */
const char *tr_onnx_stored(const tr_onnx_const *weight);
void tr_onnx_fill_weight(tr_onnx_reader *r, const char *layer, const tr_onnx_const *weight,
                         bool turned);
/* The layer that has this constant for its weight, NULL: none has. */
const char *tr_onnx_filled(const tr_onnx_reader *r, const tr_onnx_const *c, bool turned);
tr_shape tr_onnx_shape(const tr_onnx_reader *r, int value);
/* The step's first output is this value; its operand i as it is; this constant. */
void tr_onnx_give(tr_onnx_reader *r, const tr_onnx_step *s, int value);
void tr_onnx_pass(tr_onnx_reader *r, const tr_onnx_step *s, int i);
void tr_onnx_give_const(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_const *c);

/* ---- Patterns -------------------------------------------------------------------------------- */

/* The step of this type that makes the value, and nobody else reads it; NULL. */
const tr_onnx_step *tr_onnx_made_by(const tr_onnx_reader *r, int value, const char *type);
/* As above, read by several. */
const tr_onnx_step *tr_onnx_shared_by(const tr_onnx_reader *r, int value, const char *type);
/* Of a step with two operands: the one that is the constant (near) `number`; the other one's value;
 * -1. */
int tr_onnx_beside(const tr_onnx_reader *r, const tr_onnx_step *s, double number);

/* ---- constant.c: tensors of the file --------------------------------------------------------- */

/* NULL: damaged (then the pool has the error), or of a type for no numbers (refused). */
const tr_onnx_const *tr_onnx_tensor(tr_onnx_reader *r, const Onnx__TensorProto *t);
/* A constant of this shape with room for floats or whole numbers: *f or *i, the other NULL. */
tr_onnx_const *tr_onnx_const_new(tr_onnx_reader *r, int ndim, const int64_t *dims, float **f,
                                 int64_t **i);
/* ---- external.c: the tensor's `nbytes` bytes of a file beside the graph's; into the pool. */
const void *tr_onnx_external(tr_onnx_reader *r, const Onnx__TensorProto *t, size_t nbytes);
/* ---- message.c: the file as messages; whether these bytes can be unpacked: whole, and not nested
 * too deep. */
bool tr_onnx_is_sound(const uint8_t *bytes, size_t n);
tr_status tr_onnx_load(tr_onnx_reader *r);
/* ---- fold.c: a step whose operands are constants, done now. False: it cannot. */
bool tr_onnx_fold(tr_onnx_reader *r, const tr_onnx_step *s);
/* Whether steps of its type may be done so. */
bool tr_onnx_may_fold(const tr_onnx_step *s);
/* waiting.c: reads a step whose operands are rows in another order than the model's, if it is one
 * that rows do not meet in: as a layer of rows in the model's order, which is seen in the file's.
 * False: it is not such a step. */
bool tr_onnx_read_by_row(tr_onnx_reader *r, const tr_onnx_step *s,
                         void (*read)(tr_onnx_reader *r, const tr_onnx_step *s));
/* ---- sequence.c: what the file says `sequence` stands for; a dimension, 0: it is not known;
 * whether a step does nothing but to ask for it, or to cut by it what is as long. */
tr_status tr_onnx_sequence_said(tr_onnx_reader *r);
int64_t tr_onnx_sequence_dim(const tr_onnx_reader *r, const Onnx__TensorShapeProto__Dimension *d);
bool tr_onnx_fold_sequence(tr_onnx_reader *r, const tr_onnx_step *s);
/* ---- normalize.c: what the first nodes do to the inputs, as data.normalize, and the last ones to
 * the output, as data.normalize_targets; NULL: nothing. */
tr_status tr_onnx_normalize_text(const tr_onnx_reader *r, char **inputs, char **targets);
/* Takes `x op c` of an input into its mean and deviation; false: it is no such thing. */
bool tr_onnx_normalizes(tr_onnx_reader *r, const tr_onnx_step *s);
/* Where the file is ours and says that it gives targets in their own units (TR_ONNX_TARGETS):
 * *output is from here on what its last two nodes, `* std` and `+ mean`, read. */
void tr_onnx_denormalizes(tr_onnx_reader *r, int *output);

#endif
