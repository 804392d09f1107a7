/* Who is where: ranks are split into nodes by who can share memory, nodes are numbered by their
 * lowest rank. TRIREME_FAKE_NODES=k (tests only) first splits the ranks into k pretend nodes of
 * consecutive ranks, so that everything between nodes runs on one machine. A group's ranks are on
 * the job's nodes, of which those count that it has ranks on. */
#include "collectives/internal.h"

#include <string.h>

static tr_status split_by_memory(MPI_Comm comm, const tr_topology *t, MPI_Comm *local)
{
    tr_status st = TR_OK;
    MPI_Comm from = comm, fake = MPI_COMM_NULL;
    size_t size = (size_t)t->size;
    size_t fakes = tr_env_size("TRIREME_FAKE_NODES", 0);
    if (fakes > size) fakes = size;
    if (fakes > 1) {
        int color = (int)((size_t)t->rank * fakes / size);
        TR_MPI_TRY(MPI_Comm_split(comm, color, t->rank, &fake));
        from = fake;
    }
    TR_MPI_TRY(MPI_Comm_split_type(from, MPI_COMM_TYPE_SHARED, t->rank, MPI_INFO_NULL, local));
out:
    if (fake != MPI_COMM_NULL) MPI_Comm_free(&fake);
    return st;
}

tr_status tr_topology_find(MPI_Comm comm, int node, tr_topology *t, MPI_Comm *local)
{
    tr_status st = TR_OK;
    struct {
        int leader, local_size;
    } *all = NULL, mine;
    TR_MPI_TRY(MPI_Comm_rank(comm, &t->rank));
    TR_MPI_TRY(MPI_Comm_size(comm, &t->size));
    if (node < 0)
        TR_TRY(split_by_memory(comm, t, local));
    else
        TR_MPI_TRY(MPI_Comm_split(comm, node, t->rank, local));
    TR_MPI_TRY(MPI_Comm_set_errhandler(*local, MPI_ERRORS_RETURN));
    TR_MPI_TRY(MPI_Comm_rank(*local, &t->local_rank));
    TR_MPI_TRY(MPI_Comm_size(*local, &t->local_size));
    mine.leader = t->rank;
    mine.local_size = t->local_size;
    TR_MPI_TRY(MPI_Bcast(&mine.leader, 1, MPI_INT, 0, *local));
    all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *all);
    TR_TRY(tr_mpi_have(comm, all != NULL, "the list of ranks"));
    TR_MPI_TRY(MPI_Allgather(&mine, 2, MPI_INT, all, 2, MPI_INT, comm));
    t->slices = t->most = t->local_size;
    t->node = t->nodes = 0;
    for (int r = 0; r < t->size; r++) {
        if (all[r].local_size < t->slices) t->slices = all[r].local_size;
        if (all[r].local_size > t->most) t->most = all[r].local_size;
        if (all[r].leader != r) continue;
        t->nodes++;
        if (r < mine.leader) t->node++;
    }
out:
    tr_free(all);
    return st;
}

void tr_mpi_version(char *buf, size_t size)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0, up = 0;
    buf[0] = 0;
    if (MPI_Initialized(&up) != MPI_SUCCESS || !up ||
        MPI_Get_library_version(text, &n) != MPI_SUCCESS)
        return;
    snprintf(buf, size, "%.*s", (int)strcspn(text, ",\n"), text);
}
