/* What jobs that were killed left in the node's memory: Open MPI's segments in /dev/shm are files, which nobody
 * removes when their job is killed. Ours are those of this user that no process of this machine maps. Looked for
 * only where memory is short: it reads the maps of every process of this user. */
#include "collectives/internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What Open MPI 4.1 and 5 call them. */
static const char *const prefixes[] = {"vader_segment.", "sm_segment.", "osc_sm."};

static const char *prefix_of(const char *name)
{
    for (size_t i = 0; i < TR_COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return prefixes[i];
    return NULL;
}

static bool process_maps(const char *pid, const char *path)
{
    char name[300];
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    snprintf(name, sizeof name, "/proc/%s/maps", pid);
    FILE *f = fopen(name, "re");
    while (f && !found && getline(&line, &room, f) > 0) {
        const char *at = strchr(line, '/');
        found = at && strncmp(at, path, strlen(path)) == 0;
    }
    free(line);
    if (f) fclose(f);
    return found;
}

static bool in_use(const char *path)
{
    bool found = false;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && !found && (e = readdir(d));)
        found = e->d_name[0] >= '1' && e->d_name[0] <= '9' && process_maps(e->d_name, path);
    if (d) closedir(d);
    return found || !d;
}

void tr_leftovers_warn(const char *dir)
{
    double nbytes = 0;
    int count = 0, named = 0;
    char files[400] = "", size[32];
    size_t used = 0;
    struct stat s;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[400];
        const bool whole = snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path;
        if (!whole || !prefix_of(e->d_name) || lstat(path, &s) != 0 || !S_ISREG(s.st_mode) ||
            s.st_uid != getuid() || s.st_blocks == 0 || in_use(path))
            continue;
        count++;
        nbytes += 512.0 * (double)s.st_blocks;
        if (used + strlen(path) + 2 < sizeof files) {
            used += (size_t)snprintf(files + used, sizeof files - used, " %s", path);
            named++;
        }
    }
    if (d) closedir(d);
    if (count > 0)
        tr_log(TR_LOG_WARN,
               "%s: %d file%s of killed jobs, which no process uses, hold %s; remove with: rm%s%s",
               dir, count, count == 1 ? "" : "s", tr_format_bytes(nbytes, size, sizeof size), files,
               count > named ? " ..." : "");
}
