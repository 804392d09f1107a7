/* Cores for ranks: the union of what the ranks of a node may use, dealt in consecutive shares. */
#include "trainer/affinity.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The mask of the process that launched this one, when it is Open MPI's and left the binding to it.
 */
static bool launcher_mask(cpu_set_t *mask)
{
    if (!getenv("OMPI_COMM_WORLD_RANK") || getenv("OMPI_MCA_hwloc_base_binding_policy") ||
        getenv("SLURM_CPU_BIND"))
        return false;
    return sched_getaffinity(getppid(), sizeof *mask, mask) == 0;
}

typedef struct {
    int node;
    cpu_set_t mask;
} rank_mask;

tr_status tr_affinity_open(const tr_config *c, tr_comm *comm, tr_affinity *out)
{
    const tr_topology *t = tr_comm_topology(comm);
    tr_status st = TR_OK;
    rank_mask mine = {.node = t->node}, *all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *all);
    TR_NEED(all, TR_MEMORY, "%s", tr_last_error()->text);
    if (!launcher_mask(&mine.mask)) sched_getaffinity(0, sizeof mine.mask, &mine.mask);
    TR_TRY(tr_comm_gather(comm, &mine, all, sizeof mine));

    cpu_set_t node;
    CPU_ZERO(&node);
    for (int r = 0; r < t->size; r++)
        if (all[r].node == t->node) CPU_OR(&node, &node, &all[r].mask);
    int cpus[TR_MAX_CPUS], n = 0;
    for (int i = 0; i < CPU_SETSIZE && n < TR_MAX_CPUS; i++)
        if (CPU_ISSET(i, &node)) cpus[n++] = i;

    memset(out, 0, sizeof *out);
    int begin = (int)((int64_t)t->local_rank * n / t->local_size);
    int end = (int)((int64_t)(t->local_rank + 1) * n / t->local_size);
    if (n >= t->local_size) {
        cpu_set_t share;
        CPU_ZERO(&share);
        for (int i = begin; i < end; i++) {
            out->cpus[out->ncpus++] = cpus[i];
            CPU_SET(cpus[i], &share);
        }
        bool wanted = c->run.affinity == 0 && c->run.threads <= (int64_t)out->ncpus;
        out->bound = wanted && sched_setaffinity(0, sizeof share, &share) == 0;
    }
    if (!out->bound) /* undo the launcher's default, so that threads can spread */
        sched_setaffinity(0, sizeof node, &node);
    out->threads = c->run.threads > 0 ? (int)c->run.threads : out->ncpus > 0 ? (int)out->ncpus : 1;
out:
    tr_free(all);
    return st;
}
