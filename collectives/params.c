/* Where the arrays of a parameter store lie, and who owns what.
 *
 * Ranks of a node that share memory have one window: gradients of each rank, weights once, slots
 * once, each rank's part of them behind the other's, so that its pages lie near it. Anywhere else
 * arrays are private: the backend's. Ownership is arithmetic (slices.c) that every rank can do for
 * every other.
 *
 *     flags | gradients of rank 0 | of rank 1 | weights | slot 0: rank 0's, rank 1's | slot 1:
 *     ... */
#include "collectives/reducer/reducer.h"

#include <stdlib.h>
#include <string.h>

/* ---- The window ------------------------------------------------------------------------------ */

/* Elements of a slot that the ranks of the node before `local_rank` hold; with local_size: all. */
static size_t held_before(const tr_placement *l, const tr_params_options *o, int local_rank)
{
    size_t sum = 0;
    for (int i = 0; i < local_rank; i++) {
        tr_topology t = l->c->topology;
        t.local_rank = i;
        const tr_ownership w = tr_ownership_of(&t, o, &l->r);
        sum += tr_owned_count(&w, o->buckets, o->nbuckets);
    }
    return sum;
}

/* Bytes of the window's parts: gradients of one rank, a slot of all. */
typedef struct {
    size_t flags, grads, weights, slot, total;
} layout;

/* Everything page-aligned. False where it does not fit the address space. */
static bool measure(const tr_placement *l, const tr_params_options *o, layout *y)
{
    const size_t ranks = (size_t)l->c->topology.local_size;
    size_t grads, slots;
    if (o->count > SIZE_MAX / 2 / sizeof(float)) return false;
    y->flags = tr_align_up(ranks * sizeof(tr_ready_flag), TR_PAGE);
    y->grads = tr_align_up(tr_params_learned(o) * sizeof(float), TR_PAGE);
    y->weights = tr_align_up(o->count * sizeof(float), TR_PAGE);
    y->slot = tr_align_up(held_before(l, o, (int)ranks) * sizeof(float), TR_PAGE);
    return tr_mul_size(y->grads, ranks, &grads) &&
           tr_mul_size(y->slot, (size_t)o->nslots, &slots) &&
           tr_add_size(grads, slots, &y->total) && tr_add_size(y->total, y->weights, &y->total) &&
           tr_add_size(y->total, y->flags, &y->total);
}

static void lay_out(tr_placement *l, const tr_params_options *o, const layout *y,
                    tr_params_memory *m)
{
    const tr_topology *t = &l->c->topology;
    const size_t before = held_before(l, o, t->local_rank);
    char *at = l->window.base;
    l->flags = (tr_ready_flag *)(void *)at;
    at += y->flags;
    m->grads = (float *)(void *)(at + (size_t)t->local_rank * y->grads);
    for (int i = 0; i < t->local_size; i++, at += y->grads) l->bases[i] = (const float *)(void *)at;
    m->weights = (float *)(void *)at;
    at += y->weights;
    for (int k = 0; k < o->nslots; k++, at += y->slot) {
        l->slots[k] = (float *)(void *)at;
        m->slots[k] = l->slots[k] + before;
    }
}

/* Of frozen rows, what this rank writes for its node. */
static tr_range frozen_of(const tr_placement *l, const tr_params_options *o)
{
    const tr_range all = {tr_params_learned(o), o->count};
    const tr_topology *t = &l->c->topology;
    return l->bases ? tr_slice(all, t->local_rank, t->local_size) : all;
}

/* Zeroes what is this rank's to write, and by that places its pages. */
static bool touch(const tr_placement *l, const tr_params_options *o, const tr_params_memory *m)
{
    const tr_topology *t = &l->c->topology;
    const size_t held = tr_owned_count(&l->own, o->buckets, o->nbuckets);
    const tr_range frozen = frozen_of(l, o);
    bool ok = tr_window_touch(m->grads, tr_params_learned(o) * sizeof(float));
    if (t->local_rank == 0)
        ok = ok && tr_window_touch(l->flags, (size_t)t->local_size * sizeof *l->flags);
    for (size_t b = 0; b < o->nbuckets; b++) { /* weights by slices, whoever updates them */
        const tr_range s = tr_slice(o->buckets[b], t->local_rank, t->slices);
        ok = ok && tr_window_touch(m->weights + s.begin, tr_range_count(s) * sizeof(float));
    }
    ok = ok && tr_window_touch(m->weights + frozen.begin, tr_range_count(frozen) * sizeof(float));
    for (int k = 0; k < o->nslots; k++)
        ok = ok && tr_window_touch(m->slots[k], held * sizeof(float));
    return ok;
}

static void count_memory(const tr_placement *l, int sign)
{
    for (int k = 0; k < TR_MEM_KINDS; k++)
        if (l->counted[k]) tr_mem_count((tr_mem_kind)k, sign * (int64_t)l->counted[k]);
}

/* *Collective.* *got false: no room, on some node; why in c->reason. */
static tr_status open_window(tr_placement *l, const tr_params_options *o, tr_params_memory *m,
                             bool *got)
{
    tr_status st = TR_OK;
    tr_comm *c = l->c;
    const size_t ranks = (size_t)c->topology.local_size;
    layout y = {0};
    bool ok = true;
    l->bases = tr_alloc(TR_MEM_OTHER, ranks, sizeof(float *));
    st = l->bases ? TR_OK : tr_last_status();
    if (st == TR_OK && !measure(l, o, &y))
        st = TR_FAIL(TR_MEMORY, "%zu parameters do not fit the address space", o->count);
    TR_TRY(tr_agree(c, st, NULL));
    TR_TRY(tr_window_open(c, y.total, &l->window, got, c->reason, sizeof c->reason));
    if (!*got) goto out;
    lay_out(l, o, &y, m);
    /* after this all flags are zero and may be set */
    TR_TRY(tr_comm_all(c, touch(l, o, m), &ok));
    if (!ok) {
        snprintf(c->reason, sizeof c->reason, "shared memory ran out while it was set up");
        tr_window_close(&l->window, c->job);
        *m = (tr_params_memory){0};
        *got = false;
        goto out;
    }
    l->counted[TR_MEM_GRADIENTS] = tr_params_learned(o) * sizeof(float);
    l->counted[TR_MEM_WEIGHTS] = o->count * sizeof(float) / ranks;
    l->counted[TR_MEM_MOMENTS] =
        tr_owned_count(&l->own, o->buckets, o->nbuckets) * sizeof(float) * (size_t)o->nslots;
    count_memory(l, 1);
out:
    return st;
}

/* ---- The store ------------------------------------------------------------------------------- */

static tr_status check(const tr_params_options *o)
{
    tr_status st = TR_OK;
    size_t at = 0;
    TR_NEED(o->nbuckets <= INT32_MAX, TR_INTERNAL, "%zu buckets", o->nbuckets);
    for (size_t b = 0; b < o->nbuckets; b++) {
        tr_range k = o->buckets[b];
        TR_NEED(k.begin == at && k.end >= k.begin && k.end % TR_SLICE_UNIT == 0, TR_INTERNAL,
                "bucket %zu [%zu, %zu) does not follow %zu in multiples of 16", b, k.begin, k.end,
                at);
        at = k.end;
    }
    TR_NEED(at <= o->count, TR_INTERNAL, "buckets end at %zu of %zu elements", at, o->count);
out:
    return st;
}

static void give_back(tr_placement *l)
{
    for (size_t i = 0; i < TR_COUNT(l->lent); i++) {
        if (l->lent[i]) l->backend->memory->free(l->backend_ctx, l->lent[i]);
        l->lent[i] = NULL;
    }
}

/* *Collective.* Gradients, and weights that are gathered, in memory that the link reaches without
 * copies: on all ranks or on none. */
static tr_status borrow(tr_placement *l, const tr_params_options *o, tr_params_memory *m)
{
    tr_status st = TR_OK;
    const tr_device_memory *memory = o->backend->memory;
    const size_t grads = tr_params_learned(o) * sizeof(float), weights = o->count * sizeof(float);
    if (!l->r.nccl || !l->r.link || !memory->borrow) return TR_OK;
    l->backend = o->backend;
    l->backend_ctx = o->backend_ctx;
    l->lender = (tr_device_lender){l->c->job, l->r.gpu->alloc, l->r.gpu->free};
    l->lent[0] = memory->borrow(o->backend_ctx, TR_MEM_GRADIENTS, grads, &l->lender);
    if (l->lent[0] && l->r.shard)
        l->lent[1] = memory->borrow(o->backend_ctx, TR_MEM_WEIGHTS, weights, &l->lender);
    if (!l->lent[0] || (l->r.shard && !l->lent[1])) st = tr_last_status();
    st = tr_agree(l->c, st, NULL);
    if (st != TR_OK) give_back(l);
    if (st != TR_OK && !tr_comm_broken(l->c)) {
        if (l->c->topology.rank == 0)
            tr_log(TR_LOG_INFO, "gradients lie in plain device memory: %s", tr_last_error()->text);
        st = TR_OK;
    }
    m->grads = l->lent[0];
    m->weights = l->lent[1];
    return st;
}

static void release(void *ctx)
{
    tr_placement *l = ctx;
    count_memory(l, -1);
    give_back(l);
    tr_window_close(&l->window, l->c->job);
    tr_collect_close(l);
    tr_free(l->bases);
    tr_free(l->owned);
    tr_free(l);
}

/* *Collective.* Which ranges are this rank's, by what the ranks share now. */
static tr_status find_owned(tr_placement *l, const tr_params_options *o)
{
    tr_free(l->owned);
    l->own = tr_ownership_of(&l->c->topology, o, &l->r);
    l->owned =
        tr_alloc(TR_MEM_OTHER, tr_owned_most(&l->own, o->buckets, o->nbuckets), sizeof *l->owned);
    if (l->owned) l->nowned = tr_owned(&l->own, o->buckets, o->nbuckets, l->owned);
    return tr_agree(l->c, l->owned ? TR_OK : tr_last_status(), NULL);
}

/* *Collective.* */
static tr_status place(tr_placement *l, const tr_params_options *o, tr_params_memory *m)
{
    tr_status st = TR_OK;
    tr_comm *c = l->c;
    bool got = false;
    TR_TRY(find_owned(l, o));
    if (tr_on_device(o)) return borrow(l, o, m);
    if (!c->topology.shared) return TR_OK;
    TR_TRY(open_window(l, o, m, &got));
    if (got) return TR_OK;
    tr_free(l->bases); /* private arrays from here on */
    l->bases = NULL;
    c->topology.shared = false;
    TR_NEED(!c->job->shared_required, TR_MEMORY, "run.collectives is shared, but %s", c->reason);
    if (c->topology.rank == 0) tr_log(TR_LOG_WARN, "%s: gradients go through plain MPI", c->reason);
    TR_TRY(find_owned(l, o));
out:
    return st;
}

tr_status tr_comm_params_open(tr_comm *c, const tr_params_options *o, const tr_reducer_options *r,
                              tr_params **out)
{
    tr_status st = TR_OK;
    tr_params *p = NULL;
    tr_placement *l = TR_NEW(TR_MEM_OTHER, tr_placement);
    tr_params_memory m = {0};
    if (l) *l = (tr_placement){.c = c, .r = *r, .window = {.win = MPI_WIN_NULL}};
    st = l ? check(o) : tr_last_status();
    TR_TRY(tr_agree(c, st, NULL));
    TR_TRY(place(l, o, &m));
    TR_TRY(tr_collect_open(l, o));
    m.ctx = l;
    m.release = release;
    st = tr_params_open(o, l->owned, l->nowned, &m, &p);
    TR_TRY(tr_agree(c, st, NULL));
    p->frozen = frozen_of(l, o);
out:
    if (st != TR_OK) {
        if (p)
            tr_params_close(p);
        else if (l)
            release(l);
        return st;
    }
    *out = p;
    return TR_OK;
}

const tr_placement *tr_placement_of(const tr_params *p)
{
    return p->memory.ctx;
}

void tr_comm_params_close(tr_params *p)
{
    if (!p) return;
    tr_placement *l = p->memory.ctx;
    /* MPI may still write into them */
    if (tr_comm_broken(l->c) && !l->bases && !tr_on_device(&p->o)) p->grads = NULL;
    tr_params_close(p);
}
