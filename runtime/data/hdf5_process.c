/* A look at datasets of a file (hdf5_look.c), or at all of them (hdf5_list.c), in a process of its
 * own, so that a file that breaks HDF5 breaks only that.
 *
 * The process is this program again, started by posix_spawn with TR_LOOK as its first argument:
 *     argv: PROGRAM TR_LOOK PATH WHICH [DATASET...]
 *         stdout: a letter for each DATASET, up to the first that fails; without any, one, and what
 *         is listed; stdin, stderr: /dev/null
 * WHICH: device, inode and size of the file that shall lie at PATH.
 * Nothing is forked, so it does not matter what MPI, CUDA and their threads hold. It gets no other
 * file descriptor, none of the launcher's variables (it is no rank), and limits of processor time
 * and of time. `look_first` serves it before main, hence in every program that reads HDF5, and
 * before anything of MPI or CUDA is called. */
#include "runtime/data/hdf5_process.h"

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

static void write_letter(tr_hdf5_letter *l, tr_status st)
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
    tr_hdf5_letter l;
    tr_status st = TR_OK;
    memset(&l, 0, sizeof l);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    for (int i = 4; st == TR_OK && i < argc; i++) {
        tr_hdf5_handles h = tr_hdf5_none;
        bool missing;
        limit_cpu();
        st = tr_hdf5_see(&h, &file, argv[i], &l.sight, &missing);
        l.missing = missing;
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

bool tr_looker_hear(const tr_looker *p, void *to, size_t nbytes)
{
    size_t got = 0;
    while (got < nbytes) {
        struct pollfd ready = {.fd = p->from, .events = POLLIN};
        const double left = p->deadline - tr_now();
        const int n = left > 0 ? poll(&ready, 1, (int)(left * 1e3) + 1) : 0;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        const ssize_t some = read(p->from, (char *)to + got, nbytes - got);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        got += (size_t)some;
    }
    return got == nbytes;
}

/* Waits for the process's end until `deadline`. One that is stuck in the kernel cannot be killed,
 * and is left behind. *status -1: it has ended, and who ignores SIGCHLD is not told how; its number
 * may be another process's by now. */
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

tr_status tr_looker_open(tr_looker *p, const tr_data_file *file, const char *const *names,
                         size_t count, double seconds)
{
    tr_status st = TR_OK;
    int ends[2] = {-1, -1};
    char which[72];
    *p = (tr_looker){.file = file, .seconds = seconds, .deadline = tr_now() + seconds};
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
    const int why = start(argv, environment, ends[1], &p->pid);
    close(ends[1]);
    TR_NEED(!why, TR_IO, "%s: a process to look at it cannot be started (/proc/self/exe): %s",
            file->path, strerror(why));
    p->from = ends[0];
    ends[0] = -1;
out:
    if (ends[0] >= 0) close(ends[0]);
    tr_free(argv);
    tr_free(environment);
    return st;
}

tr_status tr_looker_close(tr_looker *p, const char *what, bool all)
{
    int status = 0;
    const bool done = ended(p->pid, all ? tr_now() + 1 : p->deadline, &status);
    if (!done) {
        kill(p->pid, SIGKILL);
        ended(p->pid, tr_now() + 1, &(int){0});
    }
    close(p->from);
    return all ? TR_OK : broken(p->file, what, p->seconds, done, status);
}
