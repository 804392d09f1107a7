/* Which cores belong to which rank of a node, from what each may use and where its GPU sits. */
#ifndef TR_CORES_H
#define TR_CORES_H

#include <sched.h>
#include <stdbool.h>

/* A rank's: what it may use, and what lies near its GPU (empty: not known, or it has none). */
typedef struct {
    cpu_set_t may, near;
} tr_cores;

/* *Local.* The CPUs near a device of the PCI bus, as the kernel has them: SYSFS/bus/pci/devices/
 * ID/local_cpulist. `id` as tr_backend.device_id gives it. Empty where that is not known. */
void tr_cores_near(const char *sysfs, const char *id, cpu_set_t *out);

/* *Local.* The share of ranks[me], of the n ranks of its node; every rank that is given the same
 * comes to the same shares, and no two shares overlap. `pool`: what is dealt out there. False where
 * it has fewer CPUs than ranks: then there is no share. */
bool tr_cores_deal(const char *sysfs, const tr_cores *ranks, int n, int me, cpu_set_t *pool,
                   cpu_set_t *share);

#endif
