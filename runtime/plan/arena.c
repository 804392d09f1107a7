/* Offsets in one arena so that tensors live at the same time never overlap. The problem (dynamic
 * storage allocation) is NP-hard; the greedy used here places tensors one by one into the smallest
 * gap that fits between those already placed whose lifetimes meet (best fit; Pisarchyk and Lee,
 * "Efficient Memory Management for Deep Neural Net Inference", 2020). It runs in several orders: as
 * tensors come up, by size, by length of life and by size times life; the best is kept, and the
 * first to reach the floor ends the search. In the order of time all that is placed and has not
 * ended meets the next one, so a list of gaps will do: O(n * gaps); the others are O(n^2). */
#include "runtime/plan/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    double key;
    int id, first, last;
    size_t nbytes, offset;
} block;

/* From here on three percent above the floor are taken rather than seconds spent. */
enum { MANY = 8192 };

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

static double order_key(const block *b, int order)
{
    if (order == BY_TIME) return -(double)b->first;
    const double life = (double)b->last - b->first + 1, size = (double)b->nbytes;
    return order == BY_SIZE ? size : order == BY_LIFE ? life : life * size;
}

/* Free ranges by rising address, none next to another; the last has no end. */
typedef struct {
    tr_range *v;
    size_t n;
} gaps;

static void take(gaps *f, block *b)
{
    size_t best = f->n - 1;
    for (size_t i = 0; i < f->n; i++) {
        const size_t room = f->v[i].end - f->v[i].begin;
        if (room >= b->nbytes && room < f->v[best].end - f->v[best].begin) best = i;
    }
    b->offset = f->v[best].begin;
    f->v[best].begin += b->nbytes;
    if (f->v[best].begin < f->v[best].end) return;
    f->n--;
    memmove(&f->v[best], &f->v[best + 1], (f->n - best) * sizeof *f->v);
}

static void give(gaps *f, const block *b)
{
    const size_t end = b->offset + b->nbytes;
    size_t at = 0; /* the gap behind it */
    while (f->v[at].begin < end) at++;
    const bool before = at > 0 && f->v[at - 1].end == b->offset, behind = f->v[at].begin == end;
    if (before && behind) {
        f->v[at].begin = f->v[at - 1].begin;
        f->n--;
        memmove(&f->v[at - 1], &f->v[at], (f->n + 1 - at) * sizeof *f->v);
    } else if (before) {
        f->v[at - 1].end = end;
    } else if (behind) {
        f->v[at].begin = b->offset;
    } else {
        memmove(&f->v[at + 1], &f->v[at], (f->n - at) * sizeof *f->v);
        f->v[at] = (tr_range){b->offset, end};
        f->n++;
    }
}

static int by_last(const void *a, const void *b)
{
    const block *x = *(block *const *)a, *y = *(block *const *)b;
    if (x->last != y->last) return x->last < y->last ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Blocks stand in the order of their first op. `ends`: room for as many. Writes the offsets. */
static tr_status place_in_time(block *blocks, size_t count, block **ends)
{
    gaps f = {.v = tr_alloc(TR_MEM_OTHER, count + 2, sizeof *f.v), .n = 1};
    if (!f.v) return tr_last_status();
    f.v[0] = (tr_range){0, SIZE_MAX};
    for (size_t i = 0; i < count; i++) ends[i] = &blocks[i];
    if (count > 0) qsort(ends, count, sizeof *ends, by_last);
    size_t ended = 0;
    for (size_t i = 0; i < count; i++) {
        while (ends[ended]->last < blocks[i].first) give(&f, ends[ended++]);
        take(&f, &blocks[i]);
    }
    tr_free(f.v);
    return TR_OK;
}

/* Places all in one order, and says how many bytes it takes. */
static tr_status place_all(block *blocks, size_t count, block **placed, int order, size_t *end)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < count; i++) blocks[i].key = order_key(&blocks[i], order);
    qsort(blocks, count, sizeof *blocks, by_key);
    if (order == BY_TIME)
        TR_TRY(place_in_time(blocks, count, placed));
    else
        for (size_t i = 0; i < count; i++) place(&blocks[i], placed, i);
    *end = 0;
    for (size_t i = 0; i < count; i++)
        if (blocks[i].offset + blocks[i].nbytes > *end) *end = blocks[i].offset + blocks[i].nbytes;
out:
    return st;
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
    if (!come) return tr_last_status();
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
    TR_HAVE(blocks && placed);
    for (size_t i = 0; i < n; i++)
        if (live[i].arena)
            blocks[count++] = (block){.id = (int)i,
                                      .first = live[i].first,
                                      .last = live[i].last,
                                      .nbytes = live[i].nbytes};
    TR_TRY(find_floor(blocks, count, floor));
    const size_t enough = count > MANY ? *floor + *floor / 32 : *floor;
    for (int order = 0; order < ORDERS && best > enough; order++) {
        size_t end;
        TR_TRY(place_all(blocks, count, placed, order, &end));
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
    if (!sorted) return tr_last_status();
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
