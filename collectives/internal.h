/* What the communicator's files share: the object, its table of functions, waiting for peers, and
 * windows of memory that the ranks of a node share. */
#ifndef TR_COLLECTIVES_INTERNAL_H
#define TR_COLLECTIVES_INTERNAL_H

#include "collectives/collectives.h"

#include <mpi.h>
#include <stdatomic.h>
#include <sys/types.h>

#define TR_CACHE_LINE 64
#define TR_PAGE       4096

/* One implementation of the small collectives: one rank, node-local shared memory, MPI. */
typedef struct {
    const char *name;
    tr_status (*all_reduce)(tr_comm *c, void *v, size_t count, tr_dtype type);
    tr_status (*reduce_scatter)(tr_comm *c, const void *send, void *recv, size_t count,
                                tr_dtype type);
    tr_status (*all_gather)(tr_comm *c, const void *send, void *recv, size_t nbytes);
    tr_status (*broadcast)(tr_comm *c, void *buf, size_t nbytes, int root);
    tr_status (*barrier)(tr_comm *c);
} tr_comm_ops;

extern const tr_comm_ops tr_one_ops, tr_shared_ops, tr_mpi_ops;

/* A rank of this node, as seen by the others. */
typedef struct {
    int rank, local_rank; /* in the job */
    pid_t pid;
    int fd;       /* pidfd: readable once the process ended; -1: kill(pid, 0) is asked instead */
    bool watched; /* false: another PID namespace, where the number means nothing */
} tr_peer;

typedef struct tr_notes tr_notes;
typedef struct tr_marks tr_marks;
typedef struct tr_mailbox tr_mailbox;

/* What all communicators of a job stand on, whoever of its ranks they join: processes and how they
 * end. Lives until the last of them is closed. */
typedef struct {
    int users; /* communicators */
    bool mpi, shared_allowed, shared_required, broken;
    tr_error failure; /* what broke it: later calls fail with the same */
    bool speaks;      /* chosen to say why, see tr_notes_first */
    int heard;        /* the rank beyond our memory that says why it broke; -1: none */
    void *farewell;   /* our own, while MPI may read it */
    double timeout, start_timeout;
    tr_watchdog *watchdog; /* borrowed; may be NULL */
    int guards;            /* begun and not ended: they nest */
    size_t mpi_limit;      /* the largest count handed to MPI in one call */
    MPI_Comm world, local; /* duplicates of our own; local: the ranks of this node */
    tr_topology topology;  /* of all ranks; but `shared` and `reason` */
    tr_peer *peers;        /* [local_size] */
    bool oversubscribed;   /* more ranks than cores on this node */
    double shared_until;   /* tr_now() up to when somebody else is taken to run on our core */
    tr_notes *notes;       /* in the node's memory; NULL: no rank shares memory */
    tr_marks *marks;       /* who is who, and what they say of themselves; NULL: without MPI */
} tr_job;

struct tr_comm {
    const tr_comm_ops *ops;
    tr_job *job;
    tr_topology topology; /* within the group: its ranks, on how many nodes */
    char reason[320];
    MPI_Comm comm, local; /* its ranks; those of them on this node. The job's own, or the group's */
    int *ranks;           /* [size] in the job */
    tr_peer *peers;       /* [local_size] by local rank within the group; the job's file handles */
    tr_mailbox *mailbox;  /* all ranks on one node, which share memory; NULL otherwise */
    void *scratch;        /* sums over MPI: scratch_count elements of 8 bytes a rank */
    size_t scratch_count;
};

/* TR_OK, or what broke the job, with its record. */
tr_status tr_comm_usable(const tr_comm *c);
/* A collective's end: any failure in one breaks the job. */
tr_status tr_comm_done(tr_comm *c, tr_status st);

/* *Collective.* Another MPI communicator of the same ranks. */
tr_status tr_comm_duplicate(tr_comm *c, MPI_Comm *out);

/* *Collective*, in set-up: true where `ok` holds on every rank. */
tr_status tr_comm_all(tr_comm *c, bool ok, bool *out);

/* ---- job.c ---- */

/* *Collective.* Over MPI_COMM_WORLD, or alone. One user. */
tr_status tr_job_open(const tr_comm_options *o, tr_job **out);
/* *Collective* with the last user, unless it is broken. */
void tr_job_leave(tr_job *j);

/* Messages: on a job's communicator, and NCCL's set-up and send/receive on a group's own. */
enum { TR_TAG_FAILED = 7, TR_TAG_FAREWELL, TR_TAG_MESSAGE, TR_TAG_MARK };

/* ---- watchdog.c ---- */

/* Local. Around calls of MPI's that wait for others and do not let us look at them: they may take
 * j->start_timeout. `what`: completes "rank 3 (host): ... took longer than". */
void tr_guard_begin(tr_job *j, const char *what);
void tr_guard_end(tr_job *j);
/* Local. The job is broken: this process must end soon; and now, whatever MPI_Abort does. */
void tr_guard_broken(tr_job *j);
void tr_guard_abort(tr_job *j, int exit_code);

/* ---- MPI ---- */

/* MPI_SUCCESS -> TR_OK, else TR_MPI with MPI's own text. */
tr_status tr_mpi_check(int rc, const char *what);
#define TR_MPI_TRY(call) TR_TRY(tr_mpi_check((call), #call))
/* Narrows a count to MPI's int; TR_INTERNAL where it does not fit. */
tr_status tr_mpi_int(size_t n, int *out);
/* *Collective*: true when `ok` holds on every rank. For set-up only. */
tr_status tr_mpi_all(MPI_Comm comm, bool ok, bool *out);
/* *Collective*: TR_MEMORY where a rank has not got its memory for `what`, with the allocator's record on
 * that rank. For set-up that tr_agree() stands on itself. */
tr_status tr_mpi_have(MPI_Comm comm, bool have, const char *what);

/* sum[i] += v[i]; integers wrap. TR_F32, TR_F64 or TR_I64. */
void tr_sum_into(void *sum, const void *v, size_t n, tr_dtype type);

/* Stores that bypass the cache are not ordered by a release store alone. */
static inline void tr_drain_stores(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* ---- Waiting (wait.c, peers.c) ---- */

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
    double last, checked;                /* looks at the clock, at the peers */
    double waited, counted;              /* seconds; counted: towards the timeout */
    unsigned turns;
};

void tr_wait_init(tr_wait *w, tr_comm *c, const char *what);
void tr_wait_restart(tr_wait *w); /* something came: the time counts from now */
/* One turn of waiting. TR_PEER, and the communicator is broken, when a peer is dead or the time is
 * up. */
tr_status tr_wait_turn(tr_wait *w);
/* Pure but for the job's shared_until. How a wait goes on at `now`; and what it lost: `passed` seconds
 * went by between two looks at the clock, the last at `now`. */
typedef enum { TR_WAIT_SPIN, TR_WAIT_YIELD, TR_WAIT_SLEEP } tr_wait_way;
tr_wait_way tr_wait_way_at(const tr_wait *w, double now);
void tr_wait_lost(const tr_wait *w, double now, double passed);
/* Why there is no point in waiting on: a peer of the node died, or gave up. TR_OK: none did. Breaks
 * nothing. */
tr_status tr_wait_look(const tr_wait *w);
/* ", "-joined "rank 3 (pid 77)" of those that are late: they may not have arrived, and do not say that
 * they wait themselves. Returns the length; 0: there is none. */
size_t tr_wait_missing(const tr_wait *w, char *buf, size_t size);
/* Polls one request to its end. */
tr_status tr_wait_request(tr_wait *w, MPI_Request *request, MPI_Status *status);

/* *Collective* over the node. Fills peers and oversubscribed. */
tr_status tr_peers_open(tr_job *j);
void tr_peers_close(tr_job *j);
/* *Collective* over the group's ranks of this node. Fills c->peers from the job's. */
tr_status tr_peers_pick(tr_comm *c);
bool tr_peers_gone(const tr_peer *p); /* false where it cannot be known */
/* The first watched local peer that is gone and has not arrived; -1: none. */
int tr_peers_dead(const tr_comm *c, const tr_wait *w);

/* ---- Topology (topology.c) ---- */

/* *Collective* over `comm`. Fills *t, but for `shared`, `reason` and the host, and *local: the ranks
 * of this node, which is where memory can be shared, or for node >= 0 all that give this number. */
tr_status tr_topology_find(MPI_Comm comm, int node, tr_topology *t, MPI_Comm *local);
/* Test hooks read from the environment; `fallback` when unset or not a number. */
size_t tr_env_size(const char *name, size_t fallback);

/* ---- Shared windows (window.c) ---- */

/* `nbytes` that all ranks of a node map; base is page-aligned at the same place of the file. */
typedef struct {
    MPI_Win win;
    char *base;
    size_t nbytes;
} tr_window;

/* *Collective*. TR_OK with *got false, and why in `reason`, when some node has too
 * little room (or the window could not be allocated): then no rank has one. Contents are not touched. */
tr_status tr_window_open(tr_comm *c, size_t nbytes, tr_window *w, bool *got, char *reason,
                         size_t reason_size);
/* *Collective* over the node, unless the job is broken. */
void tr_window_close(tr_window *w, tr_job *j);
/* Local. Zeroes a part, whose pages thereby lie near the calling thread. False where memory ran out
 * meanwhile (a plain write would be a SIGBUS). */
bool tr_window_touch(void *p, size_t nbytes);
/* Local. Names what killed jobs left in this folder of shared memory, and the command that removes it. */
void tr_leftovers_warn(const char *dir);

/* ---- notes.c: what the ranks of a node leave for each other ---- */

/* *Collective* over `c`, the job's first communicator. *got false: no shared memory, why in
 * c->reason. */
tr_status tr_notes_open(tr_comm *c, bool *got);
void tr_notes_close(tr_job *j); /* *Collective* over the node */
/* Local. This rank's marks in the node's memory; nothing where there is none. */
void tr_notes_work(tr_job *j, bool busy);
void tr_notes_wait(tr_job *j, double now);
/* Local. Those of the job's local rank, where there is shared memory: busy by its own word; tr_now()
 * when it said last that it waits, 0 before. */
bool tr_notes_busy(const tr_job *j, int local_rank);
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

/* ---- marks.c: what ranks say of themselves, wherever they are ---- */

/* *Collective* over the job's world, once its peers are known. */
tr_status tr_marks_open(tr_job *j);
void tr_marks_close(tr_job *j);
/* Local. Takes in what others sent. */
void tr_marks_hear(tr_job *j);
/* Local. In a wait that has lasted for `waited` seconds: says that this rank waits, where that is due. */
void tr_marks_waiting(tr_job *j, double waited);
/* Local. Of a rank of the job's: as it said last. */
bool tr_marks_busy(const tr_job *j, int rank);
bool tr_marks_waits(const tr_job *j, int rank);
int tr_marks_local(const tr_job *j, int rank); /* its local rank in the job; -1: another node's */
/* "rank 3 (pid 77)", with its host where that is another one, and whether it is busy; the length. */
size_t tr_marks_name(const tr_job *j, int rank, char *buf, size_t size);

/* ---- The mailboxes of a group within a node (shared.c) ---- */

/* *Collective.* *got false: no shared memory, why in c->reason. */
tr_status tr_mailbox_open(tr_comm *c, bool *got);
void tr_mailbox_close(tr_comm *c);

/* ---- farewell.c: the same for ranks that share no memory with us, by message ---- */

/* Local. Tells those ranks that this one gives up, and why. */
void tr_farewell_send(tr_job *j, const tr_error *why);
/* Local. Did one of them? Then j->heard is its rank, and what it said the last error. */
bool tr_farewell_heard(tr_job *j);
bool tr_farewell_shares(const tr_job *j, int rank); /* memory with us: needs no message */
/* Local. Waits until the rank that was heard has ended, 2 s at most: ending the job before it has
 * spoken would cut it off. */
void tr_farewell_spoken(const tr_job *j);

#endif
