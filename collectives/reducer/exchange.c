/* All-reduce between counterparts on K nodes, polled: each range goes in pieces, each piece is cut
 * into K parts. Scatter: part k is sent to node k, which adds its K versions in node order. Gather:
 * the sums are sent to everybody. 2 (K-1)/K of the bytes leave a rank, as in a ring, in two rounds
 * instead of 2 (K-1). One node alone computes each element, so all hold the same bits whatever MPI
 * does, which MPI_Allreduce does not promise. TR_LANES pieces are under way at once.
 *
 * The first half alone is a reduce-scatter, the second an all-gather: what a sharded optimizer does
 * before and after its update.
 *
 * With bfloat16 on the wire the sums are made in float32 of the rounded parts (a node's own part is
 * not rounded), and rounded once more before the gather, also where they were made. A
 * reduce-scatter leaves them in float32. The gather that follows it is of weights: of float32, but
 * for those that kernels read as 16-bit copies alone, which go rounded (wire.c). */
#include "collectives/reducer/reducer.h"

#include <string.h>

/* Pieces told apart: far more than can be under way; 2 * TAGS < MPI's least upper bound. */
#define TAGS  8192
#define BLOCK 1024

enum { IDLE, SCATTER, GATHER };

typedef struct {
    int state;
    size_t piece;
    uint64_t number; /* of the piece since open: its tag */
    int nrequests;
    MPI_Request *requests; /* [2 (K-1)] */
    void *received;        /* [K][part] float32 or bfloat16 */
    tr_bf16 *sent;         /* [K * part], bfloat16 only */
} tr_exchange_lane;

typedef struct {
    size_t at, count; /* of the base */
} tr_exchange_piece;

/* What a round of polls is for. */
typedef enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER } tr_exchange_way;

struct tr_exchange {
    MPI_Comm comm;
    int nodes, me;
    tr_exchange_options o;
    tr_exchange_way way;
    float *gradients, *base; /* base: what the round works on */
    tr_exchange_piece *pieces;
    size_t npieces, *first; /* [nranges + 1] first piece of each range */
    bool *complete;         /* [npieces] */
    double *squares;        /* [npieces]: added up in this order, whatever order they came in */
    const float **sources;  /* [K] */
    MPI_Request *requests;  /* of all lanes */
    float *buffers;
    tr_exchange_lane lanes[TR_LANES];
    size_t nranges, allowed, next, done, ranges_done; /* pieces, but for the ranges */
    uint64_t number;
    uint64_t sent; /* bytes since open */
};

static tr_range part_of(const tr_exchange *x, const tr_exchange_piece *p, int node)
{
    return tr_slice((tr_range){0, p->count}, node, x->nodes);
}

static tr_status allocate(tr_exchange *x, const tr_range *ranges, size_t nranges)
{
    tr_status st = TR_OK;
    size_t k = (size_t)x->nodes, part = tr_part_floats(x->nodes);
    for (size_t i = 0; i < nranges; i++)
        x->npieces += tr_pieces(ranges[i].end - ranges[i].begin, TR_PIECE);
    x->nranges = nranges;
    x->first = tr_alloc(TR_MEM_OTHER, nranges + 1, sizeof *x->first);
    x->pieces = tr_alloc(TR_MEM_OTHER, x->npieces, sizeof *x->pieces);
    x->complete = tr_alloc(TR_MEM_OTHER, x->npieces, sizeof *x->complete);
    x->squares = tr_alloc(TR_MEM_OTHER, x->npieces, sizeof *x->squares);
    x->sources = tr_alloc(TR_MEM_OTHER, k, sizeof *x->sources);
    x->requests = tr_alloc(TR_MEM_OTHER, TR_LANES * 2 * (k - 1), sizeof(MPI_Request));
    x->buffers = tr_alloc(TR_MEM_GRADIENTS, tr_exchange_floats(x->nodes), sizeof(float));
    TR_HAVE(x->first && x->pieces && x->complete && x->squares && x->sources && x->requests &&
            x->buffers);
    for (int i = 0; i < TR_LANES; i++) {
        float *base = x->buffers + (size_t)i * k * part;
        x->lanes[i].received = base;
        if (x->o.bf16) x->lanes[i].sent = (tr_bf16 *)(void *)base + k * part;
        x->lanes[i].requests = x->requests + (size_t)i * 2 * (k - 1);
    }
out:
    return st;
}

tr_status tr_exchange_open(MPI_Comm comm, float *base, const tr_range *ranges, size_t nranges,
                           tr_exchange_options o, tr_exchange **out)
{
    tr_status st = TR_OK;
    tr_exchange *x = TR_NEW(TR_MEM_OTHER, tr_exchange);
    if (!x) return tr_last_status();
    x->comm = comm;
    x->o = o;
    x->gradients = base;
    tr_exchange_rewind(x);
    TR_MPI_TRY(MPI_Comm_size(comm, &x->nodes));
    TR_MPI_TRY(MPI_Comm_rank(comm, &x->me));
    TR_TRY(allocate(x, ranges, nranges));
    size_t p = 0;
    for (size_t i = 0; i < nranges; i++) {
        x->first[i] = p;
        for (size_t at = ranges[i].begin; at < ranges[i].end; at += TR_PIECE, p++) {
            size_t left = ranges[i].end - at;
            x->pieces[p] = (tr_exchange_piece){at, left < TR_PIECE ? left : TR_PIECE};
        }
    }
    x->first[nranges] = p;
out:
    if (st != TR_OK) {
        tr_exchange_close(x, false);
        return st;
    }
    *out = x;
    return TR_OK;
}

void tr_exchange_close(tr_exchange *x, bool broken)
{
    if (!x || broken) return; /* MPI may still write into the buffers of requests under way */
    tr_free(x->first);
    tr_free(x->pieces);
    tr_free(x->complete);
    tr_free(x->squares);
    tr_free(x->sources);
    tr_free(x->requests);
    tr_free(x->buffers);
    tr_free(x);
}

/* Sums on the wire are bfloat16. */
static bool halved(const tr_exchange *x)
{
    return x->o.bf16 && x->way != ALL_GATHER;
}

/* Some weights on the wire are rounded: they go through the lane's buffers. */
static bool rounded(const tr_exchange *x)
{
    return x->way == ALL_GATHER && x->o.weights && x->o.weights->nrounded > 0;
}

static size_t wire_size(const tr_exchange *x)
{
    return halved(x) ? sizeof(tr_bf16) : sizeof(float);
}

static tr_status post(tr_exchange *x, tr_exchange_lane *l, bool send, void *buf, size_t nbytes,
                      int node)
{
    tr_status st = TR_OK;
    int count, tag = (int)(l->number % TAGS) * 2 + (l->state == GATHER);
    if (nbytes == 0) return TR_OK; /* both sides know: nothing is sent */
    TR_TRY(tr_mpi_int(nbytes, &count));
    MPI_Request *q = &l->requests[l->nrequests];
    if (send)
        TR_MPI_TRY(MPI_Isend(buf, count, MPI_BYTE, node, tag, x->comm, q));
    else
        TR_MPI_TRY(MPI_Irecv(buf, count, MPI_BYTE, node, tag, x->comm, q));
    l->nrequests++;
    if (send) x->sent += nbytes;
out:
    return st;
}

/* Where node k's version of our part lies, or later the sum of part k. */
static void *slot(const tr_exchange *x, const tr_exchange_lane *l, int k)
{
    return (char *)l->received + (size_t)k * tr_part_floats(x->nodes) * wire_size(x);
}

static tr_status start_scatter(tr_exchange *x, tr_exchange_lane *l)
{
    tr_status st = TR_OK;
    const tr_exchange_piece *p = &x->pieces[l->piece];
    tr_range mine = part_of(x, p, x->me);
    l->state = SCATTER;
    l->nrequests = 0;
    for (int k = 0; k < x->nodes; k++)
        if (k != x->me)
            TR_TRY(post(x, l, false, slot(x, l, k), tr_range_count(mine) * wire_size(x), k));
    for (int i = 1; i < x->nodes; i++) { /* each node starts with its neighbour */
        int k = (x->me + i) % x->nodes;
        tr_range theirs = part_of(x, p, k);
        size_t n = theirs.end - theirs.begin;
        float *at = x->base + p->at + theirs.begin;
        void *from = at;
        if (halved(x)) {
            tr_sum_to_bf16(l->sent + theirs.begin, at, n);
            from = l->sent + theirs.begin;
        }
        TR_TRY(post(x, l, true, from, n * wire_size(x), k));
    }
out:
    return st;
}

static double sum_float32(tr_exchange *x, const tr_exchange_lane *l, float *own, size_t n)
{
    for (int k = 0; k < x->nodes; k++) x->sources[k] = k == x->me ? own : slot(x, l, k);
    return tr_sum_sources(own, x->sources, x->nodes, n);
}

/* Leaves the sums in `own`; where they go on, rounded, and in `wire` as bfloat16. */
static double sum_bf16(tr_exchange *x, const tr_exchange_lane *l, float *own, tr_bf16 *wire,
                       size_t n)
{
    double squares = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        float sum[BLOCK];
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        memset(sum, 0, len * sizeof(float));
        for (int k = 0; k < x->nodes; k++) {
            if (k == x->me)
                tr_sum_add(sum, own + at, len);
            else
                tr_sum_add_bf16(sum, (const tr_bf16 *)slot(x, l, k) + at, len);
        }
        if (x->way == ALL_REDUCE) {
            tr_sum_to_bf16(wire + at, sum, len);
            tr_sum_from_bf16(own + at, wire + at, len);
        } else {
            memcpy(own + at, sum, len * sizeof(float));
        }
        squares += tr_sum_squares(own + at, len);
    }
    return squares;
}

/* All versions of our part are here. */
static void sum_part(tr_exchange *x, tr_exchange_lane *l)
{
    const tr_exchange_piece *p = &x->pieces[l->piece];
    const tr_range mine = part_of(x, p, x->me);
    float *own = x->base + p->at + mine.begin;
    const size_t n = tr_range_count(mine);
    x->squares[l->piece] =
        halved(x) ? sum_bf16(x, l, own, l->sent + mine.begin, n) : sum_float32(x, l, own, n);
}

/* Part k of a piece, of the base. */
static tr_range place_of(const tr_exchange *x, const tr_exchange_piece *p, int k)
{
    const tr_range part = part_of(x, p, k);
    return (tr_range){p->at + part.begin, p->at + part.end};
}

static size_t gathered_bytes(const tr_exchange *x, tr_range part)
{
    return rounded(x) ? tr_wire_nbytes(x->o.weights, part) : tr_range_count(part) * wire_size(x);
}

static tr_status start_gather(tr_exchange *x, tr_exchange_lane *l)
{
    tr_status st = TR_OK;
    const tr_exchange_piece *p = &x->pieces[l->piece];
    const tr_range mine = place_of(x, p, x->me);
    void *from = x->base + mine.begin;
    if (halved(x)) from = l->sent + (mine.begin - p->at);
    if (rounded(x)) {
        from = slot(x, l, x->me);
        tr_wire_pack(x->o.weights, x->base, mine, from);
    }
    l->state = GATHER;
    l->nrequests = 0;
    for (int k = 0; k < x->nodes; k++) {
        const tr_range theirs = place_of(x, p, k);
        void *to = halved(x) || rounded(x) ? slot(x, l, k) : x->base + theirs.begin;
        if (k != x->me) TR_TRY(post(x, l, false, to, gathered_bytes(x, theirs), k));
    }
    for (int i = 1; i < x->nodes; i++)
        TR_TRY(post(x, l, true, from, gathered_bytes(x, mine), (x->me + i) % x->nodes));
out:
    return st;
}

/* What came of others, to its places. */
static void unpack(tr_exchange *x, const tr_exchange_lane *l)
{
    const tr_exchange_piece *p = &x->pieces[l->piece];
    for (int k = 0; k < x->nodes; k++) {
        const tr_range theirs = place_of(x, p, k);
        if (k == x->me) continue;
        if (rounded(x))
            tr_wire_unpack(x->o.weights, x->base, theirs, slot(x, l, k));
        else
            tr_sum_from_bf16(x->base + theirs.begin, slot(x, l, k), tr_range_count(theirs));
    }
}

static void complete(tr_exchange *x, tr_exchange_lane *l)
{
    if (l->state == GATHER && (halved(x) || rounded(x))) unpack(x, l);
    l->state = IDLE;
    x->complete[l->piece] = true;
    while (x->done < x->npieces && x->complete[x->done]) x->done++;
    while (x->ranges_done < x->nranges && x->first[x->ranges_done + 1] <= x->done) x->ranges_done++;
}

/* The lane's messages have come and gone. */
static tr_status go_on(tr_exchange *x, tr_exchange_lane *l)
{
    if (l->state == SCATTER) {
        sum_part(x, l);
        if (x->way == ALL_REDUCE) return start_gather(x, l);
    }
    complete(x, l);
    return TR_OK;
}

void tr_exchange_submit(tr_exchange *x, size_t ranges)
{
    x->allowed = x->first[ranges];
}

tr_status tr_exchange_poll(tr_exchange *x, bool *moved)
{
    tr_status st = TR_OK;
    for (int i = 0; i < TR_LANES; i++) {
        tr_exchange_lane *l = &x->lanes[i];
        int flag = 0;
        if (l->state == IDLE) {
            if (x->next == x->allowed) continue;
            l->piece = x->next++;
            l->number = x->number++;
            TR_TRY(x->way == ALL_GATHER ? start_gather(x, l) : start_scatter(x, l));
            *moved = true;
            continue;
        }
        TR_MPI_TRY(MPI_Testall(l->nrequests, l->requests, &flag, MPI_STATUSES_IGNORE));
        if (!flag) continue;
        *moved = true;
        TR_TRY(go_on(x, l));
    }
out:
    return st;
}

size_t tr_exchange_done(const tr_exchange *x)
{
    /* empty ranges at the front are done once they were allowed, which is all the same to
     * callers */
    size_t done = x->ranges_done;
    while (done < x->nranges && x->first[done + 1] <= x->done) done++;
    return done;
}

bool tr_exchange_all(const tr_exchange *x)
{
    return x->done == x->npieces;
}

uint64_t tr_exchange_sent(const tr_exchange *x)
{
    return x->sent;
}

double tr_exchange_squares(const tr_exchange *x)
{
    double q = 0;
    for (size_t i = 0; i < x->npieces; i++) q += x->squares[i];
    return q;
}

void tr_exchange_rewind(tr_exchange *x)
{
    if (x->complete) memset(x->complete, 0, x->npieces * sizeof *x->complete);
    x->allowed = x->next = x->done = x->ranges_done = 0;
    x->way = x->o.scatter ? REDUCE_SCATTER : ALL_REDUCE;
    x->base = x->gradients;
}

void tr_exchange_gather(tr_exchange *x, float *array)
{
    tr_exchange_rewind(x);
    x->way = ALL_GATHER;
    x->base = array;
    tr_exchange_submit(x, x->nranges);
}
