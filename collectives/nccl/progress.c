/* How far ranks are in reducing, as the hosts see it while steps are recorded and replayed.
 *
 * The device tells its own host: as a micro-batch begins its number and its step's (not part of
 * what is recorded), before each gather and around each bucket's all-reduce a count go from device
 * memory into a pinned word. Gathers and buckets have one order on all ranks, so that the sum of
 * both counts says which of two devices is further. Of a gather only the beginning is marked, as
 * each mark lies on the path that forward or backward waits for.
 *
 * The host tells the node, in a cache line a rank of shared memory: what it issued last, where its
 * device is, and when it looked, which it does all the time while it waits. late.c makes of it who
 * is late.
 *
 * Cost: copies of 4 bytes in the reducer's stream (not measured): one a gather, two a bucket; two
 * of 16 bytes a micro-batch in the one that computes. */
#include "collectives/nccl/progress.h"

#include <string.h>

enum { MOST = 4096 }; /* numbers: gathers beyond look alike */
enum { RING = 8 };    /* micro-batches under way, and more */

static tr_status fill(tr_progress *p)
{
    tr_status st = TR_OK;
    const tr_backend *b = p->r->o.backend;
    void *ctx = p->r->o.backend_ctx;
    p->count = 2 * p->r->o.nbuckets + 1 > MOST ? 2 * p->r->o.nbuckets + 1 : MOST;
    uint32_t *host = tr_alloc(TR_MEM_OTHER, p->count, sizeof(*host));
    p->numbers = b->memory->alloc(ctx, TR_MEM_OTHER, p->count * sizeof(*p->numbers));
    p->cell = b->memory->alloc(ctx, TR_MEM_OTHER, sizeof(*p->cell));
    p->word = b->memory->host_alloc(ctx, TR_MEM_OTHER, sizeof(*p->word));
    p->ring = b->memory->host_alloc(ctx, TR_MEM_OTHER, RING * sizeof(*p->ring));
    if (!host || !p->numbers || !p->cell || !p->word || !p->ring) {
        st = tr_last_error()->status;
        goto out;
    }
    *p->word = (tr_word){0};
    for (size_t i = 0; i < p->count; i++) host[i] = (uint32_t)i;
    TR_TRY(b->memory->upload(ctx, p->numbers, host, p->count * sizeof(*host)));
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
    if (!c->job->notes) return TR_OK; /* on no rank */
    TR_TRY(tr_window_open(c, nbytes, &p->window, &got, reason, sizeof(reason)));
    if (!got) return TR_OK;
    tr_place *board = (tr_place *)(void *)p->window.base;
    TR_TRY(tr_mpi_all(c->comm, tr_window_touch(&board[c->topology.local_rank], sizeof(*board)), &got));
    if (got) p->board = board;
out:
    return st;
}

tr_status tr_progress_open(tr_reducer *r, tr_progress **out)
{
    tr_status st = TR_OK;
    tr_progress *p = TR_NEW(TR_MEM_OTHER, tr_progress);
    if (p) p->r = r, p->window.win = MPI_WIN_NULL, p->patience = r->c->job->timeout / 2;
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
    if (p->window.win != MPI_WIN_NULL) tr_window_close(&p->window, tr_comm_broken(p->r->c));
    b->memory->free(p->r->o.backend_ctx, p->numbers);
    b->memory->free(p->r->o.backend_ctx, p->cell);
    b->memory->host_free(p->r->o.backend_ctx, p->word);
    b->memory->host_free(p->r->o.backend_ctx, p->ring);
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
    p->issued = tr_place_of(from->step, from->micro, 0);
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
    p->issued |= TR_PLACE_ALL;
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
    p->mine = tr_place_of(p->seen.step, p->seen.micro, p->seen.gathers + p->seen.buckets);
    if (!p->board) return;
    tr_place *us = &p->board[p->r->c->topology.local_rank];
    atomic_store_explicit(&us->gathers, p->seen.gathers, memory_order_relaxed);
    atomic_store_explicit(&us->buckets, p->seen.buckets, memory_order_relaxed);
    atomic_store_explicit(&us->issued, p->issued, memory_order_relaxed);
    atomic_store_explicit(&us->beat, tr_now(), memory_order_relaxed);
    atomic_store_explicit(&us->at, p->mine, memory_order_release);
}
