/* Inside of dnn/: the handle, plans, and what makes them. */
#ifndef TR_CUDA_DNN_INTERNAL_H
#define TR_CUDA_DNN_INTERNAL_H

#include "kernels/cuda/dnn/dnn.h"

/* Tensor ids within an operation graph. */
enum { TR_DNN_X = 1, TR_DNN_W, TR_DNN_Y, TR_DNN_BIAS, TR_DNN_RESIDUAL, TR_DNN_VIRTUAL };

/* Finished, or (without a graph) the finding that there is none. */
struct tr_dnn_plan {
    tr_dnn_plan *next;
    tr_dnn_problem problem;
    cudnnBackendDescriptor_t graph; /* execution plan */
    size_t workspace;
    char name[64];
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
enum { TR_DNN_DESCRIPTORS = 24 };
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
tr_status tr_dnn_pack_open(const tr_dnn_operands *at, cudnnBackendDescriptor_t *out);

/* choose.c: fills plan->graph, workspace and name; or broken, where no engine may be taken. */
tr_status tr_dnn_choose(tr_cuda_dnn *dnn, tr_dnn_plan *plan);

#endif
