/* Products of sketched layers that answer for one sample. What such a product costs is the matrix's
 * bytes, so its fixed half stays as bits, a thirty-second of them, which choose from sums of
 * numbers (loops/signs.c); the learned half is a plain product.
 *
 *     down   h = S1 x beside u U2 x              up   y = act(S2 h2 + b + u U1^T h1), h1 beside h2
 *
 * One thread of a Xeon with AVX-512, one sample, 2048 x 1024, 4 terms of rank 64 behind a small
 * layer: 0.140 ms in float32 and 0.057 in bfloat16 for 0.246 and 0.125 of the whole matrix (dense
 * 0.314 and 0.163; signs turned 16 at a time 0.184 and 0.097). Of two samples, which share what is
 * read of the matrix, 0.193 and 0.155 for 0.230 and 0.136. With AVX2, signs turned 8 at a time
 * alone took 82 us where the whole matrix takes 112: not done. */
#include "kernels/cpu/ops/sketch_rows.h"

#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

enum { BITS = 32, CHUNK = 4 * TR_SIGN_ROWS }; /* rows of signs that one thread takes at a time */

typedef struct {
    tr_dnnl_kernel k;
    bool up, made;
    tr_dtype type;
    tr_act act;
    int bits;                     /* which packed copy the signs are */
    size_t in, out, words;        /* of the fixed half: numbers, rows of signs, their words */
    size_t x_at, tables_at, y_at; /* in the workspace: (32 words), their tables, (out) floats */
    tr_status (*pack)(tr_kernel *k, int which);
} kernel;

bool tr_cpu_takes_sketch_rows(const tr_cpu *cpu, const tr_graph *g, const tr_op *op, int64_t rows)
{
    const tr_linear_attrs *a = op->attrs;
    if (!a || (a->sketch.side != TR_SKETCH_DOWN && a->sketch.side != TR_SKETCH_UP)) return false;
    return g->mode == TR_MODE_INFER && rows == 1 && cpu->isa >= TR_ISA_AVX512;
}

/* Bytes, up to whole groups of rows. */
static size_t signs_size(const kernel *k)
{
    return tr_chunks(k->out, TR_SIGN_ROWS) * TR_SIGN_ROWS * k->words * sizeof(uint32_t);
}

/* 1: minus. */
static void make_bits(kernel *k)
{
    float v[TR_SIGNS_BLOCK];
    uint32_t *signs = k->k.bound.packed[k->bits];
    memset(signs, 0, signs_size(k));
    for (size_t r = 0; r < k->out; r++) {
        uint32_t *to = signs + r / TR_SIGN_ROWS * TR_SIGN_ROWS * k->words + r % TR_SIGN_ROWS;
        for (size_t e = 0; e < k->in; e += TR_SIGNS_BLOCK) {
            const size_t n = k->in - e < TR_SIGNS_BLOCK ? k->in - e : TR_SIGNS_BLOCK;
            tr_sketch_signs(&k->k.sketch, (int64_t)r, e, n, 1, v);
            for (size_t i = 0; i < n; i++)
                to[(e + i) / BITS * TR_SIGN_ROWS] |= (uint32_t)(v[i] < 0) << (e + i) % BITS;
        }
    }
}

static tr_status pack(tr_kernel *base, int which)
{
    kernel *k = (kernel *)base;
    if (which != k->bits) return k->pack(base, which);
    if (!k->made) make_bits(k);
    k->made = true;
    return TR_OK;
}

static float *workspace(const kernel *k, size_t at)
{
    return (float *)((char *)k->k.bound.workspace + at);
}

/* The tables of its numbers, zeros behind them up to whole words. */
static const float *tables(const kernel *k)
{
    const tr_cpu_loops *loops = k->k.cpu->loops;
    float *x = workspace(k, k->x_at), *t = workspace(k, k->tables_at);
    if (k->type == TR_BF16)
        loops->cast_f32(x, k->k.bound.in[0], k->in);
    else
        memcpy(x, k->k.bound.in[0], k->in * sizeof *x);
    memset(x + k->in, 0, (k->words * BITS - k->in) * sizeof *x);
    loops->sign_tables(x, k->words * BITS, t);
    return t;
}

static void store(const kernel *k, const float *y)
{
    const tr_cpu_loops *loops = k->k.cpu->loops;
    void *to = tr_loop_to(k->type, k->k.bound.out[0], k->up ? 0 : k->out);
    if (k->type == TR_BF16)
        loops->cast_bf16(to, y, k->out);
    else
        memcpy(to, y, k->out * sizeof *y);
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    kernel *k = (kernel *)base;
    const tr_cpu_loops *loops = k->k.cpu->loops;
    const uint32_t *signs = k->k.bound.packed[k->bits];
    const float unit = tr_sketch_unit(&k->k.sketch);
    const size_t chunks = tr_chunks(k->out, CHUNK);
    float *y = workspace(k, k->y_at);
    tr_status st = TR_OK;
    (void)r;
    tr_dnnl_use(k->k.cpu);
    for (int i = 0; i < k->k.ncalls && st == TR_OK; i++)
        if (k->k.calls[i].when == TR_CALL_ALWAYS) st = tr_dnnl_execute(&k->k, &k->k.calls[i]);
    if (st != TR_OK) return st;
    const float *t = tables(k);
    TR_PARALLEL(k->k.cpu->threads, chunks)
    for (size_t c = 0; c < chunks; c++)
        loops->signed_sums(t, signs + c * CHUNK * k->words, k->words,
                           tr_chunk_size(k->out, CHUNK, c), unit, k->up, y + c * CHUNK);
    if (k->act != TR_ACT_NONE) loops->act(TR_F32, k->act, y, y, k->out);
    store(k, y);
    return TR_OK;
}

/* The learned half: of `down` straight to its part of h, of `up` to the workspace. */
static tr_status add_product(kernel *k, const tr_tensor *weight, bool with_bias)
{
    tr_status st = TR_OK;
    tr_cpu *cpu = k->k.cpu;
    const int64_t out = weight->dims[0], in = weight->dims[1];
    const tr_dnnl_array x = tr_dnnl_matrix(1, in, in, 1, k->type);
    const tr_dnnl_array master = tr_dnnl_matrix(in, out, 1, in, TR_F32);
    const tr_dnnl_array w = tr_dnnl_any(tr_dnnl_matrix(in, out, 1, in, k->type), k->type);
    const tr_dnnl_array b = tr_dnnl_matrix(1, out, out, 1, TR_F32);
    const tr_dnnl_array y = tr_dnnl_matrix(1, out, out, 1, k->up ? TR_F32 : k->type);
    const tr_dnnl_post post = {.act = TR_ACT_NONE};
    const size_t part = k->up ? (size_t)in * tr_dtype_size(k->type) : 0;
    dnnl_primitive_desc_t pd = NULL;
    tr_dnnl_call *call;
    TR_TRY(tr_dnnl_matmul(cpu, &x, &w, with_bias ? &b : NULL, &y, &post, &pd));
    TR_TRY(tr_dnnl_call_add(&k->k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg_part(&k->k, call, DNNL_ARG_SRC, TR_AT_IN, 0, part));
    TR_TRY(tr_dnnl_weights(&k->k, call, DNNL_ARG_WEIGHTS, &master, 1, weight->index));
    if (with_bias) TR_TRY(tr_dnnl_arg(&k->k, call, DNNL_ARG_BIAS, TR_AT_IN, 2));
    if (k->up)
        TR_TRY(tr_dnnl_arg(&k->k, call, DNNL_ARG_DST, TR_AT_WORKSPACE, k->y_at));
    else
        TR_TRY(tr_dnnl_arg(&k->k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    tr_dnnl_finish(&k->k, tr_dnnl_impl(pd));
out:
    return st;
}

static void add_signs(kernel *k, const tr_op *op, const tr_tensor *weight)
{
    const tr_linear_attrs *a = op->attrs;
    k->k.sketch = a->sketch;
    k->k.made = (tr_sketch_format){.type = TR_I8, /* none of a matrix of floats */
                                   .side = a->sketch.side,
                                   .terms = a->sketch.terms,
                                   .rank = a->sketch.rank,
                                   .seed = a->sketch.seed};
    k->bits = k->k.base.npacked++;
    k->k.base.packed[k->bits] = (tr_packing){.param = weight->index,
                                             .nbytes = signs_size(k),
                                             .format = &k->k.made,
                                             .format_size = sizeof k->k.made};
    k->pack = k->k.base.pack;
    k->k.base.pack = pack;
    k->k.base.unpack = NULL;
    k->k.base.run = run;
    k->k.base.impl = "signs as bits";
}

tr_status tr_cpu_sketch_rows(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *x = &g->tensors[op->in[0]], *weight = &g->tensors[op->in[1]];
    const tr_linear_matrix m = tr_linear_matrix_of(op, weight);
    kernel *k = NULL;
    TR_TRY(tr_dnnl_open_more(cpu, sizeof *k, &k));
    k->up = ((const tr_linear_attrs *)op->attrs)->sketch.side == TR_SKETCH_UP;
    k->type = x->dtype;
    k->act = op->act;
    k->in = (size_t)(k->up ? m.in / 2 : m.in);
    k->out = (size_t)(k->up ? m.out : m.out / 2);
    k->words = (k->in + BITS - 1) / BITS;
    k->x_at = tr_dnnl_reserve(&k->k, k->words * BITS * sizeof(float));
    k->tables_at = tr_dnnl_reserve(&k->k, k->words * BITS / 4 * TR_SIGN_ROWS * sizeof(float));
    k->y_at = tr_dnnl_reserve(&k->k, k->out * sizeof(float));
    TR_TRY(add_product(k, weight, op->nin > 2 && op->in[2] >= 0));
    add_signs(k, op, weight);
out:
    return tr_dnnl_hand_over(k ? &k->k : NULL, st, out);
}
