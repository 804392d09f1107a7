/* What a limit on memory leaves to choose: micro-batches, what is recomputed, batches of
 * evaluations. */
#ifndef TR_TRAINER_CHOOSE_H
#define TR_TRAINER_CHOOSE_H

#include "trainer/plan/limit.h"
#include "trainer/plan/offload.h"
#include "trainer/plan/op_time.h"
#include "trainer/plan/planned.h"

typedef struct {
    size_t limit, programs; /* what it was chosen for, and what of that programs take */
    bool fits;
    size_t need;     /* as tr_planned_need; where it does not fit the least that was found */
    bool micro;      /* the micro-batch was left to choose: */
    int64_t at_once; /* train.micro_batch */
    int64_t eval;    /* train.eval.batch; 0: as the config says */
    int kind;        /* tr_recompute_kind */
    int *segments;   /* owned; TR_RECOMPUTE_SEGMENTS */
    bool recompute;  /* that was left to choose */
    bool offload;    /* run.offload: on was chosen */
    tr_offload_cost offloaded;
    int micro_batches;
    double flops, seconds;             /* of a step of rank 0: forward and backward passes */
    size_t plain_need;                 /* as the config is without a choice; SIZE_MAX: too many
                                          samples at once for a kernel */
    double plain_flops, plain_seconds; /* likewise */
    tr_time_source source;             /* of seconds; TR_TIME_COUNTED: they only compare */
} tr_choice;

/* Does run.memory_limit, or train.micro_batch: max, leave something to choose? */
bool tr_chooses(const tr_config *c);
/* *Local.* Plans job after job for `memory` bytes of the space, of which `programs` are taken: the
 * first that fits as it is, else the fastest found. r->both and r->eval are not looked at. */
tr_status tr_plan_choose(const tr_planned *r, tr_space space, size_t memory, size_t programs,
                         tr_choice *out);
void tr_choice_free(tr_choice *c);
/* The keys of `c` that it sets, and what stood there (run.chosen), as overrides with a newline
 * behind each: "train.micro_batch=8\nrun.chosen.train.micro_batch=auto\n". Allocated. */
tr_status tr_choice_overrides(const tr_config *c, const tr_model *m, const tr_choice *of,
                              char **out);
/* The smallest limit that would do, in bytes, whole MiB. Exact on a GPU. On a node what a program
 * holds differs from start to start, and may need another step (tr_program_start): messages put
 * tr_about before it. */
size_t tr_choice_least(const tr_choice *c);
/* "micro-batches of 8 samples (4 a step), ..." in one line. */
void tr_choice_describe(const tr_model *m, const tr_choice *c, char *buf, size_t room);
/* What has something chosen: "run.memory_limit 8GiB", "train.micro_batch max". */
void tr_choice_of(const tr_config *c, char *buf, size_t room);
/* TR_MEMORY, where that stands: "FILE:14:33: training does not fit 8.59 GB on a node of
 * run.memory_limit". `have`: that nothing fits. What else is known goes behind it. */
tr_status tr_choice_refuse(const tr_config *c, tr_space space, size_t have);
/* *Local.* Makes r one of the choice: *config is that of r->c with it, points into the same texts
 * and has to live as long as r; sessions are the caller's to open anew. */
tr_status tr_choice_apply(tr_planned *r, const tr_choice *c, tr_config *config);

#endif
