/* The backend interface: a device in parts. What it is and how it is opened is here; each part is a
 * const struct of functions of its own (memory.h, stream.h, kernels.h, training.h). A part that a
 * device lacks is NULL, and only who needs it asks. kernels/cpu and kernels/cuda each export one
 * tr_backend. All Local unless a comment says otherwise.
 *
 * What a backend runs, it runs *in stream order*: kernels, copies and updates take effect one after
 * the other, each seeing what those before it wrote, but possibly after the call returned. On the
 * host (tr_backend.host) everything is done when the call returns. Arrays that kernels work on lie
 * in the backend's memory, which the host reads and writes only through tr_device_memory. */
#ifndef TR_BACKEND_H
#define TR_BACKEND_H

#include "runtime/device/kernels.h"
#include "runtime/device/memory.h"
#include "runtime/device/stream.h"
#include "runtime/device/training.h"

typedef struct tr_backend_options {
    int isa;            /* CPU: 0: the best this CPU has; else an upper bound, agreed over the ranks
                           (tr_cpu_isa) */
    int device;         /* GPU: index among the visible ones */
    bool tf32;          /* GPU: float32 products may round their operands to TF32 */
    bool deterministic; /* GPU: only kernels that give the same bits every time */
    bool benchmark;   /* GPU: candidates for products and convolutions are timed; else the library's
                       * first.   Never with deterministic */
    bool graphs;      /* GPU: sections are recorded and replayed */
    size_t workspace; /* GPU: the most scratch bytes that one op may ask for */
    bool dry;         /* only plan: no device is needed or touched, nothing can be run */
} tr_backend_options;

/* What the device's own counters say. */
typedef struct tr_device_load {
    size_t used, total; /* bytes of device memory, of all processes */
    size_t held;        /* of these, what this context allocated, TR_MEM_OTHER apart */
    double
        utilization; /* percent of the last sample period in which a kernel ran; NaN: not known */
} tr_device_load;

#define TR_GPU_ID       64
#define TR_GPU_ID_APART "/"

typedef struct tr_backend {
    const char *name; /* "cpu", "cuda" */
    bool host;        /* kernels work on the host's memory, and are done when they return */
    size_t
        pinned; /* bytes of the host's memory that an open context keeps for copies (TR_MEM_IO) */
    /* How many devices this process could use; 0 with the reason in `why`. Touches none. NULL on
     * the host. */
    int (*devices)(char *why, size_t size);
    /* A text that names the device for all processes of the machine: its place on the PCI bus and,
     * behind TR_GPU_ID_APART, what tells instances of one GPU (MIG) apart, left out where that
     * cannot be found out; at most TR_GPU_ID bytes. NULL on the host. Touches no device. */
    tr_status (*device_id)(int device, char *buf, size_t size);
    /* TR_UNSUPPORTED with the reason where this device lacks the precision; NULL on the host.
     * Touches no device. */
    tr_status (*computes)(int device, tr_precision precision);
    tr_status (*open)(const tr_backend_options *o, void **ctx);
    void (*close)(void *ctx);
    void (*describe)(void *ctx, char *buf,
                     size_t size); /* "AVX-512 BF16 AMX, oneDNN 2.6.3, 1 thread" */
    bool (*load)(void *ctx,
                 tr_device_load *out); /* false: nothing can be said; NULL: never can (the CPU) */

    const tr_device_memory *memory;
    const tr_device_kernels *kernels;
    const tr_device_stream *stream;     /* NULL: all is done when a call returns */
    const tr_device_sections *sections; /* NULL: nothing is recorded */
    const tr_device_staging *staging;   /* NULL: batches are read where they lie */
    const tr_device_marks *marks;       /* NULL: ops cannot be timed */
    const tr_device_training *training; /* NULL: it only runs plans */
} tr_backend;

/* ---- For callers to whom it is all the same whether a device has the part ---- */

static inline tr_status tr_device_finish(const tr_backend *b, void *ctx)
{
    return b->stream ? b->stream->finish(ctx) : TR_OK;
}

static inline tr_status tr_team_open(const tr_backend *b, void *ctx, int threads, void **team)
{
    *team = b->kernels->open ? NULL : ctx; /* where that fails there is none to close */
    return b->kernels->open ? b->kernels->open(ctx, threads, team) : TR_OK;
}

static inline void tr_team_close(const tr_backend *b, void *team)
{
    if (b->kernels->open) b->kernels->close(team);
}

static inline void tr_sections_drop(const tr_backend *b, void *ctx)
{
    if (b->sections) b->sections->drop(ctx);
}

static inline void tr_sections_disable(const tr_backend *b, void *ctx)
{
    if (b->sections) b->sections->disable(ctx);
}

#endif
