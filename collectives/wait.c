/* Waiting for peers without a thread: spin with pauses for the few microseconds that a collective
 * takes, then give the core away (at once after 50 us where ranks outnumber cores), and sleep in
 * small bits once the wait is long anyway. Twice a second the peers' processes are looked at. */
#include "collectives/internal.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define SPIN_CROWDED 50e-6
#define SPIN_ALONE   2e-3
#define SLEEP_AFTER  50e-3
#define SLEEP_MPI    1.0
#define CHECK_EVERY  0.5
#define CLOCK_EVERY  16 /* turns between looks at the clock while spinning */

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void tr_wait_init(tr_wait *w, tr_comm *c, const char *what)
{
    *w = (tr_wait){.c = c, .what = what, .step = -1, .bucket = -1};
}

void tr_wait_restart(tr_wait *w)
{
    w->start = 0;
    w->turns = 0;
}

static void describe(const tr_wait *w, char *buf, size_t size)
{
    int n = snprintf(buf, size, "%s", w->what);
    if (w->step >= 0 && n < (int)size)
        n += snprintf(buf + n, size - (size_t)n, " of step %lld", (long long)w->step);
    if (w->bucket >= 0 && n < (int)size)
        snprintf(buf + n, size - (size_t)n, ", bucket %lld", (long long)w->bucket);
}

static tr_status late(const tr_wait *w)
{
    const tr_comm *c = w->c;
    const tr_topology *t = &c->topology;
    char where[160], who[512] = "";
    size_t used = 0;
    describe(w, where, sizeof(where));
    for (int i = 0; w->arrived && i < t->local_size && used < sizeof(who) - 40; i++)
        if (!w->arrived(w->ctx, i))
            used += (size_t)snprintf(who + used, sizeof(who) - used, "%srank %d (pid %d)",
                                     used ? ", " : "", c->peers[i].rank, (int)c->peers[i].pid);
    if (used)
        return TR_FAIL(TR_PEER, "rank %d (%s) waited %.0f s for the %s: not arrived: %s", t->rank,
                       t->host, c->timeout, where, who);
    return TR_FAIL(TR_PEER, "rank %d (%s) waited %.0f s for the %s: some rank%s did not arrive",
                   t->rank, t->host, c->timeout, where,
                   t->nodes > 1 ? ", maybe of another node," : "");
}

tr_status tr_wait_turn(tr_wait *w)
{
    tr_comm *c = w->c;
    if (w->turns++ % CLOCK_EVERY) {
        relax();
        return TR_OK;
    }
    double now = tr_now();
    if (w->start == 0) w->start = w->checked = now;
    double waited = now - w->start;
    if (now - w->checked > CHECK_EVERY || waited > c->timeout) {
        w->checked = now;
        int dead = tr_peers_dead(c, w);
        if (dead >= 0) {
            char where[160];
            describe(w, where, sizeof(where));
            c->broken = true;
            return TR_FAIL(TR_PEER, "rank %d (%s, pid %d) died; rank %d waited for it in the %s",
                           c->peers[dead].rank, c->topology.host, (int)c->peers[dead].pid,
                           c->topology.rank, where);
        }
        if (waited > c->timeout) {
            c->broken = true;
            return late(w);
        }
    }
    if (waited > (w->mpi ? SLEEP_MPI : SLEEP_AFTER)) {
        w->turns = 0; /* look at the clock every turn from now on */
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    } else if (waited > (c->oversubscribed ? SPIN_CROWDED : SPIN_ALONE)) {
        w->turns = 0;
        sched_yield();
    }
    return TR_OK;
}

tr_status tr_wait_request(tr_comm *c, MPI_Request *request, const char *what)
{
    tr_status st = TR_OK;
    tr_wait w;
    tr_wait_init(&w, c, what);
    w.mpi = true;
    for (int flag = 0;;) {
        TR_MPI_TRY(MPI_Test(request, &flag, MPI_STATUS_IGNORE));
        if (flag) break;
        TR_TRY(tr_wait_turn(&w));
    }
out:
    return st;
}
