/* Messages between two ranks of a group, in pieces that fit MPI's int; polled like everything else,
 * so that a partner that died or does not come is noticed and named. */
#include "collectives/waiting/waiting.h"

typedef struct {
    const tr_comm *c;
    int partner;
    char what[48];
} message;

/* Only the partner is waited for. */
static bool arrived(const void *ctx, int local_rank)
{
    const message *m = ctx;
    return m->c->peers[local_rank].rank != m->c->ranks[m->partner];
}

static tr_status begin(tr_comm *c, message *m, const char *what, int partner, tr_wait *w)
{
    const tr_topology *t = &c->topology;
    if (partner < 0 || partner >= t->size || partner == t->rank)
        return TR_FAIL(TR_INTERNAL, "rank %d of %d: %s rank %d", t->rank, t->size, what, partner);
    *m = (message){.c = c, .partner = partner};
    snprintf(m->what, sizeof m->what, "%s rank %d", what, c->ranks[partner]);
    tr_wait_init(w, c, m->what);
    w->mpi = true;
    w->arrived = arrived;
    w->ctx = m;
    return TR_OK;
}

static size_t piece_of(const tr_comm *c, size_t left)
{
    return left < c->job->mpi_limit ? left : c->job->mpi_limit;
}

static tr_status send(tr_comm *c, const char *buf, size_t nbytes, int to)
{
    tr_status st = TR_OK;
    tr_wait w;
    message m;
    TR_TRY(begin(c, &m, "send to", to, &w));
    for (size_t at = 0, n; at < nbytes; at += n) {
        MPI_Request q;
        int count;
        n = piece_of(c, nbytes - at);
        TR_TRY(tr_mpi_int(n, &count));
        TR_MPI_TRY(MPI_Isend(buf + at, count, MPI_BYTE, to, TR_TAG_MESSAGE, c->comm, &q));
        TR_TRY(tr_wait_request(&w, &q, MPI_STATUS_IGNORE));
        tr_wait_restart(&w);
    }
out:
    return st;
}

static tr_status receive(tr_comm *c, char *buf, size_t nbytes, int from)
{
    tr_status st = TR_OK;
    tr_wait w;
    message m;
    TR_TRY(begin(c, &m, "receive from", from, &w));
    for (size_t at = 0, n; at < nbytes; at += n) {
        MPI_Request q;
        MPI_Status got;
        int count, came = 0;
        n = piece_of(c, nbytes - at);
        TR_TRY(tr_mpi_int(n, &count));
        TR_MPI_TRY(MPI_Irecv(buf + at, count, MPI_BYTE, from, TR_TAG_MESSAGE, c->comm, &q));
        TR_TRY(tr_wait_request(&w, &q, &got));
        TR_MPI_TRY(MPI_Get_count(&got, MPI_BYTE, &came));
        TR_NEED(came == count, TR_INTERNAL, "rank %d expected %d bytes from rank %d, which sent %d",
                c->job->topology.rank, count, c->ranks[from], came);
        tr_wait_restart(&w);
    }
out:
    return st;
}

tr_status tr_comm_send(tr_comm *c, const void *buf, size_t nbytes, int to)
{
    tr_status st = tr_comm_usable(c);
    return st == TR_OK ? tr_comm_done(c, send(c, buf, nbytes, to)) : st;
}

tr_status tr_comm_receive(tr_comm *c, void *buf, size_t nbytes, int from)
{
    tr_status st = tr_comm_usable(c);
    return st == TR_OK ? tr_comm_done(c, receive(c, buf, nbytes, from)) : st;
}
