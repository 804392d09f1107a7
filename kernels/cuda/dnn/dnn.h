/* Convolutions by cuDNN 9: one problem in, one finished plan out. Private to the CUDA backend.
 *
 * A plan is the first engine of the graph API's heuristics that may be taken and runs (or the
 * fastest of the first eight, timed). Plans are cached by the whole problem: equal layers, and the
 * several plans of a session, share one. Activations are channels-last,
 * weights (out, kh, kw, in/groups); all sums in float32. */
#ifndef TR_CUDA_DNN_H
#define TR_CUDA_DNN_H

#include <cudnn.h>

#include "kernels/cuda/internal.h"

typedef enum {
    TR_DNN_FORWARD, /* these three: of a convolution */
    TR_DNN_GRAD_INPUT,
    TR_DNN_GRAD_WEIGHT,
    TR_DNN_ATTENTION,
    TR_DNN_ATTENTION_GRAD
} tr_dnn_pass;

/* Of 16-bit types; rows of heads have D values side by side. */
typedef struct {
    int64_t samples, queries, keys, heads, kv_heads, D;
    int64_t q_pitch, kv_pitch; /* elements from a position's row to the next; o's is heads * D */
    int64_t k_at, v_at;        /* packed: elements from q to k and v; else 0 */
    int64_t causal;            /* query i sees keys up to i */
    int64_t lse;               /* forward: the logarithm of each row's sum is wanted */
    double scale;
} tr_dnn_attention_problem;

/* All of 8 bytes so that there is no padding: problems are compared as bytes. */
typedef struct {
    int64_t pass;
    int64_t type;                /* tr_dtype of x, of a gradient dx, of the residual */
    int64_t weight_type;         /* of the weight, or of its gradient */
    int64_t result_type;         /* of y, or of its gradient */
    int64_t exact;               /* float32 operands must not be rounded: no tensor cores */
    int64_t bias, residual, act; /* forward: fused; act: tr_act */
    int64_t batch, groups;
    int64_t in, out;            /* channels */
    int64_t size[2], result[2]; /* height, width of x and of y */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t extra[2]; /* padding at the end beyond that at the beginning */
    tr_dnn_attention_problem
        attention; /* of the other passes; then of the rest only `type` is set */
} tr_dnn_problem;

typedef struct tr_dnn_plan tr_dnn_plan;

/* Opens cuDNN on cuda->stream, which must be there. */
tr_status tr_cuda_dnn_open(tr_cuda *cuda, tr_cuda_dnn **out);
void tr_cuda_dnn_close(tr_cuda_dnn *dnn); /* NULL is fine; plans are no longer valid */

/* The plan for a problem, owned by `dnn`; NULL with TR_OK where cuDNN has nothing for it that runs
 * and keeps to the options (deterministic, workspace). TR_KERNEL where a call fails for other
 * reasons. */
tr_status tr_dnn_plan_get(tr_cuda_dnn *dnn, const tr_dnn_problem *p, const tr_dnn_plan **out);
size_t tr_dnn_plan_workspace(const tr_dnn_plan *plan);
/* The most that a plan of a problem may take. */
size_t tr_dnn_limit(const tr_cuda *cuda, const tr_dnn_problem *p);
const char *
tr_dnn_plan_name(const tr_dnn_plan *plan); /* "cuDNN engine 38"; lives as long as the plan */
/* Why the problem asked for last has no plan: the last refusal's text; "": it has one. */
const char *tr_dnn_refusal(const tr_cuda_dnn *dnn);
/* Whether that is because the engines that there are failed when they were run. */
bool tr_dnn_broken(const tr_cuda_dnn *dnn);

/* What a plan runs on; y and w stand for their gradients where the pass writes or reads those.
 * NULL: what the problem does not have. */
typedef struct {
    void *x, *w, *y, *bias, *residual; /* convolutions */
    void *q, *k, *v, *o, *lse;         /* attention */
    void *d_o, *dq, *dk, *dv;
    void *sums;  /* scratch of attention's gradient: tr_dnn_attention_sums bytes, */
    void *delta; /* and samples * heads * queries float32 */
    void *workspace;
} tr_dnn_operands;

/* Bytes of float32 that the gradient of queries is added up in, in no fixed order. */
size_t tr_dnn_attention_sums(const tr_dnn_attention_problem *p);

/* A plan with its operands. Zeroed: not set. Two sets of operands stay prepared (a batch lies in
 * one of two slots), so that changing between them costs nothing. */
enum { TR_DNN_SETS = 2 };
typedef struct {
    const tr_dnn_plan *plan;
    tr_dnn_operands at[TR_DNN_SETS];
    cudnnBackendDescriptor_t pack[TR_DNN_SETS];
    int current, used;
} tr_dnn_call;

tr_status tr_dnn_call_set(tr_dnn_call *c, const tr_dnn_plan *plan, const tr_dnn_operands *at);
tr_status tr_dnn_call_run(tr_cuda_dnn *dnn, const tr_dnn_call *c); /* into the stream */
void tr_dnn_call_close(tr_dnn_call *c);

/* ---- For tests */
typedef struct {
    size_t plans;    /* in the cache, those that found nothing included */
    size_t searches; /* heuristics asked: one a problem */
} tr_dnn_counts;
tr_dnn_counts tr_dnn_count(const tr_cuda_dnn *dnn);

#endif
