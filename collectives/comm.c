/* Communicators: opening the job's first one, splitting it into groups, and choosing for each how
 * its ranks talk. Every collective passes here: none is begun once the job is broken, and one that
 * fails breaks it, as its ranks are no longer at the same place. */
#include "collectives/waiting/waiting.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Decides between shared memory and MPI; the same on every rank. */
static tr_status choose(tr_comm *c)
{
    tr_status st = TR_OK;
    const tr_job *j = c->job;
    tr_topology *t = &c->topology;
    size_t room = sizeof c->reason;
    c->ops = t->size == 1 ? &tr_one_ops : &tr_mpi_ops;
    if (t->size == 1) {
        snprintf(c->reason, room, j->mpi ? "one rank" : "one rank without MPI");
        return TR_OK;
    }
    if (!j->shared_allowed) {
        snprintf(c->reason, room, "plain MPI, as asked");
        return TR_OK;
    }
    if (t->nodes == t->size) {
        snprintf(c->reason, room, "%d nodes with one rank each: plain MPI", t->nodes);
        return TR_OK;
    }
    bool got = j->notes != NULL;
    if (!got && c->comm != j->world) {
        snprintf(c->reason, room, "plain MPI, as all of the job");
        return TR_OK;
    }
    if (!got) TR_TRY(tr_notes_open(c, &got));
    if (got && t->nodes == 1) TR_TRY(tr_mailbox_open(c, &got));
    if (!got) {
        TR_NEED(!j->shared_required, TR_MEMORY, "run.collectives is shared, but %s", c->reason);
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
                 t->nodes, t->most, t->slices);
    }
out:
    return st;
}

/* *Collective* over c->comm, with c->topology and c->local set. */
static tr_status connect(tr_comm *c)
{
    tr_status st = TR_OK;
    const size_t size = (size_t)c->topology.size;
    c->scratch_count = ((size_t)1 << 19) / size; /* 4 MB in all at most, 1024 elements a rank */
    if (c->scratch_count > 1024) c->scratch_count = 1024;
    if (c->scratch_count < 64) c->scratch_count = 64;
    c->scratch = tr_alloc(TR_MEM_OTHER, c->scratch_count * size, sizeof(double));
    c->ranks = tr_alloc(TR_MEM_OTHER, size, sizeof *c->ranks);
    TR_TRY(tr_mpi_have(c->comm, c->scratch && c->ranks, "its communicator"));
    const int mine = c->job->topology.rank;
    TR_MPI_TRY(MPI_Allgather(&mine, 1, MPI_INT, c->ranks, 1, MPI_INT, c->comm));
    TR_TRY(tr_peers_pick(c));
    TR_TRY(choose(c));
out:
    return st;
}

/* Of a job without MPI: its one rank is itself. */
static tr_status alone(tr_comm *c)
{
    tr_status st = TR_OK;
    c->ranks = tr_alloc(TR_MEM_OTHER, 1, sizeof *c->ranks);
    TR_HAVE(c->ranks);
    TR_TRY(choose(c));
out:
    return st;
}

static tr_comm *new_comm(tr_job *j)
{
    tr_comm *c = TR_NEW(TR_MEM_OTHER, tr_comm);
    if (!c) return NULL;
    c->job = j;
    c->comm = c->local = MPI_COMM_NULL;
    c->topology.reason = c->reason;
    memcpy(c->topology.host, j->topology.host, sizeof c->topology.host);
    return c;
}

tr_status tr_comm_open(const tr_comm_options *o, tr_comm **out)
{
    tr_status st = TR_OK;
    tr_job *j = NULL;
    tr_comm *c = NULL;
    TR_TRY(tr_job_open(o, &j));
    c = new_comm(j);
    if (j->mpi) TR_TRY(tr_mpi_have(j->world, c != NULL, "its communicator"));
    TR_HAVE(c);
    c->topology = j->topology;
    c->topology.reason = c->reason;
    c->comm = j->world;
    c->local = j->local;
    tr_guard_begin(j, "opening its communicator");
    st = j->mpi ? connect(c) : alone(c);
    tr_guard_end(j);
    if (st != TR_OK) {
        tr_comm_close(c);
        return st;
    }
    *out = c;
    return TR_OK;
out:
    tr_free(c);
    tr_job_leave(j);
    return st;
}

tr_status tr_comm_all(tr_comm *c, bool ok, bool *out)
{
    tr_guard_begin(c->job, "an agreement");
    const tr_status st = tr_mpi_all(c->comm, ok, out);
    tr_guard_end(c->job);
    return st;
}

tr_status tr_comm_duplicate(tr_comm *c, MPI_Comm *out)
{
    tr_status st = TR_OK;
    tr_guard_begin(c->job, "duplicating a communicator");
    TR_MPI_TRY(MPI_Comm_dup(c->comm, out));
    TR_MPI_TRY(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN));
out:
    tr_guard_end(c->job);
    return st;
}

/* *Collective* over the group. */
static tr_status open_group(tr_comm *c)
{
    tr_status st = TR_OK;
    tr_topology *t = &c->topology;
    TR_MPI_TRY(MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN));
    TR_TRY(tr_topology_find(c->comm, c->job->topology.node, t, &c->local));
    t->part = t->size < c->job->topology.size;
    TR_TRY(connect(c));
out:
    return st;
}

tr_status tr_comm_split(tr_comm *parent, int color, int key, tr_comm **out)
{
    tr_job *j = parent->job;
    tr_comm *c = color >= 0 ? new_comm(j) : NULL;
    tr_status st = color >= 0 && !c ? tr_last_status() : TR_OK;
    *out = NULL;
    if (c) j->users++;
    TR_TRY(tr_agree(parent, st, NULL)); /* all have come: MPI's own calls wait for ever */
    if (j->mpi) {
        MPI_Comm comm = MPI_COMM_NULL;
        tr_guard_begin(j, "splitting a communicator");
        st = tr_mpi_check(
            MPI_Comm_split(parent->comm, color >= 0 ? color : MPI_UNDEFINED, key, &comm),
            "MPI_Comm_split");
        if (c) c->comm = comm;
        if (c && st == TR_OK) st = open_group(c);
        tr_guard_end(j);
    } else if (c) {
        c->topology = j->topology;
        c->topology.reason = c->reason;
        st = choose(c);
    }
    TR_TRY(tr_agree(parent, st, NULL));
out:
    if (st != TR_OK) {
        tr_comm_close(c);
        return st;
    }
    *out = c;
    return TR_OK;
}

tr_status tr_comm_split_node(tr_comm *c, tr_comm **out)
{
    return tr_comm_split(c, c->topology.node, c->topology.local_rank, out);
}

tr_status tr_comm_split_across(tr_comm *c, tr_comm **out)
{
    const tr_topology *t = &c->topology;
    return tr_comm_split(c, t->local_rank < t->slices ? t->local_rank : -1, t->node, out);
}

void tr_comm_close(tr_comm *c)
{
    if (!c) return;
    tr_job *j = c->job;
    tr_mailbox_close(c);
    tr_guard_begin(j, "freeing a communicator");
    if (!j->broken && c->comm != j->world) { /* the job's are freed with it */
        if (c->local != MPI_COMM_NULL) MPI_Comm_free(&c->local);
        if (c->comm != MPI_COMM_NULL) MPI_Comm_free(&c->comm);
    }
    tr_guard_end(j);
    tr_free(c->peers);
    tr_free(c->ranks);
    tr_free(c->scratch);
    tr_free(c);
    tr_job_leave(j);
}

const tr_topology *tr_comm_topology(const tr_comm *c)
{
    return &c->topology;
}

void tr_comm_patient(tr_comm *c, bool patient)
{
    c->patient = patient;
}

bool tr_comm_broken(const tr_comm *c)
{
    return c->job->broken;
}

tr_status tr_comm_break(tr_comm *c, tr_status st)
{
    tr_job *j = c->job;
    if (j->broken) return st;
    j->broken = true;
    j->failure = *tr_last_error();
    if (j->heard < 0)
        tr_farewell_send(j, &j->failure);
    else
        tr_notes_first(j); /* nobody of this node is to say it, either */
    tr_notes_give_up(j, &j->failure);
    tr_guard_broken(j);
    return st;
}

tr_status tr_comm_done(tr_comm *c, tr_status st)
{
    return st == TR_OK ? TR_OK : tr_comm_break(c, st);
}

tr_status tr_comm_usable(const tr_comm *c)
{
    if (!c->job->broken) return TR_OK;
    tr_set_error(&c->job->failure);
    return c->job->failure.status;
}

static tr_status check_sum(const tr_comm *c, tr_dtype type)
{
    if (type == TR_F32 || type == TR_F64 || type == TR_I64) return tr_comm_usable(c);
    return TR_FAIL(TR_INTERNAL, "a sum of %s over ranks", tr_dtype_name(type));
}

tr_status tr_comm_all_reduce(tr_comm *c, void *v, size_t count, tr_dtype type)
{
    tr_status st = check_sum(c, type);
    return st == TR_OK ? tr_comm_done(c, c->ops->all_reduce(c, v, count, type)) : st;
}

tr_status tr_comm_reduce_scatter(tr_comm *c, const void *send, void *recv, size_t count,
                                 tr_dtype type)
{
    tr_status st = check_sum(c, type);
    if (st != TR_OK) return st;
    return tr_comm_done(c, c->ops->reduce_scatter(c, send, recv, count, type));
}

tr_status tr_comm_all_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    tr_status st = tr_comm_usable(c);
    return st == TR_OK ? tr_comm_done(c, c->ops->all_gather(c, send, recv, nbytes)) : st;
}

tr_status tr_comm_broadcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    tr_status st = tr_comm_usable(c);
    if (st != TR_OK) return st;
    if (root < 0 || root >= c->topology.size)
        return TR_FAIL(TR_INTERNAL, "broadcast from rank %d of %d", root, c->topology.size);
    return tr_comm_done(c, c->ops->broadcast(c, buf, nbytes, root));
}

tr_status tr_comm_share_text(tr_comm *c, char **text)
{
    tr_status st;
    size_t n = *text ? strlen(*text) + 1 : 0;
    TR_TRY(tr_comm_broadcast(c, &n, sizeof n, 0));
    if (n == 0) goto out;
    if (!*text) *text = tr_alloc(TR_MEM_OTHER, n, 1);
    TR_TRY(tr_agree(c, *text ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_broadcast(c, *text, n, 0));
out:
    return st;
}

tr_status tr_comm_barrier(tr_comm *c)
{
    tr_status st = tr_comm_usable(c);
    return st == TR_OK ? tr_comm_done(c, c->ops->barrier(c)) : st;
}

void tr_comm_abort(tr_comm *c, int exit_code)
{
    fflush(stdout);
    fflush(stderr);
    if (c && c->job->broken) { /* ending the job would cut off the one that says why */
        tr_notes_spoken(c->job);
        tr_farewell_spoken(c->job);
    }
    tr_guard_abort(c ? c->job : NULL, exit_code);
    if (c && c->job->mpi) MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}
