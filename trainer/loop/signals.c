/* Requests to stop. */
#include "trainer/loop/signals.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t pending;

static void on_signal(int sig)
{
    if (sig == SIGINT && pending == SIGINT) _exit(128 + SIGINT);
    pending = sig;
}

/* Memory that is backed by a file, which shrank, or whose file system is full: Open MPI's own
 * segments are sparse, and take their room when they are first written. Then it ends as it would
 * have. */
static void on_bus_error(int sig)
{
    static const char text[] =
        "trainer: error: SIGBUS: shared memory has no room left (df /dev/shm), where the segments "
        "of "
        "ranks grow: end what else fills it, give it more (Docker: --shm-size), or use less of it: "
        "run.collectives=mpi without ours, mpirun --mca btl self,tcp without Open MPI's\n";
    const ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    signal(sig, SIG_DFL);
    raise(sig); /* once this returns */
}

void tr_signals_tell_bus_errors(void)
{
    signal(SIGBUS, on_bus_error);
}

void tr_signals_install(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    struct sigaction hangup;
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    /* a closed terminal; nohup has it ignored, and that stays */
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &a, NULL);
    tr_signals_tell_bus_errors();
    signal(SIGPIPE, SIG_IGN); /* a closed terminal or pipe is a write error, not an end */
    signal(SIGXFSZ, SIG_IGN); /* likewise a file size limit */
}

bool tr_signals_pending(void)
{
    return pending != 0;
}

bool tr_signals_ask_stop(tr_comm *comm)
{
    if (pending) tr_comm_ask_stop(comm);
    return pending || tr_comm_stop_asked(comm);
}
