/* Batches on their way to the device: two slots of device memory, filled in turn by a stream of
 * copies of their own, beside the kernels.
 *
 * The order that callers keep: stage_poll until it says so, stage_begin and stage for batch k, the
 * kernels that read it, and the same for batch k + 1. Two dependencies make it safe, both by
 * events: the kernels' stream waits for each copy where it is staged (before a section, so never in
 * what is recorded), and copies of batch k + 1 wait for `begun` of batch k, which marks in the
 * kernels' stream all that was put there before stage_begin(k), and so all readers of batch k - 1:
 * the slot is free, while kernels of batch k still run. Nothing here waits on the host: a kernel
 * may be waiting for another rank, so callers poll, and watch their peers meanwhile. */
#include "kernels/cuda/core.h"

struct tr_cuda_stage {
    cudaStream_t stream;
    char *slot[2];
    size_t size, used;
    uint64_t batches; /* begun */
    int at;           /* the slot of the batch begun last */
    cudaEvent_t begun[2];
    cudaEvent_t copied; /* all copies put into the stream so far */
    bool waiting;       /* for `copied`: nobody has since it was recorded */
};

tr_status tr_cuda_stage_reserve(void *ctx, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    if (cuda->stage) return TR_FAIL(TR_INTERNAL, "the slots for batches are reserved twice");
    tr_cuda_stage *s = cuda->stage = TR_NEW(TR_MEM_OTHER, tr_cuda_stage);
    if (!s) return TR_MEMORY;
    s->size = tr_align_up(nbytes, TR_CUDA_ALIGN);
    s->at = 1;
    TR_CUDA_TRY(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    TR_CUDA_TRY(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++) {
        TR_CUDA_TRY(cudaEventCreateWithFlags(&s->begun[i], cudaEventDisableTiming));
        s->slot[i] = tr_cuda_alloc(cuda, TR_MEM_IO, s->size);
        if (!s->slot[i]) st = tr_last_error()->status;
        if (st != TR_OK) goto out;
    }
out:
    if (st != TR_OK) tr_cuda_stage_close(cuda);
    return st;
}

void tr_cuda_stage_quiet(const tr_cuda *cuda)
{
    if (cuda->stage && cuda->stage->stream) (void)cudaStreamSynchronize(cuda->stage->stream);
}

void tr_cuda_stage_close(tr_cuda *cuda)
{
    tr_cuda_stage *s = cuda->stage;
    if (!s) return;
    for (int i = 0; i < 2; i++) {
        if (s->begun[i]) (void)cudaEventDestroy(s->begun[i]);
        tr_cuda_free(cuda, s->slot[i]);
    }
    if (s->copied) (void)cudaEventDestroy(s->copied);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    (void)cudaGetLastError();
    tr_free(s);
    cuda->stage = NULL;
}

tr_status tr_cuda_stage_begin(void *ctx)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    tr_cuda_stage *s = cuda->stage;
    TR_NEED(s, TR_INTERNAL, "a batch is staged before its memory is reserved");
    TR_TRY(tr_cuda_outside_section(cuda, "stage_begin"));
    s->at = 1 - s->at;
    s->used = 0;
    TR_CUDA_TRY(cudaEventRecord(s->begun[s->at], cuda->stream));
    if (s->batches++ > 0) TR_CUDA_TRY(cudaStreamWaitEvent(s->stream, s->begun[1 - s->at], 0));
out:
    return st;
}

tr_status tr_cuda_stage_part(void *ctx, const void *data, size_t nbytes, void **where)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    tr_cuda_stage *s = cuda->stage;
    TR_NEED(s && s->batches > 0, TR_INTERNAL, "a part of a batch is staged before stage_begin");
    TR_TRY(tr_cuda_outside_section(cuda, "stage"));
    TR_NEED(nbytes <= s->size - s->used, TR_INTERNAL,
            "a batch is larger than its slot: %zu bytes behind %zu of %zu", nbytes, s->used,
            s->size);
    char *to = s->slot[s->at] + s->used;
    if (nbytes > 0) {
        TR_CUDA_TRY(cudaMemcpyAsync(to, data, nbytes, cudaMemcpyHostToDevice, s->stream));
        TR_CUDA_TRY(cudaEventRecord(s->copied, s->stream));
        s->waiting = true;
        TR_CUDA_TRY(cudaStreamWaitEvent(cuda->stream, s->copied, 0));
    }
    /* The size is a multiple of it: what is left stays one, and a full slot may be pointed behind.
     */
    s->used += tr_align_up(nbytes, TR_CUDA_ALIGN);
    *where = to;
out:
    return st;
}

static tr_status passed(cudaEvent_t e, bool *done)
{
    const cudaError_t rc = cudaEventQuery(e);
    *done = rc == cudaSuccess;
    if (rc != cudaErrorNotReady) return tr_cuda_check(rc, "cudaEventQuery");
    (void)cudaGetLastError(); /* no failure, but remembered as one */
    return TR_OK;
}

tr_status tr_cuda_stage_poll(void *ctx, bool *done)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    tr_cuda_stage *s = cuda->stage;
    *done = true;
    if (!s) return TR_OK;
    TR_TRY(tr_cuda_outside_section(cuda, "stage_poll"));
    if (s->waiting) TR_TRY(passed(s->copied, done));
    if (*done) s->waiting = false;
    /* Also where a share is empty: the host stays so near that the ring of inputs (report.c) never
     * fills. */
    if (*done && s->batches > 1) TR_TRY(passed(s->begun[1 - s->at], done));
out:
    return st;
}

int tr_cuda_stage_slot(const tr_cuda *cuda)
{
    return cuda->stage && cuda->stage->batches > 0 ? cuda->stage->at : 0;
}
