/* The processes of this node's ranks: whether they live and run, and how many cores they have
 * between them. A pidfd names a process for good, so a number given to a new process, or one that
 * died and was not collected yet, cannot mislead; kernels without pidfds are asked by number. */
#include "collectives/waiting/waiting.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    int64_t rank, pid;
    uint64_t namespace; /* of PIDs: numbers of another one mean nothing here */
    double quota;       /* cores the control group allows; 0: no limit */
    cpu_set_t cores;
} tr_card;

static double cgroup_cores(void)
{
    double quota = 0, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) return 0;
    int n = fscanf(f, "%lf %lf", &quota, &period); /* "max 100000" where there is no limit */
    fclose(f);
    return n == 2 && period > 0 ? quota / period : 0;
}

tr_status tr_peers_open(tr_job *j)
{
    tr_status st = TR_OK;
    int n = j->topology.local_size;
    struct stat ns;
    tr_card mine = {.rank = j->topology.rank, .pid = getpid(), .quota = cgroup_cores()};
    mine.namespace = stat("/proc/self/ns/pid", &ns) == 0 ? (uint64_t)ns.st_ino : 0;
    CPU_ZERO(&mine.cores);
    const bool known = sched_getaffinity(0, sizeof mine.cores, &mine.cores) == 0;

    tr_card *all = tr_alloc(TR_MEM_OTHER, (size_t)n, sizeof *all);
    j->peers = tr_alloc(TR_MEM_OTHER, (size_t)n, sizeof *j->peers);
    for (int i = 0; j->peers && i < n; i++) j->peers[i].fd = -1;
    TR_TRY(tr_mpi_have(j->world, all && j->peers, "the list of a node's ranks"));
    TR_MPI_TRY(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, j->local));

    cpu_set_t cores;
    CPU_ZERO(&cores);
    double quota = 0;
    for (int i = 0; i < n; i++) {
        tr_peer *p = &j->peers[i];
        CPU_OR(&cores, &cores, &all[i].cores);
        if (all[i].quota > quota) quota = all[i].quota;
        p->rank = (int)all[i].rank;
        p->local_rank = i;
        p->pid = (pid_t)all[i].pid;
        p->watched =
            i != j->topology.local_rank && mine.namespace && all[i].namespace == mine.namespace;
        if (p->watched) p->fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    }
    /* a mask has no room for more than 1,024 CPUs */
    double available = known ? CPU_COUNT(&cores) : (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (quota > 0 && quota < available) available = quota;
    j->oversubscribed = n > available;
out:
    tr_free(all);
    return st;
}

void tr_peers_close(tr_job *j)
{
    for (int i = 0; j->peers && i < j->topology.local_size; i++)
        if (j->peers[i].fd >= 0) close(j->peers[i].fd);
    tr_free(j->peers);
    j->peers = NULL;
}

int tr_peers_local(const tr_job *j, int rank)
{
    for (int i = 0; j->peers && i < j->topology.local_size; i++)
        if (j->peers[i].rank == rank) return i;
    return -1;
}

bool tr_peers_shares(const tr_job *j, int rank)
{
    return j->notes && tr_peers_local(j, rank) >= 0;
}

bool tr_peers_apart(const tr_job *j)
{
    return j->topology.size > 1 && (!j->notes || j->topology.nodes > 1);
}

static bool gone(const tr_peer *p)
{
    if (p->fd >= 0) {
        struct pollfd f = {.fd = p->fd, .events = POLLIN};
        return poll(&f, 1, 0) == 1 && (f.revents & POLLIN);
    }
    return tr_process_gone(p->pid);
}

bool tr_peers_gone(const tr_peer *p)
{
    return p->watched && gone(p);
}

tr_peer_state tr_peers_state(const tr_peer *p)
{
    const char state = p->watched && p->fd >= 0 ? tr_process_state(p->pid) : (char)0;
    if (!state) return TR_PEER_UNSEEN;
    if (state == 'T' || state == 't') return TR_PEER_STOPPED;
    return state == 'D' ? TR_PEER_IN_IO : TR_PEER_RUNS;
}

tr_status tr_peers_pick(tr_comm *c)
{
    tr_status st = TR_OK;
    const size_t n = (size_t)c->topology.local_size;
    const int mine = c->job->topology.local_rank;
    int *all = tr_alloc(TR_MEM_OTHER, n, sizeof *all);
    c->peers = tr_alloc(TR_MEM_OTHER, n, sizeof *c->peers);
    TR_TRY(tr_mpi_have(c->comm, all && c->peers, "the list of a node's ranks"));
    TR_MPI_TRY(MPI_Allgather(&mine, 1, MPI_INT, all, 1, MPI_INT, c->local));
    for (size_t i = 0; i < n; i++) c->peers[i] = c->job->peers[all[i]];
out:
    tr_free(all);
    return st;
}

int tr_peers_dead(const tr_comm *c, const tr_wait *w)
{
    for (int i = 0; c->peers && i < c->topology.local_size; i++) {
        if (!tr_peers_gone(&c->peers[i])) continue;
        if (w->arrived && w->arrived(w->ctx, i)) continue; /* came, did its part, and ended */
        return i;
    }
    return -1;
}
