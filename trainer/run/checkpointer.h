/* What the files behind checkpoint.h share. */
#ifndef TR_CHECKPOINTER_H
#define TR_CHECKPOINTER_H

#include "trainer/run/checkpoint.h"

#include <pthread.h>

enum { TR_CHECKPOINT_NEWS = 4 }; /* unheard reports */

struct tr_checkpointer {
    tr_checkpointer_options o;
    bool root;
    tr_snapshot snapshot; /* without o.copies its arrays are those of training, as they lie */
    struct tr_flat_part *parts[TR_STORE_SLOTS]; /* of a slot, where it is not copied */
    tr_history history;                         /* the writer's copy */
    tr_past_configs configs;                    /* up to the one in force */
    char parent_sha256[65];
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit, busy; /* busy: a snapshot waits for or is in the writer's hands */
    tr_checkpoint_kind kind;
    bool unsound; /* the step file written last, of step: */
    uint64_t unsound_step;
    bool resumable; /* there is a sound file */
    tr_status last;
    tr_error last_error;
    /* The loop asks after every step, and saves at most twice in one; what nobody asked for in time
     * is forgotten, the oldest first. */
    tr_checkpoint_report news[TR_CHECKPOINT_NEWS];
    char why[TR_CHECKPOINT_NEWS][TR_ERROR_TEXT];
    unsigned told, heard;
};

/* Rank 0, with the lock held. Peers must not give it up while it waits for its disk. */
void tr_checkpointer_idle(tr_checkpointer *k);

/* ---- snapshot.c: what is written, and where it lies ---- */

/* Local, rank 0. Its arrays: copies, or the places of what training holds. */
tr_status tr_checkpointer_snapshot(tr_checkpointer *k);
void tr_checkpointer_snapshot_free(tr_checkpointer *k);
/* *Collective.* With the writer idle: the arrays and numbers as they are now. */
tr_status tr_checkpointer_take(tr_checkpointer *k, const tr_train_state *state,
                               const tr_history *h);
/* Rank 0. Slot i of the snapshot, or its parts; they are to be read into, too. */
tr_flat_parts tr_checkpointer_slot(const tr_checkpointer *k, int i, struct tr_flat_part *whole);
/* Rank 0. Reading is about to fill the snapshot: frozen rows stay as they are. */
void tr_checkpointer_fill(tr_checkpointer *k);

#endif
