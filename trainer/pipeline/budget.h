/* What a stage promised, held against what was measured. Pure. */
#ifndef TR_TRAINER_BUDGET_H
#define TR_TRAINER_BUDGET_H

#include "optimize/stage.h"

typedef struct {
    bool evaluated;
    tr_evaluation before, after;
    uint64_t parent_bytes, bytes; /* of the files */
    double parent_ms, ms;         /* of one sample; 0: not measured */
} tr_measured;

/* The first bound that does not hold, with the measured number; "" where all do. */
typedef struct {
    char text[400];
} tr_miss;

void tr_budget_judge(const tr_budget *b, const tr_measured *m, tr_miss *out);
/* *Local.* Notes attempt number `attempt` - 1 as one of those that missed. */
tr_status tr_miss_note(const tr_miss *m, int attempt, tr_attrs *findings);

#endif
