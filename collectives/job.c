/* The job: what all communicators share. MPI's world, nodes and processes, limits, and what broke.
 * The first communicator opens it, groups split from it join, the last that is closed ends it. */
#include "collectives/waiting/waiting.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* Counts are kept well below INT_MAX: Open MPI multiplies some by the rank count internally. */
#define DEFAULT_MPI_LIMIT ((size_t)1 << 28)
#define DEFAULT_TIMEOUT   300.0

size_t tr_env_size(const char *name, size_t fallback)
{
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end = NULL;
    unsigned long long v = strtoull(text, &end, 10);
    return *end ? fallback : (size_t)v;
}

/* *Collective.* Whether every rank `has` its job. */
static tr_status meet(bool has)
{
    tr_status st = TR_OK;
    int ready = 0;
    TR_MPI_TRY(MPI_Initialized(&ready));
    TR_NEED(ready, TR_INTERNAL, "MPI is not initialized");
    TR_MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TR_TRY(tr_mpi_have(MPI_COMM_WORLD, has, "its job"));
out:
    return st;
}

static tr_status open_world(tr_job *j)
{
    tr_status st = TR_OK;
    TR_MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &j->world));
    TR_MPI_TRY(MPI_Comm_set_errhandler(j->world, MPI_ERRORS_RETURN));
    TR_TRY(tr_topology_find(j->world, -1, &j->topology, &j->local));
    TR_TRY(tr_peers_open(j));
    TR_TRY(tr_marks_open(j));
out:
    return st;
}

static tr_job *new_job(const tr_comm_options *o)
{
    tr_job *j = TR_NEW(TR_MEM_OTHER, tr_job);
    if (!j) return NULL;
    j->users = 1;
    j->mpi = o->mpi;
    j->shared_allowed = o->shared_allowed || o->shared_required;
    j->shared_required = o->shared_required;
    j->timeout = o->timeout > 0 ? o->timeout : DEFAULT_TIMEOUT;
    j->start_timeout = o->start_timeout > 0 ? o->start_timeout : j->timeout;
    j->watchdog = o->watchdog;
    j->stop_asked = o->stop_asked;
    j->world = j->local = MPI_COMM_NULL;
    j->heard = -1;
    j->mpi_limit = tr_env_size("TRIREME_MPI_LIMIT", DEFAULT_MPI_LIMIT); /* tests: show chunking */
    if (j->mpi_limit < 1 || j->mpi_limit > INT_MAX) j->mpi_limit = DEFAULT_MPI_LIMIT;
    j->topology = (tr_topology){.size = 1, .local_size = 1, .nodes = 1, .slices = 1, .most = 1};
    gethostname(j->topology.host, sizeof j->topology.host - 1);
    return j;
}

tr_status tr_job_open(const tr_comm_options *o, tr_job **out)
{
    tr_status st = TR_OK;
    tr_job *j = new_job(o);
    if (j) tr_guard_begin(j, "joining the others by MPI");
    if (o->mpi) TR_TRY(meet(j != NULL));
    TR_HAVE(j);
    if (o->mpi) TR_TRY(open_world(j));
out:
    if (j) tr_guard_end(j);
    if (st != TR_OK) {
        tr_job_leave(j);
        return st;
    }
    *out = j;
    return TR_OK;
}

void tr_job_leave(tr_job *j)
{
    if (!j || --j->users > 0) return;
    tr_guard_begin(j, "closing its communicators");
    tr_marks_close(j); /* looks at who shares notes */
    tr_notes_close(j);
    tr_peers_close(j);
    if (!j->broken) { /* freeing is collective: with a peer gone it would wait for ever */
        if (j->local != MPI_COMM_NULL) MPI_Comm_free(&j->local);
        if (j->world != MPI_COMM_NULL) MPI_Comm_free(&j->world);
    } /* nor is our farewell freed, which MPI may still read */
    tr_guard_end(j);
    tr_free(j);
}

tr_status tr_comm_warn_of_hooks(tr_comm *c)
{
    static const char *const names[] = {"TRIREME_FAKE_NODES", "TRIREME_MPI_LIMIT",
                                        "TRIREME_SHM_AVAILABLE", "TRIREME_MEM_AVAILABLE"};
    int64_t ranks[TR_COUNT(names)];
    char set[256] = "";
    int n = 0;
    for (size_t i = 0; i < TR_COUNT(names); i++) ranks[i] = getenv(names[i]) != NULL;
    const tr_status st = tr_comm_all_reduce(c, ranks, TR_COUNT(names), TR_I64);
    if (st != TR_OK || c->topology.rank != 0) return st;
    for (size_t i = 0; i < TR_COUNT(names); i++)
        if (ranks[i] > 0)
            n += snprintf(set + n, sizeof set - (size_t)n, "%s%s (%lld of %d ranks)",
                          n > 0 ? ", " : "", names[i], (long long)ranks[i], c->topology.size);
    if (n > 0)
        tr_log(
            TR_LOG_WARN,
            "the environment has %s: made for tests, it pretends other nodes, memory or messages "
            "than there are",
            set);
    return TR_OK;
}
