/* Memory that all ranks of a node map, from MPI_Win_allocate_shared: rank 0 of the node brings all
 * bytes, the others none, and each then touches what it will work on, so that pages lie near it.
 *
 * Open MPI backs such a window by a file in `osc_sm_backing_directory` (/dev/shm on
 * Linux), named after host and job and unlinked as soon as all have mapped it, so a
 * killed job leaves nothing behind. The file is sparse: a full tmpfs shows only as SIGBUS at the
 * first write. So the room is looked at before, agreed by all ranks, and pages are populated by
 * madvise(), which returns an error where a write would kill. Job names are a 16-bit hash: a number
 * written by one rank and compared by all makes sure that this file is not another job's. */
#include "collectives/waiting/waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Left free a rank: MPI's own segments there are sparse too, 4 MB a rank in Open MPI 4.1. */
#define MARGIN ((size_t)4 << 20)
/* Open MPI itself wants 5 % more room than it is asked for; where it lacks that, its first rank
 * leaves the allocation and the others wait in it for ever. */
#define SPARE 1.06

/* Where Open MPI backs windows. Asking its MPI_T variable instead takes 0.2 s (it registers every
 * component there is); a user's own setting reaches ranks by this name. Wrong at worst about a
 * setting in a parameter file: then populating the pages is what finds out. */
const char *tr_backing_directory(void)
{
    const char *dir = getenv("OMPI_MCA_osc_sm_backing_directory");
    return dir && dir[0] == '/' ? dir : "/dev/shm";
}

typedef struct {
    char host[64], dir[128];
    double need, room; /* bytes */
} tr_room;

/* How much fits the node's backing directory; checked by the node's first rank for all. */
static bool enough(const tr_comm *c, size_t nbytes, tr_room *room)
{
    struct statvfs fs;
    snprintf(room->host, sizeof room->host, "%s", c->topology.host);
    snprintf(room->dir, sizeof room->dir, "%s", tr_backing_directory());
    room->need = (double)nbytes * SPARE + (double)MARGIN * c->topology.local_size;
    if (statvfs(room->dir, &fs) == 0) room->room = (double)fs.f_bavail * (double)fs.f_frsize;
    size_t pretend = tr_env_size("TRIREME_SHM_AVAILABLE", SIZE_MAX); /* tests: bytes there */
    if (pretend != SIZE_MAX) room->room = (double)pretend;
    return c->topology.local_rank != 0 || room->room >= room->need;
}

/* Every rank learns whether all nodes have room, and if not, what the first that has not lacks. */
static tr_status agree_room(tr_comm *c, size_t nbytes, bool *ok, char *reason, size_t size)
{
    tr_status st = TR_OK;
    tr_room room = {0};
    char need[32], have[32];
    int mine = enough(c, nbytes, &room) ? c->topology.size : c->topology.rank, first = 0;
    TR_MPI_TRY(MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, c->comm));
    *ok = first == c->topology.size;
    if (*ok) return TR_OK;
    if (first == c->topology.rank) tr_leftovers_warn(room.dir);
    TR_MPI_TRY(MPI_Bcast(&room, sizeof room, MPI_BYTE, first, c->comm));
    snprintf(reason, size, "shared memory is short: %s needs %s, %s has %s free", room.host,
             tr_format_bytes(room.need, need, sizeof need), room.dir,
             tr_format_bytes(room.room, have, sizeof have));
out:
    return st;
}

/* Why a window is not had; what any node meets counts for all, the last of these first. */
typedef enum { HAD, REFUSED, FULL, FOREIGN } obstacle;

static const char *const reasons[] = {
    [REFUSED] = "MPI_Win_allocate_shared failed on some node",
    [FULL] = "shared memory ran out on some node while a window was opened",
    [FOREIGN] = "MPI_Win_allocate_shared gave ranks of some node different memory, as where two "
                "jobs there have the same name",
};

static tr_status agree_obstacle(tr_comm *c, obstacle mine, obstacle *out)
{
    tr_status st = TR_OK;
    int met = (int)mine, worst = (int)FOREIGN;
    TR_MPI_TRY(MPI_Allreduce(&met, &worst, 1, MPI_INT, MPI_MAX, c->comm));
out:
    *out = (obstacle)worst;
    return st;
}

/* Is the file behind the window ours alone? *Collective* over the node. */
static tr_status try_file(tr_comm *c, char *base, obstacle *met)
{
    tr_status st = TR_OK;
    uint64_t nonce = ((uint64_t)getpid() << 40) ^ (uint64_t)(tr_now() * 1e9);
    bool leads = c->topology.local_rank == 0;
    int touched = 1;
    TR_MPI_TRY(MPI_Bcast(&nonce, 1, MPI_UINT64_T, 0, c->local));
    if (leads) touched = tr_window_touch(base, TR_PAGE);
    TR_MPI_TRY(MPI_Bcast(&touched, 1, MPI_INT, 0, c->local));
    if (touched && leads) *(volatile uint64_t *)base = nonce;
    TR_MPI_TRY(MPI_Barrier(c->local));
    *met = !touched ? FULL : *(volatile uint64_t *)base == nonce ? HAD : FOREIGN;
    TR_MPI_TRY(MPI_Barrier(c->local));
out:
    return st;
}

tr_status tr_window_open(tr_comm *c, size_t nbytes, tr_window *w, bool *got, char *reason,
                         size_t reason_size)
{
    tr_status st = TR_OK;
    bool ok = false;
    obstacle met = HAD;
    size_t total = 0;
    MPI_Aint size = 0;
    int unit = 1;
    char *base = NULL;
    *got = false;
    *w = (tr_window){.win = MPI_WIN_NULL};
    tr_guard_begin(c->job, "opening a window");
    /* one page to find a boundary in, and a whole one at least, as the first is written to try
     * it */
    bool fits =
        tr_add_size(nbytes < TR_PAGE ? TR_PAGE : nbytes, TR_PAGE, &total) && total <= PTRDIFF_MAX;
    TR_NEED(fits, TR_MEMORY, "a window of %zu bytes", nbytes);
    TR_TRY(agree_room(c, total, &ok, reason, reason_size));
    if (!ok) goto out;

    int rc = MPI_Win_allocate_shared(c->topology.local_rank == 0 ? (MPI_Aint)total : 0, 1,
                                     MPI_INFO_NULL, c->local, &base, &w->win);
    if (rc == MPI_SUCCESS) rc = MPI_Win_shared_query(w->win, 0, &size, &unit, &base);
    TR_TRY(agree_obstacle(c, rc == MPI_SUCCESS ? HAD : REFUSED, &met));
    if (met == HAD) {
        w->base = (char *)tr_align_up((size_t)base, TR_PAGE);
        w->nbytes = nbytes;
        TR_TRY(try_file(c, w->base, &met));
        TR_TRY(agree_obstacle(c, met, &met));
    }
    *got = met == HAD;
    if (!*got) snprintf(reason, reason_size, "%s", reasons[met]);
out:
    if (st != TR_OK || !*got) tr_window_close(w, c->job);
    tr_guard_end(c->job);
    return st;
}

void tr_window_close(tr_window *w, tr_job *j)
{
    tr_guard_begin(j, "freeing a window");
    if (w->win != MPI_WIN_NULL && w->win && !j->broken) MPI_Win_free(&w->win);
    tr_guard_end(j);
    *w = (tr_window){.win = MPI_WIN_NULL};
}

/* The kernel writes zeros, and says where it cannot. */
static bool fill(char *p, size_t nbytes)
{
    const int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    while (zero >= 0 && done < nbytes) {
        const ssize_t n = read(zero, p + done, nbytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (zero >= 0) close(zero);
    return done == nbytes;
}

bool tr_window_touch(void *p, size_t nbytes)
{
    if (!nbytes) return true;
#ifdef MADV_POPULATE_WRITE
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (size_t)p / page * page, end = tr_align_up((size_t)p + nbytes, page);
    if (madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0) {
        memset(p, 0, nbytes);
        return true;
    }
    if (errno != EINVAL) return false; /* EFAULT: the file system is full */
#endif
    return fill(p, nbytes); /* a kernel before 5.14 */
}
