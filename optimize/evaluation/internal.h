/* What the evaluator's files share. */
#ifndef TR_EVALUATION_INTERNAL_H
#define TR_EVALUATION_INTERNAL_H

#include "optimize/evaluation/evaluation.h"

struct tr_evaluator {
    tr_evaluator_options o;
    const tr_backend *backend; /* whose context is borrowed */
    void *backend_ctx;
    int threads;         /* of this rank */
    tr_dataset *data[2]; /* data.eval, data.train; NULL until asked for */
};

/* Opened once, against the model of the first network that asks: all have the same inputs. */
tr_status tr_evaluator_data(tr_evaluator *e, const tr_network *n, bool train, tr_dataset **out);

#endif
