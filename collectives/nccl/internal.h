/* What the reducers on GPUs share: errors, the stream beside the
 * backend's, the NCCL communicator, and the progress that the host can see. */
#ifndef TR_NCCL_INTERNAL_H
#define TR_NCCL_INTERNAL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

#include "collectives/reducer/reducer.h"

/* ---- side.c ---- */

/* TR_OK, or "cudaEventRecord(...): text (cudaErrorName)"; TR_MEMORY or TR_KERNEL. */
tr_status tr_side_check(cudaError_t e, const char *call);
#define TR_SIDE_TRY(call) TR_TRY(tr_side_check((call), #call))

/* A stream of the reducer's own beside the one that computes. */
typedef struct {
    cudaStream_t compute; /* the backend's */
    cudaStream_t stream;
    cudaEvent_t fork, join;
} tr_side;

tr_status tr_side_open(const tr_reducer *r, tr_side *s);
void tr_side_close(tr_side *s);
/* What is put into s->stream from now on comes after what is in the compute stream now. */
tr_status tr_side_fork(const tr_side *s);
/* And the other way round. */
tr_status tr_side_join(const tr_side *s);

/* ---- watch.c ---- */

typedef struct tr_watch tr_watch;
/* *Collective.* */
tr_status tr_watch_open(tr_reducer *r, tr_watch **out);
void tr_watch_close(tr_watch *p); /* *Collective* over the node */
/* In the order of `stream`: a step's micro-batch begins, a gather begins (they count from 0 in each
 * micro-batch), a bucket's reduction begins, is done. */
tr_status tr_watch_micro(tr_watch *p, uint64_t step, int micro, cudaStream_t stream);
tr_status tr_watch_gather(tr_watch *p, int gather, cudaStream_t stream);
tr_status tr_watch_begun(tr_watch *p, int bucket, cudaStream_t stream);
tr_status tr_watch_done(tr_watch *p, int bucket, cudaStream_t stream);
/* Local. The host is about to issue the next operation; has issued all of the step. */
void tr_watch_issue(tr_watch *p);
void tr_watch_issued(tr_watch *p);
/* Local. Reads how far the device is, and tells the node. */
void tr_watch_tell(tr_watch *p);
/* Local. As well, and sets in `w` who is waited for: while the device works; while an operation of
 * NCCL's starts. */
void tr_watch_device(tr_watch *p, tr_wait *w);
void tr_watch_start(tr_watch *p, tr_wait *w);

/* ---- nccl.c: the communicator ---- */

typedef struct {
    tr_comm *c;
    ncclComm_t comm;   /* NULL once it is aborted */
    int tag;           /* of messages in its set-up */
    tr_watch *watch;   /* borrowed; NULL while it is set up */
    pthread_t aborter; /* while `aborting`: the thread that frees it */
    bool aborting;
} tr_nccl;

/* *Collective.* For the device that is current. A rank that dies or fails here ends it on all.
 * `blocks`: the most that one of its kernels may have, 0: as many as NCCL likes. */
tr_status tr_nccl_open(tr_comm *c, int blocks, tr_nccl **out);
/* *Collective* unless the communicator is broken. No recording that holds its work may be left. */
void tr_nccl_close(tr_nccl *n);
/* Local. Ends what waits for peers on the device; returns without waiting for it. */
void tr_nccl_abort(tr_nccl *n);
/* ncclSuccess and ncclInProgress -> TR_OK, else "ncclAllReduce(...): text (ncclSystemError): last
 * error". */
tr_status tr_nccl_check(const tr_nccl *n, ncclResult_t rc, const char *call);
/* Waits until what a call that returned `rc` began is in the stream, or done. */
tr_status tr_nccl_settle(tr_nccl *n, ncclResult_t rc, const char *call);
/* What happened to the communicator since: TR_OK, or what went wrong. */
tr_status tr_nccl_look(const tr_nccl *n);

/* ---- link.c: the communicators of a job ---- */

typedef struct {
    tr_gpu_link base;
    tr_nccl *reduce;
    /* Over whom gathers go: `reduce`, or one of their own; NULL: this rank gathers alone. */
    tr_nccl *gather;
    bool beside; /* gathers may go into a stream of their own */
    char version[32];
} tr_nccl_link;

tr_status tr_nccl_connect(tr_comm *c, const tr_gpu_link_options *o, tr_gpu_link **out);
void tr_nccl_disconnect(tr_gpu_link *l);

/* ---- memory.c ---- */

/* Local. tr_gpu_reducers.alloc and .free; job: a tr_job. */
void *tr_nccl_alloc(void *job, size_t nbytes);
void tr_nccl_free(void *job, void *p);
/* Local. Of memory from above; *handle may be NULL: NCCL was told not to. */
tr_status tr_nccl_register(const tr_nccl *n, void *p, size_t nbytes, void **handle);
void tr_nccl_deregister(const tr_nccl *n, void *handle);

/* ---- weights.c: updated weights to all ranks, where the optimizer is sharded ---- */

typedef struct tr_nccl_weights tr_nccl_weights;
/* Local. The reducer's store must outlive it. */
tr_status tr_nccl_weights_open(const tr_reducer *r, tr_nccl_weights **out);
void tr_nccl_weights_close(tr_nccl_weights *w);
/* In the order of the backend's stream: before all buckets are gathered, and after. */
tr_status tr_nccl_weights_pack(const tr_nccl_weights *w);
tr_status tr_nccl_weights_unpack(const tr_nccl_weights *w);
/* *Collective.* Bucket b, into `stream`, within a group of NCCL's. */
tr_status tr_nccl_weights_gather(const tr_nccl_weights *w, const tr_nccl *nccl, size_t b,
                                 cudaStream_t stream);

/* ---- The reducers ---- */

tr_status tr_reducer_nccl_init(tr_reducer *r);
tr_status tr_reducer_staged_init(tr_reducer *r);

#endif
