/* What the CPU kernels share: the context, and the prepare functions of all ops. */
#ifndef TR_CPU_INTERNAL_H
#define TR_CPU_INTERNAL_H

#include "kernels/cpu/cpu.h"
#include "runtime/graph/ops.h"
#include "runtime/graph/ops/list.h"

struct dnnl_engine;
struct dnnl_stream;
struct tr_cpu_loops; /* loops/loops.h: one table of loops an instruction set level */

/* What the kernels of one session share: the context's engine and loops, and a stream and a number
 * of threads of its own. */
typedef struct tr_cpu {
    int threads;
    int isa;          /* tr_cpu_isa_level the own loops run at */
    bool bf16;        /* oneDNN has bf16 kernels for this CPU */
    bool bf16_faster; /* whose products take less time than float32's */
    bool bf16_pairs;  /* by VDPBF16PS, not by tiles (AMX): own products of small matrices */
    struct dnnl_engine *engine; /* dnnl_engine_t and dnnl_stream_t, so that kernels that need */
    struct dnnl_stream *stream; /* no oneDNN do not include it */
    const struct tr_cpu_loops *loops;
} tr_cpu;

/* The loops of the level, of loops/loops.c. */
const struct tr_cpu_loops *tr_cpu_loops_at(int isa);

typedef tr_status tr_cpu_prepare_fn(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out);

/* Of every op of the list. Several ops may share one. */
#define X(op, kernel) tr_cpu_prepare_fn tr_cpu_##kernel;
TR_OPS(X)
#undef X

/* Of ops/optimizer.c: the functions of tr_device_training. */
tr_status tr_cpu_training_open(void *ctx, int threads, void **out);
void tr_cpu_training_close(void *training);
tr_status tr_cpu_updater_open(void *training, const tr_update *u, void **out);
void tr_cpu_updater_close(void *updater);
tr_status tr_cpu_updater_decide(void *updater, tr_control *c);
tr_status tr_cpu_updater_measure(void *updater, const tr_control *c);
tr_status tr_cpu_updater_run(void *updater, const tr_control *c);
tr_status tr_cpu_updater_swap_ema(void *updater);

#endif
