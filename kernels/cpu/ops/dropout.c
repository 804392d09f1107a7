/* Dropout, forward and backward alike: the mask is made again from the sample's ordinal and the
 * element's place in it, so nothing is kept and no rank count or resume changes it. drop_path: by
 * the sample alone. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t samples, elements, pieces; /* a sample's elements, cut into pieces of TR_CHUNK */
    uint32_t stream;
    float p, scale;
} kernel;

static tr_status run_dropout(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const uint64_t key = tr_philox_key(run->seed, TR_RNG_DROPOUT, k->stream);
    TR_PARALLEL(o->threads, k->samples * k->pieces)
    for (size_t i = 0; i < k->samples * k->pieces; i++) {
        const size_t sample = i / k->pieces, piece = i % k->pieces, first = piece * TR_CHUNK;
        const size_t at = sample * k->elements + first;
        o->loops->dropout(o->dtype, tr_loop_at(o->dtype, o->b.in[0], at),
                          tr_loop_to(o->dtype, o->b.out[0], at),
                          tr_chunk_size(k->elements, TR_CHUNK, piece), key, run->ordinal + sample,
                          first, k->p, k->scale);
    }
    return TR_OK;
}

static tr_status run_path(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const uint64_t key = tr_philox_key(run->seed, TR_RNG_DROPOUT, k->stream);
    TR_PARALLEL(o->threads, k->samples * k->pieces)
    for (size_t i = 0; i < k->samples * k->pieces; i++) {
        const size_t sample = i / k->pieces, piece = i % k->pieces;
        const size_t at = sample * k->elements + piece * TR_CHUNK;
        const size_t n = tr_chunk_size(k->elements, TR_CHUNK, piece);
        void *y = tr_loop_to(o->dtype, o->b.out[0], at);
        if (tr_uniform(tr_philox_block(key, run->ordinal + sample, 0).v[0]) >= k->p)
            o->loops->scale(o->dtype, tr_loop_at(o->dtype, o->b.in[0], at), k->scale, y, n);
        else
            memset(y, 0, n * tr_dtype_size(o->dtype));
    }
    return TR_OK;
}

static tr_status open_dropout(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                              tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_tensor *t = tr_loop_in(g, op, 0);
    const tr_dropout_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->samples = (size_t)t->dims[0];
    k->elements = t->count / (k->samples ? k->samples : 1);
    k->pieces = tr_chunks(k->elements, TR_CHUNK);
    k->stream = (uint32_t)op->layer_index;
    k->p = (float)a->p;
    k->scale = (float)(1.0 / (1.0 - a->p));
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_dropout(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_dropout(cpu, g, op, run_dropout, out);
}

tr_status tr_cpu_drop_path(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_dropout(cpu, g, op, run_path, out);
}
