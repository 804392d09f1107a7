/* The loss curve and evaluations so far, kept for the run files. Local, rank 0.
 *
 * At most TR_HISTORY_MOST rows of each kind: when they are full every other row is dropped, so that
 * a run of any length keeps a curve of even density in bounded memory. metrics.jsonl has every
 * record. */
#ifndef TR_HISTORY_H
#define TR_HISTORY_H

#include "runtime/store/store.h"

#define TR_HISTORY_MOST ((size_t)1 << 15)

/* Room for so many more rows (bounded by TR_HISTORY_MOST in all) and a confusion matrix of
 * `cells`. */
tr_status tr_history_reserve(tr_history *h, size_t steps, size_t evals, size_t cells);
void tr_history_add_step(tr_history *h, const struct tr_history_step *row);
void tr_history_add_eval(tr_history *h, const struct tr_history_eval *row);
/* `to` has at least from's room. */
void tr_history_copy(tr_history *to, const tr_history *from);

#endif
