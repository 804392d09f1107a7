/* Which cores belong to which rank of a node, from what each may use and where its GPU sits. */
#ifndef TR_CORES_H
#define TR_CORES_H

#include <hwloc.h>
#include <sched.h>
#include <stdbool.h>

/* A rank's: what it may use, and what lies near its GPU (empty: not known, or it has none). */
typedef struct {
    cpu_set_t may, near;
} tr_cores;

/* *Local.* What hwloc finds out about this machine (some milliseconds); `devices`: with those of
 * the PCI bus. `xml`: about the machine that this text of hwloc describes instead. NULL where hwloc
 * finds nothing: then cores are not told apart from threads, and no device is near anything. */
hwloc_topology_t tr_cores_machine(const char *xml, bool devices);
void tr_cores_machine_close(hwloc_topology_t t); /* NULL is fine */

/* *Local.* The CPUs near a device of the PCI bus. `id`: its place, "0000:10:00.0". Empty where
 * that is not known. */
void tr_cores_near(hwloc_topology_t t, const char *id, cpu_set_t *out);

/* *Local.* The share of ranks[me], of the n ranks of its node; every rank that is given the same
 * comes to the same shares, and no two shares overlap. `pool`: what is dealt out there. False where
 * it has fewer CPUs than ranks: then there is no share. `t` may be NULL where each rank is
 * alone. */
bool tr_cores_deal(hwloc_topology_t t, const tr_cores *ranks, int n, int me, cpu_set_t *pool,
                   cpu_set_t *share);

#endif
