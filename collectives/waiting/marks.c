/* Marks: what each rank says of itself, so that the others know for whom they wait. Busy: it is off
 * doing something that takes as long as it takes (tr_comm_busy). Waiting: it waits for others, so
 * it is not the one that is late. Who says neither, and is waited for, is: it computes for too long,
 * is stopped, or cannot be reached.
 *
 * Ranks that share memory read each other's marks there (notes.c), the others get them by message:
 * one byte a rank, handed on by MPI at once. Busy is said when it begins and when it ends, that a rank was asked to stop once. Waiting
 * is said only in waits that last long, and again every eighth of the timeout, since it holds for
 * half of one: so nothing is to be taken back, and a link that is cut silences all behind it. Who
 * waits and hears that another does answers with its own mark, so that one who came late is not
 * taken for one who did not come.
 *
 *     rank 0 (host a)   rank 1 (host a)   rank 2 (host b)
 *     waits             stopped           waits
 *       `-- waiting ------------------------>        half the timeout is over
 *        <-------------------------- waiting --'     its answer
 *     the timeout is over: rank 1 said nothing, rank 1 is late
 *
 * Cost: ranks - 1 messages of a byte for each mark, and at the start, as MPI connects ranks when they
 * first speak; one probe a wait in jobs that need messages. */
#include "collectives/waiting/waiting.h"

#include <unistd.h>

#define FRESH  0.5   /* of the timeout: so long a rank that said it waits is taken to */
#define REPEAT 0.125 /* of the timeout */

enum { AT_WORK, BUSY, WAITING, STOP, MARKS };

/* What is sent; MPI may read it as long as it likes. */
static const char said[MARKS] = {AT_WORK, BUSY, WAITING, STOP};

/* A rank of the job. */
typedef struct {
    char host[64];
    int32_t pid;
    int32_t local_rank; /* among this node's ranks; -1: it is on another node */
    bool busy;          /* as heard by message */
    uint64_t heard;     /* messages */
    double waiting;     /* tr_now() when that was heard last; 0: never */
} tr_marked;

struct tr_marks {
    tr_marked *of;    /* [size] */
    double announced; /* when this rank said last that it waits */
    bool asked;       /* somebody said so since */
    bool stop;        /* this rank was asked to stop, or one that shares no memory with it */
    uint64_t sent;    /* messages to each that shares no memory */
};

/* *Collective* over the world. MPI connects two ranks when one first sends to the other, and moves on only while
 * it is called: what a rank says of itself before it goes off would stay with it until it is back. So all
 * pairs meet once. */
static tr_status greet(const tr_job *j)
{
    tr_status st = TR_OK;
    const int size = j->topology.size, me = j->topology.rank;
    char theirs;
    for (int d = 1; d < size; d++)
        TR_MPI_TRY(MPI_Sendrecv(&said[AT_WORK], 1, MPI_CHAR, (me + d) % size, TR_TAG_GREETING,
                                &theirs, 1, MPI_CHAR, (me + size - d) % size, TR_TAG_GREETING,
                                j->world, MPI_STATUS_IGNORE));
out:
    return st;
}

tr_status tr_marks_open(tr_job *j)
{
    tr_status st = TR_OK;
    const tr_topology *t = &j->topology;
    tr_marked mine = {.pid = getpid()};
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
    for (int r = 0; r < t->size; r++) m->of[r].local_rank = -1;
    for (int i = 0; i < t->local_size; i++) m->of[j->peers[i].rank].local_rank = i;
    TR_TRY(greet(j));
out:
    return st;
}

/* Some ranks share no memory with this one. */
static bool reaches(const tr_job *j)
{
    return j->marks && j->topology.size > 1 && (!j->notes || j->topology.nodes > 1);
}

static bool shares(const tr_job *j, int rank)
{
    return j->notes && j->marks->of[rank].local_rank >= 0;
}

static void send_mark(tr_job *j, int mark)
{
    if (!reaches(j) || j->broken) return;
    j->marks->sent++;
    for (int r = 0; r < j->topology.size; r++) {
        MPI_Request q;
        const int local = j->marks->of[r].local_rank;
        if (r == j->topology.rank || shares(j, r)) continue;
        if (local >= 0 && tr_peers_gone(&j->peers[local])) continue;
        if (MPI_Isend(&said[mark], 1, MPI_CHAR, r, TR_TAG_MARK, j->world, &q) == MPI_SUCCESS)
            MPI_Request_free(&q);
    }
}

/* One that is there, or is known to come. */
static bool take(tr_job *j, int rank)
{
    MPI_Status from;
    char mark = AT_WORK;
    if (MPI_Recv(&mark, 1, MPI_CHAR, rank, TR_TAG_MARK, j->world, &from) != MPI_SUCCESS)
        return false;
    tr_marked *m = &j->marks->of[rank];
    m->heard++;
    if (mark == WAITING) {
        m->waiting = tr_now();
        j->marks->asked = true;
    } else if (mark == STOP)
        j->marks->stop = true;
    else
        m->busy = mark == BUSY;
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

/* *Collective.* What is still on its way would reach the next communicator that MPI gives this one's
 * number. */
static void hear_all(tr_job *j)
{
    uint64_t *sent = tr_alloc(TR_MEM_OTHER, (size_t)j->topology.size, sizeof *sent);
    bool all = false;
    if (tr_mpi_all(j->world, sent != NULL, &all) == TR_OK && all && sent &&
        MPI_Allgather(&j->marks->sent, 1, MPI_UINT64_T, sent, 1, MPI_UINT64_T, j->world) ==
            MPI_SUCCESS)
        for (int r = 0; r < j->topology.size; r++)
            while (r != j->topology.rank && !shares(j, r) && j->marks->of[r].heard < sent[r])
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

void tr_comm_busy(tr_comm *c, bool busy)
{
    tr_notes_work(c->job, busy);
    send_mark(c->job, busy ? BUSY : AT_WORK);
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
    if (!c->job->marks) return false;
    tr_marks_hear(c->job);
    return c->job->marks->stop || tr_notes_stops(c->job);
}

bool tr_marks_busy(const tr_job *j, int rank)
{
    if (!j->marks) return false;
    return shares(j, rank) ? tr_notes_busy(j, j->marks->of[rank].local_rank)
                           : j->marks->of[rank].busy;
}

bool tr_marks_waits(const tr_job *j, int rank)
{
    if (!j->marks) return false;
    const double at = shares(j, rank) ? tr_notes_waits(j, j->marks->of[rank].local_rank)
                                      : j->marks->of[rank].waiting;
    return at > 0 && tr_now() - at < FRESH * j->timeout;
}

int tr_marks_local(const tr_job *j, int rank)
{
    return j->marks ? j->marks->of[rank].local_rank : -1;
}

size_t tr_marks_name(const tr_job *j, int rank, char *buf, size_t size)
{
    const tr_marked *m = &j->marks->of[rank];
    const char *busy = tr_marks_busy(j, rank) ? ", busy" : "";
    int n = m->local_rank >= 0
                ? snprintf(buf, size, "rank %d (pid %d%s)", rank, (int)m->pid, busy)
                : snprintf(buf, size, "rank %d (%s, pid %d%s)", rank, m->host, (int)m->pid, busy);
    return n < (int)size ? (size_t)n : size - 1;
}
