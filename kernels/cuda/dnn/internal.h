/* Inside of dnn/: the handle, plans, and what makes them. */
#ifndef TR_CUDA_DNN_INTERNAL_H
#define TR_CUDA_DNN_INTERNAL_H

#include "kernels/cuda/dnn/dnn.h"
#include "kernels/cuda/trial.h"

/* Tensor ids within an operation graph: in the order of tr_dnn_operands, then numbers of the host,
 * then what is virtual. */
enum {
    TR_DNN_X = 1,
    TR_DNN_W,
    TR_DNN_Y,
    TR_DNN_BIAS,
    TR_DNN_RESIDUAL,
    TR_DNN_Q,
    TR_DNN_K,
    TR_DNN_V,
    TR_DNN_O,
    TR_DNN_LSE,
    TR_DNN_DO,
    TR_DNN_DQ,
    TR_DNN_DK,
    TR_DNN_DV,
    TR_DNN_SUMS,
    TR_DNN_DELTA,
    TR_DNN_NUMBERS,
    TR_DNN_SCALE = TR_DNN_NUMBERS,
    TR_DNN_ONE,
    TR_DNN_UNSEEN, /* minus infinity */
    TR_DNN_VIRTUAL
};
_Static_assert(TR_DNN_NUMBERS * sizeof(void *) == sizeof(tr_dnn_operands), "one id an address");

/* Finished, or (without a graph) the finding that there is none. */
struct tr_dnn_plan {
    tr_dnn_plan *next;
    tr_dnn_problem problem;
    cudnnBackendDescriptor_t graph; /* execution plan */
    size_t workspace;
    char name[64];
    float numbers[TR_DNN_VIRTUAL - TR_DNN_NUMBERS]; /* of attention */
    bool broken;   /* no graph, and there were engines, none of which runs */
    char *refusal; /* why there is no graph; NULL: there is one */
};

struct tr_cuda_dnn {
    tr_cuda *cuda;
    cudnnHandle_t handle;
    tr_dnn_plan *plans;
    tr_dnn_counts counts;
    char refusal[TR_ERROR_TEXT]; /* the last one in the search that goes on */
    const tr_dnn_plan *last;     /* the one asked for last */
};

/* TR_OK, or TR_KERNEL with the call's name, cuDNN's name for the status and its last message. */
tr_status tr_dnn_check(cudnnStatus_t s, const char *call);
#define TR_DNN_TRY(call) TR_TRY(tr_dnn_check((call), #call))
/* The library says "not this", as opposed to "something broke"; the text is kept as the refusal.
 * Of a descriptor of ours only a status of support (3xxx) says that: a bad parameter (2xxx) means
 * that the descriptor is wrong, and must not pass for a missing engine. Of heuristics and plans,
 * which judge configurations that are the library's own, both do. */
bool tr_dnn_unsupported(tr_cuda_dnn *dnn, cudnnStatus_t s, const char *call);
bool tr_dnn_refused(tr_cuda_dnn *dnn, cudnnStatus_t s, const char *call);
cudnnDataType_t tr_dnn_type(int64_t dtype);

/* graph.c: the problem as an operation graph; its descriptors. *refused: cuDNN does not take it. */
enum { TR_DNN_DESCRIPTORS = 128, TR_DNN_OPERATIONS = 32 };
typedef struct {
    cudnnBackendDescriptor_t all[TR_DNN_DESCRIPTORS]; /* in the order made */
    int n;
    cudnnBackendDescriptor_t graph; /* one of them */
} tr_dnn_graph;
tr_status tr_dnn_graph_build(tr_cuda_dnn *dnn, const tr_dnn_problem *p, tr_dnn_graph *g,
                             bool *refused);
void tr_dnn_graph_close(tr_dnn_graph *g);
tr_status tr_dnn_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t n, const void *values);
tr_status tr_dnn_pack_open(const tr_dnn_plan *plan, const tr_dnn_operands *at,
                           cudnnBackendDescriptor_t *out);

/* What is being built: once refused, nothing more is added and everything returns TR_OK. */
typedef struct {
    tr_cuda_dnn *dnn;
    tr_dnn_graph *g;
    bool *refused;
    const tr_dnn_problem *p;
    int virtuals, nops;
    cudnnBackendDescriptor_t ops[TR_DNN_OPERATIONS];
} tr_dnn_builder;

typedef struct {
    int64_t id;
    cudnnDataType_t type;
    int64_t dims[4], strides[4];
    bool by_value; /* a number of the host, read when the plan is put into the stream */
} tr_dnn_tensor;

/* y = mode(x[, b[, t]]) */
typedef struct {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    int64_t axis; /* of CUDNN_POINTWISE_GEN_INDEX */
    cudnnBackendDescriptor_t x, b, t, y;
} tr_dnn_pointwise;

tr_status tr_dnn_make(tr_dnn_builder *b, cudnnBackendDescriptorType_t type,
                      cudnnBackendDescriptor_t *out);
tr_status tr_dnn_finalize(tr_dnn_builder *b, cudnnBackendDescriptor_t d);
tr_status tr_dnn_finish(tr_dnn_builder *b, cudnnBackendDescriptor_t operation); /* and adds it */
int64_t tr_dnn_virtual(tr_dnn_builder *b); /* an id that none has yet */
tr_status tr_dnn_add_tensor(tr_dnn_builder *b, const tr_dnn_tensor *t,
                            cudnnBackendDescriptor_t *out);
tr_status tr_dnn_add_pointwise(tr_dnn_builder *b, const tr_dnn_pointwise *o);
tr_status tr_dnn_add_matmul(tr_dnn_builder *b, cudnnBackendDescriptor_t a,
                            cudnnBackendDescriptor_t by, cudnnBackendDescriptor_t c);
tr_status tr_dnn_add_reduction(tr_dnn_builder *b, cudnnReduceTensorOp_t op,
                               cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y);
tr_status tr_dnn_add_reshape(tr_dnn_builder *b, cudnnBackendDescriptor_t x,
                             cudnnBackendDescriptor_t y);

/* convolution.c, attention.c: the operations of a problem. */
tr_status tr_dnn_convolution(tr_dnn_builder *b);
tr_status tr_dnn_attention(tr_dnn_builder *b);
size_t tr_dnn_attention_workspace(const tr_dnn_problem *p); /* the most that is worth it */
void tr_dnn_attention_numbers(const tr_dnn_problem *p, float *numbers);
bool tr_dnn_attention_reads(const tr_dnn_problem *p, int64_t number); /* by its id */
/* What a trial of a problem runs on: blocks, and what lies where in them. */
void tr_dnn_attention_sizes(const tr_dnn_problem *of, size_t nbytes[TR_CUDA_TRIAL_BLOCKS]);
tr_dnn_operands tr_dnn_attention_operands(const tr_dnn_problem *of, void *const *block);
static inline bool tr_dnn_is_attention(const tr_dnn_problem *p)
{
    return p->pass >= TR_DNN_ATTENTION;
}

/* choose.c: fills plan->graph, workspace and name; or broken, where no engine may be taken. */
tr_status tr_dnn_choose(tr_cuda_dnn *dnn, tr_dnn_plan *plan);

#endif
