/* The loss curve and evaluations so far. */
#include "trainer/run/history.h"

#include <assert.h>
#include <string.h>

static tr_status room(void **rows, size_t *cap, size_t used, size_t more, size_t size)
{
    size_t want = used > TR_HISTORY_MOST          ? used
                  : more > TR_HISTORY_MOST - used ? TR_HISTORY_MOST
                                                  : used + more;
    if (*cap >= want) return TR_OK;
    void *p = tr_realloc(TR_MEM_OTHER, *rows, want, size);
    if (!p) return tr_last_status();
    *rows = p;
    *cap = want;
    return TR_OK;
}

tr_status tr_history_reserve(tr_history *h, size_t steps, size_t evals, size_t cells)
{
    tr_status st;
    void *rows = h->steps, *marks = h->evals;
    TR_TRY(room(&rows, &h->cap_steps, h->nsteps, steps, sizeof *h->steps));
    h->steps = rows;
    TR_TRY(room(&marks, &h->cap_evals, h->nevals, evals, sizeof *h->evals));
    h->evals = marks;
    if (h->classes * h->classes !=
        (int64_t)cells) { /* of evaluations that this run does not make */
        tr_free(h->confusion);
        h->confusion = NULL;
        h->classes = 0;
    }
    if (cells > 0 && !h->confusion) {
        h->confusion = tr_alloc(TR_MEM_IO, cells, sizeof *h->confusion);
        TR_HAVE(h->confusion);
    }
out:
    return st;
}

/* Keeps every other row, with the newest, which is the last; of two rows at least. */
static size_t thin(void *rows, size_t n, size_t size)
{
    char *p = rows;
    size_t kept = 0;
    assert(n > 1);
    for (size_t i = (n - 1) % 2; i < n; i += 2) memmove(p + kept++ * size, p + i * size, size);
    return kept;
}

void tr_history_add_step(tr_history *h, const struct tr_history_step *row)
{
    if (h->nsteps == h->cap_steps) h->nsteps = thin(h->steps, h->nsteps, sizeof *h->steps);
    assert(h->nsteps < h->cap_steps);
    h->steps[h->nsteps++] = *row;
}

void tr_history_add_eval(tr_history *h, const struct tr_history_eval *row)
{
    if (h->nevals == h->cap_evals) h->nevals = thin(h->evals, h->nevals, sizeof *h->evals);
    assert(h->nevals < h->cap_evals);
    h->evals[h->nevals++] = *row;
}

void tr_history_copy(tr_history *to, const tr_history *from)
{
    assert(to->cap_steps >= from->nsteps && to->cap_evals >= from->nevals);
    to->nsteps = from->nsteps;
    to->nevals = from->nevals;
    to->classes = from->classes;
    if (from->nsteps) memcpy(to->steps, from->steps, from->nsteps * sizeof *to->steps);
    if (from->nevals) memcpy(to->evals, from->evals, from->nevals * sizeof *to->evals);
    if (from->classes)
        memcpy(to->confusion, from->confusion,
               (size_t)(from->classes * from->classes) * sizeof *to->confusion);
}
