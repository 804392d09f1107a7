/* Offsets in one arena so that tensors live at the same time never overlap. The problem (dynamic
 * storage allocation) is NP-hard; the greedy used here places tensors one by one into the smallest
 * gap that fits between those already placed whose lifetimes meet (best fit; Pisarchyk and Lee,
 * "Efficient Memory Management for Deep Neural Net Inference", 2020). It runs in three orders, by
 * size, by length of life and by their product, and keeps the best; it stops when the floor is
 * reached. O(n^2) a try. */
#include "runtime/plan/internal.h"

#include <stdlib.h>

typedef struct {
    double key;
    int id, first, last;
    size_t nbytes, offset;
} block;

enum { BY_SIZE, BY_LIFE, BY_AREA, ORDERS };

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

static double order_key(const block *b, int order)
{
    const double life = (double)b->last - b->first + 1, size = (double)b->nbytes;
    return order == BY_SIZE ? size : order == BY_LIFE ? life : life * size;
}

tr_status tr_arena_pack(tr_live *live, size_t n, size_t *nbytes)
{
    tr_status st = TR_OK;
    const size_t floor = tr_arena_floor(live, n, NULL, 0);
    size_t count = 0, best = SIZE_MAX;
    block *blocks = tr_alloc(TR_MEM_OTHER, n, sizeof *blocks);
    block **placed = tr_alloc(TR_MEM_OTHER, n, sizeof *placed);
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
    for (int order = 0; order < ORDERS && best > floor; order++) {
        size_t end = 0;
        for (size_t i = 0; i < count; i++) blocks[i].key = order_key(&blocks[i], order);
        qsort(blocks, count, sizeof *blocks, by_key);
        for (size_t i = 0; i < count; i++) {
            place(&blocks[i], placed, i);
            if (blocks[i].offset + blocks[i].nbytes > end)
                end = blocks[i].offset + blocks[i].nbytes;
        }
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

size_t tr_arena_floor(const tr_live *live, size_t n, const size_t *scratch, size_t nops)
{
    int last = (int)nops - 1;
    for (size_t i = 0; i < n; i++)
        if (live[i].arena && live[i].last > last) last = live[i].last;
    size_t most = 0;
    for (int op = -1; op <= last; op++) {
        size_t now = scratch && op >= 0 && (size_t)op < nops ? scratch[op] : 0;
        for (size_t i = 0; i < n; i++)
            if (live[i].arena && live[i].first <= op && op <= live[i].last) now += live[i].nbytes;
        if (now > most) most = now;
    }
    return most;
}
