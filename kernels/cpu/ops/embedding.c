/* Rows of a table by number, and their gradient: the table's rows that ids name get the sums of dy.
 *
 * The gradient is shared out so that no two threads write to one element: blocks of COLUMNS
 * columns, and where these are fewer than the threads, rows by their number modulo `classes`.
 * Whoever owns an element goes through all positions in order, so the sum is the same for any
 * number of threads. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t rows, D, num; /* positions; the table */
    size_t chunk_rows;
    size_t blocks, classes;
} kernel;

enum { COLUMNS = 64 }; /* of float32: whole cache lines */

static tr_status open_embedding(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                const tr_tensor *rows, int ids,
                                tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_embedding_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, rows, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->rows = tr_loop_in(g, op, ids)->count;
    k->D = (size_t)a->dim;
    k->num = (size_t)a->num;
    k->chunk_rows = tr_chunk_rows(k->D);
    k->blocks = tr_chunks(k->D, COLUMNS);
    k->classes = tr_chunks((size_t)cpu->threads, k->blocks);
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const int32_t *ids = o->b.in[0];
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t row = i * k->chunk_rows;
        o->loops->gather_rows(o->dtype, o->b.in[1], k->D, ids + row,
                              tr_chunk_size(k->rows, k->chunk_rows, i),
                              tr_loop_to(o->dtype, o->b.out[0], row * k->D));
    }
    return TR_OK;
}

tr_status tr_cpu_embedding(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_embedding(cpu, g, op, tr_loop_out(g, op, 0), 0, run_forward, out);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    float *table = o->b.out[0];
    const size_t elements = k->num * k->D;
    if (!tr_run_adds(run, &o->b, 0)) {
        TR_PARALLEL(o->threads, tr_chunks(elements, TR_CHUNK))
        for (size_t i = 0; i < tr_chunks(elements, TR_CHUNK); i++)
            memset(table + i * TR_CHUNK, 0, tr_chunk_size(elements, TR_CHUNK, i) * sizeof *table);
    }
    TR_PARALLEL(o->threads, k->blocks * k->classes)
    for (size_t i = 0; i < k->blocks * k->classes; i++) {
        const size_t begin = i / k->classes * COLUMNS;
        const size_t end = begin + tr_chunk_size(k->D, COLUMNS, i / k->classes);
        o->loops->scatter_rows(o->dtype, o->b.in[0], k->D, o->b.in[1], k->rows, begin, end,
                               (uint32_t)k->classes, (uint32_t)(i % k->classes), table);
    }
    return TR_OK;
}

tr_status tr_cpu_embedding_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_embedding(cpu, g, op, tr_loop_in(g, op, 0), 1, run_grad, out);
}
