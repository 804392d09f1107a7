/* Small collectives through a node's shared memory: each rank has a flag in a cache line of its own
 * and two slots. Call number k: write the payload to slot k % 2, store k to the flag (release),
 * wait for everybody's flag to reach k (acquire), read all slots in rank order. Two slots are
 * enough: a rank writes a slot again in call k + 2, thus after it saw everybody in call k + 1, thus
 * after everybody had read it in call k. Bigger payloads go slot by slot.
 *
 * Plain atomics instead of MPI_Win_sync: they order memory between the processes as they do between
 * threads, on every machine where MPI_Win_allocate_shared gives ordinary coherent memory. */
#include "collectives/internal.h"

#include <string.h>
#include <time.h>

#define SLOT_BYTES ((size_t)32 << 10)

enum { CALL_BARRIER = 1, CALL_SUM, CALL_SUM_INT, CALL_GATHER, CALL_BCAST, CALL_NODE };
static const char *const call_names[] = {"?",      "barrier",   "sum",         "integer sum",
                                         "gather", "broadcast", "node barrier"};

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t flag;
    _Atomic bool busy; /* tr_comm_busy */
} tr_flag;

typedef struct {
    _Alignas(TR_CACHE_LINE) uint32_t call; /* what this rank called, to find ranks at odds */
    uint64_t count;
    _Alignas(TR_CACHE_LINE) char payload[SLOT_BYTES];
} tr_slot;

/* What a rank leaves when it gives up. */
typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic bool left;
    tr_error why;
} tr_note;

/* Who says what went wrong, for all of the node. */
typedef struct {
    _Atomic int chosen; /* its local rank + 1; 0: nobody yet */
    _Atomic bool done;
} tr_speaker;

struct tr_local_node {
    tr_window window;
    tr_speaker *speaker;
    tr_note *notes; /* [local_size] */
    tr_flag *flags; /* [local_size] */
    tr_slot *slots; /* [local_size][2] */
    uint64_t calls;
    tr_wait wait; /* of the current call */
    int size, rank;
};

tr_status tr_node_open(tr_comm *c, bool *got)
{
    tr_status st = TR_OK;
    size_t n = (size_t)c->topology.local_size;
    size_t flags_at = TR_PAGE, notes_at = flags_at + n * sizeof(tr_flag);
    size_t slots_at = tr_align_up(notes_at + n * sizeof(tr_note), TR_PAGE);
    size_t pair = tr_align_up(2 * sizeof(tr_slot), TR_CACHE_LINE);
    bool ok = false;
    tr_local_node *node = TR_NEW(TR_MEM_OTHER, tr_local_node);
    TR_TRY(tr_mpi_all(c, node != NULL, &ok));
    TR_NEED(ok && node, TR_MEMORY, "no memory for a node's flags");
    node->size = c->topology.local_size;
    node->rank = c->topology.local_rank;
    TR_TRY(
        tr_window_open(c, slots_at + n * pair, &node->window, got, c->reason, sizeof(c->reason)));
    if (!*got) goto out;
    char *base = node->window.base;
    node->speaker = (tr_speaker *)(void *)base;
    node->notes = (tr_note *)(void *)(base + notes_at);
    node->flags = (tr_flag *)(void *)(base + flags_at);
    node->slots = (tr_slot *)(void *)(base + slots_at);
    bool touched = tr_window_touch(&node->slots[2 * node->rank], pair);
    if (node->rank == 0) touched = touched && tr_window_touch(base, slots_at);
    TR_TRY(tr_mpi_all(c, touched, got)); /* nobody uses a flag before all are zeroed */
    if (!*got) {
        snprintf(c->reason, sizeof(c->reason), "shared memory ran out while it was set up");
        tr_window_close(c, &node->window);
        goto out;
    }
    tr_mem_count(TR_MEM_OTHER, (int64_t)pair);
    c->node = node;
    return TR_OK;
out:
    tr_free(node);
    return st;
}

void tr_node_close(tr_comm *c)
{
    if (!c->node) return;
    tr_mem_count(TR_MEM_OTHER, -(int64_t)tr_align_up(2 * sizeof(tr_slot), TR_CACHE_LINE));
    tr_window_close(c, &c->node->window);
    tr_free(c->node);
    c->node = NULL;
}

bool tr_node_first(tr_comm *c)
{
    int nobody = 0, me = c->topology.local_rank + 1;
    c->speaks = !c->node ||
                atomic_compare_exchange_strong(&c->node->speaker->chosen, &nobody, me) ||
                nobody == me;
    if (c->heard < 0) return c->speaks;
    if (c->node && c->speaks) atomic_store(&c->node->speaker->done, true);
    return c->speaks = false; /* who was heard says it, for this node as well */
}

void tr_node_spoken(tr_comm *c)
{
    if (!c->node) return;
    tr_speaker *s = c->node->speaker;
    if (c->speaks) atomic_store(&s->done, true);
    int chosen = atomic_load(&s->chosen);
    for (int i = 0; i < 2000 && chosen && !atomic_load(&s->done); i++) {
        if (tr_peers_gone(c, chosen - 1)) break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void tr_node_give_up(tr_comm *c, const tr_error *why)
{
    if (!c->node) return;
    tr_note *n = &c->node->notes[c->node->rank];
    if (atomic_load(&n->left)) return;
    n->why = *why;
    atomic_store(&n->left, true);
}

bool tr_node_gave_up(const tr_comm *c, int local_rank, tr_error *why)
{
    if (!c->node || !atomic_load(&c->node->notes[local_rank].left)) return false;
    *why = c->node->notes[local_rank].why;
    return true;
}

void tr_comm_busy(tr_comm *c, bool busy)
{
    if (c->node) atomic_store(&c->node->flags[c->node->rank].busy, busy);
}

bool tr_node_busy(const tr_comm *c, int local_rank)
{
    return c->node && atomic_load_explicit(&c->node->flags[local_rank].busy, memory_order_relaxed);
}

static bool arrived(const void *ctx, int local_rank)
{
    const tr_local_node *node = ctx;
    return atomic_load_explicit(&node->flags[local_rank].flag, memory_order_acquire) >= node->calls;
}

static tr_slot *slot_of(tr_local_node *node, int local_rank)
{
    return &node->slots[2 * local_rank + (int)(node->calls & 1)];
}

static const char *name_of(uint32_t call)
{
    return call_names[call < TR_COUNT(call_names) ? call : 0];
}

/* Opens a call: where this rank's payload goes. */
static char *enter(tr_local_node *node, uint32_t call, size_t count)
{
    node->calls++;
    tr_slot *s = slot_of(node, node->rank);
    s->call = call;
    s->count = count;
    return s->payload;
}

/* Publishes the payload and waits until everybody has. */
static tr_status meet(tr_comm *c)
{
    tr_status st = TR_OK;
    tr_local_node *node = c->node;
    const tr_slot *mine = slot_of(node, node->rank);
    tr_drain_stores();
    atomic_store_explicit(&node->flags[node->rank].flag, node->calls, memory_order_release);
    tr_wait_init(&node->wait, c, name_of(mine->call));
    node->wait.arrived = arrived;
    node->wait.ctx = node;
    for (int r = 0; r < node->size; r++)
        while (!arrived(node, r)) TR_TRY(tr_wait_turn(&node->wait));
    for (int r = 0; r < node->size; r++) {
        const tr_slot *s = slot_of(node, r);
        TR_NEED(s->call == mine->call && s->count == mine->count, TR_INTERNAL,
                "rank %d called %s of %zu, rank %d called %s of %zu", c->topology.rank,
                name_of(mine->call), (size_t)mine->count, c->peers[r].rank, name_of(s->call),
                (size_t)s->count);
    }
out:
    return st;
}

static size_t part(size_t left, size_t limit)
{
    return left < limit ? left : limit;
}

static tr_status shared_sum(tr_comm *c, double *v, size_t count)
{
    tr_status st = TR_OK;
    tr_local_node *node = c->node;
    for (size_t at = 0; at < count;) {
        size_t n = part(count - at, SLOT_BYTES / sizeof(double));
        memcpy(enter(node, CALL_SUM, count), v + at, n * sizeof(double));
        TR_TRY(meet(c));
        memcpy(v + at, slot_of(node, 0)->payload, n * sizeof(double));
        for (int r = 1; r < node->size; r++) {
            const double *theirs = (const double *)(const void *)slot_of(node, r)->payload;
            for (size_t i = 0; i < n; i++) v[at + i] += theirs[i];
        }
        at += n;
    }
out:
    return st;
}

static tr_status shared_sum_int(tr_comm *c, int64_t *v, size_t count)
{
    tr_status st = TR_OK;
    tr_local_node *node = c->node;
    for (size_t at = 0; at < count;) {
        size_t n = part(count - at, SLOT_BYTES / sizeof(int64_t));
        memcpy(enter(node, CALL_SUM_INT, count), v + at, n * sizeof(int64_t));
        TR_TRY(meet(c));
        for (size_t i = 0; i < n; i++) {
            uint64_t s = 0; /* unsigned: wraps instead of being undefined */
            for (int r = 0; r < node->size; r++)
                s += ((const uint64_t *)(const void *)slot_of(node, r)->payload)[i];
            v[at + i] = (int64_t)s;
        }
        at += n;
    }
out:
    return st;
}

static tr_status shared_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_local_node *node = c->node;
    for (size_t at = 0; at < nbytes;) {
        size_t n = part(nbytes - at, SLOT_BYTES);
        memcpy(enter(node, CALL_GATHER, nbytes), (const char *)send + at, n);
        TR_TRY(meet(c));
        for (int r = 0; r < node->size; r++)
            memcpy((char *)recv + (size_t)r * nbytes + at, slot_of(node, r)->payload, n);
        at += n;
    }
out:
    return st;
}

static tr_status shared_bcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    tr_status st = TR_OK;
    tr_local_node *node = c->node; /* one node: local ranks are ranks */
    for (size_t at = 0; at < nbytes;) {
        size_t n = part(nbytes - at, SLOT_BYTES);
        char *payload = enter(node, CALL_BCAST, nbytes + (size_t)root);
        if (node->rank == root) memcpy(payload, (char *)buf + at, n);
        TR_TRY(meet(c));
        if (node->rank != root) memcpy((char *)buf + at, slot_of(node, root)->payload, n);
        at += n;
    }
out:
    return st;
}

static tr_status shared_barrier(tr_comm *c)
{
    enter(c->node, CALL_BARRIER, 0);
    return meet(c);
}

tr_status tr_node_barrier(tr_comm *c)
{
    enter(c->node, CALL_NODE, 0);
    return meet(c);
}

const tr_comm_ops tr_shared_ops = {"shared memory", shared_sum,   shared_sum_int,
                                   shared_gather,   shared_bcast, shared_barrier};
