/* What the CPU kernels share: the context, and the one table from op names to prepare functions. */
#ifndef TR_CPU_INTERNAL_H
#define TR_CPU_INTERNAL_H

#include "kernels/cpu/cpu.h"
#include "runtime/graph/ops.h"

struct dnnl_engine;
struct dnnl_stream;
struct tr_cpu_loops; /* loops/loops.h: one table of loops an instruction set level */

/* What the kernels of one session share: the context's engine and loops, and a stream and a number
 * of threads of its own. */
typedef struct tr_cpu {
    int threads;
    int isa;                     /* tr_cpu_isa_level the own loops run at */
    bool bf16;                   /* oneDNN has bf16 kernels for this CPU */
    struct dnnl_engine *engine;  /* dnnl_engine_t and dnnl_stream_t, so that kernels that need */
    struct dnnl_stream *stream;  /* no oneDNN do not include it */
    const struct tr_cpu_loops *loops;
} tr_cpu;

/* The loops of the level, of loops/loops.c. */
const struct tr_cpu_loops *tr_cpu_loops_at(int isa);

typedef tr_status tr_cpu_prepare_fn(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out);

/* op name, prepare function. One line an op. */
#define TR_CPU_OPS(X)                                                                              \
    X("linear", tr_cpu_linear)                                                                     \
    X("linear.grad_input", tr_cpu_linear_grad_input)                                               \
    X("linear.grad_weight", tr_cpu_linear_grad_weight)                                             \
    X("conv2d", tr_cpu_conv2d)                                                                     \
    X("conv2d.grad_input", tr_cpu_conv2d_grad_input)                                               \
    X("conv2d.grad_weight", tr_cpu_conv2d_grad_weight)                                             \
    X("maxpool2d", tr_cpu_maxpool2d)                                                               \
    X("maxpool2d.grad", tr_cpu_maxpool2d_grad)                                                     \
    X("avgpool2d", tr_cpu_avgpool2d)                                                               \
    X("avgpool2d.grad", tr_cpu_avgpool2d_grad)                                                     \
    X("global_avgpool", tr_cpu_global_avgpool)                                                     \
    X("global_avgpool.grad", tr_cpu_global_avgpool_grad)                                           \
    X("batchnorm.stats", tr_cpu_batchnorm_stats)                                                   \
    X("batchnorm.merge", tr_cpu_batchnorm_merge)                                                   \
    X("batchnorm", tr_cpu_batchnorm)                                                               \
    X("batchnorm.infer", tr_cpu_batchnorm_infer)                                                   \
    X("batchnorm.grad_stats", tr_cpu_batchnorm_grad_stats)                                         \
    X("batchnorm.grad_merge", tr_cpu_batchnorm_grad_merge)                                         \
    X("batchnorm.grad_input", tr_cpu_batchnorm_grad_input)                                         \
    X("layernorm", tr_cpu_layernorm)                                                               \
    X("layernorm.grad", tr_cpu_layernorm_grad)                                                     \
    X("relu", tr_cpu_activation)                                                                   \
    X("gelu", tr_cpu_activation)                                                                   \
    X("silu", tr_cpu_activation)                                                                   \
    X("sigmoid", tr_cpu_activation)                                                                \
    X("tanh", tr_cpu_activation)                                                                   \
    X("relu.grad", tr_cpu_activation_grad)                                                         \
    X("gelu.grad", tr_cpu_activation_grad)                                                         \
    X("silu.grad", tr_cpu_activation_grad)                                                         \
    X("sigmoid.grad", tr_cpu_activation_grad)                                                      \
    X("tanh.grad", tr_cpu_activation_grad)                                                         \
    X("softmax", tr_cpu_softmax)                                                                   \
    X("softmax.grad", tr_cpu_softmax_grad)                                                         \
    X("flatten", tr_cpu_flatten)                                                                   \
    X("flatten.grad", tr_cpu_flatten)                                                              \
    X("dropout", tr_cpu_dropout)                                                                   \
    X("dropout.grad", tr_cpu_dropout)                                                              \
    X("embedding", tr_cpu_embedding)                                                               \
    X("embedding.grad", tr_cpu_embedding_grad)                                                     \
    X("add", tr_cpu_add)                                                                           \
    X("concat", tr_cpu_concat)                                                                     \
    X("concat.grad", tr_cpu_concat_grad)                                                           \
    X("cross_entropy", tr_cpu_cross_entropy)                                                       \
    X("mse", tr_cpu_elementwise_loss)                                                              \
    X("bce", tr_cpu_elementwise_loss)

#define X(name, fn) tr_cpu_prepare_fn fn;
TR_CPU_OPS(X)
#undef X

/* Of ops/optimizer.c: the functions of tr_device_training. */
tr_status tr_cpu_training_open(void *ctx, int threads, void **out);
void tr_cpu_training_close(void *training);
tr_status tr_cpu_updater_open(void *training, const tr_update *u, void **out);
void tr_cpu_updater_close(void *updater);
tr_status tr_cpu_updater_decide(void *updater, tr_control *c);
tr_status tr_cpu_updater_run(void *updater, const tr_control *c);
tr_status tr_cpu_updater_swap_ema(void *updater);

#endif
