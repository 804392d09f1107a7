/* Group normalization of channels-last samples, by the loops of batchnorm, a sample at a time: mean
 * and squared deviations of each channel, merged over the channels of a group, then y = x * scale +
 * shift a channel. Backward with sums a channel of dy and dy * (x - mean), of which those of a
 * group make dx = a dy + b x + c0. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <math.h>
#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t samples, places, C, groups;
    double eps;
} kernel;

/* Workspace: of each sample 4 C float64, or as many float32. */
static tr_status open_groupnorm(tr_cpu *cpu, const tr_graph *g, const tr_op *op, int x,
                                tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_tensor *t = tr_loop_in(g, op, x);
    const tr_groupnorm_attrs *a = op->attrs;
    kernel *k = NULL;
    if (tr_innermost(t) != 1)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: groupnorm of channels that do not lie innermost",
                       op->layer);
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->samples = (size_t)t->dims[0];
    k->C = (size_t)t->dims[1];
    k->places = k->samples ? t->count / k->samples / k->C : 0;
    k->groups = (size_t)a->groups;
    k->eps = a->eps;
    k->k.base.workspace = k->samples * 4 * k->C * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}

/* Mean and 1 / deviation of channels [from, from + n), of equally many places each. */
static void of_group(const double *mean, const double *m2, size_t n, double places, double eps,
                     float stats[2])
{
    double all = 0.0, squares = 0.0;
    for (size_t c = 0; c < n; c++) all += mean[c] / (double)n;
    for (size_t c = 0; c < n; c++) squares += m2[c] + places * (mean[c] - all) * (mean[c] - all);
    stats[0] = (float)all;
    stats[1] = (float)(1.0 / sqrt(squares / (places * (double)n) + eps));
}

static void normalize_sample(const kernel *k, size_t s)
{
    const tr_loop_kernel *o = &k->k;
    const size_t C = k->C, each = C / k->groups, at = s * k->places * C;
    const float *weight = o->b.in[1], *bias = o->b.in[2];
    double *mean = (double *)o->b.workspace + 4 * C * s, *m2 = mean + C;
    float *scale = (float *)(m2 + C), *shift = scale + C, *stats = o->b.out[1];
    const void *x = tr_loop_at(o->dtype, o->b.in[0], at);
    o->loops->bn_stats(o->dtype, x, k->places, C, mean, m2);
    for (size_t g = 0; g < k->groups; g++) {
        float own[2];
        of_group(mean + g * each, m2 + g * each, each, (double)k->places, k->eps, own);
        for (size_t c = g * each; c < (g + 1) * each; c++) {
            scale[c] = own[1] * (weight ? weight[c] : 1.0f);
            shift[c] = (float)((bias ? (double)bias[c] : 0.0) - (double)own[0] * (double)scale[c]);
        }
        if (stats) memcpy(stats + 2 * (s * k->groups + g), own, sizeof own);
    }
    o->loops->bn_apply(o->dtype, TR_ACT_NONE, x, C, NULL, scale, shift,
                       tr_loop_to(o->dtype, o->b.out[0], at), k->places, C);
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    TR_PARALLEL(k->k.threads, k->samples)
    for (size_t s = 0; s < k->samples; s++) normalize_sample(k, s);
    return TR_OK;
}

tr_status tr_cpu_groupnorm(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_groupnorm(cpu, g, op, 0, run_forward, out);
}

/* Leaves the sample's sums of dy * xhat and of dy in the workspace, each float64 of C. */
static void grad_sample(const kernel *k, size_t s)
{
    const tr_loop_kernel *o = &k->k;
    const size_t C = k->C, each = C / k->groups, at = s * k->places * C;
    const float *weight = o->b.in[2], *stats = (const float *)o->b.in[3] + 2 * s * k->groups;
    const double count = (double)(k->places * each);
    double *sum_dx = (double *)o->b.workspace + 4 * C * s, *sum_d = sum_dx + C;
    float *mean = (float *)(sum_d + C), *a = mean, *b = mean + C, *c0 = b + C;
    const void *dy = tr_loop_at(o->dtype, o->b.in[0], at),
               *x = tr_loop_at(o->dtype, o->b.in[1], at);
    for (size_t c = 0; c < C; c++) mean[c] = stats[2 * (c / each)];
    o->loops->bn_grad_stats(o->dtype, dy, NULL, NULL, x, mean, (void *)dy, k->places, C, sum_d,
                            sum_dx);
    for (size_t g = 0; g < k->groups; g++) {
        const double center = (double)stats[2 * g], inverse = (double)stats[2 * g + 1];
        double sum = 0.0, sum_x = 0.0;
        for (size_t c = g * each; c < (g + 1) * each; c++) {
            const double w = weight ? (double)weight[c] : 1.0;
            sum_dx[c] *= inverse;
            sum += w * sum_d[c];
            sum_x += w * sum_dx[c];
        }
        const double by_x = -inverse * inverse * sum_x / count;
        for (size_t c = g * each; c < (g + 1) * each; c++) {
            a[c] = (float)((weight ? (double)weight[c] : 1.0) * inverse);
            b[c] = (float)by_x;
            c0[c] = (float)(-inverse * sum / count - by_x * center);
        }
    }
    if (o->b.out[0])
        o->loops->bn_grad_input(o->dtype, dy, x, a, b, c0, tr_loop_to(o->dtype, o->b.out[0], at),
                                k->places, C);
}

static void give(const kernel *k, const tr_run *run, int out, size_t at)
{
    const double *sums = (const double *)k->k.b.workspace + at;
    float *to = k->k.b.out[out];
    const bool add = tr_run_adds(run, &k->k.b, out);
    for (size_t c = 0; to && c < k->C; c++) {
        double sum = 0.0;
        for (size_t s = 0; s < k->samples; s++) sum += sums[4 * k->C * s + c];
        to[c] = (add ? to[c] : 0.0f) + (float)sum;
    }
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    TR_PARALLEL(k->k.threads, k->samples)
    for (size_t s = 0; s < k->samples; s++) grad_sample(k, s);
    give(k, run, 1, 0);
    give(k, run, 2, k->C);
    return TR_OK;
}

tr_status tr_cpu_groupnorm_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_groupnorm(cpu, g, op, 1, run_grad, out);
}
