/* Who is where: ranks are split into nodes by who can share memory, nodes are numbered by their
 * lowest rank. TRIREME_FAKE_NODES=k (tests only) first splits the ranks into k pretend nodes of
 * consecutive ranks, so that everything between nodes runs on one machine. */
#include "collectives/internal.h"

static tr_status split(tr_comm *c)
{
    tr_status st = TR_OK;
    MPI_Comm from = c->world, fake = MPI_COMM_NULL;
    size_t size = (size_t)c->topology.size;
    size_t fakes = tr_env_size("TRIREME_FAKE_NODES", 0);
    if (fakes > size) fakes = size;
    if (fakes > 1) {
        int color = (int)((size_t)c->topology.rank * fakes / size);
        TR_MPI_TRY(MPI_Comm_split(c->world, color, c->topology.rank, &fake));
        from = fake;
    }
    TR_MPI_TRY(MPI_Comm_split_type(from, MPI_COMM_TYPE_SHARED, c->topology.rank, MPI_INFO_NULL,
                                   &c->local));
    TR_MPI_TRY(MPI_Comm_set_errhandler(c->local, MPI_ERRORS_RETURN));
out:
    if (fake != MPI_COMM_NULL) MPI_Comm_free(&fake);
    return st;
}

tr_status tr_topology_find(tr_comm *c, int *most)
{
    tr_status st = TR_OK;
    tr_topology *t = &c->topology;
    struct {
        int leader, local_size;
    } *all = NULL, mine;
    TR_MPI_TRY(MPI_Comm_rank(c->world, &t->rank));
    TR_MPI_TRY(MPI_Comm_size(c->world, &t->size));
    TR_TRY(split(c));
    TR_MPI_TRY(MPI_Comm_rank(c->local, &t->local_rank));
    TR_MPI_TRY(MPI_Comm_size(c->local, &t->local_size));
    mine.leader = t->rank;
    mine.local_size = t->local_size;
    TR_MPI_TRY(MPI_Bcast(&mine.leader, 1, MPI_INT, 0, c->local));
    all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof(*all));
    bool ok = false;
    TR_TRY(tr_mpi_all(c, all != NULL, &ok));
    TR_NEED(ok && all, TR_MEMORY, "no memory for the list of %d ranks", t->size);
    TR_MPI_TRY(MPI_Allgather(&mine, 2, MPI_INT, all, 2, MPI_INT, c->world));
    t->slices = *most = t->local_size;
    for (int r = 0; r < t->size; r++) {
        if (all[r].local_size < t->slices) t->slices = all[r].local_size;
        if (all[r].local_size > *most) *most = all[r].local_size;
        if (all[r].leader != r) continue;
        t->nodes++;
        if (r < mine.leader) t->node++;
    }
out:
    tr_free(all);
    return st;
}
