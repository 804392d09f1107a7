/* How far the device is in reducing, as the host sees it while steps are recorded and replayed:
 * around each bucket's all-reduce a number goes from device memory into one pinned word: 2b + 1,
 * bucket b has begun here; 2b + 2, it is done. The step is what the host waits for: all before it
 * was collected, so the word is of that step, or still of the end of the one before.
 *
 * Each rank writes both, as one number, to a board in the node's memory, so that one that waits too
 * long can say who has not come as far. A rank is on the board since it last waited
 * itself: one whose host is stuck elsewhere shows the step before. Ranks of other nodes show
 * nothing.
 *
 * Cost: two copies of 4 bytes a bucket in the reducer's stream (not measured). */
#include "collectives/nccl/internal.h"

#include <string.h>

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t at;
} tr_place;

struct tr_progress {
    tr_reducer *r;
    uint32_t *numbers; /* [2 * nbuckets + 1] in device memory: 0, 1, 2, ... */
    uint32_t *word;    /* pinned; written by the device */
    uint32_t seen;
    uint64_t mine; /* as on the board */
    tr_window window;
    tr_place *board; /* [local_size]; NULL: no shared memory */
};

static size_t count_of(const tr_reducer *r)
{
    return 2 * r->o.nbuckets + 1;
}

static tr_status fill(tr_progress *p)
{
    tr_status st = TR_OK;
    const tr_backend *b = p->r->o.backend;
    void *ctx = p->r->o.backend_ctx;
    size_t n = count_of(p->r);
    uint32_t *host = tr_alloc(TR_MEM_OTHER, n, sizeof(*host));
    p->numbers = b->alloc(ctx, TR_MEM_OTHER, n * sizeof(*p->numbers));
    p->word = b->host_alloc(ctx, TR_MEM_OTHER, sizeof(*p->word));
    if (!host || !p->numbers || !p->word) {
        st = tr_last_error()->status;
        goto out;
    }
    *p->word = 0;
    for (size_t i = 0; i < n; i++) host[i] = (uint32_t)i;
    TR_TRY(b->upload(ctx, p->numbers, host, n * sizeof(*host)));
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
    if (p) p->r = r, p->window.win = MPI_WIN_NULL;
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
    b->host_free(p->r->o.backend_ctx, p->word);
    tr_free(p);
}

static tr_status note(tr_progress *p, size_t number, cudaStream_t stream)
{
    return tr_lane_check(cudaMemcpyAsync(p->word, p->numbers + number, sizeof(*p->word),
                                         cudaMemcpyDeviceToHost, stream),
                         "cudaMemcpyAsync");
}

tr_status tr_progress_begun(tr_progress *p, int bucket, cudaStream_t stream)
{
    return note(p, 2 * (size_t)bucket + 1, stream);
}

tr_status tr_progress_done(tr_progress *p, int bucket, cudaStream_t stream)
{
    return note(p, 2 * (size_t)bucket + 2, stream);
}

/* All done counts as nothing begun: it may be of the step before. If it is of this one, our own
 * reductions cannot be waiting for that rank. */
static uint32_t in_step(const tr_progress *p)
{
    return p->seen == 2 * p->r->o.nbuckets ? 0 : p->seen;
}

static bool arrived(const void *ctx, int local_rank)
{
    const tr_progress *p = ctx;
    const tr_comm *c = p->r->c;
    tr_error why;
    if (local_rank == c->topology.local_rank) return true;
    /* having begun does not help: what it began can no longer end */
    if (tr_peers_gone(c, local_rank) || tr_node_gave_up(c, local_rank, &why)) return false;
    return !p->board || /* not known */
           atomic_load_explicit(&p->board[local_rank].at, memory_order_acquire) >= p->mine;
}

static tr_status late(const tr_wait *w)
{
    const tr_progress *p = w->ctx;
    const tr_topology *t = &w->c->topology;
    char who[512], where[128];
    uint32_t at = in_step(p);
    if (at % 2)
        snprintf(where, sizeof(where), "all-reduce of step %lld, bucket %u", (long long)w->step,
                 (at - 1) / 2);
    else if (at)
        snprintf(where, sizeof(where), "device in step %lld, after bucket %u was reduced",
                 (long long)w->step, at / 2 - 1);
    else
        snprintf(where, sizeof(where), "device in step %lld, where no bucket has begun",
                 (long long)w->step);
    if (!tr_wait_missing(w, who, sizeof(who)))
        snprintf(who, sizeof(who), "%s",
                 !p->board      ? "cannot be seen, as ranks share no memory"
                 : t->nodes > 1 ? "none of this node"
                                : "none, all ranks have come as far");
    return TR_FAIL(TR_PEER, "rank %d (%s) waited %.0f s for the %s: not arrived: %s%s", t->rank,
                   t->host, w->counted, where, who,
                   t->nodes > 1 ? "; ranks of other nodes cannot be seen from here" : "");
}

void tr_progress_watch(tr_progress *p, tr_wait *w)
{
    uint32_t now = __atomic_load_n(p->word, __ATOMIC_RELAXED);
    if (now != p->seen) tr_wait_restart(w);
    p->seen = now;
    uint32_t at = in_step(p);
    p->mine = ((uint64_t)(w->step + 1) << 32) | at;
    if (p->board)
        atomic_store_explicit(&p->board[p->r->c->topology.local_rank].at, p->mine,
                              memory_order_release);
    w->what = at % 2 ? "all-reduce" : "device's work";
    w->bucket = at % 2 ? (int64_t)(at - 1) / 2 : -1;
    w->arrived = arrived;
    w->ctx = p;
    w->late = late;
    w->far = true;
}
