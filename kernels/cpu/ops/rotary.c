/* Rotary position embedding and its gradient, which turns back. Sines and cosines of all positions
 * are made when the kernel is prepared, in float64. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <math.h>
#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t rows, each, positions, heads, D, pairs, apart; /* each: rows of a sample */
    bool past; /* operand 1 says where a sample's rows begin */
    float sign;
    float *turn; /* [positions][2][pairs]: cos, sin */
} kernel;

static const float *turn_of(const kernel *k, size_t row)
{
    size_t at = row % k->each;
    if (k->past) at += (size_t)((const int32_t *)k->k.b.in[1])[row / k->each];
    if (at >= k->positions) at = k->positions - 1; /* a row that does not count */
    return k->turn + at * 2 * k->pairs;
}

static tr_status run_rotary(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t width = k->heads * k->D, rows = tr_chunk_rows(width),
                 chunks = tr_chunks(k->rows, rows), rest = k->D - 2 * k->pairs;
    TR_PARALLEL(o->threads, chunks)
    for (size_t i = 0; i < chunks; i++)
        for (size_t r = i * rows; r < i * rows + tr_chunk_size(k->rows, rows, i); r++)
            for (size_t h = 0; h < k->heads; h++) {
                const size_t at = r * width + h * k->D;
                const void *x = tr_loop_at(o->dtype, o->b.in[0], at);
                void *y = tr_loop_to(o->dtype, o->b.out[0], at);
                o->loops->rotate(o->dtype, x, y, k->pairs, k->apart, turn_of(k, r), k->sign);
                if (rest && x != y)
                    memcpy(tr_loop_to(o->dtype, y, 2 * k->pairs),
                           tr_loop_at(o->dtype, x, 2 * k->pairs), rest * tr_dtype_size(o->dtype));
            }
    return TR_OK;
}

static void close_kernel(tr_kernel *base)
{
    tr_free(((kernel *)base)->turn);
    tr_free(base);
}

static tr_status open_rotary(tr_cpu *cpu, const tr_graph *g, const tr_op *op, float sign,
                             tr_kernel **out)
{
    const tr_tensor *t = tr_loop_in(g, op, 0);
    const tr_rotary_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run_rotary, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->k.base.close = close_kernel;
    k->each = (size_t)t->dims[1];
    k->past = tr_loop_in(g, op, 1) != NULL;
    k->positions = k->past ? (size_t)g->decode.cache : k->each;
    k->rows = (size_t)t->dims[0] * k->each;
    k->heads = (size_t)a->heads;
    k->D = (size_t)t->dims[2] / k->heads;
    k->pairs = (size_t)a->dim / 2;
    k->apart = a->style == TR_ROTARY_HALF ? k->pairs : 0;
    k->sign = sign;
    k->turn = tr_alloc(TR_MEM_OTHER, k->positions, 2 * k->pairs * sizeof *k->turn);
    if (!k->turn) {
        close_kernel(&k->k.base);
        return tr_last_status();
    }
    tr_rotary_table(a, k->positions, k->turn);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_rotary(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_rotary(cpu, g, op, 1.0f, out);
}

tr_status tr_cpu_rotary_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_rotary(cpu, g, op, -1.0f, out);
}
