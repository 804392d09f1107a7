/* The backend interface: how a device holds memory, prepares and runs the ops of a graph, and updates
 * parameters. A const struct of functions; kernels/cpu and kernels/cuda each export one. All Local
 * unless a comment says otherwise.
 *
 * What a backend runs, it runs *in stream order*: kernels, copies and updates take effect one after
 * the other, each seeing what those before it wrote, but possibly after the call returned. On the host
 * (tr_backend.host) everything is done when the call returns. Arrays that kernels work on lie in the
 * backend's memory, which the host reads and writes only through the functions below. */
#ifndef TR_BACKEND_H
#define TR_BACKEND_H

#include "runtime/control.h"
#include "runtime/graph/graph.h"

/* How a running plan reaches the collectives without knowing them. */
typedef struct tr_hooks {
    void *ctx;
    int rank, size;
    /* *Collective.* Every rank gives `nbytes`; recv holds size * nbytes in rank order. Both in the
     * backend's memory; in stream order. */
    tr_status (*gather)(void *ctx, const void *send, void *recv, size_t nbytes);
    void (*bucket_ready)(void *ctx, int bucket); /* gradients of buckets up to this one are final */
    tr_status (*poll)(void *ctx); /* between kernels: let transfers progress, and the device catch up */
} tr_hooks;

/* What changes from one run of a plan to the next. */
typedef struct tr_run {
    uint64_t seed;
    /* On the host: as in the control. A device's kernels run later than they are put into the stream,
     * and again when that is replayed: they read both from `control`. */
    uint64_t ordinal;   /* tr_control_input.ordinal */
    float loss_scale;   /* multiplies the loss's gradient */
    const tr_control *control; /* in the backend's memory; may be NULL on the host, and in evaluation */
    bool accumulate;    /* add to the gradient buffer; else overwrite it */
    bool last;          /* the step's last micro-batch: buckets become ready */
    bool params_changed; /* parameters were updated since the last run of any plan: refresh packed copies */
    double *tally;      /* [TR_TALLY] summed into by the loss op; in the backend's memory */
    int64_t *confusion; /* [classes * classes], row = true class; NULL: not wanted; as tally */
    const tr_hooks *hooks; /* NULL with one rank */
} tr_run;

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
    /* Called once with final addresses, before the first run. Addresses are of the backend's memory. */
    tr_status (*bind)(tr_kernel *k, const tr_binding *b);
    tr_status (*pack)(tr_kernel *k); /* fills the packed copy from the bound master parameter; NULL: none */
    tr_status (*run)(tr_kernel *k, const tr_run *run);
    void (*close)(tr_kernel *k);
    /* Optional (NULL: not supported). Local. From the next run on, input operand `operand` is read at
     * `data` (64-byte aligned, same shape and layout), which the kernel must not write. Must not allocate:
     * it is called between runs to read a batch where the loader prepared it. */
    tr_status (*rebind)(tr_kernel *k, int operand, void *data);
};

/* [begin, end) of the flat parameter space with one weight decay (lr not yet multiplied in): decoupled;
 * SGD: L2 as PyTorch's. Multiples of 16 elements. */
typedef struct tr_segment {
    size_t begin, end;
    double decay;
} tr_segment;

/* The optimizer over the segments that a rank owns, of arrays that span the flat parameter space. */
typedef struct tr_update {
    int kind;     /* tr_optimizer_kind */
    double beta1, beta2, eps, momentum;
    bool nesterov;
    double ema_decay;  /* with ema != NULL: ema = d * ema + (1 - d) * w */
    float *w;
    const float *g;
    float *m, *v;      /* moments the optimizer has; else NULL */
    float *ema;
    const tr_segment *segments; /* ascending; not owned, must outlive the updater */
    size_t nsegments;
} tr_update;

typedef struct tr_backend_options {
    int threads;
    int isa;            /* CPU: 0: the best this CPU has; else an upper bound, agreed over the ranks (tr_cpu_isa) */
    int device;         /* GPU: index among the visible ones */
    bool tf32;          /* GPU: float32 products may round their operands to TF32 */
    bool deterministic; /* GPU: only kernels that give the same bits every time */
    bool benchmark;     /* GPU: candidates for products and convolutions are timed; else the library's first.
                         * Never with deterministic */
    bool graphs;        /* GPU: sections are recorded and replayed */
    size_t workspace;   /* GPU: the most scratch bytes that one op may ask for */
    bool dry;           /* only plan: no device is needed or touched, nothing can be run */
} tr_backend_options;

/* What the device's own counters say. */
typedef struct tr_device_load {
    size_t used, total; /* bytes of device memory, of all processes */
    size_t held;        /* of these, what this context allocated, TR_MEM_OTHER apart */
    double utilization; /* percent of the last sample period in which a kernel ran; NaN: not known */
} tr_device_load;

typedef struct tr_backend {
    const char *name; /* "cpu", "cuda" */
    bool host;        /* kernels work on the host's memory, and are done when they return */
    size_t pinned;    /* bytes of the host's memory that an open context keeps for copies (TR_MEM_IO) */
    /* How many devices this process could use; 0 with the reason in `why`. Touches none. */
    int (*devices)(char *why, size_t size);
    /* A text that names the device for all processes of the machine (its place on the PCI bus); NULL on
     * the host. Touches no device. */
    tr_status (*device_id)(int device, char *buf, size_t size);
    /* TR_UNSUPPORTED with the reason where this device lacks the precision; NULL on the host. Touches no device. */
    tr_status (*computes)(int device, tr_precision precision);
    tr_status (*open)(const tr_backend_options *o, void **ctx);
    void (*close)(void *ctx);
    /* NULL when the op is there for this graph's precision, else why not. */
    const char *(*unsupported)(void *ctx, const tr_op_def *def, tr_precision precision);
    /* Prepares op `op` of `g` (g->batch > 0, or an op that takes part in collectives). Allocates
     * nothing that grows with the model. */
    tr_status (*prepare)(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out);
    void (*describe)(void *ctx, char *buf, size_t size); /* "AVX-512 BF16 AMX, oneDNN 2.6.3, 1 thread" */
    bool (*load)(void *ctx, tr_device_load *out); /* false: nothing can be said (the CPU) */

    /* ---- Memory. Set-up only, but for zero, copy and download. */
    /* Zeroed, 256-byte aligned (CPU: 64), counted under `kind`; NULL with an error record. */
    void *(*alloc)(void *ctx, tr_mem_kind kind, size_t nbytes);
    void (*free)(void *ctx, void *p); /* NULL is fine */
    /* Host memory that copies to the device can run from in the background. */
    void *(*host_alloc)(void *ctx, tr_mem_kind kind, size_t nbytes);
    void (*host_free)(void *ctx, void *p);
    tr_status (*zero)(void *ctx, void *p, size_t nbytes);                  /* in stream order */
    tr_status (*copy)(void *ctx, void *to, const void *from, size_t nbytes); /* within the backend's memory, in stream order */
    /* In stream order; done when they return. */
    tr_status (*upload)(void *ctx, void *to, const void *host, size_t nbytes);
    tr_status (*download)(void *ctx, void *host, const void *from, size_t nbytes);
    tr_status (*finish)(void *ctx); /* returns when all that was put into the stream is done */

    /* ---- Batches. Copied into the one of two slots that the run before last has read, beside the
     * kernels; the CPU reads batches where they lie. */
    tr_status (*stage_reserve)(void *ctx, size_t nbytes); /* a slot's size; once, at set-up */
    tr_status (*stage_begin)(void *ctx);                  /* the next slot; once a micro-batch, an empty one too */
    /* The next part of a batch, from host_alloc'ed memory: where kernels put into the stream from now
     * on find it (256-byte aligned; CPU: `data` itself). */
    tr_status (*stage)(void *ctx, const void *data, size_t nbytes, void **where);
    /* *done: the host's copies of all batches may be overwritten, and all that came before the last two
     * is done. Does not wait. */
    tr_status (*stage_poll)(void *ctx, bool *done);

    /* ---- The step: all in stream order. */
    tr_status (*set_input)(void *ctx, tr_control *c, const tr_control_input *in); /* where in->first: zeroes the sums, then sums[TR_SUM_STOP] = in->stop */
    /* tr_control_lap at this point of the stream; within sections, too. */
    tr_status (*lap)(void *ctx, tr_control *c, int lap);
    /* *out = sum of squares of g[0..count) in double; +inf or NaN iff an element is not finite. The
     * same bits every time. */
    tr_status (*sum_squares)(void *ctx, const float *g, size_t count, double *out);
    tr_status (*updater_open)(void *ctx, const tr_update *u, void **out);
    void (*updater_close)(void *updater);
    /* Looks for the first gradient that is not finite where the sums say there is one, and decides
     * (tr_control_decide). */
    tr_status (*updater_decide)(void *updater, tr_control *c);
    /* Updates where c->apply. adamw, sgd: PyTorch's; lion: Chen et al. 2023. */
    tr_status (*updater_run)(void *updater, const tr_control *c);
    /* Weights and their average change places. */
    tr_status (*updater_swap_ema)(void *updater);
    /* The control as it is at this point of the stream, to be had later under `slot` (0 or 1). */
    tr_status (*report_begin)(void *ctx, const tr_control *c, int slot);
    /* *done: it is there, in *out. Does not wait. */
    tr_status (*report_poll)(void *ctx, int slot, tr_control *out, bool *done);

    /* ---- Sections: what is put into the stream between begin and end is the same every time for one
     * key. The first time it runs as it comes, the second time it is recorded, from then on replayed.
     * *replay: leave out what stands between. */
    tr_status (*section_begin)(void *ctx, uint64_t key, bool *replay);
    tr_status (*section_end)(void *ctx, tr_status st); /* st: how what stood between went; returned, or the launch's error */
    /* Forgets all that was recorded, when it has run: each key's next time is a first one. NULL on the host. To
     * be called before anything is closed whose work was recorded: NCCL waits for such recordings to go. */
    void (*sections_drop)(void *ctx);

    /* Between kernels. *done: the device has come near enough that the next ones can be put into the stream
     * without the call waiting for room. Does not wait. NULL on the host. */
    tr_status (*pace_poll)(void *ctx, bool *done);

    /* ---- Time by op. */
    tr_status (*marks_reserve)(void *ctx, size_t n);
    tr_status (*mark)(void *ctx, size_t i);                           /* in stream order */
    tr_status (*marks_read)(void *ctx, double *seconds, size_t n);    /* seconds[i]: from mark i to i + 1, of n + 1 marks; waits */

    /* The device stream that all this goes into, for collectives that work on the device; NULL on the host. */
    void *(*stream)(void *ctx);
} tr_backend;

#endif
