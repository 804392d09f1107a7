/* Batch normalization backward, in two passes with the sums over all ranks in between. With
 * xhat = (x - mean) / std and n values a channel:
 *
 *     dz = (dy + dy2) where y > 0           dweight = sum dz xhat     dbias = sum dz
 *     dx = weight/std (dz - sum dz / n - xhat sum (dz xhat) / n) = a dz + b x + c0
 *     dx = weight/std dz where the statistics do not depend on x
 *
 * Parameter gradients are of this rank's samples; the reduction of gradients adds the others'. */
#include "kernels/cpu/ops/batchnorm.h"

#include <math.h>

static double inverse_std(const tr_batchnorm_kernel *k, const double *stats, size_t c)
{
    return 1.0 / sqrt(stats[1 + k->C + c] / stats[0] + k->eps);
}

static tr_status run_grad_stats(tr_kernel *base, const tr_run *run)
{
    tr_batchnorm_kernel *k = (tr_batchnorm_kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t C = k->C;
    const double *stats = o->b.in[2];
    const void *y = o->b.in[4], *dy2 = o->b.in[5];
    double *sums = o->b.out[1], *parts = o->b.workspace;
    float *mean = (float *)(parts + k->chunks * 2 * C), *dweight = o->b.out[2],
          *dbias = o->b.out[3];
    for (size_t c = 0; c < C; c++) {
        sums[c] = sums[C + c] = 0.0;
        mean[c] = (float)stats[1 + c];
    }
    TR_PARALLEL(o->threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) {
        const size_t at = i * k->chunk_rows * C;
        o->loops->bn_grad_stats(
            o->dtype, tr_loop_at(o->dtype, o->b.in[0], at), tr_loop_at(o->dtype, dy2, at),
            tr_loop_at(o->dtype, y, at), tr_loop_at(o->dtype, o->b.in[1], at), mean,
            tr_loop_to(o->dtype, o->b.out[0], at), tr_chunk_size(k->rows, k->chunk_rows, i), C,
            parts + 2 * C * i, parts + 2 * C * i + C);
    }
    for (size_t i = 0; i < k->chunks; i++)
        for (size_t c = 0; c < 2 * C; c++) sums[c] += parts[2 * C * i + c];
    for (size_t c = 0; c < C && k->rows; c++) {
        const double off = stats[1 + c] - (double)mean[c]; /* the loop's mean was rounded */
        sums[C + c] = (sums[C + c] - off * sums[c]) * inverse_std(k, stats, c);
    }
    const bool add_weight = tr_run_adds(run, &o->b, 2), add_bias = tr_run_adds(run, &o->b, 3);
    for (size_t c = 0; c < C; c++) {
        if (dweight) dweight[c] = (add_weight ? dweight[c] : 0.0f) + (float)sums[C + c];
        if (dbias) dbias[c] = (add_bias ? dbias[c] : 0.0f) + (float)sums[c];
    }
    return TR_OK;
}

tr_status tr_cpu_batchnorm_grad_stats(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                      tr_kernel **out)
{
    tr_batchnorm_kernel *k = NULL;
    tr_status st = tr_batchnorm_open(cpu, g, op, 1, "own: one pass", run_grad_stats, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = k->chunks * 2 * k->C * sizeof(double) + k->C * sizeof(float);
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_grad_input(tr_kernel *base, const tr_run *run)
{
    (void)run;
    tr_batchnorm_kernel *k = (tr_batchnorm_kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t C = k->C;
    const double *stats = o->b.in[2], *sums = o->b.in[4];
    const float *weight = o->b.in[3];
    float *a = o->b.workspace, *b = a + C, *c0 = b + C;
    if (k->rows == 0) return TR_OK;
    for (size_t c = 0; c < C; c++) {
        const double inverse = inverse_std(k, stats, c);
        const double slope = (weight ? (double)weight[c] : 1.0) * inverse;
        if (!sums) {
            a[c] = (float)slope, c0[c] = 0.0f;
            continue;
        }
        const double by_x = -slope * inverse * sums[C + c] / stats[0];
        a[c] = (float)slope;
        b[c] = (float)by_x;
        c0[c] = (float)(-slope * sums[c] / stats[0] - by_x * stats[1 + c]);
    }
    TR_PARALLEL(o->threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) {
        const size_t at = i * k->chunk_rows * C, rows = tr_chunk_size(k->rows, k->chunk_rows, i);
        const void *dz = tr_loop_at(o->dtype, o->b.in[0], at);
        void *dx = tr_loop_to(o->dtype, o->b.out[0], at);
        if (sums)
            o->loops->bn_grad_input(o->dtype, dz, tr_loop_at(o->dtype, o->b.in[1], at), a, b, c0,
                                    dx, rows, C);
        else
            o->loops->bn_apply(o->dtype, TR_ACT_NONE, dz, C, NULL, a, c0, dx, rows, C);
    }
    return TR_OK;
}

tr_status tr_cpu_batchnorm_grad_input(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                      tr_kernel **out)
{
    tr_batchnorm_kernel *k = NULL;
    tr_status st = tr_batchnorm_open(cpu, g, op, 0, "own: one pass", run_grad_input, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = 3 * k->C * sizeof(float);
    *out = &k->k.base;
    return TR_OK;
}
