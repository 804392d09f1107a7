/* Dropout, forward and backward alike: the mask is made again from the sample's ordinal, which the
 * device reads from the control, and the element's place in the sample; drop_path: from the ordinal
 * alone. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/elementwise.h"

typedef struct {
    tr_cuda_kernel k;
    size_t samples, elements; /* of a sample */
    uint32_t stream;
    float p, scale;
    bool whole; /* samples */
} kernel;

static tr_status run_dropout(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_cuda_dropout_args a = {.x = k->k.b.in[0],
                                    .y = k->k.b.out[0],
                                    .samples = k->samples,
                                    .elements = k->elements,
                                    .key = tr_philox_key(run->seed, TR_RNG_DROPOUT, k->stream),
                                    .control = run->control,
                                    .ordinal = run->ordinal,
                                    .p = k->p,
                                    .scale = k->scale};
    return k->whole ? tr_cuda_drop_path_run(k->k.dtype, &a, k->k.cuda->stream)
                    : tr_cuda_dropout_run(k->k.dtype, &a, k->k.cuda->stream);
}

static tr_status open_dropout(tr_cuda *cuda, const tr_graph *g, const tr_op *op, bool whole,
                              tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, 0);
    const tr_dropout_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, t, "own", run_dropout, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->samples = (size_t)t->dims[0];
    k->elements = t->count / (k->samples ? k->samples : 1);
    k->stream = (uint32_t)op->layer_index;
    k->whole = whole;
    k->p = (float)a->p;
    k->scale = (float)(1.0 / (1.0 - a->p));
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cuda_dropout(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_dropout(cuda, g, op, false, out);
}

tr_status tr_cuda_drop_path(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_dropout(cuda, g, op, true, out);
}
