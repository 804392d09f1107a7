/* Values to 8 bits by the ranges of the data at hand, row by row, and products of these to values.
 * Rows are shared out over threads; where there are fewer rows than threads, the chunks of each
 * are. Largest values do not depend on order. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <math.h>

typedef struct {
    tr_loop_kernel k;
    size_t rows, D, chunks, chunk_rows; /* chunks of a row; rows of a piece */
    bool is_signed, to_steps;
} kernel;

static float largest(const kernel *k, size_t row, size_t chunk)
{
    const tr_loop_kernel *o = &k->k;
    return o->loops->largest(o->dtype, k->is_signed,
                             tr_loop_at(o->dtype, o->b.in[0], row * k->D + chunk * TR_CHUNK),
                             tr_chunk_size(k->D, TR_CHUNK, chunk));
}

/* The rounding is that of fake_quantize. */
static void round_chunk(const kernel *k, size_t row, size_t chunk, float scale)
{
    const tr_loop_kernel *o = &k->k;
    const float steps = TR_DYNAMIC_STEPS(k->is_signed);
    const tr_numbers n = {1.0f / scale, k->is_signed ? -steps : 0, steps, scale};
    const size_t at = row * k->D + chunk * TR_CHUNK, count = tr_chunk_size(k->D, TR_CHUNK, chunk);
    const void *x = tr_loop_at(o->dtype, o->b.in[0], at);
    if (k->to_steps)
        o->loops->quantize(o->dtype, k->is_signed, n.b, n.a, x, (char *)o->b.out[0] + at, count);
    else
        o->loops->elementwise(o->dtype, TR_ELEMENTWISE_fake_quantize, n, x, NULL,
                              tr_loop_to(o->dtype, o->b.out[0], at), count);
}

static float scale_of(const kernel *k, size_t row, float most)
{
    const float scale = TR_DYNAMIC_SCALE(most, TR_DYNAMIC_STEPS(k->is_signed));
    if (k->to_steps) ((float *)k->k.b.out[1])[row] = scale;
    return scale;
}

static void round_row(const kernel *k, size_t row)
{
    float most = 0;
    for (size_t i = 0; i < k->chunks; i++) most = fmaxf(most, largest(k, row, i));
    const float scale = scale_of(k, row, most);
    for (size_t i = 0; i < k->chunks; i++) round_chunk(k, row, i, scale);
}

static void round_row_by_all(const kernel *k, size_t row)
{
    const int threads = k->k.threads;
    float most = 0;
#pragma omp parallel for num_threads(threads) reduction(max : most) schedule(static)
    for (size_t i = 0; i < k->chunks; i++) {
        const float v = largest(k, row, i);
        most = v > most ? v : most;
    }
    const float scale = scale_of(k, row, most);
    TR_PARALLEL(threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) round_chunk(k, row, i, scale);
}

static tr_status run_rows(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const int threads = k->k.threads;
    if (k->rows < (size_t)threads && k->chunks > 1) {
        for (size_t row = 0; row < k->rows; row++) round_row_by_all(k, row);
        return TR_OK;
    }
    TR_PARALLEL(threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++)
        for (size_t n = 0; n < tr_chunk_size(k->rows, k->chunk_rows, i); n++)
            round_row(k, i * k->chunk_rows + n);
    return TR_OK;
}

static tr_status prepare(tr_cpu *cpu, const tr_graph *g, const tr_op *op, bool to_steps,
                         tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0);
    const tr_dynamic_attrs *a = op->attrs;
    kernel *k = NULL;
    const tr_status st = tr_loop_kernel_open(cpu, x, "own", run_rows, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->rows = tr_dynamic_rows(x);
    k->D = k->rows ? x->count / k->rows : 0;
    k->chunks = tr_chunks(k->D, TR_CHUNK);
    k->chunk_rows = k->D < TR_CHUNK / 8 ? TR_CHUNK / 8 / k->D : 1;
    k->is_signed = a->is_signed;
    k->to_steps = to_steps;
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_dynamic_quantize(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, g, op, false, out);
}

tr_status tr_cpu_dynamic_steps(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, g, op, true, out);
}

/* ---- Products ---- */

typedef struct {
    tr_loop_kernel k;
    size_t rows, C, places, chunk_rows; /* places: rows of C with one scale */
    tr_act act;
} rescale_kernel;

enum { SUMS, SCALES, BIAS, RESIDUAL };

static tr_status run_rescale(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const rescale_kernel *k = (const rescale_kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t row = i * k->chunk_rows, at = row * k->C;
        o->loops->rescale(o->dtype, k->act, (const float *)o->b.in[SUMS] + at,
                          (const float *)o->b.in[SCALES] + row / k->places, k->places,
                          o->b.in[BIAS], tr_loop_at(o->dtype, o->b.in[RESIDUAL], at),
                          tr_loop_to(o->dtype, o->b.out[0], at),
                          tr_chunk_size(k->rows, k->chunk_rows, i), k->C);
    }
    return TR_OK;
}

tr_status tr_cpu_rescale(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *y = tr_loop_out(g, op, 0), *scales = tr_loop_in(g, op, SCALES);
    rescale_kernel *k = NULL;
    const tr_status st = tr_loop_kernel_open(cpu, y, "own", run_rescale, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->C = (size_t)y->dims[tr_innermost(y)];
    k->rows = y->count / k->C;
    k->places = k->rows / scales->count;
    /* whole rows of scales */
    k->chunk_rows = (tr_chunk_rows(k->C) + k->places - 1) / k->places * k->places;
    k->act = op->act;
    *out = &k->k.base;
    return TR_OK;
}
