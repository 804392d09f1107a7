/* Batch normalization forward: statistics, their merge over the ranks, normalization with
 * activation, residual and running statistics; and inference from the running ones. Kernels, bytes
 * moved and error bounds: loops/batchnorm*.cu. A share without samples has count 0 and takes part
 * in the merge alone. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/ops/batchnorm.h"

enum { ROWS_TOGETHER = 4 }; /* that the elementwise kernels have under way */

tr_status tr_cuda_batchnorm_open(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x,
                                 size_t run, tr_status (*fn)(tr_kernel *, const tr_run *),
                                 tr_cuda_batchnorm_kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, x);
    if (tr_innermost(t) != 1)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: batchnorm of channels that do not lie innermost",
                       op->layer);
    const size_t C = (size_t)t->dims[1], rows = t->count / C;
    const tr_bn_map map = tr_bn_map_of(rows, C, t->dtype, run);
    tr_cuda_batchnorm_kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, t, rows <= TR_BN_WIDE_ROWS ? "own: wide" : "own: tall",
                                       fn, sizeof *k, &k);
    if (st != TR_OK) return st;
    const tr_batchnorm_attrs *a = op->attrs;
    k->map = map;
    k->eps = a ? a->eps : 0.0;
    k->momentum = a ? a->momentum : 0.0;
    k->act = op->act;
    k->update_states = !op->recomputed;
    *out = k;
    return TR_OK;
}

/* ---- Statistics ------------------------------------------------------------------------------ */

static tr_status run_stats(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const tr_cuda_batchnorm_kernel *k = (const tr_cuda_batchnorm_kernel *)base;
    const tr_binding *b = &k->k.b;
    return tr_bn_stats(k->k.cuda->stream, k->k.dtype, &k->map, b->in[0], b->workspace, b->out[0]);
}

tr_status tr_cuda_batchnorm_stats(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                  tr_kernel **out)
{
    tr_cuda_batchnorm_kernel *k = NULL;
    tr_status st = tr_cuda_batchnorm_open(cuda, g, op, 0, TR_BN_RUN, run_stats, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = tr_bn_parts(&k->map);
    *out = &k->k.base;
    return TR_OK;
}

typedef struct {
    tr_cuda_kernel k;
    size_t C;
} running_kernel;

static tr_status run_running(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const running_kernel *k = (const running_kernel *)base;
    return tr_bn_running(k->k.cuda->stream, k->k.b.in[0], k->k.b.in[1], k->C, k->k.b.out[0]);
}

tr_status tr_cuda_batchnorm_running(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out)
{
    running_kernel *k = NULL;
    tr_status st =
        tr_cuda_kernel_open(cuda, tr_cuda_in(g, op, 0), "own", run_running, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->C = tr_cuda_in(g, op, 0)->count;
    *out = &k->k.base;
    return TR_OK;
}

/* ---- Merges over the ranks ------------------------------------------------------------------- */

typedef struct {
    tr_cuda_kernel k;
    size_t count, ranks; /* float64 values of a rank */
} merge_kernel;

static tr_status run_merge(tr_kernel *base, const tr_run *run)
{
    const merge_kernel *k = (const merge_kernel *)base;
    const double *all;
    size_t ranks;
    tr_status st = tr_run_gather(run, &k->k.b, k->count, k->ranks, &all, &ranks);
    if (st != TR_OK) return st;
    return tr_bn_merge_stats(k->k.cuda->stream, all, ranks, (k->count - 1) / 2, k->k.b.out[0]);
}

static tr_status run_grad_merge(tr_kernel *base, const tr_run *run)
{
    const merge_kernel *k = (const merge_kernel *)base;
    const double *all;
    size_t ranks;
    tr_status st = tr_run_gather(run, &k->k.b, k->count, k->ranks, &all, &ranks);
    if (st != TR_OK) return st;
    return tr_bn_merge_sums(k->k.cuda->stream, all, ranks, k->count, k->k.b.out[0]);
}

static tr_status open_merge(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                            tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    merge_kernel *k = NULL;
    tr_tensor values = *tr_cuda_in(g, op, 0);
    values.dtype = TR_F32; /* these kernels have no activations */
    tr_status st = tr_cuda_kernel_open(cuda, &values, "own: gather", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = values.count;
    k->ranks = (size_t)(g->ranks > 1 ? g->ranks : 1);
    k->k.base.workspace = k->ranks * k->count * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cuda_batchnorm_merge(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                  tr_kernel **out)
{
    return open_merge(cuda, g, op, run_merge, out);
}

tr_status tr_cuda_batchnorm_grad_merge(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                       tr_kernel **out)
{
    return open_merge(cuda, g, op, run_grad_merge, out);
}

/* ---- Normalization --------------------------------------------------------------------------- */

static tr_status run_batchnorm(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const tr_cuda_batchnorm_kernel *k = (const tr_cuda_batchnorm_kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_bn_norm norm = {.weight = b->in[1],
                             .bias = b->in[2],
                             .stats = b->in[3],
                             .running_mean = b->in[4],
                             .running_var = b->in[5],
                             .eps = k->eps,
                             .momentum = k->momentum,
                             .update = k->update_states && b->in[4]};
    return tr_bn_apply(k->k.cuda->stream, k->k.dtype, &k->map, k->act, b->in[0], b->in[6], &norm,
                       b->out[0]);
}

tr_status tr_cuda_batchnorm(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_cuda_batchnorm_kernel *k = NULL;
    tr_status st = tr_cuda_batchnorm_open(cuda, g, op, 0, ROWS_TOGETHER, run_batchnorm, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}

static tr_status run_infer(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const tr_cuda_batchnorm_kernel *k = (const tr_cuda_batchnorm_kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_bn_norm norm = {.weight = b->in[1],
                             .bias = b->in[2],
                             .running_mean = b->in[3],
                             .running_var = b->in[4],
                             .eps = k->eps};
    return tr_bn_apply(k->k.cuda->stream, k->k.dtype, &k->map, k->act, b->in[0], b->in[5], &norm,
                       b->out[0]);
}

tr_status tr_cuda_batchnorm_infer(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                  tr_kernel **out)
{
    tr_cuda_batchnorm_kernel *k = NULL;
    tr_status st = tr_cuda_batchnorm_open(cuda, g, op, 0, ROWS_TOGETHER, run_infer, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}
