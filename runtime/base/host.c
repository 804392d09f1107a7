#include "runtime/base/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Of the first processor: all are alike where one job runs. */
static void read_cpu(char *buf, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !buf[0] && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value)
            snprintf(buf, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    }
    if (f) fclose(f);
}

void tr_host_look(tr_host *out)
{
    struct utsname u;
    *out = (tr_host){.cores = sysconf(_SC_NPROCESSORS_ONLN)};
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (out->cores < 0) out->cores = 0;
    if (pages > 0 && page > 0) out->memory = (double)pages * (double)page;
    read_cpu(out->cpu, sizeof out->cpu);
    if (uname(&u) != 0) return;
    snprintf(out->name, sizeof out->name, "%.63s", u.nodename);
    snprintf(out->kernel, sizeof out->kernel, "%.60s %.60s %.60s", u.sysname, u.release, u.machine);
}
