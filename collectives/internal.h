/* What the communicator's files share: the object, its table of functions, and windows of memory
 * that the ranks of a node share. Waiting for them: waiting/waiting.h. */
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
    bool lingers;     /* NCCL could not be made to let go of the memory it was given */
    bool speaks;      /* chosen to say why, see tr_notes_first */
    int heard;        /* the rank beyond our memory that says why it broke; -1: none */
    void *farewell;   /* our own, while MPI may read it */
    double timeout, start_timeout;
    tr_watchdog *watchdog;    /* borrowed; may be NULL */
    bool (*stop_asked)(void); /* of this process; NULL: never */
    int guards;               /* begun and not ended: they nest */
    size_t mpi_limit;         /* the largest count handed to MPI in one call */
    MPI_Comm world, local;    /* duplicates of our own; local: the ranks of this node */
    tr_topology topology;     /* of all ranks; but `shared` and `reason` */
    tr_peer *peers;           /* [local_size] */
    bool oversubscribed;      /* more ranks than cores on this node */
    double shared_until;      /* tr_now() up to when somebody else is taken to run on our core */
    tr_notes *notes;          /* in the node's memory; NULL: no rank shares memory */
    int attempts;             /* to set up NCCL, of groups that this rank leads */
    tr_marks *marks;          /* who is who, and what they say of themselves; NULL: without MPI */
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
    bool patient;          /* waits excuse all ranks */
    uint64_t gpus_without; /* those that this rank sees and the group is not to use (tr_gpu_part) */
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
enum { TR_TAG_FAREWELL = 7, TR_TAG_MESSAGE, TR_TAG_MARK, TR_TAG_GREETING, TR_TAG_CONNECT = 16 };

/* ---- MPI ---- */

/* MPI_SUCCESS -> TR_OK, else TR_MPI with MPI's own text. */
tr_status tr_mpi_check(int rc, const char *what);
#define TR_MPI_TRY(call) TR_TRY(tr_mpi_check((call), #call))
/* Narrows a count to MPI's int; TR_INTERNAL where it does not fit. */
tr_status tr_mpi_int(size_t n, int *out);
/* *Collective*: true when `ok` holds on every rank. For set-up only. */
tr_status tr_mpi_all(MPI_Comm comm, bool ok, bool *out);
/* *Collective*: TR_MEMORY where a rank has not got its memory for `what`, with the allocator's
 * record on that rank. For set-up that tr_agree() stands on itself. */
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

/* ---- Topology (topology.c) ---- */

/* *Collective* over `comm`. Fills *t, but for `shared`, `reason` and the host, and *local: the
 * ranks of this node, which is where memory can be shared, or for node >= 0 all that give this
 * number. */
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
 * little room (or the window could not be allocated): then no rank has one. Contents are not
 * touched. */
tr_status tr_window_open(tr_comm *c, size_t nbytes, tr_window *w, bool *got, char *reason,
                         size_t reason_size);
/* *Collective* over the node, unless the job is broken. */
void tr_window_close(tr_window *w, tr_job *j);
/* Local. Zeroes a part, whose pages thereby lie near the calling thread. False where memory ran out
 * meanwhile (a plain write would be a SIGBUS). */
bool tr_window_touch(void *p, size_t nbytes);
/* Local. The folder in which Open MPI keeps the files behind windows. */
const char *tr_backing_directory(void);
/* Local. Names what killed jobs left in this folder of shared memory, and the command that removes
 * it. */
void tr_leftovers_warn(const char *dir);

/* ---- The mailboxes of a group within a node (shared.c) ---- */

/* *Collective.* *got false: no shared memory, why in c->reason. */
tr_status tr_mailbox_open(tr_comm *c, bool *got);
void tr_mailbox_close(tr_comm *c);

#endif
