/* Makes one plan. First what needs no memory: which ops run, their kernels, the packed copies these
 * ask for, lifetimes and offsets, the gradients to zero. Then, when the session has its memory:
 * addresses, and the flat list of steps that the executor walks. */
#include "runtime/plan/internal.h"

#include <stdlib.h>
#include <string.h>

static size_t param_end(const tr_param *p)
{
    return p->offset + tr_align_up(p->count, 16);
}

static bool same_copy(const tr_packing *a, const tr_packing *b)
{
    return a->param == b->param && a->nbytes == b->nbytes && a->format_size == b->format_size &&
           (a->format_size == 0 || memcmp(a->format, b->format, a->format_size) == 0);
}

static tr_status find_packed(tr_session *s, const tr_packing *wanted, int *index)
{
    for (size_t i = 0; i < s->npacked; i++) {
        if (!same_copy(&s->packed[i].what, wanted)) continue;
        *index = (int)i;
        return TR_OK;
    }
    if (s->npacked == s->cap_packed) {
        const size_t cap = s->cap_packed ? 2 * s->cap_packed : 16;
        tr_packed *grown = tr_realloc(TR_MEM_OTHER, s->packed, cap, sizeof *grown);
        if (!grown) return tr_last_status();
        s->packed = grown;
        s->cap_packed = cap;
    }
    *index = (int)s->npacked;
    s->packed[s->npacked++] = (tr_packed){.what = *wanted};
    return TR_OK;
}

static tr_status find_all_packed(tr_session *s, const tr_kernel *k, int index[TR_MAX_PACKED])
{
    tr_status st = TR_OK;
    TR_NEED(k->npacked >= 0 && k->npacked <= TR_MAX_PACKED && (k->npacked == 0 || k->pack),
            TR_INTERNAL, "kernel %s asks for packed copies that it cannot make", k->impl);
    for (int i = 0; i < k->npacked; i++) {
        const tr_packing *wanted = &k->packed[i];
        TR_NEED(wanted->nbytes > 0 && wanted->param >= 0 &&
                    (size_t)wanted->param < s->o.model->nparams,
                TR_INTERNAL, "kernel %s asks for %zu packed bytes of parameter %d", k->impl,
                wanted->nbytes, wanted->param);
        TR_TRY(find_packed(s, wanted, &index[i]));
    }
out:
    return st;
}

/* What a row's `rounds` promises, on which its weights may reach this rank rounded. */
static tr_status check_rounds(const tr_graph *g, const tr_op *op, const tr_kernel *k)
{
    if (tr_dtype_size(tr_op_dtype(g, op)) != 2) return TR_OK;
    for (int j = 0; j < op->nin; j++) {
        const tr_tensor *t = op->in[j] >= 0 ? &g->tensors[op->in[j]] : NULL;
        bool packed = k->rounds >> j & 1;
        if (!t || t->role != TR_ROLE_PARAM || !g->model->params[t->index].rounds) continue;
        for (int i = 0; i < k->npacked; i++) packed |= k->packed[i].param == t->index;
        if (!packed)
            return TR_FAIL(TR_INTERNAL,
                           "kernel %s reads \"%s\" itself, neither rounded nor a copy of it",
                           k->impl, t->name);
    }
    return TR_OK;
}

/* The failing kernel's own text, with its place before it. */
static tr_status prepare_failed(const tr_op *op, tr_status st)
{
    return tr_fail_before(st, "layer %s: op %s: ", op->layer, tr_op_name(op));
}

static tr_status prepare_kernels(tr_session *s, tr_plan *p)
{
    const tr_graph *g = p->graph;
    const tr_backend *b = s->o.backend;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        if (tr_op_is_view(g, op)) continue;
        const tr_dtype type = tr_op_dtype(g, op);
        const char *why = b->kernels->unsupported(s->o.backend_ctx, op->def, type);
        if (why)
            return TR_FAIL(TR_UNSUPPORTED, "layer %s: op %s has no %s kernel for %s: %s", op->layer,
                           tr_op_name(op), b->name, tr_dtype_name(type), why);
        tr_status st = b->kernels->prepare(s->team, g, op, &p->kernels[i]);
        if (st != TR_OK) return prepare_failed(op, st);
        st = find_all_packed(s, p->kernels[i], p->packed[i]);
        if (st == TR_OK) st = check_rounds(g, op, p->kernels[i]);
        if (st != TR_OK) return prepare_failed(op, st);
    }
    return TR_OK;
}

static int by_begin(const void *a, const void *b)
{
    const tr_range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Learned parameters whose gradient no op of the plan writes: for an empty share all but
 * batchnorm's. */
static tr_status find_unwritten(tr_plan *p)
{
    const tr_graph *g = p->graph;
    const tr_model *m = p->session->o.model;
    tr_status st = TR_OK;
    bool *written = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof *written);
    p->zero = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof *p->zero);
    TR_HAVE(written && p->zero);
    for (size_t i = 0; i < g->nops; i++)
        for (int j = 0; j < g->ops[i].nout; j++) {
            const int id = g->ops[i].out[j];
            if (id < 0 || g->tensors[id].role != TR_ROLE_GRAD) continue;
            written[g->tensors[id].index] = true;
            p->writes_grads = true;
        }
    size_t n = 0;
    for (size_t r = 0; r < m->nparams; r++)
        if (!written[r] && !m->params[r].frozen)
            p->zero[n++] = (tr_range){m->params[r].offset, param_end(&m->params[r])};
    qsort(p->zero, n, sizeof *p->zero, by_begin);
    for (size_t i = 0; i < n; i++) {
        if (p->nzero > 0 && p->zero[p->nzero - 1].end == p->zero[i].begin)
            p->zero[p->nzero - 1].end = p->zero[i].end;
        else
            p->zero[p->nzero++] = p->zero[i];
    }
out:
    tr_free(written);
    return st;
}

/* Who reads the slot. A writer, or a reader without `rebind`, pins it in the arena. */
static tr_status find_readers(tr_plan *p, tr_slot *slot, int tensor)
{
    const tr_graph *g = p->graph;
    slot->root = tensor < 0 ? -1 : tr_root(g, tensor);
    if (tensor < 0) return TR_OK;
    slot->nbytes = g->tensors[tensor].nbytes;
    slot->movable = true;
    for (int pass = 0; pass < 2; pass++) {
        size_t n = 0;
        for (size_t i = 0; i < g->nops; i++) {
            const tr_op *op = &g->ops[i];
            tr_kernel *k = p->kernels[i];
            if (!k) continue; /* a view: its readers are the slot's */
            for (int j = 0; j < op->nout; j++)
                if (tr_op_writes(g, op, j) && tr_root(g, op->out[j]) == slot->root)
                    slot->movable = false;
            for (int j = 0; j < op->nin; j++) {
                if (op->in[j] < 0 || tr_root(g, op->in[j]) != slot->root) continue;
                if (!k->rebind) slot->movable = false;
                if (pass == 1) slot->readers[n] = (tr_reader){k, j};
                n++;
            }
        }
        if (pass == 1) break;
        slot->nreaders = n;
        slot->readers = tr_alloc(TR_MEM_OTHER, n, sizeof *slot->readers);
        if (!slot->readers) return tr_last_status();
    }
    tr_live *l = &p->live[slot->root];
    if (slot->movable) l->arena = false;
    if (l->arena) p->io_bytes += l->nbytes;
    return TR_OK;
}

static tr_status find_slots(tr_plan *p)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < tr_graph_inputs(p->graph); i++)
        TR_TRY(find_readers(p, &p->slots[i], p->graph->inputs[i]));
    TR_TRY(find_readers(p, &p->slots[TR_SLOT_TARGET], p->graph->target));
    TR_TRY(find_readers(p, &p->slots[TR_SLOT_WEIGHTS], p->graph->weights));
    for (size_t i = 0; i < p->graph->ngiven; i++)
        TR_TRY(find_readers(p, &p->slots[TR_SLOT_GIVEN + i], p->graph->given[i]));
out:
    return st;
}

/* An op's scratch lives for that op: where it lies, others lie before and after. */
static void scratch_lives(tr_plan *p)
{
    const tr_graph *g = p->graph;
    for (size_t i = 0; i < g->nops; i++) {
        const size_t nbytes = p->kernels[i] ? p->kernels[i]->workspace : 0;
        p->live[g->ntensors + i] = (tr_live){.arena = nbytes > 0,
                                             .first = (int)i,
                                             .last = (int)i,
                                             .nbytes = tr_align_up(nbytes, TR_ARENA_ALIGN)};
    }
}

/* Tensors are often of whole small pages, and would all begin at the same place of one: a kernel
 * that walks several at once then takes a load for one that waits for the store before it (4 KB
 * aliasing, Intel's optimization manual), and finds its lines in the same few sets of a cache.
 * Large ones take a little more, so that those behind them begin elsewhere. */
static void stagger(tr_plan *p)
{
    enum { SPAN = 4096, SHIFT = 5 * TR_ARENA_ALIGN, LARGE = 128 << 10 };
    for (size_t i = 0; i < p->graph->ntensors; i++) {
        tr_live *l = &p->live[i];
        if (l->nbytes >= LARGE) l->nbytes += (SPAN + SHIFT - l->nbytes % SPAN) % SPAN;
    }
}

tr_status tr_plan_prepare(tr_session *s, tr_plan *p, tr_graph *g)
{
    tr_status st = TR_OK;
    const size_t entries = g->ntensors + g->nops;
    p->session = s;
    p->graph = g;
    for (size_t i = 0; i < TR_COUNT(p->slots); i++) p->slots[i].root = -1;
    p->live = tr_alloc(TR_MEM_OTHER, entries, sizeof *p->live);
    p->kernels = tr_alloc(TR_MEM_OTHER, g->nops, sizeof(tr_kernel *));
    p->packed = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *p->packed);
    p->steps = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *p->steps);
    TR_HAVE(p->live && p->kernels && p->packed && p->steps);
    TR_TRY(prepare_kernels(s, p));
    TR_TRY(tr_liveness(g, p->live));
    TR_TRY(find_slots(p));
    scratch_lives(p);
    if (s->o.backend->host) stagger(p);
    TR_TRY(tr_arena_pack(p->live, entries, &p->arena_bytes, &p->floor));
    TR_TRY(tr_arena_covered(p->live, g->ntensors, &p->tensors_bytes));
    if (g->mode == TR_MODE_TRAIN) TR_TRY(find_unwritten(p));
out:
    return st;
}

void *tr_plan_address(const tr_plan *p, int tensor)
{
    if (tensor < 0 || p->session->o.dry) return NULL;
    const tr_session_options *o = &p->session->o;
    const tr_tensor *t = &p->graph->tensors[tr_root(p->graph, tensor)];
    switch (t->role) {
    case TR_ROLE_PARAM:
        return tr_params_weight(o->params, (size_t)t->index);
    case TR_ROLE_GRAD:
        return tr_params_grad(o->params, (size_t)t->index);
    case TR_ROLE_STATE:
        return tr_params_state(o->params, (size_t)t->index);
    case TR_ROLE_INPUT:
        return p->slots[t->index].current;
    case TR_ROLE_TARGET:
        return p->slots[t->id == p->graph->weights ? TR_SLOT_WEIGHTS : TR_SLOT_TARGET].current;
    case TR_ROLE_GIVEN:
        return p->slots[TR_SLOT_GIVEN + t->index].current;
    case TR_ROLE_HELD:
        return tr_session_held_at(p->session) + t->at;
    default:
        return p->session->arena + p->live[t->id].offset + p->graph->tensors[tensor].at;
    }
}

tr_status tr_plan_bind(tr_session *s, tr_plan *p)
{
    const tr_graph *g = p->graph;
    p->nsteps = 0;
    for (size_t i = 0; i < TR_COUNT(p->slots); i++)
        if (p->slots[i].root >= 0 && !p->slots[i].movable)
            p->slots[i].current = s->arena + p->live[p->slots[i].root].offset;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        tr_kernel *k = p->kernels[i];
        if (k) {
            tr_binding b = {
                .workspace = k->workspace > 0 ? s->arena + p->live[g->ntensors + i].offset : NULL,
                .adds = op->adds,
                .overwrites = op->overwrites};
            for (int j = 0; j < k->npacked; j++) b.packed[j] = s->packed[p->packed[i][j]].data;
            for (int j = 0; j < op->nin; j++) b.in[j] = tr_plan_address(p, op->in[j]);
            for (int j = 0; j < op->nout; j++) b.out[j] = tr_plan_address(p, op->out[j]);
            const tr_status st = k->bind ? k->bind(k, &b) : TR_OK;
            if (st != TR_OK) return prepare_failed(op, st);
        } else if (op->bucket_ready < 0) {
            continue;
        }
        /* A view moves no bytes, but may still complete a bucket. */
        tr_step *step = &p->steps[p->nsteps++];
        *step = (tr_step){
            .kernel = k, .op = (int)i, .npacked = k ? k->npacked : 0, .bucket = op->bucket_ready};
        memcpy(step->packed, p->packed[i], sizeof step->packed);
    }
    return TR_OK;
}

void tr_plan_close(tr_plan *p, bool close_graph)
{
    if (p->graph && p->kernels)
        for (size_t i = 0; i < p->graph->nops; i++)
            if (p->kernels[i]) p->kernels[i]->close(p->kernels[i]);
    for (size_t i = 0; i < TR_COUNT(p->slots); i++) tr_free(p->slots[i].readers);
    tr_free(p->live);
    tr_free(p->kernels);
    tr_free(p->packed);
    tr_free(p->steps);
    tr_free(p->zero);
    if (p->marks) p->session->o.backend->marks->close(p->marks);
    tr_free(p->step_seconds);
    if (close_graph) tr_graph_close(p->graph);
    tr_free(p);
}
