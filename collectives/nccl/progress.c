/* How far ranks are in reducing, as the hosts see it while steps are recorded and replayed.
 *
 * The device tells its own host: as a micro-batch begins its number and its step's (not part of
 * what is recorded), before each gather and around each bucket's all-reduce a count go from device
 * memory into a pinned word. Gathers and buckets have one order on all ranks, so that the sum of
 * both counts says which of two devices is further. Only a gather's beginning is marked: its end
 * would lie on the path that backward waits for.
 *
 * The host tells the node, in a cache line a rank of shared memory: what it issued last, where its
 * device is, and when it looked, which it does all the time while it waits. So one that waits too
 * long can say who is behind; and who is not, but has been silent ever since: a host that is
 * stopped or stuck, whose device may have been seen last before that very place. Ranks of other
 * nodes show nothing. Times are of the machine's one monotonic clock.
 *
 * Cost: copies of 4 bytes in the reducer's stream (not measured): one a gather, two a bucket; two
 * of 16 bytes a micro-batch in the one that computes. */
#include "collectives/nccl/internal.h"

#include <string.h>

enum { MOST = 4096 };  /* numbers: gathers beyond look alike */
enum { RING = 8 };     /* micro-batches under way, and more */
#define ALL UINT32_MAX /* as a place's low bits: the whole step */

/* As the device writes it. */
typedef struct {
    uint32_t step, micro;
    uint32_t gathers, buckets; /* gathers: begun; buckets: 2b + 1 begun, 2b + 2 done */
} tr_word;

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t issued; /* place_of() */
    _Atomic uint64_t at;                             /* the device's: for order */
    _Atomic uint32_t gathers, buckets;               /* for words */
    _Atomic double beat;
} tr_place;

struct tr_progress {
    tr_reducer *r;
    uint32_t *numbers; /* device: 0, 1, 2, ... */
    size_t count, next;
    tr_word *cell; /* device: a step's first word, on its way */
    tr_word *ring; /* pinned, [RING]: where it comes from */
    tr_word *word; /* pinned; written by the device */
    tr_word seen;
    uint64_t issued; /* by the host */
    uint64_t mine;   /* where this rank waits, as on the board */
    double patience; /* silence beyond it is noticed */
    tr_window window;
    tr_place *board; /* [local_size]; NULL: no shared memory */
};

/* Places in their order: 32 bits of step + 1, 14 of the micro-batch, 18 of what is done in it. */
#define WITHIN 18
#define MICRO  14

static uint64_t place_of(uint32_t step, uint32_t micro, uint32_t within)
{
    const uint32_t most_micro = (1u << MICRO) - 1, most_within = (1u << WITHIN) - 1;
    return ((uint64_t)step + 1) << 32 | (micro < most_micro ? micro : most_micro) << WITHIN |
           (within < most_within ? within : most_within);
}

static unsigned long long step_of(uint64_t place)
{
    return (unsigned long long)(place >> 32) - 1;
}

static uint32_t micro_of(uint64_t place)
{
    return (uint32_t)place >> WITHIN;
}

static tr_status fill(tr_progress *p)
{
    tr_status st = TR_OK;
    const tr_backend *b = p->r->o.backend;
    void *ctx = p->r->o.backend_ctx;
    p->count = 2 * p->r->o.nbuckets + 1 > MOST ? 2 * p->r->o.nbuckets + 1 : MOST;
    uint32_t *host = tr_alloc(TR_MEM_OTHER, p->count, sizeof(*host));
    p->numbers = b->alloc(ctx, TR_MEM_OTHER, p->count * sizeof(*p->numbers));
    p->cell = b->alloc(ctx, TR_MEM_OTHER, sizeof(*p->cell));
    p->word = b->host_alloc(ctx, TR_MEM_OTHER, sizeof(*p->word));
    p->ring = b->host_alloc(ctx, TR_MEM_OTHER, RING * sizeof(*p->ring));
    if (!host || !p->numbers || !p->cell || !p->word || !p->ring) {
        st = tr_last_error()->status;
        goto out;
    }
    *p->word = (tr_word){0};
    for (size_t i = 0; i < p->count; i++) host[i] = (uint32_t)i;
    TR_TRY(b->upload(ctx, p->numbers, host, p->count * sizeof(*host)));
out:
    tr_free(host);
    return st;
}

static tr_status open_board(tr_progress *p)
{
    tr_status st = TR_OK;
    tr_comm *c = p->r->c;
    char reason[320];
    bool got = false;
    size_t nbytes = (size_t)c->topology.local_size * sizeof(tr_place);
    if (!c->node) return TR_OK; /* on no rank */
    TR_TRY(tr_window_open(c, nbytes, &p->window, &got, reason, sizeof(reason)));
    if (!got) return TR_OK;
    tr_place *board = (tr_place *)(void *)p->window.base;
    TR_TRY(tr_mpi_all(c, tr_window_touch(&board[c->topology.local_rank], sizeof(*board)), &got));
    if (got) p->board = board;
out:
    return st;
}

tr_status tr_progress_open(tr_reducer *r, tr_progress **out)
{
    tr_status st = TR_OK;
    tr_progress *p = TR_NEW(TR_MEM_OTHER, tr_progress);
    if (p) p->r = r, p->window.win = MPI_WIN_NULL, p->patience = r->c->timeout / 2;
    st = p ? fill(p) : tr_last_error()->status;
    TR_TRY(tr_agree(r->c, st, NULL));
    TR_TRY(open_board(p));
out:
    if (st != TR_OK) {
        tr_progress_close(p);
        return st;
    }
    *out = p;
    return TR_OK;
}

void tr_progress_close(tr_progress *p)
{
    if (!p) return;
    const tr_backend *b = p->r->o.backend;
    if (p->window.win != MPI_WIN_NULL) tr_window_close(p->r->c, &p->window);
    b->free(p->r->o.backend_ctx, p->numbers);
    b->free(p->r->o.backend_ctx, p->cell);
    b->host_free(p->r->o.backend_ctx, p->word);
    b->host_free(p->r->o.backend_ctx, p->ring);
    tr_free(p);
}

/* ---- What the device tells ------------------------------------------------------------------- */

static tr_status note(const tr_progress *p, uint32_t *where, size_t number, cudaStream_t stream)
{
    size_t n = number < p->count ? number : p->count - 1;
    return tr_lane_check(
        cudaMemcpyAsync(where, p->numbers + n, sizeof(*where), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
}

tr_status tr_progress_begun(tr_progress *p, int bucket, cudaStream_t stream)
{
    return note(p, &p->word->buckets, 2 * (size_t)bucket + 1, stream);
}

tr_status tr_progress_done(tr_progress *p, int bucket, cudaStream_t stream)
{
    return note(p, &p->word->buckets, 2 * (size_t)bucket + 2, stream);
}

tr_status tr_progress_gather(tr_progress *p, int gather, cudaStream_t stream)
{
    return note(p, &p->word->gathers, (size_t)gather + 1, stream);
}

tr_status tr_progress_micro(tr_progress *p, uint64_t step, int micro, cudaStream_t stream)
{
    tr_status st = TR_OK;
    tr_word *from = &p->ring[p->next++ % RING];
    *from = (tr_word){.step = (uint32_t)step, .micro = (uint32_t)micro};
    TR_LANE_TRY(cudaMemcpyAsync(p->cell, from, sizeof(*from), cudaMemcpyHostToDevice, stream));
    TR_LANE_TRY(
        cudaMemcpyAsync(p->word, p->cell, sizeof(*p->word), cudaMemcpyDeviceToHost, stream));
    p->issued = place_of(from->step, from->micro, 0);
    tr_progress_tell(p);
out:
    return st;
}

/* ---- What the hosts tell --------------------------------------------------------------------- */

void tr_progress_issue(tr_progress *p)
{
    p->issued++;
    tr_progress_tell(p);
}

void tr_progress_issued(tr_progress *p)
{
    p->issued |= ALL;
    tr_progress_tell(p);
}

void tr_progress_tell(tr_progress *p)
{
    /* The step first: should the device begin the next one in between, then we are seen too early
     * and not too late. */
    p->seen.step = __atomic_load_n(&p->word->step, __ATOMIC_ACQUIRE);
    p->seen.micro = __atomic_load_n(&p->word->micro, __ATOMIC_ACQUIRE);
    p->seen.gathers = __atomic_load_n(&p->word->gathers, __ATOMIC_RELAXED);
    p->seen.buckets = __atomic_load_n(&p->word->buckets, __ATOMIC_RELAXED);
    p->mine = place_of(p->seen.step, p->seen.micro, p->seen.gathers + p->seen.buckets);
    if (!p->board) return;
    tr_place *us = &p->board[p->r->c->topology.local_rank];
    atomic_store_explicit(&us->gathers, p->seen.gathers, memory_order_relaxed);
    atomic_store_explicit(&us->buckets, p->seen.buckets, memory_order_relaxed);
    atomic_store_explicit(&us->issued, p->issued, memory_order_relaxed);
    atomic_store_explicit(&us->beat, tr_now(), memory_order_relaxed);
    atomic_store_explicit(&us->at, p->mine, memory_order_release);
}

static double silence(const tr_place *a)
{
    return tr_now() - atomic_load_explicit(&a->beat, memory_order_relaxed);
}

/* ---- Who is late ----------------------------------------------------------------------------- */

static bool left(const tr_comm *c, int local_rank)
{
    tr_error why;
    return tr_peers_gone(c, local_rank) || tr_node_gave_up(c, local_rank, &why);
}

static bool arrived(const void *ctx, int local_rank)
{
    const tr_progress *p = ctx;
    const tr_comm *c = p->r->c;
    if (local_rank == c->topology.local_rank) return true;
    if (left(c, local_rank)) return false; /* what it began can no longer end */
    if (!p->board) return true;            /* not known */
    const tr_place *a = &p->board[local_rank];
    uint64_t at = atomic_load_explicit(&a->at, memory_order_acquire);
    return at > p->mine || (at == p->mine && silence(a) < p->patience);
}

static bool has_issued(const void *ctx, int local_rank)
{
    const tr_progress *p = ctx;
    const tr_comm *c = p->r->c;
    if (local_rank == c->topology.local_rank) return true;
    if (left(c, local_rank)) return false;
    return !p->board ||
           atomic_load_explicit(&p->board[local_rank].issued, memory_order_acquire) >= p->issued;
}

/* Within a step. */
static void place_text(const tr_progress *p, uint32_t micro, uint32_t gathers, uint32_t buckets,
                       char *buf, size_t size)
{
    char at[64] = "";
    int n = micro ? snprintf(at, sizeof(at), "micro-batch %u, ", micro) : 0;
    if (gathers) snprintf(at + n, sizeof(at) - (size_t)n, "at gather %u, ", gathers - 1);
    if (buckets % 2)
        snprintf(buf, size, "in bucket %u", (buckets - 1) / 2);
    else
        snprintf(buf, size, "%s%u of %zu buckets reduced", at, buckets / 2, p->r->o.nbuckets);
}

static size_t name_rank(const tr_progress *p, int i, char *buf, size_t size)
{
    const tr_peer *peer = &p->r->c->peers[i];
    const tr_place *a = &p->board[i];
    const uint64_t at = atomic_load_explicit(&a->at, memory_order_acquire);
    const uint64_t issued = atomic_load_explicit(&a->issued, memory_order_relaxed);
    char where[128], up_to[64] = "";
    if (!at || !(issued >> 32)) /* never told anything */
        return (size_t)snprintf(buf, size, "rank %d (pid %d: no step begun)", peer->rank,
                                (int)peer->pid);
    place_text(p, micro_of(at), atomic_load_explicit(&a->gathers, memory_order_relaxed),
               atomic_load_explicit(&a->buckets, memory_order_relaxed), where, sizeof(where));
    if ((uint32_t)issued != ALL)
        snprintf(up_to, sizeof(up_to), " up to operation %u of micro-batch %u",
                 (uint32_t)issued & ((1u << WITHIN) - 1), micro_of(issued));
    return (size_t)snprintf(buf, size,
                            "rank %d (pid %d: issued step %llu%s, device seen in step %llu, %s; "
                            "silent for %.0f s)",
                            peer->rank, (int)peer->pid, step_of(issued), up_to, step_of(at), where,
                            silence(a));
}

/* Those that have not arrived; or, where all have, the one that has been silent for longest. */
static size_t name_missing(const tr_wait *w, char *buf, size_t size)
{
    const tr_progress *p = w->ctx;
    const tr_topology *t = &w->c->topology;
    size_t used = 0;
    int quietest = -1;
    buf[0] = 0;
    for (int i = 0; p->board && i < t->local_size && used + 200 < size; i++) {
        if (i == t->local_rank) continue;
        if (quietest < 0 || silence(&p->board[i]) > silence(&p->board[quietest])) quietest = i;
        if (arrived(p, i)) continue;
        if (used) used += (size_t)snprintf(buf + used, size - used, ", ");
        used += name_rank(p, i, buf + used, size - used);
    }
    if (!used && quietest >= 0 && silence(&p->board[quietest]) > p->patience)
        used = name_rank(p, quietest, buf, size);
    return used;
}

static tr_status late(const tr_wait *w)
{
    const tr_progress *p = w->ctx;
    const tr_topology *t = &w->c->topology;
    char who[640], where[192], place[128];
    place_text(p, p->seen.micro, p->seen.gathers, p->seen.buckets, place, sizeof(place));
    if (p->seen.buckets % 2)
        snprintf(where, sizeof(where), "all-reduce of step %u, bucket %u", p->seen.step,
                 (p->seen.buckets - 1) / 2);
    else
        snprintf(where, sizeof(where), "device in step %u, %s", p->seen.step, place);
    if (!name_missing(w, who, sizeof(who)))
        snprintf(who, sizeof(who), "%s",
                 !p->board      ? "cannot be seen, as ranks share no memory"
                 : t->nodes > 1 ? "some rank of another node, as all of this one have come as far"
                                : "cannot be told, all ranks have come as far and are alive");
    return TR_FAIL(TR_PEER, "rank %d (%s) waited %.0f s for the %s: not arrived: %s%s", t->rank,
                   t->host, w->counted, where, who,
                   t->nodes > 1 ? "; ranks of other nodes cannot be seen from here" : "");
}

void tr_progress_watch(tr_progress *p, tr_wait *w)
{
    const uint64_t before = p->mine;
    tr_progress_tell(p);
    if (p->mine != before) tr_wait_restart(w);
    w->what = p->seen.buckets % 2 ? "all-reduce" : "device's work";
    w->step = p->seen.step;
    w->bucket = p->seen.buckets % 2 ? (int64_t)(p->seen.buckets - 1) / 2 : -1;
    w->arrived = arrived;
    w->ctx = p;
    w->late = late;
    w->far = true;
}

void tr_progress_watch_start(tr_progress *p, tr_wait *w)
{
    tr_progress_tell(p);
    w->step = p->issued ? (int64_t)step_of(p->issued) : -1;
    w->arrived = has_issued;
    w->ctx = p;
}
