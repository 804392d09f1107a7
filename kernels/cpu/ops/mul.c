/* Products: of equal shapes in chunks, or of each sample's rows of channels with its one row of
 * factors; and the gradient of these factors, blocks of channels of a sample each by themselves. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t samples, rows, C; /* of a sample; equal shapes: one sample of rows of one element */
    size_t step;             /* rows of a chunk, or channels of a block */
    bool equal;
} kernel;

enum { COLUMNS = 256 };

static tr_status run_mul(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t chunks = tr_chunks(k->rows, k->step);
    TR_PARALLEL(o->threads, k->samples * chunks)
    for (size_t i = 0; i < k->samples * chunks; i++) {
        const size_t sample = i / chunks, row = i % chunks * k->step;
        const size_t at = (sample * k->rows + row) * k->C;
        o->loops->mul(o->dtype, tr_loop_at(o->dtype, o->b.in[0], at),
                      tr_loop_at(o->dtype, o->b.in[1], k->equal ? at : sample * k->C),
                      k->equal ? k->C : 0, tr_loop_to(o->dtype, o->b.out[0], at),
                      tr_chunk_size(k->rows, k->step, i % chunks), k->C);
    }
    return TR_OK;
}

static tr_status run_sums(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t blocks = tr_chunks(k->C, k->step);
    TR_PARALLEL(o->threads, k->samples * blocks)
    for (size_t i = 0; i < k->samples * blocks; i++) {
        const size_t sample = i / blocks, begin = i % blocks * k->step;
        const size_t at = sample * k->rows * k->C;
        o->loops->mul_sums(o->dtype, tr_loop_at(o->dtype, o->b.in[0], at),
                           tr_loop_at(o->dtype, o->b.in[1], at),
                           tr_loop_to(o->dtype, o->b.out[0], sample * k->C), k->rows, k->C, begin,
                           begin + tr_chunk_size(k->C, k->step, i % blocks));
    }
    return TR_OK;
}

/* `x` is the image, `factor` what it is multiplied with. */
static tr_status prepare(tr_cpu *cpu, const tr_op *op, const tr_tensor *x, const tr_tensor *factor,
                         tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const bool equal = factor->count == x->count;
    kernel *k = NULL;
    if (!equal && (x->layout != TR_LAYOUT_CHANNELS_LAST || x->dims[0] != factor->dims[0] ||
                   factor->count != (size_t)(x->dims[0] * x->dims[1])))
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu factors for %zu elements", op->layer,
                       factor->count, x->count);
    tr_status st = tr_loop_kernel_open(cpu, x, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->equal = equal && run == run_mul;
    k->samples = k->equal ? 1 : (size_t)x->dims[0];
    k->C = k->equal ? 1 : (size_t)x->dims[1];
    k->rows = x->count / (k->samples * k->C > 0 ? k->samples * k->C : 1);
    k->step = run == run_sums ? COLUMNS : tr_chunk_rows(k->C);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_mul(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, op, tr_loop_in(g, op, 0), tr_loop_in(g, op, 1), run_mul, out);
}

tr_status tr_cpu_mul_grad_scale(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, op, tr_loop_in(g, op, 0), tr_loop_out(g, op, 0), run_sums, out);
}
