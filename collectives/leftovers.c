/* What jobs that were killed left on this node, and the command that removes it. Open MPI's
 * segments in /dev/shm are files, and so is what its launcher keeps in a folder of its session;
 * nobody removes them when both are killed. Ours are those of this user that no process maps. The
 * launcher's folder has its process id in its name, and ranks are the launcher's children: the
 * folders beside ours that are named alike are others', and are left over where no process has that
 * id any more.
 *
 * Open MPI 4:  /tmp/ompi.HOST.UID/pid.PID    5:  /tmp/prterun.HOST.PID.UID
 *
 * All this is judged by the processes that one can see: nothing is said in a process namespace that
 * is not the machine's first, as in most containers. */
#include "collectives/internal.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_NAMESPACE "pid:[4026531836]" /* Linux: PROC_PID_INIT_INO */
#define MOST            64                 /* looked at; the rest is found once these are gone */
#define NAMED           3

static const char *const prefixes[] = {"vader_segment.", "sm_segment.", "osc_sm."};

typedef struct {
    int count;
    struct {
        char path[300];
        double nbytes;
        bool used;
    } of[MOST];
} things;

/* ---- Who uses them --------------------------------------------------------------------------- */

static bool every_process_is_seen(void)
{
    char name[64] = "";
    return readlink("/proc/self/ns/pid", name, sizeof name - 1) > 0 &&
           strcmp(name, FIRST_NAMESPACE) == 0;
}

/* `path` is the thing, or lies in it. */
static bool belongs(const char *path, const char *thing)
{
    const size_t n = strlen(thing);
    return strncmp(path, thing, n) == 0 && (isspace((unsigned char)path[n]) || path[n] == '/');
}

static void mark_mapped_by(const char *pid, things *t)
{
    char name[300];
    char *line = NULL;
    size_t room = 0;
    snprintf(name, sizeof name, "/proc/%s/maps", pid);
    FILE *f = fopen(name, "re");
    while (f && getline(&line, &room, f) > 0) {
        const char *path = strchr(line, '/');
        for (int i = 0; path && i < t->count; i++) t->of[i].used |= belongs(path, t->of[i].path);
    }
    free(line);
    if (f) fclose(f);
}

/* Reads the maps of every process of this user. */
static void mark_used(things *t)
{
    DIR *d = opendir("/proc");
    for (int i = 0; i < t->count; i++) t->of[i].used = !d;
    for (struct dirent *e; d && (e = readdir(d));)
        if (isdigit((unsigned char)e->d_name[0])) mark_mapped_by(e->d_name, t);
    if (d) closedir(d);
}

/* ---- What there is --------------------------------------------------------------------------- */

/* Of this user, and of a name that a shell takes as it is. */
static void add(things *t, const char *dir, const char *name, mode_t kind)
{
    struct stat s;
    char *path = t->of[t->count < MOST ? t->count : 0].path;
    if (t->count == MOST ||
        snprintf(path, sizeof t->of[0].path, "%s/%s", dir, name) >= (int)sizeof t->of[0].path)
        return;
    for (const char *p = path; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("/._-", *p)) return;
    if (lstat(path, &s) != 0 || (s.st_mode & S_IFMT) != kind || s.st_uid != getuid() ||
        (kind == S_IFREG && s.st_blocks == 0))
        return;
    t->of[t->count++].nbytes = kind == S_IFREG ? 512.0 * (double)s.st_blocks : 0;
}

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static void find_segments(const char *dir, things *t)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        for (size_t i = 0; i < TR_COUNT(prefixes); i++)
            if (has_prefix(e->d_name, prefixes[i])) add(t, dir, e->d_name, S_IFREG);
    if (d) closedir(d);
}

/* The process id in a name that is like `own` but for it, where `own` has `parent`; 0: it is
 * not. */
static long id_in(const char *name, const char *own, const char *parent)
{
    const size_t before = (size_t)(parent - own), digits = strspn(parent, "0123456789");
    if (strncmp(name, own, before) != 0 || !isdigit((unsigned char)name[before])) return 0;
    char *end;
    errno = 0;
    const long id = strtol(name + before, &end, 10);
    return errno == 0 && strcmp(end, parent + digits) == 0 ? id : 0;
}

/* `dir`: where our own launcher's folder is, which is called `own`. */
static void find_sessions(const char *dir, const char *own, things *t)
{
    char number[32];
    const char *parent;
    const int n = snprintf(number, sizeof number, ".%ld", (long)getppid());
    for (parent = strstr(own, number); parent && parent[n] && parent[n] != '.';)
        parent = strstr(parent + 1, number);
    if (!parent) return; /* not our launcher's, or it is no parent of ours */
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        const long id = id_in(e->d_name, own, parent + 1);
        if (id > 0 && (pid_t)id == id && tr_process_gone((long)id)) add(t, dir, e->d_name, S_IFDIR);
    }
    if (d) closedir(d);
}

/* ---- Saying it ------------------------------------------------------------------------------- */

/* The command for files, too many to name: whatever none of the processes that one may look at
 * maps. */
static void remove_all(const char *where, const things *t, char *to, size_t size)
{
    size_t n = (size_t)snprintf(to, size, "for f in");
    for (size_t k = 0; k < TR_COUNT(prefixes); k++)
        for (int i = 0; i < t->count; i++) {
            if (t->of[i].used || !has_prefix(strrchr(t->of[i].path, '/') + 1, prefixes[k]))
                continue;
            n += (size_t)snprintf(to + n, size - n, " %.200s/%s*", where, prefixes[k]);
            break;
        }
    snprintf(to + n, size - n, "; do grep -qsF $f /proc/[0-9]*/maps || rm $f; done");
}

static void say(const char *where, const things *t, bool files)
{
    char names[NAMED * 304] = "", size[32], hold[48] = "", command[1000];
    size_t used = 0;
    double nbytes = 0;
    int count = 0;
    for (int i = 0; i < t->count; i++) {
        if (t->of[i].used) continue;
        nbytes += t->of[i].nbytes;
        if (count++ < NAMED)
            used += (size_t)snprintf(names + used, sizeof names - used, " %s", t->of[i].path);
    }
    if (count == 0) return;
    if (nbytes > 0)
        snprintf(hold, sizeof hold, ", hold %s", tr_format_bytes(nbytes, size, sizeof size));
    if (files && count > NAMED)
        remove_all(where, t, command, sizeof command);
    else
        snprintf(command, sizeof command, "%s%s", files ? "rm" : "rm -r", names);
    tr_log(TR_LOG_WARN,
           "%s: %s%d %s%s of killed jobs, which no process uses%s%s%s; remove with%s: %s", where,
           t->count == MOST ? "at least " : "", count, files ? "file" : "session folder",
           count == 1 ? "" : "s", hold, files && count > NAMED ? ", such as" : "",
           files && count > NAMED ? names : "", !files && count > NAMED ? " (the first ones)" : "",
           command);
}

void tr_leftovers_warn(const char *dir)
{
    things t = {0};
    if (!every_process_is_seen()) return;
    find_segments(dir, &t);
    if (t.count > 0) mark_used(&t);
    say(dir, &t, true);
}

static void warn_of_sessions(void)
{
    const char *own = getenv("PMIX_SERVER_TMPDIR"), *slash = own ? strrchr(own, '/') : NULL;
    char dir[256];
    things t = {0};
    if (!slash || !every_process_is_seen() ||
        snprintf(dir, sizeof dir, "%.*s", (int)(slash - own), own) >= (int)sizeof dir)
        return;
    find_sessions(dir, slash + 1, &t);
    if (t.count > 0) mark_used(&t);
    say(dir, &t, false);
}

void tr_comm_warn_of_leftovers(const tr_comm *c)
{
    if (c->topology.local_rank != 0) return;
    warn_of_sessions();
    tr_leftovers_warn(tr_backing_directory());
}
