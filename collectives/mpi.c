/* The small collectives over MPI, for ranks on several nodes and where memory cannot be shared. All
 * are nonblocking calls polled to their end, so that a missing peer is noticed; counts beyond MPI's
 * int go in pieces. Sums are added in rank order: the same bits everywhere. Small ones are gathered
 * and added by every rank; of bigger ones each rank adds a part, then all gather the parts: about
 * 2 count elements sent a rank, in place of (p - 1) count. */
#include "collectives/waiting/waiting.h"

#include <limits.h>
#include <string.h>

#define MOST_PART 1024 /* elements of a sum that a rank adds at once, see scratch_count */

tr_status tr_mpi_check(int rc, const char *what)
{
    if (rc == MPI_SUCCESS) return TR_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (MPI_Error_string(rc, text, &n) != MPI_SUCCESS) snprintf(text, sizeof text, "code %d", rc);
    return TR_FAIL(TR_MPI, "%.60s: %s", what, text);
}

tr_status tr_mpi_int(size_t n, int *out)
{
    *out = 0;
    if (n > INT_MAX) return TR_FAIL(TR_INTERNAL, "%zu does not fit MPI's int", n);
    *out = (int)n;
    return TR_OK;
}

tr_status tr_mpi_all(MPI_Comm comm, bool ok, bool *out)
{
    int mine = ok, all = 0;
    tr_status st =
        tr_mpi_check(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
    *out = st == TR_OK && all;
    return st;
}

tr_status tr_mpi_have(MPI_Comm comm, bool have, const char *what)
{
    tr_status st = TR_OK;
    bool all = false;
    TR_TRY(tr_mpi_all(comm, have, &all));
    TR_HAVE(have);
    TR_NEED(all, TR_MEMORY, "another rank has no memory for %s", what);
out:
    return st;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static tr_status finish(tr_comm *c, MPI_Request *request, const char *what)
{
    tr_wait w;
    tr_wait_init(&w, c, what);
    w.mpi = true;
    return tr_wait_request(&w, request, MPI_STATUS_IGNORE);
}

static MPI_Datatype wire_type(tr_dtype type)
{
    return type == TR_F32 ? MPI_FLOAT : type == TR_F64 ? MPI_DOUBLE : MPI_INT64_T;
}

/* Elements of a rank in one call of a sum: as many as the scratch holds from everybody. */
static size_t most_of(const tr_comm *c)
{
    return smaller(c->scratch_count, c->job->mpi_limit);
}

/* dst = the sum of the `n` elements that each rank has in the scratch. */
static void add_all(const tr_comm *c, void *dst, size_t n, tr_dtype type)
{
    const char *all = c->scratch;
    const size_t nbytes = n * tr_dtype_size(type);
    memcpy(dst, all, nbytes);
    for (int r = 1; r < c->topology.size; r++) tr_sum_into(dst, all + (size_t)r * nbytes, n, type);
}

static tr_status sum_small(tr_comm *c, char *v, size_t n, tr_dtype type)
{
    tr_status st = TR_OK;
    MPI_Datatype wire = wire_type(type);
    MPI_Request q;
    int count;
    TR_TRY(tr_mpi_int(n, &count));
    TR_MPI_TRY(MPI_Iallgather(v, count, wire, c->scratch, count, wire, c->comm, &q));
    TR_TRY(finish(c, &q, "all-reduce"));
    add_all(c, v, n, type);
out:
    return st;
}

/* Of `count` elements that go in as few calls as there must be, the most of one: all go in pieces
 * of so many, the last of which begins early enough. What it shares with the one before it goes
 * twice, and one of MPI's types does for all. */
static size_t piece_of(size_t count, size_t most)
{
    const size_t pieces = (count + most - 1) / most;
    return pieces ? (count + pieces - 1) / pieces : 0;
}

/* How a rank's block lies among the others' in memory, for MPI: `count` of `type`. */
typedef struct {
    MPI_Datatype type;
    int count;
} block;

static void block_close(block *b)
{
    if (b->type != MPI_DATATYPE_NULL && b->type != MPI_BYTE) MPI_Type_free(&b->type);
}

/* Blocks of `n` bytes that begin `apart` bytes from each other. b->type: MPI_DATATYPE_NULL. */
static tr_status block_open(block *b, size_t n, size_t apart)
{
    tr_status st = TR_OK;
    MPI_Datatype bytes = MPI_DATATYPE_NULL;
    TR_TRY(tr_mpi_int(n, &b->count));
    if (n == apart) {
        b->type = MPI_BYTE;
        return TR_OK;
    }
    TR_MPI_TRY(MPI_Type_contiguous(b->count, MPI_BYTE, &bytes));
    TR_MPI_TRY(MPI_Type_create_resized(bytes, 0, (MPI_Aint)apart, &b->type));
    TR_MPI_TRY(MPI_Type_commit(&b->type));
    b->count = 1;
out:
    if (bytes != MPI_DATATYPE_NULL) MPI_Type_free(&bytes);
    return st;
}

/* This rank's sums of `n` elements of every block of `send`. */
static tr_status scatter_sums(tr_comm *c, const void *send, const block *blocks, void *recv,
                              size_t n, tr_dtype type)
{
    tr_status st = TR_OK;
    MPI_Request q;
    int count;
    TR_TRY(tr_mpi_int(n * tr_dtype_size(type), &count));
    TR_MPI_TRY(
        MPI_Ialltoall(send, blocks->count, blocks->type, c->scratch, count, MPI_BYTE, c->comm, &q));
    TR_TRY(finish(c, &q, "reduce-scatter"));
    add_all(c, recv, n, type);
out:
    return st;
}

static tr_status mpi_reduce_scatter(tr_comm *c, const void *send, void *recv, size_t count,
                                    tr_dtype type)
{
    tr_status st = TR_OK;
    block blocks = {MPI_DATATYPE_NULL, 0};
    const size_t element = tr_dtype_size(type), n = piece_of(count, most_of(c));
    TR_TRY(block_open(&blocks, n * element, count * element));
    for (size_t at = 0; at < count; at += n) {
        at = smaller(at, count - n);
        TR_TRY(scatter_sums(c, (const char *)send + at * element, &blocks,
                            (char *)recv + at * element, n, type));
    }
out:
    block_close(&blocks);
    return st;
}

static tr_status gather(tr_comm *c, const void *send, size_t n, void *recv, const block *blocks)
{
    tr_status st = TR_OK;
    MPI_Request q;
    int count;
    TR_TRY(tr_mpi_int(n, &count));
    TR_MPI_TRY(
        MPI_Iallgather(send, count, MPI_BYTE, recv, blocks->count, blocks->type, c->comm, &q));
    TR_TRY(finish(c, &q, "all-gather"));
out:
    return st;
}

static tr_status mpi_all_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    block blocks = {MPI_DATATYPE_NULL, 0};
    const size_t n = piece_of(nbytes, c->job->mpi_limit);
    TR_TRY(block_open(&blocks, n, nbytes));
    for (size_t at = 0; at < nbytes; at += n) {
        at = smaller(at, nbytes - n);
        TR_TRY(gather(c, (const char *)send + at, n, (char *)recv + at, &blocks));
    }
out:
    block_close(&blocks);
    return st;
}

/* Of more elements than are gathered at once each rank adds a part; fewer of them than ranks cannot
 * be dealt. */
static tr_status mpi_all_reduce(tr_comm *c, void *v, size_t count, tr_dtype type)
{
    tr_status st = TR_OK;
    const size_t element = tr_dtype_size(type), ranks = (size_t)c->topology.size;
    for (size_t at = 0, n; at < count; at += n) {
        char *from = (char *)v + at * element;
        n = smaller(count - at, most_of(c));
        if (n == count - at || count - at < ranks) {
            TR_TRY(sum_small(c, from, n, type));
            continue;
        }
        double mine[MOST_PART];
        const size_t part = smaller(smaller((count - at) / ranks, most_of(c)), MOST_PART);
        const block whole = {MPI_BYTE, (int)(part * element)};
        n = part * ranks;
        TR_TRY(scatter_sums(c, from, &whole, mine, part, type));
        TR_TRY(gather(c, mine, part * element, from, &whole));
    }
out:
    return st;
}

static tr_status mpi_broadcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    tr_status st = TR_OK;
    for (size_t at = 0, n; at < nbytes; at += n) {
        MPI_Request q;
        int count;
        n = smaller(nbytes - at, c->job->mpi_limit);
        TR_TRY(tr_mpi_int(n, &count));
        TR_MPI_TRY(MPI_Ibcast((char *)buf + at, count, MPI_BYTE, root, c->comm, &q));
        TR_TRY(finish(c, &q, "broadcast"));
    }
out:
    return st;
}

static tr_status mpi_barrier(tr_comm *c)
{
    tr_status st = TR_OK;
    MPI_Request q;
    TR_MPI_TRY(MPI_Ibarrier(c->comm, &q));
    TR_TRY(finish(c, &q, "barrier"));
out:
    return st;
}

const tr_comm_ops tr_mpi_ops = {.name = "MPI",
                                .all_reduce = mpi_all_reduce,
                                .reduce_scatter = mpi_reduce_scatter,
                                .all_gather = mpi_all_gather,
                                .broadcast = mpi_broadcast,
                                .barrier = mpi_barrier};
