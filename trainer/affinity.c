/* Cores for ranks: the union of what the ranks of a node may use, dealt in consecutive shares. */
#include "trainer/affinity.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Is this process' parent Open MPI's launcher (its daemon on other nodes), and did it start this
 * program itself? A taskset, numactl or script in between may have chosen our mask on purpose. */
static bool launched_directly(void)
{
    static const char *const names[] = {"mpirun",  "mpiexec", "orterun", "orted",
                                        "prterun", "prted",   "prte"};
    const char *command = getenv("OMPI_COMMAND");
    char path[64], comm[32] = "";
    if (command) {
        const char *slash = strrchr(command, '/');
        if (strcmp(slash ? slash + 1 : command, program_invocation_short_name) != 0) return false;
    }
    snprintf(path, sizeof path, "/proc/%ld/comm", (long)getppid());
    FILE *f = fopen(path, "re");
    if (!f) return false;
    if (!fgets(comm, sizeof comm, f)) comm[0] = 0;
    fclose(f);
    comm[strcspn(comm, "\n")] = 0;
    for (size_t i = 0; i < TR_COUNT(names); i++)
        if (strcmp(comm, names[i]) == 0) return true;
    return false;
}

/* What users bind by, as their ranks see it. */
static bool asked_for(void)
{
    static const char *const names[] = {"OMPI_MCA_hwloc_base_binding_policy",
                                        "OMPI_MCA_hwloc_base_cpu_set", "SLURM_CPU_BIND"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        if (getenv(names[i])) return true;
    const char *map = getenv("OMPI_MCA_rmaps_base_mapping_policy");
    return map && strstr(map, "pe="); /* cores a rank */
}

/* The mask of Open MPI's launcher, where our narrower one is but its default: nobody asked for a
 * binding. */
static bool launcher_mask(const cpu_set_t *own, cpu_set_t *mask)
{
    cpu_set_t common;
    if (!getenv("OMPI_COMM_WORLD_RANK") || asked_for() || !launched_directly()) return false;
    if (sched_getaffinity(getppid(), sizeof *mask, mask) != 0) return false;
    CPU_AND(&common, own, mask);
    return CPU_EQUAL(&common, own);
}

typedef struct {
    int node;
    cpu_set_t mask;
} rank_mask;

tr_status tr_affinity_open(const tr_config *c, tr_comm *comm, tr_affinity *out)
{
    const tr_topology *t = tr_comm_topology(comm);
    bool automatic = c->run.affinity == TR_AFFINITY_AUTO, widened = false;
    cpu_set_t own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof own, &own);
    rank_mask mine = {.node = t->node}, *all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *all);
    tr_status st = all ? TR_OK : TR_MEMORY;
    TR_TRY(tr_agree(comm, st, NULL));
    widened = automatic && launcher_mask(&own, &mine.mask);
    if (!widened) mine.mask = own;
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
        bool wanted = automatic && c->run.threads <= (int64_t)out->ncpus;
        out->bound = wanted && sched_setaffinity(0, sizeof share, &share) == 0;
    }
    if (widened && !out->bound) /* undo the launcher's default, so that threads can spread */
        sched_setaffinity(0, sizeof node, &node);
    out->threads = c->run.threads > 0 ? (int)c->run.threads : out->ncpus > 0 ? (int)out->ncpus : 1;
out:
    tr_free(all);
    return st;
}
