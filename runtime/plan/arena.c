/* Offsets in one arena so that tensors live at the same time never overlap. The problem (dynamic
 * storage allocation) is NP-hard; the greedy used here places tensors one by one into the smallest
 * gap that fits between those already placed whose lifetimes meet (best fit; Pisarchyk and Lee,
 * "Efficient Memory Management for Deep Neural Net Inference", 2020). It runs in several orders: as
 * tensors come up, by size, by length of life and by size times life; the best is kept, and the
 * first to reach the floor ends the search. The first costs O(n * live at once), for what has ended
 * is forgotten; the others O(n^2). */
#include "runtime/plan/internal.h"

#include <stdlib.h>

typedef struct {
    double key;
    int id, first, last;
    size_t nbytes, offset;
} block;

enum { BY_TIME, BY_SIZE, BY_LIFE, BY_AREA, ORDERS };

static int by_key(const void *a, const void *b)
{
    const block *x = a, *y = b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    if (x->nbytes != y->nbytes) return x->nbytes > y->nbytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool meet(const block *a, const block *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* `placed` holds the blocks so far by rising offset. */
static void place(block *b, block **placed, size_t nplaced)
{
    size_t best = SIZE_MAX, best_gap = SIZE_MAX, end = 0;
    for (size_t i = 0; i < nplaced; i++) {
        const block *o = placed[i];
        if (!meet(b, o)) continue;
        if (o->offset > end && o->offset - end >= b->nbytes && o->offset - end < best_gap) {
            best_gap = o->offset - end;
            best = end;
        }
        if (o->offset + o->nbytes > end) end = o->offset + o->nbytes;
    }
    b->offset = best == SIZE_MAX ? end : best;
    size_t at = nplaced;
    for (; at > 0 && placed[at - 1]->offset > b->offset; at--) placed[at] = placed[at - 1];
    placed[at] = b;
}

/* Those that ended before `now` leave; what comes later cannot meet them. */
static size_t forget(block **placed, size_t n, int now)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (placed[i]->last >= now) placed[kept++] = placed[i];
    return kept;
}

static double order_key(const block *b, int order)
{
    if (order == BY_TIME) return -(double)b->first;
    const double life = (double)b->last - b->first + 1, size = (double)b->nbytes;
    return order == BY_SIZE ? size : order == BY_LIFE ? life : life * size;
}

/* Places all in one order; returns the bytes it takes. */
static size_t place_all(block *blocks, size_t count, block **placed, int order)
{
    size_t end = 0, nplaced = 0;
    for (size_t i = 0; i < count; i++) blocks[i].key = order_key(&blocks[i], order);
    qsort(blocks, count, sizeof *blocks, by_key);
    for (size_t i = 0; i < count; i++) {
        block *b = &blocks[i];
        if (order == BY_TIME && (i == 0 || b->first > blocks[i - 1].first))
            nplaced = forget(placed, nplaced, b->first);
        place(b, placed, nplaced++);
        if (b->offset + b->nbytes > end) end = b->offset + b->nbytes;
    }
    return end;
}

/* The most bytes live at one op: they come and go along a line of ops. */
static tr_status find_floor(const block *blocks, size_t count, size_t *floor)
{
    int first = 0, last = 0;
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].first < first) first = blocks[i].first;
        if (blocks[i].last > last) last = blocks[i].last;
    }
    const size_t n = (size_t)(last - first) + 2;
    size_t *come = tr_alloc(TR_MEM_OTHER, 2 * n, sizeof *come), *go = come + n, now = 0;
    if (!come) return TR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        come[blocks[i].first - first] += blocks[i].nbytes;
        go[blocks[i].last - first + 1] += blocks[i].nbytes;
    }
    *floor = 0;
    for (size_t t = 0; t < n; t++) {
        now += come[t] - go[t];
        if (now > *floor) *floor = now;
    }
    tr_free(come);
    return TR_OK;
}

tr_status tr_arena_pack(tr_live *live, size_t n, size_t *nbytes, size_t *floor)
{
    tr_status st = TR_OK;
    size_t count = 0, best = SIZE_MAX;
    block *blocks = tr_alloc(TR_MEM_OTHER, n, sizeof *blocks);
    block **placed = tr_alloc(TR_MEM_OTHER, n, sizeof(block *));
    if (!blocks || !placed) {
        st = TR_MEMORY;
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        if (live[i].arena)
            blocks[count++] = (block){.id = (int)i,
                                      .first = live[i].first,
                                      .last = live[i].last,
                                      .nbytes = live[i].nbytes};
    TR_TRY(find_floor(blocks, count, floor));
    for (int order = 0; order < ORDERS && best > *floor; order++) {
        const size_t end = place_all(blocks, count, placed, order);
        if (end >= best) continue;
        best = end;
        for (size_t i = 0; i < count; i++) live[blocks[i].id].offset = blocks[i].offset;
    }
    *nbytes = best;
out:
    tr_free(blocks);
    tr_free(placed);
    return st;
}

static int by_offset(const void *a, const void *b)
{
    const tr_live *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

tr_status tr_arena_covered(const tr_live *live, size_t n, size_t *nbytes)
{
    size_t count = 0, end = 0;
    tr_live *sorted = tr_alloc(TR_MEM_OTHER, n, sizeof *sorted);
    if (!sorted) return TR_MEMORY;
    for (size_t i = 0; i < n; i++)
        if (live[i].arena) sorted[count++] = live[i];
    qsort(sorted, count, sizeof *sorted, by_offset);
    *nbytes = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t begin = sorted[i].offset > end ? sorted[i].offset : end;
        if (sorted[i].offset + sorted[i].nbytes <= begin) continue;
        end = sorted[i].offset + sorted[i].nbytes;
        *nbytes += end - begin;
    }
    tr_free(sorted);
    return TR_OK;
}
