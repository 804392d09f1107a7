/* Reshape, permute and their gradients: a transposition of each sample (or a plain copy) where it
 * is one, else a gathering by a table of places, which is copied to the device when the kernel is
 * prepared. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/arrange.h"

typedef struct {
    tr_cuda_kernel k;
    tr_transposition t;
    size_t size, count; /* bytes of an element; elements of a sample */
    bool gathers;
    int32_t *table; /* on the device */
} kernel;

static tr_status run_rearrange(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    if (k->gathers)
        return tr_cuda_gather_run(k->size, k->k.b.in[0], k->k.b.out[0], k->table, k->t.samples,
                                  k->count, k->k.cuda->stream);
    return tr_cuda_transpose_run(k->size, k->k.b.in[0], k->k.b.out[0], k->t.samples, k->t.rows,
                                 k->t.cols, k->k.cuda->stream);
}

static void close_rearrange(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_free(k->k.cuda, k->table);
    tr_free(k);
}

static tr_status copy_table(kernel *k, const tr_graph *g, const tr_op *op)
{
    tr_status st = TR_OK;
    int32_t *table = tr_alloc(TR_MEM_OTHER, k->count, sizeof *table);
    TR_HAVE(table);
    tr_rearrange_table(g, op, table);
    k->table = tr_cuda_alloc(k->k.cuda, TR_MEM_OTHER, k->count * sizeof *table);
    TR_HAVE(k->table);
    TR_TRY(tr_cuda_upload(k->k.cuda, k->table, table, k->count * sizeof *table));
out:
    tr_free(table);
    return st;
}

tr_status tr_cuda_rearrange(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_kernel_open_steps(cuda, x, "own", run_rearrange, sizeof *k, &k));
    k->k.base.close = close_rearrange;
    k->size = tr_dtype_size(x->dtype);
    k->count = x->dims[0] ? x->count / (size_t)x->dims[0] : 0;
    k->gathers = !tr_rearrange_of(g, op, &k->t);
    if (k->gathers && k->count > 0 && !cuda->o.dry) TR_TRY(copy_table(k, g, op));
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_rearrange(&k->k.base);
    return st;
}
