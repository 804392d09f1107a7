/* Communicators and the gradient reducer: all that ranks say to each other. */
#ifndef TR_COLLECTIVES_H
#define TR_COLLECTIVES_H

#include "runtime/params/params.h"

typedef struct tr_comm tr_comm;

/* Ends this process where nothing else can, e.g. in a call of MPI's that waits for a rank that is
 * stopped: a thread. */
typedef struct tr_watchdog tr_watchdog;
tr_status tr_watchdog_open(tr_watchdog **out); /* Local */
void tr_watchdog_close(tr_watchdog *w);        /* Local */
/* Local. Unless tr_watchdog_rest is called within `seconds`, in which this process was not
 * suspended, it writes the text, one line, to stderr and ends by _exit(exit_code). One thing at a
 * time: a second call takes the place of the first. NULL: does nothing. */
void tr_watchdog_watch(tr_watchdog *w, double seconds, int exit_code, const char *fmt, ...)
    TR_PRINTF(4, 5);
void tr_watchdog_rest(tr_watchdog *w);

/* *Collective.* Over MPI_COMM_WORLD (MPI must be initialized, MPI_THREAD_FUNNELED or more), or one
 * rank without MPI. `timeout`: seconds to wait for a peer before failing with who was missing
 * (neither time in which this process was suspended counts, nor in which a peer was busy, see
 * tr_comm_busy). Small collectives go through shared memory when all ranks are on one node, else
 * MPI. `shared_allowed` false forces plain MPI everywhere. Falls back, and says so once on rank 0,
 * when shared memory is short. */
typedef struct {
    bool mpi;             /* false: the one-rank communicator */
    bool shared_allowed;  /* run.collectives is not mpi */
    bool shared_required; /* run.collectives is shared: failing to get it is an error */
    double timeout;
    double start_timeout; /* seconds for calls of MPI's that begin or end something; 0: timeout */
    /* Was this process asked to stop (by a signal)? Called twice a second while this rank waits;
     * where it was, all ranks are told as by tr_comm_ask_stop, so that a busy rank hears of it
     * (tr_comm_stop_asked) although all that were asked only wait for it. NULL: it never is. */
    bool (*stop_asked)(void);
    /* Ends this process where a call of MPI's that begins or ends something takes longer than
     * start_timeout, or where it has not ended by itself 30 s after the job broke. Borrowed until
     * the last communicator is closed. NULL: neither has a limit. */
    tr_watchdog *watchdog;
} tr_comm_options;
tr_status tr_comm_open(const tr_comm_options *o, tr_comm **out);
void tr_comm_close(tr_comm *c);

typedef struct {
    int rank, size;
    int local_rank, local_size; /* within the node */
    int node, nodes;
    /* smallest and largest local_size of any node: buckets are cut into so many slices */
    int slices, most;
    bool shared; /* ranks of a node share memory */
    bool part;   /* a group of the job's ranks, which does not have all of them */
    char host[64];
    /* why this algorithm: for the log and `trainer plan`, e.g. "one node, 2 ranks share memory" */
    const char *reason;
} tr_topology;
const tr_topology *tr_comm_topology(const tr_comm *c);

/* Local. Of the library that runs, what it calls itself up to the first comma: "Open MPI v4.1.4".
 * "": MPI was not initialized. */
void tr_mpi_version(char *buf, size_t size);

/* *Collective.* Says, once, which variables of the environment make this job find other nodes,
 * memory or limits than there are: set for tests, they must not go unnoticed where they were
 * left. */
tr_status tr_comm_warn_of_hooks(tr_comm *c);
/* Local. The first rank of each node names what killed launchers of this user left there, if
 * anything, and the command that removes it: session folders, and then segments in shared memory
 * too. */
void tr_comm_warn_of_leftovers(const tr_comm *c);

/* *Collective* over `c`. Splits its ranks into groups, as MPI_Comm_split does: one of all ranks
 * that give the same color, ordered by key and, where keys are equal, as in `c`. A negative color:
 * in no group, *out is NULL. A group is a communicator like any other: the collectives below, and a
 * topology of its own, whose ranks and nodes are the group's. Within a node its collectives go
 * through shared memory where `c`'s may. Timeout, busy marks, the watch over peers and what breaks
 * are the job's: a failure in one communicator breaks all, and every rank that waits in any of them
 * hears of it. May be closed before or after `c`, by all of the group's ranks. */
tr_status tr_comm_split(tr_comm *c, int color, int key, tr_comm **out);
/* Local. While it is set, a wait on `c` has no timeout as long as one of the ranks that are missing
 * runs; ranks of other nodes, whose processes are not seen from here, are taken to. To be set on
 * all ranks right before one collective, and cleared behind it, where ranks meet after work of
 * unknown length that each of their groups did by itself: the end of a round of a sweep. What still
 * fails: a peer of this node that died, at once; peers of this node that are stopped, after the
 * timeout, where nobody else is missing; a rank anywhere that gave up (tr_comm_break). A rank of
 * another node that hangs or is cut off is not noticed. */
void tr_comm_patient(tr_comm *c, bool patient);
/* *Collective* over `c`. The ranks of this node, in local order. */
tr_status tr_comm_split_node(tr_comm *c, tr_comm **out);
/* *Collective* over `c`. One rank of each node, all with this one's local rank, in the order of
 * nodes; NULL for local ranks that some node lacks (of topology.slices on). */
tr_status tr_comm_split_across(tr_comm *c, tr_comm **out);

/* Elements of sums: TR_F32, TR_F64 or TR_I64. Floats are added in rank order, each by one rank or
 * by all alike: the same bits on every rank. Integers wrap. */

/* *Collective.* v[i] = the sum over all ranks. */
tr_status tr_comm_all_reduce(tr_comm *c, void *v, size_t count, tr_dtype type);
/* *Collective.* send: size * count elements; recv: elements [rank * count, (rank + 1) * count) of
 * the sums; it lies outside of send. */
tr_status tr_comm_reduce_scatter(tr_comm *c, const void *send, void *recv, size_t count,
                                 tr_dtype type);
/* *Collective.* recv: size * nbytes, in rank order. */
tr_status tr_comm_all_gather(tr_comm *c, const void *send, void *recv, size_t nbytes);
/* *Collective.* Any nbytes (chunked beyond MPI's int). */
tr_status tr_comm_broadcast(tr_comm *c, void *buf, size_t nbytes, int root);
/* *Collective.* Rank 0's text, or its NULL, on the others, which begin with NULL and free what they
 * get by tr_free. */
tr_status tr_comm_share_text(tr_comm *c, char **text);
tr_status tr_comm_barrier(tr_comm *c); /* *Collective.* */
/* *Collective* between two ranks, each of which names the other, with the same nbytes: of messages
 * between two ranks the first that is sent is the first that is received. Returns when `buf` may be
 * used again. */
tr_status tr_comm_send(tr_comm *c, const void *buf, size_t nbytes, int to);
tr_status tr_comm_receive(tr_comm *c, void *buf, size_t nbytes, int from);
/* *Collective.* Every rank gives its status; TR_OK when all did. Where not, a rank that failed
 * keeps its own status and record; the others get TR_PEER (or TR_CONFIG/USAGE/STOPPED when the
 * failing rank's exit code is not 1: all ranks must exit alike) and the text "a peer failed: rank 3
 * (host): ...". Where a peer died meanwhile, TR_STOPPED gives way to that. *said tells whether this
 * rank is the one (the lowest failing) that should print. May be NULL. */
tr_status tr_agree(tr_comm *c, tr_status st, bool *said);
/* *Collective.* For what each rank found by itself. TR_OK where all ranks bring the same text; else
 * `blame` on those whose text is not rank 0's, with the first line that differs, as it is on both,
 * and who they are; agreed. `what`: what the text is about. */
tr_status tr_same_text(tr_comm *c, tr_status blame, const char *what, const char *text);
/* Local. True once a collective failed (a peer died or did not come in time): every later
 * collective fails at once, tr_agree returns its argument, tr_comm_close frees nothing that needs
 * the peers. What is left to do is to print where *said is set, and tr_comm_abort. */
bool tr_comm_broken(const tr_comm *c);
/* Local. This rank gives up, over something that its peers cannot know of, and takes part in
 * nothing more; the last error is why. Peers that wait for it, on `c` and its reducers, hear it
 * before they see that this process ended, so that one message says what went wrong. Does nothing
 * to one that is broken already. Returns `st`. */
tr_status tr_comm_break(tr_comm *c, tr_status st);
/* Local. Prints nothing, ends the whole job at once with `exit_code`: for failures where agreement
 * is no longer possible. Does not return; where MPI cannot end the job, this process ends after 5
 * s. */
void tr_comm_abort(tr_comm *c, int exit_code);

/* What keeps a rank busy, as those that wait for it are told. */
typedef enum {
    TR_BUSY_NOT,
    TR_BUSY_READS,
    TR_BUSY_WRITES,
    TR_BUSY_MEASURES,
    TR_BUSY_COMPUTES,
    TR_BUSY_KINDS
} tr_busy;
/* Local. This rank begins something that takes as long as it takes (a file on a slow disk), or has
 * ended it (TR_BUSY_NOT). Peers that wait for a rank fail after the timeout (tr_comm_options); time
 * in which they wait for a busy one is not counted, on `c`, its groups and its reducers:
 * - A peer of its node sees its process. None of the time counts while that runs. All counts while
 *   it is stopped, and that it died ends the wait at once.
 * - A peer of another node goes by what it hears. None of the time counts while a rank of the busy
 *   one's node waits as well, and so vouches for it. Where none does, none counts up to one timeout
 *   after the busy rank was last heard of: when it began, or called tr_comm_stop_asked since. A
 *   second after that counts a tenth, so that such a wait fails after eleven timeouts of silence.
 * Who has waited for longer than the timeout says in the log for whom, once a wait. */
void tr_comm_busy(tr_comm *c, tr_busy what);

/* Local. This rank was asked to stop (a signal): all of the job's ranks shall know, whichever group
 * they are in. The first call counts. */
void tr_comm_ask_stop(tr_comm *c);
/* Local. Whether a rank of the job's was. Ranks find that at different times: groups agree on it by
 * what they reduce. By a busy rank: says now and then that it still is. */
bool tr_comm_stop_asked(tr_comm *c);

/* Local. What ranks notice of what they share with their node, which one of them says. */
typedef enum { TR_NOTICE_LIMIT, TR_NOTICE_SWAPPING, TR_NOTICE_FIT, TR_NOTICES } tr_notice;
/* Whether this rank is the first of its node to ask for that notice and `of`, what it is about, in
 * whichever group and however long ago; without shared memory each rank is, and beyond 32 matters
 * of a notice. */
bool tr_comm_first_to_say(tr_comm *c, tr_notice what, uint32_t of);

typedef struct {
    /* an index among those that the backend sees in this process */
    int device;
    /* somewhere two ranks of a node have instances of one GPU: other names, one place */
    bool instances;
} tr_gpu_choice;

/* *Collective.* The GPU that this rank shall use: no two ranks of a node the same, whichever of the
 * node's GPUs each of them sees. `without`: bit i is set where the i-th that this process sees is
 * not to be used, by any rank. TR_KERNEL where a rank sees none (saying why), TR_USAGE where the
 * ranks of a node cannot all have one of their own (too few are visible, or some ranks see the same
 * few); the same on every rank. */
tr_status tr_gpu_choose(tr_comm *c, const tr_backend *gpu, uint64_t without, tr_gpu_choice *out);

/* *Collective* over a group. `device`: the GPU that this rank got when all of the job's ranks chose
 * (tr_gpu_choose). From now on tr_gpu_choose on the group gives its ranks these GPUs and no others,
 * so that groups that compute beside each other never share one. `gpu` NULL: it gives them none. */
tr_status tr_gpu_part(tr_comm *group, const tr_backend *gpu, int device);

/* ---- GPUs among each other
 * -------------------------------------------------------------------- */

/* How GPUs reduce (collectives/nccl/nccl.h). */
typedef struct tr_gpu_reducers tr_gpu_reducers;
/* What connects a rank's GPU with those of the others: NCCL's communicators. */
typedef struct tr_gpu_link tr_gpu_link;

typedef struct {
    bool deterministic; /* the same bits in every run */
    bool recorded;      /* operations will be recorded */
    bool gathers;       /* tr_reducer_gather will be called */
    /* who gathers together, as in tr_reducer_options */
    tr_comm *gatherers;
} tr_gpu_link_options;

/* *Collective.* Connects the GPU that this thread has made current: where that fails on one rank it
 * fails on all, and may be tried again, with other GPUs. `c` and the gatherers are borrowed until
 * close. *out is NULL with one rank. */
tr_status tr_gpu_link_open(const tr_gpu_reducers *gpu, tr_comm *c, const tr_gpu_link_options *o,
                           tr_gpu_link **out);
/* *Collective* unless the job is broken; after the reducer. */
void tr_gpu_link_close(tr_gpu_link *l);

/* ---- The reducer
 * ------------------------------------------------------------------------------ */

/* Reduces the gradients of a parameter store bucket by bucket while backward runs, and hands
 * updated weights on. The store's arrays lie where the ranks can share the work:
 *
 * shared: gradients of all ranks of a node lie in one window; rank r sums slice r of everybody's
 * bucket, in rank order, into its own buffer's slice (ready flags are the only messages); weights
 * and slots lie once a node in the window, each rank updating its slices. Between nodes each local
 * rank all-reduces its slice with its counterparts, in pieces, added in node order in float32 (also
 * with bf16 on the wire). mpi: MPI_Iallreduce a bucket, in place; every rank owns everything,
 * weights and slots are private.
 *
 * On a device (the store's backend is not the host's) all arrays lie in its memory, every rank owns
 * everything, and ready, finish, gather and publish only put work into the backend's stream and one
 * beside it, ordered by events: nccl: ncclAllReduce a bucket, in place, as soon as backward has
 * made it, the tally with the last one. mpi: buckets go through pinned host memory and
 * MPI_Iallreduce; then finish and gather wait.
 *
 * Sharded (options.shard; ZeRO's stage 1, Rajbhandari et al., SC'20): gradients are not all-reduced
 * but reduce-scattered, so that each rank owns, and keeps slots of, its part of them alone, over
 * all ranks; publish then all-gathers weights: those that kernels read as 16-bit copies alone
 * (tr_params_options.rounded) rounded to these, all else in float32. Masters that are exact lie
 * with their owners; tr_comm_params_weights brings them together. shared: the parts are those that
 * the ranks of one node add up for the others. mpi: in pieces, added in rank order, where an
 * all-reduce adds in MPI's. nccl: ncclReduceScatter a bucket, ncclAllGather. As many bytes as an
 * all-reduce, fewer where weights go rounded; between nodes the same sums in the same order.
 *
 * Weights may be written between finish (or open) and publish, by the owner of a range; gradients
 * from finish (or open) until they are marked ready. A step that updates nothing needs no
 * publish. */
typedef struct tr_reducer tr_reducer;

typedef struct {
    bool shard;                 /* the optimizer over all ranks, see above */
    bool wire_bf16;             /* gradients between nodes; not on devices */
    const tr_gpu_reducers *gpu; /* devices: how to reduce there (collectives/nccl/nccl.h) */
    bool nccl;                  /* devices: NCCL; else MPI */
    tr_gpu_link *link;          /* NCCL: borrowed until close; NULL: one rank */
    /* who gathers together: the ranks of this node (tr_comm_split_node), borrowed until close.
     * NULL: all ranks */
    tr_comm *gatherers;
} tr_reducer_options;

/* *Collective.* A parameter store for this job's ranks: decides who owns what, and where the arrays
 * lie; all start zeroed. `r`: as the reducer will be opened. */
tr_status tr_comm_params_open(tr_comm *c, const tr_params_options *o, const tr_reducer_options *r,
                              tr_params **out);
/* *Collective*, between tr_reducer_publish and the next update. All of a slot, in the flat space's
 * order: `to` on rank 0, in the host's memory, [tr_params_learned]. Allocates nothing. */
tr_status tr_comm_params_gather(const tr_params *p, int slot, float *to);
/* *Collective*, as above. The weights as their owners have them: `to` on rank 0, [count]. */
tr_status tr_comm_params_weights(const tr_params *p, float *to);
/* Local, pure. Whether all weights and slots lie in memory that rank 0 can read and write by
 * itself, so that a checkpoint takes no messages: on CPUs, unless options.shard gives parts of them
 * to ranks of other memory. */
bool tr_comm_params_in_reach(const tr_topology *t, const tr_params_options *o,
                             const tr_reducer_options *r);
/* Local, on rank 0 where they are in reach. Where a slot lies: *count ranges of the flat space,
 * ascending, and the first element of each. Both are allocated, and the caller's. */
tr_status tr_comm_params_places(const tr_params *p, int slot, tr_range **ranges, float ***at,
                                size_t *count);
void tr_comm_params_close(tr_params *p); /* *Collective*, after the reducer and before `c` */

/* *Collective.* On a store of tr_comm_params_open with the same options. */
tr_status tr_reducer_open(tr_comm *c, tr_params *p, const tr_reducer_options *o, tr_reducer **out);
void tr_reducer_close(tr_reducer *r); /* *Collective* */
/* Bytes by kind that this rank's process holds (its share of windows: window bytes / local ranks,
 * of slots what it owns), and bytes a rank sends through shared memory and over the network in one
 * step. */
typedef struct {
    size_t weights, gradients, slots, wire_node, wire_network;
    /* of the bytes on the wire, those of weights that are handed on: an all-gather */
    size_t wire_weights;
    /* of the gradients' bytes, those in the host's memory where the rest is a device's */
    size_t pinned;
} tr_reducer_cost;
/* Local, pure. */
void tr_reducer_cost_of(const tr_topology *t, const tr_params_options *p,
                        const tr_reducer_options *o, tr_reducer_cost *out);

/* Local. For devices, whose work is issued ahead of time; they matter nowhere else. To be called
 * outside of what is recorded (tr_gpu_link_options.recorded).
 * step: micro-batch `micro` of a step begins; messages about ranks that are late name the step.
 * again: what was issued since then was recorded only to be thrown away, and is issued once more.
 * issued: all of the step is in the stream. */
tr_status tr_reducer_step(tr_reducer *r, uint64_t step, int micro);
void tr_reducer_again(tr_reducer *r);
void tr_reducer_issued(tr_reducer *r);

/* Local. Buckets 0..bucket of this rank are final: their reduction starts. Each bucket once a step.
 * -1: a run begins in which buckets become ready (the step's last micro-batch); devices want to
 * know, as the order of gathers and reductions must be one on all ranks. */
void tr_reducer_ready(tr_reducer *r, int bucket);
/* Local. `reduced` (NULL: nobody) is told of each bucket whose sums are there, in order, within
 * poll and finish. Not where devices reduce in their stream. */
void tr_reducer_tell(tr_reducer *r, void (*reduced)(void *ctx, int bucket), void *ctx);
/* Local. Moves what can be moved without waiting. Cheap enough to be called between kernels. */
tr_status tr_reducer_poll(tr_reducer *r);
/* *Collective.* Waits until every bucket is reduced; the owned ranges of grads then hold the sums.
 * Sums `tally` over all ranks (rank order). *sum_squares: of all reduced gradients over the whole
 * model, the same on every rank, not finite iff some reduced gradient is not; computed while
 * summing. Both lie in the backend's memory, and on a device are there in stream order. */
tr_status tr_reducer_finish(tr_reducer *r, double *tally, size_t ntally, double *sum_squares);
/* *Collective.* After the owned ranges of weights were updated: makes them visible to every
 * rank. */
tr_status tr_reducer_publish(tr_reducer *r);
/* *Collective.* After finish: sums numbers that each rank has of the ranges it owns; where several
 * own the same, the lowest one's count. In the backend's memory, in stream order. */
tr_status tr_reducer_sum_owned(tr_reducer *r, double *values, size_t count);
/* *Collective* over options.gatherers. tr_hooks.gather: `nbytes` of each of them, in rank order;
 * both in the backend's memory, in stream order. */
tr_status tr_reducer_gather(tr_reducer *r, const void *send, void *recv, size_t nbytes);
/* *Collective in time.* For waits on the device (`done` is polled): notices that a peer or NCCL
 * failed or that run.timeout passed, names who had not arrived, and then has broken the
 * communicator, and ended what waits on the device. What `done` fails with is returned, and breaks
 * it too. `step`: what is waited for, for the message. */
tr_status tr_reducer_wait(tr_reducer *r, uint64_t step, tr_status (*done)(void *ctx, bool *is),
                          void *ctx);
/* "one rank", "shared memory", "MPI", "NCCL 2.28.3" */
const char *tr_reducer_name(const tr_reducer *r);

#endif
