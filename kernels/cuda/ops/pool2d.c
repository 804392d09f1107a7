/* Maximum and average pooling over windows, and their gradients: our own gathering kernels
 * (loops/pool.cu).
 *
 * Not cuDNN's resample operations, as the project asks of pooling what their documentation does not
 * promise: that gradients are the same bits every time (windows that overlap), that a maximum keeps
 * NaN, that ties go to the first place as in PyTorch and on the CPU, and a gradient from indices
 * alone (cuDNN's maximum wants x and y kept, or an index tensor of its own for few windows).
 * Pooling is bound by memory: kernels that read and write once leave an engine nothing to win. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/pool.h"

typedef struct {
    tr_cuda_kernel head;
    tr_cuda_pool pool;
    bool to_signed; /* of 8 bits: y's type, and x's scale over y's */
    float factor;
} pool_kernel;

static tr_status run_max(tr_kernel *base, const tr_run *run)
{
    const pool_kernel *k = (const pool_kernel *)base;
    const tr_binding *b = &k->head.b;
    (void)run;
    return tr_cuda_max_pool(k->head.cuda->stream, &k->pool, b->in[0], b->out[0], b->out[1]);
}

static tr_status run_max_grad(tr_kernel *base, const tr_run *run)
{
    const pool_kernel *k = (const pool_kernel *)base;
    const tr_binding *b = &k->head.b;
    (void)run;
    return tr_cuda_max_pool_grad(k->head.cuda->stream, &k->pool, b->in[0], b->in[1], b->out[0]);
}

static tr_status run_avg(tr_kernel *base, const tr_run *run)
{
    const pool_kernel *k = (const pool_kernel *)base;
    (void)run;
    return tr_cuda_avg_pool(k->head.cuda->stream, &k->pool, k->head.b.in[0], k->head.b.out[0]);
}

static tr_status run_steps(tr_kernel *base, const tr_run *run)
{
    const pool_kernel *k = (const pool_kernel *)base;
    (void)run;
    return tr_cuda_avg_pool_steps(k->head.cuda->stream, &k->pool, k->to_signed, k->factor,
                                  k->head.b.in[0], k->head.b.out[0]);
}

static tr_status run_avg_grad(tr_kernel *base, const tr_run *run)
{
    const pool_kernel *k = (const pool_kernel *)base;
    (void)run;
    return tr_cuda_avg_pool_grad(k->head.cuda->stream, &k->pool, k->head.b.in[0], k->head.b.out[0]);
}

/* One window that is the image. */
static bool is_whole(const tr_op *op)
{
    return tr_op_place(op->def) == TR_OP_global_avgpool_int8;
}

/* x: the larger image, y: the pooled one. Indices: of a maximum, else NULL. */
static tr_status prepare(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x, int y,
                         const tr_tensor *indices, tr_status (*run)(tr_kernel *, const tr_run *),
                         tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *tx = &g->tensors[x], *ty = &g->tensors[y];
    const tr_pool2d_attrs all = {.kernel = {tx->dims[2], tx->dims[3]}, .stride = {1, 1}},
                          *a = is_whole(op) ? &all : op->attrs;
    const int64_t window = a->kernel[0] * a->kernel[1];
    pool_kernel *k = NULL;
    TR_TRY(
        tr_cuda_check_count(op, tx->count > ty->count ? tx->count : ty->count, "that is pooled"));
    TR_NEED(tx->layout == TR_LAYOUT_CHANNELS_LAST && ty->layout == TR_LAYOUT_CHANNELS_LAST,
            TR_UNSUPPORTED, "layer %s: pooling of what is not stored channels-last", op->layer);
    if (indices)
        TR_NEED(indices->dtype == TR_I32 || (indices->dtype == TR_U8 && window <= 256), TR_INTERNAL,
                "layer %s: indices of type %s for a window of %lld places", op->layer,
                tr_dtype_name(indices->dtype), (long long)window);
    TR_TRY((run == run_max || run == run_steps ? tr_cuda_kernel_open_steps : tr_cuda_kernel_open)(
        cuda, tx, "own: by windows", run, sizeof *k, &k));
    k->pool = (tr_cuda_pool){.type = tx->dtype,
                             .batch = (unsigned)tx->dims[0],
                             .channels = (unsigned)tx->dims[1],
                             .include_pad = a->count_include_pad,
                             .wide = indices && indices->dtype == TR_I32};
    for (int i = 0; i < 2; i++) {
        k->pool.size[i] = (int)tx->dims[2 + i];
        k->pool.result[i] = (int)ty->dims[2 + i];
        k->pool.kernel[i] = (int)a->kernel[i];
        k->pool.stride[i] = (int)a->stride[i];
        k->pool.padding[i] = (int)a->padding[i];
        k->pool.end[i] = (int)(a->padding[i] + a->extra[i]);
    }
    *out = &k->head.base;
out:
    return st;
}

tr_status tr_cuda_maxpool2d(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, g, op, op->in[0], op->out[0], tr_cuda_out(g, op, 1), run_max, out);
}

tr_status tr_cuda_maxpool2d_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, g, op, op->out[0], op->in[0], tr_cuda_in(g, op, 1), run_max_grad, out);
}

tr_status tr_cuda_avgpool2d(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, g, op, op->in[0], op->out[0], NULL, run_avg, out);
}

tr_status tr_cuda_avgpool2d_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, g, op, op->out[0], op->in[0], NULL, run_avg_grad, out);
}

tr_status tr_cuda_pool_int8(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0), *y = tr_cuda_out(g, op, 0);
    const tr_status st = prepare(cuda, g, op, op->in[0], op->out[0], NULL, run_steps, out);
    if (st != TR_OK) return st;
    pool_kernel *k = (pool_kernel *)*out;
    k->to_signed = y->dtype == TR_I8;
    k->factor = x->scale / y->scale;
    return TR_OK;
}
