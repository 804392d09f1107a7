/* An update whose slots lie in pinned host memory (ZeRO-Offload, Ren et al. 2021, keeps the
 * optimizer there, too, but computes on the CPU). They go through two buffers on the device, window
 * by window, each by three streams:
 *
 *     up        | slots 0 -> A | slots 1 -> B | ............ | slots 2 -> A |
 *     kernels                  | update A     | update B     | ............ | update A
 *     down                                    | A -> slots 0 | B -> slots 1 |
 *
 * A window goes up into a buffer once what it held before is down. The link carries both ways at
 * once, so an update takes as long as the longer of its two directions, a window apart. The
 * kernels' stream waits for the last copy down: what comes behind an update finds the slots
 * complete, and a recording has no end that is loose. An update that is not to be applied copies
 * what it read back as it was. */
#include "kernels/cuda/offload.h"

#include <string.h>

enum { SLOTS = 4 };

typedef struct {
    size_t first, nchunks; /* of the table */
    size_t begin, nbytes;  /* of a slot: element, bytes */
} window;

struct tr_cuda_offload {
    tr_cuda *cuda;
    cudaStream_t up, down;
    cudaEvent_t begun, uploaded[TR_UPDATE_BUFFERS], updated[TR_UPDATE_BUFFERS],
        downloaded[TR_UPDATE_BUFFERS];
    float *host[SLOTS];                      /* NULL: the update has it not */
    float *device[TR_UPDATE_BUFFERS][SLOTS]; /* owned */
    size_t nwindows;
    window *windows;
};

/* ---- Set-up ---------------------------------------------------------------------------------- */

_Static_assert(TR_UPDATE_WINDOW_LEAST >= TR_UPDATE_CHUNK, "a window has room for any chunk");

/* As many chunks as a buffer takes; counts only where `windows` is NULL. */
static tr_status cut(const tr_update_chunk *chunks, size_t n, size_t most, window *windows,
                     size_t *nwindows)
{
    tr_status st = TR_OK;
    size_t count = 0;
    for (size_t i = 0, end; i < n; i = end, count++) {
        const size_t begin = chunks[i].slot;
        TR_NEED(chunks[i].count <= most, TR_INTERNAL,
                "a chunk of %u elements is to go through buffers of %zu", chunks[i].count, most);
        for (end = i + 1; end < n && chunks[end].slot + chunks[end].count - begin <= most; end++) {
        }
        if (windows)
            windows[count] = (window){
                .first = i,
                .nchunks = end - i,
                .begin = begin,
                .nbytes = (chunks[end - 1].slot + chunks[end - 1].count - begin) * sizeof(float)};
    }
    *nwindows = count;
out:
    return st;
}

static size_t held_by(const tr_update_chunk *chunks, size_t n)
{
    return n ? chunks[n - 1].slot + chunks[n - 1].count : 0;
}

static tr_status open_streams(tr_cuda_offload *o)
{
    tr_status st = TR_OK;
    TR_CUDA_TRY(cudaStreamCreateWithFlags(&o->up, cudaStreamNonBlocking));
    TR_CUDA_TRY(cudaStreamCreateWithFlags(&o->down, cudaStreamNonBlocking));
    TR_CUDA_TRY(cudaEventCreateWithFlags(&o->begun, cudaEventDisableTiming));
    for (int b = 0; b < TR_UPDATE_BUFFERS; b++) {
        TR_CUDA_TRY(cudaEventCreateWithFlags(&o->uploaded[b], cudaEventDisableTiming));
        TR_CUDA_TRY(cudaEventCreateWithFlags(&o->updated[b], cudaEventDisableTiming));
        TR_CUDA_TRY(cudaEventCreateWithFlags(&o->downloaded[b], cudaEventDisableTiming));
    }
out:
    return st;
}

tr_status tr_cuda_offload_open(tr_cuda *cuda, const tr_update *u, tr_update_chunk *chunks, size_t n,
                               tr_cuda_offload **out)
{
    tr_status st = TR_OK;
    const size_t most = tr_update_window(held_by(chunks, n));
    tr_cuda_offload *o = TR_NEW(TR_MEM_OTHER, tr_cuda_offload);
    TR_HAVE(o);
    o->cuda = cuda;
    memcpy(o->host, (float *[SLOTS]){u->m, u->v, u->a, u->ema}, sizeof o->host);
    TR_TRY(cut(chunks, n, most, NULL, &o->nwindows));
    TR_HAVE(o->windows = tr_alloc(TR_MEM_OTHER, o->nwindows, sizeof *o->windows));
    TR_TRY(cut(chunks, n, most, o->windows, &o->nwindows));
    for (size_t i = 0; i < o->nwindows; i++) {
        const window *w = &o->windows[i];
        for (size_t k = 0; k < w->nchunks; k++) chunks[w->first + k].slot -= w->begin;
    }
    TR_TRY(open_streams(o));
    for (int b = 0; b < TR_UPDATE_BUFFERS; b++)
        for (int s = 0; s < SLOTS; s++)
            if (o->host[s])
                TR_HAVE(o->device[b][s] =
                            tr_cuda_alloc(cuda, TR_MEM_MOMENTS, most * sizeof(float)));
    *out = o;
    o = NULL;
out:
    tr_cuda_offload_close(o);
    return st;
}

void tr_cuda_offload_close(tr_cuda_offload *o)
{
    if (!o) return;
    if (o->up) (void)cudaStreamSynchronize(o->up);
    if (o->down) (void)cudaStreamSynchronize(o->down);
    for (int b = 0; b < TR_UPDATE_BUFFERS; b++) {
        if (o->uploaded[b]) (void)cudaEventDestroy(o->uploaded[b]);
        if (o->updated[b]) (void)cudaEventDestroy(o->updated[b]);
        if (o->downloaded[b]) (void)cudaEventDestroy(o->downloaded[b]);
        for (int s = 0; s < SLOTS; s++) tr_cuda_free(o->cuda, o->device[b][s]);
    }
    if (o->begun) (void)cudaEventDestroy(o->begun);
    if (o->up) (void)cudaStreamDestroy(o->up);
    if (o->down) (void)cudaStreamDestroy(o->down);
    (void)cudaGetLastError();
    tr_free(o->windows);
    tr_free(o);
}

/* ---- A pass ---------------------------------------------------------------------------------- */

static tr_status copy_up(tr_cuda_offload *o, const window *w, int b, unsigned reads)
{
    tr_status st = TR_OK;
    for (int s = 0; s < SLOTS; s++)
        if (o->host[s] && reads & 1u << s)
            TR_CUDA_TRY(cudaMemcpyAsync(o->device[b][s], o->host[s] + w->begin, w->nbytes,
                                        cudaMemcpyHostToDevice, o->up));
    TR_CUDA_TRY(cudaEventRecord(o->uploaded[b], o->up));
    TR_CUDA_TRY(cudaStreamWaitEvent(o->cuda->stream, o->uploaded[b], 0));
out:
    return st;
}

static tr_status copy_down(tr_cuda_offload *o, const window *w, int b, unsigned writes)
{
    tr_status st = TR_OK;
    TR_CUDA_TRY(cudaEventRecord(o->updated[b], o->cuda->stream));
    TR_CUDA_TRY(cudaStreamWaitEvent(o->down, o->updated[b], 0));
    for (int s = 0; s < SLOTS; s++)
        if (o->host[s] && writes & 1u << s)
            TR_CUDA_TRY(cudaMemcpyAsync(o->host[s] + w->begin, o->device[b][s], w->nbytes,
                                        cudaMemcpyDeviceToHost, o->down));
    TR_CUDA_TRY(cudaEventRecord(o->downloaded[b], o->down));
out:
    return st;
}

/* The plan over a window, with its slots in a buffer. */
static tr_update_plan part_of(const tr_cuda_offload *o, const tr_update_plan *p, const window *w,
                              int b)
{
    tr_update_plan part = *p;
    part.u.m = o->device[b][0];
    part.u.v = o->device[b][1];
    part.u.a = o->device[b][2];
    part.u.ema = o->device[b][3];
    part.chunks = p->chunks + w->first;
    part.nchunks = w->nchunks;
    return part;
}

tr_status tr_cuda_offload_run(tr_cuda_offload *o, const tr_update_plan *p,
                              const tr_control *control, unsigned reads, unsigned writes,
                              tr_offload_launch *launch)
{
    tr_status st = TR_OK;
    if (o->nwindows == 0) return TR_OK;
    TR_CUDA_TRY(cudaEventRecord(o->begun, o->cuda->stream));
    TR_CUDA_TRY(cudaStreamWaitEvent(o->up, o->begun, 0));
    for (size_t i = 0; i < o->nwindows; i++) {
        const int b = (int)(i % TR_UPDATE_BUFFERS);
        const tr_update_plan part = part_of(o, p, &o->windows[i], b);
        if (i >= TR_UPDATE_BUFFERS) TR_CUDA_TRY(cudaStreamWaitEvent(o->up, o->downloaded[b], 0));
        TR_TRY(copy_up(o, &o->windows[i], b, reads));
        TR_TRY(launch(o->cuda->stream, &part, control));
        TR_TRY(copy_down(o, &o->windows[i], b, writes));
    }
    TR_CUDA_TRY(cudaStreamWaitEvent(o->cuda->stream,
                                    o->downloaded[(o->nwindows - 1) % TR_UPDATE_BUFFERS], 0));
out:
    return st;
}
