/* Sections: stretches of the kernels' stream that are the same every time for one key, recorded
 * once as a CUDA graph and launched as one from then on. A launch of a graph costs the host a few
 * microseconds, where the calls in it cost that each.
 *
 * First time as it comes (libraries load what they need, which must not happen while recording),
 * second time recorded and launched, then replayed. The key is told apart by the slot of the batch
 * staged last, whose address is in the recording. What happens depends on the sequence of calls
 * alone, not on time or memory, so that all ranks record, and replay, the same sections in the same
 * order, as NCCL asks for.
 *
 * At most 64 recordings are kept; further keys run as they come. Nodes keep the priority of the
 * stream that they were recorded from. The calls of the backend come from one thread; what
 * libraries do in threads of their own does not spoil a recording, which is thread-local. */
#include "kernels/cuda/core.h"

#include <string.h>

enum { SECTIONS = 64 };
typedef enum { CLOSED, PLAIN, RECORDED, REPLAYED } state;

typedef struct {
    uint64_t key;
    int slot;
    bool ran;             /* once, as it came */
    cudaGraphExec_t exec; /* NULL until it was recorded */
} section;

struct tr_cuda_sections {
    section at[SECTIONS];
    size_t n;
    state state;
    section *open; /* NULL: not one that is kept */
};

tr_status tr_cuda_sections_open(tr_cuda *cuda)
{
    cuda->sections = TR_NEW(TR_MEM_OTHER, tr_cuda_sections);
    return cuda->sections ? TR_OK : TR_MEMORY;
}

/* Whatever was recorded so far is thrown away. */
static void stop_recording(tr_cuda *cuda)
{
    cudaGraph_t graph = NULL;
    (void)cudaStreamEndCapture(cuda->stream, &graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}

void tr_cuda_sections_drop(void *ctx)
{
    tr_cuda *cuda = ctx;
    tr_cuda_sections *s = cuda->sections;
    if (!s) return;
    if (s->state == RECORDED) stop_recording(cuda);
    (void)cudaStreamSynchronize(cuda->stream);
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].exec) (void)cudaGraphExecDestroy(s->at[i].exec);
    (void)cudaGetLastError();
    *s = (tr_cuda_sections){0};
}

void tr_cuda_sections_close(tr_cuda *cuda)
{
    tr_cuda_sections_drop(cuda);
    tr_free(cuda->sections);
    cuda->sections = NULL;
}

bool tr_cuda_recording(const tr_cuda *cuda)
{
    return cuda->sections->state == RECORDED;
}

tr_status tr_cuda_outside_section(const tr_cuda *cuda, const char *call)
{
    if (!cuda->sections || cuda->sections->state == CLOSED) return TR_OK;
    return TR_FAIL(TR_INTERNAL, "%s inside a section: it would be repeated as recorded", call);
}

/* NULL: it is new and there is no room. */
static section *find(tr_cuda_sections *s, uint64_t key, int slot)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].key == key && s->at[i].slot == slot) return &s->at[i];
    if (s->n == SECTIONS) return NULL;
    s->at[s->n] = (section){.key = key, .slot = slot};
    return &s->at[s->n++];
}

tr_status tr_cuda_section_begin(void *ctx, uint64_t key, bool *replay)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    tr_cuda_sections *s = cuda->sections;
    TR_NEED(s->state == CLOSED, TR_INTERNAL, "a section is begun inside another");
    s->open = cuda->o.graphs ? find(s, key, tr_cuda_stage_slot(cuda)) : NULL;
    s->state = PLAIN;
    if (s->open && s->open->exec) {
        s->state = REPLAYED;
    } else if (s->open && s->open->ran) {
        s->state = CLOSED; /* until it records */
        TR_CUDA_TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
        s->state = RECORDED;
    }
    *replay = s->state == REPLAYED;
out:
    return st;
}

/* The recording becomes something that can be launched. */
static tr_status keep_recording(tr_cuda *cuda, section *kept)
{
    tr_status st = TR_OK;
    cudaGraph_t graph = NULL;
    char text[TR_ERROR_TEXT];
    TR_CUDA_TRY(cudaStreamEndCapture(cuda->stream, &graph));
    /* Else all would run at the priority of cuda->stream, and collectives queue behind kernels. */
    TR_CUDA_TRY(cudaGraphInstantiate(&kept->exec, graph, cudaGraphInstantiateFlagUseNodePriority));
out:
    if (graph) (void)cudaGraphDestroy(graph); /* what can be launched needs it no longer */
    if (st != TR_OK) {
        kept->exec = NULL;
        memcpy(text, tr_last_error()->text, sizeof text);
        st = TR_FAIL(st, "a step could not be recorded: %s (run.cuda_graph: off does without)",
                     text);
    }
    return st;
}

tr_status tr_cuda_section_end(void *ctx, tr_status st)
{
    tr_cuda *cuda = ctx;
    tr_cuda_sections *s = cuda->sections;
    const state was = s->state;
    section *open = s->open;
    s->state = CLOSED;
    s->open = NULL;
    if (was == CLOSED) return st != TR_OK ? st : TR_FAIL(TR_INTERNAL, "no section is open");
    if (st != TR_OK) { /* the first error stays the thread's record */
        if (was == RECORDED) stop_recording(cuda);
        return st;
    }
    if (was == PLAIN) {
        if (open) open->ran = true;
        return TR_OK;
    }
    if (was == RECORDED) TR_TRY(keep_recording(cuda, open));
    TR_CUDA_TRY(cudaGraphLaunch(open->exec, cuda->stream));
out:
    return st;
}
