/* What `trainer plan` plans: a config, its data and its teacher on a machine. All Local. */
#ifndef TR_TRAINER_PLANNED_H
#define TR_TRAINER_PLANNED_H

#include "trainer/models/teacher.h"
#include "trainer/plan/assume.h"
#include "trainer/plan/plan.h"

typedef struct {
    const tr_config *c;
    const tr_model *m;
    FILE *notes; /* what is assumed, a line each */
    tr_assumed on;
    void *backend_ctx;
    int micro_batches;
    const int *segments;  /* tr_segments_read of c; not owned */
    unsigned skip_passes; /* beside the config's */
    size_t rss_before;    /* resident before anything is planned */
    bool counted;         /* the data was there to be counted */
    uint64_t train_samples, eval_samples;
    size_t train_held, eval_held, train_loader, eval_loader;
    tr_dataset *train_data, *eval_data; /* NULL where they are not there, or there is none */
    tr_session *both, *eval;            /* what training holds; evaluation alone */
    int64_t train_batch, eval_batch;    /* the largest shares */
    tr_comm *comm;                      /* of one rank: the teacher is read over it */
    tr_teacher *teacher;                /* NULL: none, or its file could not be read */
} tr_planned;

/* Samples of the data, and what holding and loading them takes; where they cannot be counted
 * `notes` says so. */
void tr_planned_count(tr_planned *r);
/* Closes what that opened. */
void tr_planned_close_data(tr_planned *r);
/* The same of data sets that are open, which stay the caller's; eval NULL: none. */
tr_status tr_planned_data(tr_planned *r, tr_dataset *train, tr_dataset *eval);
/* Where its file cannot be read `notes` says so, and there is none. */
tr_status tr_planned_teacher(tr_planned *r);
/* The loaders' buffers, of r->c and r->micro_batches. */
tr_status tr_planned_loaders(tr_planned *r);
tr_session_options tr_planned_options(const tr_planned *r);
/* What training takes, of r->c, r->micro_batches and the samples: r->both. */
tr_status tr_planned_sessions(tr_planned *r);
/* Behind that: r->eval. */
tr_status tr_planned_evaluation(tr_planned *r);
void tr_planned_close_sessions(tr_planned *r);
/* `st`, as it came just now, says that so many samples at once are too many for a kernel: fewer may
 * do. */
bool tr_planned_too_many(tr_status st);
/* Of rank 0: in training, and in evaluation alone. */
void tr_planned_memory(const tr_planned *r, tr_memory_total *out);
void tr_planned_memory_alone(const tr_planned *r, tr_memory_total *out);

/* ---- plan_fit.c: does it fit? ---- */

/* Bytes that a space takes: a rank's GPU, or the node of rank 0, whose ranks share its memory.
 * Without the programs themselves. The one figure that plan and a run judge by. */
size_t tr_planned_need(const tr_planned *r, tr_space space);

typedef struct {
    tr_space space;
    bool known;   /* what there is; else nothing but `need` is set */
    bool given;   /* by who asks; else it is what this machine has left */
    bool limited; /* but for a limit that is less, of run.memory_limit or train.micro_batch: max */
    size_t least; /* the smallest run.memory_limit that would do, where that does not; else 0 */
    bool fits, searched;
    size_t need, have;
    size_t programs; /* bytes of `have` that go to the ranks' programs */
    int64_t largest; /* batch that fits, all else as it is; 0: none; where it was searched for */
    int64_t most;    /* it was not looked for beyond */
    int nadvice;     /* settings that take less, where it does not fit */
    struct tr_fit_advice {
        char set[48];
        size_t need;
        bool fits;
    } advice[8];
} tr_fit;

/* Against `memory` bytes, of which the ranks' programs take `programs`. What would help, and the
 * largest batch that fits, are planned as well: nothing is advised that was not counted. */
tr_status tr_plan_fit(const tr_planned *r, tr_space space, size_t memory, size_t programs,
                      tr_fit *out);
/* The largest batch of so many bytes, of at most `most` samples, all else as `c` has it, which
 * differs from r->c in nothing that changes the model. 0: not even one sample a rank fits, or one
 * in all where there are fewer than ranks. */
tr_status tr_plan_largest_batch(const tr_planned *r, const tr_config *c, tr_space space,
                                size_t memory, int64_t most, int64_t *batch);
/* Batches beyond are not looked for: samples that there are, where they were counted. */
int64_t tr_plan_most_samples(const tr_planned *r);
/* Batches that fit: in one micro-batch, as it is and with blocks recomputed; and the micro-batch,
 * of a rank, of the batch that the config has. 0: none does. */
typedef struct {
    int64_t batch, recomputed, most, micro_batch;
    int micro_batches; /* that it makes a step */
} tr_largest;
tr_status tr_plan_largest(const tr_planned *r, tr_space space, size_t memory, size_t programs,
                          tr_largest *out);
void tr_plan_largest_write(const tr_planned *r, const tr_largest *l, size_t memory,
                           tr_plan_form form, FILE *to);
void tr_plan_fit_write(const tr_planned *r, const tr_fit *f, FILE *to);

/* ---- sketches.c: layers that are learned in sketches beside dense ones; nothing where there are
 * none. ---- */
void tr_planned_sketches(const tr_planned *r, FILE *to);
/* A note for each that is larger than the dense one. */
void tr_planned_sketches_note(const tr_planned *r);
void tr_planned_sketches_json(const tr_planned *r, FILE *to);

/* "digits: 2 ranks, batch 64, fp32" */
void tr_planned_title(const tr_planned *r, FILE *to);
/* What `trainer plan` says. plan_text.c: */
tr_status tr_plan_write_text(const tr_planned *r, const tr_fit *f, FILE *to);
/* plan_json.c: docs/records.md has the keys. */
void tr_plan_write_json(const tr_planned *r, const tr_fit *f, const char *notes, FILE *to);
void tr_plan_write_summary(const tr_planned *r, const tr_fit *f, FILE *to);
/* Operations of a plan's forward or backward pass a sample. */
double tr_planned_flops(const tr_plan *p, bool backward);
/* What gathers of synchronized batchnorm send in a micro-batch; how many those are. */
size_t tr_planned_gathers(const tr_planned *r, double *nbytes);
const char *tr_planned_precision(const tr_planned *r);

#endif
