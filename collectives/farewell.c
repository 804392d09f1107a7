/* A farewell: what a rank that gives up says to those that share no memory with it, where a note
 * (tr_node_give_up) does not reach: ranks of other nodes, and all ranks where shared memory is not
 * to be had. A message small enough that MPI sends it at once, so that it is under way before its
 * sender ends the job; whoever waits for a peer looks for one twice a second, and before it calls a
 * peer dead. Who heard one says nothing: its sender does.
 *
 * It is as good as the connection: a rank that is killed sends none, and one that is heard too late
 * finds the others complaining as well. Two ranks that fail at the same time on two nodes are both
 * heard by the user. Cost: nothing until something fails, but a probe in waits above half a second.
 */
#include "collectives/internal.h"

#include <string.h>
#include <time.h>

#define TAG_FAREWELL                                                                               \
    8 /* beside NCCL's set-up (nccl/nccl.c) the only message on this communicator */

typedef struct {
    int32_t status;
    char host[64];
    char text[TR_ERROR_TEXT];
} words;

static bool reaches(const tr_comm *c)
{
    return c->world != MPI_COMM_NULL && c->topology.size > 1 && (!c->node || c->topology.nodes > 1);
}

/* Index among the node's ranks, or -1. */
static int local_of(const tr_comm *c, int rank)
{
    for (int i = 0; c->peers && i < c->topology.local_size; i++)
        if (c->peers[i].rank == rank) return i;
    return -1;
}

bool tr_farewell_shares(const tr_comm *c, int rank)
{
    return c->node && local_of(c, rank) >= 0;
}

void tr_farewell_send(tr_comm *c, const tr_error *why)
{
    if (!reaches(c) || c->farewell) return;
    words *w = c->farewell = TR_NEW(TR_MEM_OTHER, words);
    if (!w) return; /* they will find us gone */
    w->status = (int32_t)why->status;
    snprintf(w->host, sizeof(w->host), "%s", c->topology.host);
    snprintf(w->text, sizeof(w->text), "%s", why->text);
    for (int r = 0; r < c->topology.size; r++) {
        MPI_Request q;
        const int local = local_of(c, r);
        if (r == c->topology.rank || tr_farewell_shares(c, r)) continue;
        if (local >= 0 && tr_peers_gone(c, local)) continue;
        if (MPI_Isend(w, (int)sizeof(*w), MPI_BYTE, r, TAG_FAREWELL, c->world, &q) == MPI_SUCCESS)
            MPI_Request_free(&q);
    }
}

bool tr_farewell_heard(tr_comm *c)
{
    MPI_Status from;
    words w;
    int flag = 0;
    if (!reaches(c)) return false;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAREWELL, c->world, &flag, &from) != MPI_SUCCESS || !flag)
        return false;
    if (MPI_Recv(&w, (int)sizeof(w), MPI_BYTE, from.MPI_SOURCE, TAG_FAREWELL, c->world, &from) !=
        MPI_SUCCESS)
        return false;
    w.host[sizeof(w.host) - 1] = w.text[sizeof(w.text) - 1] = 0;
    c->heard = from.MPI_SOURCE;
    if (w.status == TR_PEER) /* says already who is to blame */
        (void)TR_FAIL(TR_PEER, "%s", w.text);
    else
        (void)TR_FAIL(TR_PEER, "rank %d (%s) gave up: %.900s", c->heard, w.host, w.text);
    return true;
}

void tr_farewell_spoken(const tr_comm *c)
{
    const int local = local_of(c, c->heard);
    for (int i = 0; i < 2000 && c->heard >= 0; i++) {
        if (local >= 0 && tr_peers_gone(c, local)) break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
