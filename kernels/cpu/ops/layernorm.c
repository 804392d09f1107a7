/* Layer normalization of rows of D values, or RMSNorm of them. Forward reads a row from memory
 * once; backward works in blocks of rows that stay in the second-level cache between dx and the
 * parameter gradients. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t rows, D, chunk_rows, chunks, block_rows;
    double eps;
    bool centered;
} kernel;

static tr_status open_layernorm(tr_cpu *cpu, const tr_graph *g, const tr_op *op, int x, int weight,
                                tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_tensor *t = tr_loop_in(g, op, x);
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->D = tr_loop_in(g, op, weight)->count;
    if (t->dims[tr_innermost(t)] != (int64_t)k->D) {
        tr_free(k);
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: layernorm of values that do not lie innermost",
                       op->layer);
    }
    k->rows = t->count / k->D;
    k->chunk_rows = tr_chunk_rows(k->D);
    k->chunks = tr_chunks(k->rows, k->chunk_rows);
    k->block_rows = 32768 / k->D < 8 ? 8 : 32768 / k->D;
    const tr_layernorm_attrs *a = op->attrs;
    if (a) k->eps = a->eps;
    k->centered = !a || !a->rms;
    *out = k;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    float *stats = o->b.out[1];
    TR_PARALLEL(o->threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) {
        const size_t row = i * k->chunk_rows;
        o->loops->ln_apply(
            o->dtype, tr_loop_at(o->dtype, o->b.in[0], row * k->D), o->b.in[1], o->b.in[2], k->eps,
            k->centered, tr_loop_to(o->dtype, o->b.out[0], row * k->D),
            stats ? stats + 2 * row : NULL, tr_chunk_size(k->rows, k->chunk_rows, i), k->D);
    }
    return TR_OK;
}

tr_status tr_cpu_layernorm(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_layernorm(cpu, g, op, 0, 1, run_forward, &k);
    if (st != TR_OK) return st;
    *out = &k->k.base;
    return TR_OK;
}

static void grad_chunk(const kernel *k, size_t chunk, double *part)
{
    const tr_loop_kernel *o = &k->k;
    const float *stats = o->b.in[3];
    const size_t D = k->D, first = chunk * k->chunk_rows;
    const size_t last = first + tr_chunk_size(k->rows, k->chunk_rows, chunk);
    memset(part, 0, 2 * D * sizeof *part);
    for (size_t row = first; row < last; row += k->block_rows) {
        const size_t n = last - row < k->block_rows ? last - row : k->block_rows;
        const void *dy = tr_loop_at(o->dtype, o->b.in[0], row * D);
        const void *x = tr_loop_at(o->dtype, o->b.in[1], row * D);
        /* first, because dx may lie where dy does */
        o->loops->ln_grad_param(o->dtype, dy, x, stats + 2 * row, n, D, part, part + D);
        if (o->b.out[0])
            o->loops->ln_grad_input(o->dtype, dy, x, o->b.in[2], stats + 2 * row, k->centered,
                                    tr_loop_to(o->dtype, o->b.out[0], row * D), n, D);
    }
}

static void give(float *to, const double *from, size_t n, size_t parts, size_t stride, bool add)
{
    for (size_t i = 0; to && i < n; i++) {
        double sum = 0.0;
        for (size_t p = 0; p < parts; p++) sum += from[p * stride + i];
        to[i] = (add ? to[i] : 0.0f) + (float)sum;
    }
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    double *parts = k->k.b.workspace;
    TR_PARALLEL(k->k.threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) grad_chunk(k, i, parts + 2 * k->D * i);
    give(k->k.b.out[1], parts, k->D, k->chunks, 2 * k->D, tr_run_adds(run, &k->k.b, 1));
    give(k->k.b.out[2], parts + k->D, k->D, k->chunks, 2 * k->D, tr_run_adds(run, &k->k.b, 2));
    return TR_OK;
}

tr_status tr_cpu_layernorm_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_layernorm(cpu, g, op, 1, 2, run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = k->chunks * 2 * k->D * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}
