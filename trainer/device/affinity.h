/* Which cores a rank may use, binding to them, and its priority there. */
#ifndef TR_AFFINITY_H
#define TR_AFFINITY_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"
#include "trainer/device/cores.h"

#define TR_MAX_CPUS 1024

typedef struct {
    int threads;  /* compute threads of this rank */
    size_t ncpus; /* cores that this rank was given */
    int cpus[TR_MAX_CPUS];
    bool bound;
    cpu_set_t found; /* the mask from before */
} tr_affinity;

/* *Collective.* Finds the cores that the launcher left to the ranks of this node, takes this rank's
 * share, and (run.affinity: auto) binds the calling thread, and so all threads made later, to it.
 * A rank whose mask shares no core with another rank's keeps it: somebody chose it. Cores that
 * several ranks may use are dealt out among these, near their GPUs where that is known
 * (tr_cores_deal). `gpu`: the id of the device that this rank will use (tr_backend.device_id),
 * NULL: none. `xml`: of a machine that hwloc shall take this one for, or NULL. Threads:
 * run.threads, or the share's size. With more ranks than cores nothing is bound and a rank gets one
 * thread.
 *
 * Open MPI binds each rank to one core unless it is told otherwise; where the user gave no binding
 * policy and Open MPI started this program itself (no taskset or script in between), the launcher's
 * own mask counts instead of that default, but for groups of a job's ranks (topology.part), to
 * whose ranks cores were dealt out before. With run.affinity: none no mask is touched, and threads
 * are counted by the masks as they are. */
tr_status tr_affinity_open(const tr_config *c, tr_comm *comm, const char *xml, const char *gpu,
                           tr_affinity *out);
/* *Collective.* run.nice for the calling thread, and so for all threads and processes made later.
 * TR_CONFIG where the system refuses it, on some rank. */
tr_status tr_priority_set(const tr_config *c, tr_comm *comm);
/* *Local.* The calling thread's mask is again what it was before: to open it another time, for
 * another device. */
void tr_affinity_undo(const tr_affinity *a);

#endif
