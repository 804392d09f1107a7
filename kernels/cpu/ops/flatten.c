/* Flatten and its gradient: a transposition of each sample between the stored (H, W, C) and the
 * flat (C, H, W) order, or a plain copy where both are the same order and the graph did not make it
 * a view. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    tr_transposition t;
    size_t size; /* bytes of an element */
} kernel;

static tr_status run_flatten(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const char *x = k->k.b.in[0];
    char *y = k->k.b.out[0];
    const size_t nbytes = k->t.rows * k->t.cols * k->size;
    if (k->t.rows == 1 || k->t.cols == 1) {
        memcpy(y, x, k->t.samples * nbytes);
        return TR_OK;
    }
    TR_PARALLEL(k->k.threads, k->t.samples)
    for (size_t i = 0; i < k->t.samples; i++)
        k->k.loops->transpose(k->size, x + i * nbytes, y + i * nbytes, k->t.rows, k->t.cols);
    return TR_OK;
}

tr_status tr_cpu_flatten(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open_steps(cpu, x, "own", run_flatten, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->t = tr_flatten_of(g, op);
    k->size = tr_dtype_size(x->dtype);
    *out = &k->k.base;
    return TR_OK;
}
