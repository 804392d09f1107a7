/* What an op is, and what its file under ops/ may use to say so: the layer being set up, and the
 * builder that the op appends its forward and backward ops to. Private to runtime/graph. */
#ifndef TR_GRAPH_OP_H
#define TR_GRAPH_OP_H

#include "runtime/graph/facts.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/ops.h"

typedef struct tr_builder tr_builder; /* a graph in the making: builder.h */

#define TR_SHAPE_TEXT 128
const char *tr_shape_text(const tr_shape *s, char buf[TR_SHAPE_TEXT]); /* "(16, 8, 8)" */
bool tr_shape_equal(const tr_shape *a, const tr_shape *b);
/* Elements of one sample; false when they do not fit into size_t. */
bool tr_shape_count(const tr_shape *s, size_t *count);

/* How an op may take the bytes of an input for an output, its first ones. */
typedef enum {
    TR_SHARE_NO,
    TR_SHARE_FIRST, /* element by element over in[0], or as tr_op_def.over says */
    TR_SHARE_ANY,   /* over any input; operands keep their order, so that sums stay the same */
    TR_SHARE_VIEW,  /* the same bytes, where tr_op_def.view says so */
    TR_SHARE_PARTS  /* the other way round: operands may lie in the output (tr_concat_place_of) */
} tr_sharing;

/* How a layer takes a sample of two dimensions: as rows of features, stored as they are written, or
 * as a sequence (channels, length), stored as an image of height 1, channels innermost. What is
 * stored otherwise is rearranged before it (tr_build_input). */
typedef enum {
    TR_SEQUENCE_AUTO, /* without `infer` TR_SEQUENCE_EITHER, else TR_SEQUENCE_ROWS */
    TR_SEQUENCE_ROWS,
    TR_SEQUENCE_CHANNELS,
    TR_SEQUENCE_EITHER /* as its first input comes */
} tr_sequence;

/* What a row of a layer's output (T, F) is made of, for graphs that decode (tr_graph_options). */
typedef enum {
    TR_ROWS_TOGETHER, /* any rows, or it is not known */
    TR_ROWS_APART,    /* the same rows of its inputs alone */
    TR_ROWS_BEFORE    /* those and the ones before: `forward` holds what it needs of them
                         (tr_build_held) */
} tr_rows;

/* A set of activations. */
#define TR_ACT_IS(act) (1u << (act))
#define TR_ACT_ANY     (~0u)
#define TR_APART_OUT   (1u << 31) /* of tr_op_def.apart */

/* What an op of the backward pass can take on from the ops that make the gradient at its first
 * operand. Operand places; 0: none (the first is the gradient itself). */
typedef struct {
    int mask;   /* an op with def.masks: here comes what it masks by */
    int second; /* a sum of two: here comes the second */
} tr_absorbs;

struct tr_op_def {
    const char *name;
    /* Layers, that is, what a config can name: */
    const char *doc;     /* NULL: not a layer */
    const char *example; /* as it may stand in model.layers; NULL: its name */
    const tr_field *fields;
    size_t attrs_size;
    int min_in, max_in; /* inputs it takes by `from:` */
    tr_sequence sequence;
    tr_rows rows;
    /* NULL, or why these attributes make a row depend on later ones for certain, whatever `rows`
     * says; NULL: they do not. */
    const char *(*together)(const tr_layer *l);
    int64_t (*most_rows)(const tr_layer *l); /* that it can tell apart; NULL, 0: any number */
    /* For sequences cut behind the longest sample's end (tr_model_shorten): it makes other rows
     * than it takes, the same of those that are left; `held`: the last row that it takes is each
     * sample's own. NULL: it does not. */
    bool (*cut)(const tr_layer *l, bool held);
    bool (*holds)(
        const tr_layer *l); /* the last row that it makes is each sample's own; NULL: no */
    bool line; /* its window slides over the length of a sequence: sizes are one number each */
    tr_init_kind init;
    bool learned; /* it has parameters */
    bool tied;    /* its weight can be another layer's (weight_of) */
    /* Bit i: its kernels, and those of its gradient, read the layer's i-th parameter in the type of
     * activations alone: where that has 16 bits as packed copies, rounded once from the master, or
     * rounded as they are read (tr_kernel.rounds). */
    unsigned rounds;
    /* Checks attributes on their own and fills in what depends on others. */
    tr_status (*finish)(const tr_maker *mk, const tr_layer *l, void *attrs);
    /* From l->inputs to l->output; declares parameters and states. NULL: output = input. */
    tr_status (*infer)(tr_maker *mk, tr_layer *l);
    /* Appends the forward ops, returns the tensor of the layer's output. NULL: one op with the
     * operands inputs, parameters, states, padded with absent ones to `operands`. */
    int (*forward)(tr_builder *b, const tr_layer *l);
    /* Any op: */
    int operands;
    void (*gradient)(tr_builder *b, const tr_op *op); /* NULL: none flows through it */
    const tr_op_def *backward; /* the op that gradient appends, where one gradient serves several */
    double (*flops)(const tr_graph *g, const tr_op *op);
    bool multiplies; /* they are multiply-adds with a weight, as those of `tied` ones */
    tr_act act;      /* it is this activation, or the gradient of it */
    bool collective; /* an empty share runs it too: it is, or feeds, a meeting of ranks */
    bool gathers;    /* it is a meeting: every rank sends its first operand to all others */
    bool statistics; /* small, and not to be computed twice: recomputation keeps its outputs */
    bool over_batch; /* its statistics are of a channel's values in all samples */
    /* Operand place of the weight that the rows of all samples, of its first operand (N, T, ...),
     * are multiplied by one after the other; 0: it takes all rows at once. */
    int recurs;
    tr_sharing share;
    struct {
        int out, in;
    } over; /* TR_SHARE_FIRST: which output, over which operand */
    /* What passes may do with it: */
    /* Its attributes are tr_fake_quantize_attrs, which it rounds in[0] by: the op that makes 8 bits
     * of it, and the one that makes values of these. */
    const tr_op_def *quantize, *dequantize;
    /* It rounds each row of in[0] by the row's own range (tr_dynamic_attrs): the op that makes 8
     * bits of it, and the one that takes the rows' scales into a product of them. */
    const tr_op_def *by_row, *rescale;
    /* The same of 8-bit operands: x, weight, its scales, bias, residual; of one group, of
     * several. */
    const tr_op_def *int8, *int8_groups;
    /* The same of operands of 8 bits, each with its scale, to 8 bits; what is no product. */
    const tr_op_def *steps;
    /* Elements of out[0], the only one outside training, are elements of in[0], the same places or
     * the same comparisons' winners: so too of anything that keeps their order. */
    bool moves;
    float ceiling; /* out[0] is in[0] where that lies in [0, ceiling], else the nearer end; 0: it is
                      not */
    bool anywhere; /* a row of out[0] (N, T, F) is made of the same row of its inputs, wherever in a
                      sample that stands */
    int64_t (*takes_row)(
        const tr_op *op); /* out[0] (N, F) is that row of in[0] (N, T, F); NULL: it is not */
    bool sums;            /* out[0] is the elementwise sum of all operands; any number from two */
    bool masks;           /* out[0] is the first operand where the second is above 0, else 0 */
    /* Sets of activations that it can apply to out[0] (tr_op.act), in a graph without a backward
     * pass and in one with. */
    unsigned acts_infer, acts_train;
    /* Of an op that makes a gradient, those whose derivative at its last operand, in[2], it can
     * multiply out[0] by, where the backend's kernels do so
     * (tr_graph_options.activation_gradient). */
    unsigned acts_gradient;
    int residual; /* operand place of a tensor that it adds to out[0], before `act`; 0: none */
    bool residual_infer; /* only in a graph without a backward pass */
    tr_absorbs absorbs;
    /* It takes tensors whose rows stand apart (tr_tensor.pitch): bit k: as operand k; as its
     * output. */
    struct {
        unsigned in;
        bool out;
    } pitched;
    /* Its rows may stand apart by TR_PASS_ALIGN_ROWS: a set, bit k: as operand k; TR_APART_OUT: as
     * out[0], with zeros between its rows where it is a gradient. NULL: none. */
    unsigned (*apart)(const tr_graph *g, const tr_op *op);
    /* Of a layer, for those who change models (facts.h); each function goes before the value. */
    tr_channels channels;
    tr_channels (*channels_of)(const tr_layer *l);
    void (*heads)(const tr_layer *l, tr_heads *out); /* of TR_CHANNELS_HEADS */
    const char *width; /* the option that says how many channels its output has; NULL: none */
    const char *(*width_of)(const tr_layer *l);
    /* Not of TR_CHANNELS_EACH: its output has as many channels as its input, a multiple of so
     * many. */
    int64_t (*keeps)(const tr_layer *l);
    void (*product)(const tr_layer *l, tr_product *out); /* NULL: there is no window */
    void (*affine)(const tr_layer *l, const float *const *states, int64_t c, double *scale,
                   double *shift);
    unsigned commutes;
    unsigned (*commutes_of)(const tr_layer *l);
    bool (*same)(const tr_layer *l);
    bool (*merged)(const tr_layer *first, const tr_layer *second, tr_merged *out);
    bool nonnegative;
    const tr_op_def *(*plain)(const tr_layer *l);
    const tr_op_def *sketched; /* the type that learns its matrix in sketches */
    /* Of a loss: */
    const tr_op_def
        *applies; /* the layer that it applies to the model's output itself; NULL: none */
    /* out[0] has the value of in[0]: not written where it has its bytes too. */
    bool (*view)(const tr_graph *g, const tr_op *op);
};

/* ---- Setting up a layer (finish, infer) ------------------------------------------------------ */

/* "file:line:column: layer "conv2d3": text". */
tr_status tr_layer_fail(const tr_layer *l, tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
/* Fails unless the only input has one of the given ranks of a sample; `takes` says it in words. */
tr_status tr_layer_rank(const tr_layer *l, int rank_a, int rank_b, const char *takes);
/* Fails unless the only input is an image: (channels, height, width), stored channels-last. */
tr_status tr_layer_image(const tr_layer *l);
/* Fails unless the only input is a sequence: (channels, length). */
tr_status tr_layer_sequence(const tr_layer *l);
/* One int or [h, w] into out[2]; of a layer with `line` one int, and 1 for the height. */
tr_status tr_layer_pair(const tr_layer *l, const char *key, const tr_ints *in, int64_t out[2]);
/* A window that slides over height and width, of a sequence over its length: a height of 1. */
typedef struct {
    const int64_t *kernel, *stride, *dilation; /* [2] */
    int64_t *padding, *extra;                  /* [2]; extra: at the end alone */
} tr_window;
/* Of a key `padding`: a pair, each a number or `same`, which asks for results of the input's
 * size. */
#define TR_PADDING_FIELD(at, doc)                                                                  \
    TR_INTS("padding", at, "0", 0, INT16_MAX, "pixels",                                            \
            doc ", or [height, width]; same: so many that the result has the input's size, "       \
                "of an odd number the greater half at the end (with a stride of 1 alone)",         \
            .auto_text = "same", .auto_value = -1)
/* Of a layer with `line`. */
#define TR_PADDING_LINE_FIELD(at, doc)                                                             \
    TR_INTS("padding", at, "0", 0, INT16_MAX, NULL,                                                \
            doc "; same: so many that the result has the input's length, of an odd number the "    \
                "greater half at the end (with a stride of 1 alone)",                              \
            .auto_text = "same", .auto_value = -1)
tr_status tr_layer_padding(const tr_layer *l, const tr_ints *in, const tr_window *w);
/* Height or width of an image, a sequence's 1 or length. */
int64_t tr_shape_size(const tr_shape *s, int axis);
/* Sets one dimension of l->output; fails when the window does not fit. */
tr_status tr_layer_window(tr_layer *l, int axis, const tr_window *w);

/* The i-th input of `l` is one of the model's inputs, whose elements thereby are ids in [0, num);
 * fails when it is a layer's output. Where several layers read it, the least num counts. */
tr_status tr_layer_ids(tr_maker *mk, tr_layer *l, int i, int64_t num);
/* The same of lengths, one a sample: how many `of` ("keys"), 0 to `most`, a sample has. */
tr_status tr_layer_lengths(tr_maker *mk, tr_layer *l, int i, int64_t most, const char *of);

typedef struct {
    const char *name;
    int ndim;
    int64_t dims[TR_MAX_DIMS];
    tr_init_kind init;
    double fan_in, fan_out;
    double std; /* TR_INIT_NORMAL, 0: 0.02; TR_INIT_CONSTANT: the value */
    bool decay;
    bool by_row; /* as in tr_param */
    /* Of a sketch (tr_param): of what; the layer's so many parameters before it are sketches of the
     * same. */
    tr_sketch sketch;
    int64_t of[2];
    int behind;
} tr_param_decl;
tr_status tr_layer_param(tr_maker *mk, tr_layer *l, const tr_param_decl *decl);
/* The parameters of a weighted sum: weight (out, in, window...) and, where `bias` asks for it, bias
 * (out). Fans are those of PyTorch's initializers: inputs and outputs, each times the window. */
tr_status tr_layer_weight_bias(tr_maker *mk, tr_layer *l, const tr_shape *weight, tr_init_kind init,
                               bool bias);
/* Of `out` elements, with the fans of the weight that it goes with. */
tr_status tr_layer_bias(tr_maker *mk, tr_layer *l, const tr_param_decl *weight, int64_t out);
tr_status tr_layer_state(tr_maker *mk, tr_layer *l, const char *name, int64_t count, float initial);

/* Of layers that are learned in sketches. finish: resolves the seed. */
#define TR_SKETCH_FIELDS(type, sketch, doc)                                                        \
    TR_INT("terms", offsetof(type, sketch.terms), NULL, 1, 4096, NULL, doc),                       \
        TR_INT("rank", offsetof(type, sketch.rank), NULL, 1, 1 << 20, NULL, "of each sketch"),     \
        TR_INT("seed", offsetof(type, sketch.seed), "auto", 0, INT32_MAX, NULL,                    \
               "of the fixed signs; auto: of the layer's name", .auto_text = "auto",               \
               .auto_value = -1)
void tr_sketch_finish(const tr_layer *l, tr_sketch *s, tr_sketch_side side);

/* Of layers with `init:`; the last choice stands for the model's, and is resolved in finish. */
extern const char *const tr_init_choices[];
#define TR_INIT_AUTO 5
tr_init_kind tr_layer_init(const tr_maker *mk, int chosen);
#define TR_INIT_FIELD(type)                                                                        \
    TR_CHOICE("init", offsetof(type, init), tr_init_choices, "auto",                               \
              "initial values; auto: as model.init")

/* ---- Building ops (forward, gradient) -------------------------------------------------------- */

#define TR_IDS(...)                                                                                \
    (int)TR_COUNT(((int[]){__VA_ARGS__})), (const int[])                                           \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* The builder always has room for what one layer or one gradient appends, so these do not fail. */
bool tr_build_train(const tr_builder *b);
bool tr_build_sync(const tr_builder *b); /* batchnorm statistics are merged over ranks */
const tr_tensor *tr_build_tensor(const tr_builder *b, int id);
int tr_build_input(tr_builder *b, const tr_layer *l, int i); /* tensor of the i-th input */
/* The elements of `id`, in PyTorch's order, as a tensor of another shape: `id` itself where it is
 * stored so. */
int tr_build_as(tr_builder *b, const tr_layer *l, int id, const tr_shape *shape);
int tr_build_param(const tr_builder *b, const tr_layer *l, int i);
int tr_build_state(const tr_builder *b, const tr_layer *l, int i);
/* Inputs of a graph that decodes (tr_decode); -1 in others. */
int tr_build_past(const tr_builder *b);
int tr_build_count(const tr_builder *b);
/* A tensor that such a graph holds from run to run, dims[0] being the batch. */
int tr_build_held(tr_builder *b, const tr_layer *l, const char *what, tr_dtype dtype, int ndim,
                  const int64_t *dims);
int64_t tr_build_cache(const tr_builder *b); /* tr_decode.cache */
/* New tensors: the layer's output; another one; one like `id`. */
int tr_build_output(tr_builder *b, const tr_layer *l);
/* `id` has the bytes of `of`, whose value it has too. */
void tr_build_share(tr_builder *b, int id, int of);
int tr_build_new(tr_builder *b, const char *layer, const char *what, tr_dtype dtype, int ndim,
                 const int64_t *dims); /* stored as it is written */
int tr_build_image(tr_builder *b, const char *layer, const char *what, tr_dtype dtype,
                   const int64_t dims[4]); /* stored channels-last */
int tr_build_like(tr_builder *b, const char *layer, const char *what, tr_dtype dtype,
                  int id); /* dims and layout of `id` */
int tr_build_channels(tr_builder *b, const char *layer, const char *what, int id,
                      int64_t channels); /* type, layout and dims of the image `id` but one */
tr_op *tr_build_op(tr_builder *b, const tr_op_def *def, const char *layer, int layer_index,
                   const void *attrs, tr_phase phase, int nin, const int *in, int nout,
                   const int *out);
/* A forward op of `l`; a backward op belonging to the forward op `of`. */
tr_op *tr_build_forward(tr_builder *b, const tr_op_def *def, const tr_layer *l, int nin,
                        const int *in, int nout, const int *out);
tr_op *tr_build_backward(tr_builder *b, const tr_op_def *def, const tr_op *of, int nin,
                         const int *in, int nout, const int *out);
bool tr_grad_wanted(const tr_builder *b, int id);
int tr_grad_of(const tr_builder *b, int id); /* gradient of an output, all consumers summed */
int tr_grad_new(tr_builder *b, int id);      /* a new part of an input's gradient; -1: not wanted */
void tr_grad_pass(tr_builder *b, int id, int grad); /* an existing tensor is a part of it */
/* A parameter's gradient; -1 for -1. Of a frozen one a tensor that nobody reads, for ops that make
 * several gradients at once, of which tr_grad_learned says that one at least is wanted. */
int tr_grad_param(tr_builder *b, int param);
bool tr_grad_learned(const tr_builder *b, int param); /* not frozen; false for -1 */

/* One pass over the elements of the first output, or where there is none, of the first input. */
double tr_flops_elements(const tr_graph *g, const tr_op *op);
/* Of sums of inputs times weights (linear, conv2d) and their gradients: product.c. */
double tr_flops_product(const tr_graph *g, const tr_op *op);
double tr_flops_product_grad_input(const tr_graph *g, const tr_op *op);
double tr_flops_product_grad_weight(const tr_graph *g, const tr_op *op);
void tr_grad_product(tr_builder *b, const tr_op *op, const tr_op_def *grad_input,
                     const tr_op_def *grad_weight);

/* The op that rounds an int8 row while it is trained, and its attributes. */
const tr_op_def *tr_op_rounds_weight(void);
const tr_quantize_weight_attrs *tr_quantize_weight_of(const tr_param *p);
const tr_op_def *tr_op_rounds_weight_learned(void); /* by scales that are learned */
extern const tr_learned_steps tr_learned_weight_steps;

/* ---- The registry ---------------------------------------------------------------------------- */

const tr_op_def *tr_op_sum(void); /* the op that `sums` */
/* It only puts zeros around an image: so many at the top, bottom, left, right; false: it does
 * not. */
bool tr_layer_zeros_around(const tr_layer *l, int64_t around[4]);
const tr_op_def *tr_op_same_elements(void); /* in another shape, or stored otherwise */
/* Whether the graph's backend has an op of 8 bits. */
bool tr_int8_has(const tr_graph_options *o, const tr_op_def *def);

#endif
