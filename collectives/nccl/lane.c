/* What both reducers on GPUs stand on: arrays in device memory, a stream of their own, and events
 * that order it with the backend's. All waiting is on the device; within a recorded section the
 * same calls fork the recording and join it again.
 *
 * The stream has the highest priority there is: its few blocks are to start while a kernel of
 * backward still fills the device. One event serves all forks, as a wait takes the event as it was
 * recorded last when the wait is called. */
#include "collectives/nccl/internal.h"

#include "collectives/nccl/nccl.h"

const tr_gpu_reducers tr_nccl_reducers = {.nccl = tr_reducer_nccl_init,
                                          .staged = tr_reducer_staged_init};

tr_status tr_lane_check(cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return TR_OK;
    int name = 0;
    (void)cudaGetLastError(); /* told here: the next launch must not find it and call it its own */
    while (call[name] && call[name] != '(') name++;
    return TR_FAIL(e == cudaErrorMemoryAllocation ? TR_MEMORY : TR_KERNEL, "%.*s(...): %s (%s)",
                   name, call, cudaGetErrorString(e), cudaGetErrorName(e));
}

tr_status tr_lane_open(const tr_reducer *r, tr_lane *l)
{
    tr_status st = TR_OK;
    int least, greatest;
    *l = (tr_lane){.compute = (cudaStream_t)r->o.backend->stream->handle(r->o.backend_ctx)};
    TR_LANE_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TR_LANE_TRY(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, greatest));
    TR_LANE_TRY(cudaEventCreateWithFlags(&l->fork, cudaEventDisableTiming));
    TR_LANE_TRY(cudaEventCreateWithFlags(&l->join, cudaEventDisableTiming));
out:
    return st;
}

void tr_lane_close(tr_lane *l)
{
    if (l->stream) cudaStreamSynchronize(l->stream);
    if (l->fork) cudaEventDestroy(l->fork);
    if (l->join) cudaEventDestroy(l->join);
    if (l->stream) cudaStreamDestroy(l->stream);
    *l = (tr_lane){0};
}

tr_status tr_lane_fork(const tr_lane *l)
{
    tr_status st = TR_OK;
    TR_LANE_TRY(cudaEventRecord(l->fork, l->compute));
    TR_LANE_TRY(cudaStreamWaitEvent(l->stream, l->fork, 0));
out:
    return st;
}

tr_status tr_lane_join(const tr_lane *l)
{
    tr_status st = TR_OK;
    TR_LANE_TRY(cudaEventRecord(l->join, l->stream));
    TR_LANE_TRY(cudaStreamWaitEvent(l->compute, l->join, 0));
out:
    return st;
}

tr_status tr_lane_arrays(tr_reducer *r)
{
    const tr_backend *b = r->o.backend;
    void *ctx = r->o.backend_ctx;
    size_t nbytes;
    if (!tr_mul_size(r->o.count, sizeof(float), &nbytes))
        return TR_FAIL(TR_MEMORY, "%zu parameters do not fit the address space", r->o.count);
    r->grads = b->memory->alloc(ctx, TR_MEM_GRADIENTS, nbytes);
    r->weights = b->memory->alloc(ctx, TR_MEM_WEIGHTS, nbytes);
    bool ok = r->grads && r->weights;
    for (int k = 0; ok && k < r->o.nslots; k++)
        ok = (r->slots[k] = b->memory->alloc(ctx, TR_MEM_MOMENTS, nbytes)) != NULL;
    if (!ok) return tr_last_error()->status;
    for (size_t k = 0; k < r->o.nbuckets; k++) tr_reducer_own(r, r->buckets[k]);
    return TR_OK;
}

void tr_lane_arrays_free(tr_reducer *r)
{
    const tr_backend *b = r->o.backend;
    void *ctx = r->o.backend_ctx;
    for (int k = 0; k < r->o.nslots; k++) {
        b->memory->free(ctx, r->slots[k]);
        r->slots[k] = NULL;
    }
    b->memory->free(ctx, r->weights);
    b->memory->free(ctx, r->grads);
    r->grads = r->weights = NULL;
}
