/* A farewell: what a rank that gives up says to those that share no memory with it, where a note
 * (tr_notes_give_up) does not reach: ranks of other nodes, and all ranks where there is no shared
 * memory. A message small enough that MPI sends it at once, so that it is under way before its
 * sender ends the job; whoever waits for a peer looks for one twice a second, and before it calls a
 * peer dead. Who heard one says nothing: its sender does.
 *
 * It is as good as the connection: a rank that is killed sends none, and one that is heard too late
 * finds the others complaining as well. Two ranks that fail at the same time on two nodes are both
 * heard by the user. Cost: nothing until something fails, but a probe in waits above half a
 * second. */
#include "collectives/waiting/waiting.h"

#include <string.h>
#include <time.h>

typedef struct {
    int32_t status;
    char host[64];
    char text[TR_ERROR_TEXT];
} words;

static bool reaches(const tr_job *j)
{
    return j->world != MPI_COMM_NULL && tr_peers_apart(j);
}

void tr_farewell_send(tr_job *j, const tr_error *why)
{
    if (!reaches(j) || j->farewell) return;
    words *w = j->farewell = TR_NEW(TR_MEM_OTHER, words);
    if (!w) return; /* they will find us gone */
    w->status = (int32_t)why->status;
    snprintf(w->host, sizeof w->host, "%s", j->topology.host);
    snprintf(w->text, sizeof w->text, "%s", why->text);
    for (int r = 0; r < j->topology.size; r++) {
        MPI_Request q;
        const int local = tr_peers_local(j, r);
        if (r == j->topology.rank || tr_peers_shares(j, r)) continue;
        if (local >= 0 && tr_peers_gone(&j->peers[local])) continue;
        if (MPI_Isend(w, (int)sizeof *w, MPI_BYTE, r, TR_TAG_FAREWELL, j->world, &q) == MPI_SUCCESS)
            MPI_Request_free(&q);
    }
}

bool tr_farewell_heard(tr_job *j)
{
    MPI_Status from;
    words w;
    int flag = 0;
    if (!reaches(j)) return false;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TR_TAG_FAREWELL, j->world, &flag, &from) != MPI_SUCCESS || !flag)
        return false;
    if (MPI_Recv(&w, (int)sizeof w, MPI_BYTE, from.MPI_SOURCE, TR_TAG_FAREWELL, j->world, &from) !=
        MPI_SUCCESS)
        return false;
    w.host[sizeof w.host - 1] = w.text[sizeof w.text - 1] = 0;
    j->heard = from.MPI_SOURCE;
    if (w.status == TR_PEER) /* says already who is to blame */
        (void)TR_FAIL(TR_PEER, "%s", w.text);
    else
        (void)TR_FAIL(TR_PEER, "rank %d (%s) gave up: %.900s", j->heard, w.host, w.text);
    return true;
}

void tr_farewell_spoken(const tr_job *j)
{
    const int local = tr_peers_local(j, j->heard);
    for (int i = 0; i < 2000 && j->heard >= 0; i++) {
        if (local >= 0 && tr_peers_gone(&j->peers[local])) break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
