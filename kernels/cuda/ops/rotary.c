/* Rotary position embedding and its gradient. The table of sines and cosines lies on the device
 * from the preparation on. */
#include "kernels/cuda/loops/rotary.h"
#include "kernels/cuda/internal.h"

typedef struct {
    tr_cuda_kernel k;
    tr_cuda_rotary_args args;
    void *table; /* on the device */
    bool past;   /* operand 1 says where a sample's rows begin */
} kernel;

static tr_status run_rotary(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    tr_cuda_rotary_args a = k->args;
    a.x = k->k.b.in[0];
    a.y = k->k.b.out[0];
    a.turn = k->table;
    if (k->past) a.past = k->k.b.in[1];
    return tr_cuda_rotary_run(k->k.dtype, &a, k->k.cuda->stream);
}

static void close_rotary(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_free(k->k.cuda, k->table);
    tr_free(k);
}

static tr_status copy_table(kernel *k, const tr_rotary_attrs *a)
{
    const size_t count = k->args.table * 2 * k->args.pairs;
    float *turn = tr_alloc(TR_MEM_OTHER, count, sizeof *turn);
    tr_status st = TR_OK;
    TR_HAVE(turn);
    tr_rotary_table(a, k->args.table, turn);
    k->table = tr_cuda_alloc(k->k.cuda, TR_MEM_OTHER, count * sizeof *turn);
    TR_HAVE(k->table);
    st = tr_cuda_upload(k->k.cuda, k->table, turn, count * sizeof *turn);
out:
    tr_free(turn);
    return st;
}

static tr_status open_rotary(tr_cuda *cuda, const tr_graph *g, const tr_op *op, float sign,
                             tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, 0);
    const tr_rotary_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_kernel_open(cuda, t, "own", run_rotary, sizeof *k, &k));
    k->k.base.close = close_rotary;
    k->args = (tr_cuda_rotary_args){.rows = (size_t)(t->dims[0] * t->dims[1]),
                                    .positions = (size_t)t->dims[1],
                                    .heads = (size_t)a->heads,
                                    .D = (size_t)(t->dims[2] / a->heads),
                                    .pairs = (size_t)a->dim / 2,
                                    .sign = sign};
    k->args.apart = a->style == TR_ROTARY_HALF ? k->args.pairs : 0;
    k->past = tr_cuda_in(g, op, 1) != NULL;
    k->args.table = k->past ? (size_t)g->decode.cache : k->args.positions;
    if (!cuda->o.dry) TR_TRY(copy_table(k, a));
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_rotary(&k->k.base);
    return st;
}

tr_status tr_cuda_rotary(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_rotary(cuda, g, op, 1.0f, out);
}

tr_status tr_cuda_rotary_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_rotary(cuda, g, op, -1.0f, out);
}
