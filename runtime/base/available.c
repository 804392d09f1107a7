/* Memory that this process could still get: what the kernel calls available, or less where a
 * control group (a container, a Slurm job step) sets a limit. */
#include "runtime/base/base.h"

#include <stdlib.h>
#include <string.h>

/* The first number of a one-line file; false for "max" or a file that is not there. */
static bool read_number(const char *path, unsigned long long *n)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool good = fscanf(f, "%llu", n) == 1;
    fclose(f);
    return good;
}

static size_t host_available(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb > 0 ? (size_t)kb * 1024 : SIZE_MAX;
}

/* Of files' pages that a group counts as used, those that the kernel gives up where memory is
 * short: as MemAvailable has it of the whole machine. `total`: "total_" in a group of version 1,
 * whose own count is without those in it. */
static unsigned long long file_cache(const char *path, const char *total)
{
    static const char *const names[] = {"active_file", "inactive_file"};
    FILE *f = fopen(path, "r");
    char line[128], name[64];
    unsigned long long sum = 0, n;
    while (f && fgets(line, sizeof line, f))
        for (size_t i = 0; sscanf(line, "%63s %llu", name, &n) == 2 && i < TR_COUNT(names); i++)
            if (strncmp(name, total, strlen(total)) == 0 &&
                strcmp(name + strlen(total), names[i]) == 0)
                sum += n;
    if (f) fclose(f);
    return sum;
}

/* Limit less use of the group `group` and of those it lies in. */
static size_t group_available(const char *mount, char *group, const char *limit, const char *use,
                              const char *total)
{
    size_t least = SIZE_MAX;
    for (;;) {
        char path[4096];
        unsigned long long max, now;
        snprintf(path, sizeof path, "%s%s/%s", mount, group, limit);
        if (read_number(path, &max) && max < (1ull << 60)) {
            snprintf(path, sizeof path, "%s%s/%s", mount, group, use);
            if (!read_number(path, &now) || now > max) now = max;
            snprintf(path, sizeof path, "%s%s/memory.stat", mount, group);
            const unsigned long long cache = file_cache(path, total);
            now -= cache < now ? cache : now;
            if (max - now < least) least = (size_t)(max - now);
        }
        char *up = strrchr(group, '/');
        if (!up) return least;
        *up = 0;
    }
}

size_t tr_mem_available(void)
{
    size_t least = host_available();
    const char *pretend = getenv("TRIREME_MEM_AVAILABLE"); /* tests: bytes */
    if (pretend) return (size_t)strtoull(pretend, NULL, 10);
    char line[2048];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *v1 = strstr(line, ":memory:"), *group = strrchr(line, ':');
        size_t left = SIZE_MAX;
        if (strncmp(line, "0::", 3) == 0)
            left = group_available("/sys/fs/cgroup", group + 1, "memory.max", "memory.current", "");
        else if (v1)
            left = group_available("/sys/fs/cgroup/memory", v1 + 8, "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_");
        if (left < least) least = left;
    }
    if (f) fclose(f);
    return least;
}

tr_status tr_mem_fits(size_t nbytes, const char *what)
{
    const size_t left = tr_mem_available();
    char need[32], have[32];
    if (nbytes <= left) return TR_OK;
    return TR_FAIL(TR_MEMORY, "%s: %s of memory are needed, %s are available", what,
                   tr_format_bytes((double)nbytes, need, sizeof need),
                   tr_format_bytes((double)left, have, sizeof have));
}
