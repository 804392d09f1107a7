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
    *s = (tr_side){.compute = (cudaStream_t)r->o.backend->stream->handle(r->o.backend_ctx)};
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

tr_status tr_side_arrays(tr_reducer *r)
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

void tr_side_arrays_free(tr_reducer *r)
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
