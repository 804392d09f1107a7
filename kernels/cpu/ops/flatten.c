/* Flatten and its gradient: a transposition of each sample between the stored (H, W, C) and the
 * flat (C, H, W) order, or a plain copy where both are the same order and the graph did not make it
 * a view. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t samples, rows, cols, size; /* a sample is rows x cols as read; bytes of an element */
} kernel;

static tr_status run_flatten(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const char *x = k->k.b.in[0];
    char *y = k->k.b.out[0];
    const size_t nbytes = k->rows * k->cols * k->size;
    if (k->rows == 1 || k->cols == 1) {
        memcpy(y, x, k->samples * nbytes);
        return TR_OK;
    }
    TR_PARALLEL(k->k.threads, k->samples)
    for (size_t i = 0; i < k->samples; i++)
        k->k.loops->transpose(k->size, x + i * nbytes, y + i * nbytes, k->rows, k->cols);
    return TR_OK;
}

tr_status tr_cpu_flatten(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0), *y = tr_loop_out(g, op, 0);
    const tr_tensor *image = x->layout == TR_LAYOUT_CHANNELS_LAST   ? x
                             : y->layout == TR_LAYOUT_CHANNELS_LAST ? y
                                                                    : NULL;
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, x, "own", run_flatten, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->samples = (size_t)x->dims[0];
    k->size = tr_dtype_size(x->dtype);
    k->rows = 1;
    k->cols = x->count / (k->samples ? k->samples : 1);
    if (image) {
        const size_t channels = (size_t)image->dims[1], area = k->cols / channels;
        k->rows = image == x ? area : channels;
        k->cols = image == x ? channels : area;
    }
    *out = &k->k.base;
    return TR_OK;
}
