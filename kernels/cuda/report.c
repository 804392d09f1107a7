/* What the host tells the device before a micro-batch (set_input), and what it hears of a step, a
 * step later (reports). Both lie in pinned memory, so that the copies run in stream order without
 * the host waiting.
 *
 * Inputs go through a ring of 2 x 32 entries: before a half is written again the host waits for the
 * event behind the half's last copy, 32 micro-batches ago: rarely at all. Up to 80 bytes a
 * micro-batch, 300 a report. */
#include "kernels/cuda/core.h"

#include <stddef.h>

#include "kernels/cuda/loops/lap.h"

enum { HALF = 32, SLOTS = 2 };

/* As they follow each other in the control: one copy for both. */
typedef struct {
    tr_control_input in;
    double sums[TR_SUMS];
} input;
_Static_assert(offsetof(tr_control, sums) - offsetof(tr_control, in) == offsetof(input, sums),
               "the sums follow the input");

typedef struct {
    tr_cuda *cuda;
    input *ring;         /* [2 * HALF], pinned */
    size_t next;         /* entry */
    cudaEvent_t sent[2]; /* of each half: its last copy */
    bool full[2];        /* it is recorded */
    tr_control *report;  /* [SLOTS], pinned */
    cudaEvent_t there[SLOTS];
    bool begun[SLOTS];
} training;

tr_status tr_cuda_training_open(void *ctx, int threads, void **out)
{
    tr_status st = TR_OK;
    training *r = TR_NEW(TR_MEM_OTHER, training);
    (void)threads;
    if (!r) return tr_last_status();
    r->cuda = ctx;
    r->ring = tr_cuda_host_alloc(ctx, TR_MEM_OTHER, 2 * HALF * sizeof *r->ring);
    if (r->ring) r->report = tr_cuda_host_alloc(ctx, TR_MEM_OTHER, SLOTS * sizeof *r->report);
    TR_HAVE(r->report);
    for (int i = 0; i < 2; i++)
        TR_CUDA_TRY(
            cudaEventCreateWithFlags(&r->sent[i], cudaEventDisableTiming | cudaEventBlockingSync));
    for (int i = 0; i < SLOTS; i++)
        TR_CUDA_TRY(cudaEventCreateWithFlags(&r->there[i], cudaEventDisableTiming));
out:
    if (st != TR_OK) {
        tr_cuda_training_close(r);
        return st;
    }
    *out = r;
    return TR_OK;
}

void tr_cuda_training_close(void *opened)
{
    training *r = opened;
    if (!r) return;
    for (int i = 0; i < SLOTS; i++)
        if (r->there[i]) (void)cudaEventDestroy(r->there[i]);
    for (int i = 0; i < 2; i++)
        if (r->sent[i]) (void)cudaEventDestroy(r->sent[i]);
    (void)cudaGetLastError();
    tr_cuda_host_free(r->cuda, r->report); /* waits for copies that are under way */
    tr_cuda_host_free(r->cuda, r->ring);
    tr_free(r);
}

tr_cuda *tr_cuda_training_context(const void *opened)
{
    return ((const training *)opened)->cuda;
}

tr_status tr_cuda_set_input(void *opened, tr_control *c, const tr_control_input *in)
{
    tr_status st = TR_OK;
    training *r = opened;
    tr_cuda *cuda = r->cuda;
    const size_t half = r->next / HALF;
    TR_TRY(tr_cuda_outside_section(cuda, "set_input"));
    if (r->next % HALF == 0 && r->full[half]) {
        TR_CUDA_TRY(cudaEventSynchronize(r->sent[half]));
        r->full[half] = false;
    }
    input *from = &r->ring[r->next];
    *from = (input){.in = *in, .sums[TR_SUM_STOP] = in->stop};
    TR_CUDA_TRY(cudaMemcpyAsync(&c->in, from, in->first != 0 ? sizeof *from : sizeof from->in,
                                cudaMemcpyHostToDevice, cuda->stream));
    if (r->next % HALF == HALF - 1) {
        TR_CUDA_TRY(cudaEventRecord(r->sent[half], cuda->stream));
        r->full[half] = true;
    }
    r->next = (r->next + 1) % (2 * HALF);
out:
    return st;
}

tr_status tr_cuda_lap(void *opened, tr_control *c, int lap)
{
    return tr_lap_launch(((training *)opened)->cuda->stream, c, lap);
}

tr_status tr_cuda_report_begin(void *opened, const tr_control *c, int slot)
{
    tr_status st = TR_OK;
    training *r = opened;
    tr_cuda *cuda = r->cuda;
    TR_NEED(slot >= 0 && slot < SLOTS, TR_INTERNAL, "there is no report slot %d", slot);
    TR_TRY(tr_cuda_outside_section(cuda, "report_begin"));
    r->begun[slot] = false;
    TR_CUDA_TRY(
        cudaMemcpyAsync(&r->report[slot], c, sizeof *c, cudaMemcpyDeviceToHost, cuda->stream));
    TR_CUDA_TRY(cudaEventRecord(r->there[slot], cuda->stream));
    r->begun[slot] = true;
out:
    return st;
}

tr_status tr_cuda_report_poll(void *opened, int slot, tr_control *out, bool *done)
{
    tr_status st = TR_OK;
    training *r = opened;
    tr_cuda *cuda = r->cuda;
    *done = false;
    TR_NEED(slot >= 0 && slot < SLOTS && r->begun[slot], TR_INTERNAL,
            "no report is on its way in slot %d", slot);
    TR_TRY(tr_cuda_outside_section(cuda, "report_poll"));
    const cudaError_t e = cudaEventQuery(r->there[slot]);
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* no failure, but remembered as one */
        return TR_OK;
    }
    TR_TRY(tr_cuda_check(e, "the GPU's work up to a report (cudaEventQuery)"));
    *out = r->report[slot];
    *done = true;
out:
    return st;
}
