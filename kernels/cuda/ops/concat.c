/* Concatenation along a dimension and its gradient: copies of row pieces. A row is what is stored
 * from one place of the dimensions before it to the next. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/arrange.h"
#include "kernels/cuda/loops/int8.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows;
    size_t part[TR_MAX_IN]; /* bytes of each piece of a row */
    int count;
} kernel;

static tr_status run_concat(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_concat_run(false, k->k.b.out[0], k->k.b.in, k->part, k->count, k->rows,
                              k->k.cuda->stream);
}

static tr_status run_split(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_concat_run(true, k->k.b.in[0], k->k.b.out, k->part, k->count, k->rows,
                              k->k.cuda->stream);
}

static void set_parts(kernel *k, const tr_tensor *whole, const tr_op *op, int count)
{
    const tr_concat_attrs *a = op->attrs;
    const int axis = (int)a->axis;
    const size_t inner = tr_stored_behind(whole, axis);
    k->rows = whole->count / (inner * (size_t)whole->dims[axis]);
    k->count = count;
    for (int i = 0; i < count; i++)
        k->part[i] = inner * (size_t)a->width[i] * tr_dtype_size(whole->dtype);
}

/* `whole` side by side from pieces, `count` of them. */
static tr_status open_concat(tr_cuda *cuda, const tr_tensor *whole, const tr_op *op, int count,
                             tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, whole, "own: copies", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    set_parts(k, whole, op, count);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cuda_concat(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_concat(cuda, tr_cuda_out(g, op, 0), op, op->nin, run_concat, out);
}

tr_status tr_cuda_concat_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_concat(cuda, tr_cuda_in(g, op, 0), op, op->nout, run_split, out);
}

/* ---- Of 8 bits, each piece with a scale of its own ---- */

typedef struct {
    kernel k;
    bool is_signed, from_signed[TR_MAX_IN];
    float factor[TR_MAX_IN]; /* a piece's scale over the whole's */
    size_t width;            /* bytes of a row of the whole */
} steps_kernel;

static tr_status run_steps(tr_kernel *base, const tr_run *run)
{
    const steps_kernel *s = (const steps_kernel *)base;
    const kernel *k = &s->k;
    tr_status st = TR_OK;
    char *to = k->k.b.out[0];
    (void)run;
    for (int i = 0; i < k->count; to += k->part[i++])
        TR_TRY(tr_cuda_requantize(k->k.cuda->stream, s->from_signed[i], s->is_signed, s->factor[i],
                                  k->k.b.in[i], to, k->rows, k->part[i], s->width));
out:
    return st;
}

tr_status tr_cuda_concat_int8(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *y = tr_cuda_out(g, op, 0);
    tr_status st = TR_OK;
    steps_kernel *s = NULL;
    TR_TRY(tr_cuda_check_count(op, y->count, "of 8 bits side by side"));
    TR_TRY(tr_cuda_kernel_open_steps(cuda, y, "own: rounded copies", run_steps, sizeof *s, &s));
    set_parts(&s->k, y, op, op->nin);
    s->is_signed = y->dtype == TR_I8;
    for (int i = 0; i < op->nin; i++) {
        const tr_tensor *x = tr_cuda_in(g, op, i);
        s->from_signed[i] = x->dtype == TR_I8;
        s->factor[i] = x->scale / y->scale;
        s->width += s->k.part[i];
    }
    *out = &s->k.k.base;
out:
    return st;
}
