/* The communicator: opening it over MPI or alone, choosing the implementation of the small
 * collectives, and the one-rank implementation, which has nothing to say to anybody. */
#include "collectives/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Counts are kept well below INT_MAX: Open MPI multiplies some by the rank count internally. */
#define DEFAULT_MPI_LIMIT ((size_t)1 << 28)
#define DEFAULT_TIMEOUT   300.0

static tr_status one_sum(tr_comm *c, double *v, size_t count)
{
    (void)c, (void)v, (void)count;
    return TR_OK;
}

static tr_status one_sum_int(tr_comm *c, int64_t *v, size_t count)
{
    (void)c, (void)v, (void)count;
    return TR_OK;
}

static tr_status one_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    (void)c;
    if (nbytes) memmove(recv, send, nbytes);
    return TR_OK;
}

static tr_status one_bcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    (void)c, (void)buf, (void)nbytes, (void)root;
    return TR_OK;
}

static tr_status one_barrier(tr_comm *c)
{
    (void)c;
    return TR_OK;
}

const tr_comm_ops tr_one_ops = {"one rank", one_sum,   one_sum_int,
                                one_gather, one_bcast, one_barrier};

size_t tr_env_size(const char *name, size_t fallback)
{
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end = NULL;
    unsigned long long v = strtoull(text, &end, 10);
    return *end ? fallback : (size_t)v;
}

/* Decides between shared memory and MPI; the same on every rank. */
static tr_status choose(tr_comm *c, int most)
{
    tr_status st = TR_OK;
    tr_topology *t = &c->topology;
    size_t room = sizeof(c->reason);
    if (t->size == 1) {
        c->ops = &tr_one_ops;
        snprintf(c->reason, room, "one rank");
        return TR_OK;
    }
    c->ops = &tr_mpi_ops;
    if (!c->shared_allowed) {
        snprintf(c->reason, room, "plain MPI, as asked");
        return TR_OK;
    }
    if (most == 1) {
        snprintf(c->reason, room, "%d nodes with one rank each: plain MPI", t->nodes);
        return TR_OK;
    }
    bool got = false;
    TR_TRY(tr_node_open(c, &got));
    if (!got) {
        TR_NEED(!c->shared_required, TR_MEMORY, "run.collectives is shared, but %s", c->reason);
        if (t->rank == 0) tr_log(TR_LOG_WARN, "%s: ranks talk through plain MPI", c->reason);
        return TR_OK;
    }
    t->shared = true;
    if (t->nodes == 1) {
        c->ops = &tr_shared_ops;
        snprintf(c->reason, room, "one node, %d ranks share memory", t->size);
    } else {
        snprintf(c->reason, room,
                 "%d nodes, up to %d ranks share memory on each (%d slices a bucket), MPI between",
                 t->nodes, most, t->slices);
    }
out:
    return st;
}

tr_status tr_comm_open(const tr_comm_options *o, tr_comm **out)
{
    tr_status st = TR_OK;
    tr_comm *c = TR_NEW(TR_MEM_OTHER, tr_comm);
    if (!c) return tr_last_error()->status;
    c->mpi = o->mpi;
    c->shared_allowed = o->shared_allowed || o->shared_required;
    c->shared_required = o->shared_required;
    c->timeout = o->timeout > 0 ? o->timeout : DEFAULT_TIMEOUT;
    c->world = c->local = MPI_COMM_NULL;
    c->heard = -1;
    c->ops = &tr_one_ops;
    c->topology.reason = c->reason;
    c->mpi_limit = tr_env_size("TRIREME_MPI_LIMIT", DEFAULT_MPI_LIMIT); /* tests: show chunking */
    if (c->mpi_limit < 1 || c->mpi_limit > INT_MAX) c->mpi_limit = DEFAULT_MPI_LIMIT;
    gethostname(c->topology.host, sizeof(c->topology.host) - 1);
    if (!c->mpi) {
        c->topology.size = c->topology.local_size = c->topology.nodes = c->topology.slices = 1;
        snprintf(c->reason, sizeof(c->reason), "one rank without MPI");
        *out = c;
        return TR_OK;
    }
    int ready = 0, most = 1;
    TR_MPI_TRY(MPI_Initialized(&ready));
    TR_NEED(ready, TR_INTERNAL, "MPI is not initialized");
    TR_MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TR_MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &c->world));
    TR_MPI_TRY(MPI_Comm_set_errhandler(c->world, MPI_ERRORS_RETURN));
    TR_TRY(tr_topology_find(c, &most));
    TR_TRY(tr_peers_open(c));
    size_t size = (size_t)c->topology.size;
    c->scratch_count = ((size_t)1 << 19) / size; /* 4 MB in all at most, 1024 doubles a rank */
    if (c->scratch_count > 1024) c->scratch_count = 1024;
    if (c->scratch_count < 64) c->scratch_count = 64;
    c->scratch = tr_alloc(TR_MEM_OTHER, c->scratch_count * size, sizeof(double));
    bool all = false;
    st = c->scratch ? TR_OK : tr_last_error()->status;
    TR_TRY(tr_mpi_all(c, st == TR_OK, &all));
    TR_NEED(all, TR_MEMORY, "some rank has no memory for its communicator");
    TR_TRY(choose(c, most));
out:
    if (st != TR_OK) {
        tr_comm_close(c);
        return st;
    }
    *out = c;
    return TR_OK;
}

void tr_comm_close(tr_comm *c)
{
    if (!c) return;
    tr_node_close(c);
    tr_peers_close(c);
    if (!c->broken) { /* freeing is collective: with a peer gone it would wait for ever */
        if (c->local != MPI_COMM_NULL) MPI_Comm_free(&c->local);
        if (c->world != MPI_COMM_NULL) MPI_Comm_free(&c->world);
    } /* nor is our farewell freed, which MPI may still read */
    tr_free(c->scratch);
    tr_free(c);
}

const tr_topology *tr_comm_topology(const tr_comm *c)
{
    return &c->topology;
}

bool tr_comm_broken(const tr_comm *c)
{
    return c->broken;
}

tr_status tr_comm_break(tr_comm *c, tr_status st)
{
    if (c->broken) return st;
    c->broken = true;
    c->failure = *tr_last_error();
    if (c->heard < 0)
        tr_farewell_send(c, &c->failure);
    else
        tr_node_first(c); /* nobody of this node is to say it, either */
    tr_node_give_up(c, &c->failure);
    return st;
}

/* Any failure inside a collective leaves the peers at another place than us: nothing can follow. */
static tr_status done(tr_comm *c, tr_status st)
{
    return st == TR_OK ? TR_OK : tr_comm_break(c, st);
}

static tr_status usable(const tr_comm *c)
{
    if (!c->broken) return TR_OK;
    tr_set_error(&c->failure);
    return c->failure.status;
}

tr_status tr_comm_sum(tr_comm *c, double *v, size_t count)
{
    tr_status st = usable(c);
    return st == TR_OK ? done(c, c->ops->sum(c, v, count)) : st;
}

tr_status tr_comm_sum_int(tr_comm *c, int64_t *v, size_t count)
{
    tr_status st = usable(c);
    return st == TR_OK ? done(c, c->ops->sum_int(c, v, count)) : st;
}

tr_status tr_comm_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    tr_status st = usable(c);
    return st == TR_OK ? done(c, c->ops->gather(c, send, recv, nbytes)) : st;
}

tr_status tr_comm_bcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    tr_status st = usable(c);
    if (st != TR_OK) return st;
    if (root < 0 || root >= c->topology.size)
        return TR_FAIL(TR_INTERNAL, "broadcast from rank %d of %d", root, c->topology.size);
    return done(c, c->ops->bcast(c, buf, nbytes, root));
}

tr_status tr_comm_barrier(tr_comm *c)
{
    tr_status st = usable(c);
    return st == TR_OK ? done(c, c->ops->barrier(c)) : st;
}

void tr_comm_abort(tr_comm *c, int exit_code)
{
    fflush(stdout);
    fflush(stderr);
    if (c && c->broken) { /* ending the job would cut off the one that says why */
        tr_node_spoken(c);
        tr_farewell_spoken(c);
    }
    if (c && c->mpi) MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}
