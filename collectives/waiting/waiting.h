/* Waiting for peers, what ranks say of themselves meanwhile, and giving up. */
#ifndef TR_COLLECTIVES_WAITING_H
#define TR_COLLECTIVES_WAITING_H

#include "collectives/internal.h"

/* ---- wait.c ---- */

/* A wait for peers: spins, then yields, then sleeps; notices the dead and the late. */
typedef struct tr_wait tr_wait;
struct tr_wait {
    tr_comm *c;
    const char *what; /* "barrier", "reduction": completes "waited for ..." */
    int64_t step;     /* -1: not in a step */
    int64_t bucket;   /* -1: none */
    /* Has this local rank come? NULL where that cannot be known (MPI). */
    bool (*arrived)(const void *ctx, int local_rank);
    const void *ctx;
    bool mpi;    /* MPI moves only while it is called: sleep late */
    bool device; /* for work of the device's, which goes on by itself: sleep early */
    tr_status (*late)(const tr_wait *w); /* says who is late; NULL: as tr_wait knows it */
    double last;                         /* look at the clock */
    double waited, counted;              /* seconds; counted: towards the timeout */
    double unlooked;                     /* seconds since the last look at the peers */
    bool warned;                         /* of who is busy for so long */
    unsigned turns;
};

void tr_wait_init(tr_wait *w, tr_comm *c, const char *what);
void tr_wait_restart(tr_wait *w); /* something came: the time counts from now */
/* One turn of waiting. TR_PEER, and the communicator is broken, when a peer is dead or the time is
 * up. */
tr_status tr_wait_turn(tr_wait *w);
/* Pure but for the job's shared_until. How a wait goes on at `now`; and what it lost: `passed`
 * seconds went by between two looks at the clock, the last at `now`. */
typedef enum { TR_WAIT_SPIN, TR_WAIT_YIELD, TR_WAIT_SLEEP } tr_wait_way;
tr_wait_way tr_wait_way_at(const tr_wait *w, double now);
void tr_wait_lost(const tr_wait *w, double now, double passed);
/* Why there is no point in waiting on: a peer of the node died, or gave up. TR_OK: none did. Breaks
 * nothing. */
tr_status tr_wait_look(const tr_wait *w);
/* ", "-joined "rank 3 (pid 77)" of those that are late: they may not have arrived, and do not say
 * that they wait themselves. Returns the length; 0: there is none. */
size_t tr_wait_missing(const tr_wait *w, char *buf, size_t size);
/* Polls one request to its end. */
tr_status tr_wait_request(tr_wait *w, MPI_Request *request, MPI_Status *status);

/* ---- peers.c ---- */

/* *Collective* over the node. Fills peers and oversubscribed. */
tr_status tr_peers_open(tr_job *j);
void tr_peers_close(tr_job *j);
/* *Collective* over the group's ranks of this node. Fills c->peers from the job's. */
tr_status tr_peers_pick(tr_comm *c);
int tr_peers_local(const tr_job *j, int rank); /* its local rank in the job; -1: another node's */
/* Local. Whether a rank of the job's has memory in common with this one, and so needs no message;
 * whether some have none. */
bool tr_peers_shares(const tr_job *j, int rank);
bool tr_peers_apart(const tr_job *j);
bool tr_peers_gone(const tr_peer *p); /* false where it cannot be known */
/* UNSEEN: it cannot be known. STOPPED: also by a debugger. */
typedef enum { TR_PEER_UNSEEN, TR_PEER_RUNS, TR_PEER_IN_IO, TR_PEER_STOPPED } tr_peer_state;
tr_peer_state tr_peers_state(const tr_peer *p);
/* The first watched local peer that is gone and has not arrived; -1: none. */
int tr_peers_dead(const tr_comm *c, const tr_wait *w);

/* ---- marks.c: what ranks say of themselves, wherever they are ---- */

/* What a rank is off doing, by its own word. */
typedef struct {
    tr_busy what;
    double since, said; /* tr_now() when that began, and was said last */
} tr_business;

/* *Collective* over the job's world, once its peers are known. */
tr_status tr_marks_open(tr_job *j);
void tr_marks_close(tr_job *j);
/* Local. Takes in what others sent. */
void tr_marks_hear(tr_job *j);
/* Local. In a wait that has lasted for `waited` seconds: says that this rank waits, where that is
 * due. */
void tr_marks_waiting(tr_job *j, double waited);
/* Local. In a wait for busy ranks: tells those of other nodes, where that is due, that the busy
 * ones of this node are seen to run. */
void tr_marks_vouch(tr_job *j);
/* Local. Of a rank of the job's: as it said last. */
tr_business tr_marks_business(const tr_job *j, int rank);
bool tr_marks_waits(const tr_job *j, int rank);
/* "rank 3 (pid 77)", with its host where that is another one, what keeps it busy, and whether it is
 * stopped; the length. */
size_t tr_marks_name(const tr_job *j, int rank, char *buf, size_t size);

/* ---- notes.c: what the ranks of a node leave for each other ---- */

/* *Collective* over `c`, the job's first communicator. *got false: no shared memory, why in
 * c->reason. */
tr_status tr_notes_open(tr_comm *c, bool *got);
void tr_notes_close(tr_job *j); /* *Collective* over the node */
/* Local. This rank's marks in the node's memory; nothing where there is none. */
void tr_notes_busy(tr_job *j, const tr_business *b);
void tr_notes_wait(tr_job *j, double now);
/* Local. Some rank of the node was asked to stop. */
void tr_notes_stop(tr_job *j);
bool tr_notes_stops(const tr_job *j);
/* Local. Those of the job's local rank, where there is shared memory; tr_now() when it said last
 * that it waits, 0 before. */
tr_business tr_notes_business(const tr_job *j, int local_rank);
double tr_notes_waits(const tr_job *j, int local_rank);
/* Local. True for the first rank of the node that asks, however often. */
bool tr_notes_first(tr_job *j);
/* Local. Says that the one chosen by tr_notes_first has spoken; or, by any other, waits until it
 * has, is gone, or took more than 2 s. Returns at once where nobody was chosen. */
void tr_notes_spoken(tr_job *j);
/* Local. This rank gave up, and why. The first note stays. */
void tr_notes_give_up(tr_job *j, const tr_error *why);
/* Local. The note that a rank of the job's left; false when there is none. */
bool tr_notes_gave_up(const tr_job *j, int local_rank, tr_error *why);

/* ---- farewell.c: the same for ranks that share no memory with us, by message ---- */

/* Local. Tells those ranks that this one gives up, and why. */
void tr_farewell_send(tr_job *j, const tr_error *why);
/* Local. Did one of them? Then j->heard is its rank, and what it said the last error. */
bool tr_farewell_heard(tr_job *j);
/* Local. Waits until the rank that was heard has ended, 2 s at most: ending the job before it has
 * spoken would cut it off. */
void tr_farewell_spoken(const tr_job *j);

/* ---- watchdog.c ---- */

/* Local. Around calls of MPI's that wait for others and do not let us look at them: they may take
 * j->start_timeout. `what`: completes "rank 3 (host): ... took longer than". */
void tr_guard_begin(tr_job *j, const char *what);
void tr_guard_end(tr_job *j);
/* Local. The job is broken: this process must end soon; and now, whatever MPI_Abort does. */
void tr_guard_broken(tr_job *j);
void tr_guard_abort(tr_job *j, int exit_code);

#endif
