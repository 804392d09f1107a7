/* An NCCL communicator: set up over the ranks' own communicator, never blocking.
 *
 * With config.blocking = 0 every call returns at once, as a rule with ncclInProgress, and goes on
 * in a thread of NCCL's. Until ncclCommGetAsyncError stops saying ncclInProgress, neither may NCCL
 * be called again nor may anything be put into the streams involved (NCCL user guide, "Nonblocking
 * Group Operation"); the same holds while the stream is being recorded. So each call is settled at
 * once, under the communicator's timeout and with an eye on the peers: a rank that dies in the
 * middle of connecting is noticed and named, where a blocking call would hang for ever. It costs a
 * thread's start a call, and nothing at all once steps are replayed.
 *
 * Set-up can fail on one rank alone (two ranks on a GPU, no memory) while the others wait in it to
 * be connected. The one that fails tells all others by a message of no bytes, which they look for
 * while they wait; then all meet in an agreement and hear why. One that nobody looked for any more
 * is not taken for the next attempt's: that has a number of its own, in the tag. */
#include "collectives/nccl/internal.h"

#include <string.h>
#include <time.h>

enum { ATTEMPTS = 4096 };   /* tags of attempts before they begin again: MPI has 32,767 at least */
enum { ABORT_SECONDS = 5 }; /* closing waits so long for an abort to come through */

static const char *const names[] = {
    "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
    "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};

tr_status tr_nccl_check(const tr_nccl *n, ncclResult_t rc, const char *call)
{
    if (rc == ncclSuccess || rc == ncclInProgress) return TR_OK;
    int name = 0;
    while (call[name] && call[name] != '(') name++;
    const char *last = ncclGetLastError(n->comm);
    return TR_FAIL(TR_KERNEL, "%.*s(...): %s (%s)%s%.600s", name, call, ncclGetErrorString(rc),
                   (size_t)rc < TR_COUNT(names) ? names[rc] : "an unknown code",
                   last && *last ? ": " : "", last ? last : "");
}

#define TR_NCCL_TRY(n, call) TR_TRY(tr_nccl_check((n), (call), #call))

/* True when a peer says that it failed. */
static tr_status heard(tr_nccl *n, bool *is)
{
    tr_status st = TR_OK;
    MPI_Status from;
    int flag = 0;
    *is = false;
    if (n->c->topology.size == 1) return TR_OK;
    TR_MPI_TRY(MPI_Iprobe(MPI_ANY_SOURCE, n->tag, n->c->comm, &flag, &from));
    if (!flag) goto out;
    TR_MPI_TRY(MPI_Recv(NULL, 0, MPI_BYTE, from.MPI_SOURCE, n->tag, n->c->comm, &from));
    *is = true;
out:
    return st;
}

static tr_status settle(tr_nccl *n, ncclResult_t rc, const char *call, bool setup, bool *told)
{
    tr_status st = TR_OK;
    ncclResult_t state = ncclSuccess;
    tr_wait w;
    TR_TRY(tr_nccl_check(n, rc, call));
    tr_wait_init(&w, n->c, setup ? "NCCL communicator" : "start of an NCCL operation");
    while (n->comm) {
        TR_NCCL_TRY(n, ncclCommGetAsyncError(n->comm, &state));
        if (state != ncclInProgress) break;
        if (setup) TR_TRY(heard(n, told));
        if (setup && *told) break;
        if (n->watch) tr_watch_start(n->watch, &w);
        TR_TRY(tr_wait_turn(&w));
    }
    TR_TRY(tr_nccl_check(n, state, call));
out:
    return st;
}

tr_status tr_nccl_settle(tr_nccl *n, ncclResult_t rc, const char *call)
{
    return settle(n, rc, call, false, NULL);
}

tr_status tr_nccl_look(const tr_nccl *n)
{
    tr_status st = TR_OK;
    ncclResult_t state = ncclSuccess;
    if (!n->comm) return TR_OK;
    TR_NCCL_TRY(n, ncclCommGetAsyncError(n->comm, &state));
    TR_TRY(tr_nccl_check(n, state, "ncclCommGetAsyncError"));
out:
    return st;
}

static void tell_failure(tr_nccl *n)
{
    const tr_topology *t = &n->c->topology;
    for (int r = 0; r < t->size; r++) {
        MPI_Request q;
        if (r == t->rank) continue;
        if (MPI_Isend(NULL, 0, MPI_BYTE, r, n->tag, n->c->comm, &q) == MPI_SUCCESS)
            MPI_Request_free(&q);
    }
}

static tr_status connect(tr_nccl *n, int blocks)
{
    tr_status st = TR_OK;
    const tr_topology *t = &n->c->topology;
    struct {
        ncclUniqueId id;
        int attempt;
    } with;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool told = false;
    memset(&with, 0, sizeof with);
    with.attempt = n->c->job->attempts++ % ATTEMPTS;
    if (t->rank == 0) st = tr_nccl_check(n, ncclGetUniqueId(&with.id), "ncclGetUniqueId");
    TR_TRY(tr_agree(n->c, st, NULL));
    TR_TRY(tr_comm_broadcast(n->c, &with, sizeof with, 0));
    n->tag = TR_TAG_CONNECT + with.attempt;
    config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
    if (blocks > 0) config.maxCTAs = blocks;
#endif
    ncclResult_t rc = ncclCommInitRankConfig(&n->comm, t->size, with.id, t->rank, &config);
    st = settle(n, rc, "ncclCommInitRankConfig", true, &told);
    if (st != TR_OK && !tr_comm_broken(n->c)) tell_failure(n);
    if (st != TR_OK || told) tr_nccl_abort(n);
    TR_TRY(tr_agree(n->c, st, NULL));
    TR_NEED(!told, TR_INTERNAL, "a rank failed to set NCCL up, and none says so");
out:
    return st;
}

tr_status tr_nccl_open(tr_comm *c, int blocks, tr_nccl **out)
{
    tr_status st = TR_OK;
    tr_nccl *n = TR_NEW(TR_MEM_OTHER, tr_nccl);
    if (n) n->c = c;
    TR_TRY(tr_agree(c, n ? TR_OK : tr_last_status(), NULL));
    TR_TRY(connect(n, blocks));
out:
    if (st != TR_OK) {
        if (n) tr_nccl_abort(n);
        tr_nccl_close(n);
        return st;
    }
    *out = n;
    return TR_OK;
}

static void *abort_comm(void *comm)
{
    ncclCommAbort(comm);
    return NULL;
}

/* The device's kernels are told to leave at once; then the call frees the communicator, for which
 * it waits, non-blocking or not, for the last recording that holds its work to go. Whoever aborts
 * must not wait for that: a thread does. */
void tr_nccl_abort(tr_nccl *n)
{
    if (!n->comm) return;
    n->aborting = pthread_create(&n->aborter, NULL, abort_comm, n->comm) == 0;
    if (!n->aborting) n->c->job->lingers = true; /* left to the end of the process */
    n->comm = NULL;
}

static void end_abort(tr_nccl *n)
{
    struct timespec until;
    if (!n->aborting) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_SECONDS;
    if (pthread_timedjoin_np(n->aborter, NULL, &until) != 0) {
        pthread_detach(n->aborter);
        n->c->job->lingers = true;
    }
    n->aborting = false;
}

void tr_nccl_close(tr_nccl *n)
{
    if (!n) return;
    if (n->comm && !tr_comm_broken(n->c)) {
        tr_status st = tr_nccl_settle(n, ncclCommFinalize(n->comm), "ncclCommFinalize");
        if (st == TR_OK && ncclCommDestroy(n->comm) == ncclSuccess) n->comm = NULL;
    }
    tr_nccl_abort(n);
    end_abort(n);
    tr_free(n);
}
