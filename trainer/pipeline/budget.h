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

/* Each bound that does not hold, with the measured number; "" where all do. */
typedef struct {
    bool cost; /* one of size or time is among them: what is milder is larger and slower */
    char text[900];
} tr_miss;

void tr_budget_judge(const tr_budget *b, const tr_measured *m, tr_miss *out);
/* What an attempt came to. */
typedef struct {
    int number;                      /* from 1 */
    const tr_evaluation *evaluation; /* NULL: not evaluated */
    uint64_t nbytes;                 /* of its file */
    double ms;                       /* of one sample; 0: not measured */
} tr_attempt;

/* *Local.* Notes an attempt as one of those that missed: attempt_1 is what it missed,
 * attempt_1_options the stage's options (YAML) in one line, attempt_1_loss and so on what was
 * measured. */
tr_status tr_attempt_note(const tr_attempt *a, const tr_miss *m, const char *options,
                          tr_attrs *findings);

#endif
