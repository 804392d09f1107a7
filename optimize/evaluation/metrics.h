/* Everything that is asked about a model on a set of samples, with the definitions of scikit-learn
 * 1.x (sklearn.metrics): classes by precision, recall, F1, support and the area under the ROC
 * curve, values by errors and R2. */
#ifndef TR_METRICS_FULL_H
#define TR_METRICS_FULL_H

#include "optimize/evaluation/evaluation.h"

/* One class against all others, or a mean over classes. 0 where nothing is there to divide by; auc:
 * NaN without samples on both sides, or with an output that is not a number. */
typedef struct {
    double precision, recall, f1, auc;
    uint64_t support, predicted; /* samples of the class, and those that are taken for it */
} tr_class_metrics;

/* One output against its targets; of all: the mean over outputs. r2: NaN with fewer than two
 * samples; where the targets are all equal 1 if they are met, else 0. */
typedef struct {
    double mae, mse, rmse, r2;
} tr_value_metrics;

typedef struct {
    tr_evaluation mean;
    int64_t rows;                     /* targets of a sample; what is below counts these */
    double perplexity, bits_per_byte; /* NaN: not meant */
    int loss;                         /* tr_loss_kind */
    /* Classes of a softmax, or of one output of bce (two: 0, 1); more outputs of bce are a class
     * each, which a sample may be of or not. 0: values. */
    size_t classes;
    bool labels;                      /* a sample is of one class */
    tr_class_metrics *of;             /* [classes] */
    tr_class_metrics macro, weighted; /* means over classes that occur, plain and by support */
    size_t absent; /* classes that do not occur: no sample is of them, nor taken for one */
    const char *const *names; /* [classes], of values [outputs]; borrowed; NULL: their numbers */
    double auc;               /* of two classes that of class 1, else macro */
    int64_t *confusion;       /* [classes * classes] rows: true, without rows of no class; NULL: no
                                 labels, or above TR_CONFUSION_MAX */
    size_t outputs;           /* of values */
    tr_value_metrics *values, all; /* [outputs] */
} tr_full_evaluation;

#define TR_CONFUSION_MAX 1024

/* *Collective.* Runs `n` over a source. An output has a value a sample, or one for each place of an
 * image or a sequence (tr_kept_outputs), which count alike. A rank keeps scores and targets of its
 * own samples, 8 / ranks bytes a value, of rows of a sample classes and targets, 8 bytes a row,
 * without auc; columns are then brought together some at a time, in 32 MiB more, or 32 bytes a
 * value of one output.
 * The result is the same on every rank, and for any number of ranks and threads bit for bit; to be
 * freed by tr_full_free, also after a failure. */
tr_status tr_evaluate_full(tr_evaluator *e, const tr_network *n, const tr_config *config,
                           tr_over_source source, tr_full_evaluation *out);
void tr_full_free(tr_full_evaluation *f);

/* Outputs and targets of the samples that this rank ran, from which the numbers are computed:
 * samples * (outputs + targets) * 4 bytes of its own, where a sample has several rows of classes, 8
 * bytes a row. The samples of all ranks are [0, samples); a rank's come in `blocks` blocks. */
typedef struct tr_kept tr_kept;
/* What has a row of its own in the numbers: classes of cross_entropy, else channels of an image, or
 * the last dimension. */
size_t tr_kept_outputs(const tr_model *m);
/* *Local.* `c`: of the data, whose normalized targets, and outputs, are taken back to the file's
 * units; it and `comm` are borrowed. */
tr_status tr_kept_open(tr_comm *comm, const tr_model *m, const tr_config *c, uint64_t samples,
                       uint64_t blocks, tr_kept **out);
void tr_kept_close(tr_kept *k); /* NULL is fine */
/* *Local*, in any thread, each block once: `p` has run on the batch, in mode evaluate. */
tr_status tr_kept_add(tr_kept *k, uint64_t block, const tr_backend *backend, void *ctx,
                      const tr_plan *p, const tr_batch *b);
/* *Collective.* All but out->mean, as tr_evaluate_full; once, since outputs become scores. Without
 * `columns` no auc and none of values' numbers, which stay NaN and 0. */
tr_status tr_kept_measure(tr_kept *k, bool columns, tr_full_evaluation *out);

/* What a user is told. *Local.* A confusion matrix of more than 20 classes, and more than 20
 * outputs, are left to JSON, and so are classes that do not occur. */
tr_status tr_full_write_text(const tr_full_evaluation *f, FILE *to);
tr_status tr_full_write_json(const tr_full_evaluation *f, FILE *to);

/* ---- The numbers. *Local.* ------------------------------------------------------------------- */

/* From logits, in place, to scores that order samples as the probabilities of each output do, but
 * do not become 1 for many of them: of cross_entropy log(p / (1 - p)) = z[k] - log(sum of
 * exp(z[j]), j != k), in double, rounded once; else the logits. */
void tr_scores(int loss, size_t samples, size_t outputs, float *z);
/* The class of a row: the first of the greatest; of one output of bce whether it is above 0.
 * TR_NO_CLASS of a row that training counts as neither right nor wrong: with an output that is not
 * a number, or of several one that is inf. */
#define TR_NO_CLASS SIZE_MAX
size_t tr_class_of(int loss, const float *logits, size_t outputs);

/* The area under the ROC curve: the share of pairs of a positive sample and another that the scores
 * put in order, ties counting half (Mann and Whitney, 1947). NaN as above; TR_MEMORY. */
tr_status tr_auc(const float *scores, const bool *positive, size_t samples, double *out);
/* From how often a class was right, predicted and true. */
void tr_class_rates(uint64_t right, uint64_t predicted, uint64_t support, tr_class_metrics *m);
/* f->macro, f->weighted, f->absent from f->of, as scikit-learn's means without `labels`: over
 * classes that samples are of, or are taken for (of outputs that are a class each over all); of auc
 * over those that have one. */
void tr_class_means(tr_full_evaluation *f);
/* Whether the class counts in these means. */
static inline bool tr_class_occurs(const tr_full_evaluation *f, size_t k)
{
    return !f->labels || f->of[k].support > 0 || f->of[k].predicted > 0;
}
void tr_value_rates(const float *y, const float *target, size_t samples, tr_value_metrics *m);

#endif
