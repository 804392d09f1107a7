/* Whether a file that was read back answers as the model does that it was written of. */
#ifndef TR_OPTIMIZE_READBACK_H
#define TR_OPTIMIZE_READBACK_H

#include "optimize/evaluation/evaluation.h"

typedef struct {
    tr_evaluator *evaluator;
    tr_over_source source; /* the samples on which they are compared are of */
    uint64_t samples;      /* the first so many */
    const tr_network *model, *file;
    const tr_config *model_config, *file_config; /* for what is done to inputs */
    const tr_config *run;                        /* what the evaluator's device was opened with */
    tr_dtype weights;                            /* the file's: TR_F32 or TR_F16 */
    const char *path;                            /* the file's, for errors */
} tr_readback;

typedef struct {
    double apart; /* the most that an output differs by */
    double most;  /* the largest output */
} tr_readback_found;

/* What outputs may differ by, over the largest. `host`: they are computed by a CPU. */
double tr_readback_bound(const tr_readback *r, bool host);
/* *Collective.* Fails where the two answer differently, both computed in float32. *out: filled
 * where they were compared. */
tr_status tr_readback_compare(const tr_readback *r, tr_readback_found *out);

#endif
