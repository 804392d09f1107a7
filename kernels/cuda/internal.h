/* What the parts of the CUDA backend share: the context, the head of every kernel, and the prepare
 * functions of all ops. Not for .cu files: these start from device.cuh. */
#ifndef TR_CUDA_INTERNAL_H
#define TR_CUDA_INTERNAL_H

#include "kernels/cuda/launch.h"
#include "runtime/graph/ops.h"
#include "runtime/graph/ops/list.h"
#include "runtime/device/backend.h"

typedef struct tr_cuda_blas tr_cuda_blas;     /* blas/blas.h: cuBLASLt handle, algorithm cache */
typedef struct tr_cuda_dnn tr_cuda_dnn;       /* dnn/dnn.h: cuDNN handle, plan cache */
typedef struct tr_cuda_memory tr_cuda_memory; /* memory.c: what is allocated */
typedef struct tr_cuda_pieces tr_cuda_pieces; /* copy.c: pinned buffers for copies */
typedef struct tr_cuda_stage tr_cuda_stage;   /* stage.c: the two slots of a session's batches */
typedef struct tr_cuda_sections tr_cuda_sections; /* section.c: a session's recorded graphs */
typedef struct tr_cuda_pace tr_cuda_pace;         /* pace.c: how far the host runs ahead */
typedef struct tr_cuda_monitor tr_cuda_monitor;   /* monitor.c: NVML */
typedef struct tr_cuda_memo tr_cuda_memo;         /* trial.c: what was found */

/* What is put into the stream now. */
typedef enum {
    TR_SECTION_CLOSED, /* belongs to no section */
    TR_SECTION_PLAIN,
    TR_SECTION_RECORDED,
    TR_SECTION_REPLAYED
} tr_cuda_section_state;

/* The context of an open backend. Dry: no library is open, no pointer but `o` is set, `sms` and
 * the like are those of an H100; only prepare may be called, and kernels are closed without having
 * been bound. */
typedef struct tr_cuda {
    tr_backend_options o;
    /* compute capability, multiprocessors, shared bytes a block may ask for */
    int major, minor, sms, max_shared;
    char device_name[128];
    cudaStream_t stream; /* kernels, updates: "the stream" */
    tr_cuda_memory *memory;
    tr_cuda_pieces *pieces;
    tr_cuda_blas *blas;
    tr_cuda_dnn *dnn;
    tr_cuda_stage *stages;      /* of all sessions */
    tr_cuda_sections *sections; /* of all sessions */
    tr_cuda_section_state section;
    tr_cuda_sections *in; /* whose section is open */
    tr_cuda_pace *pace;
    tr_cuda_monitor *monitor;
    tr_cuda_memo *memos;
    double *sums; /* ops/optimizer.c: partial sums of sum_squares, on the device */
} tr_cuda;

/* ---- Kernels ---- */

/* Head of every kernel struct that is made of our own kernels. */
typedef struct {
    tr_kernel base;
    tr_binding b;
    tr_cuda *cuda;
    tr_dtype dtype; /* of the activations */
} tr_cuda_kernel;

/* A kernel of `size` bytes that starts with tr_cuda_kernel, zeroed but for that head: its
 * activations are of the type of `like` (float32, bfloat16, float16); no workspace, nothing packed;
 * every operand can be rebound. Written to the pointer at `out`. */
TR_CUDA_C tr_status tr_cuda_kernel_open(tr_cuda *cuda, const tr_tensor *like, const char *impl,
                                        tr_status (*run)(tr_kernel *, const tr_run *), size_t size,
                                        void *out);

/* The same for kernels that take values of 8 bits, too. */
TR_CUDA_C tr_status tr_cuda_kernel_open_steps(tr_cuda *cuda, const tr_tensor *like,
                                              const char *impl,
                                              tr_status (*run)(tr_kernel *, const tr_run *),
                                              size_t size, void *out);

/* TR_UNSUPPORTED where a tensor of the op has more elements than kernels that count in 32 bits
 * reach. `what` it is: "that is pooled". */
TR_CUDA_C tr_status tr_cuda_check_count(const tr_op *op, size_t count, const char *what);

/* Operand i; NULL when absent. */
static inline const tr_tensor *tr_cuda_in(const tr_graph *g, const tr_op *op, int i)
{
    return i < op->nin && op->in[i] >= 0 ? &g->tensors[op->in[i]] : NULL;
}

static inline const tr_tensor *tr_cuda_out(const tr_graph *g, const tr_op *op, int i)
{
    return i < op->nout && op->out[i] >= 0 ? &g->tensors[op->out[i]] : NULL;
}

/* ---- The ops ---- */

typedef tr_status tr_cuda_prepare_fn(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                     tr_kernel **out);

/* Of every op of the list. Several ops may share one. */
#define X(op, kernel) TR_CUDA_C tr_cuda_prepare_fn tr_cuda_##kernel;
TR_OPS(X)
#undef X

/* ---- The parts of the backend that are not ops: each fills its share of tr_cuda_backend ---- */

/* memory.c */
TR_CUDA_C void *tr_cuda_alloc(void *ctx, tr_mem_kind kind, size_t nbytes);
TR_CUDA_C void *tr_cuda_borrow(void *ctx, tr_mem_kind kind, size_t nbytes,
                               const tr_device_lender *from);
TR_CUDA_C void tr_cuda_free(void *ctx, void *p);
TR_CUDA_C void *tr_cuda_host_alloc(void *ctx, tr_mem_kind kind, size_t nbytes);
TR_CUDA_C void tr_cuda_host_free(void *ctx, void *p);
TR_CUDA_C tr_status tr_cuda_zero(void *ctx, void *p, size_t nbytes);
TR_CUDA_C tr_status tr_cuda_copy(void *ctx, void *to, const void *from, size_t nbytes);
TR_CUDA_C tr_status tr_cuda_upload(void *ctx, void *to, const void *host, size_t nbytes);
TR_CUDA_C tr_status tr_cuda_download(void *ctx, void *host, const void *from, size_t nbytes);
TR_CUDA_C tr_status tr_cuda_finish(void *ctx);
/* stage.c */
TR_CUDA_C tr_status tr_cuda_stage_open(void *ctx, size_t nbytes, void **out);
TR_CUDA_C void tr_cuda_stage_close(void *stage);
TR_CUDA_C tr_status tr_cuda_stage_begin(void *stage);
TR_CUDA_C tr_status tr_cuda_stage_part(void *stage, const void *data, size_t nbytes, void **where);
TR_CUDA_C tr_status tr_cuda_stage_poll(void *stage, bool *done);
TR_CUDA_C int tr_cuda_stage_slot(const void *stage);
/* section.c */
TR_CUDA_C tr_status tr_cuda_sections_open(void *ctx, void **out);
TR_CUDA_C void tr_cuda_sections_close(void *sections);
TR_CUDA_C tr_status tr_cuda_section_begin(void *sections, uint64_t key, bool *replay);
TR_CUDA_C bool tr_cuda_section_recording(const void *sections);
TR_CUDA_C tr_status tr_cuda_section_recorded(void *sections, tr_status st, bool *was);
TR_CUDA_C tr_status tr_cuda_section_end(void *sections, tr_status st);
TR_CUDA_C void tr_cuda_sections_drop(void *ctx);
TR_CUDA_C void tr_cuda_sections_disable(void *ctx);
/* marks.c */
TR_CUDA_C tr_status tr_cuda_marks_open(void *ctx, size_t n, void **out);
TR_CUDA_C void tr_cuda_marks_close(void *marks);
TR_CUDA_C tr_status tr_cuda_mark(void *marks, size_t i);
TR_CUDA_C tr_status tr_cuda_marks_read(void *marks, double *seconds, size_t n);
/* report.c */
TR_CUDA_C tr_status tr_cuda_training_open(void *ctx, int threads, void **out);
TR_CUDA_C void tr_cuda_training_close(void *training);
TR_CUDA_C tr_cuda *tr_cuda_training_context(const void *training);
TR_CUDA_C tr_status tr_cuda_set_input(void *training, tr_control *c, const tr_control_input *in);
TR_CUDA_C tr_status tr_cuda_lap(void *training, tr_control *c, int lap);
TR_CUDA_C tr_status tr_cuda_report_begin(void *training, const tr_control *c, int slot);
TR_CUDA_C tr_status tr_cuda_report_poll(void *training, int slot, tr_control *out, bool *done);
/* pace.c */
TR_CUDA_C tr_status tr_cuda_pace_poll(void *ctx, bool *done);
TR_CUDA_C void tr_cuda_pace_close(tr_cuda *cuda);
/* monitor.c */
TR_CUDA_C bool tr_cuda_load(void *ctx, tr_device_load *out);
TR_CUDA_C void tr_cuda_monitor_close(tr_cuda *cuda);
/* ops/optimizer.c. sums_open: once the stream and memory are up; not in a dry context. */
TR_CUDA_C tr_status tr_cuda_sums_open(tr_cuda *cuda);
TR_CUDA_C void tr_cuda_sums_close(tr_cuda *cuda);
TR_CUDA_C tr_status tr_cuda_sum_squares(void *ctx, const float *g, size_t count, double *out);
/* wire.c: the backend's interface. */
TR_CUDA_C tr_status tr_cuda_wire_open(void *ctx, const tr_wire_part *parts, size_t nparts,
                                      void **out);
TR_CUDA_C tr_status tr_cuda_wire_run(void *wire, bool unpack);
TR_CUDA_C void tr_cuda_wire_close(void *wire);

TR_CUDA_C tr_status tr_cuda_squares_open(void *ctx, const float *g, const tr_range *ranges,
                                         size_t nranges, void **out);
TR_CUDA_C tr_status tr_cuda_squares_run(void *squares, double *out);
TR_CUDA_C void tr_cuda_squares_close(void *squares);
TR_CUDA_C tr_status tr_cuda_updater_open(void *training, const tr_update *u, void **out);
TR_CUDA_C void tr_cuda_updater_close(void *updater);
TR_CUDA_C tr_status tr_cuda_updater_decide(void *updater, tr_control *c);
TR_CUDA_C tr_status tr_cuda_updater_measure(void *updater, const tr_control *c);
TR_CUDA_C tr_status tr_cuda_updater_run(void *updater, const tr_control *c);
TR_CUDA_C tr_status tr_cuda_updater_swap_ema(void *updater);

#endif
