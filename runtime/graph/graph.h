/* The graph: a model becomes, for a given batch size and mode, a flat list of ops on tensors:
 * forward, backward, passes applied. It points into the model, which must outlive it. All Local.
 *
 * Shapes are logical and channels first (N, C, H, W) as in PyTorch and ONNX; how a tensor is
 * *stored*, its layout says: images are channels-last (N, H, W, C), all else as it is written.
 * Parameters are stored as documented for their layer (conv2d weight: out, in/groups, kh, kw;
 * linear weight: out, in), like PyTorch's. */
#ifndef TR_GRAPH_H
#define TR_GRAPH_H

#include "runtime/graph/model.h"

/* ---- Tensors and ops ------------------------------------------------------------------------- */

typedef enum {
    TR_ROLE_INPUT,      /* index: which input; filled by the loader */
    TR_ROLE_TARGET,     /* labels or values, and weights of samples; filled by the loader */
    TR_ROLE_GIVEN,      /* index: which; what a teacher's graph made of the same samples */
    TR_ROLE_PARAM,      /* index: row; float32 master values */
    TR_ROLE_STATE,      /* index: row */
    TR_ROLE_GRAD,       /* index: row of the parameter; lies in the gradient buffer; float32 */
    TR_ROLE_ACTIVATION, /* in the arena while live */
    TR_ROLE_SAVED,      /* an activation the backward pass needs: in the arena, reported apart */
    /* index: row; its values rounded to the type that the file keeps, float32, in the arena.
     * Kernels read and pack it as if it were the row. */
    TR_ROLE_ROUNDED,
    /* index: which; of a graph that decodes: keeps its bytes from run to run, for all such plans of
     * a session. Kernels read and write it where it is an input. `at`: where it begins among all of
     * them */
    TR_ROLE_HELD
} tr_role;

typedef struct {
    int id;
    char name[TR_NAME];
    tr_role role;
    int index;
    tr_dtype dtype;
    int ndim;
    /* Logical; dims[0] is the batch for inputs, targets and activations. */
    int64_t dims[TR_MAX_DIMS];
    tr_tensor_layout layout;
    size_t count, nbytes;
    /* Of a part of its root's bytes (TR_PASS_CONCAT_IN_PLACE): where it begins, in bytes. Where its
     * rows, its innermost dimension, stand apart (there, and by TR_PASS_ALIGN_ROWS, which `nbytes`
     * has room for): the elements from one to the next; else 0. */
    size_t at;
    int64_t pitch;
    float scale; /* of quantized values, int8 or uint8: value = scale * element; else 0 */
    int alias;   /* id of the tensor whose bytes it shares (in place, view), else -1. Resolved: the
                  root's alias is -1 */
} tr_tensor;

typedef enum { TR_PHASE_FORWARD, TR_PHASE_LOSS, TR_PHASE_BACKWARD } tr_phase;

/* What a kernel gets to see. Operand order is documented with each op's definition. */
typedef struct {
    const tr_op_def *def;
    char layer[TR_NAME]; /* the layer it comes from */
    tr_phase phase;
    int nin, in[TR_MAX_IN]; /* tensor ids; -1: an optional operand that is absent */
    int nout, out[TR_MAX_OUT];
    const void *attrs; /* the op's attribute struct, public in ops.h */
    tr_act act;        /* fused into the output */
    int layer_index;   /* position of the layer in the model: the dropout stream */
    /* bit k: out[k] is added to what is there, whatever tr_run.accumulate says */
    unsigned adds;
    unsigned overwrites; /* bit k: out[k] is not, for it is no parameter's gradient */
    bool recomputed;     /* runs a second time in the backward pass: must not touch states */
    /* Last bucket that is complete after this op, else -1. In a graph for an empty share the marks
     * of ops that are left out move to the next op kept; what comes after the last one has no mark:
     * who runs the graph takes all buckets for complete at its end. */
    int bucket_ready;
} tr_op;

/* What a graph is for. Of an infer graph the loss is left out, with it the target, and every op
 * that no output needs. */
typedef enum {
    TR_MODE_EVALUATE, /* the loss, no gradients */
    TR_MODE_TRAIN,    /* the loss, backward ops */
    TR_MODE_INFER     /* outputs alone */
} tr_mode;

/* Passes over a graph, in the order in which they run (docs/passes.md). */
typedef enum {
    TR_PASS_ROW,
    TR_PASS_UNREAD,
    TR_PASS_COMMON,
    TR_PASS_RESIDUAL,
    TR_PASS_ACTIVATION,
    TR_PASS_GRADIENT,
    TR_PASS_INT8,
    TR_PASS_RECOMPUTE,
    TR_PASS_ACTIVATION_GRADIENT,
    TR_PASS_ALIGN_ROWS,
    TR_PASS_VIEWS,
    TR_PASS_IN_PLACE,
    TR_PASS_RESIDUAL_IN_PLACE,
    TR_PASS_CONCAT_IN_PLACE,
    TR_GRAPH_PASSES
} tr_graph_pass_id;
/* Sets of them. */
#define TR_PASS_IS(pass) (1u << (pass))
#define TR_PASSES_ALL    (TR_PASS_IS(TR_GRAPH_PASSES) - 1)

/* A graph that decodes: sequences (T, ...) go through it some rows at a time, and what layers need
 * of the rows before is held in tensors of their own (TR_ROLE_HELD). All Local. Behind the model's
 * input it has two more, of int32 (N, 1). */
typedef struct {
    int64_t rows;  /* of each sequence at a time; 0: whole sequences, nothing is held */
    int64_t cache; /* rows of each sequence that attention can look back on, those of the run
                      included */
    bool fill; /* its rows only fill what is held: there is no output, and none of what leads to it
                  alone */
} tr_decode;
enum {
    TR_DECODE_PAST = 1, /* input: rows of a sequence that came before */
    TR_DECODE_COUNT,    /* input: rows of this run that are the sequence's, 0 to `rows`; what others
                           give means nothing */
    TR_DECODE_INPUTS    /* of such a graph */
};

typedef struct tr_graph {
    const tr_model *model;
    int64_t batch; /* samples; 0: an empty share: the batchnorm ops that take part in collectives,
                      with tensors of 0 elements, in the order of any other share; else no ops */
    tr_mode mode;
    int ranks; /* that take part in its collective ops; of the options */
    tr_precision precision;
    size_t ntensors, nops;
    tr_tensor *tensors;
    tr_op *ops;  /* in execution order */
    int logits;  /* tensor of the model's output; -1: an infer graph that is not asked for it */
    int target;  /* -1 in an infer graph */
    int weights; /* of samples, float32 (N); -1: all 1, or an infer graph */
    size_t noutputs;
    int *outputs; /* of an infer graph: tensors, in the order they were asked for */
    int inputs[TR_MAX_IN];
    size_t found[TR_GRAPH_PASSES]; /* what each pass has changed, counted */
    /* With distillation: what is given by the teacher, the logits first where `soft` is above 0,
     * then features. */
    size_t ngiven;
    int given[TR_MAX_IN];
    void *distill; /* attributes of its losses */
    tr_decode decode;
    size_t held; /* bytes of what is held */
} tr_graph;

/* Distillation (Hinton, Vinyals and Dean 2015): a train graph of a model with cross entropy also
 * learns what another model, the teacher, makes of the same samples. Its loss of a sample:
 *     hard * cross entropy + soft * T^2 * KL(softmax(teacher / T) || softmax(logits / T))
 *     + sum over features of weight * mean of (feature - teacher's feature)^2
 * times the weight of its class, where the model has class weights. */
typedef struct {
    const char *layer; /* of the model */
    double weight;
} tr_distill_feature;
#define TR_MAX_FEATURES (TR_MAX_IN - 1)
typedef struct {
    double temperature, hard, soft;
    size_t nfeatures; /* at most TR_MAX_FEATURES */
    const tr_distill_feature *features;
} tr_distill;

typedef struct {
    int64_t batch;
    tr_mode mode;
    tr_precision precision;
    bool sync_batchnorm; /* with the collective points */
    int ranks;           /* with 1, no collective points are made */
    int recompute;       /* tr_recompute_kind */
    int64_t recompute_every;
    /* TR_RECOMPUTE_SEGMENTS: by layer of the model, the number of its segment; -1: it is in none.
     * Not kept */
    const int *recompute_segments;
    unsigned passes; /* those that run, where there is something for them */
    /* What the backend's kernels can do, for TR_PASS_RESIDUAL_IN_PLACE: an op that adds a residual
     * may write over it, whatever its `share` says; TR_PASS_CONCAT_IN_PLACE: operands that are part
     * of wider rows (tr_tensor.pitch); TR_PASS_INT8: ops of 8 bits, a set of tr_graph_int8. */
    bool residual_in_place, parts;
    /* The same for TR_PASS_ACTIVATION_GRADIENT: products of gradients apply those of activations,
     * where the op's definition says so (tr_op_def.acts_gradient). */
    bool activation_gradient;
    unsigned int8;
    /* For TR_PASS_ALIGN_ROWS: bytes that rows of logits of 16 bits are to begin at multiples of,
     * for the backend's sake; 0: it does not care. A power of two. */
    size_t row_align;
    /* Of an evaluate graph: the rows are being trained, so that those stored as int8 are rounded
     * before they are read, as in a train graph. */
    bool trained;
    /* Of an infer graph: layers whose outputs are wanted; none: the last one's. Not kept. */
    const char *const *outputs;
    size_t noutputs;
    const tr_distill *distill; /* of a train graph; NULL: none. Not kept */
    bool mixed; /* of a train graph: in the place of class labels come probabilities of all classes
                 */
    tr_decode decode; /* of an infer graph of a model that tr_graph_decodes */
} tr_graph_options;

/* TR_UNSUPPORTED, with the layer and the reason: rows of the model's output cannot be made one
 * after the other, each from those before it: it is no sequence of ids, or a layer needs rows that
 * come later. Inputs of lengths are none of such a graph's: all rows that there are count. */
tr_status tr_graph_decodes(const tr_model *m);
/* Warns, once a program, of the first layer that is known to see rows behind a row: of a model
 * whose targets are these, the next tokens. */
void tr_graph_warn_ahead(const tr_model *m);
/* Rows that a sequence can have, and the layer that can tell no more apart; 0: any number. */
int64_t tr_graph_most_rows(const tr_model *m, const char **layer);

typedef struct {
    const char *name, *what;
    unsigned modes; /* bit m: it can find something in a graph of tr_mode m */
} tr_graph_pass;
const tr_graph_pass *tr_graph_pass_at(tr_graph_pass_id pass);
/* TR_GRAPH_PASSES: there is none of that name. */
tr_graph_pass_id tr_graph_pass_named(const char *name);

/* Those that a list names, a set of TR_PASS_IS; TR_CONFIG where it names another. `key`: for
 * errors. */
tr_status tr_graph_passes_of(const tr_node *names, const char *key, unsigned *out);
/* Those that run.skip_passes names. */
tr_status tr_graph_passes_skipped(const tr_config *c, unsigned *out);
/* The same of a config that was checked. */
unsigned tr_graph_skip(const tr_config *c);

/* train.recompute.segments for a model: *out by layer, as in tr_graph_options, to be released by
 * tr_free; NULL where the config has none. TR_CONFIG at the place of a layer that the model lacks,
 * or that stands in two. */
tr_status tr_segments_read(const tr_config *c, const tr_model *m, int **out);
/* The same as the config has it: "[[conv1, relu1], [conv4, relu4]]". Allocated. */
tr_status tr_segments_text(const tr_model *m, const int *segments, char **out);

/* Which ops of 8 bits a backend has, of its tr_device_kernels.unsupported; 0: none. */
typedef const char *tr_unsupported(void *ctx, const tr_op_def *def, tr_dtype type);
unsigned tr_graph_int8(tr_unsupported *unsupported, void *ctx);
/* Inputs of the graph: the model's, then those of one that decodes. */
static inline size_t tr_graph_inputs(const tr_graph *g)
{
    return g->decode.rows > 0 ? (size_t)TR_DECODE_INPUTS : g->model->ninputs;
}
/* The type of activations: float32, bfloat16, float16. */
tr_dtype tr_precision_dtype(tr_precision p);
/* forward + differentiate + passes (fuse, in place, recompute, bucket marks). */
tr_status tr_graph_open(const tr_model *m, const tr_graph_options *o, tr_graph **out);
void tr_graph_close(tr_graph *g);
/* The dimension whose elements lie next to each other. */
static inline int tr_innermost(const tr_tensor *t)
{
    return t->layout == TR_LAYOUT_CHANNELS_LAST ? 1 : t->ndim - 1;
}
/* Elements from one of its rows, the innermost dimension, to the next. */
static inline int64_t tr_row_pitch(const tr_tensor *t)
{
    return t->pitch > 0 ? t->pitch : t->dims[tr_innermost(t)];
}
/* Elements of all dimensions stored behind dimension `axis`: so many lie between two places of
 * it. */
static inline size_t tr_stored_behind(const tr_tensor *t, int axis)
{
    const bool last = t->layout == TR_LAYOUT_CHANNELS_LAST;
    size_t n = last && axis != 1 ? (size_t)t->dims[1] : 1;
    for (int i = axis + 1; i < t->ndim && !(last && axis == 1); i++) n *= (size_t)t->dims[i];
    return n;
}
/* The type of the op's activations: of its first operand, in then out, that is one and of a type
 * for values; else float32. */
tr_dtype tr_op_dtype(const tr_graph *g, const tr_op *op);
/* The tensor that holds a tensor's bytes: itself, or the root of its group. */
static inline int tr_root(const tr_graph *g, int id)
{
    return g->tensors[id].alias >= 0 ? g->tensors[id].alias : id;
}
/* The op's only output has its operands' bytes, as they are seen otherwise or were made there:
 * nothing to run. */
bool tr_op_is_view(const tr_graph *g, const tr_op *op);
/* Output `k` is there and written; else it is absent, or an operand's bytes passed on as they
 * are. */
bool tr_op_writes(const tr_graph *g, const tr_op *op, int k);
/* Forward arithmetic of one op over the graph's batch: 2 a multiply-add; 0 for copies. */
double tr_op_flops(const tr_graph *g, const tr_op *op);
/* Of these, multiply-adds of an input with a weight: of products and convolutions alone. */
double tr_op_multiply_adds(const tr_graph *g, const tr_op *op);
/* The activation that the op is, or is the gradient of; TR_ACT_NONE: none. Not tr_op.act. */
tr_act tr_op_activation(const tr_op *op);
/* Its statistics are of a channel's values in all samples: more than one value, or they say
 * nothing. */
bool tr_op_over_batch(const tr_op *op);
/* Products that it makes one after the other, each of one row of all samples with the same weight,
 * of *weight elements: the rows of a recurrence. 1, and 0, where it takes all rows at once. */
int64_t tr_op_turns(const tr_graph *g, const tr_op *op, size_t *weight);
/* What it makes is never made again: statistics, and what ranks meet for. */
bool tr_op_made_once(const tr_op *op);
/* Bytes that every rank sends to all others when the op runs; 0: it is no meeting of ranks. */
size_t tr_op_gathered(const tr_graph *g, const tr_op *op);
const char *tr_op_name(const tr_op *op); /* "conv2d", "conv2d.grad_weight" */
void tr_graph_print(const tr_graph *g,
                    FILE *to); /* one op a line with its tensors: for tests and debugging */

/* ---- The registry ---------------------------------------------------------------------------- */

/* Every op, forward and backward, in the order of ops/list.h, by which backends keep their
 * kernels. */
size_t tr_op_count(void);
const tr_op_def *tr_op_at(size_t i);
/* i of tr_op_at(i) == d; tr_op_count() when it is not there */
size_t tr_op_place(const tr_op_def *d);
const char *tr_op_def_name(const tr_op_def *d);

#endif
