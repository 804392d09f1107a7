/* What the batchnorm kernels, forward and backward, share. */
#ifndef TR_CPU_BATCHNORM_H
#define TR_CPU_BATCHNORM_H

#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t rows, C, chunk_rows, chunks;
    size_t pitch; /* elements from one row of x to the next */
    size_t ranks;
    double eps, momentum;
    tr_act act;
    bool update_states;
} tr_batchnorm_kernel;

/* Shapes from operand `x`, which is (N, C) or (N, C, H, W) stored channels-last; N may be 0. */
tr_status tr_batchnorm_open(tr_cpu *cpu, const tr_graph *g, const tr_op *op, int x,
                            const char *impl, tr_status (*run)(tr_kernel *, const tr_run *),
                            tr_batchnorm_kernel **out);

#endif
