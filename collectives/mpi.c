/* The small collectives over MPI, for ranks on several nodes and where memory cannot be shared. All
 * are nonblocking calls polled to their end, so that a missing peer is noticed; counts beyond MPI's
 * int go in pieces. Sums are gathered and added in rank order by every rank: the same bits
 * everywhere. */
#include "collectives/internal.h"

#include <limits.h>

tr_status tr_mpi_check(int rc, const char *what)
{
    if (rc == MPI_SUCCESS) return TR_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (MPI_Error_string(rc, text, &n) != MPI_SUCCESS) snprintf(text, sizeof(text), "code %d", rc);
    return TR_FAIL(TR_MPI, "%.60s: %s", what, text);
}

tr_status tr_mpi_int(size_t n, int *out)
{
    *out = 0;
    if (n > INT_MAX) return TR_FAIL(TR_INTERNAL, "%zu does not fit MPI's int", n);
    *out = (int)n;
    return TR_OK;
}

tr_status tr_mpi_all(tr_comm *c, bool ok, bool *out)
{
    int mine = ok, all = 0;
    tr_status st =
        tr_mpi_check(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, c->world), "MPI_Allreduce");
    *out = st == TR_OK && all;
    return st;
}

static size_t piece_of(size_t left, size_t limit)
{
    return left < limit ? left : limit;
}

/* Gathers up to scratch_count 8-byte values a rank. */
static tr_status gather_values(tr_comm *c, const void *v, size_t n, MPI_Datatype type)
{
    tr_status st = TR_OK;
    MPI_Request q;
    int count;
    TR_TRY(tr_mpi_int(n, &count));
    TR_MPI_TRY(MPI_Iallgather(v, count, type, c->scratch, count, type, c->world, &q));
    TR_TRY(tr_wait_request(c, &q, "sum"));
out:
    return st;
}

static size_t values_a_call(const tr_comm *c)
{
    return piece_of(c->scratch_count, c->mpi_limit);
}

static tr_status mpi_sum(tr_comm *c, double *v, size_t count)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < count;) {
        size_t n = piece_of(count - at, values_a_call(c));
        TR_TRY(gather_values(c, v + at, n, MPI_DOUBLE));
        const double *all = c->scratch;
        for (size_t i = 0; i < n; i++) v[at + i] = all[i];
        for (int r = 1; r < c->topology.size; r++)
            for (size_t i = 0; i < n; i++) v[at + i] += all[(size_t)r * n + i];
        at += n;
    }
out:
    return st;
}

static tr_status mpi_sum_int(tr_comm *c, int64_t *v, size_t count)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < count;) {
        size_t n = piece_of(count - at, values_a_call(c));
        TR_TRY(gather_values(c, v + at, n, MPI_INT64_T));
        const uint64_t *all = c->scratch; /* unsigned: wraps instead of being undefined */
        for (size_t i = 0; i < n; i++) {
            uint64_t s = 0;
            for (int r = 0; r < c->topology.size; r++) s += all[(size_t)r * n + i];
            v[at + i] = (int64_t)s;
        }
        at += n;
    }
out:
    return st;
}

/* One piece of a gather whose ranks' results lie `nbytes` apart. */
static tr_status gather_piece(tr_comm *c, const char *send, char *recv, size_t n, size_t nbytes)
{
    tr_status st = TR_OK;
    MPI_Datatype bytes = MPI_DATATYPE_NULL, spread = MPI_DATATYPE_NULL;
    MPI_Request q;
    int count;
    TR_TRY(tr_mpi_int(n, &count));
    TR_MPI_TRY(MPI_Type_contiguous(count, MPI_BYTE, &bytes));
    TR_MPI_TRY(MPI_Type_create_resized(bytes, 0, (MPI_Aint)nbytes, &spread));
    TR_MPI_TRY(MPI_Type_commit(&spread));
    TR_MPI_TRY(MPI_Iallgather(send, count, MPI_BYTE, recv, 1, spread, c->world, &q));
    TR_TRY(tr_wait_request(c, &q, "gather"));
out:
    if (bytes != MPI_DATATYPE_NULL) MPI_Type_free(&bytes);
    if (spread != MPI_DATATYPE_NULL) MPI_Type_free(&spread);
    return st;
}

static tr_status mpi_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    if (nbytes > c->mpi_limit) {
        for (size_t at = 0; at < nbytes;) {
            size_t n = piece_of(nbytes - at, c->mpi_limit);
            TR_TRY(gather_piece(c, (const char *)send + at, (char *)recv + at, n, nbytes));
            at += n;
        }
        return TR_OK;
    }
    MPI_Request q;
    int count;
    TR_TRY(tr_mpi_int(nbytes, &count));
    if (!count) return TR_OK;
    TR_MPI_TRY(MPI_Iallgather(send, count, MPI_BYTE, recv, count, MPI_BYTE, c->world, &q));
    TR_TRY(tr_wait_request(c, &q, "gather"));
out:
    return st;
}

static tr_status mpi_bcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < nbytes;) {
        size_t n = piece_of(nbytes - at, c->mpi_limit);
        MPI_Request q;
        int count;
        TR_TRY(tr_mpi_int(n, &count));
        TR_MPI_TRY(MPI_Ibcast((char *)buf + at, count, MPI_BYTE, root, c->world, &q));
        TR_TRY(tr_wait_request(c, &q, "broadcast"));
        at += n;
    }
out:
    return st;
}

static tr_status mpi_barrier(tr_comm *c)
{
    tr_status st = TR_OK;
    MPI_Request q;
    TR_MPI_TRY(MPI_Ibarrier(c->world, &q));
    TR_TRY(tr_wait_request(c, &q, "barrier"));
out:
    return st;
}

const tr_comm_ops tr_mpi_ops = {"MPI", mpi_sum, mpi_sum_int, mpi_gather, mpi_bcast, mpi_barrier};
