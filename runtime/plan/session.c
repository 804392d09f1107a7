/* The session: a plan for each key, over one arena, as large as the largest plan needs, and one set
 * of packed copies. Everything is allocated here; nothing while
 * running. */
#include "runtime/plan/internal.h"

#include <string.h>

size_t tr_session_stage_bytes(const tr_session *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->nplans; i++) {
        size_t nbytes = 0;
        for (size_t k = 0; k <= TR_SLOT_WEIGHTS; k++)
            nbytes += tr_align_up(s->plans[i]->slots[k].nbytes, TR_STAGE_ALIGN);
        if (nbytes > most) most = nbytes;
    }
    return most;
}

/* Sizes over all plans. Kinds add up to what is allocated. Of the plan that fixes the arena's size,
 * bytes of inputs and target count as I/O, those that ever belong to another tensor as activations,
 * and those that only scratch uses as workspace. */
void tr_session_sum_memory(tr_session *s)
{
    tr_memory_plan *m = &s->memory;
    *m = (tr_memory_plan){0};
    for (size_t i = 0; i < s->nplans; i++) {
        const tr_plan *p = s->plans[i];
        if (p->floor > m->arena_floor) m->arena_floor = p->floor;
        if (p->arena_bytes <= m->arena) continue;
        m->arena = p->arena_bytes;
        m->bytes[TR_MEM_IO] = p->io_bytes;
        m->bytes[TR_MEM_ACTIVATIONS] = p->tensors_bytes - p->io_bytes;
        m->bytes[TR_MEM_WORKSPACE] = p->arena_bytes - p->tensors_bytes;
    }
    const size_t held = tr_session_held(s);
    m->arena += held;
    m->arena_floor += held;
    m->bytes[TR_MEM_ACTIVATIONS] += held;
    for (size_t i = 0; i < s->npacked; i++) m->bytes[TR_MEM_PACKED] += s->packed[i].what.nbytes;
    if (!s->o.backend->host) m->bytes[TR_MEM_IO] += 2 * tr_session_stage_bytes(s);
}

void tr_session_count_arena(const tr_session *s, int64_t sign)
{
    const size_t staged =
        s->o.backend->staging ? 2 * tr_session_stage_bytes(s) : 0; /* counted by the backend */
    const size_t others[][2] = {{TR_MEM_IO, s->memory.bytes[TR_MEM_IO] - staged},
                                {TR_MEM_WORKSPACE, s->memory.bytes[TR_MEM_WORKSPACE]}};
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        const int64_t nbytes = sign * (int64_t)others[i][1];
        tr_mem_count((tr_mem_kind)others[i][0], nbytes);
        tr_mem_count(TR_MEM_ACTIVATIONS, -nbytes);
    }
}

tr_status tr_session_allocate_packed(tr_session *s, size_t first)
{
    const tr_backend *b = s->o.backend;
    for (size_t i = first; i < s->npacked; i++) {
        s->packed[i].data =
            b->memory->alloc(s->o.backend_ctx, TR_MEM_PACKED, s->packed[i].what.nbytes);
        if (!s->packed[i].data) return tr_last_status();
    }
    return TR_OK;
}

static tr_status allocate(tr_session *s)
{
    tr_status st = TR_OK;
    const tr_backend *b = s->o.backend;
    void *ctx = s->o.backend_ctx;
    s->arena = b->memory->alloc(ctx, TR_MEM_ACTIVATIONS, s->memory.arena);
    if (!s->arena) return tr_last_status();
    tr_session_count_arena(s, 1);
    TR_TRY(tr_session_allocate_packed(s, 0));
    if (b->staging) TR_TRY(b->staging->open(ctx, tr_session_stage_bytes(s), &s->stage));
out:
    return st;
}

/* Empty plans that own their graphs, or will not. */
static tr_status make_plans(tr_session *s, tr_graph *const *graphs, size_t n)
{
    s->plans = tr_alloc(TR_MEM_OTHER, n, sizeof *s->plans);
    if (!s->plans) return tr_last_status();
    for (; s->nplans < n; s->nplans++) {
        tr_plan *p = s->plans[s->nplans] = TR_NEW(TR_MEM_OTHER, tr_plan);
        if (!p) return tr_last_status();
        p->graph = graphs[s->nplans];
    }
    return TR_OK;
}

tr_status tr_session_open_graphs(const tr_session_options *o, tr_graph *const *graphs, size_t n,
                                 bool owns, tr_session **out)
{
    tr_status st = TR_OK;
    tr_session *s = TR_NEW(TR_MEM_OTHER, tr_session);
    if (!s) {
        for (size_t i = 0; owns && i < n; i++) tr_graph_close(graphs[i]);
        return tr_last_status();
    }
    s->o = *o;
    s->o.keys = NULL;
    s->o.nkeys = 0;
    s->o.decodes = NULL;
    s->o.ndecodes = 0;
    s->owns_graphs = owns;
    s->version = 1;
    TR_TRY(make_plans(s, graphs, n));
    TR_TRY(tr_team_open(o->backend, o->backend_ctx, o->threads, &s->team));
    for (size_t i = 0; i < n; i++) TR_TRY(tr_plan_prepare(s, s->plans[i], graphs[i]));
    tr_session_sum_memory(s);
    if (!o->dry) {
        TR_TRY(allocate(s));
        if (o->backend->sections) TR_TRY(o->backend->sections->open(o->backend_ctx, &s->sections));
        for (size_t i = 0; i < n; i++) TR_TRY(tr_plan_bind(s, s->plans[i]));
    }
out:
    if (st != TR_OK) {
        for (size_t i = s->nplans; owns && i < n; i++) tr_graph_close(graphs[i]);
        tr_session_close(s);
        return st;
    }
    *out = s;
    return TR_OK;
}

static bool seen_before(const tr_plan_key *keys, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (keys[j].mode == keys[i].mode && keys[j].batch == keys[i].batch &&
            keys[j].model == keys[i].model)
            return true;
    return false;
}

static tr_status open_graph(const tr_session_options *o, tr_plan_key key, const tr_decode *decode,
                            tr_graph **out)
{
    const tr_graph_options go = {
        .batch = key.batch,
        .mode = key.mode,
        .precision = o->precision,
        .sync_batchnorm = o->sync_batchnorm,
        .ranks = o->ranks,
        .recompute = o->recompute,
        .recompute_every = o->recompute_every,
        .recompute_segments = o->recompute_segments,
        .passes = TR_PASSES_ALL & ~o->skip_passes,
        .residual_in_place = o->backend->kernels->residual_in_place,
        .trained = o->trained,
        .parts = o->backend->kernels->parts,
        .activation_gradient = o->backend->kernels->activation_gradient,
        .row_align = o->backend->kernels->row_align,
        .int8 = tr_graph_int8(o->backend->kernels->unsupported, o->backend_ctx),
        .outputs = o->outputs,
        .noutputs = o->noutputs,
        .distill = o->distill,
        .mixed = o->mixed,
        .decode = decode ? *decode : (tr_decode){0}};
    return tr_graph_open(key.model ? key.model : o->model, &go, out);
}

tr_status tr_session_graph(const tr_session_options *o, tr_plan_key key, tr_graph **out)
{
    return open_graph(o, key, NULL, out);
}

tr_status tr_session_passes(const tr_session_options *o, tr_plan_key key,
                            size_t found[TR_GRAPH_PASSES])
{
    tr_graph *g = NULL;
    const tr_status st = tr_session_graph(o, key, &g);
    if (st == TR_OK) memcpy(found, g->found, sizeof g->found);
    tr_graph_close(g);
    return st;
}

tr_status tr_session_open(const tr_session_options *o, tr_session **out)
{
    tr_status st = TR_OK;
    size_t n = 0;
    tr_graph **graphs = tr_alloc(TR_MEM_OTHER, o->nkeys + o->ndecodes, sizeof(tr_graph *));
    if (!graphs) return tr_last_status();
    for (size_t i = 0; i < o->nkeys; i++) {
        if (seen_before(o->keys, i)) continue;
        TR_TRY(tr_session_graph(o, o->keys[i], &graphs[n]));
        n++;
    }
    for (size_t i = 0; i < o->ndecodes; i++) {
        const tr_plan_key key = {.mode = TR_MODE_INFER, .batch = o->sequences};
        TR_TRY(open_graph(o, key, &o->decodes[i], &graphs[n]));
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
    const tr_backend *b = s->o.backend;
    if (s->sections) b->sections->close(s->sections); /* recorded kernels are still there */
    if (s->arena) tr_session_count_arena(s, -1);      /* by the plans' inputs */
    for (size_t i = 0; i < s->nplans; i++) tr_plan_close(s->plans[i], s->owns_graphs);
    tr_team_close(b, s->team);
    if (s->stage) b->staging->close(s->stage);
    for (size_t i = 0; i < s->npacked; i++) b->memory->free(s->o.backend_ctx, s->packed[i].data);
    b->memory->free(s->o.backend_ctx, s->arena);
    tr_free(s->released);
    tr_free(s->packed);
    tr_free(s->plans);
    tr_free(s);
}

tr_status tr_session_stage(tr_session *s)
{
    return s->stage ? s->o.backend->staging->begin(s->stage) : TR_OK;
}

tr_status tr_session_staged(const tr_session *s, bool *done)
{
    *done = true;
    return s->stage ? s->o.backend->staging->poll(s->stage, done) : TR_OK;
}

/* Recordings have the addresses of the slot in them. */
tr_status tr_session_section_begin(tr_session *s, uint64_t key, bool *replay)
{
    *replay = false;
    if (!s->sections) return TR_OK;
    const uint64_t slot = s->stage ? (uint64_t)s->o.backend->staging->slot(s->stage) : 0;
    return s->o.backend->sections->begin(s->sections, 2 * key + slot, replay);
}

bool tr_session_section_recording(const tr_session *s)
{
    return s->sections && s->o.backend->sections->recording(s->sections);
}

tr_status tr_session_section_recorded(tr_session *s, tr_status st, bool *was)
{
    *was = false;
    return s->sections ? s->o.backend->sections->recorded(s->sections, st, was) : st;
}

tr_status tr_session_section_end(tr_session *s, tr_status st)
{
    return s->sections ? s->o.backend->sections->end(s->sections, st) : st;
}

void tr_session_replayed(tr_session *s)
{
    s->version++;
}

tr_plan *tr_session_plan_of(tr_session *s, tr_plan_key key)
{
    const tr_model *model = key.model ? key.model : s->o.model;
    for (size_t i = 0; i < s->nplans; i++) {
        const tr_graph *g = s->plans[i]->graph;
        if (g->mode == key.mode && g->batch == key.batch && g->model == model &&
            g->decode.rows == 0)
            return s->plans[i];
    }
    return NULL;
}

tr_plan *tr_session_plan(tr_session *s, tr_mode mode, int64_t batch)
{
    return tr_session_plan_of(s, (tr_plan_key){.mode = mode, .batch = batch});
}

tr_plan *tr_session_decoder(tr_session *s, const tr_decode *d)
{
    for (size_t i = 0; i < s->nplans; i++) {
        const tr_decode *have = &s->plans[i]->graph->decode;
        if (have->rows == d->rows && have->cache == d->cache && have->fill == d->fill &&
            d->rows > 0)
            return s->plans[i];
    }
    return NULL;
}

size_t tr_session_held(const tr_session *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->nplans; i++)
        if (s->plans[i]->graph->held > most) most = s->plans[i]->graph->held;
    return most;
}

unsigned char *tr_session_held_at(const tr_session *s)
{
    return s->arena + s->memory.arena - tr_session_held(s);
}

tr_status tr_session_forget(tr_session *s)
{
    const size_t nbytes = tr_session_held(s);
    if (nbytes == 0) return TR_OK;
    return s->o.backend->memory->zero(s->o.backend_ctx, tr_session_held_at(s), nbytes);
}

void tr_session_memory(const tr_session *s, tr_memory_plan *out)
{
    *out = s->memory;
}
