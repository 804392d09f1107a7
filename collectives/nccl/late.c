/* Who is late: what a rank that waits for the device, or for an operation of NCCL's to start, says
 * of the others on its node, and when it stops waiting for them.
 *
 * A rank is late that has not begun what this one has; or has come as far, but has been silent ever
 * since: a host that is stopped or stuck, whose device may have been seen last before that very
 * place. One that gave up because it waited itself is not: several lose patience in the same
 * moment. Of ranks of other nodes it is known what they say of themselves (marks.c), as it is of
 * all where no memory is shared. Times are of the machine's one monotonic clock. */
#include "collectives/nccl/watch.h"

static double silence(const tr_watch_line *a)
{
    return tr_now() - atomic_load_explicit(&a->beat, memory_order_relaxed);
}

/* Buckets begun, of what a device tells. */
static uint32_t begun(uint32_t buckets)
{
    return (buckets + 1) / 2;
}

/* Buckets and gathers may be in streams of their own, which do not wait for each other: a rank is
 * behind that is so in one of them. */
static bool behind(const tr_watch *p, int local_rank)
{
    const tr_watch_line *a = &p->board[local_rank];
    const uint64_t at = atomic_load_explicit(&a->at, memory_order_acquire);
    const uint64_t micro = at >> TR_WATCH_WITHIN, mine = p->mine >> TR_WATCH_WITHIN;
    const uint32_t gathers = atomic_load_explicit(&a->gathers, memory_order_relaxed);
    const uint32_t buckets = atomic_load_explicit(&a->buckets, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&a->at, memory_order_relaxed) != at) return false; /* it moves */
    if (micro != mine) return micro < mine;
    return gathers < p->seen.gathers || begun(buckets) < begun(p->seen.buckets) ||
           (at <= p->mine && silence(a) >= p->patience);
}

/* Gone, or gave up over something of its own. */
static bool failed(const tr_comm *c, int local_rank)
{
    tr_error why;
    return tr_peers_gone(&c->peers[local_rank]) ||
           (tr_notes_gave_up(c->job, c->peers[local_rank].local_rank, &why) &&
            why.status != TR_PEER);
}

static bool left(const tr_comm *c, int local_rank)
{
    tr_error why;
    return tr_peers_gone(&c->peers[local_rank]) ||
           tr_notes_gave_up(c->job, c->peers[local_rank].local_rank, &why);
}

static bool arrived(const void *ctx, int local_rank)
{
    const tr_watch *p = ctx;
    const tr_comm *c = p->r->c;
    if (local_rank == c->topology.local_rank) return true;
    if (left(c, local_rank)) return false; /* what it began can no longer end */
    return !behind(p, local_rank);
}

static bool has_issued(const void *ctx, int local_rank)
{
    const tr_watch *p = ctx;
    const tr_comm *c = p->r->c;
    if (local_rank == c->topology.local_rank) return true;
    if (left(c, local_rank)) return false;
    return atomic_load_explicit(&p->board[local_rank].issued, memory_order_acquire) >= p->issued;
}

/* Within a step. */
static void place_text(const tr_watch *p, uint32_t micro, uint32_t gathers, uint32_t buckets,
                       char *buf, size_t size)
{
    char at[64] = "";
    int n = micro ? snprintf(at, sizeof(at), "micro-batch %u, ", micro) : 0;
    if (gathers) snprintf(at + n, sizeof(at) - (size_t)n, "at gather %u, ", gathers - 1);
    if (buckets % 2)
        snprintf(buf, size, "in bucket %u", (buckets - 1) / 2);
    else
        snprintf(buf, size, "%s%u of %zu buckets reduced", at, buckets / 2, p->r->p->o.nbuckets);
}

static size_t name_rank(const tr_watch *p, int i, char *buf, size_t size)
{
    const tr_peer *peer = &p->r->c->peers[i];
    const tr_watch_line *a = &p->board[i];
    const uint64_t at = atomic_load_explicit(&a->at, memory_order_acquire);
    const uint64_t issued = atomic_load_explicit(&a->issued, memory_order_relaxed);
    char where[128], up_to[64] = "";
    if (!at || !(issued >> 32)) /* never told anything */
        return (size_t)snprintf(buf, size, "rank %d (pid %d: no step begun)", peer->rank,
                                (int)peer->pid);
    place_text(p, tr_watch_micro_of(at), atomic_load_explicit(&a->gathers, memory_order_relaxed),
               atomic_load_explicit(&a->buckets, memory_order_relaxed), where, sizeof where);
    if ((uint32_t)issued != TR_WATCH_ALL)
        snprintf(up_to, sizeof up_to, " up to operation %u of micro-batch %u",
                 (uint32_t)issued & ((1u << TR_WATCH_WITHIN) - 1), tr_watch_micro_of(issued));
    return (size_t)snprintf(buf, size,
                            "rank %d (pid %d: issued step %llu%s, device seen in step %llu, %s; "
                            "silent for %.0f s)",
                            peer->rank, (int)peer->pid, tr_watch_step_of(issued), up_to,
                            tr_watch_step_of(at), where, silence(a));
}

/* Those that are late; or, where all have, the one that has been silent for longest. */
static size_t name_missing(const tr_wait *w, char *buf, size_t size)
{
    const tr_watch *p = w->ctx;
    const tr_topology *t = &w->c->topology;
    size_t used = 0;
    int quietest = -1;
    buf[0] = 0;
    for (int i = 0; p->board && i < t->local_size && used + 200 < size; i++) {
        if (i == t->local_rank) continue;
        if (quietest < 0 || silence(&p->board[i]) > silence(&p->board[quietest])) quietest = i;
        if (!behind(p, i) && !failed(w->c, i)) continue;
        if (used) used += (size_t)snprintf(buf + used, size - used, ", ");
        used += name_rank(p, i, buf + used, size - used);
    }
    if (!used && quietest >= 0 && silence(&p->board[quietest]) > p->patience)
        used = name_rank(p, quietest, buf, size);
    return used;
}

/* What the device is in, in its own words; NULL: kernels. */
static const char *operation(const tr_watch *p)
{
    const bool sharded = p->r->o.shard;
    if (p->seen.buckets % 2) return sharded ? "reduce-scatter" : "all-reduce";
    const bool all = p->seen.buckets == 2 * p->r->p->o.nbuckets;
    return sharded && all && p->seen.buckets ? "sum of the tally or all-gather of weights" : NULL;
}

static tr_status late(const tr_wait *w)
{
    const tr_watch *p = w->ctx;
    const tr_topology *t = &w->c->topology;
    char who[640], where[192], place[128];
    place_text(p, p->seen.micro, p->seen.gathers, p->seen.buckets, place, sizeof(place));
    const char *what = operation(p);
    if (p->seen.buckets % 2)
        snprintf(where, sizeof where, "%s of step %u, bucket %u", what, p->seen.step,
                 (p->seen.buckets - 1) / 2);
    else if (what)
        snprintf(where, sizeof where, "%s of step %u", what, p->seen.step);
    else
        snprintf(where, sizeof where, "device in step %u, %s", p->seen.step, place);
    if (!name_missing(w, who, sizeof who) && !tr_wait_missing(w, who, sizeof who))
        snprintf(who, sizeof who, "cannot be told, all ranks wait and are alive");
    return TR_FAIL(TR_PEER, "rank %d (%s) waited %.0f s for the %s: not arrived: %s", t->rank,
                   t->host, w->waited, where, who);
}

void tr_watch_device(tr_watch *p, tr_wait *w)
{
    const uint64_t before = p->mine;
    tr_watch_tell(p);
    if (p->mine != before) tr_wait_restart(w);
    w->what = operation(p) ? operation(p) : "device's work";
    w->step = p->seen.step;
    w->bucket = p->seen.buckets % 2 ? (int64_t)(p->seen.buckets - 1) / 2 : -1;
    w->arrived = p->board ? arrived : NULL; /* without it only their marks are known */
    w->ctx = p;
    w->late = late;
}

void tr_watch_start(tr_watch *p, tr_wait *w)
{
    tr_watch_tell(p);
    w->step = p->issued ? (int64_t)tr_watch_step_of(p->issued) : -1;
    w->arrived = p->board ? has_issued : NULL;
    w->ctx = p;
}
