/* What changes in a session that is open: plans are added, and weights that no kernel reads are
 * given back. Whatever can fail comes before anything that the other plans stand on is touched. */
#include "runtime/plan/internal.h"

#include <string.h>

/* ---- Weights in memory ----------------------------------------------------------------------- */

typedef struct {
    bool *read;    /* [rows] some kernel reads the master itself */
    bool *oneway;  /* [rows] some copy cannot be unpacked */
    bool *written; /* [rows] its master is there, until it is released again */
} rows;

static tr_status rows_open(const tr_session *s, rows *r)
{
    const size_t n = s->o.model->nparams;
    *r = (rows){.read = tr_alloc(TR_MEM_OTHER, n, sizeof(bool)),
                .oneway = tr_alloc(TR_MEM_OTHER, n, sizeof(bool)),
                .written = tr_alloc(TR_MEM_OTHER, n, sizeof(bool))};
    return r->read && r->oneway && r->written ? TR_OK : tr_last_status();
}

static void rows_close(rows *r)
{
    tr_free(r->read);
    tr_free(r->oneway);
    tr_free(r->written);
}

static void look(const tr_session *s, const tr_plan *p, rows *r)
{
    const tr_graph *g = p->graph;
    for (size_t i = 0; i < p->nsteps; i++) {
        const tr_step *step = &p->steps[i];
        const tr_op *op = &g->ops[step->op];
        if (!step->kernel) continue;
        for (int j = 0; j < op->nin; j++) {
            const tr_tensor *t = op->in[j] >= 0 ? &g->tensors[op->in[j]] : NULL;
            bool packed = false;
            if (!t || t->role != TR_ROLE_PARAM) continue;
            for (int k = 0; k < step->npacked; k++)
                packed |= s->packed[step->packed[k]].what.param == t->index;
            if (!packed) r->read[t->index] = true;
        }
        for (int k = 0; k < step->npacked && !step->kernel->unpack; k++)
            r->oneway[s->packed[step->packed[k]].what.param] = true;
    }
}

/* The master of a row that was released, from a copy that is up to date. */
static tr_status restore(tr_session *s, int row, rows *r)
{
    if (!s->released || !s->released[row] || r->written[row]) return TR_OK;
    for (size_t i = 0; i < s->nplans; i++)
        for (size_t j = 0; j < s->plans[i]->nsteps; j++) {
            const tr_step *step = &s->plans[i]->steps[j];
            for (int k = 0; k < step->npacked; k++) {
                const tr_packed *copy = &s->packed[step->packed[k]];
                if (copy->what.param != row || copy->version != s->version) continue;
                const tr_status st = step->kernel->unpack(step->kernel, k);
                if (st == TR_OK) r->written[row] = true;
                return st;
            }
        }
    return TR_FAIL(TR_INTERNAL, "no copy of released weights is left");
}

/* All copies of a plan, and masters that its kernels read themselves. */
static tr_status pack(tr_session *s, const tr_plan *p, rows *r)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < s->o.model->nparams; i++)
        if (r->read[i]) TR_TRY(restore(s, (int)i, r));
    for (size_t i = 0; i < p->nsteps; i++) {
        const tr_step *step = &p->steps[i];
        for (int k = 0; k < step->npacked; k++) {
            const tr_packed *copy = &s->packed[step->packed[k]];
            if (copy->version != s->version) TR_TRY(restore(s, copy->what.param, r));
        }
        TR_TRY(tr_step_pack(s, step));
    }
out:
    return st;
}

static void release(tr_session *s, const rows *r)
{
    const tr_model *m = s->o.model;
    for (size_t i = 0; i < m->nparams; i++) {
        const size_t nbytes = m->params[i].count * sizeof(float);
        if (r->read[i] || r->oneway[i]) {
            s->released[i] = false;
            continue;
        }
        if (s->released[i] && !r->written[i]) continue;
        tr_mem_drop(tr_params_weight(s->o.params, i), nbytes);
        s->released[i] = true;
    }
}

tr_status tr_session_release(tr_session *s)
{
    tr_status st = TR_OK;
    rows r;
    if (!s->o.backend->host) return TR_OK;
    TR_TRY(rows_open(s, &r));
    if (!s->released) s->released = tr_alloc(TR_MEM_OTHER, s->o.model->nparams, sizeof(bool));
    TR_HAVE(s->released);
    for (size_t i = 0; i < s->nplans; i++) look(s, s->plans[i], &r);
    for (size_t i = 0; i < s->nplans; i++) TR_TRY(pack(s, s->plans[i], &r));
    release(s, &r);
out:
    rows_close(&r);
    return st;
}

size_t tr_session_weights(const tr_session *s)
{
    const tr_model *m = s->o.model;
    size_t count = m->state_count;
    for (size_t i = 0; i < m->nparams; i++)
        if (!s->released || !s->released[i]) count += m->params[i].count;
    return count * sizeof(float);
}

/* ---- One more plan --------------------------------------------------------------------------- */

/* What there was before. */
typedef struct {
    size_t npacked;
    tr_memory_plan memory;
    unsigned char *arena; /* NULL: still the same */
    void *stage;
} before;

static tr_status more_memory(tr_session *s, before *b)
{
    const tr_backend *backend = s->o.backend;
    void *ctx = s->o.backend_ctx;
    tr_status st = TR_OK;
    TR_TRY(tr_session_allocate_packed(s, b->npacked));
    if (s->memory.arena > b->memory.arena) {
        unsigned char *arena = backend->memory->alloc(ctx, TR_MEM_ACTIVATIONS, s->memory.arena);
        TR_HAVE(arena);
        b->arena = s->arena;
        s->arena = arena;
    }
    if (backend->staging) {
        void *stage = NULL;
        TR_TRY(backend->staging->open(ctx, tr_session_stage_bytes(s), &stage));
        b->stage = s->stage;
        s->stage = stage;
    }
out:
    return st;
}

static void undo(tr_session *s, before *b, tr_plan *p)
{
    const tr_backend *backend = s->o.backend;
    void *ctx = s->o.backend_ctx;
    if (b->stage) {
        backend->staging->close(s->stage);
        s->stage = b->stage;
    }
    if (b->arena) {
        backend->memory->free(ctx, s->arena);
        s->arena = b->arena;
    }
    for (size_t i = b->npacked; i < s->npacked; i++) backend->memory->free(ctx, s->packed[i].data);
    s->npacked = b->npacked;
    s->memory = b->memory;
    s->nplans--;
    tr_plan_close(p, true);
    if (s->arena) tr_session_count_arena(s, 1);
}

/* The others go over to the new arena: they were bound once, so they can be again. */
static tr_status settle(tr_session *s, before *b)
{
    const tr_backend *backend = s->o.backend;
    tr_status st = TR_OK;
    if (b->stage) backend->staging->close(b->stage);
    if (b->arena) backend->memory->free(s->o.backend_ctx, b->arena);
    tr_session_count_arena(s, 1);
    for (size_t i = 0; b->arena && i + 1 < s->nplans; i++) TR_TRY(tr_plan_bind(s, s->plans[i]));
out:
    return st;
}

tr_status tr_session_add(tr_session *s, tr_plan_key key)
{
    tr_status st = TR_OK;
    tr_graph *g = NULL;
    tr_plan *p = NULL;
    before b = {.npacked = s->npacked, .memory = s->memory};
    if (tr_session_plan_of(s, key)) return TR_OK;
    tr_plan **plans = tr_realloc(TR_MEM_OTHER, s->plans, s->nplans + 1, sizeof(tr_plan *));
    if (!plans) return tr_last_status();
    s->plans = plans;
    TR_TRY(tr_session_graph(&s->o, key, &g));
    p = TR_NEW(TR_MEM_OTHER, tr_plan);
    if (!p) {
        tr_graph_close(g);
        return tr_last_status();
    }
    if (s->arena) tr_session_count_arena(s, -1);
    s->plans[s->nplans++] = p;
    p->graph = g;
    TR_TRY(tr_plan_prepare(s, p, g));
    tr_session_sum_memory(s);
    if (s->o.dry) return TR_OK;
    TR_TRY(more_memory(s, &b));
    TR_TRY(tr_plan_bind(s, p));
    if (s->released) TR_TRY(tr_session_release(s));
    if (s->sections && (b.arena || b.stage)) s->o.backend->sections->drop(s->o.backend_ctx);
    return settle(s, &b);
out:
    if (p) undo(s, &b, p);
    return st;
}
