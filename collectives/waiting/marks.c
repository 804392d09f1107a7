/* Marks: what each rank says of itself, so that the others know for whom they wait. Busy: it is off
 * doing something that takes as long as it takes (tr_comm_busy). Waiting: it waits for others, so
 * it is not the one that is late. Who says neither, and is waited for, is: it computes for too
 * long, is stopped, or cannot be reached.
 *
 * Ranks that share memory read each other's marks there (notes.c), the others get them by message:
 * one byte a rank, handed on by MPI at once. That a rank was asked to stop is said once. Busy is
 * said when it begins and when it ends; in between, every eighth of the timeout at most, by the
 * busy rank where it looks for a stop, and for the busy ones of a node by a rank that waits there
 * and sees them run. Waiting is said only in waits that last long, and again every eighth of the
 * timeout, since it holds for half of one: so nothing is to be taken back, and a link that is cut
 * silences all behind it. Who waits and hears that another does answers with its own mark, so that
 * one who came late is not taken for one who did not come.
 *
 *     rank 0 (host a)   rank 1 (host a)   rank 2 (host b)
 *     waits             stopped           waits
 *       `-- waiting ------------------------>        half the timeout is over
 *        <-------------------------- waiting --'     its answer
 *     the timeout is over: rank 1 said nothing, rank 1 is late
 *
 * Cost: ranks - 1 messages of a byte for each mark, and at the start, as MPI connects ranks when
 * they first speak; one probe a wait in jobs that need messages. */
#include "collectives/waiting/waiting.h"

#include <unistd.h>

#define FRESH  0.5   /* of the timeout: so long a rank that said it waits is taken to */
#define REPEAT 0.125 /* of the timeout */

/* A tr_busy, or: */
enum { WAITING = TR_BUSY_KINDS, STOP, SEEN, MARKS };

/* What is sent; MPI may read it as long as it likes. */
static const char said[] = {TR_BUSY_NOT,      TR_BUSY_READS, TR_BUSY_WRITES, TR_BUSY_MEASURES,
                            TR_BUSY_COMPUTES, WAITING,       STOP,           SEEN};
_Static_assert(sizeof said == MARKS, "each mark is sent from its place");

static const char *const doing[TR_BUSY_KINDS] = {"", "reading files", "writing files", "measuring",
                                                 "computing"};

/* A rank of the job. */
typedef struct {
    char host[64];
    int32_t pid, node;
    tr_business busy; /* as heard by message; of this rank: as it said */
    uint64_t heard;   /* messages */
    double waiting;   /* tr_now() when that was heard last; 0: never */
} tr_marked;

struct tr_marks {
    tr_marked *of;    /* [size] */
    double announced; /* when this rank said last that it waits */
    double vouched;   /* and for those of its node that are busy */
    bool asked;       /* somebody said so since */
    bool stop;        /* this rank was asked to stop, or one that shares no memory with it */
    uint64_t sent;    /* messages to each that shares no memory */
};

/* *Collective* over the world. MPI connects two ranks when one first sends to the other, and moves
 * on only while it is called: what a rank says of itself before it goes off would stay with it
 * until it is back. So all pairs meet once. */
static tr_status greet(const tr_job *j)
{
    tr_status st = TR_OK;
    const int size = j->topology.size, me = j->topology.rank;
    char theirs;
    for (int d = 1; d < size; d++)
        TR_MPI_TRY(MPI_Sendrecv(&said[TR_BUSY_NOT], 1, MPI_CHAR, (me + d) % size, TR_TAG_GREETING,
                                &theirs, 1, MPI_CHAR, (me + size - d) % size, TR_TAG_GREETING,
                                j->world, MPI_STATUS_IGNORE));
out:
    return st;
}

tr_status tr_marks_open(tr_job *j)
{
    tr_status st = TR_OK;
    const tr_topology *t = &j->topology;
    tr_marked mine = {.pid = getpid(), .node = t->node};
    tr_marks *m = TR_NEW(TR_MEM_OTHER, tr_marks);
    if (m) m->of = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *m->of);
    st = tr_mpi_have(j->world, m && m->of, "the list of ranks");
    if (st != TR_OK) { /* no rank has marks: to close them is collective */
        if (m) tr_free(m->of);
        tr_free(m);
        return st;
    }
    j->marks = m;
    snprintf(mine.host, sizeof mine.host, "%s", t->host);
    TR_MPI_TRY(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, m->of, sizeof mine, MPI_BYTE, j->world));
    TR_TRY(greet(j));
out:
    return st;
}

static bool reaches(const tr_job *j)
{
    return j->marks && tr_peers_apart(j);
}

static void send_mark(tr_job *j, int mark)
{
    if (!reaches(j) || j->broken) return;
    j->marks->sent++;
    for (int r = 0; r < j->topology.size; r++) {
        MPI_Request q;
        const int local = tr_peers_local(j, r);
        if (r == j->topology.rank || tr_peers_shares(j, r)) continue;
        if (local >= 0 && tr_peers_gone(&j->peers[local])) continue;
        if (MPI_Isend(&said[mark], 1, MPI_CHAR, r, TR_TAG_MARK, j->world, &q) == MPI_SUCCESS)
            MPI_Request_free(&q);
    }
}

static void set_busy(tr_business *b, tr_busy what)
{
    b->said = tr_now();
    if (!b->what) b->since = b->said;
    b->what = what;
}

/* A rank of this node sees its busy ones run: as good as their word. */
static void hear_seen(tr_job *j, int node)
{
    for (int r = 0; r < j->topology.size; r++) {
        tr_marked *m = &j->marks->of[r];
        if (m->node == node && m->busy.what) m->busy.said = tr_now();
    }
}

/* One that is there, or is known to come. */
static bool take(tr_job *j, int rank)
{
    MPI_Status from;
    char mark = TR_BUSY_NOT;
    if (MPI_Recv(&mark, 1, MPI_CHAR, rank, TR_TAG_MARK, j->world, &from) != MPI_SUCCESS)
        return false;
    tr_marked *m = &j->marks->of[rank];
    m->heard++;
    if (mark == SEEN)
        hear_seen(j, m->node);
    else if (mark == WAITING) {
        m->waiting = tr_now();
        j->marks->asked = true;
    } else if (mark == STOP)
        j->marks->stop = true;
    else
        set_busy(&m->busy, (tr_busy)mark);
    return true;
}

void tr_marks_hear(tr_job *j)
{
    MPI_Status from;
    int flag = 1;
    if (!reaches(j) || j->broken) return;
    while (MPI_Iprobe(MPI_ANY_SOURCE, TR_TAG_MARK, j->world, &flag, &from) == MPI_SUCCESS && flag)
        if (!take(j, from.MPI_SOURCE)) return;
}

/* *Collective.* What is still on its way would reach the next communicator that MPI gives this
 * one's number. */
static void hear_all(tr_job *j)
{
    uint64_t *sent = tr_alloc(TR_MEM_OTHER, (size_t)j->topology.size, sizeof *sent);
    bool all = false;
    if (tr_mpi_all(j->world, sent != NULL, &all) == TR_OK && all && sent &&
        MPI_Allgather(&j->marks->sent, 1, MPI_UINT64_T, sent, 1, MPI_UINT64_T, j->world) ==
            MPI_SUCCESS)
        for (int r = 0; r < j->topology.size; r++)
            while (r != j->topology.rank && !tr_peers_shares(j, r) &&
                   j->marks->of[r].heard < sent[r])
                if (!take(j, r)) break;
    tr_free(sent);
}

void tr_marks_close(tr_job *j)
{
    if (!j->marks) return;
    if (reaches(j) && !j->broken) hear_all(j);
    tr_free(j->marks->of);
    tr_free(j->marks);
    j->marks = NULL;
}

void tr_marks_waiting(tr_job *j, double waited)
{
    tr_marks *m = j->marks;
    const double now = tr_now();
    if (!m || now - m->announced < REPEAT * j->timeout) return;
    if (waited < j->timeout / 2 && !m->asked) return;
    m->announced = now;
    m->asked = false;
    tr_notes_wait(j, now);
    send_mark(j, WAITING);
}

/* It is for the first of this node's ranks that is not busy to say. */
static bool sees_busy_run(const tr_job *j)
{
    bool any = false;
    for (int i = 0; i < j->topology.local_size; i++) {
        const bool busy = tr_marks_business(j, j->peers[i].rank).what;
        const tr_peer_state s = busy ? tr_peers_state(&j->peers[i]) : TR_PEER_RUNS;
        if (s == TR_PEER_UNSEEN || s == TR_PEER_STOPPED) return false;
        if (!busy && i < j->topology.local_rank) return false;
        any |= busy;
    }
    return any;
}

void tr_marks_vouch(tr_job *j)
{
    tr_marks *m = j->marks;
    const double now = tr_now();
    if (j->topology.nodes < 2 || now - m->vouched < REPEAT * j->timeout) return;
    m->vouched = now;
    if (sees_busy_run(j)) send_mark(j, SEEN);
}

static tr_business *own_business(const tr_job *j)
{
    return &j->marks->of[j->topology.rank].busy;
}

void tr_comm_busy(tr_comm *c, tr_busy what)
{
    tr_job *j = c->job;
    if (!j->marks || (!what && !own_business(j)->what)) return;
    set_busy(own_business(j), what);
    tr_notes_busy(j, own_business(j));
    send_mark(j, (int)what);
}

void tr_comm_ask_stop(tr_comm *c)
{
    tr_job *j = c->job;
    if (!j->marks || j->marks->stop) return;
    j->marks->stop = true;
    tr_notes_stop(j);
    send_mark(j, STOP);
}

bool tr_comm_stop_asked(tr_comm *c)
{
    tr_job *j = c->job;
    if (!j->marks) return false;
    const tr_business *own = own_business(j);
    if (own->what && tr_now() - own->said > REPEAT * j->timeout) tr_comm_busy(c, own->what);
    tr_marks_hear(j);
    return j->marks->stop || tr_notes_stops(j);
}

tr_business tr_marks_business(const tr_job *j, int rank)
{
    if (!j->marks) return (tr_business){0};
    return tr_peers_shares(j, rank) ? tr_notes_business(j, tr_peers_local(j, rank))
                                    : j->marks->of[rank].busy;
}

bool tr_marks_waits(const tr_job *j, int rank)
{
    if (!j->marks) return false;
    const double at = tr_peers_shares(j, rank) ? tr_notes_waits(j, tr_peers_local(j, rank))
                                               : j->marks->of[rank].waiting;
    return at > 0 && tr_now() - at < FRESH * j->timeout;
}

size_t tr_marks_name(const tr_job *j, int rank, char *buf, size_t size)
{
    static const char *const states[] = {
        [TR_PEER_IN_IO] = ", in uninterruptible I/O", [TR_PEER_STOPPED] = ", stopped"};
    const tr_marked *m = &j->marks->of[rank];
    const tr_business b = tr_marks_business(j, rank);
    const int local = tr_peers_local(j, rank);
    const bool near = local >= 0;
    const tr_peer_state s = near ? tr_peers_state(&j->peers[local]) : TR_PEER_UNSEEN;
    char busy[64] = "";
    if (b.what)
        snprintf(busy, sizeof busy, ", busy %s for %.0f s", doing[b.what], tr_now() - b.since);
    const int n = snprintf(buf, size, "rank %d (%s%spid %d%s%s)", rank, near ? "" : m->host,
                           near ? "" : ", ", (int)m->pid, busy, states[s] ? states[s] : "");
    return n < (int)size ? (size_t)n : size - 1;
}
