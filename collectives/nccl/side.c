/* What both reducers on GPUs stand on: a stream of their own, and events
 * that order it with the backend's. All waiting is on the device; within a recorded section the
 * same calls fork the recording and join it again.
 *
 * The stream has the highest priority there is: its few blocks are to start while a kernel of
 * backward still fills the device. One event serves all forks, as a wait takes the event as it was
 * recorded last when the wait is called. */
#include "collectives/nccl/internal.h"

#include "collectives/nccl/nccl.h"

const tr_gpu_reducers tr_nccl_reducers = {.nccl = tr_reducer_nccl_init,
                                          .staged = tr_reducer_staged_init,
                                          .alloc = tr_nccl_alloc,
                                          .free = tr_nccl_free,
                                          .connect = tr_nccl_connect,
                                          .disconnect = tr_nccl_disconnect};

tr_status tr_side_check(cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return TR_OK;
    int name = 0;
    (void)cudaGetLastError(); /* told here: the next launch must not find it and call it its own */
    while (call[name] && call[name] != '(') name++;
    return TR_FAIL(e == cudaErrorMemoryAllocation ? TR_MEMORY : TR_KERNEL, "%.*s(...): %s (%s)",
                   name, call, cudaGetErrorString(e), cudaGetErrorName(e));
}

tr_status tr_side_open(const tr_reducer *r, tr_side *s)
{
    tr_status st = TR_OK;
    int least, greatest;
    *s = (tr_side){.compute = (cudaStream_t)r->p->o.backend->stream->handle(r->p->o.backend_ctx)};
    TR_SIDE_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TR_SIDE_TRY(cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, greatest));
    TR_SIDE_TRY(cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming));
    TR_SIDE_TRY(cudaEventCreateWithFlags(&s->join, cudaEventDisableTiming));
out:
    return st;
}

void tr_side_close(tr_side *s)
{
    if (s->stream) cudaStreamSynchronize(s->stream);
    if (s->fork) cudaEventDestroy(s->fork);
    if (s->join) cudaEventDestroy(s->join);
    if (s->stream) cudaStreamDestroy(s->stream);
    *s = (tr_side){0};
}

tr_status tr_side_fork(const tr_side *s)
{
    tr_status st = TR_OK;
    TR_SIDE_TRY(cudaEventRecord(s->fork, s->compute));
    TR_SIDE_TRY(cudaStreamWaitEvent(s->stream, s->fork, 0));
out:
    return st;
}

tr_status tr_side_join(const tr_side *s)
{
    tr_status st = TR_OK;
    TR_SIDE_TRY(cudaEventRecord(s->join, s->stream));
    TR_SIDE_TRY(cudaStreamWaitEvent(s->compute, s->join, 0));
out:
    return st;
}
