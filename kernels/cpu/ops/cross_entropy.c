/* Cross entropy on logits, of class labels or of probabilities: label smoothing, class weights,
 * labels that do not count, focal loss. It adds its sums to the run's tally and, in training,
 * writes the gradient of the sum of weighted losses times the loss scale.
 *
 * The gradient may have the logits' bytes: each row is read whole before it is written, or element
 * by element. Partial sums are kept a row and added in order. A row of logits with a NaN or +inf
 * has a loss that is not finite and counts as wrong. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t rows, classes, samples;
    size_t each;   /* rows of a sample */
    bool soft;     /* the target is probabilities */
    bool weighted; /* samples have weights */
    bool ignores;  /* rows with this label: */
    int32_t ignored;
    const tr_cross_entropy_attrs *a; /* the graph's */
} xent_kernel;

/* Rows a thread takes at once. */
enum { ROWS = 16, TOP = 5 };

static bool ignored(const xent_kernel *k, int32_t label)
{
    return k->ignores && label == k->ignored;
}

static tr_status check_labels(const xent_kernel *k, const int32_t *labels)
{
    for (size_t i = 0; i < k->rows; i++)
        if (!ignored(k, labels[i]) && (labels[i] < 0 || (size_t)labels[i] >= k->classes))
            return TR_FAIL(TR_DATA, "label %d of sample %zu of the batch is not in 0 .. %zu",
                           (int)labels[i], i / k->each, k->classes - 1);
    return TR_OK;
}

/* What row r counts: as much as its sample. */
static double weight_of(const xent_kernel *k, size_t r)
{
    return k->weighted ? (double)((const float *)k->k.b.in[2])[r / k->each] : 1.0;
}

/* A label of -1: the row does not count. */
static tr_xent run_row(const xent_kernel *k, size_t r, float scale)
{
    const tr_loop_kernel *o = &k->k;
    const tr_cross_entropy_attrs *a = k->a;
    const size_t C = k->classes;
    const void *z = tr_loop_at(o->dtype, o->b.in[0], r * C);
    void *dz = tr_loop_to(o->dtype, o->b.out[0], r * C);
    if (k->soft)
        return o->loops->xent_soft(o->dtype, z, (const float *)o->b.in[1] + r * C, C,
                                   a->label_smoothing, a->class_weights, dz, scale);
    const int32_t label = ((const int32_t *)o->b.in[1])[r];
    if (!ignored(k, label))
        return o->loops->xent(o->dtype, z, C, (size_t)label, a->label_smoothing, a->gamma,
                              a->class_weights, dz, scale);
    if (dz) memset(dz, 0, C * (o->dtype == TR_BF16 ? 2 : 4));
    return (tr_xent){.label = -1};
}

static void add_row(const xent_kernel *k, size_t r, const tr_xent *row, const tr_run *run)
{
    const bool right = row->finite;
    const double w = weight_of(k, r);
    if (row->label < 0) return;
    run->tally[TR_TALLY_LOSS] += w * k->a->factor * row->loss;
    run->tally[TR_TALLY_WEIGHT] +=
        w * (k->a->class_weights && !k->soft ? k->a->class_weights[row->label] : 1.0);
    run->tally[TR_TALLY_SAMPLES] += k->each == 1;
    run->tally[TR_TALLY_TARGETS]++;
    run->tally[TR_TALLY_CORRECT] += right && row->rank == 0;
    if (!k->k.b.out[0]) run->tally[TR_TALLY_TOP5] += right && row->rank < TOP;
    if (run->confusion) run->confusion[(size_t)row->label * k->classes + (size_t)row->argmax]++;
}

static tr_status run_xent(tr_kernel *base, const tr_run *run)
{
    const xent_kernel *k = (const xent_kernel *)base;
    const size_t chunks = tr_chunks(k->rows, ROWS);
    tr_xent *rows = k->k.b.workspace;
    const tr_status st = k->soft ? TR_OK : check_labels(k, k->k.b.in[1]);
    if (st != TR_OK) return st;
    TR_PARALLEL(k->k.threads, chunks)
    for (size_t i = 0; i < chunks; i++)
        for (size_t r = i * ROWS; r < i * ROWS + tr_chunk_size(k->rows, ROWS, i); r++)
            rows[r] = run_row(k, r, run->loss_scale * (float)(k->a->factor * weight_of(k, r)));
    for (size_t r = 0; r < k->rows; r++) add_row(k, r, &rows[r], run);
    if (k->each > 1) run->tally[TR_TALLY_SAMPLES] += (double)k->samples;
    return TR_OK;
}

tr_status tr_cpu_cross_entropy(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *logits = tr_loop_in(g, op, 0), *target = tr_loop_in(g, op, 1);
    const size_t classes = (size_t)logits->dims[tr_innermost(logits)];
    const size_t rows = logits->count / classes, samples = (size_t)logits->dims[0];
    const bool soft = target->dtype == TR_F32;
    xent_kernel *k = NULL;
    if (target->count != (soft ? logits->count : rows) || (!soft && target->dtype != TR_I32))
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu targets of type %s for %zu rows of logits",
                       op->layer, target->count, tr_dtype_name(target->dtype), rows);
    tr_status st = tr_loop_kernel_open(cpu, logits, "own: fused softmax", run_xent, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->rows = rows;
    k->classes = classes;
    k->samples = samples;
    k->each = samples ? rows / samples : 1;
    k->soft = soft;
    k->weighted = tr_loop_in(g, op, 2) != NULL;
    k->a = op->attrs;
    k->ignores = tr_xent_ignores(k->a, g->mode, k->each, &k->ignored);
    k->k.base.workspace = rows * sizeof(tr_xent);
    *out = &k->k.base;
    return TR_OK;
}
