/* Max, average and global average pooling: own loops (loops/pool.c), over chunks of rows.
 * Own, because oneDNN adds bfloat16 gradients of overlapping windows in bfloat16 and drops NaN from
 * a maximum; the indices of a maximum are in its layout (place in the window, channels-last).
 * Global pooling is average pooling with one window. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    tr_cpu_pool pool;
    size_t rows, chunk_rows; /* of what is written: images times their height */
    bool to_signed;          /* of 8 bits: y's type, and x's scale over y's */
    float factor;
    void (*piece)(const tr_cpu_pool *p, const tr_cpu_loops *l, const tr_binding *b, size_t begin,
                  size_t end);
} pool_kernel;

static void max_piece(const tr_cpu_pool *p, const tr_cpu_loops *l, const tr_binding *b,
                      size_t begin, size_t end)
{
    l->max_pool(p, b->in[0], b->out[0], b->out[1], begin, end);
}

static void max_steps_piece(const tr_cpu_pool *p, const tr_cpu_loops *l, const tr_binding *b,
                            size_t begin, size_t end)
{
    l->max_pool_steps(p, b->in[0], b->out[0], begin, end);
}

static void max_grad_piece(const tr_cpu_pool *p, const tr_cpu_loops *l, const tr_binding *b,
                           size_t begin, size_t end)
{
    l->max_pool_grad(p, b->in[0], b->in[1], b->out[0], begin, end);
}

static void avg_piece(const tr_cpu_pool *p, const tr_cpu_loops *l, const tr_binding *b,
                      size_t begin, size_t end)
{
    l->avg_pool(p, b->in[0], b->out[0], begin, end);
}

static void avg_grad_piece(const tr_cpu_pool *p, const tr_cpu_loops *l, const tr_binding *b,
                           size_t begin, size_t end)
{
    l->avg_pool_grad(p, b->in[0], b->out[0], begin, end);
}

static tr_status run_pool(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const pool_kernel *k = (const pool_kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t begin = i * k->chunk_rows;
        k->piece(&k->pool, o->loops, &o->b, begin,
                 begin + tr_chunk_size(k->rows, k->chunk_rows, i));
    }
    return TR_OK;
}

/* `x` is the larger image, `y` the pooled one; `written` the tensor that the kernel fills. */
static tr_status prepare(tr_cpu *cpu, const tr_graph *g, const tr_pool2d_attrs *a, int x, int y,
                         int written, pool_kernel **out)
{
    const tr_tensor *tx = &g->tensors[x], *ty = &g->tensors[y], *tw = &g->tensors[written];
    pool_kernel *k = NULL;
    if (tx->layout != TR_LAYOUT_CHANNELS_LAST || ty->layout != TR_LAYOUT_CHANNELS_LAST)
        return TR_FAIL(TR_UNSUPPORTED, "pooling of what is not stored channels-last");
    tr_status st = tr_loop_kernel_open_steps(cpu, tx, "own: by windows", run_pool, sizeof *k, &k);
    if (st != TR_OK) return st;
    tr_cpu_pool *p = &k->pool;
    *p = (tr_cpu_pool){.type = tx->dtype,
                       .C = (size_t)tx->dims[1],
                       .H = tx->dims[2],
                       .W = tx->dims[3],
                       .OH = ty->dims[2],
                       .OW = ty->dims[3]};
    for (int i = 0; i < 2; i++) {
        p->kernel[i] = a ? a->kernel[i] : tx->dims[2 + i];
        p->stride[i] = a ? a->stride[i] : 1;
        p->padding[i] = a ? a->padding[i] : 0;
        p->end[i] = a ? a->padding[i] + a->extra[i] : 0;
    }
    p->include_pad = a && a->count_include_pad;
    k->rows = (size_t)(tw->dims[0] * tw->dims[2]);
    /* an element takes as many steps as a window has places */
    const size_t steps = (size_t)(tw->dims[3] * p->kernel[0] * p->kernel[1]) * p->C;
    k->chunk_rows = TR_CHUNK / steps > 1 ? TR_CHUNK / steps : 1;
    *out = k;
    return TR_OK;
}

static tr_status indices_type(const tr_graph *g, const tr_op *op, int tensor, pool_kernel *k)
{
    if (tensor < 0) return TR_OK;
    const tr_dtype type = g->tensors[tensor].dtype;
    k->pool.wide = type == TR_I32;
    if (type == TR_I32 || (type == TR_U8 && k->pool.kernel[0] * k->pool.kernel[1] <= 256))
        return TR_OK;
    return TR_FAIL(TR_INTERNAL, "layer %s: indices of type %s for a window of %lldx%lld", op->layer,
                   tr_dtype_name(type), (long long)k->pool.kernel[0], (long long)k->pool.kernel[1]);
}

tr_status tr_cpu_maxpool2d(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    pool_kernel *k = NULL;
    TR_TRY(prepare(cpu, g, op->attrs, op->in[0], op->out[0], op->out[0], &k));
    k->piece = k->k.dtype == TR_U8 || k->k.dtype == TR_I8 ? max_steps_piece : max_piece;
    TR_TRY(indices_type(g, op, op->nout > 1 ? op->out[1] : -1, k));
    *out = &k->k.base;
out:
    if (st != TR_OK) tr_free(k);
    return st;
}

tr_status tr_cpu_maxpool2d_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    pool_kernel *k = NULL;
    TR_TRY(prepare(cpu, g, op->attrs, op->out[0], op->in[0], op->out[0], &k));
    k->piece = max_grad_piece;
    TR_TRY(indices_type(g, op, op->in[1], k));
    *out = &k->k.base;
out:
    if (st != TR_OK) tr_free(k);
    return st;
}

static tr_status average(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                         const tr_pool2d_attrs *attrs, bool grad, tr_kernel **out)
{
    tr_status st = TR_OK;
    pool_kernel *k = NULL;
    int x = grad ? op->out[0] : op->in[0], y = grad ? op->in[0] : op->out[0];
    TR_TRY(prepare(cpu, g, attrs, x, y, op->out[0], &k));
    k->piece = grad ? avg_grad_piece : avg_piece;
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cpu_avgpool2d(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return average(cpu, g, op, op->attrs, false, out);
}

tr_status tr_cpu_avgpool2d_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return average(cpu, g, op, op->attrs, true, out);
}

tr_status tr_cpu_global_avgpool(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return average(cpu, g, op, NULL, false, out);
}

tr_status tr_cpu_global_avgpool_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                     tr_kernel **out)
{
    return average(cpu, g, op, NULL, true, out);
}

/* ---- Averages of 8 bits ---- */

static tr_status run_steps(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const pool_kernel *k = (const pool_kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t begin = i * k->chunk_rows;
        o->loops->avg_pool_steps(&k->pool, k->to_signed, k->factor, o->b.in[0], o->b.out[0], begin,
                                 begin + tr_chunk_size(k->rows, k->chunk_rows, i));
    }
    return TR_OK;
}

tr_status tr_cpu_pool_int8(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const bool whole = tr_op_place(op->def) == TR_OP_global_avgpool_int8;
    const tr_tensor *x = tr_loop_in(g, op, 0), *y = tr_loop_out(g, op, 0);
    pool_kernel *k = NULL;
    const tr_status st =
        prepare(cpu, g, whole ? NULL : op->attrs, op->in[0], op->out[0], op->out[0], &k);
    if (st != TR_OK) return st;
    k->to_signed = y->dtype == TR_I8;
    k->factor = x->scale / y->scale;
    k->k.base.run = run_steps;
    *out = &k->k.base;
    return TR_OK;
}
