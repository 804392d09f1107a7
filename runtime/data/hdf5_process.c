/* A look at datasets of a file (hdf5_look.c), or at all of them (hdf5_list.c), in a process of its own, so that a file that breaks HDF5
 * breaks only that.
 *
 * The process is this program again, started by posix_spawn with TR_LOOK as its first argument:
 *     argv: PROGRAM TR_LOOK PATH WHICH [DATASET...]    stdout: a `letter` for each DATASET, up to the first that fails;
 *                                                      without any, one, and what is listed; stdin, stderr: /dev/null
 * WHICH: device, inode and size of the file that shall lie at PATH.
 * Nothing is forked, so it does not matter what MPI, CUDA and their threads hold. It gets no other
 * file descriptor, none of the launcher's variables (it is no rank), and limits of processor time
 * and of time. `look_first` serves it before main, hence in every program that reads HDF5, and
 * before anything of MPI or CUDA is called. */
#include "runtime/data/hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/file.h"

#define TR_LOOK     "--look-at-hdf5"
#define CPU_SECONDS 60 /* for a dataset: a file that makes HDF5 loop ends here */
#define WHICH       "%" SCNu64 ":%" SCNu64 ":%" SCNu64

/* What comes back; both ends are the same program. */
typedef struct {
    tr_status st;
    char text[TR_ERROR_TEXT];
    tr_hdf5_sight sight;
    size_t count; /* of tr_hdf5_listed behind it */
} letter;

/* ---- The process that looks ------------------------------------------------------------------ */

static void write_out(const void *bytes, size_t nbytes)
{
    const char *p = bytes;
    for (size_t left = nbytes; left > 0;) {
        const ssize_t n = write(STDOUT_FILENO, p, left);
        if (n <= 0 && errno != EINTR) _exit(1);
        if (n > 0) p += n, left -= (size_t)n;
    }
}

static void write_letter(letter *l, tr_status st)
{
    l->st = st;
    if (st != TR_OK) snprintf(l->text, sizeof l->text, "%s", tr_last_error()->text);
    write_out(l, sizeof *l);
}

/* From now on. SIGXCPU, not SIGKILL, says why. */
static void limit_cpu(void)
{
    struct rlimit limit;
    const rlim_t most = (rlim_t)(clock() / CLOCKS_PER_SEC) + CPU_SECONDS;
    if (getrlimit(RLIMIT_CPU, &limit) != 0 || most >= limit.rlim_max) return;
    limit.rlim_cur = most;
    setrlimit(RLIMIT_CPU, &limit);
}

/* glibc hands the arguments to functions that run before main. */
__attribute__((constructor)) static void look_first(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], TR_LOOK) != 0) return;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    tr_data_file file = {.path = argv[2], .fd = -1};
    sscanf(argv[3], WHICH, &file.device, &file.inode, &file.size);
    letter l;
    tr_status st = TR_OK;
    memset(&l, 0, sizeof l);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    for (int i = 4; st == TR_OK && i < argc; i++) {
        tr_hdf5_handles h = tr_hdf5_none;
        limit_cpu();
        st = tr_hdf5_see(&h, &file, argv[i], &l.sight);
        tr_hdf5_close(&h);
        write_letter(&l, st);
    }
    if (argc == 4) {
        tr_hdf5_listed *all = NULL;
        limit_cpu();
        st = tr_hdf5_see_all(&file, &all, &l.count);
        write_letter(&l, st);
        write_out(all, l.count * sizeof *all);
    }
    _exit(0);
}

/* ---- The process that asks ------------------------------------------------------------------- */

/* The environment without what a launcher says to its ranks; NULL: no memory. */
static char **plain_environment(void)
{
    static const char *const launchers[] = {"OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_"};
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **out = tr_alloc(TR_MEM_OTHER, n + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++) {
        bool launcher = false;
        for (size_t k = 0; k < TR_COUNT(launchers); k++)
            launcher |= strncmp(environ[i], launchers[k], strlen(launchers[k])) == 0;
        if (!launcher) out[kept++] = environ[i];
    }
    return out;
}

/* Signals that end or stop a job are its own business: they are blocked in the process from its
 * start, and SIGKILL ends it if need be. Those of a breakdown do what they do by default. */
static int set_signals(posix_spawnattr_t *how)
{
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU, SIGPIPE};
    static const int job[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigset_t fresh, blocked;
    sigemptyset(&fresh);
    sigemptyset(&blocked);
    for (size_t i = 0; i < TR_COUNT(deadly); i++) sigaddset(&fresh, deadly[i]);
    for (size_t i = 0; i < TR_COUNT(job); i++) sigaddset(&blocked, job[i]);
    int rc = posix_spawnattr_setsigdefault(how, &fresh);
    if (!rc) rc = posix_spawnattr_setsigmask(how, &blocked);
    return rc ? rc : posix_spawnattr_setflags(how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
}

/* Starts it with `to` as its stdout; an errno value. */
static int start(char *const argv[], char *const environment[], int to, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    int rc = posix_spawn_file_actions_init(&files);
    if (rc) return rc;
    if ((rc = posix_spawnattr_init(&how)) != 0) goto files;
    rc = set_signals(&how);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&files, to, STDOUT_FILENO);
    if (!rc) rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!rc) rc = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (!rc) rc = posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    if (!rc) rc = posix_spawn(pid, "/proc/self/exe", &files, &how, argv, environment);
    posix_spawnattr_destroy(&how);
files:
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* What came back is no better than the file: checked before it is used. */
static tr_status said(letter *l)
{
    l->text[sizeof l->text - 1] = '\0';
    if (l->st == TR_OK) return TR_OK;
    return TR_FAIL(l->st == TR_MEMORY ? TR_MEMORY : TR_DATA, "%s", l->text);
}

tr_status tr_hdf5_believe(const tr_data_file *file, const char *name, const tr_hdf5_sight *s)
{
    size_t total = (unsigned)s->elem < TR_ELEMS ? tr_elem_size(s->elem) : 0;
    bool sane =
        total > 0 && s->ndim >= 1 && s->ndim <= TR_MAX_DIMS && s->chunk_bytes <= TR_HDF5_MOST_CHUNK;
    for (int d = 0; sane && d < s->ndim; d++)
        sane = s->dims[d] > 0 && tr_mul_size(total, s->dims[d], &total);
    if (!sane)
        return TR_FAIL(TR_DATA, "%s: dataset %s: HDF5 reports an impossible shape", file->path,
                       name);
    if (s->flat && (s->offset > file->size || total > file->size - s->offset))
        return TR_FAIL(TR_DATA,
                       "%s: dataset %s: ends at byte %" PRIu64
                       ", expected within the file's %" PRIu64 ": it is cut short",
                       file->path, name, s->offset + total, file->size);
    return TR_OK;
}

/* Bytes that came until `deadline` (tr_now), the process's end, or all of them. */
static size_t receive(int from, void *to, size_t nbytes, double deadline)
{
    size_t got = 0;
    while (got < nbytes) {
        struct pollfd ready = {.fd = from, .events = POLLIN};
        const double left = deadline - tr_now();
        const int n = left > 0 ? poll(&ready, 1, (int)(left * 1e3) + 1) : 0;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        const ssize_t some = read(from, (char *)to + got, nbytes - got);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        got += (size_t)some;
    }
    return got;
}

/* Waits for the process's end until `deadline`. One that is stuck in the kernel cannot be killed,
 * and is left behind. *status -1: it has ended, and who ignores SIGCHLD is not told how; its number may be another
 * process's by now. */
static bool ended(pid_t pid, double deadline, int *status)
{
    for (;;) {
        const pid_t end = waitpid(pid, status, WNOHANG);
        if (end == pid) return true;
        if (end < 0 && errno == ECHILD) return *status = -1, true;
        if ((end < 0 && errno != EINTR) || tr_now() >= deadline) return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Signals that code brings upon itself. */
static bool broke_down(int signal)
{
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE ||
           signal == SIGILL || signal == SIGTRAP || signal == SIGSYS || signal == SIGXCPU;
}

/* Of a list, all that the letter promises; *all false where it did not come. */
static tr_status receive_list(int from, letter *l, double deadline, tr_hdf5_listed **out, bool *all)
{
    const size_t n = l->st == TR_OK && l->count <= TR_HDF5_LISTED_MOST ? l->count : 0;
    tr_hdf5_listed *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    if (!v) return tr_last_status();
    *all = receive(from, v, n * sizeof *v, deadline) == n * sizeof *v;
    l->count = n;
    *out = v;
    return TR_OK;
}

/* What became of a process that did not say everything. */
static tr_status broken(const tr_data_file *file, const char *what, double seconds, bool done,
                        int status)
{
    const bool told = done && status != -1 && WIFSIGNALED(status);
    if (!done)
        return TR_FAIL(TR_IO,
                       "%s: %s: could not be looked at within %g seconds: the file system "
                       "does not answer, or the file is damaged",
                       file->path, what, seconds);
    if (told && !broke_down(WTERMSIG(status)))
        return TR_FAIL(TR_IO,
                       "%s: %s: the process that looked at it was ended from outside (%s): "
                       "by somebody, or for want of memory",
                       file->path, what, strsignal(WTERMSIG(status)));
    return TR_FAIL(TR_DATA, "%s: %s: the file is damaged: HDF5 breaks down on it (%s)", file->path,
                   what, told ? strsignal(WTERMSIG(status)) : "no answer");
}

/* `names` NULL: all datasets, which *list gets; else letters[0..count). *at, unless nobody could be asked: how many came
 * and are good. */
static tr_status ask(const tr_data_file *file, const char *const *names, size_t count,
                     double seconds, letter *letters, tr_hdf5_listed **list, size_t *at)
{
    const double deadline = tr_now() + seconds;
    tr_status st = TR_OK;
    int ends[2] = {-1, -1}, status = 0;
    char which[72], what[TR_HDF5_NAME + 16];
    pid_t pid = -1;
    char **environment = plain_environment();
    char **argv = tr_alloc(TR_MEM_OTHER, count + 5, sizeof *argv);
    TR_HAVE(environment);
    TR_HAVE(argv);
    snprintf(which, sizeof which, WHICH, file->device, file->inode, file->size);
    argv[0] = program_invocation_name;
    argv[1] = TR_LOOK;
    argv[2] = file->path;
    argv[3] = which;
    for (size_t i = 0; i < count; i++) argv[4 + i] = (char *)names[i];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        st = tr_file_open_failed(file->path, O_RDONLY, TR_IO, "file");
        goto out;
    }
    const int why = start(argv, environment, ends[1], &pid);
    close(ends[1]);
    TR_NEED(!why, TR_IO, "%s: a process to look at it cannot be started (/proc/self/exe): %s",
            file->path, strerror(why));
    size_t n = 0;
    bool all = true;
    for (; all && st == TR_OK && n < (names ? count : 1); n += all && st == TR_OK) {
        all = receive(ends[0], &letters[n], sizeof *letters, deadline) == sizeof *letters;
        if (all) st = said(&letters[n]);
    }
    *at = n;
    if (all && st == TR_OK && !names) st = receive_list(ends[0], letters, deadline, list, &all);
    const bool done = ended(pid, all ? tr_now() + 1 : deadline, &status);
    if (!done) {
        kill(pid, SIGKILL);
        ended(pid, tr_now() + 1, &(int){0});
    }
    snprintf(what, sizeof what, "%s%s", names ? "dataset " : "its datasets",
             names && n < count ? names[n] : "");
    if (!all) st = broken(file, what, seconds, done, status);
out:
    if (ends[0] >= 0) close(ends[0]);
    tr_free(argv);
    tr_free(environment);
    return st;
}

/* The first `needed` names must be good. */
static tr_status look(const tr_data_file *file, const char *const *names, size_t needed,
                      size_t count, double seconds, tr_hdf5_sight *out, size_t *failed)
{
    tr_status st = TR_OK;
    tr_hdf5_state before;
    size_t n = 0, at, must = 0; /* of what is asked */
    if (failed) *failed = count;
    letter *l = tr_alloc(TR_MEM_OTHER, count, sizeof *l);
    const char **asked = tr_alloc(TR_MEM_OTHER, count, sizeof *asked);
    size_t *place = tr_alloc(TR_MEM_OTHER, count + 1, sizeof *place); /* of what is asked */
    TR_HAVE(l && asked && place);
    const bool told = tr_hdf5_state_of(file, &before);
    for (size_t i = 0; i < count; i++) {
        if (told && tr_hdf5_known(&before, names[i], &out[i])) continue;
        asked[n] = names[i];
        place[n++] = i;
        if (i < needed) must = n;
    }
    place[n] = count;
    at = n;
    if (must > 0) st = ask(file, asked, n, seconds, l, NULL, &at);
    const size_t came = must == 0 ? 0 : st == TR_OK ? n : at;
    if (st != TR_OK && at >= must && at < n) st = TR_OK;
    for (size_t k = 0; st == TR_OK && k < came; k++) {
        at = k;
        st = tr_hdf5_believe(file, asked[k], &l[k].sight);
        out[place[k]] = l[k].sight;
        if (told && st == TR_OK) tr_hdf5_remember(file, &before, asked[k], &l[k].sight);
        if (st != TR_OK && k >= must) st = TR_OK;
    }
    if (failed && st != TR_OK) *failed = place[at];
out:
    tr_free(place);
    tr_free(asked);
    tr_free(l);
    return st;
}

tr_status tr_hdf5_look(const tr_data_file *file, const char *const *names, size_t count,
                       double seconds, tr_hdf5_sight *out, size_t *failed)
{
    return look(file, names, count, count, seconds, out, failed);
}

tr_status tr_hdf5_look_ahead(const tr_data_file *file, const char *const *names, size_t needed,
                             size_t count, double seconds, size_t *failed)
{
    tr_hdf5_sight *sights = tr_alloc(TR_MEM_OTHER, count, sizeof *sights);
    *failed = count;
    if (!sights) return tr_last_status();
    const tr_status st = look(file, names, needed, count, seconds, sights, failed);
    tr_free(sights);
    return st;
}

tr_status tr_hdf5_look_all(const tr_data_file *file, double seconds, tr_hdf5_listed **out,
                           size_t *count)
{
    letter l;
    tr_status st;
    tr_hdf5_listed *v = NULL;
    TR_TRY(ask(file, NULL, 0, seconds, &l, &v, &(size_t){0}));
    for (size_t i = 0; i < l.count; i++) {
        v[i].name[sizeof v[i].name - 1] = v[i].fault[sizeof v[i].fault - 1] = 0;
        if (!v[i].fault[0] && tr_hdf5_believe(file, v[i].name, &v[i].sight) != TR_OK)
            snprintf(v[i].fault, sizeof v[i].fault, "%.250s", tr_last_error()->text);
    }
    *out = v;
    *count = l.count;
    v = NULL;
out:
    tr_free(v);
    return st;
}
