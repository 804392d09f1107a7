/* What is kept of each sample, and the numbers that follow from it. A sample has rows of outputs:
 * of a class each, or places of an image or a sequence. Counts are added up; what depends on all
 * rows of an output at once (the area under the ROC curve, R2) is computed from whole columns.
 * Column k is brought together in the order of the samples, some columns at a time, and is the work
 * of one rank: so every sum has one order. */
#include "optimize/evaluation/metrics.h"

#include <math.h>
#include <string.h>

#include "optimize/evaluation/internal.h"
#include "optimize/inference/convert.h"

#define TOGETHER ((size_t)1 << 21) /* words that columns are brought together in */

/* Samples of this rank that stand one behind the other. */
typedef struct {
    float *
        outputs; /* [count * rows * outputs] logits; with `said` [count * rows] classes, -1: none */
    float *targets; /* as many, or class labels [count * rows] as floats, NaN of one that does not
                       count; behind `outputs` */
    uint64_t first; /* place of the first one among all samples */
    size_t count;
} block;

struct tr_kept {
    tr_comm *comm;
    const tr_config *config;
    int loss;
    size_t outputs, targets; /* of a row */
    size_t rows; /* of a sample: places with a class each, or with outputs that have targets of
                    their own */
    bool said;   /* rows have a class each, and nothing else is kept of them */
    bool planes; /* outputs of a row lie apart from each other, (outputs, height, width) */
    bool labels; /* a target is a class, or probabilities of which the first of the greatest is */
    uint64_t samples, blocks;
    block *block_of; /* [blocks] empty ones are other ranks' */
    tr_full_evaluation *f;
};

size_t tr_kept_outputs(const tr_model *m)
{
    return m->classes > 0 ? (size_t)m->classes : tr_dataset_target_places(m);
}

tr_status tr_kept_open(tr_comm *comm, const tr_model *m, const tr_config *c, uint64_t samples,
                       uint64_t blocks, tr_kept **out)
{
    tr_status st = TR_OK;
    tr_kept *k = TR_NEW(TR_MEM_OTHER, tr_kept);
    TR_HAVE(k);
    *k = (tr_kept){.comm = comm,
                   .config = c,
                   .loss = c->model.loss.kind.which,
                   .outputs = tr_kept_outputs(m),
                   .rows = (size_t)m->outputs / tr_kept_outputs(m),
                   .said = m->rows > 1,
                   .planes = m->rows > 1 ? !tr_is_sequence(m)
                                         : m->target_layout == TR_LAYOUT_CHANNELS_LAST,
                   .labels = m->labels || tr_loss_soft(&c->model.loss),
                   .samples = samples,
                   .blocks = blocks};
    k->targets = k->labels ? 1 : k->outputs;
    TR_HAVE(k->block_of = tr_alloc(TR_MEM_OTHER, blocks, sizeof *k->block_of));
    *out = k;
    return TR_OK;
out:
    tr_kept_close(k);
    return st;
}

void tr_kept_close(tr_kept *k)
{
    if (!k) return;
    for (uint64_t b = 0; k->block_of && b < k->blocks; b++) tr_free(k->block_of[b].outputs);
    tr_free(k->block_of);
    tr_free(k);
}

/* Of a batch that has so many rows a sample; those that it lacks are ignored ones. */
static void take_classes(const tr_kept *k, size_t rows, bool soft, const tr_batch *b, float *out)
{
    const tr_loss_config *loss = &k->config->model.loss;
    for (size_t i = 0; i < (size_t)b->count * k->rows; i++) {
        const size_t at = i / k->rows * rows + i % k->rows;
        const float *t = (const float *)b->targets + at * k->outputs;
        size_t best = 0;
        if (i % k->rows >= rows) {
            out[i] = NAN;
            continue;
        }
        if (!soft) {
            const int32_t label = ((const int32_t *)b->targets)[at];
            out[i] = label < 0 || label == loss->ignore_index ? NAN : (float)label;
            continue;
        }
        for (size_t c = 1; c < k->outputs; c++)
            if (t[c] > t[best]) best = c;
        out[i] = (float)best;
    }
}

/* The class of each row; outputs are channels first, as in a file. */
static void take_said(const tr_kept *k, size_t rows, const float *z, float *row, block *own)
{
    const size_t C = k->outputs, apart = k->planes ? rows : 1, next = k->planes ? 1 : C;
    for (size_t i = 0; i < own->count * k->rows; i++) {
        own->outputs[i] = -1.0f;
        if (i % k->rows >= rows) continue;
        const float *from = z + i / k->rows * rows * C + i % k->rows * next;
        for (size_t c = 0; c < C; c++) row[c] = from[c * apart];
        const size_t said = tr_class_of(k->loss, row, C);
        if (said != TR_NO_CLASS) own->outputs[i] = (float)said;
    }
}

static tr_status add_rows(const tr_kept *k, block *own, const tr_backend *backend, void *ctx,
                          const tr_plan *p)
{
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(p);
    const size_t rows = (size_t)g->model->rows, batch = (size_t)g->batch * rows * k->outputs;
    float *z = tr_alloc(TR_MEM_OTHER, batch + k->outputs, sizeof *z);
    TR_HAVE(z);
    TR_TRY(tr_plan_output(backend, ctx, p, z));
    take_said(k, rows, z, z + batch, own);
out:
    tr_free(z);
    return st;
}

tr_status tr_kept_add(tr_kept *k, uint64_t at, const tr_backend *backend, void *ctx,
                      const tr_plan *p, const tr_batch *b)
{
    const tr_graph *g = tr_plan_graph(p);
    block *own = &k->block_of[at];
    tr_status st = TR_OK;
    own->first = b->ordinal;
    own->count = (size_t)b->count;
    const size_t kept = k->said ? k->rows : k->rows * k->outputs;
    own->outputs =
        tr_alloc(TR_MEM_OTHER, own->count * (kept + k->rows * k->targets), sizeof(float));
    TR_HAVE(own->outputs);
    own->targets = own->outputs + own->count * kept;
    if (k->said)
        TR_TRY(add_rows(k, own, backend, ctx, p));
    else
        TR_TRY(tr_plan_output(backend, ctx, p, own->outputs));
    if (k->labels)
        take_classes(k, (size_t)g->model->rows, g->tensors[g->target].dtype == TR_F32, b,
                     own->targets);
    else
        tr_convert_out(&g->tensors[g->target], b->targets, own->targets);
    if (!k->labels && !tr_loss_binary(k->loss)) {
        tr_over_denormalize_but_mean(k->config, g->model, own->count, own->outputs);
        tr_over_denormalize_but_mean(k->config, g->model, own->count, own->targets);
    }
out:
    return st;
}

/* ---- Counts ---------------------------------------------------------------------------------- */

/* Of a class: right, predicted, true. */
enum { RIGHT, PREDICTED, TRUE_OF, COUNTS };

static size_t said_of(const tr_kept *k, const block *b, size_t i)
{
    if (!k->said) return tr_class_of(k->loss, b->outputs + i * k->outputs, k->outputs);
    return b->outputs[i] < 0 ? TR_NO_CLASS : (size_t)b->outputs[i];
}

static void count_labels(const tr_kept *k, const block *b, int64_t (*counts)[COUNTS])
{
    for (size_t i = 0; i < b->count * k->rows; i++) {
        const float t = b->targets[i];
        if (isnan(t)) continue;
        const size_t is = tr_loss_binary(k->loss) ? t > 0.5f : (size_t)t;
        const size_t said = said_of(k, b, i);
        counts[is][TRUE_OF]++;
        if (said == TR_NO_CLASS) continue;
        counts[said][PREDICTED]++;
        counts[is][RIGHT] += is == said;
        if (k->f->confusion) k->f->confusion[is * k->f->classes + said]++;
    }
}

static void count_each(const tr_kept *k, const block *b, int64_t (*counts)[COUNTS])
{
    const size_t run = k->planes ? k->rows : 1;
    for (size_t i = 0; i < b->count * k->rows * k->outputs; i++) {
        const bool is = b->targets[i] > 0.5f, said = b->outputs[i] > 0;
        int64_t *c = counts[i / run % k->outputs];
        c[TRUE_OF] += is;
        c[PREDICTED] += said;
        c[RIGHT] += is && said;
    }
}

/* *Collective.* */
static tr_status count_classes(const tr_kept *k)
{
    tr_status st;
    tr_full_evaluation *f = k->f;
    const size_t cells = f->confusion ? f->classes * f->classes : 0;
    int64_t(*counts)[COUNTS] = tr_alloc(TR_MEM_OTHER, f->classes, sizeof *counts);
    TR_TRY(tr_agree(k->comm, counts ? TR_OK : tr_last_status(), NULL));
    for (uint64_t b = 0; b < k->blocks; b++)
        (f->labels ? count_labels : count_each)(k, &k->block_of[b], counts);
    TR_TRY(tr_comm_all_reduce(k->comm, counts, f->classes * COUNTS, TR_I64));
    if (cells) TR_TRY(tr_comm_all_reduce(k->comm, f->confusion, cells, TR_I64));
    for (size_t c = 0; c < f->classes; c++)
        tr_class_rates((uint64_t)counts[c][RIGHT], (uint64_t)counts[c][PREDICTED],
                       (uint64_t)counts[c][TRUE_OF], &f->of[c]);
out:
    tr_free(counts);
    return st;
}

/* ---- Columns --------------------------------------------------------------------------------- */

/* A row's output and target in a column, as a word that all ranks but one leave 0. */
typedef union {
    float v[2];
    int64_t word;
} pair;

/* Where output `c` of a block's row `i` is. */
static size_t place_of(const tr_kept *k, size_t i, size_t c)
{
    const size_t R = k->rows, C = k->outputs;
    return k->planes ? (i / R * C + c) * R + i % R : i * C + c;
}

/* This rank's part of column `c`. */
static void fill(const tr_kept *k, size_t c, pair *to)
{
    const bool labels = k->f->classes && k->f->labels && k->loss == TR_LOSS_CROSS_ENTROPY;
    for (uint64_t b = 0; b < k->blocks; b++) {
        const block *own = &k->block_of[b];
        pair *at = to + own->first * k->rows;
        for (size_t i = 0; i < own->count * k->rows; i++) {
            const size_t from = place_of(k, i, c);
            at[i].v[0] = own->outputs[from];
            at[i].v[1] = !labels                  ? own->targets[from]
                         : isnan(own->targets[i]) ? NAN
                                                  : (float)(own->targets[i] == (float)c);
        }
    }
}

/* Pairs of a column. */
static size_t length(const tr_kept *k)
{
    return (size_t)k->samples * k->rows;
}

typedef struct {
    float *y, *target; /* [length] */
    bool *positive;
} column;

/* numbers: of the column: auc, or mae, mse, rmse, r2. */
static tr_status compute(const tr_kept *k, const pair *from, column *c, double numbers[4])
{
    tr_value_metrics v;
    size_t n = 0;
    for (size_t i = 0; i < length(k); i++) {
        if (isnan(from[i].v[1])) continue;
        c->y[n] = from[i].v[0];
        c->target[n] = from[i].v[1];
        c->positive[n++] = from[i].v[1] > 0.5f;
    }
    if (k->f->classes) return tr_auc(c->y, c->positive, n, numbers);
    tr_value_rates(c->y, c->target, n, &v);
    memcpy(numbers, &v, sizeof v);
    return TR_OK;
}

/* *Collective.* Columns [first, first + n) of `words`, each dealt to a rank. */
static tr_status work_on(const tr_kept *k, size_t first, size_t n, pair *words, column *c,
                         double (*numbers)[4])
{
    const tr_topology *t = tr_comm_topology(k->comm);
    tr_status st;
    memset(words, 0, n * length(k) * sizeof *words);
    for (size_t i = 0; i < n; i++) fill(k, first + i, words + i * length(k));
    TR_TRY(tr_comm_all_reduce(k->comm, words, n * length(k), TR_I64));
    tr_comm_busy(k->comm, TR_BUSY_COMPUTES);
    for (size_t i = 0; i < n && st == TR_OK; i++)
        if ((first + i) % (size_t)t->size == (size_t)t->rank)
            st = compute(k, words + i * length(k), c, numbers[first + i]);
    tr_comm_busy(k->comm, TR_BUSY_NOT);
    st = tr_agree(k->comm, st, NULL);
out:
    return st;
}

/* *Collective.* numbers: [outputs], the same on every rank. */
static tr_status run_columns(const tr_kept *k, double (*numbers)[4])
{
    tr_status st;
    tr_comm *comm = k->comm;
    const size_t fit = TOGETHER / length(k), most = fit > 1 ? fit : 1;
    const size_t n = most < k->outputs ? most : k->outputs;
    pair *words = tr_alloc(TR_MEM_OTHER, n * length(k), sizeof *words);
    column c = {.y = tr_alloc(TR_MEM_OTHER, length(k), sizeof(float)),
                .target = tr_alloc(TR_MEM_OTHER, length(k), sizeof(float)),
                .positive = tr_alloc(TR_MEM_OTHER, length(k), sizeof(bool))};
    TR_TRY(tr_agree(comm, words && c.y && c.target && c.positive ? TR_OK : tr_last_status(), NULL));
    for (size_t at = 0; at < k->outputs; at += n)
        TR_TRY(work_on(k, at, n < k->outputs - at ? n : k->outputs - at, words, &c, numbers));
    TR_TRY(tr_comm_all_reduce(comm, numbers, 4 * k->outputs, TR_F64));
out:
    tr_free(words);
    tr_free(c.y);
    tr_free(c.target);
    tr_free(c.positive);
    return st;
}

static void take_numbers(tr_full_evaluation *f, size_t outputs, double (*numbers)[4])
{
    for (size_t k = 0; k < outputs && f->classes; k++)
        f->of[outputs == 1 ? 1 : k].auc = numbers[k][0];
    if (f->classes && outputs == 1) f->of[0].auc = f->of[1].auc; /* pairs are the same */
    if (f->classes) {
        tr_class_means(f);
        f->auc = f->labels && f->classes == 2 ? f->of[1].auc : f->macro.auc;
        return;
    }
    for (size_t k = 0; k < outputs; k++) {
        memcpy(&f->values[k], numbers[k], sizeof numbers[k]);
        f->all.mae += f->values[k].mae / (double)outputs;
        f->all.mse += f->values[k].mse / (double)outputs;
        f->all.r2 += f->values[k].r2 / (double)outputs;
    }
    f->all.rmse = sqrt(f->all.mse);
}

/* ---- All of it ------------------------------------------------------------------------------- */

static tr_status prepare(tr_kept *k, tr_full_evaluation *f)
{
    const bool one = tr_loss_binary(k->loss) && k->outputs == 1;
    tr_status st = TR_OK;
    k->f = f;
    f->loss = k->loss;
    f->labels = k->labels || one;
    f->classes = !tr_loss_counts(k->loss) ? 0 : one ? 2 : k->outputs;
    f->outputs = f->classes ? 0 : k->outputs;
    TR_HAVE(f->of = tr_alloc(TR_MEM_OTHER, f->classes, sizeof *f->of));
    TR_HAVE(f->values = tr_alloc(TR_MEM_OTHER, f->outputs, sizeof *f->values));
    if (f->labels && f->classes <= TR_CONFUSION_MAX)
        TR_HAVE(f->confusion =
                    tr_alloc(TR_MEM_OTHER, f->classes * f->classes, sizeof *f->confusion));
out:
    return st;
}

tr_status tr_kept_measure(tr_kept *k, bool columns, tr_full_evaluation *f)
{
    tr_status st;
    double(*numbers)[4] = NULL;
    columns = columns && !k->said;
    TR_TRY(tr_agree(k->comm, prepare(k, f), NULL));
    if (f->classes) TR_TRY(count_classes(k));
    for (uint64_t b = 0; columns && b < k->blocks; b++)
        tr_scores(k->loss, k->block_of[b].count, k->outputs, k->block_of[b].outputs);
    numbers = tr_alloc(TR_MEM_OTHER, k->outputs, sizeof *numbers);
    TR_TRY(tr_agree(k->comm, numbers ? TR_OK : tr_last_status(), NULL));
    if (columns) TR_TRY(run_columns(k, numbers));
    for (size_t c = 0; c < k->outputs && !columns; c++) numbers[c][0] = NAN;
    take_numbers(f, k->outputs, numbers);
out:
    tr_free(numbers);
    return st;
}
