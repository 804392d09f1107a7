/* Index arithmetic of the reducer and what it costs: pure functions, tested without MPI. */
#include "collectives/reducer/reducer.h"

tr_range tr_slice(tr_range whole, int i, int n)
{
    if (i < 0 || i >= n) return (tr_range){whole.end, whole.end};
    size_t units = (whole.end - whole.begin) / TR_SLICE_UNIT, parts = (size_t)n, at = (size_t)i;
    /* units * i / n without the product, which might not fit */
    size_t q = units / parts, rest = units % parts;
    size_t begin = q * at + rest * at / parts, end = q * (at + 1) + rest * (at + 1) / parts;
    return (tr_range){whole.begin + begin * TR_SLICE_UNIT, whole.begin + end * TR_SLICE_UNIT};
}

size_t tr_pieces(size_t count, size_t piece)
{
    return count / piece + (count % piece != 0);
}

tr_ownership tr_ownership_of(const tr_topology *t, const tr_params_options *p,
                             const tr_reducer_options *r)
{
    tr_ownership w = {.slices = 1, .parts = 1};
    if (t->size <= 1) return w;
    if (t->shared && !tr_on_device(p)) {
        w.slices = t->slices > 0 ? t->slices : t->local_size;
        w.slice = t->local_rank;
        if (r->shard && t->nodes > 1) w.parts = t->nodes, w.part = t->node;
    } else if (r->shard) {
        w.parts = t->size;
        w.part = t->rank;
        w.even = tr_on_device(p) && r->nccl;
    }
    return w;
}

/* What an operation of NCCL's on a whole bucket deals to each rank. */
tr_range tr_even_share(tr_range bucket, int rank, int ranks)
{
    const size_t share = tr_range_count(bucket) / TR_SLICE_UNIT / (size_t)ranks * TR_SLICE_UNIT;
    const size_t at = bucket.begin + (size_t)rank * share;
    return (tr_range){at, at + share};
}

tr_range tr_even_rest(tr_range bucket, int ranks)
{
    return (tr_range){tr_even_share(bucket, ranks - 1, ranks).end, bucket.end};
}

int tr_even_rest_owner(size_t bucket, int ranks)
{
    return (int)(bucket % (size_t)ranks);
}

size_t tr_even_nbytes(const tr_params_options *p, tr_range bucket, int ranks)
{
    size_t most = 0;
    for (int r = 0; r < ranks; r++) {
        const size_t nbytes = tr_wire_nbytes(p, tr_even_share(bucket, r, ranks));
        if (nbytes > most) most = nbytes;
    }
    return most;
}

static size_t add(tr_range *ranges, size_t n, tr_range more)
{
    if (more.begin == more.end) return n;
    if (n && ranges[n - 1].end == more.begin) {
        ranges[n - 1].end = more.end;
        return n;
    }
    ranges[n] = more;
    return n + 1;
}

/* Of one bucket, and of a slice of it; called for each range in ascending order. */
typedef void visit(void *ctx, tr_range owned);

static void visit_even(const tr_ownership *w, size_t b, tr_range bucket, visit *f, void *ctx)
{
    f(ctx, tr_even_share(bucket, w->part, w->parts));
    if (tr_even_rest_owner(b, w->parts) == w->part) f(ctx, tr_even_rest(bucket, w->parts));
}

/* As the exchange cuts: pieces, and these in parts. */
static void visit_parts(const tr_ownership *w, tr_range slice, visit *f, void *ctx)
{
    for (size_t at = slice.begin; at < slice.end; at += TR_PIECE) {
        const size_t end = slice.end - at < TR_PIECE ? slice.end : at + TR_PIECE;
        f(ctx, tr_slice((tr_range){at, end}, w->part, w->parts));
    }
}

static void visit_owned(const tr_ownership *w, const tr_range *buckets, size_t n, visit *f,
                        void *ctx)
{
    for (size_t b = 0; b < n; b++) {
        const tr_range slice = tr_slice(buckets[b], w->slice, w->slices);
        if (w->parts == 1)
            f(ctx, slice);
        else if (w->even)
            visit_even(w, b, slice, f, ctx);
        else
            visit_parts(w, slice, f, ctx);
    }
}

typedef struct {
    tr_range *v;
    size_t n;
} list;

static void append(void *ctx, tr_range owned)
{
    list *l = ctx;
    l->n = add(l->v, l->n, owned);
}

size_t tr_owned(const tr_ownership *w, const tr_range *buckets, size_t nbuckets, tr_range *out)
{
    list l = {out, 0};
    visit_owned(w, buckets, nbuckets, append, &l);
    return l.n;
}

static void add_count(void *ctx, tr_range owned)
{
    *(size_t *)ctx += tr_range_count(owned);
}

size_t tr_owned_count(const tr_ownership *w, const tr_range *buckets, size_t nbuckets)
{
    size_t sum = 0;
    visit_owned(w, buckets, nbuckets, add_count, &sum);
    return sum;
}

size_t tr_owned_most(const tr_ownership *w, const tr_range *buckets, size_t nbuckets)
{
    size_t n = 0;
    for (size_t b = 0; b < nbuckets; b++) /* a slice may be a unit above the average */
        n +=
            2 + tr_pieces(tr_range_count(buckets[b]) / (size_t)w->slices + TR_SLICE_UNIT, TR_PIECE);
    return n;
}

/* Parts of a piece are cut in units, so one may be a unit above the average. */
size_t tr_part_floats(int nodes)
{
    return tr_align_up(TR_PIECE / (size_t)nodes + TR_SLICE_UNIT, TR_SLICE_UNIT);
}

size_t tr_exchange_floats(int nodes)
{
    return TR_LANES * (size_t)nodes * tr_part_floats(nodes);
}

/* Bytes that a rank of `n` sends when it scatters, or gathers, `bytes`. */
static size_t leaves(size_t bytes, size_t n)
{
    return bytes / n * (n - 1);
}

typedef struct {
    const tr_params_options *p;
    size_t nbytes;
} wire;

static void add_wire(void *ctx, tr_range owned)
{
    wire *w = ctx;
    w->nbytes += tr_wire_nbytes(w->p, owned);
}

/* What the exchange of w->parts ranks sends, to the byte: what others sum, and what is ours to all
 * of them: sums, or weights. */
static size_t cost_exchange(const tr_params_options *p, const tr_ownership *w, bool half,
                            bool shard, tr_reducer_cost *out)
{
    const size_t others = (size_t)w->parts - 1, element = half ? sizeof(tr_bf16) : sizeof(float);
    const tr_ownership whole = {.slices = w->slices, .slice = w->slice, .parts = 1};
    const size_t own = tr_owned_count(w, p->buckets, p->nbuckets);
    const size_t all = tr_owned_count(&whole, p->buckets, p->nbuckets);
    wire gathered = {.p = p};
    visit_owned(w, p->buckets, p->nbuckets, add_wire, &gathered);
    if (shard) out->wire_weights = gathered.nbytes * others;
    return (all - own) * element + (shard ? out->wire_weights : own * element * others);
}

/* `bytes`: of what is learned. */
static void cost_shared(const tr_topology *t, const tr_params_options *p,
                        const tr_reducer_options *o, size_t bytes, tr_reducer_cost *out)
{
    const size_t ranks = (size_t)t->local_size;
    const size_t slices = (size_t)(t->slices > 0 ? t->slices : t->local_size);
    out->weights /= ranks;
    out->wire_node = bytes / slices * (slices - 1); /* its slices that others read */
    if (ranks > slices) out->wire_node = bytes;
    if (t->nodes == 1 || t->local_rank >= (int)slices) return;
    const tr_ownership w = {
        .slices = (int)slices, .slice = t->local_rank, .parts = t->nodes, .part = t->node};
    out->wire_network = cost_exchange(p, &w, o->wire_bf16, o->shard, out);
    out->gradients += tr_exchange_floats(t->nodes) * sizeof(float);
}

static void cost_private(const tr_topology *t, const tr_params_options *p,
                         const tr_reducer_options *o, size_t bytes, tr_reducer_cost *out)
{
    const bool device = tr_on_device(p), half = o->wire_bf16 && t->nodes > 1 && !device;
    const size_t size = (size_t)t->size, ranks = (size_t)t->local_size;
    const tr_ownership w = {.slices = 1, .parts = t->size, .part = t->rank};
    /* what a bandwidth-optimal all-reduce sends, or a reduce-scatter and an all-gather */
    size_t all = 2 * leaves(bytes, size);
    if (device && !o->nccl) {
        out->pinned = bytes;
        out->gradients += bytes;
    }
    if ((half || o->shard) && !(device && o->nccl)) {
        const size_t buffers = tr_exchange_floats(t->size) * sizeof(float);
        out->gradients += buffers;
        if (device) out->pinned += buffers;
        all = cost_exchange(p, &w, half, o->shard, out);
    } else if (o->shard) {
        for (size_t b = 0; b < p->nbuckets; b++)
            out->wire_weights +=
                tr_even_nbytes(p, p->buckets[b], t->size) * (size - 1) +
                tr_range_count(tr_even_rest(p->buckets[b], t->size)) * sizeof(float);
        all = leaves(bytes, size) + out->wire_weights;
    }
    /* NCCL's rings leave a node once, each by another rank; MPI's may do so at every one. */
    if (device && o->nccl && t->nodes > 1)
        out->wire_network = all / ranks, out->wire_node = all - all / ranks;
    else if (t->nodes > 1)
        out->wire_network = all;
    else
        out->wire_node = all;
}

void tr_reducer_cost_of(const tr_topology *t, const tr_params_options *p,
                        const tr_reducer_options *o, tr_reducer_cost *out)
{
    const size_t bytes = tr_params_learned(p) * sizeof(float);
    const tr_ownership own = tr_ownership_of(t, p, o);
    *out = (tr_reducer_cost){.weights = p->count * sizeof(float), .gradients = bytes};
    out->slots = tr_owned_count(&own, p->buckets, p->nbuckets) * sizeof(float) * (size_t)p->nslots;
    if (t->size <= 1) return;
    if (t->shared && !tr_on_device(p))
        cost_shared(t, p, o, bytes, out);
    else
        cost_private(t, p, o, bytes, out);
}
