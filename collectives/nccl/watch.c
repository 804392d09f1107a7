/* How far ranks are in reducing, as the hosts see it while steps are recorded and replayed.
 *
 * The device tells its own host: as a micro-batch begins its number and its step's (not part of
 * what is recorded), before each gather and around each bucket's all-reduce a count go from device
 * memory into a pinned word. Gathers and buckets have one order on all ranks: a device that has
 * begun fewer of either than another is behind it. Of a gather only the beginning is marked, as
 * each mark lies on the path that forward or backward waits for.
 *
 * The host tells the node, in a cache line a rank of shared memory: what it issued last, where its
 * device is, and when it looked, which it does all the time while it waits. late.c makes of it who
 * is late.
 *
 * Cost: copies of 4 bytes in the reducer's stream (not measured): one a gather, two a bucket; two
 * of 16 bytes a micro-batch in the one that computes. */
#include "collectives/nccl/watch.h"

#include <string.h>

enum { MOST = 4096 }; /* numbers: gathers beyond look alike */
enum { RING = 8 };    /* micro-batches under way, and more */

static tr_status fill(tr_watch *p)
{
    tr_status st = TR_OK;
    const tr_backend *b = p->r->p->o.backend;
    void *ctx = p->r->p->o.backend_ctx;
    p->count = 2 * p->r->p->o.nbuckets + 1 > MOST ? 2 * p->r->p->o.nbuckets + 1 : MOST;
    uint32_t *host = tr_alloc(TR_MEM_OTHER, p->count, sizeof *host);
    p->numbers = b->memory->alloc(ctx, TR_MEM_OTHER, p->count * sizeof *p->numbers);
    p->cell = b->memory->alloc(ctx, TR_MEM_OTHER, sizeof *p->cell);
    p->word = b->memory->host_alloc(ctx, TR_MEM_OTHER, sizeof *p->word);
    p->ring = b->memory->host_alloc(ctx, TR_MEM_OTHER, RING * sizeof *p->ring);
    TR_HAVE(host && p->numbers && p->cell && p->word && p->ring);
    *p->word = (tr_watch_word){0};
    for (size_t i = 0; i < p->count; i++) host[i] = (uint32_t)i;
    TR_TRY(b->memory->upload(ctx, p->numbers, host, p->count * sizeof *host));
out:
    tr_free(host);
    return st;
}

static tr_status open_board(tr_watch *p)
{
    tr_status st = TR_OK;
    tr_comm *c = p->r->c;
    char reason[320];
    bool got = false;
    size_t nbytes = (size_t)c->topology.local_size * sizeof(tr_watch_line);
    if (!c->job->notes) return TR_OK; /* on no rank */
    TR_TRY(tr_window_open(c, nbytes, &p->window, &got, reason, sizeof reason));
    if (!got) return TR_OK;
    tr_watch_line *board = (tr_watch_line *)(void *)p->window.base;
    TR_TRY(tr_comm_all(c, tr_window_touch(&board[c->topology.local_rank], sizeof *board), &got));
    if (got) p->board = board;
out:
    return st;
}

tr_status tr_watch_open(tr_reducer *r, tr_watch **out)
{
    tr_status st = TR_OK;
    tr_watch *p = TR_NEW(TR_MEM_OTHER, tr_watch);
    if (p) p->r = r, p->window.win = MPI_WIN_NULL, p->patience = r->c->job->timeout / 2;
    st = p ? fill(p) : tr_last_status();
    TR_TRY(tr_agree(r->c, st, NULL));
    TR_TRY(open_board(p));
out:
    if (st != TR_OK) {
        tr_watch_close(p);
        return st;
    }
    *out = p;
    return TR_OK;
}

void tr_watch_close(tr_watch *p)
{
    if (!p) return;
    const tr_backend *b = p->r->p->o.backend;
    if (p->window.win != MPI_WIN_NULL) tr_window_close(&p->window, p->r->c->job);
    b->memory->free(p->r->p->o.backend_ctx, p->numbers);
    b->memory->free(p->r->p->o.backend_ctx, p->cell);
    b->memory->host_free(p->r->p->o.backend_ctx, p->word);
    b->memory->host_free(p->r->p->o.backend_ctx, p->ring);
    tr_free(p);
}

/* ---- What the device tells ------------------------------------------------------------------- */

static tr_status note(const tr_watch *p, uint32_t *where, size_t number, cudaStream_t stream)
{
    size_t n = number < p->count ? number : p->count - 1;
    return tr_side_check(
        cudaMemcpyAsync(where, p->numbers + n, sizeof *where, cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
}

tr_status tr_watch_begun(tr_watch *p, int bucket, cudaStream_t stream)
{
    return note(p, &p->word->buckets, 2 * (size_t)bucket + 1, stream);
}

tr_status tr_watch_done(tr_watch *p, int bucket, cudaStream_t stream)
{
    return note(p, &p->word->buckets, 2 * (size_t)bucket + 2, stream);
}

tr_status tr_watch_gather(tr_watch *p, int gather, cudaStream_t stream)
{
    return note(p, &p->word->gathers, (size_t)gather + 1, stream);
}

tr_status tr_watch_micro(tr_watch *p, uint64_t step, int micro, cudaStream_t stream)
{
    tr_status st = TR_OK;
    tr_watch_word *from = &p->ring[p->next++ % RING];
    *from = (tr_watch_word){.step = (uint32_t)step, .micro = (uint32_t)micro};
    TR_SIDE_TRY(cudaMemcpyAsync(p->cell, from, sizeof *from, cudaMemcpyHostToDevice, stream));
    TR_SIDE_TRY(cudaMemcpyAsync(p->word, p->cell, sizeof *p->word, cudaMemcpyDeviceToHost, stream));
    p->issued = tr_watch_place(from->step, from->micro, 0);
    tr_watch_tell(p);
out:
    return st;
}

/* ---- What the hosts tell --------------------------------------------------------------------- */

void tr_watch_issue(tr_watch *p)
{
    p->issued++;
    tr_watch_tell(p);
}

void tr_watch_issued(tr_watch *p)
{
    p->issued |= TR_WATCH_ALL;
    tr_watch_tell(p);
}

void tr_watch_tell(tr_watch *p)
{
    /* The step first: should the device begin the next one in between, then we are seen too early
     * and not too late. */
    p->seen.step = __atomic_load_n(&p->word->step, __ATOMIC_ACQUIRE);
    p->seen.micro = __atomic_load_n(&p->word->micro, __ATOMIC_ACQUIRE);
    p->seen.gathers = __atomic_load_n(&p->word->gathers, __ATOMIC_RELAXED);
    p->seen.buckets = __atomic_load_n(&p->word->buckets, __ATOMIC_RELAXED);
    p->mine = tr_watch_place(p->seen.step, p->seen.micro, p->seen.gathers + p->seen.buckets);
    if (!p->board) return;
    tr_watch_line *us = &p->board[p->r->c->topology.local_rank];
    atomic_store_explicit(&us->gathers, p->seen.gathers, memory_order_relaxed);
    atomic_store_explicit(&us->buckets, p->seen.buckets, memory_order_relaxed);
    atomic_store_explicit(&us->issued, p->issued, memory_order_relaxed);
    atomic_store_explicit(&us->beat, tr_now(), memory_order_relaxed);
    atomic_store_explicit(&us->at, p->mine, memory_order_release);
}
