/* A slot, or the weights, brought together on rank 0, for a checkpoint: its own part, what it can
 * read in the node's window, and from ranks that share no memory with it messages, in pieces. Rank
 * 0 works out who holds what; a piece says nothing but values.
 *
 *     rank 0            [ A0 A1 .... ]   copied
 *     rank 1, node 0    [ B0 B1 .... ]   copied from the window
 *     rank 2, node 1    [ C0 ] -> [ C1 ] -> ...   sent; one piece under way */
#include "collectives/reducer/reducer.h"

#include <string.h>

/* Whose part goes into the whole. */
static bool contributes(const tr_placement *l, int rank)
{
    return rank == 0 || l->own.parts > 1 || (l->bases && l->seats[rank].node == l->seats[0].node);
}

/* A message: rank 0 cannot read it. */
static bool sends(const tr_placement *l, int rank)
{
    return rank != 0 && contributes(l, rank) &&
           !(l->bases && l->seats[rank].node == l->seats[0].node);
}

/* Elements [at, at + n) of a slot that holds these ranges, to their places. */
static void deal(const tr_range *owned, size_t nowned, size_t at, const float *piece, size_t n,
                 float *to)
{
    for (size_t i = 0, begin = 0; i < nowned && begin < at + n; i++) {
        const size_t end = begin + tr_range_count(owned[i]);
        const size_t from = begin > at ? begin : at, until = end < at + n ? end : at + n;
        if (from < until)
            memcpy(to + owned[i].begin + (from - begin), piece + (from - at),
                   (until - from) * sizeof(float));
        begin = end;
    }
}

static tr_status receive(const tr_placement *l, int rank, const tr_range *owned, size_t nowned,
                         size_t held, float *to)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < held; at += TR_PIECE) {
        const size_t n = held - at < TR_PIECE ? held - at : TR_PIECE;
        TR_TRY(tr_comm_receive(l->c, l->buffer, n * sizeof(float), rank));
        deal(owned, nowned, at, l->buffer, n, to);
    }
out:
    return st;
}

/* What lies in the backend's memory, by way of the host's where that is another. */
static tr_status fetch(const tr_params *p, const float *from, size_t n, float *to)
{
    if (p->o.backend)
        return p->o.backend->memory->download(p->o.backend_ctx, to, from, n * sizeof(float));
    memcpy(to, from, n * sizeof(float));
    return TR_OK;
}

/* Of what this rank holds of the slot, elements [at, at + n). Negative: of the weights. */
static tr_status fetch_held(const tr_params *p, int slot, size_t at, size_t n, float *to)
{
    tr_status st = TR_OK;
    if (slot >= 0) return tr_params_slot_get(p, slot, at, n, to);
    for (size_t i = 0; i < p->nowned; i++) {
        const tr_range held = {p->slot_at[i], p->slot_at[i] + tr_range_count(p->owned[i])};
        const tr_range part = tr_range_common(held, (tr_range){at, at + n});
        if (tr_range_count(part) > 0)
            TR_TRY(fetch(p, p->weights + p->owned[i].begin + (part.begin - held.begin),
                         tr_range_count(part), to + (part.begin - at)));
    }
out:
    return st;
}

static tr_status copy_own(const tr_params *p, int slot, float *to)
{
    const tr_placement *l = tr_placement_of(p);
    tr_status st = TR_OK;
    if (p->nowned == 1) return tr_params_slot_get(p, slot, 0, p->held, to + p->owned[0].begin);
    if (!l->buffer) {
        deal(p->owned, p->nowned, 0, p->slots[slot], p->held, to);
        return TR_OK;
    }
    for (size_t at = 0; at < p->held; at += TR_PIECE) {
        const size_t n = p->held - at < TR_PIECE ? p->held - at : TR_PIECE;
        TR_TRY(tr_params_slot_get(p, slot, at, n, l->buffer));
        deal(p->owned, p->nowned, at, l->buffer, n, to);
    }
out:
    return st;
}

static tr_status send_own(const tr_params *p, int slot)
{
    const tr_placement *l = tr_placement_of(p);
    tr_status st = TR_OK;
    for (size_t at = 0; at < p->held; at += TR_PIECE) {
        const size_t n = p->held - at < TR_PIECE ? p->held - at : TR_PIECE;
        TR_TRY(fetch_held(p, slot, at, n, l->buffer));
        TR_TRY(tr_comm_send(l->c, l->buffer, n * sizeof(float), 0));
    }
out:
    return st;
}

/* The seat of another rank: what tr_ownership_of looks at. */
static tr_topology seat_of(const tr_placement *l, int rank)
{
    tr_topology t = l->c->topology;
    t.rank = rank;
    t.node = l->seats[rank].node;
    t.local_rank = l->seats[rank].local_rank;
    return t;
}

/* What another rank owns, in l->theirs; returns how many ranges. */
static size_t owned_by(const tr_params *p, int rank, size_t *held)
{
    const tr_placement *l = tr_placement_of(p);
    const tr_topology t = seat_of(l, rank);
    const tr_ownership w = tr_ownership_of(&t, &p->o, &l->r);
    *held = tr_owned_count(&w, p->o.buckets, p->o.nbuckets);
    return tr_owned(&w, p->o.buckets, p->o.nbuckets, l->theirs);
}

static tr_status collect(const tr_params *p, int slot, float *to)
{
    const tr_placement *l = tr_placement_of(p);
    tr_status st = TR_OK;
    size_t held, before = p->held; /* of the window's slot, behind our own part */
    TR_TRY(copy_own(p, slot, to));
    for (int rank = 1; rank < l->c->topology.size; rank++) {
        if (!contributes(l, rank)) continue;
        const size_t n = owned_by(p, rank, &held);
        if (sends(l, rank)) {
            TR_TRY(receive(l, rank, l->theirs, n, held, to));
        } else {
            deal(l->theirs, n, 0, l->slots[slot] + before, held, to);
            tr_mem_drop(l->slots[slot] + before, held * sizeof(float)); /* the window keeps it */
            before += held;
        }
    }
out:
    return st;
}

tr_status tr_comm_params_gather(const tr_params *p, int slot, float *to)
{
    const tr_placement *l = tr_placement_of(p);
    tr_status st = TR_OK;
    if (slot < 0 || slot >= p->o.nslots)
        return TR_FAIL(TR_INTERNAL, "slot %d of %d", slot, p->o.nslots);
    TR_TRY(tr_comm_usable(l->c));
    if (l->c->topology.rank == 0)
        st = collect(p, slot, to);
    else if (sends(l, l->c->topology.rank))
        st = send_own(p, slot);
out:
    return tr_comm_done(l->c, st); /* others wait for what is not sent */
}

tr_status tr_comm_params_weights(const tr_params *p, float *to)
{
    const tr_placement *l = tr_placement_of(p);
    const int rank = l->c->topology.rank;
    const bool apart = l->own.parts > 1 && p->o.nrounded > 0; /* else all have all of them */
    tr_status st = TR_OK;
    size_t held;
    TR_TRY(tr_comm_usable(l->c));
    if (rank == 0) TR_TRY(fetch(p, p->weights, p->o.count, to));
    for (int r = 1; apart && rank == 0 && r < l->c->topology.size; r++) {
        if (!sends(l, r)) continue;
        const size_t n = owned_by(p, r, &held);
        TR_TRY(receive(l, r, l->theirs, n, held, to));
    }
    if (apart && rank != 0 && sends(l, rank)) TR_TRY(send_own(p, -1));
out:
    return tr_comm_done(l->c, st);
}

bool tr_comm_params_in_reach(const tr_topology *t, const tr_params_options *o,
                             const tr_reducer_options *r)
{
    return !tr_on_device(o) && tr_ownership_of(t, o, r).parts == 1;
}

/* Ranges that lie one behind the other from `slot` on, into their places among those that are
 * there. */
static size_t insert(const tr_range *owned, size_t nowned, float *slot, tr_range *ranges,
                     float **at, size_t count)
{
    for (size_t i = 0; i < nowned; slot += tr_range_count(owned[i++])) {
        size_t k = count++;
        for (; k > 0 && ranges[k - 1].begin > owned[i].begin; k--) {
            ranges[k] = ranges[k - 1];
            at[k] = at[k - 1];
        }
        ranges[k] = owned[i];
        at[k] = slot;
    }
    return count;
}

tr_status tr_comm_params_places(const tr_params *p, int slot, tr_range **ranges, float ***at,
                                size_t *count)
{
    const tr_placement *l = tr_placement_of(p);
    const size_t local = l->bases ? (size_t)l->c->topology.local_size : 1;
    const size_t most = tr_owned_most(&l->own, p->o.buckets, p->o.nbuckets) * local;
    tr_status st = TR_OK;
    tr_range *r = tr_alloc(TR_MEM_OTHER, most, sizeof *r);
    float **v = tr_alloc(TR_MEM_OTHER, most, sizeof *v);
    size_t held, n, before = p->held;
    TR_HAVE(r && v);
    n = insert(p->owned, p->nowned, p->slots[slot], r, v, 0);
    for (int rank = 1; rank < l->c->topology.size; rank++) {
        if (!contributes(l, rank)) continue;
        n = insert(l->theirs, owned_by(p, rank, &held), l->slots[slot] + before, r, v, n);
        before += held;
    }
    *ranges = r;
    *at = v;
    *count = n;
    return TR_OK;
out:
    tr_free(r);
    tr_free(v);
    return st;
}

tr_status tr_collect_open(tr_placement *l, const tr_params_options *o)
{
    const tr_topology *t = &l->c->topology;
    const tr_seat mine = {t->node, t->local_rank};
    tr_status st = TR_OK;
    l->seats = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *l->seats);
    l->theirs =
        tr_alloc(TR_MEM_OTHER, tr_owned_most(&l->own, o->buckets, o->nbuckets), sizeof *l->theirs);
    bool ok = l->seats && l->theirs;
    if (ok && (l->own.parts > 1 || tr_on_device(o)))
        ok = (l->buffer = tr_alloc(TR_MEM_OTHER, TR_PIECE, sizeof(float))) != NULL;
    TR_TRY(tr_agree(l->c, ok ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_all_gather(l->c, &mine, l->seats, sizeof mine));
out:
    return st;
}

void tr_collect_close(tr_placement *l)
{
    tr_free(l->seats);
    tr_free(l->theirs);
    if (!tr_comm_broken(l->c)) tr_free(l->buffer); /* else MPI may still write into it */
}
