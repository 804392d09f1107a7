/* The reducer for ranks that share memory: gradients of all ranks of the node, the weights and the
 * slots lie in one window. Every bucket is cut into slices; local rank r sums slice r over all
 * local ranks, in rank order, into its own buffer. A rank's flag counts the buckets it has ever
 * made ready, so that one cache line a rank is all that is said, and nothing is ever reset.
 *
 * Who may touch what when:
 * - a rank writes its gradients from finish (or open) until it marks them ready; peers read slices
 * of them until finish, whose sum is entered only after the last read; slice r, the result, is read
 * by its owner alone.
 * - weights are read by everybody from publish until finish, and written by owners between the two;
 *   publish is a barrier of the node. Slots are their owner's alone.
 *
 * Between nodes each slice then goes through the exchange with the ranks of the same local rank.
 * Nodes may have unequal numbers of ranks: slices are cut by the smallest, ranks beyond own
 * nothing. */
#include "collectives/reducer.h"

#include <string.h>

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t ready; /* buckets since open */
} tr_ready_flag;

typedef struct {
    tr_window window;
    tr_ready_flag *flags; /* [local_size] */
    const float **bases;  /* [local_size] gradients of the node's ranks */
    const float **at;     /* [local_size] the same, at the chunk being summed */
    tr_range *slices;     /* [nbuckets] ours */
    size_t offset;        /* summed of the current slice */
    int summed;           /* buckets whose slice is summed over the node */
    double squares;
    tr_comm *node, *across; /* ranks of this node; those of others with our slice. NULL: one node */
    tr_exchange *exchange;  /* NULL: one node, or no slice is ours */
    size_t counted[3];     /* bytes told to the memory report */
} tr_shared;

static bool seen(const tr_reducer *r, int local_rank, int bucket)
{
    const tr_shared *s = r->state;
    uint64_t need = r->steps * r->o.nbuckets + (uint64_t)bucket + 1;
    return atomic_load_explicit(&s->flags[local_rank].ready, memory_order_acquire) >= need;
}

static tr_status shared_ready(tr_reducer *r, int bucket)
{
    tr_shared *s = r->state;
    uint64_t now = r->steps * r->o.nbuckets + (uint64_t)bucket + 1;
    tr_drain_stores();
    atomic_store_explicit(&s->flags[r->c->topology.local_rank].ready, now, memory_order_release);
    return TR_OK;
}

static bool shared_arrived(const void *ctx, int local_rank)
{
    const tr_reducer *r = ctx;
    const tr_shared *s = r->state;
    return s->summed == (int)r->o.nbuckets || seen(r, local_rank, s->summed);
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
        for (int i = 0; i < t->local_size; i++) s->at[i] = s->bases[i] + begin;
        s->squares += tr_sum_sources(r->grads + begin, s->at, t->local_size, n);
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
    return r->current == (int)r->o.nbuckets;
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
    const tr_shared *s = r->state;
    return tr_comm_barrier(s->node ? s->node : r->c);
}

static void count_memory(tr_shared *s, int sign)
{
    static const tr_mem_kind kinds[] = {TR_MEM_GRADIENTS, TR_MEM_WEIGHTS, TR_MEM_MOMENTS};
    for (int i = 0; i < 3; i++) tr_mem_count(kinds[i], sign * (int64_t)s->counted[i]);
}

static void shared_close(tr_reducer *r)
{
    tr_shared *s = r->state;
    if (!s) return;
    count_memory(s, -1);
    tr_exchange_close(s->exchange, tr_comm_broken(r->c));
    tr_window_close(&s->window, tr_comm_broken(r->c));
    tr_comm_close(s->across);
    tr_comm_close(s->node);
    r->comm = MPI_COMM_NULL; /* was across' */
    tr_free(s->bases);
    tr_free(s->at);
    tr_free(s->slices);
    tr_free(s);
    r->state = NULL;
    r->grads = r->weights = NULL;
    for (int k = 0; k < r->o.nslots; k++) r->slots[k] = NULL;
    r->ops = NULL;
}

static const tr_reducer_ops ops = {.name = "shared memory",
                                   .ready = shared_ready,
                                   .poll = shared_poll,
                                   .done = shared_done,
                                   .squares = shared_squares,
                                   .rewind = shared_rewind,
                                   .publish = shared_publish,
                                   .close = shared_close,
                                   .arrived = shared_arrived};

/* Where everything lies in the window: flags, gradients a rank, weights, slots; all page-aligned.
 */
static bool layout(const tr_reducer *r, size_t *flags, size_t *array, size_t *total)
{
    size_t ranks = (size_t)r->c->topology.local_size, arrays = ranks + 1 + (size_t)r->o.nslots, all;
    *flags = tr_align_up(ranks * sizeof(tr_ready_flag), TR_PAGE);
    if (r->o.count > SIZE_MAX / 2 / sizeof(float)) return false;
    *array = tr_align_up(r->o.count * sizeof(float), TR_PAGE);
    return tr_mul_size(*array, arrays, &all) && tr_add_size(all, *flags, total);
}

/* Zeroes what is this rank's to write, and by that places its pages. */
static bool touch(tr_reducer *r)
{
    const tr_shared *s = r->state;
    bool ok = tr_window_touch(r->grads, r->o.count * sizeof(float));
    if (r->c->topology.local_rank == 0)
        ok = ok && tr_window_touch(s->flags, (size_t)r->c->topology.local_size * sizeof(*s->flags));
    for (size_t i = 0; i < r->nowned; i++) {
        size_t at = r->owned[i].begin, bytes = (r->owned[i].end - at) * sizeof(float);
        ok = ok && tr_window_touch(r->weights + at, bytes);
        for (int k = 0; k < r->o.nslots; k++) ok = ok && tr_window_touch(r->slots[k] + at, bytes);
    }
    return ok;
}

static void place(tr_reducer *r, size_t flags, size_t array)
{
    tr_shared *s = r->state;
    const tr_topology *t = &r->c->topology;
    char *at = s->window.base;
    s->flags = (tr_ready_flag *)(void *)at;
    at += flags;
    for (int i = 0; i < t->local_size; i++, at += array) s->bases[i] = (const float *)(void *)at;
    r->grads = (float *)(void *)(s->window.base + flags + (size_t)t->local_rank * array);
    r->weights = (float *)(void *)at;
    for (int k = 0; k < r->o.nslots; k++) r->slots[k] = (float *)(void *)(at += array);
    for (size_t b = 0; b < r->o.nbuckets; b++) {
        s->slices[b] = tr_slice(r->buckets[b], t->local_rank, t->slices);
        tr_reducer_own(r, s->slices[b]);
    }
}

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
        st = tr_exchange_open(r->comm, r->grads, s->slices, r->o.nbuckets, r->o.wire_bf16,
                              &s->exchange);
    }
    TR_TRY(tr_agree(r->c, st, NULL));
out:
    return st;
}

tr_status tr_reducer_shared_init(tr_reducer *r, bool *got)
{
    tr_status st = TR_OK;
    tr_comm *c = r->c;
    size_t ranks = (size_t)c->topology.local_size, flags = 0, array = 0, total = 0;
    bool ok = true;
    tr_shared *s = r->state = TR_NEW(TR_MEM_OTHER, tr_shared);
    *got = false;
    if (s) {
        s->window.win = MPI_WIN_NULL;
        s->bases = tr_alloc(TR_MEM_OTHER, ranks, sizeof(float *));
        s->at = tr_alloc(TR_MEM_OTHER, ranks, sizeof(float *));
        s->slices = tr_alloc(TR_MEM_OTHER, r->o.nbuckets, sizeof(tr_range));
    }
    st = s && s->bases && s->at && s->slices ? TR_OK : tr_last_error()->status;
    if (st == TR_OK && !layout(r, &flags, &array, &total))
        st = TR_FAIL(TR_MEMORY, "%zu parameters do not fit the address space", r->o.count);
    TR_TRY(tr_agree(c, st, NULL));
    TR_TRY(tr_window_open(c, total, &s->window, &ok, c->reason, sizeof(c->reason)));
    if (!ok) goto out;
    place(r, flags, array);
    TR_TRY(tr_mpi_all(c->comm, touch(r), &ok)); /* after this all flags are zero and may be set */
    if (!ok) {
        snprintf(c->reason, sizeof(c->reason), "shared memory ran out while it was set up");
        r->nowned = 0;
        goto out;
    }
    TR_TRY(connect_nodes(r));
    size_t bytes = r->o.count * sizeof(float);
    s->counted[0] = bytes;
    s->counted[1] = bytes / ranks;
    s->counted[2] = bytes * (size_t)r->o.nslots / ranks;
    count_memory(s, 1);
    r->ops = &ops;
    *got = true;
out:
    if (!*got) shared_close(r);
    return st;
}
