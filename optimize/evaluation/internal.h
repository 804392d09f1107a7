/* What the evaluator's files share. */
#ifndef TR_EVALUATION_INTERNAL_H
#define TR_EVALUATION_INTERNAL_H

#include "optimize/evaluation/evaluation.h"

struct tr_evaluator {
    tr_evaluator_options o;
    const tr_backend *backend; /* whose context is borrowed */
    void *backend_ctx;
    int threads; /* of this rank */
    tr_precision precision;
    tr_dataset *data[TR_OVER_SOURCES]; /* NULL until asked for */
};

/* Samples of a batch, where nobody says otherwise. */
int64_t tr_evaluator_batch(const tr_evaluator *e);

/* From the tallies of batches, in their order. `loss`: tr_loss_kind; classes: tr_model's. */
void tr_evaluation_sum(int loss, size_t classes, const double *tallies, uint64_t batches,
                       tr_evaluation *out);

#endif
