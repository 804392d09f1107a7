/* What looks at datasets found (hdf5_ask.c), so that no process looks again at what has not
 * changed: a job opens the same file for several stages, and the ranks of a node hand each other
 * what one of them saw. Files are told by device, inode, size and times, so that whoever sees
 * another file at a path does not find it. The last MOST sights, in a fixed room. Only successes:
 * what failed may have been repaired elsewhere, and is told with its own words.
 *
 * Times are of a clock that ticks: two writes within a tick leave the same. So what is known of a
 * file that was written to right before is for the opening alone that looked, and forgotten behind
 * it (tr_hdf5_forget_new); where its time has no parts of a second, that is as long as the coarsest
 * file systems need. */
#include "runtime/data/hdf5.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#define MOST     64
#define TICK     0.02 /* seconds: kernels tick at 100 Hz or faster */
#define TICK_FAT 2.5

typedef struct {
    tr_hdf5_state state;
    char name[TR_HDF5_NAME];
    tr_hdf5_sight sight;
    bool settled; /* no write since leaves these times */
} known;

/* What is handed on: this and `count` of `known`. */
typedef struct {
    uint32_t each; /* bytes: of the same program */
    uint32_t count;
} heading;

_Static_assert(sizeof(heading) + MOST * sizeof(known) <= TR_DATA_KNOWN, "room for all sights");

static struct {
    pthread_mutex_t lock;
    uint64_t count; /* ever: number n lies at n % MOST */
    known v[MOST];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool tr_hdf5_state_of(const tr_data_file *file, tr_hdf5_state *out)
{
    struct stat s;
    if (file->fd < 0 || fstat(file->fd, &s) != 0) return false;
    *out = (tr_hdf5_state){.device = (uint64_t)s.st_dev,
                           .inode = (uint64_t)s.st_ino,
                           .size = (uint64_t)s.st_size,
                           .written = {s.st_mtim.tv_sec, s.st_mtim.tv_nsec},
                           .changed = {s.st_ctim.tv_sec, s.st_ctim.tv_nsec}};
    return out->device == file->device && out->inode == file->inode && out->size == file->size;
}

static bool same(const tr_hdf5_state *a, const tr_hdf5_state *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->written[0] == b->written[0] && a->written[1] == b->written[1] &&
           a->changed[0] == b->changed[0] && a->changed[1] == b->changed[1];
}

/* Whether a write from now on leaves another time. */
static bool settled(const tr_hdf5_state *s)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const double passed =
        (double)(now.tv_sec - s->changed[0]) + 1e-9 * (double)(now.tv_nsec - s->changed[1]);
    return passed > (s->changed[1] ? TICK : TICK_FAT);
}

/* Under the lock. NULL: it is not known. */
static known *find(const tr_hdf5_state *s, const char *name)
{
    for (size_t i = 0; i < MOST && i < all.count; i++)
        if (same(&all.v[i].state, s) && strcmp(all.v[i].name, name) == 0) return &all.v[i];
    return NULL;
}

static void put(const tr_hdf5_state *s, const char *name, const tr_hdf5_sight *sight,
                bool is_settled)
{
    pthread_mutex_lock(&all.lock);
    known *k = find(s, name);
    if (!k) k = &all.v[all.count++ % MOST];
    memset(k, 0, sizeof *k);
    k->state = *s;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->sight = *sight;
    k->settled = is_settled;
    pthread_mutex_unlock(&all.lock);
}

bool tr_hdf5_known(const tr_hdf5_state *s, const char *name, tr_hdf5_sight *out)
{
    pthread_mutex_lock(&all.lock);
    const known *k = find(s, name);
    if (k) *out = k->sight;
    pthread_mutex_unlock(&all.lock);
    return k != NULL;
}

void tr_hdf5_remember(const tr_data_file *file, const tr_hdf5_state *before, const char *name,
                      const tr_hdf5_sight *sight)
{
    tr_hdf5_state now;
    if (strlen(name) >= TR_HDF5_NAME || !tr_hdf5_state_of(file, &now)) return;
    if (same(&now, before)) put(&now, name, sight, settled(&now));
}

void tr_hdf5_forget_new(void)
{
    pthread_mutex_lock(&all.lock);
    uint64_t kept = 0;
    const uint64_t first = all.count < MOST ? 0 : all.count - MOST;
    known v[MOST];
    for (uint64_t i = first; i < all.count; i++)
        if (all.v[i % MOST].settled) v[kept++] = all.v[i % MOST];
    if (kept < all.count - first) {
        memcpy(all.v, v, kept * sizeof *v);
        all.count = kept;
    }
    pthread_mutex_unlock(&all.lock);
}

/* ---- From process to process ----------------------------------------------------------------- */

size_t tr_data_known_write(void *to)
{
    pthread_mutex_lock(&all.lock);
    const heading h = {.each = sizeof(known),
                       .count = (uint32_t)(all.count < MOST ? all.count : MOST)};
    const size_t nbytes = h.count * sizeof(known);
    memcpy(to, &h, sizeof h);
    memcpy((char *)to + sizeof h, all.v, nbytes);
    pthread_mutex_unlock(&all.lock);
    return sizeof h + nbytes;
}

/* A bool of another value than these two must not be read as one. */
static bool is_bool(const void *p)
{
    unsigned char c;
    memcpy(&c, p, 1);
    return c <= 1;
}

static bool sane(const char *bytes)
{
    known k;
    const char *sight = bytes + offsetof(known, sight);
    if (!is_bool(sight + offsetof(tr_hdf5_sight, big)) ||
        !is_bool(sight + offsetof(tr_hdf5_sight, flat)) ||
        !is_bool(bytes + offsetof(known, settled)))
        return false;
    memcpy(&k, bytes, sizeof k);
    if (!k.name[0] || !memchr(k.name, 0, sizeof k.name)) return false;
    char nowhere[] = "what a rank handed on";
    const tr_data_file file = {.path = nowhere, .fd = -1, .size = k.state.size};
    return tr_hdf5_believe(&file, k.name, &k.sight) == TR_OK;
}

bool tr_data_known_take(const void *bytes, size_t nbytes)
{
    heading h;
    const char *p = (const char *)bytes + sizeof h;
    if (nbytes < sizeof h) return false;
    memcpy(&h, bytes, sizeof h);
    if (h.each != sizeof(known) || h.count > MOST || nbytes != sizeof h + h.count * sizeof(known))
        return false;
    for (uint32_t i = 0; i < h.count; i++)
        if (!sane(p + i * sizeof(known))) return false;
    for (uint32_t i = 0; i < h.count; i++) {
        known k;
        memcpy(&k, p + i * sizeof k, sizeof k);
        put(&k.state, k.name, &k.sight, k.settled);
    }
    return true;
}
