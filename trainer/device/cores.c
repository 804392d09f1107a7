/* Ranks whose masks overlap, directly or through others, share out what they have together; a mask
 * that no other rank's overlaps is somebody's choice and stays as it is. So ranks bound one by one
 * keep their cores, ranks bound by the socket share their socket, and ranks that all may use the
 * whole node share that.
 *
 * Of what is shared each rank gets cores near its GPU: its device's list, within the pool, shared
 * in the same way with the ranks whose lists overlap it. Only if that gives every rank of the pool
 * one core at least, and half an even share; else all of the pool is dealt, without a look at GPUs.
 *
 *     pool 0-7      rank 0: GPU near 0-3      0-1
 *                   rank 1: GPU near 4-7      4-7
 *                   rank 2: GPU near 0-3      2-3
 *
 * Shares are consecutive cores, whole ones while there are as many as ranks: Linux numbers second
 * hardware threads behind all cores, so CPUs are put in order of core and thread first. */
#include "trainer/device/cores.h"

#include <hwloc/glibc-sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int cpu, core; /* core: the number of its first thread */
} thread;

/* Only what is asked below: cores and threads, with devices also what PCI devices hang from.
 * Without hwloc's x86 part, which would move this thread to every CPU in turn. */
static int prepare(hwloc_topology_t t, const char *xml, bool devices)
{
    static const hwloc_obj_type_t kept[] = {HWLOC_OBJ_CORE, HWLOC_OBJ_PACKAGE};
    unsigned long flags = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED; /* other ranks' may differ */
#if HWLOC_API_VERSION >= 0x00020800
    flags |= HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
             HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS;
#endif
    int rc = hwloc_topology_set_flags(t, flags);
    if (!rc && xml) rc = hwloc_topology_set_xmlbuffer(t, xml, (int)strlen(xml) + 1);
    if (!rc) rc = hwloc_topology_set_all_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (size_t i = 0; !rc && i < sizeof kept / sizeof *kept; i++)
        rc = hwloc_topology_set_type_filter(t, kept[i], HWLOC_TYPE_FILTER_KEEP_ALL);
    if (!rc && devices) {
        rc = hwloc_topology_set_type_filter(t, HWLOC_OBJ_PCI_DEVICE,
                                            HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
        if (!rc) /* CPUs that a device is near to and that are no package: a NUMA node's */
            rc = hwloc_topology_set_type_filter(t, HWLOC_OBJ_GROUP,
                                                HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
    }
    if (!xml)
        (void)hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    return rc ? rc : hwloc_topology_load(t);
}

hwloc_topology_t tr_cores_machine(const char *xml, bool devices)
{
    hwloc_topology_t t = NULL;
    if (hwloc_topology_init(&t) != 0) return NULL;
    if (prepare(t, xml, devices) == 0) return t;
    hwloc_topology_destroy(t);
    return NULL;
}

void tr_cores_machine_close(hwloc_topology_t t)
{
    if (t) hwloc_topology_destroy(t);
}

void tr_cores_near(hwloc_topology_t t, const char *id, cpu_set_t *out)
{
    CPU_ZERO(out);
    const hwloc_obj_t device = t ? hwloc_get_pcidev_by_busidstring(t, id) : NULL;
    const hwloc_obj_t near = device ? hwloc_get_non_io_ancestor_obj(t, device) : NULL;
    if (near) (void)hwloc_cpuset_to_glibc_sched_affinity(t, near->cpuset, out, sizeof *out);
}

/* The number of the first thread of this one's core; its own where that is not known. */
static int core_of(hwloc_topology_t t, int cpu)
{
    const hwloc_obj_t pu = t ? hwloc_get_pu_obj_by_os_index(t, (unsigned)cpu) : NULL;
    const hwloc_obj_t core = pu ? hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, pu) : NULL;
    return core ? hwloc_bitmap_first(core->cpuset) : cpu;
}

static bool overlap(const cpu_set_t *a, const cpu_set_t *b)
{
    cpu_set_t both;
    CPU_AND(&both, a, b);
    return CPU_COUNT(&both) > 0;
}

/* What a rank goes by: its mask, or with a pool, what it has of that near its GPU. */
static cpu_set_t cores_of(const tr_cores *r, const cpu_set_t *pool)
{
    cpu_set_t near;
    if (!pool) return r->may;
    CPU_ZERO(&near);
    if (overlap(&r->may, pool)) CPU_AND(&near, &r->near, pool);
    return near;
}

/* What rank `me` and those that its cores overlap, directly or through others, have together; how
 * many they are, and its place among them. */
static cpu_set_t group(const tr_cores *ranks, int n, int me, const cpu_set_t *pool, int *count,
                       int *place)
{
    cpu_set_t all = cores_of(&ranks[me], pool);
    int before = -1;
    while (before != CPU_COUNT(&all)) {
        before = CPU_COUNT(&all);
        *count = *place = 0;
        for (int i = 0; i < n; i++) {
            const cpu_set_t its = cores_of(&ranks[i], pool);
            if (!overlap(&its, &all)) continue;
            CPU_OR(&all, &all, &its);
            *place += i < me;
            ++*count;
        }
    }
    return all;
}

/* Can every one of the pool's `sharing` ranks have cores near its GPU, and half an even share at
 * least? The rank with the fewest holds up all. */
static bool all_near(const tr_cores *ranks, int n, const cpu_set_t *pool, int sharing)
{
    int count, place;
    for (int i = 0; i < n; i++) {
        if (!overlap(&ranks[i].may, pool)) continue;
        const cpu_set_t near = group(ranks, n, i, pool, &count, &place);
        if (CPU_COUNT(&near) == 0 || CPU_COUNT(&near) < count) return false;
        if (2 * CPU_COUNT(&near) * sharing < CPU_COUNT(pool) * count) return false;
    }
    return true;
}

static int by_core(const void *a, const void *b)
{
    const thread *x = a, *y = b;
    return x->core != y->core ? x->core - y->core : x->cpu - y->cpu;
}

/* The place-th of `count` shares. */
static void cut(hwloc_topology_t t, const cpu_set_t *all, int count, int place, cpu_set_t *share)
{
    thread threads[CPU_SETSIZE];
    int n = 0, ncores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, all)) threads[n++] = (thread){cpu, core_of(t, cpu)};
    qsort(threads, (size_t)n, sizeof *threads, by_core);
    for (int i = 0; i < n; i++) ncores += i == 0 || threads[i].core != threads[i - 1].core;
    const bool whole = ncores >= count;
    const int units = whole ? ncores : n;
    int unit = -1;
    CPU_ZERO(share);
    for (int i = 0; i < n; i++) {
        unit += !whole || i == 0 || threads[i].core != threads[i - 1].core;
        if (unit >= place * units / count && unit < (place + 1) * units / count)
            CPU_SET((size_t)threads[i].cpu, share);
    }
}

bool tr_cores_deal(hwloc_topology_t t, const tr_cores *ranks, int n, int me, cpu_set_t *pool,
                   cpu_set_t *share)
{
    int count, place;
    *pool = *share = group(ranks, n, me, NULL, &count, &place);
    if (count <= 1) return count == 1;
    if (CPU_COUNT(pool) < count) return false;
    cpu_set_t all = *pool;
    if (all_near(ranks, n, pool, count)) all = group(ranks, n, me, pool, &count, &place);
    cut(t, &all, count, place, share);
    return true;
}
