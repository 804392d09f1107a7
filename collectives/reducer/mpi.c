/* The reducer for ranks that do not share memory, and for one rank: MPI_Iallreduce a bucket, in
 * place, in pieces below MPI's int, tested between kernels; every rank owns everything, privately.
 *
 * All ranks must end with the same bits, or their weights drift apart. MPI recommends that and does
 * not promise it; Open MPI's nonblocking all-reduces (ring, recursive doubling with its commuting
 * pairs, reduce and broadcast) do it, and a test compares the ranks. With bfloat16 on the wire
 * between nodes the exchange takes the place of MPI_Iallreduce, whose sums would be made in
 * bfloat16; and so it does where the optimizer is sharded: each rank owns its parts of the
 * pieces. */
#include "collectives/reducer/reducer.h"

#include <stdlib.h>

typedef struct {
    size_t *ends;          /* [npieces] where each piece ends; piece i starts where i - 1 ends */
    MPI_Request *requests; /* [npieces] */
    size_t npieces, posted, arrived;
    size_t swept; /* elements whose squares are added */
    double squares;
    tr_exchange *exchange; /* bfloat16 between nodes, or a sharded optimizer */
} tr_plain;

static size_t start_of(const tr_plain *s, size_t piece)
{
    return piece ? s->ends[piece - 1] : 0;
}

static tr_status plain_ready(tr_reducer *r, int bucket)
{
    tr_status st = TR_OK;
    tr_plain *s = r->state;
    size_t end = r->p->o.buckets[bucket].end;
    if (s->exchange) tr_exchange_submit(s->exchange, (size_t)bucket + 1);
    for (; s->posted < s->npieces && s->ends[s->posted] <= end; s->posted++) {
        size_t from = start_of(s, s->posted);
        int count;
        TR_TRY(tr_mpi_int(s->ends[s->posted] - from, &count));
        TR_MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, r->p->grads + from, count, MPI_FLOAT, MPI_SUM,
                                  r->comm, &s->requests[s->posted]));
    }
out:
    return st;
}

static void advance(tr_reducer *r, size_t elements)
{
    while (r->current <= r->ready && r->p->o.buckets[r->current].end <= elements) r->current++;
}

static tr_status plain_poll(tr_reducer *r, bool *moved)
{
    tr_status st = TR_OK;
    tr_plain *s = r->state;
    if (s->exchange) {
        TR_TRY(tr_exchange_poll(s->exchange, moved));
        r->current = (int)tr_exchange_done(s->exchange);
        if (r->current > r->ready + 1) r->current = r->ready + 1; /* empty buckets ahead */
        return TR_OK;
    }
    for (int flag = 1; flag && s->arrived < s->posted;) { /* any test moves all of them on */
        TR_MPI_TRY(MPI_Test(&s->requests[s->arrived], &flag, MPI_STATUS_IGNORE));
        if (!flag) break;
        s->arrived++;
        *moved = true;
    }
    size_t there = s->npieces     ? start_of(s, s->arrived)
                   : r->ready < 0 ? 0
                                  : r->p->o.buckets[r->ready].end;
    advance(r, s->swept);
    if (r->current <= r->ready) { /* cut at fixed places: the same bits whenever pieces arrive */
        size_t left = r->p->o.buckets[r->current].end - s->swept;
        size_t n = left < TR_SUM_CHUNK ? left : TR_SUM_CHUNK;
        if (s->swept + n <= there) {
            s->squares += tr_sum_squares(r->p->grads + s->swept, n);
            s->swept += n;
            *moved = true;
        }
    }
    advance(r, s->swept);
out:
    return st;
}

static bool plain_done(const tr_reducer *r)
{
    return r->current == (int)r->p->o.nbuckets;
}

/* All ranks hold the same sums; rank 0's squares count, so that machines that add differently
 * agree. */
static double plain_squares(const tr_reducer *r)
{
    const tr_plain *s = r->state;
    if (s->exchange) return tr_exchange_squares(s->exchange);
    return r->c->topology.rank == 0 ? s->squares : 0.0;
}

static void plain_rewind(tr_reducer *r)
{
    tr_plain *s = r->state;
    s->posted = s->arrived = s->swept = 0;
    s->squares = 0;
    if (s->exchange) tr_exchange_rewind(s->exchange);
}

/* Weights are private; where every rank owns everything they were updated alike everywhere. */
static tr_status plain_publish(tr_reducer *r)
{
    const tr_plain *s = r->state;
    if (!r->o.shard || !s->exchange) return TR_OK;
    return tr_reducer_exchange_weights(r, s->exchange, r->p->weights);
}

static void plain_close(tr_reducer *r)
{
    tr_plain *s = r->state;
    if (s && !tr_comm_broken(r->c)) { /* else MPI may still use them */
        tr_exchange_close(s->exchange, false);
        tr_free(s->requests);
    }
    if (s) tr_free(s->ends);
    tr_free(s);
    r->state = NULL;
    r->ops = NULL;
}

static const tr_exchange *plain_exchange(const tr_reducer *r)
{
    return ((const tr_plain *)r->state)->exchange;
}

static const tr_reducer_ops ops = {.name = "MPI",
                                   .ready = plain_ready,
                                   .poll = plain_poll,
                                   .done = plain_done,
                                   .squares = plain_squares,
                                   .rewind = plain_rewind,
                                   .publish = plain_publish,
                                   .exchange = plain_exchange,
                                   .close = plain_close};

static tr_status allocate(tr_reducer *r, bool pieces)
{
    tr_status st = TR_OK;
    tr_plain *s = r->state;
    size_t limit = r->c->job->mpi_limit, n = 0;
    for (size_t b = 0; pieces && b < r->p->o.nbuckets; b++)
        n += tr_pieces(r->p->o.buckets[b].end - r->p->o.buckets[b].begin, limit);
    s->ends = tr_alloc(TR_MEM_OTHER, n, sizeof *s->ends);
    s->requests = tr_alloc(TR_MEM_OTHER, n, sizeof(MPI_Request));
    if (!s->ends || !s->requests) return tr_last_status();
    for (size_t b = 0; pieces && b < r->p->o.nbuckets; b++) {
        size_t end = r->p->o.buckets[b].end;
        for (size_t at = r->p->o.buckets[b].begin; at < end; at = s->ends[s->npieces - 1])
            s->ends[s->npieces++] = end - at < limit ? end : at + limit;
    }
    return st;
}

tr_status tr_reducer_mpi_init(tr_reducer *r)
{
    tr_status st = TR_OK;
    const tr_topology *t = &r->c->topology;
    const tr_exchange_options way = {
        .bf16 = r->o.wire_bf16 && t->nodes > 1, .scatter = r->o.shard, .weights = &r->p->o};
    const bool exchange = t->size > 1 && (way.bf16 || way.scatter);
    tr_plain *s = r->state = TR_NEW(TR_MEM_OTHER, tr_plain);
    st = s ? allocate(r, t->size > 1 && !exchange) : tr_last_status();
    r->ops = &ops;
    if (t->size == 1) snprintf(r->name, sizeof r->name, "one rank");
    TR_TRY(tr_agree(r->c, st, NULL));
    if (t->size > 1) /* of its own: the order of reductions and of other collectives may differ */
        TR_TRY(tr_comm_duplicate(r->c, &r->comm));
    if (exchange) {
        st = tr_exchange_open(r->comm, r->p->grads, r->p->o.buckets, r->p->o.nbuckets, way,
                              &s->exchange);
        TR_TRY(tr_agree(r->c, st, NULL));
    }
out:
    return st; /* tr_reducer_close frees what there is */
}
