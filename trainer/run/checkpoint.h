/* Checkpoints: a snapshot is copied at a step boundary and written by a thread of rank 0 while
 * training goes on, or the arrays are written as they lie while all ranks wait; restoring spreads a
 * file's arrays to every rank. */
#ifndef TR_CHECKPOINT_H
#define TR_CHECKPOINT_H

#include "collectives/collectives.h"
#include "runtime/store/store.h"

typedef struct tr_checkpointer tr_checkpointer;

typedef struct {
    tr_comm *comm;
    tr_params *params;       /* borrowed */
    tr_reducer *reducer;     /* borrowed: hands restored weights on */
    const char *folder;      /* the run folder */
    const char *config_text; /* resolved */
    int64_t keep;
    /* True: rank 0 holds a copy of all that is saved, from which a thread writes while training
     * goes on (tr_saves_copies). False: all ranks wait while training's own arrays are written;
     * then best.h5, and with it a model file of the best weights, is not to be had. */
    bool copies;
    const char *teacher_sha256; /* of the file that training learns from; "": none. Borrowed */
    tr_origin *origin;          /* of what it began from; restoring sets it on rank 0. Borrowed */
} tr_checkpointer_options;

/* Local. With copies, rank 0 allocates the snapshot's buffers and starts the writer; else next to
 * nothing. */
tr_status tr_checkpointer_open(const tr_checkpointer_options *o, tr_checkpointer **out);
/* Waits for the writer. */
void tr_checkpointer_close(tr_checkpointer *k);

/* *Local*. Takes the room that the history may come to need, so that saving allocates nothing; to
 * be called again when the history has more room. */
tr_status tr_checkpointer_reserve(tr_checkpointer *k, const tr_history *h, size_t cells);
typedef struct {
    bool step_file; /* as checkpoints/step-N.h5; older ones go, but for `keep` sound ones */
    bool best;      /* as checkpoints/best.h5 */
    bool sound;     /* a run may go on from it, where its weights and states are finite too */
} tr_checkpoint_kind;
/* *Collective*, at a step boundary after tr_reducer_publish. Rank 0 copies (waiting for an
 * unfinished write first) and returns while the writer goes on; ranks whose slots it cannot read
 * send them to it, the others return at once. Without copies all return when the file is written. A
 * step file that is not sound says so (tr_train_state.unsound), makes no older file go, and goes
 * itself when the next one is written: so the last sound ones stay. *stall: seconds this call took.
 * A failed write is logged by tr_checkpointer_report, never returned here; what is returned is a
 * device that could not be read. */
tr_status tr_checkpointer_save(tr_checkpointer *k, const tr_train_state *state, const tr_history *h,
                               tr_checkpoint_kind kind, double *stall);
/* Local. The run folder is elsewhere: `folder` is borrowed as that of the options. */
void tr_checkpointer_move(tr_checkpointer *k, const char *folder);
/* Local. The next piece of the writer's news, for the log and the metrics; false when there is
 * none. */
typedef struct {
    bool saved;
    uint64_t step;
    size_t nbytes;
    double seconds;
} tr_checkpoint_report;
bool tr_checkpointer_report(tr_checkpointer *k, tr_checkpoint_report *out);
/* Local. Waits until nothing is being written; the last write's status with its error record. */
tr_status tr_checkpointer_wait(tr_checkpointer *k);
/* *Collective.* Waits for the writer. Whether there is a checkpoint that --resume goes on from: the
 * one that this start went on from, or a sound one that it wrote. */
tr_status tr_checkpointer_resumable(tr_checkpointer *k, bool *is);
/* Whose values a model file gets; none is TR_RESULT_AUTO. */
typedef struct {
    tr_result weights;
    bool average; /* TR_RESULT_BEST: evaluations are of the running average */
} tr_model_choice;
/* *Collective*, as tr_checkpointer_save. Rank 0 writes the model (parameters and states, no
 * optimizer) as `path`, now; what went wrong there only rank 0 knows. The best is read from
 * best.h5, which has to be whole. */
tr_status tr_checkpointer_write_model(tr_checkpointer *k, const char *path, tr_model_choice choice,
                                      const tr_train_state *state, const tr_history *h);
/* Local, rank 0, after a restore: the config that the file was made with. */
const char *tr_checkpointer_config(const tr_checkpointer *k);
/* Local, rank 0: the options' config is another one, and in force from `step` on; files say so. */
tr_status tr_checkpointer_config_begins(tr_checkpointer *k, uint64_t step);
/* *Collective.* Finds the newest checkpoint that verifies and restores weights, slots, states and
 * *state on every rank, *h on rank 0. *found false when there is none (nothing is changed). */
tr_status tr_checkpointer_restore(tr_checkpointer *k, tr_train_state *state, tr_history *h,
                                  bool *found);

#endif
