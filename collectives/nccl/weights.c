/* Updated weights to all ranks: an all-gather a bucket, of equal shares, and a broadcast of the few
 * elements that these leave over.
 *
 * Weights that kernels read as 16-bit copies alone go rounded to these. Then a bucket's shares
 * differ in bytes, and NCCL takes equal ones: each is a message as long as the longest. Messages
 * are packed where the bucket's gradients lay, which nothing needs between the update and the next
 * backward; then zeroed, as padding between rows, which no op writes, counts in the sum of squares:
 *
 *     gradients of a bucket   [ rank 0's message | rank 1's | rank 2's | ............... ]
 *
 * A bucket of which some share has nothing to round goes in place, in float32. */
#include "collectives/nccl/internal.h"

struct tr_nccl_weights {
    const tr_reducer *r;
    size_t *messages;    /* [nbuckets] bytes of one; 0: in place */
    void *pack, *unpack; /* own weights into messages, others' out of them; NULL: there are none */
};

/* Parts of messages in the making: counted, then listed. */
typedef struct {
    const tr_params *p;
    tr_wire_part *parts; /* NULL: they are counted */
    size_t n;
    char *wire; /* the next part's */
} listing;

static void add_part(void *ctx, tr_range run, bool rounded)
{
    listing *m = ctx;
    const tr_dtype type = rounded ? m->p->o.type : TR_F32;
    if (m->parts)
        m->parts[m->n] =
            (tr_wire_part){m->p->weights + run.begin, m->wire, tr_range_count(run), type};
    m->n++;
    m->wire += tr_range_count(run) * tr_dtype_size(type);
}

static char *messages_at(const tr_nccl_weights *w, size_t b)
{
    const tr_params *p = w->r->p;
    return (char *)(p->grads + p->o.buckets[b].begin);
}

/* Those of our own shares, or of all others'. */
static size_t list_parts(const tr_nccl_weights *w, bool own, tr_wire_part *parts)
{
    const tr_params *p = w->r->p;
    const tr_topology *t = &w->r->c->topology;
    listing m = {.p = p, .parts = parts};
    for (size_t b = 0; b < p->o.nbuckets; b++)
        for (int k = 0; w->messages[b] && k < t->size; k++) {
            if ((k == t->rank) != own) continue;
            m.wire = messages_at(w, b) + (size_t)k * w->messages[b];
            tr_wire_runs(&p->o, tr_even_share(p->o.buckets[b], k, t->size), add_part, &m);
        }
    return m.n;
}

static tr_status open_wire(const tr_nccl_weights *w, bool own, void **out)
{
    const tr_params_options *o = &w->r->p->o;
    const size_t n = list_parts(w, own, NULL);
    if (n == 0) return TR_OK;
    tr_wire_part *parts = tr_alloc(TR_MEM_OTHER, n, sizeof *parts);
    if (!parts) return tr_last_status();
    list_parts(w, own, parts);
    const tr_status st = o->backend->training->wire_open(o->backend_ctx, parts, n, out);
    tr_free(parts);
    return st;
}

tr_status tr_nccl_weights_open(const tr_reducer *r, tr_nccl_weights **out)
{
    tr_status st = TR_OK;
    const tr_params_options *o = &r->p->o;
    const int ranks = r->c->topology.size;
    tr_nccl_weights *w = TR_NEW(TR_MEM_OTHER, tr_nccl_weights);
    if (!w) return tr_last_status();
    w->r = r;
    w->messages = tr_alloc(TR_MEM_OTHER, o->nbuckets, sizeof *w->messages);
    TR_HAVE(w->messages);
    for (size_t b = 0; b < o->nbuckets; b++) {
        const size_t nbytes = tr_even_nbytes(o, o->buckets[b], ranks);
        const size_t whole = tr_range_count(tr_even_share(o->buckets[b], 0, ranks)) * sizeof(float);
        if (nbytes < whole) w->messages[b] = nbytes;
    }
    TR_TRY(open_wire(w, true, &w->pack));
    TR_TRY(open_wire(w, false, &w->unpack));
out:
    if (st != TR_OK) {
        tr_nccl_weights_close(w);
        return st;
    }
    *out = w;
    return TR_OK;
}

void tr_nccl_weights_close(tr_nccl_weights *w)
{
    if (!w) return;
    const tr_device_training *training = w->r->p->o.backend->training;
    if (w->pack) training->wire_close(w->pack);
    if (w->unpack) training->wire_close(w->unpack);
    tr_free(w->messages);
    tr_free(w);
}

tr_status tr_nccl_weights_pack(const tr_nccl_weights *w)
{
    return w->pack ? w->r->p->o.backend->training->wire_run(w->pack, false) : TR_OK;
}

tr_status tr_nccl_weights_unpack(const tr_nccl_weights *w)
{
    const tr_params *p = w->r->p;
    const size_t ranks = (size_t)w->r->c->topology.size;
    tr_status st = TR_OK;
    if (!w->unpack) return TR_OK;
    TR_TRY(p->o.backend->training->wire_run(w->unpack, true));
    for (size_t b = 0; b < p->o.nbuckets; b++)
        if (w->messages[b])
            TR_TRY(p->o.backend->memory->zero(p->o.backend_ctx, messages_at(w, b),
                                              ranks * w->messages[b]));
out:
    return st;
}

tr_status tr_nccl_weights_gather(const tr_nccl_weights *w, const tr_nccl *nccl, size_t b,
                                 cudaStream_t stream)
{
    tr_status st = TR_OK;
    const tr_topology *t = &w->r->c->topology;
    const tr_range bucket = w->r->p->o.buckets[b], rest = tr_even_rest(bucket, t->size);
    const tr_range mine = tr_even_share(bucket, t->rank, t->size);
    float *weights = w->r->p->weights;
    char *all = w->messages[b] ? messages_at(w, b) : (char *)(weights + bucket.begin);
    const size_t n = w->messages[b] ? w->messages[b] : tr_range_count(mine) * sizeof(float);
    if (n)
        TR_TRY(tr_nccl_check(
            nccl, ncclAllGather(all + (size_t)t->rank * n, all, n, ncclUint8, nccl->comm, stream),
            "ncclAllGather"));
    if (tr_range_count(rest))
        TR_TRY(tr_nccl_check(nccl,
                             ncclBroadcast(weights + rest.begin, weights + rest.begin,
                                           tr_range_count(rest), ncclFloat32,
                                           tr_even_rest_owner(b, t->size), nccl->comm, stream),
                             "ncclBroadcast"));
out:
    return st;
}
