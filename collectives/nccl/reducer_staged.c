/* Gradients of GPUs without NCCL: a bucket that backward has made is copied to pinned host memory
 * on a stream beside it, goes through MPI_Iallreduce there (in pieces below MPI's int), and is
 * copied back on a third stream:
 *
 *   compute   ... g1 | ... g0 |                       sum of squares, update
 *                   \         \                      /
 *   down             copy 0    copy 1               /
 *   host                 MPI_Iallreduce 0, 1       /
 *   up                               copy 0, copy 1
 *
 * Sharded: the exchange takes MPI_Iallreduce's place, only a rank's own sums go up again, and
 * publish takes the weights the same way.
 *
 * The host moves all of it on, in polls between kernels, and waits in finish: so nothing here can
 * be recorded. Twice the gradients cross the bus a step, and host memory holds them once. That all
 * ranks end with the same bits rests on MPI, see reducer/mpi.c. */
#include "collectives/nccl/internal.h"

#include <string.h>

typedef struct {
    tr_side down, up;
    cudaEvent_t *copied; /* [nbuckets] */
    float *host;         /* pinned, [learned] */
    MPI_Request *requests;
    size_t *ends; /* [nbuckets] pieces up to and with this bucket */
    size_t npieces, arrived;
    int posted;  /* buckets in MPI's hands, or past them */
    char *piece; /* [1 + ranks][nbytes]: gathers pass through it */
    size_t piece_size;
    double *tally;
    size_t tally_size;
    tr_exchange *exchange; /* the optimizer is sharded: in place of MPI_Iallreduce, on `host` */
} tr_staged;

static size_t nbytes_of(const tr_reducer *r, int b)
{
    return (r->p->o.buckets[b].end - r->p->o.buckets[b].begin) * sizeof(float);
}

static tr_status staged_ready(tr_reducer *r, int bucket)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    if (r->comm == MPI_COMM_NULL) return TR_OK;
    TR_TRY(tr_side_fork(&s->down));
    for (int b = r->ready + 1; b <= bucket; b++) {
        size_t at = r->p->o.buckets[b].begin;
        if (nbytes_of(r, b))
            TR_SIDE_TRY(cudaMemcpyAsync(s->host + at, r->p->grads + at, nbytes_of(r, b),
                                        cudaMemcpyDeviceToHost, s->down.stream));
        TR_SIDE_TRY(cudaEventRecord(s->copied[b], s->down.stream));
    }
out:
    return st;
}

static tr_status post(tr_reducer *r, int b)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    if (s->exchange) {
        tr_exchange_submit(s->exchange, (size_t)b + 1);
        return TR_OK;
    }
    size_t piece = b ? s->ends[b - 1] : 0, at = r->p->o.buckets[b].begin,
           limit = r->c->job->mpi_limit;
    for (; piece < s->ends[b]; piece++) {
        size_t left = r->p->o.buckets[b].end - at;
        int count;
        TR_TRY(tr_mpi_int(left < limit ? left : limit, &count));
        TR_MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, s->host + at, count, MPI_FLOAT, MPI_SUM, r->comm,
                                  &s->requests[piece]));
        at += (size_t)count;
    }
out:
    return st;
}

/* Buckets whose copies have come go to MPI, in order: the same on every rank. */
static tr_status post_copied(tr_reducer *r, bool *moved)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    for (; s->posted <= r->ready; s->posted++) {
        cudaError_t e = cudaEventQuery(s->copied[s->posted]);
        if (e == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* or it would be taken for a later call's */
            break;
        }
        TR_TRY(tr_side_check(e, "cudaEventQuery"));
        TR_TRY(post(r, s->posted));
        *moved = true;
    }
out:
    return st;
}

/* Sums that are this rank's go back to the device. */
static tr_status copy_back(tr_reducer *r, tr_range bucket)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_params *p = r->p;
    tr_range part;
    size_t slot;
    for (size_t i = 0; i < p->nowned; i++)
        if (tr_params_part(p, i, bucket, &part, &slot))
            TR_SIDE_TRY(cudaMemcpyAsync(p->grads + part.begin, s->host + part.begin,
                                        tr_range_count(part) * sizeof(float),
                                        cudaMemcpyHostToDevice, s->up.stream));
out:
    return st;
}

/* Is the next bucket reduced? */
static tr_status look(tr_reducer *r, bool *is, bool *moved)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    *is = s->exchange && tr_exchange_done(s->exchange) > (size_t)r->current;
    if (s->exchange) return TR_OK;
    for (int flag = 1; s->arrived < s->ends[r->current]; s->arrived++) {
        TR_MPI_TRY(MPI_Test(&s->requests[s->arrived], &flag, MPI_STATUS_IGNORE));
        if (!flag) return TR_OK;
        *moved = true;
    }
    *is = true;
out:
    return st;
}

static tr_status staged_poll(tr_reducer *r, bool *moved)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    if (r->comm == MPI_COMM_NULL) {
        r->current = r->ready + 1;
        return TR_OK;
    }
    TR_TRY(post_copied(r, moved));
    if (s->exchange) TR_TRY(tr_exchange_poll(s->exchange, moved));
    while (r->current < s->posted) {
        bool is;
        TR_TRY(look(r, &is, moved));
        if (!is) break;
        TR_TRY(copy_back(r, r->p->o.buckets[r->current]));
        r->current++;
        *moved = true;
    }
out:
    return st;
}

static bool staged_done(const tr_reducer *r)
{
    return r->current == (int)r->p->o.nbuckets;
}

/* Room that only grows: in the first step, for most. */
static tr_status reserve(void **p, size_t *size, size_t nbytes)
{
    if (nbytes <= *size) return TR_OK;
    void *more = tr_realloc(TR_MEM_OTHER, *p, nbytes, 1);
    if (!more) return tr_last_status();
    *p = more;
    *size = nbytes;
    return TR_OK;
}

/* With the sum of squares behind it, where the ranks have the parts of it. */
static tr_status sum_tally(tr_reducer *r, double *tally, size_t n, double *sum_squares)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_backend *b = r->p->o.backend;
    void *ctx = r->p->o.backend_ctx, *host = s->tally;
    if (r->comm == MPI_COMM_NULL || (!n && !s->exchange)) return TR_OK;
    TR_TRY(reserve(&host, &s->tally_size, (n + 1) * sizeof(double)));
    s->tally = host;
    if (n) TR_TRY(b->memory->download(ctx, s->tally, tally, n * sizeof(double)));
    s->tally[n] = s->exchange ? tr_exchange_squares(s->exchange) : 0;
    TR_TRY(tr_comm_all_reduce(r->c, s->tally, n + 1, TR_F64));
    if (n) TR_TRY(b->memory->upload(ctx, tally, s->tally, n * sizeof(double)));
    if (s->exchange) TR_TRY(b->memory->upload(ctx, sum_squares, &s->tally[n], sizeof(double)));
out:
    return st;
}

static tr_status staged_finish(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_params *p = r->p;
    TR_TRY(sum_tally(r, tally, ntally, sum_squares));
    if (r->comm != MPI_COMM_NULL) TR_TRY(tr_side_join(&s->up));
    if (s->exchange)
        tr_exchange_rewind(s->exchange);
    else
        TR_TRY(p->o.backend->training->sum_squares(p->o.backend_ctx, p->grads,
                                                   tr_params_learned(&p->o), sum_squares));
    s->posted = 0;
    s->arrived = 0;
out:
    return st;
}

static tr_status staged_sum(tr_reducer *r, double *values, size_t count)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_backend *b = r->p->o.backend;
    void *ctx = r->p->o.backend_ctx, *room = s->piece;
    TR_TRY(reserve(&room, &s->piece_size, count * sizeof *values));
    s->piece = room;
    TR_TRY(b->memory->download(ctx, room, values, count * sizeof *values));
    TR_TRY(tr_comm_all_reduce(r->c, room, count, TR_F64));
    TR_TRY(b->memory->upload(ctx, values, room, count * sizeof *values));
out:
    return st;
}

static tr_status staged_gather(tr_reducer *r, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_backend *b = r->p->o.backend;
    void *ctx = r->p->o.backend_ctx, *room = s->piece;
    tr_comm *gatherers = tr_reducer_gatherers(r);
    size_t ranks = (size_t)gatherers->topology.size, total;
    if (!nbytes) return TR_OK;
    if (ranks == 1) return b->memory->copy(ctx, recv, send, nbytes);
    if (!tr_mul_size(nbytes, ranks + 1, &total))
        return TR_FAIL(TR_MEMORY, "a gather of %zu bytes from %zu ranks", nbytes, ranks);
    TR_TRY(reserve(&room, &s->piece_size, total));
    s->piece = room;
    TR_TRY(b->memory->download(ctx, s->piece, send, nbytes));
    TR_TRY(tr_comm_all_gather(gatherers, s->piece, s->piece + nbytes, nbytes));
    TR_TRY(b->memory->upload(ctx, recv, s->piece + nbytes, nbytes * ranks));
out:
    return st;
}

/* Weights are private. Where every rank owns everything they were updated alike everywhere; else
 * they pass through the gradients' host memory, which nothing needs until the next backward. */
static tr_status staged_publish(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_params *p = r->p;
    const tr_backend *b = p->o.backend;
    if (!s->exchange) return TR_OK;
    TR_TRY(tr_device_finish(b, p->o.backend_ctx)); /* sums on their way to the device are there */
    for (size_t i = 0; i < p->nowned; i++) {
        const size_t at = p->owned[i].begin, nbytes = tr_range_count(p->owned[i]) * sizeof(float);
        TR_TRY(b->memory->download(p->o.backend_ctx, s->host + at, p->weights + at, nbytes));
    }
    TR_TRY(tr_reducer_exchange_weights(r, s->exchange, s->host));
    TR_TRY(b->memory->upload(p->o.backend_ctx, p->weights, s->host,
                             tr_params_learned(&p->o) * sizeof(float)));
out:
    return st;
}

static void staged_close(tr_reducer *r)
{
    tr_staged *s = r->state;
    if (s) {
        tr_side_close(&s->down);
        tr_side_close(&s->up);
        tr_exchange_close(s->exchange, tr_comm_broken(r->c));
        for (size_t b = 0; s->copied && b < r->p->o.nbuckets; b++)
            if (s->copied[b]) cudaEventDestroy(s->copied[b]);
        if (!tr_comm_broken(r->c)) { /* else MPI may still write into it */
            r->p->o.backend->memory->host_free(r->p->o.backend_ctx, s->host);
            tr_free(s->requests);
        }
        tr_free(s->copied);
        tr_free(s->ends);
        tr_free(s->piece);
        tr_free(s->tally);
    }
    tr_free(s);
    r->state = NULL;
    r->ops = NULL;
}

static const tr_exchange *staged_exchange(const tr_reducer *r)
{
    return ((const tr_staged *)r->state)->exchange;
}

static const tr_reducer_ops ops = {.name = "MPI through host memory",
                                   .ready = staged_ready,
                                   .poll = staged_poll,
                                   .done = staged_done,
                                   .publish = staged_publish,
                                   .exchange = staged_exchange,
                                   .close = staged_close,
                                   .finish = staged_finish,
                                   .sum = staged_sum,
                                   .gather = staged_gather};

static tr_status allocate(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    size_t n = r->p->o.nbuckets;
    if (r->c->topology.size == 1) return TR_OK;
    TR_TRY(tr_side_open(r, &s->down));
    TR_TRY(tr_side_open(r, &s->up));
    s->ends = tr_alloc(TR_MEM_OTHER, n, sizeof *s->ends);
    if (!s->ends) return tr_last_status();
    for (size_t b = 0; b < n; b++) {
        s->npieces +=
            tr_pieces(r->p->o.buckets[b].end - r->p->o.buckets[b].begin, r->c->job->mpi_limit);
        s->ends[b] = s->npieces;
    }
    s->requests = tr_alloc(TR_MEM_OTHER, s->npieces, sizeof(MPI_Request));
    s->copied = tr_alloc(TR_MEM_OTHER, n, sizeof(cudaEvent_t));
    s->host = r->p->o.backend->memory->host_alloc(r->p->o.backend_ctx, TR_MEM_GRADIENTS,
                                                  tr_params_learned(&r->p->o) * sizeof(float));
    if (!s->requests || !s->copied || !s->host) return tr_last_status();
    for (size_t b = 0; b < n; b++)
        TR_SIDE_TRY(cudaEventCreateWithFlags(&s->copied[b], cudaEventDisableTiming));
out:
    return st;
}

tr_status tr_reducer_staged_init(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state = TR_NEW(TR_MEM_OTHER, tr_staged);
    r->ops = &ops;
    if (r->c->topology.size == 1) snprintf(r->name, sizeof r->name, "one rank");
    st = s ? allocate(r) : tr_last_status();
    TR_TRY(tr_agree(r->c, st, NULL));
    if (r->c->topology.size > 1) /* of its own: reductions and gathers may come in any order */
        TR_TRY(tr_comm_duplicate(r->c, &r->comm));
    if (r->o.shard && r->comm != MPI_COMM_NULL) {
        st = tr_exchange_open(r->comm, s->host, r->p->o.buckets, r->p->o.nbuckets,
                              (tr_exchange_options){.scatter = true, .weights = &r->p->o},
                              &s->exchange);
        TR_TRY(tr_agree(r->c, st, NULL));
    }
out:
    return st;
}
