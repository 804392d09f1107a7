/* Losses: cross entropy on logits (label smoothing, class weights), mean squared error, and binary
 * cross entropy on logits. Each adds its sums to the run's tally and, in training, writes the
 * gradient of the sum of weighted losses times the loss scale.
 *
 * Partial sums are kept a row or a chunk and added in order. A row of logits with a NaN or +inf has
 * a loss that is not finite and counts as wrong. */
#include "kernels/cpu/ops/loop_kernel.h"

/* ---- Cross entropy --------------------------------------------------------------------------- */

typedef struct {
    tr_loop_kernel k;
    size_t rows, classes;
    double smoothing, factor;
    const double *weights; /* the attributes': they live as long as the graph */
} xent_kernel;

/* Rows a thread takes at once. */
enum { ROWS = 16, TOP = 5 };

static tr_status check_labels(const xent_kernel *k, const int32_t *labels)
{
    for (size_t i = 0; i < k->rows; i++)
        if (labels[i] < 0 || (size_t)labels[i] >= k->classes)
            return TR_FAIL(TR_DATA, "label %d of sample %zu of the batch is not in 0 .. %zu",
                           (int)labels[i], i, k->classes - 1);
    return TR_OK;
}

static tr_status run_xent(tr_kernel *base, const tr_run *run)
{
    xent_kernel *k = (xent_kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const int32_t *labels = o->b.in[1];
    tr_xent *rows = o->b.workspace;
    tr_status st = check_labels(k, labels);
    if (st != TR_OK) return st;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, ROWS))
    for (size_t i = 0; i < tr_chunks(k->rows, ROWS); i++)
        for (size_t r = i * ROWS; r < i * ROWS + tr_chunk_size(k->rows, ROWS, i); r++)
            rows[r] = o->loops->xent(o->dtype, tr_loop_at(o->dtype, o->b.in[0], r * k->classes),
                                     k->classes, (size_t)labels[r], k->smoothing, k->weights,
                                     tr_loop_to(o->dtype, o->b.out[0], r * k->classes),
                                     run->loss_scale * (float)k->factor);
    for (size_t r = 0; r < k->rows; r++) {
        const bool right = rows[r].finite;
        run->tally[TR_TALLY_LOSS] += k->factor * rows[r].loss;
        run->tally[TR_TALLY_WEIGHT] += k->weights ? k->weights[labels[r]] : 1.0;
        run->tally[TR_TALLY_CORRECT] += right && rows[r].rank == 0;
        if (!o->b.out[0]) run->tally[TR_TALLY_TOP5] += right && rows[r].rank < TOP;
        if (run->confusion)
            run->confusion[(size_t)labels[r] * k->classes + (size_t)rows[r].argmax]++;
    }
    run->tally[TR_TALLY_SAMPLES] += (double)k->rows;
    return TR_OK;
}

tr_status tr_cpu_cross_entropy(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *logits = tr_loop_in(g, op, 0), *labels = tr_loop_in(g, op, 1);
    const tr_cross_entropy_attrs *a = op->attrs;
    const size_t classes = (size_t)logits->dims[1], rows = logits->count / classes;
    xent_kernel *k = NULL;
    if (labels->dtype != TR_I32 || labels->count != rows)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu labels of type %s for %zu rows of logits",
                       op->layer, labels->count, tr_dtype_name(labels->dtype), rows);
    tr_status st = tr_loop_kernel_open(cpu, logits, "own: fused softmax", run_xent, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->rows = rows;
    k->classes = classes;
    k->smoothing = a ? a->label_smoothing : 0.0;
    k->factor = a ? a->factor : 1.0;
    k->weights = a ? a->class_weights : NULL;
    k->k.base.workspace = rows * sizeof(tr_xent);
    *out = &k->k.base;
    return TR_OK;
}

/* ---- Elementwise losses ---------------------------------------------------------------------- */

typedef struct {
    tr_loop_kernel k;
    size_t count, samples;
    bool bce;
} kernel;

typedef struct {
    double loss;
    size_t correct;
} part;

static tr_status run_elementwise(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const tr_loop_kernel *o = &k->k;
    part *parts = o->b.workspace;
    const size_t chunks = tr_chunks(k->count, TR_CHUNK);
    TR_PARALLEL(o->threads, chunks)
    for (size_t i = 0; i < chunks; i++) {
        const void *y = tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK);
        const float *target = (const float *)o->b.in[1] + i * TR_CHUNK;
        void *dy = tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK);
        const size_t n = tr_chunk_size(k->count, TR_CHUNK, i);
        parts[i].correct = 0;
        parts[i].loss =
            k->bce ? o->loops->bce(o->dtype, y, target, dy, n, run->loss_scale, &parts[i].correct)
                   : o->loops->mse(o->dtype, y, target, dy, n, run->loss_scale);
    }
    size_t correct = 0;
    for (size_t i = 0; i < chunks; i++) {
        run->tally[TR_TALLY_LOSS] += parts[i].loss;
        correct += parts[i].correct;
    }
    run->tally[TR_TALLY_WEIGHT] += (double)k->count;
    run->tally[TR_TALLY_SAMPLES] += (double)k->samples;
    run->tally[TR_TALLY_CORRECT] += (double)correct * (double)k->samples / (double)k->count;
    return TR_OK;
}

static tr_status open_elementwise(tr_cpu *cpu, const tr_graph *g, const tr_op *op, bool bce,
                                  tr_kernel **out)
{
    const tr_tensor *y = tr_loop_in(g, op, 0), *target = tr_loop_in(g, op, 1);
    kernel *k = NULL;
    if (target->dtype != TR_F32 || target->count != y->count)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu targets of type %s for %zu outputs",
                       op->layer, target->count, tr_dtype_name(target->dtype), y->count);
    tr_status st = tr_loop_kernel_open(cpu, y, "own", run_elementwise, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = y->count;
    k->samples = (size_t)y->dims[0];
    k->bce = bce;
    k->k.base.workspace = tr_chunks(k->count, TR_CHUNK) * sizeof(part);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_mse(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_elementwise(cpu, g, op, false, out);
}

tr_status tr_cpu_bce(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_elementwise(cpu, g, op, true, out);
}
