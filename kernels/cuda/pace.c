/* How far the host may run ahead of the device. The driver queues some 1,024 launches; a call that
 * finds the queue full blocks, and would not hear that a peer is gone, or that a timeout is over.
 * So every AHEAD ops the host asks whether the device is done with what came before the last AHEAD;
 * who asks waits, with an eye on the peers, where it is not. Up to 2 x AHEAD ops are then under
 * way: of 1 to 3 launches as a rule, of 8 before the queue is full; more than keeps the device
 * busy.
 *
 * Recorded steps need none of it: they are one launch. Cost: an event every AHEAD ops. */
#include "kernels/cuda/core.h"

enum { AHEAD = 64 };

struct tr_cuda_pace {
    cudaEvent_t mark;
    bool marked;
    int since; /* ops since the mark */
};

tr_status tr_cuda_pace_open(tr_cuda *cuda)
{
    tr_status st = TR_OK;
    cuda->pace = TR_NEW(TR_MEM_OTHER, tr_cuda_pace);
    if (!cuda->pace) return tr_last_status();
    TR_CUDA_TRY(cudaEventCreateWithFlags(&cuda->pace->mark, cudaEventDisableTiming));
out:
    return st;
}

void tr_cuda_pace_close(tr_cuda *cuda)
{
    if (cuda->pace && cuda->pace->mark) (void)cudaEventDestroy(cuda->pace->mark);
    (void)cudaGetLastError();
    tr_free(cuda->pace);
    cuda->pace = NULL;
}

tr_status tr_cuda_pace_poll(void *ctx, bool *done)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    tr_cuda_pace *p = cuda->pace;
    *done = true;
    if (tr_cuda_recording(cuda)) goto out;
    if (p->since < AHEAD) {
        p->since++;
        goto out;
    }
    const cudaError_t e = p->marked ? cudaEventQuery(p->mark) : cudaSuccess;
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* no failure, but remembered as one */
        *done = false;
        goto out;
    }
    TR_TRY(tr_cuda_check(e, "the GPU's work some kernels ago (cudaEventQuery)"));
    TR_CUDA_TRY(cudaEventRecord(p->mark, cuda->stream));
    p->marked = true;
    p->since = 0;
out:
    return st;
}
