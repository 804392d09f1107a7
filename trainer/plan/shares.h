/* How a global batch becomes what ranks push through at once, and the plans that this takes. Local,
 * pure. */
#ifndef TR_SHARES_H
#define TR_SHARES_H

#include "runtime/plan/plan.h"

#define TR_PLAN_KEYS (24 * (1 + TR_LIST_MAX))

/* The plans that a rank needs over a whole run, one for each mode and number of samples: its shares
 * of a full step and of an epoch's last, shorter one, in training, and the same in evaluation
 * (eval_samples 0: there is none); each for m and for its models of fewer rows (data.buckets).
 * Returns how many. */
size_t tr_plan_keys(const tr_config *c, const tr_model *m, uint64_t train_samples,
                    uint64_t eval_samples, int micro_batches, int rank, int size,
                    tr_plan_key keys[TR_PLAN_KEYS]);
/* The one of `rows` (tr_batch), as a plan's key takes it. */
const tr_model *tr_model_of_rows(const tr_model *m, int64_t rows);

/* Samples of an evaluation's step, of all ranks together; of so many samples in all they are no
 * more than these. */
uint64_t tr_eval_batch(const tr_config *c);
uint64_t tr_eval_at_once(const tr_config *c, uint64_t samples);

/* Micro-batches a step: train.accumulate, or ceil(share / train.micro_batch), or one, whatever the
 * machine: the number decides what batchnorm normalizes over, so it must not depend on free
 * memory. */
int tr_micro_batches(const tr_config *c, int size);

/* Does the graph have batch statistics that depend on the number of ranks? They are made over one
 * micro-batch, whose size does with train.micro_batch (and not with train.accumulate). */
bool tr_micro_batch_matters(const tr_config *c, const tr_graph *g);
#define TR_MICRO_BATCH_ADVICE                                                                      \
    "with train.micro_batch the number of ranks decides over how many samples batchnorm "          \
    "normalizes: train.accumulate: %d gives these micro-batches with any"

/* Bytes that training may take for activations at most (as if none shared memory in time). */
tr_status tr_activation_bound(const tr_config *c, const tr_model *m, int64_t batch, size_t *nbytes);

#endif
