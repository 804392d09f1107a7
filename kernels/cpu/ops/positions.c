/* A row of a table added to each row of every sample, and the table's gradient: the sum over
 * samples, a piece of the table at a time. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t samples, count; /* elements of a sample, and, but in a graph that decodes, of the rows of
                              the table that it has */
    size_t rest;           /* of the table's gradient */
    size_t width, rows;    /* of a row; of the table */
    float *table;          /* where it is no parameter */
} kernel;

enum { PIECE = 1024 };

/* y = x + table, n elements; bfloat16 goes through float32, so that the sum is rounded once. */
static void add_table(const tr_loop_kernel *o, size_t at, const float *table, size_t n)
{
    const void *x = tr_loop_at(o->dtype, o->b.in[0], at);
    void *y = tr_loop_to(o->dtype, o->b.out[0], at);
    float wide[PIECE];
    const void *both[] = {o->dtype == TR_BF16 ? wide : x, table};
    if (o->dtype == TR_BF16) o->loops->cast_f32(wide, x, n);
    o->loops->add(TR_F32, TR_ACT_NONE, 2, both, o->dtype == TR_BF16 ? wide : y, n);
    if (o->dtype == TR_BF16) o->loops->cast_bf16(y, wide, n);
}

static tr_status run_positions(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const float *table = k->table ? k->table : o->b.in[1];
    const size_t pieces = tr_chunks(k->count, PIECE);
    TR_PARALLEL(o->threads, k->samples * pieces)
    for (size_t i = 0; i < k->samples * pieces; i++) {
        const size_t of = i % pieces * PIECE;
        add_table(o, i / pieces * k->count + of, table + of,
                  tr_chunk_size(k->count, PIECE, i % pieces));
    }
    return TR_OK;
}

/* In a graph that decodes: rows of the table from where the sequence is. */
static tr_status run_past(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const float *table = k->table ? k->table : o->b.in[1];
    const int32_t *past = o->b.in[2];
    const size_t each = k->count / k->width;
    for (size_t i = 0; i < k->samples * each; i++) {
        size_t at = (size_t)past[i / each] + i % each;
        if (at >= k->rows) at = k->rows - 1; /* a row that does not count */
        for (size_t c = 0; c < k->width; c += PIECE)
            add_table(o, i * k->width + c, table + at * k->width + c,
                      tr_chunk_size(k->width, PIECE, c / PIECE));
    }
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t pieces = tr_chunks(k->count, PIECE);
    float *out = o->b.out[0];
    const bool adds = tr_run_adds(run, &o->b, 0);
    TR_PARALLEL(o->threads, pieces)
    for (size_t i = 0; i < pieces; i++)
        o->loops->column_sums(o->dtype, tr_loop_at(o->dtype, o->b.in[0], i * PIECE), k->samples,
                              tr_chunk_size(k->count, PIECE, i), k->count, out + i * PIECE, adds);
    if (!adds) memset(out + k->count, 0, k->rest * sizeof *out);
    return TR_OK;
}

static void close_positions(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_free(k->table);
    tr_free(k);
}

static tr_status prepare(tr_cpu *cpu, const tr_tensor *x,
                         tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_loop_kernel_open(cpu, x, "own", run, sizeof *k, &k));
    k->k.base.close = close_positions;
    k->samples = (size_t)x->dims[0];
    k->count = k->samples ? x->count / k->samples : 0;
    *out = k;
out:
    return st;
}

tr_status tr_cpu_positions(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    const tr_tensor *weight = tr_loop_in(g, op, 1);
    const bool past = tr_loop_in(g, op, 2) != NULL;
    TR_TRY(prepare(cpu, x, past ? run_past : run_positions, &k));
    k->width = (size_t)x->dims[2];
    k->rows = (size_t)(weight ? weight->dims[0] : past ? g->decode.cache : x->dims[1]);
    if (!weight) {
        TR_HAVE(k->table = tr_alloc(TR_MEM_OTHER, k->rows * k->width, sizeof *k->table));
        tr_positions_table(k->rows, k->width, k->table);
    }
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_positions(&k->k.base);
    return st;
}

tr_status tr_cpu_positions_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = prepare(cpu, tr_loop_in(g, op, 0), run_grad, &k);
    if (st != TR_OK) return st;
    k->rest = tr_loop_out(g, op, 0)->count - k->count;
    *out = &k->k.base;
    return TR_OK;
}
