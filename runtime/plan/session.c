/* The session: a plan for each key, over one arena, one scratch region and one set of packed
 * copies, each as large as the largest plan needs. Everything is allocated here; nothing while
 * running. */
#include "runtime/plan/internal.h"

#include <string.h>

/* Sizes over all plans. Kinds add up to what is allocated: the tensors' region counts as I/O for
 * the inputs and targets of the plan that fixes its size, and as activations for the rest. */
static void sum_memory(tr_session *s)
{
    tr_memory_plan *m = &s->memory;
    size_t tensors = 0, io = 0, workspace = 0;
    for (size_t i = 0; i < s->nplans; i++) {
        const tr_plan *p = &s->plans[i];
        if (p->tensors_bytes > tensors) {
            tensors = p->tensors_bytes;
            io = p->io_bytes;
        }
        if (p->workspace > workspace) workspace = p->workspace;
        if (p->floor > m->arena_floor) m->arena_floor = p->floor;
    }
    workspace = tr_align_up(workspace, TR_ARENA_ALIGN);
    m->bytes[TR_MEM_IO] = io;
    m->bytes[TR_MEM_ACTIVATIONS] = tensors - io;
    m->bytes[TR_MEM_WORKSPACE] = workspace;
    m->arena = tensors + workspace;
    for (size_t i = 0; i < s->npacked; i++) m->bytes[TR_MEM_PACKED] += s->packed[i].nbytes;
}

static tr_status allocate(tr_session *s)
{
    const tr_memory_plan *m = &s->memory;
    const size_t io = m->bytes[TR_MEM_IO];
    s->workspace = tr_alloc(TR_MEM_WORKSPACE, m->bytes[TR_MEM_WORKSPACE], 1);
    s->arena = tr_alloc(TR_MEM_ACTIVATIONS, m->bytes[TR_MEM_ACTIVATIONS] + io, 1);
    if (!s->workspace || !s->arena) return TR_MEMORY;
    tr_mem_count(TR_MEM_ACTIVATIONS, -(int64_t)io);
    tr_mem_count(TR_MEM_IO, (int64_t)io);
    for (size_t i = 0; i < s->npacked; i++) {
        s->packed[i].data = tr_alloc(TR_MEM_PACKED, s->packed[i].nbytes, 1);
        if (!s->packed[i].data) return TR_MEMORY;
    }
    return TR_OK;
}

tr_status tr_session_open_graphs(const tr_session_options *o, tr_graph *const *graphs, size_t n,
                                 bool owns, tr_session **out)
{
    tr_status st = TR_OK;
    tr_session *s = TR_NEW(TR_MEM_OTHER, tr_session);
    if (!s || !(s->plans = tr_alloc(TR_MEM_OTHER, n, sizeof *s->plans))) {
        tr_free(s);
        for (size_t i = 0; owns && i < n; i++) tr_graph_close(graphs[i]);
        return TR_MEMORY;
    }
    s->o = *o;
    s->o.keys = NULL;
    s->o.nkeys = 0;
    s->owns_graphs = owns;
    s->version = 1;
    s->nplans = n;
    for (size_t i = 0; i < n; i++) s->plans[i].graph = graphs[i];
    for (size_t i = 0; i < n; i++) TR_TRY(tr_plan_prepare(s, &s->plans[i], graphs[i]));
    sum_memory(s);
    if (!o->dry) {
        TR_TRY(allocate(s));
        for (size_t i = 0; i < n; i++) TR_TRY(tr_plan_bind(s, &s->plans[i]));
    }
out:
    if (st != TR_OK) {
        tr_session_close(s);
        return st;
    }
    *out = s;
    return TR_OK;
}

static bool seen_before(const tr_plan_key *keys, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (keys[j].train == keys[i].train && keys[j].batch == keys[i].batch) return true;
    return false;
}

tr_status tr_session_open(const tr_session_options *o, tr_session **out)
{
    tr_status st = TR_OK;
    size_t n = 0;
    tr_graph **graphs = tr_alloc(TR_MEM_OTHER, o->nkeys, sizeof(tr_graph *));
    if (!graphs) return TR_MEMORY;
    for (size_t i = 0; i < o->nkeys; i++) {
        if (seen_before(o->keys, i)) continue;
        const tr_graph_options go = {.batch = o->keys[i].batch,
                                     .train = o->keys[i].train,
                                     .precision = o->precision,
                                     .sync_batchnorm = o->sync_batchnorm,
                                     .ranks = o->ranks,
                                     .recompute = o->recompute,
                                     .recompute_every = o->recompute_every,
                                     .fuse = true};
        TR_TRY(tr_graph_open(o->model, &go, &graphs[n]));
        n++;
    }
    const size_t opened = n;
    n = 0; /* the session owns them from here, also when it fails */
    TR_TRY(tr_session_open_graphs(o, graphs, opened, true, out));
out:
    for (size_t i = 0; i < n; i++) tr_graph_close(graphs[i]);
    tr_free(graphs);
    return st;
}

void tr_session_close(tr_session *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->nplans; i++) tr_plan_close(&s->plans[i], s->owns_graphs);
    for (size_t i = 0; i < s->npacked; i++) tr_free(s->packed[i].data);
    if (s->workspace && s->arena) { /* undo the split by kind made when both were there */
        tr_mem_count(TR_MEM_IO, -(int64_t)s->memory.bytes[TR_MEM_IO]);
        tr_mem_count(TR_MEM_ACTIVATIONS, (int64_t)s->memory.bytes[TR_MEM_IO]);
    }
    tr_free(s->packed);
    tr_free(s->plans);
    tr_free(s->workspace);
    tr_free(s->arena);
    tr_free(s);
}

tr_plan *tr_session_plan(tr_session *s, bool train, int64_t batch)
{
    for (size_t i = 0; i < s->nplans; i++)
        if (s->plans[i].graph->train == train && s->plans[i].graph->batch == batch)
            return &s->plans[i];
    return NULL;
}

void tr_session_memory(const tr_session *s, tr_memory_plan *out)
{
    *out = s->memory;
}
