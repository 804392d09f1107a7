/* Waiting for peers without a thread: spin with pauses for the few microseconds that a collective
 * takes, then give the core away (at once after 50 us where ranks outnumber cores), and sleep in
 * small bits once the wait is long anyway. Twice a second the peers' processes are looked at, and
 * what they say of themselves (marks.c).
 *
 * Where somebody else runs on our core, spinning spends our share of it, which is then missing for
 * work, and sched_yield gives away a whole slice. A spin that lost the core shows it: two looks at
 * the clock lie far apart. For a while after that, the longer the more was lost, waits sleep in
 * small bits from 50 us on, so that the scheduler lets us run as soon as there is work.
 *
 * What counts towards the timeout is time in which this process ran and no missing peer was
 * excused: by being busy, or by a wait that is patient, while its process runs. One that is stopped
 * (SIGSTOP, a debugger) is not excused; one in uninterruptible I/O is, which goes on once the file
 * system answers. Who is busy for longer than the timeout is told.
 *
 * What a process of another node does is not seen from here. A rank of that node which waits as
 * well vouches for it, or gives up for all. Where none waits there, the busy rank is heard of when
 * it looks for a stop, and silence beyond the timeout counts a tenth. No thread beside could repeat
 * its word: that takes MPI_THREAD_MULTIPLE, with which some transports do not start (UCX built
 * without it) or step aside (usNIC, iWARP), and locks of MPI's, which the watchdog must never wait
 * for. */
#include "collectives/waiting/waiting.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define SPIN_CROWDED 50e-6
#define SPIN_ALONE   2e-3
#define SLEEP_AFTER  50e-3
#define SLEEP_MPI    1.0
#define LOST_LEAST                                                                                 \
    300e-6 /* between two looks at the clock: more than a spin or a bit of sleep takes */
#define LOST_COUNTS  100.0  /* so many times what was lost, the core counts as shared */
#define SLEEP_DEVICE 200e-6 /* it has the next step already: nobody waits for us to look */
#define CHECK_EVERY  0.5
#define CLOCK_EVERY  16  /* turns between looks at the clock while spinning */
#define TURN_MAX     1.0 /* seconds: a turn that took longer was no waiting, we were stopped */
#define SILENT       0.1 /* what a second counts while a busy rank is silent that nobody sees */

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
    tr_marks_hear(c->job); /* or unheard marks would pile up where no wait is long */
}

void tr_wait_restart(tr_wait *w)
{
    w->last = w->waited = w->counted = w->unlooked = 0;
    w->turns = 0;
}

/* Index of the job's peer among those of the communicator; -1: no member. */
static int member(const tr_comm *c, int job_local_rank)
{
    for (int i = 0; i < c->topology.local_size; i++)
        if (c->peers[i].local_rank == job_local_rank) return i;
    return -1;
}

/* The group's local rank of its rank r; -1: it is on another node. */
static int local_of(const tr_comm *c, int r)
{
    const int local = tr_peers_local(c->job, c->ranks[r]);
    return local < 0 ? -1 : member(c, local);
}

/* May the wait be for this rank of our node? */
static bool maybe_missing(const tr_wait *w, int local_rank)
{
    if (local_rank == w->c->topology.local_rank) return false;
    return !w->arrived || !w->arrived(w->ctx, local_rank);
}

/* And for this rank of the group? Of those on other nodes it cannot be known. */
static bool maybe_for(const tr_wait *w, int r)
{
    const int local = local_of(w->c, r);
    return local >= 0 ? maybe_missing(w, local) : r != w->c->topology.rank;
}

/* What a second of waiting for this rank of the group counts. One that waits itself is no
 * excuse. */
static double weight(const tr_wait *w, int r)
{
    const tr_comm *c = w->c;
    const tr_business b = tr_marks_business(c->job, c->ranks[r]);
    if ((!b.what && !c->patient) || !maybe_for(w, r) || tr_marks_waits(c->job, c->ranks[r]))
        return 1;
    const int local = local_of(c, r);
    const tr_peer_state s = local >= 0 ? tr_peers_state(&c->peers[local]) : TR_PEER_UNSEEN;
    if (s != TR_PEER_UNSEEN) return s == TR_PEER_STOPPED;
    return c->patient || tr_now() - b.said < c->job->timeout ? 0 : SILENT;
}

/* Of waiting for all that are missing: one excuses the others, which may wait for it. */
static double least_weight(const tr_wait *w)
{
    double least = 1;
    for (int r = 0; r < w->c->topology.size && least > 0; r++) {
        const double of = weight(w, r);
        if (of < least) least = of;
    }
    return least;
}

static void describe(const tr_wait *w, char *buf, size_t size)
{
    int n = snprintf(buf, size, "%s", w->what);
    if (w->step >= 0 && n < (int)size)
        n += snprintf(buf + n, size - (size_t)n, " of step %lld", (long long)w->step);
    if (w->bucket >= 0 && n < (int)size)
        snprintf(buf + n, size - (size_t)n, ", bucket %lld", (long long)w->bucket);
}

/* Adds a rank to a list; what has no room is counted. */
static void add_name(const tr_job *j, int rank, char *buf, size_t size, size_t *used, size_t *more)
{
    if (tr_marks_waits(j, rank)) return;
    if (*used + 160 > size) {
        ++*more;
        return;
    }
    *used += (size_t)snprintf(buf + *used, size - *used, "%s", *used ? ", " : "");
    *used += tr_marks_name(j, rank, buf + *used, size - *used);
}

size_t tr_wait_missing(const tr_wait *w, char *buf, size_t size)
{
    const tr_comm *c = w->c;
    size_t used = 0, more = 0;
    buf[0] = 0;
    for (int r = 0; r < c->topology.size; r++)
        if (maybe_for(w, r)) add_name(c->job, c->ranks[r], buf, size, &used, &more);
    if (more) used += (size_t)snprintf(buf + used, size - used, " and %zu more", more);
    return used;
}

/* Of all the job's ranks: those of a group may wait for one that is none of it. */
static size_t missing_elsewhere(const tr_job *j, char *buf, size_t size)
{
    size_t used = 0, more = 0;
    buf[0] = 0;
    for (int r = 0; r < j->topology.size; r++)
        if (r != j->topology.rank) add_name(j, r, buf, size, &used, &more);
    if (more) used += (size_t)snprintf(buf + used, size - used, " and %zu more", more);
    return used;
}

/* Is this rank the first of those that wait? */
static bool speaks(const tr_comm *c)
{
    for (int r = 0; r < c->topology.rank; r++)
        if (!tr_marks_business(c->job, c->ranks[r]).what) return false;
    return true;
}

/* Once a wait, by one rank: a file system that no longer answers ends nothing. */
static void warn_of_busy(tr_wait *w)
{
    const tr_comm *c = w->c;
    const tr_job *j = c->job;
    size_t used = 0, more = 0;
    char who[512] = "", where[160];
    if (w->warned || w->waited < j->timeout || !speaks(c)) return;
    for (int r = 0; r < c->topology.size; r++) {
        const tr_business b = tr_marks_business(j, c->ranks[r]);
        if (b.what && tr_now() - b.since > j->timeout && maybe_for(w, r))
            add_name(j, c->ranks[r], who, sizeof who, &used, &more);
    }
    if (!used) return;
    w->warned = true;
    describe(w, where, sizeof where);
    if (more) snprintf(who + used, sizeof who - used, " and %zu more", more);
    tr_log(TR_LOG_WARN, "rank %d (%s) has waited %.0f s for the %s, and waits on: for %s",
           j->topology.rank, j->topology.host, w->waited, where, who);
}

static tr_status late(const tr_wait *w)
{
    const tr_comm *c = w->c;
    const tr_topology *t = &c->job->topology;
    char where[160], who[512] = "";
    if (w->late) return w->late(w);
    describe(w, where, sizeof where);
    if (tr_wait_missing(w, who, sizeof who))
        return TR_FAIL(TR_PEER, "rank %d (%s) waited %.0f s for the %s: not arrived: %s", t->rank,
                       t->host, w->waited, where, who);
    if (c->topology.size < t->size && missing_elsewhere(c->job, who, sizeof who))
        return TR_FAIL(TR_PEER,
                       "rank %d (%s) waited %.0f s for the %s, whose ranks wait as well; not heard "
                       "of: %s",
                       t->rank, t->host, w->waited, where, who);
    return TR_FAIL(
        TR_PEER, "rank %d (%s) waited %.0f s for the %s%s", t->rank, t->host, w->waited, where,
        t->size == 1 ? "" : ": all other ranks wait as well, for this or for something else");
}

/* A peer that gave up comes no more; what it gave up over is what went wrong, not that it left. So
 * it is where the peer is no member: those that we wait for may wait for it, and be on another
 * node. */
static tr_status told(const tr_wait *w)
{
    const tr_comm *c = w->c;
    const tr_job *j = c->job;
    tr_error why;
    for (int p = 0; j->notes && p < j->topology.local_size; p++) {
        const int i = member(c, p);
        if (p == j->topology.local_rank || (i >= 0 && !maybe_missing(w, i))) continue;
        if (!tr_notes_gave_up(j, p, &why)) continue;
        if (why.status != TR_PEER)
            return TR_FAIL(TR_PEER, "rank %d gave up: %.900s", j->peers[p].rank, why.text);
        tr_set_error(&why);
        return TR_PEER;
    }
    return tr_farewell_heard(c->job) ? TR_PEER : TR_OK;
}

tr_status tr_wait_look(const tr_wait *w)
{
    tr_comm *c = w->c;
    tr_marks_hear(c->job);
    if (c->job->stop_asked && c->job->stop_asked()) tr_comm_ask_stop(c);
    tr_marks_waiting(c->job, c->patient ? w->waited : w->counted);
    if (told(w) != TR_OK) return TR_PEER;
    int dead = tr_peers_dead(c, w);
    if (dead >= 0) {
        char where[160];
        if (told(w) != TR_OK) return TR_PEER; /* between the two looks */
        describe(w, where, sizeof where);
        return TR_FAIL(TR_PEER, "rank %d (%s, pid %d) died; rank %d waited for it in the %s",
                       c->peers[dead].rank, c->topology.host, (int)c->peers[dead].pid,
                       c->job->topology.rank, where);
    }
    return TR_OK;
}

/* What counts of the time since the last look. */
static tr_status count(tr_wait *w)
{
    const double of = least_weight(w);
    w->counted = of > 0 ? w->counted + of * w->unlooked : 0;
    w->unlooked = 0;
    if (of < 1) warn_of_busy(w);
    if (of == 0) tr_marks_vouch(w->c->job);
    return w->counted > w->c->job->timeout ? late(w) : TR_OK;
}

static double sleep_after(const tr_wait *w)
{
    return w->device ? SLEEP_DEVICE : w->mpi ? SLEEP_MPI : SLEEP_AFTER;
}

/* Often enough for marks to come and go within the timeout. */
static double check_every(const tr_job *j)
{
    return j->timeout / 16 < CHECK_EVERY ? j->timeout / 16 : CHECK_EVERY;
}

/* Only a wait that does nothing but look tells: MPI and the device's driver may take their time,
 * and ranks that share a core lose it to each other. */
void tr_wait_lost(const tr_wait *w, double now, double passed)
{
    tr_job *j = w->c->job;
    if (passed < LOST_LEAST || w->mpi || w->device || j->oversubscribed) return;
    const double until = now + LOST_COUNTS * passed;
    if (until > j->shared_until) j->shared_until = until;
}

tr_wait_way tr_wait_way_at(const tr_wait *w, double now)
{
    const tr_job *j = w->c->job;
    const bool shared = now < j->shared_until;
    if (w->waited > sleep_after(w)) return TR_WAIT_SLEEP;
    if (w->waited <= (j->oversubscribed || shared ? SPIN_CROWDED : SPIN_ALONE)) return TR_WAIT_SPIN;
    return shared && !w->mpi ? TR_WAIT_SLEEP
                             : TR_WAIT_YIELD; /* MPI moves only while it is called */
}

tr_status tr_wait_turn(tr_wait *w)
{
    tr_comm *c = w->c;
    if (w->turns++ % CLOCK_EVERY) {
        relax();
        return TR_OK;
    }
    double now = tr_now();
    if (w->last == 0) w->last = now;
    double passed = now - w->last;
    double longest = c->job->timeout / 4 < TURN_MAX ? c->job->timeout / 4 : TURN_MAX;
    if (passed > longest) passed = longest;
    tr_wait_lost(w, now, passed);
    w->last = now;
    w->waited += passed;
    w->unlooked += passed;
    if (w->unlooked > check_every(c->job)) {
        tr_status st = tr_wait_look(w);
        if (st == TR_OK) st = count(w);
        if (st != TR_OK) return tr_comm_break(c, st);
    }
    const tr_wait_way way = tr_wait_way_at(w, now);
    if (way == TR_WAIT_SPIN) return TR_OK;
    w->turns = 0; /* look at the clock every turn from now on */
    if (way == TR_WAIT_SLEEP)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    else
        sched_yield();
    return TR_OK;
}

tr_status tr_wait_request(tr_wait *w, MPI_Request *request, MPI_Status *status)
{
    tr_status st = TR_OK;
    for (int flag = 0;;) {
        TR_MPI_TRY(MPI_Test(request, &flag, status));
        if (flag) break;
        TR_TRY(tr_wait_turn(w));
    }
out:
    return st;
}
