/* The class token: a row of weights before each sample's rows. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/tokens.h"

typedef struct {
    tr_cuda_kernel k;
    size_t samples, rows, features;
} kernel;

static tr_status run_token(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_class_token_run(k->k.cuda->stream, k->k.dtype, k->k.b.in[0], k->k.b.in[1],
                                   k->k.b.out[0], k->samples, k->rows, k->features);
}

tr_status tr_cuda_class_token(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, tr_cuda_out(g, op, 0)->count, "of rows"));
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own: copies", run_token, sizeof *k, &k));
    k->samples = (size_t)x->dims[0];
    k->rows = (size_t)x->dims[1];
    k->features = (size_t)x->dims[2];
    *out = &k->k.base;
out:
    return st;
}
