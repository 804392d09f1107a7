/* Matrices that are part a parameter, part fixed signs (tr_sketch_matrix), as packed copies. In
 * training they are plain, and made in place: the signs once, the learned part once an update. A
 * layout of the library's own, which only weights have that stay as they are (infer), is a copy of
 * one in float32 in the workspace. */
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/onednn/onednn.h"

#include <string.h>

static void put(const tr_dnnl_kernel *k, const float *from, void *to, size_t at, size_t count,
                tr_dtype type)
{
    if (type == TR_BF16)
        k->cpu->loops->cast_bf16((tr_bf16 *)to + at, from, count);
    else
        memcpy((float *)to + at, from, count * sizeof(float));
}

/* Row `row` of the matrix: its signs stand at `at`. */
static void put_signs(const tr_dnnl_kernel *k, int64_t row, void *to, size_t at, size_t count,
                      tr_dtype type)
{
    float v[8 * TR_SIGNS_BLOCK];
    for (size_t e = 0; e < count; e += TR_COUNT(v)) {
        const size_t n = count - e < TR_COUNT(v) ? count - e : TR_COUNT(v);
        tr_sketch_signs(&k->sketch, row, e, n, tr_sketch_unit(&k->sketch), v);
        put(k, v, to, at + e, n, type);
    }
}

static void make_row(const tr_dnnl_kernel *k, int64_t r, void *to, tr_dtype type, bool signs)
{
    const tr_linear_matrix *m = &k->matrix;
    const size_t width = (size_t)m->in, columns = (size_t)m->learned[1], at = (size_t)r * width;
    const float *learned = k->bound.in[1];
    if (r < m->learned[0])
        put(k, learned + (size_t)r * columns, to, at + (size_t)m->at[1], columns, type);
    if (!signs) return;
    if (k->sketch.side != TR_SKETCH_DOWN)
        put_signs(k, r, to, at, width - columns, type);
    else if (r >= m->learned[0])
        put_signs(k, r - m->learned[0], to, at, width, type);
}

static void make(tr_dnnl_kernel *k, void *to, tr_dtype type, bool signs)
{
    const int threads = k->cpu->threads;
    const int64_t rows = k->matrix.out;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) make_row(k, r, to, type, signs);
}

tr_status tr_dnnl_pack_sketch(tr_dnnl_kernel *k, int which)
{
    tr_status st = TR_OK;
    tr_dnnl_call *c = NULL;
    for (int i = 0; i < k->ncalls; i++)
        if (k->calls[i].when == TR_CALL_PACK) c = &k->calls[i];
    if (!c) {
        make(k, k->bound.packed[which], k->made.type == TR_BF16 ? TR_BF16 : TR_F32,
             !k->signed_once);
        k->signed_once = true;
        return TR_OK;
    }
    make(k, (char *)k->bound.workspace + k->plain, TR_F32, true);
    TR_TRY(tr_dnnl_execute(k, c));
    TR_DNNL(dnnl_stream_wait(k->cpu->stream), "wait for a primitive");
out:
    return st;
}

void tr_dnnl_sketch_plain(tr_dnnl_kernel *k, tr_dtype type, const tr_op *op,
                          const tr_tensor *weight)
{
    const tr_linear_attrs *a = op->attrs;
    k->sketched = true;
    k->sketch = a->sketch;
    k->matrix = tr_linear_matrix_of(op, weight);
    k->made = (tr_sketch_format){.type = type,
                                 .side = a->sketch.side,
                                 .terms = a->sketch.terms,
                                 .rank = a->sketch.rank,
                                 .seed = a->sketch.seed};
    k->base.packed[k->base.npacked++] =
        (tr_packing){.param = weight->index,
                     .nbytes = (size_t)(k->matrix.out * k->matrix.in) * tr_dtype_size(type),
                     .format = &k->made,
                     .format_size = sizeof k->made};
}

tr_status tr_dnnl_sketch(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg, const tr_dnnl_array *plain,
                         const tr_op *op, const tr_tensor *weight)
{
    tr_status st = TR_OK;
    dnnl_primitive_desc_t pd = NULL;
    tr_dnnl_call *pack;
    tr_dnnl_array from = *plain;
    if (k->sketched) return tr_dnnl_arg(k, c, arg, TR_AT_PACKED, 0);
    tr_dnnl_sketch_plain(k, plain->type == dnnl_bf16 ? TR_BF16 : TR_F32, op, weight);
    TR_TRY(tr_dnnl_arg(k, c, arg, TR_AT_PACKED, 0));
    if (tr_dnnl_arg_is(c->pd, arg, plain)) goto out;
    from.type = dnnl_f32;
    TR_TRY(tr_dnnl_reorder(k->cpu, &from, c->pd, arg, false, false, &pd));
    tr_dnnl_format_of(c->pd, arg, &k->formats[0]);
    k->base.packed[0].nbytes = tr_dnnl_arg_size(c->pd, arg);
    k->base.packed[0].format = &k->formats[0];
    k->base.packed[0].format_size = sizeof k->formats[0];
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_PACK, pd, &pack));
    k->plain = tr_dnnl_reserve(k, (size_t)(k->matrix.out * k->matrix.in) * sizeof(float));
    TR_TRY(tr_dnnl_arg(k, pack, DNNL_ARG_FROM, TR_AT_WORKSPACE, k->plain));
    TR_TRY(tr_dnnl_arg(k, pack, DNNL_ARG_TO, TR_AT_PACKED, 0));
out:
    return st;
}
