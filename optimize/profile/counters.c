/* Hardware counters of the calling thread in user space, by perf_event_open(2), one file each, as
 * not all of them are to be had everywhere. */
#include "optimize/profile/profile.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <linux/perf_event.h>
#include <sys/syscall.h>

const char *const tr_counter_names[TR_COUNTERS] = {"cycles", "instructions", "cache_misses"};

static int open_counter(uint32_t type, uint64_t what)
{
    struct perf_event_attr a = {
        .type = type, .size = sizeof a, .config = what, .exclude_kernel = 1, .exclude_hv = 1};
    return (int)syscall(SYS_perf_event_open, &a, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

bool tr_counters_open_as(tr_counters *c, uint32_t type, const uint64_t what[TR_COUNTERS])
{
    bool any = false;
    c->why[0] = 0;
    for (int i = 0; i < TR_COUNTERS; i++) {
        c->fd[i] = open_counter(type, what[i]);
        if (c->fd[i] < 0 && !c->why[0])
            snprintf(c->why, sizeof c->why, "perf_event_open: %s%s", strerror(errno),
                     errno == EACCES || errno == EPERM
                         ? " (/proc/sys/kernel/perf_event_paranoid, or a container's profile)"
                     : errno == ENOENT ? " (this CPU, or virtual machine, shows none)"
                                       : "");
        any |= c->fd[i] >= 0;
    }
    return any;
}

bool tr_counters_open(tr_counters *c)
{
    static const uint64_t what[TR_COUNTERS] = {[TR_COUNTER_CYCLES] = PERF_COUNT_HW_CPU_CYCLES,
                                               [TR_COUNTER_INSTRUCTIONS] =
                                                   PERF_COUNT_HW_INSTRUCTIONS,
                                               [TR_COUNTER_MISSES] = PERF_COUNT_HW_CACHE_MISSES};
    return tr_counters_open_as(c, PERF_TYPE_HARDWARE, what);
}

void tr_counters_read(const tr_counters *c, double out[TR_COUNTERS])
{
    for (int i = 0; i < TR_COUNTERS; i++) {
        uint64_t v;
        out[i] = c->fd[i] >= 0 && read(c->fd[i], &v, sizeof v) == sizeof v ? (double)v : NAN;
    }
}

void tr_counters_close(tr_counters *c)
{
    for (int i = 0; i < TR_COUNTERS; i++)
        if (c->fd[i] >= 0) close(c->fd[i]);
}
