/* A trained weight rounded to int8: an output's, or all of it, is a row. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/quantize.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, D;
} kernel;

static tr_status run(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_quantize_rows(k->k.cuda->stream, k->k.b.in[0], k->k.b.out[0], k->rows, k->D);
}

tr_status tr_cuda_quantize_weight(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                  tr_kernel **out)
{
    const tr_tensor *w = tr_cuda_in(g, op, 0);
    const tr_quantize_weight_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, w->count, "that is rounded"));
    TR_TRY(tr_cuda_kernel_open(cuda, w, "own", run, sizeof *k, &k));
    k->rows = a->per_tensor ? 1 : (size_t)w->dims[0];
    k->D = w->count / k->rows;
    *out = &k->k.base;
out:
    return st;
}
