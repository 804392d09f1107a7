/* Adaptive average pooling, padding, upsampling and their gradients: one kernel over lists of taps,
 * which are copied to the device when it is prepared (loops/resample.cu).
 *
 * Not cuDNN's resample operations: they know neither padding nor uneven windows, and their
 * gradients may differ from run to run. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/resample.h"

typedef struct {
    tr_cuda_kernel head;
    tr_cuda_resampling p;
    void *lists[2]; /* on the device */
} kernel;

static tr_status run_resample(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    (void)run;
    return tr_cuda_resample_run(k->head.cuda->stream, &k->p, k->head.b.in[0], k->head.b.out[0]);
}

static void close_resample(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    for (int i = 0; i < 2; i++) tr_cuda_free(k->head.cuda, k->lists[i]);
    tr_free(k);
}

/* Heads and taps of an axis are one block. */
static tr_status copy_lists(kernel *k, const tr_graph *g, const tr_op *op, int axis)
{
    tr_taps t = {0};
    tr_status st = TR_OK;
    TR_TRY(tr_resample_taps(g, op, axis, &t));
    if (k->head.cuda->o.dry) goto out;
    const size_t heads = (size_t)((const char *)t.taps - (const char *)t.begin),
                 nbytes = heads + t.count * sizeof *t.taps;
    k->lists[axis] = tr_cuda_alloc(k->head.cuda, TR_MEM_OTHER, nbytes);
    TR_HAVE(k->lists[axis]);
    TR_TRY(tr_cuda_upload(k->head.cuda, k->lists[axis], t.begin, nbytes));
    k->p.begin[axis] = k->lists[axis];
    k->p.taps[axis] = (const tr_tap *)((const char *)k->lists[axis] + heads);
out:
    tr_free(t.begin);
    return st;
}

tr_status tr_cuda_resample(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0), *y = tr_cuda_out(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, x->count > y->count ? x->count : y->count, "of an image"));
    const tr_places from = tr_places_of(x), to = tr_places_of(y);
    TR_NEED(from.channels == to.channels, TR_UNSUPPORTED, "layer %s: channels that do not stay",
            op->layer);
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own: by taps", run_resample, sizeof *k, &k));
    k->head.base.close = close_resample;
    k->p = (tr_cuda_resampling){.type = x->dtype,
                                .batch = (unsigned)x->dims[0],
                                .channels = (unsigned)from.channels,
                                .value = tr_resample_value(op)};
    for (int i = 0; i < 2; i++) {
        k->p.from[i] = (int)from.size[i];
        k->p.to[i] = (int)to.size[i];
        TR_TRY(copy_lists(k, g, op, i));
    }
    *out = &k->head.base;
out:
    if (st != TR_OK && k) close_resample(&k->head.base);
    return st;
}
