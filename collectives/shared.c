/* Small collectives of a group within a node, through its shared memory: each rank has a flag in a
 * cache line of its own and two boxes. Call number k: write the payload to box k % 2, store k to
 * the flag (release), wait for everybody's flag to reach k (acquire), read all boxes in rank order.
 * Two boxes are enough: a rank writes a box again in call k + 2, thus after it saw everybody in
 * call k + 1, thus after everybody had read it in call k. Bigger payloads go box by box.
 *
 * Plain atomics instead of MPI_Win_sync: they order memory between the processes as they do between
 * threads, on every machine where MPI_Win_allocate_shared gives ordinary coherent memory. */
#include "collectives/waiting/waiting.h"

#include <string.h>

#define BOX_BYTES ((size_t)32 << 10)

enum { CALL_BARRIER = 1, CALL_ALL_REDUCE, CALL_REDUCE_SCATTER, CALL_ALL_GATHER, CALL_BROADCAST };
static const char *const call_names[] = {
    "?", "barrier", "all-reduce", "reduce-scatter", "all-gather", "broadcast",
};

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t calls;
} tr_mail_flag;

typedef struct {
    _Alignas(TR_CACHE_LINE) uint32_t call; /* what this rank called, to find ranks at odds */
    uint32_t detail;                       /* type of a sum, root of a broadcast */
    uint64_t count;
    _Alignas(TR_CACHE_LINE) char payload[BOX_BYTES];
} tr_mail;

struct tr_mailbox {
    tr_window window;
    tr_mail_flag *flags; /* [size] */
    tr_mail *mails;      /* [size][2] */
    uint64_t calls;
    tr_wait wait; /* of the current call */
    int size, rank;
};

static size_t pair_bytes(void)
{
    return tr_align_up(2 * sizeof(tr_mail), TR_CACHE_LINE);
}

tr_status tr_mailbox_open(tr_comm *c, bool *got)
{
    tr_status st = TR_OK;
    size_t n = (size_t)c->topology.size;
    size_t mails_at = tr_align_up(n * sizeof(tr_mail_flag), TR_PAGE);
    tr_mailbox *m = TR_NEW(TR_MEM_OTHER, tr_mailbox);
    TR_TRY(tr_mpi_have(c->comm, m != NULL, "a group's mailboxes"));
    m->size = c->topology.size;
    m->rank = c->topology.rank;
    TR_TRY(tr_window_open(c, mails_at + n * pair_bytes(), &m->window, got, c->reason,
                          sizeof c->reason));
    if (!*got) goto out;
    m->flags = (tr_mail_flag *)(void *)m->window.base;
    m->mails = (tr_mail *)(void *)(m->window.base + mails_at);
    bool touched = tr_window_touch(&m->mails[2 * m->rank], pair_bytes());
    if (m->rank == 0) touched = touched && tr_window_touch(m->window.base, mails_at);
    TR_TRY(tr_mpi_all(c->comm, touched, got)); /* nobody uses a flag before all are zeroed */
    if (!*got) {
        snprintf(c->reason, sizeof c->reason, "shared memory ran out while it was set up");
        tr_window_close(&m->window, c->job);
        goto out;
    }
    tr_mem_count(TR_MEM_OTHER, (int64_t)pair_bytes());
    c->mailbox = m;
    return TR_OK;
out:
    tr_free(m);
    return st;
}

void tr_mailbox_close(tr_comm *c)
{
    if (!c->mailbox) return;
    tr_mem_count(TR_MEM_OTHER, -(int64_t)pair_bytes());
    tr_window_close(&c->mailbox->window, c->job);
    tr_free(c->mailbox);
    c->mailbox = NULL;
}

static bool arrived(const void *ctx, int rank)
{
    const tr_mailbox *m = ctx;
    return atomic_load_explicit(&m->flags[rank].calls, memory_order_acquire) >= m->calls;
}

static tr_mail *mail_of(const tr_mailbox *m, int rank)
{
    return &m->mails[2 * rank + (int)(m->calls & 1)];
}

static const char *name_of(uint32_t call)
{
    return call_names[call < TR_COUNT(call_names) ? call : 0];
}

/* Opens a call: where this rank's payload goes. */
static char *enter(tr_mailbox *m, uint32_t call, uint32_t detail, size_t count)
{
    m->calls++;
    tr_mail *mine = mail_of(m, m->rank);
    mine->call = call;
    mine->detail = detail;
    mine->count = count;
    return mine->payload;
}

/* Publishes the payload and waits until everybody has. */
static tr_status meet(tr_comm *c)
{
    tr_status st = TR_OK;
    tr_mailbox *m = c->mailbox;
    const tr_mail *mine = mail_of(m, m->rank);
    tr_drain_stores();
    atomic_store_explicit(&m->flags[m->rank].calls, m->calls, memory_order_release);
    tr_wait_init(&m->wait, c, name_of(mine->call));
    m->wait.arrived = arrived;
    m->wait.ctx = m;
    for (int r = 0; r < m->size; r++)
        while (!arrived(m, r)) TR_TRY(tr_wait_turn(&m->wait));
    for (int r = 0; r < m->size; r++) {
        const tr_mail *s = mail_of(m, r);
        TR_NEED(s->call == mine->call && s->count == mine->count && s->detail == mine->detail,
                TR_INTERNAL, "rank %d called %s of %zu (%u), rank %d called %s of %zu (%u)",
                c->job->topology.rank, name_of(mine->call), (size_t)mine->count, mine->detail,
                c->ranks[r], name_of(s->call), (size_t)s->count, s->detail);
    }
out:
    return st;
}

static size_t part(size_t left, size_t limit)
{
    return left < limit ? left : limit;
}

/* dst = the sum of `n` elements that lie `at` bytes into every payload. */
static void add_all(const tr_mailbox *m, void *dst, size_t at, size_t n, tr_dtype type)
{
    memcpy(dst, mail_of(m, 0)->payload + at, n * tr_dtype_size(type));
    for (int r = 1; r < m->size; r++) tr_sum_into(dst, mail_of(m, r)->payload + at, n, type);
}

static tr_status shared_all_reduce(tr_comm *c, void *v, size_t count, tr_dtype type)
{
    tr_status st = TR_OK;
    tr_mailbox *m = c->mailbox;
    const size_t size = tr_dtype_size(type);
    for (size_t at = 0, n; at < count; at += n) {
        char *mine = (char *)v + at * size;
        n = part(count - at, BOX_BYTES / size);
        memcpy(enter(m, CALL_ALL_REDUCE, type, count), mine, n * size);
        TR_TRY(meet(c));
        add_all(m, mine, 0, n, type);
    }
out:
    return st;
}

/* A payload holds a piece for each rank, `nbytes` apart. More ranks than fit a payload's cache
 * lines are beyond any node. */
static tr_status shared_reduce_scatter(tr_comm *c, const void *send, void *recv, size_t count,
                                       tr_dtype type)
{
    tr_status st = TR_OK;
    tr_mailbox *m = c->mailbox;
    const size_t size = tr_dtype_size(type), ranks = (size_t)m->size;
    const size_t most = BOX_BYTES / ranks / TR_CACHE_LINE * TR_CACHE_LINE / size;
    TR_NEED(most > 0, TR_UNSUPPORTED, "a reduce-scatter of %zu ranks on a node", ranks);
    for (size_t at = 0, n; at < count; at += n) {
        n = part(count - at, most);
        char *payload = enter(m, CALL_REDUCE_SCATTER, type, count);
        for (size_t r = 0; r < ranks; r++)
            memcpy(payload + r * most * size, (const char *)send + (r * count + at) * size,
                   n * size);
        TR_TRY(meet(c));
        add_all(m, (char *)recv + at * size, (size_t)m->rank * most * size, n, type);
    }
out:
    return st;
}

static tr_status shared_all_gather(tr_comm *c, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_mailbox *m = c->mailbox;
    for (size_t at = 0, n; at < nbytes; at += n) {
        n = part(nbytes - at, BOX_BYTES);
        memcpy(enter(m, CALL_ALL_GATHER, 0, nbytes), (const char *)send + at, n);
        TR_TRY(meet(c));
        for (int r = 0; r < m->size; r++)
            memcpy((char *)recv + (size_t)r * nbytes + at, mail_of(m, r)->payload, n);
    }
out:
    return st;
}

static tr_status shared_broadcast(tr_comm *c, void *buf, size_t nbytes, int root)
{
    tr_status st = TR_OK;
    tr_mailbox *m = c->mailbox;
    for (size_t at = 0, n; at < nbytes; at += n) {
        n = part(nbytes - at, BOX_BYTES);
        char *payload = enter(m, CALL_BROADCAST, (uint32_t)root, nbytes);
        if (m->rank == root) memcpy(payload, (char *)buf + at, n);
        TR_TRY(meet(c));
        if (m->rank != root) memcpy((char *)buf + at, mail_of(m, root)->payload, n);
    }
out:
    return st;
}

static tr_status shared_barrier(tr_comm *c)
{
    enter(c->mailbox, CALL_BARRIER, 0, 0);
    return meet(c);
}

const tr_comm_ops tr_shared_ops = {.name = "shared memory",
                                   .all_reduce = shared_all_reduce,
                                   .reduce_scatter = shared_reduce_scatter,
                                   .all_gather = shared_all_gather,
                                   .broadcast = shared_broadcast,
                                   .barrier = shared_barrier};
