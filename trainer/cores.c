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
#include "trainer/cores.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int cpu, core; /* core: the number of its first thread */
} thread;

/* "0-3,8,10-11": false, and nothing in it, where that is not what the file holds. */
static bool read_list(const char *path, cpu_set_t *out)
{
    char text[4096], *at = text;
    CPU_ZERO(out);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    while (ok && *at && *at != '\n') {
        char *end;
        const long first = strtol(at, &end, 10);
        long last = first;
        ok = end != at && first >= 0;
        if (ok && *end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            ok = end != at && last >= first;
        }
        for (long cpu = first; ok && cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((size_t)cpu, out);
        ok = ok && (*end == ',' || *end == '\n' || !*end);
        at = *end == ',' ? end + 1 : end;
    }
    if (!ok) CPU_ZERO(out);
    return ok;
}

void tr_cores_near(const char *sysfs, const char *id, cpu_set_t *out)
{
    char path[512], name[64];
    size_t n = 0;
    for (; id[n] && n < sizeof name - 1; n++) /* the bus is in lower case there */
        name[n] = id[n] >= 'A' && id[n] <= 'F' ? (char)(id[n] - 'A' + 'a') : id[n];
    name[n] = 0;
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/local_cpulist", sysfs, name);
    (void)read_list(path, out);
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
static void cut(const char *sysfs, const cpu_set_t *all, int count, int place, cpu_set_t *share)
{
    thread threads[CPU_SETSIZE];
    int n = 0, ncores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[512];
        cpu_set_t siblings;
        if (!CPU_ISSET((size_t)cpu, all)) continue;
        snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 sysfs, cpu);
        int core = 0;
        if (!read_list(path, &siblings) || !CPU_ISSET((size_t)cpu, &siblings)) core = cpu;
        while (core < cpu && !CPU_ISSET((size_t)core, &siblings)) core++;
        threads[n++] = (thread){cpu, core};
    }
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

bool tr_cores_deal(const char *sysfs, const tr_cores *ranks, int n, int me, cpu_set_t *pool,
                   cpu_set_t *share)
{
    int count, place;
    *pool = *share = group(ranks, n, me, NULL, &count, &place);
    if (count <= 1) return count == 1;
    if (CPU_COUNT(pool) < count) return false;
    cpu_set_t all = *pool;
    if (all_near(ranks, n, pool, count)) all = group(ranks, n, me, pool, &count, &place);
    cut(sysfs, &all, count, place, share);
    return true;
}
