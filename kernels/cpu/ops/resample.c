/* Adaptive average pooling, padding, upsampling and their gradients: one loop over lists of taps,
 * which are made when the kernel is prepared (loops/resample.c). */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    tr_cpu_resampling p;
    size_t rows, chunk_rows; /* of what is written: images times their height */
} kernel;

static tr_status run_resample(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t begin = i * k->chunk_rows;
        o->loops->resample(&k->p, o->b.in[0], o->b.out[0], begin,
                           begin + tr_chunk_size(k->rows, k->chunk_rows, i));
    }
    return TR_OK;
}

static void close_resample(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_free(k->p.rows.begin);
    tr_free(k->p.columns.begin);
    tr_free(k);
}

tr_status tr_cpu_resample(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0), *y = tr_loop_out(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    const tr_places from = tr_places_of(x), to = tr_places_of(y);
    TR_NEED(from.channels == to.channels, TR_UNSUPPORTED, "layer %s: channels that do not stay",
            op->layer);
    TR_TRY(tr_loop_kernel_open(cpu, x, "own: by taps", run_resample, sizeof *k, &k));
    k->k.base.close = close_resample;
    k->p = (tr_cpu_resampling){.type = x->dtype,
                               .C = (size_t)from.channels,
                               .H = (size_t)from.size[0],
                               .W = (size_t)from.size[1],
                               .value = tr_resample_value(op)};
    TR_TRY(tr_resample_taps(g, op, 0, &k->p.rows));
    TR_TRY(tr_resample_taps(g, op, 1, &k->p.columns));
    k->rows = (size_t)(y->dims[0] * to.size[0]);
    /* steps of a row: taps of all its places, and of an average row of it */
    const size_t steps = (k->p.columns.count + 1) * (k->p.rows.count / k->p.rows.size + 1) * k->p.C;
    k->chunk_rows = TR_CHUNK / steps > 1 ? TR_CHUNK / steps : 1;
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_resample(&k->k.base);
    return st;
}
