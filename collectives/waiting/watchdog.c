/* The watchdog: a thread that ends this process where nothing else can. Waits of our own look at
 * the peers while they last (wait.c); MPI's calls that start, split and end things do not, nor does
 * what follows once the job is broken: for those a limit is set before and lifted after.
 *
 * Seconds are those in which this process ran: one that was suspended with its job has not waited.
 * The last words are put together beforehand and written at once, as the log may be what hangs. */
#include "collectives/waiting/waiting.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/visible.h"

#define TICK     0.1
#define TICK_MAX 1.0 /* one that took longer was no waiting, we were stopped */

struct tr_watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit;
    double left; /* seconds; 0: nothing is watched */
    int exit_code;
    char words[512];
};

static void sleep_for(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* With the lock held. */
static void end_process(const tr_watchdog *w)
{
    if (w->words[0] && write(STDERR_FILENO, w->words, strlen(w->words)) < 0) _exit(w->exit_code);
    _exit(w->exit_code);
}

static void *watch(void *arg)
{
    tr_watchdog *w = arg;
    double before = tr_now();
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        if (w->left <= 0) {
            pthread_cond_wait(&w->changed, &w->lock);
            before = tr_now();
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        sleep_for(TICK);
        pthread_mutex_lock(&w->lock);
        const double now = tr_now(), passed = now - before;
        before = now;
        if (w->left <= 0) continue;
        w->left -= passed < TICK_MAX ? passed : TICK_MAX;
        if (w->left <= 0) end_process(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

tr_status tr_watchdog_open(tr_watchdog **out)
{
    sigset_t all, before;
    tr_watchdog *w = TR_NEW(TR_MEM_OTHER, tr_watchdog);
    if (!w) return tr_last_status();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    sigfillset(&all); /* signals are for the other threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->changed);
        tr_free(w);
        return TR_FAIL(TR_MEMORY, "the watchdog's thread cannot be started: %s", strerror(failed));
    }
    *out = w;
    return TR_OK;
}

void tr_watchdog_close(tr_watchdog *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    tr_free(w);
}

void tr_watchdog_watch(tr_watchdog *w, double seconds, int exit_code, const char *fmt, ...)
{
    va_list args;
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->left = seconds;
    w->exit_code = exit_code;
    char text[sizeof w->words];
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t length = tr_visible(text, strlen(text), w->words, sizeof w->words - 1);
    if (length > 0) w->words[length++] = '\n';
    w->words[length] = 0;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void tr_watchdog_rest(tr_watchdog *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->left = 0;
    pthread_mutex_unlock(&w->lock);
}

/* ---- What a job watches ---------------------------------------------------------------------- */

#define END_LIMIT   30.0 /* seconds from what broke the job to the end of the process */
#define ABORT_LIMIT 5.0  /* for MPI_Abort */

void tr_guard_begin(tr_job *j, const char *what)
{
    if (j->guards++ > 0 || j->broken) return;
    const tr_topology *t = &j->topology;
    /* one after the other, so that one speaks: the launcher then ends the rest */
    const double turn = 0.2 * (t->rank < 20 ? t->rank : 20);
    tr_watchdog_watch(j->watchdog, j->start_timeout + turn, tr_status_exit_code(TR_PEER),
                      "trainer: error: rank %d (%s): %s took longer than %.0f s "
                      "(run.start_timeout): some rank was stopped, or cannot be reached",
                      t->rank, t->host, what, j->start_timeout);
}

void tr_guard_end(tr_job *j)
{
    if (--j->guards == 0 && !j->broken) tr_watchdog_rest(j->watchdog);
}

void tr_guard_broken(tr_job *j)
{
    const tr_topology *t = &j->topology;
    tr_watchdog_watch(j->watchdog, END_LIMIT, tr_status_exit_code(j->failure.status),
                      "trainer: error: rank %d (%s): did not come to its end within %.0f s after "
                      "the job failed: ends at once",
                      t->rank, t->host, END_LIMIT);
}

void tr_guard_abort(tr_job *j, int exit_code)
{
    tr_watchdog *w = j ? j->watchdog : NULL;
    if (!w && tr_watchdog_open(&w) != TR_OK) {
        signal(SIGALRM, SIG_DFL);
        alarm((unsigned)ABORT_LIMIT);
    }
    tr_watchdog_watch(w, ABORT_LIMIT, exit_code, "%s", "");
}
