/* The backend interface: how a device prepares and runs the ops of a graph. A const struct of
 * functions; kernels/cpu and kernels/cuda each export one. All Local unless a comment says otherwise. */
#ifndef TR_BACKEND_H
#define TR_BACKEND_H

#include "runtime/graph/graph.h"

/* How a running plan reaches the collectives without knowing them. */
typedef struct tr_hooks {
    void *ctx;
    int rank, size;
    /* *Collective.* Every rank gives `nbytes`; recv holds size * nbytes in rank order. */
    tr_status (*gather)(void *ctx, const void *send, void *recv, size_t nbytes);
    void (*bucket_ready)(void *ctx, int bucket); /* gradients of buckets up to this one are final */
    void (*poll)(void *ctx);                     /* between kernels: let transfers progress */
} tr_hooks;

/* What changes from one run of a plan to the next. */
typedef struct tr_run {
    uint64_t seed;
    uint64_t ordinal;   /* of the batch's first sample: epoch * samples + place in the epoch's order; the
                           batch holds consecutive ordinals. Keys dropout and augmentation. */
    float loss_scale;   /* multiplies the loss's gradient */
    bool accumulate;    /* add to the gradient buffer; else overwrite it */
    bool last;          /* the step's last micro-batch: buckets become ready */
    bool params_changed; /* parameters were updated since the last run of any plan: refresh packed copies */
    double *tally;      /* [TR_TALLY] summed into by the loss op */
    int64_t *confusion; /* [classes * classes], row = true class; NULL: not wanted */
    const tr_hooks *hooks; /* NULL with one rank */
} tr_run;

/* Sums over samples; divided once, at the end, over all ranks and micro-batches.
 * cross_entropy: weight = sum of the class weights of the labels; mse, bce: number of elements. */
enum { TR_TALLY_LOSS, TR_TALLY_WEIGHT, TR_TALLY_SAMPLES, TR_TALLY_CORRECT, TR_TALLY_TOP5, TR_TALLY };

typedef struct tr_binding {
    void *in[TR_MAX_IN], *out[TR_MAX_OUT]; /* NULL for absent operands */
    void *workspace;
    void *packed;
} tr_binding;

/* One prepared op. The backend's own struct starts with this one. */
typedef struct tr_kernel tr_kernel;
struct tr_kernel {
    const char *impl;   /* which implementation was chosen, for `trainer plan`; static or kernel-owned */
    size_t workspace;   /* scratch bytes while it runs; shared by all kernels */
    /* A copy of a parameter in the layout or type that the kernel wants, refreshed once an update.
     * Kernels (of any plan) that ask for the same parameter with equal format bytes share one copy. */
    size_t packed;
    int packed_param;   /* row; -1: none */
    const void *packed_format;
    size_t packed_format_size;
    /* Called once with final addresses, before the first run. */
    tr_status (*bind)(tr_kernel *k, const tr_binding *b);
    tr_status (*pack)(tr_kernel *k); /* fills the packed copy from the bound master parameter; NULL: none */
    tr_status (*run)(tr_kernel *k, const tr_run *run);
    void (*close)(tr_kernel *k);
    /* Optional (NULL: not supported). Local. From the next run on, input operand `operand` is read at
     * `data` (64-byte aligned, same shape and layout), which the kernel must not write. Must not allocate:
     * it is called between runs to read a batch where the loader prepared it. */
    tr_status (*rebind)(tr_kernel *k, int operand, void *data);
};

/* Arguments of one optimizer sweep over a contiguous range of float32 arrays. */
typedef struct tr_update {
    int kind;     /* tr_optimizer_kind */
    double lr, beta1, beta2, eps, momentum;
    bool nesterov;
    double decay;      /* decoupled weight decay of this range (lr not yet multiplied in); SGD: L2 as PyTorch's */
    double grad_scale; /* 1 / (loss scale * total weight) * clip factor: multiplies every gradient */
    int64_t t;         /* update number, from 1: bias correction */
    double ema_decay;  /* with ema != NULL: ema = d * ema + (1 - d) * w */
    float *w;
    const float *g;
    float *m, *v;      /* moments the optimizer has; else NULL */
    float *ema;
    size_t count;
} tr_update;

typedef struct tr_backend_options {
    int threads;
    int isa; /* 0: the best this CPU has; else an upper bound, agreed over the ranks (tr_cpu_isa) */
} tr_backend_options;

typedef struct tr_backend {
    const char *name;
    tr_status (*open)(const tr_backend_options *o, void **ctx);
    void (*close)(void *ctx);
    /* NULL when the op is there for this graph's precision, else why not. */
    const char *(*unsupported)(void *ctx, const tr_op_def *def, tr_precision precision);
    /* Prepares op `op` of `g` (g->batch > 0, or an op that takes part in collectives). Allocates
     * nothing that grows with the model. */
    tr_status (*prepare)(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out);
    void (*update)(void *ctx, const tr_update *u);
    /* Sum of squares of g[0..count) in double; +inf or NaN iff an element is not finite. One pass. */
    double (*sum_squares)(void *ctx, const float *g, size_t count);
    void (*describe)(void *ctx, char *buf, size_t size); /* "AVX-512 BF16 AMX, oneDNN 2.6.3, 1 thread" */
} tr_backend;

#endif
