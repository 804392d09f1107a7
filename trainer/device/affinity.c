/* Cores for ranks: whose mask counts, and binding to what tr_cores_deal makes of all; priority. */
#include "trainer/device/affinity.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
    int node, local_rank;
    tr_cores cores;
} rank_cores;

/* The ranks of this node, in local order, from the front of `all`. */
static const tr_cores *of_node(rank_cores *all, const tr_topology *t, tr_cores *out)
{
    for (int r = 0; r < t->size; r++)
        if (all[r].node == t->node) out[all[r].local_rank] = all[r].cores;
    return out;
}

/* Threads of a rank where a mask has no room for the machine's CPUs (more than 1,024): nothing is
 * bound then. */
static int share_of_all(const tr_topology *t)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return cpus > t->local_size ? (int)(cpus / t->local_size) : 1;
}

/* Instances of one GPU lie where it does. */
static void near(hwloc_topology_t machine, const char *gpu, cpu_set_t *out)
{
    char place[TR_GPU_ID] = "";
    const size_t n = strcspn(gpu, TR_GPU_ID_APART);
    memcpy(place, gpu, n < sizeof place ? n : sizeof place - 1);
    tr_cores_near(machine, place, out);
}

tr_status tr_affinity_open(const tr_config *c, tr_comm *comm, const char *xml, const char *gpu,
                           tr_affinity *out)
{
    const tr_topology *t = tr_comm_topology(comm);
    bool automatic = c->run.affinity == TR_AFFINITY_AUTO, widened = false;
    hwloc_topology_t machine = NULL;
    cpu_set_t own, pool, share;
    CPU_ZERO(&own);
    const bool known = sched_getaffinity(0, sizeof own, &own) == 0;
    rank_cores mine = {.node = t->node, .local_rank = t->local_rank};
    rank_cores *all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *all);
    tr_cores *local = tr_alloc(TR_MEM_OTHER, (size_t)t->local_size, sizeof *local);
    tr_status st = all && local ? TR_OK : tr_last_status();
    TR_TRY(tr_agree(comm, st, NULL));
    widened = automatic && !t->part && launcher_mask(&own, &mine.cores.may);
    if (!widened) mine.cores.may = own;
    if (gpu || t->local_size > 1) machine = tr_cores_machine(xml, gpu != NULL);
    if (gpu) near(machine, gpu, &mine.cores.near);
    TR_TRY(tr_comm_all_gather(comm, &mine, all, sizeof mine));

    memset(out, 0, sizeof *out);
    out->found = own;
    if (tr_cores_deal(machine, of_node(all, t, local), t->local_size, t->local_rank, &pool,
                      &share)) {
        for (int cpu = 0; cpu < TR_MAX_CPUS; cpu++)
            if (CPU_ISSET((size_t)cpu, &share)) out->cpus[out->ncpus++] = cpu;
        bool wanted = automatic && c->run.threads <= (int64_t)out->ncpus;
        out->bound = wanted && sched_setaffinity(0, sizeof share, &share) == 0;
    }
    if (widened && !out->bound) /* undo the launcher's default, so that threads can spread */
        sched_setaffinity(0, sizeof pool, &pool);
    out->threads = (int)c->run.threads;
    if (out->threads == 0) out->threads = known ? (int)out->ncpus : share_of_all(t);
    if (out->threads == 0) out->threads = 1;
out:
    tr_cores_machine_close(machine);
    tr_free(all);
    tr_free(local);
    return st;
}

tr_status tr_priority_set(const tr_config *c, tr_comm *comm)
{
    tr_status st = TR_OK;
    if (c->run.nice != 0 && setpriority(PRIO_PROCESS, 0, (int)c->run.nice) != 0)
        st = tr_config_fail(c, "run.nice",
                            "the system refuses %lld: %s (less than what a process has needs root, "
                            "or a limit on it: ulimit -e)",
                            (long long)c->run.nice, strerror(errno));
    return tr_agree(comm, st, NULL);
}

void tr_affinity_undo(const tr_affinity *a)
{
    if (CPU_COUNT(&a->found)) sched_setaffinity(0, sizeof a->found, &a->found);
}
