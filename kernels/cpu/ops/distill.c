/* Losses against a teacher: of logits (softened softmaxes) and of features (squared distance). Each
 * adds to the tally's loss alone, and writes the gradient of the sum of weighted losses times the
 * loss scale. Sums are kept a row, and added in order. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t rows, width;
    double factor;
    float inverse;         /* 1 / temperature; 0: features */
    const double *weights; /* the attributes' */
} kernel;

static double run_row(const kernel *k, size_t r, double weight, float loss_scale)
{
    const tr_loop_kernel *o = &k->k;
    const void *x = tr_loop_at(o->dtype, o->b.in[0], r * k->width);
    const void *teacher = tr_loop_at(o->dtype, o->b.in[1], r * k->width);
    void *dx = tr_loop_to(o->dtype, o->b.out[0], r * k->width);
    const double counts = k->factor * weight, gain = (double)loss_scale * counts;
    return counts * (k->inverse > 0 ? o->loops->soft(o->dtype, x, teacher, k->width, k->inverse, dx,
                                                     (float)(gain * (double)k->inverse))
                                    : o->loops->distance(o->dtype, x, teacher, k->width, dx,
                                                         (float)(2 * gain)));
}

static tr_status run(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const int32_t *labels = k->k.b.in[2]; /* in range: cross entropy has been there */
    double *losses = k->k.b.workspace;
    const size_t some = tr_chunk_rows(k->width) < 16 ? tr_chunk_rows(k->width) : 16;
    TR_PARALLEL(k->k.threads, tr_chunks(k->rows, some))
    for (size_t i = 0; i < tr_chunks(k->rows, some); i++)
        for (size_t r = i * some; r < i * some + tr_chunk_size(k->rows, some, i); r++)
            losses[r] = run_row(k, r, k->weights ? k->weights[labels[r]] : 1.0, run->loss_scale);
    for (size_t r = 0; r < k->rows; r++) run->tally[TR_TALLY_LOSS] += losses[r];
    return TR_OK;
}

static tr_status open(tr_cpu *cpu, const tr_graph *g, const tr_op *op, double temperature,
                      tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0), *teacher = tr_loop_in(g, op, 1);
    const tr_distill_attrs *a = op->attrs;
    kernel *k = NULL;
    if (teacher->dtype != x->dtype || teacher->count != x->count)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu values of a teacher of type %s for %zu",
                       op->layer, teacher->count, tr_dtype_name(teacher->dtype), x->count);
    const tr_status st = tr_loop_kernel_open(cpu, x, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->rows = (size_t)x->dims[0];
    k->width = k->rows ? x->count / k->rows : 0;
    k->factor = a->factor;
    k->inverse = temperature > 0 ? (float)(1 / temperature) : 0;
    k->weights = a->class_weights;
    k->k.base.workspace = k->rows * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_soft_loss(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open(cpu, g, op, ((const tr_distill_attrs *)op->attrs)->temperature, out);
}

tr_status tr_cpu_feature_loss(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open(cpu, g, op, 0, out);
}
