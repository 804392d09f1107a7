/* The model: inputs, layers with their parameters and states, and a loss. A value: it owns all that
 * it is made of and points into nothing else. There is one way to make one, layer by layer
 * (tr_maker); a config and a copy with changes go that way, too. All Local. */
#ifndef TR_MODEL_H
#define TR_MODEL_H

#include "runtime/base/base.h"
#include "runtime/config/config.h"
#include "runtime/graph/kinds.h"

#define TR_NAME 64
/* Parameters that one layer can have. */
#define TR_MAX_PARAMS 4

/* How the elements of a tensor lie in memory. */
typedef enum {
    TR_LAYOUT_PLAIN,        /* the last dimension innermost */
    TR_LAYOUT_CHANNELS_LAST /* (N, C, ...): dimension 1 innermost, the others in their order */
} tr_tensor_layout;

typedef enum {
    TR_INIT_KAIMING,
    TR_INIT_XAVIER,
    TR_INIT_NORMAL,
    TR_INIT_ZEROS,
    TR_INIT_HE,
    TR_INIT_ONES,
    TR_INIT_CONSTANT /* init_std */
} tr_init_kind;

/* A matrix W (out, in) that is learned in sketches (Kasiviswanathan, Narodytska and Jin 2017, "Deep
 * Neural Network Approximation using Tensor Sketching"; the layers are Panther's, Seddik et al.
 * 2026, arXiv 2601.15473):
 *     W ~ 1 / (2 terms) * sum over i of U1_i^T S1_i + S2_i U2_i,
 * S1_i (rank, in) and S2_i (out, rank) learned, U1_i (rank, out) and U2_i (rank, in) fixed, of
 * elements +-1 / sqrt(rank). With K = terms * rank that is one product B A of two stacked matrices,
 *     A (2 K, in) = S1 above u U2,   B (out, 2 K) = u U1^T beside S2,
 *                                    u = 1 / (2 terms sqrt(rank)) in the place of 1 / sqrt(rank),
 * or with 2 terms sketches of the rows alone (TR_SKETCH_SIGNS), S1 (2 K, in), all of B is fixed. */
typedef enum {
    TR_SKETCH_NONE,
    TR_SKETCH_DOWN, /* A; S1 is learned */
    TR_SKETCH_UP,   /* B; S2 is learned */
    TR_SKETCH_SIGNS /* B without S2, for twice as many S1 */
} tr_sketch_side;
typedef struct {
    int side; /* tr_sketch_side */
    int64_t terms, rank, seed;
} tr_sketch;
#define TR_SIGNS_BLOCK 128
/* Fixed signs of row `row` of U2 (DOWN) or of U1^T (else), `count` from `first` on, a multiple of
 * TR_SIGNS_BLOCK: bit e % 128 of tr_philox_at(seed, TR_RNG_SKETCH, UP or not, row, e / 128), 1:
 * `unit`, 0: -unit. */
void tr_sketch_signs(const tr_sketch *s, int64_t row, size_t first, size_t count, float unit,
                     float *to);
float tr_sketch_unit(const tr_sketch *s); /* u */
/* All of A or B, from its learned part; `out` rows of `in`. */
void tr_sketch_matrix(const tr_sketch *s, const float *learned, int64_t out, int64_t in, float *to);

/* One learned array: a row of the parameter table. Row i is the same in every graph built from the
 * model, and there once however many layers use it (weight_of). */
typedef struct {
    char layer[TR_NAME], name[TR_NAME]; /* the first layer that uses it, "conv2d1", and "weight" */
    int uses;                           /* layers that use it */
    int ndim;
    int64_t dims[TR_MAX_DIMS];
    size_t count;
    size_t offset; /* elements, in the flat parameter space; multiple of 16 (64 bytes) */
    tr_init_kind init;
    double fan_in, fan_out, gain, init_std; /* init_std: TR_INIT_NORMAL, TR_INIT_CONSTANT */
    bool decay;                             /* weight decay applies: not for biases and norms */
    bool frozen;                            /* never updated: it has no gradient and no moments */
    bool masked;                            /* its elements that are 0 stay so */
    bool by_row; /* row t goes with row t of a sample: shorter ones use the first rows alone */
    double lr_factor, decay_factor; /* times the optimizer's learning rate, weight decay */
    /* In mixed precision kernels read nothing but copies of it in the type of activations: every
     * layer that uses it says so (tr_op_def.rounds). Else they read the float32 master. */
    bool rounds;
    /* How a model's file keeps it: float32, bfloat16, float16 or int8. In memory it is float32, of
     * values that the type holds exactly. int8: q * s, q in [-127, 127], s the element of its first
     * dimension's place in the state `scale` (TR_SCALE_STATE of its layer). */
    tr_dtype stored;
    int scale;       /* row of the state; -1: not int8 */
    bool per_tensor; /* int8: one scale for all, as often as the state has elements */
    /* int8: row of the scales that are learned with it (dims[0], or 1 per_tensor), which becomes
     * the state where a file is written; -1: they are those of the weight as it is. */
    int learned_scale;
    /* Its initial values are sketches of a matrix (of) of `init`, whose numbers are those of row
     * `drawn`: DOWN and SIGNS: U1 W, UP: W U2^T. side NONE: they are not. */
    tr_sketch sketch;
    int64_t of[2];
    int drawn;
} tr_param;
/* Of an int8 row's layer: float32 (dims[0]), positive. */
#define TR_SCALE_STATE "weight_scale"
/* Learned ones, whose magnitude counts: of an int8 row, and of a layer that rounds. */
#define TR_WEIGHT_SCALE_ROW "learned_scale"
#define TR_SCALE_ROW        "scale"
static inline float tr_learned_scale(float value)
{
    const float s = value < 0 ? -value : value;
    return s < 1e-20f ? 1e-20f : s; /* NaN stays */
}

/* One array that is carried along but not learned (batchnorm running statistics). */
typedef struct {
    char layer[TR_NAME], name[TR_NAME]; /* "batchnorm1", "running_mean" */
    int ndim;
    int64_t dims[TR_MAX_DIMS];
    size_t count;
    size_t offset; /* elements, in the flat state space; multiple of 16 */
    float initial;
} tr_state;

typedef struct {
    char name[TR_NAME]; /* "input", or the config's name */
    int ndim;           /* of one sample */
    int64_t dims[TR_MAX_DIMS];
    tr_tensor_layout layout; /* of a batch of them: (C, H, W) is an image, channels-last */
    /* Values (0), or ids, which embeddings look up: int32 in any precision, whole numbers in
     * [0, ids); neither normalized nor augmented. */
    int64_t ids;
    bool lengths; /* ids: how many rows, or keys, of a sample count */
} tr_input;

/* Dims of one sample: without the batch. */
typedef struct {
    int ndim;
    int64_t dims[TR_MAX_DIMS];
    tr_tensor_layout layout; /* of a batch of samples */
} tr_shape;

typedef struct tr_op_def tr_op_def;

/* One layer: residuals and repeats are expanded. An input is the number of a value: the model's
 * inputs first, then the outputs of the layers in order. */
typedef struct tr_layer {
    const tr_op_def *def; /* its type: tr_op_def_name */
    int index;
    char name[TR_NAME];
    void *storage; /* private: common options, then the attributes */
    void *attrs;   /* the type's attribute struct, which starts with the one in ops.h */
    int nin, in[TR_MAX_IN];
    unsigned ids; /* bit i: its i-th input is read as ids */
    tr_shape inputs[TR_MAX_IN], output;
    int nparams, params[TR_MAX_PARAMS]; /* rows of tr_model.params, its own or another layer's */
    int nstates, first_state;
    /* Layers of one block stand together, and are forgotten and recomputed together
     * (train.recompute: blocks): the outermost residual, repeat iteration or block around; -1. */
    int block;
    char *where; /* its place in a file, file:line:column, for errors; NULL: it was in none */
} tr_layer;

typedef struct tr_model {
    size_t nlayers;
    tr_layer *layers; /* in forward order; the last one's output is the model's */
    const tr_op_def *loss;
    const void *loss_attrs; /* the loss's attribute struct of ops.h; NULL: none */
    tr_loss_config loss_config;
    size_t nparams, nstates, ninputs;
    tr_param *params; /* in forward order; offsets run in *backward* order, so that buckets fill
                         front to back; then those of frozen ones */
    tr_state *states;
    tr_input *inputs;
    size_t flat_count;    /* elements of the flat parameter space, padding included */
    size_t learned_count; /* of these, those before the frozen ones */
    size_t state_count;
    size_t nparameters; /* learned scalars, padding excluded */
    int64_t outputs;    /* elements of the last layer's output */
    int64_t classes;    /* cross_entropy: of a row of the output; else 0 */
    int64_t rows;       /* cross_entropy: rows of an output, each with a label; else 1 */
    int ndim_target;    /* dims of one sample's targets, 0: one label */
    int64_t target_dims[TR_MAX_DIMS];
    tr_tensor_layout target_layout; /* as the model's output */
    bool labels;                    /* targets are class labels (int32), not values (float32) */
    size_t nbuckets;
    /* Of the flat parameter space up to learned_count, multiples of 16 elements; each complete once
     * the backward op that computes its lowest-numbered layer's gradients has run. */
    tr_range *buckets;
    size_t nrounded;
    tr_range
        *rounded; /* of the same space, ascending, apart: the rows that `rounds`, with padding */
    unsigned skip_passes; /* over its graphs, in every job: a set of TR_PASS_IS (graph.h) */
    /* The model for shorter sequences, by rising rows (tr_model_shorten). Owned. */
    size_t nshorter;
    struct tr_model *shorter[TR_LIST_MAX];
} tr_model;

/* The config's model: infers shapes (errors name the layer, file:line:column and both shapes), lays
 * out parameters and states, cuts buckets of about bucket_bytes (0: one choice for all: 1 MiB
 * first, then 4 MiB). */
tr_status tr_model_open(const tr_config *config, size_t bucket_bytes, tr_model **out);
/* *Local.* TR_CONFIG at a layer that would learn weights stored in 16 bits: updated values would
 * not be ones that the type holds. Weights stored as int8 may learn: layers read them rounded. */
tr_status tr_model_trainable(const tr_model *m);
void tr_model_close(tr_model *m);
/* Cuts the buckets anew, of about so many bytes: the first of a step, all others. Before graphs are
 * made of the model. */
tr_status tr_model_cut(tr_model *m, size_t first, size_t rest);
/* Makes m->shorter anew: for each of `rows`, which rise, a model with the same layers and loss
 * whose sequences have so many rows, those inputs as long as the first one. Their parameters,
 * states and buckets are m's, row by row; TR_CONFIG where a layer would have others, or the output
 * be another but for rows whose labels do not count. */
tr_status tr_model_shorten(tr_model *m, const tr_ints *rows);
/* Freezes rows (frozen: [nparams]) beside those that are, with the learned scales of theirs, and
 * lays the parameters out anew. Before graphs are made of the model. */
tr_status tr_model_freeze(tr_model *m, const bool *frozen, size_t bucket_bytes);
/* Initial values of elements [begin, end) of the flat space that starts at `flat`, padding zero; by
 * Philox keyed with the seed, the parameter's row and the element: same everywhere.
 * kaiming: PyTorch's default for linear and conv2d, weight and bias uniform within 1/sqrt(fan_in);
 * xavier: uniform (Glorot), biases zero; normal: deviation 0.02, biases zero; zeros. */
void tr_model_init_params(const tr_model *m, uint64_t seed, float *flat, size_t begin, size_t end);
void tr_model_init_states(const tr_model *m, float *states);

/* Values of an int8 row to multiples of their scales, which become the 127th part of the largest
 * magnitude: what the op quantize_weight makes of them. learned: scales (dims[0], or 1 per_tensor)
 * to take instead, as the op quantize_weight.learned does; NULL. */
void tr_param_quantize(const tr_param *p, float *values, float *scale, const float *learned);
/* All int8 rows that are trained, for the file. `params`, `states`: flat, as offsets say. */
void tr_model_quantize(const tr_model *m, float *params, float *states);

/* Whether each place of a sequence has a target of its own, a class. */
static inline bool tr_is_sequence(const tr_model *m)
{
    return m->rows > 1 && m->ndim_target == (m->labels ? 1 : 2);
}

/* The layer of that name; NULL: there is none. */
const tr_layer *tr_model_layer(const tr_model *m, const char *name);
/* Name of the layer that is the i-th to use a row; NULL: there are not so many. */
const char *tr_model_user(const tr_model *m, size_t row, int i);

/* ---- Making one ------------------------------------------------------------------------------ */

/* A model in the making. After a failure only tr_maker_close may follow. */
typedef struct tr_maker tr_maker;

/* `init`: of layers whose `init` is auto. */
tr_status tr_maker_open(tr_init_kind init, tr_maker **out);
void tr_maker_close(tr_maker *mk);
/* All inputs come before the first layer. *value: its number, for layers to read. */
tr_status tr_maker_input(tr_maker *mk, const char *name, int ndim, const int64_t *dims, int *value);

/* Texts and arrays are copied. */
typedef struct {
    const char *type;       /* as in a config's list of layers: "conv2d"; no structure */
    const char *name;       /* NULL: the one of the options, else the type and a running number */
    const tr_node *options; /* what a config's map of options can hold, or NULL */
    int nin;                /* 0: what the options' `from` names, else the value before */
    const int *in;          /* values */
    const tr_node *at;      /* its place in a file, for errors, or NULL */
} tr_layer_given;
/* Infers its shapes and declares its parameters. *value: the number of its output. */
tr_status tr_maker_layer(tr_maker *mk, const tr_layer_given *l, int *value);
/* The same with the options as YAML: "{out: 6, kernel: 3}". */
tr_status tr_maker_layer_text(tr_maker *mk, const tr_layer_given *l, const char *options,
                              int *value);
/* Of a value: an input, a layer's output. */
tr_shape tr_value_shape(const tr_maker *mk, int value);
/* What comes until the block is closed is one block. Returns whether it was opened: not within
 * another one; only then it is to be closed. */
bool tr_maker_open_block(tr_maker *mk);
void tr_maker_close_block(tr_maker *mk);
/* `loss` is copied. */
tr_status tr_maker_loss(tr_maker *mk, const tr_loss_config *loss);
/* Values may lead nowhere: for models that are only asked for layers by name. */
void tr_maker_loose(tr_maker *mk);
/* Checks that every value leads to the last layer's output; layout and buckets as tr_model_open.
 * The model is the caller's, whatever becomes of the maker, which only can be closed then. */
tr_status tr_maker_finish(tr_maker *mk, size_t bucket_bytes, tr_model **out);

/* ---- From a model ---------------------------------------------------------------------------- */

/* While a model is copied: layer `l` of the old one is next; `in`: the values of the new one that
 * it would read. Makes other layers in its place, or none, and sets *value to what stands for its
 * output from here on; or leaves *value as it is, and the layer is copied. A layer that is copied
 * keeps its name, so others must not take it. */
typedef tr_status (*tr_model_edit)(void *ctx, tr_maker *mk, const tr_layer *l, const int *in,
                                   int *value);
/* What is different in a copy of a layer: its options ("out=8", "bias=true"), or its type, which
 * then has no options, or `kept` those of the layer that it has as well, and `options`; its
 * name. */
typedef struct {
    const char *type;
    bool kept;
    const char *name; /* NULL: as it was */
    const char *const *options;
    size_t noptions;
} tr_layer_changes;
/* Appends a copy of `l`, which may be of another model, with its name; `changes` NULL: none. */
tr_status tr_maker_copy(tr_maker *mk, const tr_layer *l, const tr_layer_changes *changes, int nin,
                        const int *in, int *value);
/* A model with the inputs, layers, blocks and loss of `m`; edit NULL: just the same. */
tr_status tr_model_copy(const tr_model *m, tr_model_edit edit, void *ctx, size_t bucket_bytes,
                        tr_model **out);
/* What stands below `model:` in a config that makes an equal model: input or inputs, layers one
 * after the other (residuals and repeats as the layers they are made of), loss. */
tr_status tr_model_write(const tr_model *m, int indent, FILE *to);
/* The resolved config with this model in place of its own. */
tr_status tr_model_write_config(const tr_model *m, const tr_config *c, FILE *to);
/* That config, read, with overrides; the files and stages it knows are those of `c`. */
tr_status tr_model_config(const tr_model *m, const tr_config *c, const tr_overrides *o,
                          tr_config **out);
/* The reference page (Markdown) of every layer and its attributes. */
void tr_layers_help(FILE *to);
/* What goes on with tr_config_schema, but for the last bracket: the definition of every layer. */
void tr_layers_schema(FILE *to);

#endif
