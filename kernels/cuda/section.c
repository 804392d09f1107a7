/* Sections: stretches of the kernels' stream that are the same every time for one key, recorded
 * once as a CUDA graph and launched as one from then on. A launch of a graph costs the host a few
 * microseconds, where the calls in it cost that each.
 *
 * First time as it comes (libraries load what they need, which must not happen while recording),
 * second time recorded and launched, then replayed. What happens depends on the sequence of calls
 * alone, not on time or memory, so that all ranks record, and replay, the same sections in the same
 * order, as NCCL asks for. A device may refuse to begin to record, or what was recorded. Nothing
 * has run by then, so that the caller can agree with its peers to do without recordings
 * (tr_cuda_sections_disable).
 *
 * Each session has its own set of recordings, at most 64; further keys run as they come. There is
 * one stream: of all sets of a context one section at a time is open. Nodes keep the priority of
 * the stream that they were recorded from. The calls of the backend come from one thread; what
 * libraries do in threads of their own does not spoil a recording, which is thread-local. */
#include "kernels/cuda/core.h"

#include <string.h>

enum { SECTIONS = 64 };

typedef struct {
    uint64_t key;
    bool ran;             /* once, as it came */
    cudaGraphExec_t exec; /* NULL until it was recorded */
} section;

struct tr_cuda_sections {
    tr_cuda *cuda;
    tr_cuda_sections *next; /* of the context */
    section at[SECTIONS];
    size_t n;
    section *open; /* NULL: not one that is kept */
    bool recorded; /* the section begun last was to be recorded */
};

tr_status tr_cuda_sections_open(void *ctx, void **out)
{
    tr_cuda *cuda = ctx;
    tr_cuda_sections *s = TR_NEW(TR_MEM_OTHER, tr_cuda_sections);
    if (!s) return tr_last_status();
    s->cuda = cuda;
    s->next = cuda->sections;
    cuda->sections = s;
    *out = s;
    return TR_OK;
}

/* Whatever was recorded so far is thrown away. */
static void stop_recording(tr_cuda *cuda)
{
    cudaGraph_t graph = NULL;
    (void)cudaStreamEndCapture(cuda->stream, &graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}

/* Of an open section nothing is kept: it is over. */
static void leave(tr_cuda *cuda)
{
    if (cuda->section == TR_SECTION_RECORDED) stop_recording(cuda);
    cuda->section = TR_SECTION_CLOSED;
    cuda->in = NULL;
}

/* When all that was launched has run. */
static void forget(tr_cuda_sections *s)
{
    if (s->cuda->in == s) leave(s->cuda);
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].exec) (void)cudaGraphExecDestroy(s->at[i].exec);
    (void)cudaGetLastError();
    s->n = 0;
    s->open = NULL;
}

void tr_cuda_sections_drop(void *ctx)
{
    tr_cuda *cuda = ctx;
    leave(cuda);
    (void)cudaStreamSynchronize(cuda->stream);
    for (tr_cuda_sections *s = cuda->sections; s; s = s->next) forget(s);
}

void tr_cuda_sections_disable(void *ctx)
{
    tr_cuda_sections_drop(ctx);
    ((tr_cuda *)ctx)->o.graphs = false;
}

void tr_cuda_sections_close(void *sections)
{
    tr_cuda_sections *s = sections;
    if (!s) return;
    if (s->cuda->in == s) leave(s->cuda);
    (void)cudaStreamSynchronize(s->cuda->stream);
    forget(s);
    tr_cuda_sections **at = &s->cuda->sections;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    tr_free(s);
}

bool tr_cuda_recording(const tr_cuda *cuda)
{
    return cuda->section == TR_SECTION_RECORDED;
}

tr_status tr_cuda_outside_section(const tr_cuda *cuda, const char *call)
{
    if (cuda->section == TR_SECTION_CLOSED) return TR_OK;
    return TR_FAIL(TR_INTERNAL, "%s inside a section: it would be repeated as recorded", call);
}

/* NULL: it is new and there is no room. */
static section *find(tr_cuda_sections *s, uint64_t key)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].key == key) return &s->at[i];
    if (s->n == SECTIONS) return NULL;
    s->at[s->n] = (section){.key = key};
    return &s->at[s->n++];
}

/* Recording failed with `st`, whose record gets the hint that tells this from other failures. */
static tr_status refused(tr_status st)
{
    return tr_fail_hint(tr_fail_before(st, "a step could not be recorded: "), TR_HINT_RECORDING);
}

tr_status tr_cuda_section_begin(void *sections, uint64_t key, bool *replay)
{
    tr_status st = TR_OK;
    tr_cuda_sections *s = sections;
    tr_cuda *cuda = s->cuda;
    TR_NEED(cuda->section == TR_SECTION_CLOSED, TR_INTERNAL, "a section is begun inside another");
    s->open = cuda->o.graphs ? find(s, key) : NULL;
    cuda->section = !s->open || !s->open->ran ? TR_SECTION_PLAIN
                    : s->open->exec           ? TR_SECTION_REPLAYED
                                              : TR_SECTION_RECORDED;
    cuda->in = s;
    *replay = cuda->section == TR_SECTION_REPLAYED;
    s->recorded = cuda->section == TR_SECTION_RECORDED;
    if (!s->recorded) goto out;
    st = tr_cuda_check(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture");
    if (st == TR_OK) goto out;
    cuda->section = TR_SECTION_CLOSED;
    cuda->in = NULL;
    st = refused(st);
out:
    return st;
}

bool tr_cuda_section_recording(const void *sections)
{
    return ((const tr_cuda_sections *)sections)->recorded;
}

/* The recording becomes something that can be launched. */
static tr_status keep_recording(tr_cuda *cuda, section *kept)
{
    tr_status st = TR_OK;
    cudaGraph_t graph = NULL;
    TR_CUDA_TRY(cudaStreamEndCapture(cuda->stream, &graph));
    /* Else all would run at the priority of cuda->stream, and collectives queue behind kernels. */
    TR_CUDA_TRY(cudaGraphInstantiate(&kept->exec, graph, cudaGraphInstantiateFlagUseNodePriority));
out:
    if (graph) (void)cudaGraphDestroy(graph); /* what can be launched needs it no longer */
    if (st == TR_OK) return TR_OK;
    kept->exec = NULL;
    return refused(st);
}

tr_status tr_cuda_section_recorded(void *sections, tr_status st, bool *was)
{
    tr_cuda_sections *s = sections;
    tr_cuda *cuda = s->cuda;
    *was = cuda->in == s && cuda->section == TR_SECTION_RECORDED;
    if (!*was) return st;
    if (st != TR_OK) { /* the first error stays the thread's record */
        leave(cuda);
        return st;
    }
    st = keep_recording(cuda, s->open);
    cuda->section = st == TR_OK ? TR_SECTION_REPLAYED : TR_SECTION_CLOSED;
    if (st != TR_OK) cuda->in = NULL;
    return st;
}

tr_status tr_cuda_section_end(void *sections, tr_status st)
{
    tr_cuda_sections *s = sections;
    tr_cuda *cuda = s->cuda;
    section *open = s->open;
    bool recorded;
    if (cuda->section == TR_SECTION_CLOSED || cuda->in != s)
        return st != TR_OK ? st : TR_FAIL(TR_INTERNAL, "no section is open");
    st = tr_cuda_section_recorded(sections, st, &recorded);
    const tr_cuda_section_state was = cuda->section;
    if (st != TR_OK) { /* the first error stays the thread's record */
        leave(cuda);
        return st;
    }
    cuda->section = TR_SECTION_CLOSED;
    cuda->in = NULL;
    if (was == TR_SECTION_PLAIN) {
        if (open) open->ran = true;
        return TR_OK;
    }
    TR_CUDA_TRY(cudaGraphLaunch(open->exec, cuda->stream));
out:
    return st;
}
