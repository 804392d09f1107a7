/* Products of equal shapes, or with a factor for each channel of an image, and the gradient of
 * these factors. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/elementwise.h"

typedef struct {
    tr_cuda_kernel k;
    size_t samples, places, channels; /* equal shapes: all are channels of one place */
} kernel;

static tr_status run_mul(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_mul_run(k->k.dtype, k->k.b.in[0], k->k.b.in[1], k->k.b.out[0], k->samples,
                           k->places, k->channels, k->k.cuda->stream);
}

static tr_status run_sums(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_mul_sums_run(k->k.dtype, k->k.b.in[0], k->k.b.in[1], k->k.b.out[0], k->samples,
                                k->places, k->channels, k->k.cuda->stream);
}

/* `x` is the image, `factor` what it is multiplied with. */
static tr_status prepare(tr_cuda *cuda, const tr_op *op, const tr_tensor *x,
                         const tr_tensor *factor, tr_status (*run)(tr_kernel *, const tr_run *),
                         tr_kernel **out)
{
    const bool equal = factor->count == x->count;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(equal || (x->layout == TR_LAYOUT_CHANNELS_LAST && x->dims[0] == factor->dims[0] &&
                      factor->count == (size_t)(x->dims[0] * x->dims[1])),
            TR_UNSUPPORTED, "layer %s: %zu factors for %zu elements", op->layer, factor->count,
            x->count);
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run, sizeof *k, &k));
    const bool flat = equal && run == run_mul;
    k->samples = flat ? 1 : (size_t)x->dims[0];
    k->channels = flat ? x->count : (size_t)x->dims[1];
    k->places = flat ? 1 : x->count / (k->samples * k->channels > 0 ? k->samples * k->channels : 1);
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cuda_mul(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, op, tr_cuda_in(g, op, 0), tr_cuda_in(g, op, 1), run_mul, out);
}

tr_status tr_cuda_mul_grad_scale(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, op, tr_cuda_in(g, op, 0), tr_cuda_out(g, op, 0), run_sums, out);
}
