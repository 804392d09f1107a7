/* Values to 8 bits and back: own loops over chunks. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t count;
    bool is_signed;
    float factor;
} kernel;

static tr_status run_quantize(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->count, TR_CHUNK))
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->quantize(o->dtype, k->is_signed, k->is_signed ? -128.0f : 0.0f, k->factor,
                           tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK),
                           (char *)o->b.out[0] + i * TR_CHUNK,
                           tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

static tr_status run_dequantize(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->count, TR_CHUNK))
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->dequantize(
            o->dtype, k->is_signed, k->factor, (const char *)o->b.in[0] + i * TR_CHUNK,
            tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK), tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

/* `values`: the tensor of activations' type; `steps`: that of 8 bits. */
static tr_status prepare(tr_cpu *cpu, const tr_tensor *values, const tr_tensor *steps, bool back,
                         tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, values, "own", back ? run_dequantize : run_quantize,
                                       sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = values->count;
    k->is_signed = steps->dtype == TR_I8;
    k->factor = back ? steps->scale : 1.0f / steps->scale;
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_quantize(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, tr_loop_in(g, op, 0), tr_loop_out(g, op, 0), false, out);
}

tr_status tr_cpu_dequantize(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, tr_loop_out(g, op, 0), tr_loop_in(g, op, 0), true, out);
}
