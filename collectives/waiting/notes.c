/* What the ranks of a node leave for each other in its shared memory, whichever communicator they
 * wait in: that one is busy or waits itself (marks.c), that one gave up and over what, and which of
 * them says what went wrong, for all of the node. One window a job. */
#include "collectives/waiting/waiting.h"

#include <string.h>
#include <time.h>

/* What a rank leaves. */
typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic int busy; /* tr_busy */
    _Atomic double since, said;
    _Atomic double waits;                      /* tr_now() when it said so last */
    _Alignas(TR_CACHE_LINE) _Atomic bool left; /* gave up: */
    tr_error why;
} tr_note;

/* Who says what went wrong, for all of the node. */
typedef struct {
    _Atomic int chosen; /* its local rank + 1; 0: nobody yet */
    _Atomic bool done;
} tr_speaker;

enum { MATTERS = 32 };

/* The window's first page. */
typedef struct {
    tr_speaker speaker;
    _Atomic bool stop;                             /* a rank of this node was asked to stop */
    _Atomic uint64_t noticed[TR_NOTICES][MATTERS]; /* what each was about, and a bit; 0: free */
} tr_board;

struct tr_notes {
    tr_window window;
    tr_board *board;
    tr_note *of; /* [local_size] */
};

static tr_note *mine(const tr_job *j)
{
    return &j->notes->of[j->topology.local_rank];
}

tr_status tr_notes_open(tr_comm *c, bool *got)
{
    tr_status st = TR_OK;
    tr_job *j = c->job;
    size_t nbytes = TR_PAGE + (size_t)j->topology.local_size * sizeof(tr_note);
    tr_notes *n = TR_NEW(TR_MEM_OTHER, tr_notes);
    TR_TRY(tr_mpi_have(c->comm, n != NULL, "a node's notes"));
    TR_TRY(tr_window_open(c, nbytes, &n->window, got, c->reason, sizeof c->reason));
    if (!*got) goto out;
    n->board = (tr_board *)(void *)n->window.base;
    n->of = (tr_note *)(void *)(n->window.base + TR_PAGE);
    bool touched = j->topology.local_rank != 0 || tr_window_touch(n->window.base, nbytes);
    TR_TRY(tr_mpi_all(c->comm, touched, got)); /* nobody writes one before all are zeroed */
    if (!*got) {
        snprintf(c->reason, sizeof c->reason, "shared memory ran out while it was set up");
        tr_window_close(&n->window, j);
        goto out;
    }
    j->notes = n;
    return TR_OK;
out:
    tr_free(n);
    return st;
}

void tr_notes_close(tr_job *j)
{
    if (!j->notes) return;
    tr_window_close(&j->notes->window, j);
    tr_free(j->notes);
    j->notes = NULL;
}

bool tr_notes_first(tr_job *j)
{
    int nobody = 0, me = j->topology.local_rank + 1;
    tr_speaker *s = j->notes ? &j->notes->board->speaker : NULL;
    j->speaks = !s || atomic_compare_exchange_strong(&s->chosen, &nobody, me) || nobody == me;
    if (j->heard < 0) return j->speaks;
    if (s && j->speaks) atomic_store(&s->done, true);
    return j->speaks = false; /* who was heard says it, for this node as well */
}

void tr_notes_spoken(tr_job *j)
{
    if (!j->notes) return;
    tr_speaker *s = &j->notes->board->speaker;
    if (j->speaks) atomic_store(&s->done, true);
    int chosen = atomic_load(&s->chosen);
    for (int i = 0; i < 2000 && chosen && !atomic_load(&s->done); i++) {
        if (tr_peers_gone(&j->peers[chosen - 1])) break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void tr_notes_give_up(tr_job *j, const tr_error *why)
{
    if (!j->notes || atomic_load(&mine(j)->left)) return;
    mine(j)->why = *why;
    atomic_store(&mine(j)->left, true);
}

bool tr_notes_gave_up(const tr_job *j, int local_rank, tr_error *why)
{
    if (!j->notes || !atomic_load(&j->notes->of[local_rank].left)) return false;
    *why = j->notes->of[local_rank].why;
    return true;
}

void tr_notes_busy(tr_job *j, const tr_business *b)
{
    if (!j->notes) return;
    atomic_store_explicit(&mine(j)->since, b->since, memory_order_relaxed);
    atomic_store_explicit(&mine(j)->said, b->said, memory_order_relaxed);
    atomic_store(&mine(j)->busy, (int)b->what);
}

void tr_notes_wait(tr_job *j, double now)
{
    if (j->notes) atomic_store_explicit(&mine(j)->waits, now, memory_order_relaxed);
}

tr_business tr_notes_business(const tr_job *j, int local_rank)
{
    const tr_note *n = &j->notes->of[local_rank];
    tr_business b = {.what = (tr_busy)atomic_load_explicit(&n->busy, memory_order_acquire)};
    b.since = atomic_load_explicit(&n->since, memory_order_relaxed);
    b.said = atomic_load_explicit(&n->said, memory_order_relaxed);
    return b;
}

double tr_notes_waits(const tr_job *j, int local_rank)
{
    return atomic_load_explicit(&j->notes->of[local_rank].waits, memory_order_relaxed);
}

void tr_notes_stop(tr_job *j)
{
    if (j->notes) atomic_store_explicit(&j->notes->board->stop, true, memory_order_relaxed);
}

bool tr_notes_stops(const tr_job *j)
{
    return j->notes && atomic_load_explicit(&j->notes->board->stop, memory_order_relaxed);
}

bool tr_comm_first_to_say(tr_comm *c, tr_notice what, uint32_t of)
{
    tr_notes *n = c->job->notes;
    const uint64_t is = of | (uint64_t)1 << 32;
    for (int i = 0; n && i < MATTERS; i++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&n->board->noticed[what][i], &found, is)) return true;
        if (found == is) return false;
    }
    return true;
}
