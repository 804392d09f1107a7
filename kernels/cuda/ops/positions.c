/* A row of a table added to each row of every sample, and the table's gradient, its sum over
 * samples: samples are rows of the epilogue and the column sums of products (loops/epilogue.cu,
 * loops/linear.cu). */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/epilogue.h"
#include "kernels/cuda/loops/linear.h"
#include "kernels/cuda/loops/tokens.h"

typedef struct {
    tr_cuda_kernel k;
    size_t samples, count; /* elements of a sample, and of the rows of the table that it has */
    size_t rest;           /* of the table's gradient */
    size_t width, rows;    /* of a row; of the table */
    float *table;          /* on the device, where it is no parameter */
} kernel;

static tr_status run_positions(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_epilogue(k->k.cuda->stream, TR_ACT_NONE, k->k.dtype, k->k.dtype, k->k.b.in[0],
                            k->table ? k->table : k->k.b.in[1], NULL, k->k.b.out[0], k->samples,
                            k->count);
}

/* In a graph that decodes: rows of the table from where the sequence is. */
static tr_status run_past(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    return tr_cuda_place_rows_run(k->k.cuda->stream, k->k.dtype, b->in[0],
                                  k->table ? k->table : b->in[1], k->rows, b->in[2], b->out[0],
                                  k->samples, k->count / k->width, k->width);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const cudaStream_t stream = k->k.cuda->stream;
    const bool adds = tr_run_adds(run, &k->k.b, 0);
    float *out = k->k.b.out[0];
    tr_status st = TR_OK;
    if (!adds && k->rest > 0)
        TR_TRY(tr_cuda_check(cudaMemsetAsync(out + k->count, 0, k->rest * sizeof *out, stream),
                             "cudaMemsetAsync(rows of a table)"));
    st = tr_cuda_column_sum(stream, k->k.dtype, k->k.b.in[0], k->samples, k->count,
                            k->k.b.workspace, out, adds);
out:
    return st;
}

static void close_positions(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_free(k->k.cuda, k->table);
    tr_free(k);
}

static tr_status prepare(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                         tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, x->count, "of a sequence"));
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run, sizeof *k, &k));
    k->k.base.close = close_positions;
    k->samples = (size_t)x->dims[0];
    k->count = k->samples ? x->count / k->samples : 0;
    *out = k;
out:
    return st;
}

/* Once: sines are the host's, to its last digit. */
static tr_status put_table(tr_cuda *cuda, kernel *k)
{
    tr_status st = TR_OK;
    const size_t count = k->rows * k->width;
    float *table = tr_alloc(TR_MEM_OTHER, count, sizeof *table);
    TR_HAVE(table);
    tr_positions_table(k->rows, k->width, table);
    TR_HAVE(k->table = tr_cuda_alloc(cuda, TR_MEM_OTHER, count * sizeof *table));
    TR_TRY(tr_cuda_upload(cuda, k->table, table, count * sizeof *table));
out:
    tr_free(table);
    return st;
}

tr_status tr_cuda_positions(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    const tr_tensor *x = tr_cuda_in(g, op, 0), *weight = tr_cuda_in(g, op, 1);
    const bool past = tr_cuda_in(g, op, 2) != NULL;
    TR_TRY(prepare(cuda, g, op, past ? run_past : run_positions, &k));
    k->width = (size_t)x->dims[2];
    k->rows = (size_t)(weight ? weight->dims[0] : past ? g->decode.cache : x->dims[1]);
    if (!weight && !cuda->o.dry) TR_TRY(put_table(cuda, k));
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_positions(&k->k.base);
    return st;
}

tr_status tr_cuda_positions_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = prepare(cuda, g, op, run_grad, &k);
    if (st != TR_OK) return st;
    k->rest = tr_cuda_out(g, op, 0)->count - k->count;
    k->k.base.workspace = tr_cuda_column_sum_workspace(k->samples, k->count);
    *out = &k->k.base;
    return TR_OK;
}
