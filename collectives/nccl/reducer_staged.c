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
 * The host moves all of it on, in polls between kernels, and waits in finish: so nothing here can
 * be recorded. Twice the gradients cross the bus a step, and host memory holds them once. That all
 * ranks end with the same bits rests on MPI, see reducer_mpi.c. */
#include "collectives/nccl/internal.h"

#include <string.h>

typedef struct {
    tr_side down, up;
    cudaEvent_t *copied; /* [nbuckets] */
    float *host;         /* pinned, [count] */
    MPI_Request *requests;
    size_t *ends; /* [nbuckets] pieces up to and with this bucket */
    size_t npieces, arrived;
    int posted;  /* buckets in MPI's hands, or past them */
    char *piece; /* [1 + ranks][nbytes]: gathers pass through it */
    size_t piece_size;
    double *tally;
    size_t tally_size;
} tr_staged;

static size_t nbytes_of(const tr_reducer *r, int b)
{
    return (r->buckets[b].end - r->buckets[b].begin) * sizeof(float);
}

static tr_status staged_ready(tr_reducer *r, int bucket)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    if (r->comm == MPI_COMM_NULL) return TR_OK;
    TR_TRY(tr_side_fork(&s->down));
    for (int b = r->ready + 1; b <= bucket; b++) {
        size_t at = r->buckets[b].begin;
        if (nbytes_of(r, b))
            TR_SIDE_TRY(cudaMemcpyAsync(s->host + at, r->grads + at, nbytes_of(r, b),
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
    size_t piece = b ? s->ends[b - 1] : 0, at = r->buckets[b].begin, limit = r->c->job->mpi_limit;
    for (; piece < s->ends[b]; piece++) {
        size_t left = r->buckets[b].end - at;
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

static tr_status staged_poll(tr_reducer *r, bool *moved)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    if (r->comm == MPI_COMM_NULL) {
        r->current = r->ready + 1;
        return TR_OK;
    }
    TR_TRY(post_copied(r, moved));
    while (r->current < s->posted) {
        int flag = 1, b = r->current;
        for (; s->arrived < s->ends[b]; s->arrived++) {
            TR_MPI_TRY(MPI_Test(&s->requests[s->arrived], &flag, MPI_STATUS_IGNORE));
            if (!flag) return TR_OK;
            *moved = true;
        }
        size_t at = r->buckets[b].begin;
        if (nbytes_of(r, b))
            TR_SIDE_TRY(cudaMemcpyAsync(r->grads + at, s->host + at, nbytes_of(r, b),
                                        cudaMemcpyHostToDevice, s->up.stream));
        r->current++;
        *moved = true;
    }
out:
    return st;
}

static bool staged_done(const tr_reducer *r)
{
    return r->current == (int)r->o.nbuckets;
}

/* Room that only grows: in the first step, for most. */
static tr_status reserve(void **p, size_t *size, size_t nbytes)
{
    if (nbytes <= *size) return TR_OK;
    void *more = tr_realloc(TR_MEM_OTHER, *p, nbytes, 1);
    if (!more) return tr_last_error()->status;
    *p = more;
    *size = nbytes;
    return TR_OK;
}

static tr_status sum_tally(tr_reducer *r, double *tally, size_t n)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_backend *b = r->o.backend;
    void *ctx = r->o.backend_ctx, *host = s->tally;
    if (!n || r->comm == MPI_COMM_NULL) return TR_OK;
    TR_TRY(reserve(&host, &s->tally_size, n * sizeof(double)));
    s->tally = host;
    TR_TRY(b->memory->download(ctx, s->tally, tally, n * sizeof(double)));
    TR_TRY(tr_comm_all_reduce(r->c, s->tally, n, TR_F64));
    TR_TRY(b->memory->upload(ctx, tally, s->tally, n * sizeof(double)));
out:
    return st;
}

static tr_status staged_finish(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    TR_TRY(sum_tally(r, tally, ntally));
    if (r->comm != MPI_COMM_NULL) TR_TRY(tr_side_join(&s->up));
    TR_TRY(
        r->o.backend->training->sum_squares(r->o.backend_ctx, r->grads, r->o.count, sum_squares));
    s->posted = 0;
    s->arrived = 0;
out:
    return st;
}

static tr_status staged_gather(tr_reducer *r, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    const tr_backend *b = r->o.backend;
    void *ctx = r->o.backend_ctx, *room = s->piece;
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

static tr_status staged_publish(tr_reducer *r)
{
    (void)r; /* weights are private and updated alike everywhere */
    return TR_OK;
}

static void staged_close(tr_reducer *r)
{
    tr_staged *s = r->state;
    if (s) {
        tr_side_close(&s->down);
        tr_side_close(&s->up);
        for (size_t b = 0; s->copied && b < r->o.nbuckets; b++)
            if (s->copied[b]) cudaEventDestroy(s->copied[b]);
        if (!tr_comm_broken(r->c)) { /* else MPI may still write into it */
            r->o.backend->memory->host_free(r->o.backend_ctx, s->host);
            tr_free(s->requests);
        }
        tr_free(s->copied);
        tr_free(s->ends);
        tr_free(s->piece);
        tr_free(s->tally);
    }
    tr_side_arrays_free(r);
    tr_free(s);
    r->state = NULL;
    r->ops = NULL;
}

static const tr_reducer_ops ops = {.name = "MPI through host memory",
                                   .ready = staged_ready,
                                   .poll = staged_poll,
                                   .done = staged_done,
                                   .publish = staged_publish,
                                   .close = staged_close,
                                   .finish = staged_finish,
                                   .gather = staged_gather};

static tr_status allocate(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_staged *s = r->state;
    size_t n = r->o.nbuckets;
    TR_TRY(tr_side_arrays(r));
    if (r->c->topology.size == 1) return TR_OK;
    TR_TRY(tr_side_open(r, &s->down));
    TR_TRY(tr_side_open(r, &s->up));
    s->ends = tr_alloc(TR_MEM_OTHER, n, sizeof(*s->ends));
    if (!s->ends) return tr_last_error()->status;
    for (size_t b = 0; b < n; b++) {
        s->npieces += tr_pieces(r->buckets[b].end - r->buckets[b].begin, r->c->job->mpi_limit);
        s->ends[b] = s->npieces;
    }
    s->requests = tr_alloc(TR_MEM_OTHER, s->npieces, sizeof(MPI_Request));
    s->copied = tr_alloc(TR_MEM_OTHER, n, sizeof(cudaEvent_t));
    s->host = r->o.backend->memory->host_alloc(r->o.backend_ctx, TR_MEM_GRADIENTS,
                                               r->o.count * sizeof(float));
    if (!s->requests || !s->copied || !s->host) return tr_last_error()->status;
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
    if (r->c->topology.size == 1) snprintf(r->name, sizeof(r->name), "one rank");
    st = s ? allocate(r) : tr_last_error()->status;
    TR_TRY(tr_agree(r->c, st, NULL));
    if (r->c->topology.size > 1) { /* of its own: reductions and gathers may come in any order */
        TR_MPI_TRY(MPI_Comm_dup(r->c->comm, &r->comm));
        TR_MPI_TRY(MPI_Comm_set_errhandler(r->comm, MPI_ERRORS_RETURN));
    }
out:
    return st;
}
