/* The class token: a row of weights before each sample's rows. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t samples, rows, F; /* rows of a sample of x */
} kernel;

static tr_status run_token(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t row = k->F * tr_dtype_size(o->dtype);
    char *first = o->b.out[0];
    if (k->samples) o->loops->gather_rows(o->dtype, o->b.in[1], k->F, &(int32_t){0}, 1, first);
    TR_PARALLEL(o->threads, k->samples)
    for (size_t i = 0; i < k->samples; i++) {
        char *to = first + i * (k->rows + 1) * row;
        if (i > 0) memcpy(to, first, row);
        memcpy(to + row, (const char *)o->b.in[0] + i * k->rows * row, k->rows * row);
    }
    return TR_OK;
}

tr_status tr_cpu_class_token(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_loop_kernel_open(cpu, x, "own: copies", run_token, sizeof *k, &k));
    k->samples = (size_t)x->dims[0];
    k->rows = (size_t)x->dims[1];
    k->F = (size_t)x->dims[2];
    *out = &k->k.base;
out:
    return st;
}
