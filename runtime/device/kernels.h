/* Kernels: prepared once for an op of a graph, bound to addresses, then run. */
#ifndef TR_DEVICE_KERNELS_H
#define TR_DEVICE_KERNELS_H

#include "runtime/device/control.h"
#include "runtime/graph/graph.h"

/* How a running plan reaches the collectives without knowing them. */
typedef struct tr_hooks {
    void *ctx;
    int rank, size;
    /* *Collective.* Every rank gives `nbytes`; recv holds size * nbytes in rank order. Both in the
     * backend's memory; in stream order. */
    tr_status (*gather)(void *ctx, const void *send, void *recv, size_t nbytes);
    void (*bucket_ready)(void *ctx, int bucket); /* gradients of buckets up to this one are final */
    tr_status (*poll)(
        void *ctx); /* between kernels: let transfers progress, and the device catch up */
} tr_hooks;

/* What changes from one run of a plan to the next. */
typedef struct tr_run {
    uint64_t seed;
    /* On the host: as in the control. A device's kernels run later than they are put into the
     * stream, and again when that is replayed: they read both from `control`. */
    uint64_t ordinal; /* tr_control_input.ordinal */
    float loss_scale; /* multiplies the loss's gradient */
    const tr_control
        *control;          /* in the backend's memory; may be NULL on the host, and in evaluation */
    bool accumulate;       /* add to the gradient buffer; else overwrite it */
    bool last;             /* the step's last micro-batch: buckets become ready */
    bool params_changed;   /* parameters were updated since the last run of any plan: refresh packed
                              copies */
    double *tally;         /* [TR_TALLY] summed into by the loss op; in the backend's memory */
    int64_t *confusion;    /* [classes * classes], row = true class; NULL: not wanted; as tally */
    const tr_hooks *hooks; /* NULL with one rank */
} tr_run;

/* A copy of a parameter in the layout or type that a kernel wants, refreshed once an update.
 * Kernels (of any plan) that ask for the same parameter and size with equal format bytes share one
 * copy. */
typedef struct tr_packing {
    int param; /* row */
    size_t nbytes;
    const void *format; /* kernel-owned or static */
    size_t format_size;
} tr_packing;
#define TR_MAX_PACKED 4

typedef struct tr_binding {
    void *in[TR_MAX_IN], *out[TR_MAX_OUT]; /* NULL for absent operands */
    void *workspace;
    void *packed[TR_MAX_PACKED]; /* as tr_kernel.packed */
    unsigned adds, overwrites;   /* of tr_op */
} tr_binding;

/* Whether output `k` is added to what is there, as a parameter's gradient may be; else it is
 * overwritten. */
static inline bool tr_run_adds(const tr_run *run, const tr_binding *b, int k)
{
    return !(b->overwrites >> k & 1) && (run->accumulate || (b->adds >> k & 1));
}

/* *Collective.* What every rank has as the kernel's first operand, `count` float64 each, in rank
 * order: in the workspace, which has room for `most` ranks; the operand itself where there is no
 * one else. */
static inline tr_status tr_run_gather(const tr_run *run, const tr_binding *b, size_t count,
                                      size_t most, const double **all, size_t *ranks)
{
    const tr_hooks *hooks = run->hooks;
    *all = (const double *)b->in[0];
    *ranks = 1;
    if (!hooks) return TR_OK;
    if (hooks->size < 1 || (size_t)hooks->size > most)
        return TR_FAIL(TR_INTERNAL, "a merge planned for %zu ranks runs with %d", most,
                       hooks->size);
    *all = (const double *)b->workspace;
    *ranks = (size_t)hooks->size;
    return hooks->gather(hooks->ctx, b->in[0], b->workspace, count * sizeof(double));
}

/* One prepared op. The backend's own struct starts with this one. */
typedef struct tr_kernel tr_kernel;
struct tr_kernel {
    const char
        *impl; /* which implementation was chosen, for `trainer plan`; static or kernel-owned */
    const char *choice; /* which of a library's algorithms, where it says; NULL; kernel-owned */
    size_t workspace;   /* scratch bytes while it runs; shared by all kernels */
    unsigned rounds; /* bit j: of operand j, a parameter, it reads each value rounded to the type of
                           activations: a master may be so already */
    int npacked;
    tr_packing packed[TR_MAX_PACKED];
    /* Called once with final addresses, before the first run. Addresses are of the backend's
     * memory. */
    tr_status (*bind)(tr_kernel *k, const tr_binding *b);
    /* Fills the i-th packed copy from the bound master parameter; NULL where npacked is 0. */
    tr_status (*pack)(tr_kernel *k, int i);
    /* Optional. The way back: writes the bound master parameter from the i-th packed copy, so that
     * packing it anew gives the same copy. NULL: the master stays in memory. */
    tr_status (*unpack)(tr_kernel *k, int i);
    tr_status (*run)(tr_kernel *k, const tr_run *run);
    void (*close)(tr_kernel *k);
    /* Optional (NULL: not supported). Local. From the next run on, input operand `operand` is read
     * at `data` (64-byte aligned, same shape and layout), which the kernel must not write. Must not
     * allocate: it is called between runs to read a batch where the loader prepared it. */
    tr_status (*rebind)(tr_kernel *k, int operand, void *data);
};

typedef struct tr_device_kernels {
    /* What the kernels of one session share; `threads`: how many of the host's each may use. Two
     * teams of a context may be at work at once, each in a thread of the caller's. NULL: they share
     * the context as it is, which stands for the team. */
    tr_status (*open)(void *ctx, int threads, void **team);
    void (*close)(void *team); /* when its kernels are closed; NULL is fine */
    /* NULL when the op is there for activations of this type (tr_op_dtype), else why
     * not. */
    const char *(*unsupported)(void *ctx, const tr_op_def *def, tr_dtype type);
    /* A product that adds a residual may find that in its output's place (tr_graph_options). */
    bool residual_in_place;
    /* Operands may be part of wider rows, where the op's `pitched` says so (tr_graph_options). */
    bool parts;
    /* Products of gradients apply those of activations (tr_graph_options). */
    bool activation_gradient;
    /* Rows of 16-bit logits are to begin at multiples of so many bytes (tr_graph_options). */
    size_t row_align;
    /* Prepares op `op` of `g` (g->batch > 0, or an op that takes part in collectives). Allocates
     * nothing that grows with the model. */
    tr_status (*prepare)(void *team, const tr_graph *g, const tr_op *op, tr_kernel **out);
} tr_device_kernels;

#endif
