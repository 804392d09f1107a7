/* Batch normalization forward: statistics in one pass over x, their merge over the ranks, and
 * y = act(x * scale + shift + residual) in one more, with scale and shift of a channel worked out
 * before. Channels are contiguous (channels-last images, or rows of features).
 *
 * A share without samples has count 0 and takes part in the merge alone. Running statistics are
 * left as they are where the batch's are not finite, so that a step that is skipped for an overflow
 * does not spoil them, and the running variance where there is but one value. */
#include "kernels/cpu/ops/batchnorm.h"

#include <math.h>
#include <string.h>

tr_status tr_batchnorm_open(tr_cpu *cpu, const tr_graph *g, const tr_op *op, int x,
                            const char *impl, tr_status (*run)(tr_kernel *, const tr_run *),
                            tr_batchnorm_kernel **out)
{
    const tr_tensor *t = tr_loop_in(g, op, x);
    if (tr_innermost(t) != 1)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: batchnorm of channels that do not lie innermost",
                       op->layer);
    tr_batchnorm_kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, t, impl, run, sizeof *k, &k);
    if (st != TR_OK) return st;
    const tr_batchnorm_attrs *a = op->attrs;
    k->C = (size_t)t->dims[1];
    k->pitch = t->pitch > 0 ? (size_t)t->pitch : k->C;
    k->rows = t->count / k->C;
    k->chunk_rows = tr_chunk_rows(k->C);
    k->chunks = tr_chunks(k->rows, k->chunk_rows);
    k->ranks = (size_t)(g->ranks > 1 ? g->ranks : 1);
    k->eps = a ? a->eps : 0.0;
    k->momentum = a ? a->momentum : 0.0;
    k->act = op->act;
    k->update_states = !op->recomputed;
    *out = k;
    return TR_OK;
}

/* ---- Statistics ------------------------------------------------------------------------------ */

/* into (count, mean[C], M2[C]) takes in another one. Chan, Golub, LeVeque 1979. */
static void chan(size_t C, double *into, double n, const double *mean, const double *m2)
{
    if (n == 0.0) return;
    const double before = into[0], all = before + n, share = n / all;
    for (size_t c = 0; c < C; c++) {
        const double delta = mean[c] - into[1 + c];
        into[1 + c] += delta * share;
        into[1 + C + c] += m2[c] + delta * delta * before * share;
    }
    into[0] = all;
}

static tr_status run_stats(tr_kernel *base, const tr_run *run)
{
    (void)run;
    tr_batchnorm_kernel *k = (tr_batchnorm_kernel *)base;
    const size_t C = k->C;
    double *stats = k->k.b.out[0], *parts = k->k.b.workspace;
    TR_PARALLEL(k->k.threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++)
        k->k.loops->bn_stats(
            k->k.dtype, tr_loop_at(k->k.dtype, k->k.b.in[0], i * k->chunk_rows * C),
            tr_chunk_size(k->rows, k->chunk_rows, i), C, parts + 2 * C * i, parts + 2 * C * i + C);
    memset(stats, 0, (1 + 2 * C) * sizeof *stats);
    for (size_t i = 0; i < k->chunks; i++)
        chan(C, stats, (double)tr_chunk_size(k->rows, k->chunk_rows, i), parts + 2 * C * i,
             parts + 2 * C * i + C);
    return TR_OK;
}

tr_status tr_cpu_batchnorm_stats(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_batchnorm_kernel *k = NULL;
    tr_status st = tr_batchnorm_open(cpu, g, op, 0, "own: one pass", run_stats, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = k->chunks * 2 * k->C * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}

typedef struct {
    tr_loop_kernel k;
    size_t C;
} running_kernel;

static tr_status run_running(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const running_kernel *k = (const running_kernel *)base;
    const float *mean = k->k.b.in[0], *variance = k->k.b.in[1];
    double *stats = k->k.b.out[0];
    stats[0] = 1.0;
    for (size_t c = 0; c < k->C; c++) {
        stats[1 + c] = (double)mean[c];
        stats[1 + k->C + c] = (double)variance[c];
    }
    return TR_OK;
}

tr_status tr_cpu_batchnorm_running(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    running_kernel *k = NULL;
    tr_status st =
        tr_loop_kernel_open(cpu, tr_loop_in(g, op, 0), "own", run_running, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->C = tr_loop_in(g, op, 0)->count;
    *out = &k->k.base;
    return TR_OK;
}

/* ---- Merges over the ranks ------------------------------------------------------------------- */

typedef struct {
    tr_loop_kernel k;
    size_t count, ranks; /* float64 values of a rank */
} merge_kernel;

static tr_status run_merge(tr_kernel *base, const tr_run *run)
{
    merge_kernel *k = (merge_kernel *)base;
    const size_t C = (k->count - 1) / 2;
    double *out = k->k.b.out[0];
    const double *all;
    size_t ranks;
    tr_status st = tr_run_gather(run, &k->k.b, k->count, k->ranks, &all, &ranks);
    if (st != TR_OK) return st;
    memcpy(out, all, k->count * sizeof *out);
    for (size_t r = 1; r < ranks; r++) {
        const double *part = all + r * k->count;
        chan(C, out, part[0], part + 1, part + 1 + C);
    }
    return TR_OK;
}

static tr_status run_grad_merge(tr_kernel *base, const tr_run *run)
{
    merge_kernel *k = (merge_kernel *)base;
    double *out = k->k.b.out[0];
    const double *all;
    size_t ranks;
    tr_status st = tr_run_gather(run, &k->k.b, k->count, k->ranks, &all, &ranks);
    if (st != TR_OK) return st;
    memcpy(out, all, k->count * sizeof *out);
    for (size_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < k->count; i++) out[i] += all[r * k->count + i];
    return TR_OK;
}

static tr_status open_merge(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                            tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    merge_kernel *k = NULL;
    tr_tensor values = *tr_loop_in(g, op, 0);
    values.dtype = TR_F32; /* these kernels have no activations */
    tr_status st = tr_loop_kernel_open(cpu, &values, "own: gather", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = values.count;
    k->ranks = (size_t)(g->ranks > 1 ? g->ranks : 1);
    k->k.base.workspace = k->ranks * k->count * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_batchnorm_merge(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_merge(cpu, g, op, run_merge, out);
}

tr_status tr_cpu_batchnorm_grad_merge(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                      tr_kernel **out)
{
    return open_merge(cpu, g, op, run_grad_merge, out);
}

/* ---- Normalization --------------------------------------------------------------------------- */

static void normalize(tr_batchnorm_kernel *k, const void *residual)
{
    const tr_loop_kernel *o = &k->k;
    const float *scale = o->b.workspace, *shift = scale + k->C;
    TR_PARALLEL(o->threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) {
        const size_t at = i * k->chunk_rows * k->C;
        o->loops->bn_apply(
            o->dtype, k->act, tr_loop_at(o->dtype, o->b.in[0], i * k->chunk_rows * k->pitch),
            k->pitch, tr_loop_at(o->dtype, residual, at), scale, shift,
            tr_loop_to(o->dtype, o->b.out[0], at), tr_chunk_size(k->rows, k->chunk_rows, i), k->C);
    }
}

static void set_scale(tr_batchnorm_kernel *k, size_t c, double mean, double variance)
{
    const float *weight = k->k.b.in[1], *bias = k->k.b.in[2];
    float *scale = k->k.b.workspace;
    const double s = (weight ? (double)weight[c] : 1.0) / sqrt(variance + k->eps);
    scale[c] = (float)s;
    scale[k->C + c] = (float)((bias ? (double)bias[c] : 0.0) - mean * s);
}

static tr_status run_batchnorm(tr_kernel *base, const tr_run *run)
{
    (void)run;
    tr_batchnorm_kernel *k = (tr_batchnorm_kernel *)base;
    const double *stats = k->k.b.in[3], *mean = stats + 1, *m2 = mean + k->C;
    const double n = stats[0], keep = 1.0 - k->momentum;
    float *running_mean = k->k.b.in[4], *running_var = k->k.b.in[5];
    if (n == 0.0) return TR_OK;
    for (size_t c = 0; c < k->C; c++) {
        if (k->rows) set_scale(k, c, mean[c], m2[c] / n);
        if (!k->update_states || !running_mean || !isfinite(mean[c]) || !isfinite(m2[c])) continue;
        running_mean[c] = (float)(keep * (double)running_mean[c] + k->momentum * mean[c]);
        if (n > 1.0)
            running_var[c] =
                (float)(keep * (double)running_var[c] + k->momentum * m2[c] / (n - 1.0));
    }
    if (k->rows) normalize(k, k->k.b.in[6]);
    return TR_OK;
}

static tr_status run_infer(tr_kernel *base, const tr_run *run)
{
    (void)run;
    tr_batchnorm_kernel *k = (tr_batchnorm_kernel *)base;
    const float *mean = k->k.b.in[3], *variance = k->k.b.in[4];
    for (size_t c = 0; c < k->C; c++) set_scale(k, c, (double)mean[c], (double)variance[c]);
    normalize(k, k->k.b.in[5]);
    return TR_OK;
}

static tr_status open_apply(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                            tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    tr_batchnorm_kernel *k = NULL;
    tr_status st = tr_batchnorm_open(cpu, g, op, 0, "own: one pass", run, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = 2 * k->C * sizeof(float);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_batchnorm(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_apply(cpu, g, op, run_batchnorm, out);
}

tr_status tr_cpu_batchnorm_infer(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_apply(cpu, g, op, run_infer, out);
}
