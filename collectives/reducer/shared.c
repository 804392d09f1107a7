/* The reducer for ranks that share memory: gradients of all ranks of the node, the weights and the
 * slots lie in one window (params.c). Every bucket is cut into slices; local rank r sums slice r
 * over all local ranks, in rank order, into its own buffer. A rank's flag counts the buckets it has
 * ever made ready, so that one cache line a rank is all that is said, and nothing is ever reset.
 *
 * Who may touch what when:
 * - a rank writes its gradients from finish (or open) until it marks them ready; peers read slices
 * of them until finish, whose sum is entered only after the last read; slice r, the result, is read
 * by its owner alone.
 * - weights are read by everybody from publish until finish, and written by owners between the two;
 *   publish is a barrier of the node. Slots are their owner's alone.
 *
 * Between nodes each slice then goes through the exchange with the ranks of the same local rank.
 * Where the optimizer is sharded each of them ends with the sums of its parts of the slice alone,
 * and publish lets them exchange the weights before it closes the node's barrier.
 * Nodes may have unequal numbers of ranks: slices are cut by the smallest, ranks beyond own
 * nothing. */
#include "collectives/reducer/reducer.h"

#include <string.h>

typedef struct {
    const tr_placement *l; /* the window's parts */
    const float **at;      /* [local_size] the same, at the chunk being summed */
    tr_range *slices;      /* [nbuckets] ours */
    size_t offset;         /* summed of the current slice */
    int summed;            /* buckets whose slice is summed over the node */
    double squares;
    tr_comm *node, *across; /* ranks of this node; those of others with our slice. NULL: one node */
    tr_exchange *exchange;  /* NULL: one node, or no slice is ours */
} tr_shared;

static bool seen(const tr_reducer *r, int local_rank, int bucket)
{
    const tr_shared *s = r->state;
    uint64_t need = r->steps * r->p->o.nbuckets + (uint64_t)bucket + 1;
    return atomic_load_explicit(&s->l->flags[local_rank].ready, memory_order_acquire) >= need;
}

static tr_status shared_ready(tr_reducer *r, int bucket)
{
    tr_shared *s = r->state;
    uint64_t now = r->steps * r->p->o.nbuckets + (uint64_t)bucket + 1;
    tr_drain_stores();
    atomic_store_explicit(&s->l->flags[r->c->topology.local_rank].ready, now, memory_order_release);
    return TR_OK;
}

static bool shared_arrived(const void *ctx, int local_rank)
{
    const tr_reducer *r = ctx;
    const tr_shared *s = r->state;
    return s->summed == (int)r->p->o.nbuckets || seen(r, local_rank, s->summed);
}

/* One chunk of the first slice that is not summed yet, if everybody's gradients are there. */
static void sum_chunk(tr_reducer *r, bool *moved)
{
    tr_shared *s = r->state;
    const tr_topology *t = &r->c->topology;
    if (s->summed > r->ready) return;
    for (int i = 0; i < t->local_size; i++)
        if (!seen(r, i, s->summed)) return;
    tr_range slice = s->slices[s->summed];
    size_t left = slice.end - slice.begin - s->offset;
    size_t n = left < TR_SUM_CHUNK ? left : TR_SUM_CHUNK, begin = slice.begin + s->offset;
    if (n && !(t->local_size == 1 && s->exchange)) {
        for (int i = 0; i < t->local_size; i++) s->at[i] = s->l->bases[i] + begin;
        s->squares += tr_sum_sources(r->p->grads + begin, s->at, t->local_size, n);
    }
    s->offset += n;
    *moved = true;
    if (n < left) return;
    s->offset = 0;
    s->summed++;
    if (s->exchange) tr_exchange_submit(s->exchange, (size_t)s->summed);
}

static tr_status shared_poll(tr_reducer *r, bool *moved)
{
    tr_status st = TR_OK;
    tr_shared *s = r->state;
    sum_chunk(r, moved);
    r->current = s->summed;
    if (!s->exchange) return TR_OK;
    TR_TRY(tr_exchange_poll(s->exchange, moved));
    int exchanged = (int)tr_exchange_done(s->exchange);
    if (exchanged < r->current) r->current = exchanged;
out:
    return st;
}

static bool shared_done(const tr_reducer *r)
{
    return r->current == (int)r->p->o.nbuckets;
}

static double shared_squares(const tr_reducer *r)
{
    const tr_shared *s = r->state;
    return s->exchange ? tr_exchange_squares(s->exchange) : s->squares;
}

static void shared_rewind(tr_reducer *r)
{
    tr_shared *s = r->state;
    s->summed = 0;
    s->squares = 0;
    if (s->exchange) tr_exchange_rewind(s->exchange);
}

static tr_status shared_publish(tr_reducer *r)
{
    tr_status st = TR_OK;
    const tr_shared *s = r->state;
    if (s->exchange && r->o.shard)
        TR_TRY(tr_reducer_exchange_weights(r, s->exchange, r->p->weights));
    TR_TRY(tr_comm_barrier(s->node ? s->node : r->c));
out:
    return st;
}

static void shared_close(tr_reducer *r)
{
    tr_shared *s = r->state;
    if (!s) return;
    tr_exchange_close(s->exchange, tr_comm_broken(r->c));
    tr_comm_close(s->across);
    tr_comm_close(s->node);
    r->comm = MPI_COMM_NULL; /* was across' */
    tr_free(s->at);
    tr_free(s->slices);
    tr_free(s);
    r->state = NULL;
    r->ops = NULL;
}

static const tr_exchange *shared_exchange(const tr_reducer *r)
{
    return ((const tr_shared *)r->state)->exchange;
}

static const tr_reducer_ops ops = {.name = "shared memory",
                                   .ready = shared_ready,
                                   .poll = shared_poll,
                                   .done = shared_done,
                                   .squares = shared_squares,
                                   .rewind = shared_rewind,
                                   .publish = shared_publish,
                                   .exchange = shared_exchange,
                                   .close = shared_close,
                                   .arrived = shared_arrived};

static tr_status connect_nodes(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_shared *s = r->state;
    const tr_topology *t = &r->c->topology;
    if (t->nodes == 1) return TR_OK;
    TR_TRY(tr_comm_split_node(r->c, &s->node));
    TR_TRY(tr_comm_split_across(r->c, &s->across));
    if (s->across) {
        r->comm = s->across->comm;
        st = tr_exchange_open(r->comm, r->p->grads, s->slices, r->p->o.nbuckets,
                              (tr_exchange_options){r->o.wire_bf16, r->o.shard, &r->p->o},
                              &s->exchange);
    }
    TR_TRY(tr_agree(r->c, st, NULL));
out:
    return st;
}

tr_status tr_reducer_shared_init(tr_reducer *r)
{
    tr_status st = TR_OK;
    const tr_topology *t = &r->c->topology;
    const size_t n = r->p->o.nbuckets;
    tr_shared *s = r->state = TR_NEW(TR_MEM_OTHER, tr_shared);
    r->ops = &ops;
    if (s) {
        s->l = tr_placement_of(r->p);
        s->at = tr_alloc(TR_MEM_OTHER, (size_t)t->local_size, sizeof(float *));
        s->slices = tr_alloc(TR_MEM_OTHER, n, sizeof(tr_range));
    }
    st = s && s->at && s->slices ? TR_OK : tr_last_status();
    TR_TRY(tr_agree(r->c, st, NULL));
    for (size_t b = 0; b < n; b++)
        s->slices[b] = tr_slice(r->p->o.buckets[b], t->local_rank, t->slices);
    TR_TRY(connect_nodes(r));
out:
    return st; /* tr_reducer_close frees what there is */
}
