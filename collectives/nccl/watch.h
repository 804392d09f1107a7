/* How far the ranks of a node are: what the device tells its host, what the hosts tell each other,
 * and the order of it. Written by watch.c, read by late.c. */
#ifndef TR_NCCL_WATCH_H
#define TR_NCCL_WATCH_H

#include "collectives/nccl/internal.h"

/* As the device writes it. */
typedef struct {
    uint32_t step, micro;
    uint32_t gathers, buckets; /* gathers: begun; buckets: 2b + 1 begun, 2b + 2 done */
} tr_watch_word;

/* What one rank tells the others, in a cache line of its own. */
typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t issued; /* tr_watch_place() */
    _Atomic uint64_t at;                             /* the device's: for order */
    _Atomic uint32_t gathers, buckets;               /* for words */
    _Atomic double beat;                             /* tr_now() as it was told */
} tr_watch_line;

struct tr_watch {
    tr_reducer *r;
    uint32_t *numbers; /* device: 0, 1, 2, ... */
    size_t count, next;
    tr_watch_word *cell; /* device: a step's first word, on its way */
    tr_watch_word *ring; /* pinned: where it comes from */
    tr_watch_word *word; /* pinned; written by the device */
    tr_watch_word seen;
    uint64_t issued; /* by the host */
    uint64_t mine;   /* where this rank waits, as on the board */
    double patience; /* silence beyond it is noticed */
    tr_window window;
    tr_watch_line *board; /* [local_size]; NULL: no shared memory */
};

/* Places in their order: 32 bits of step + 1, 14 of the micro-batch, 18 of what is done in it. */
#define TR_WATCH_WITHIN 18
#define TR_WATCH_MICRO  14
#define TR_WATCH_ALL    UINT32_MAX /* as the low 32 bits: the whole step */

static inline uint64_t tr_watch_place(uint32_t step, uint32_t micro, uint32_t within)
{
    const uint32_t most_micro = (1u << TR_WATCH_MICRO) - 1;
    const uint32_t most_within = (1u << TR_WATCH_WITHIN) - 1;
    return ((uint64_t)step + 1) << 32 |
           (micro < most_micro ? micro : most_micro) << TR_WATCH_WITHIN |
           (within < most_within ? within : most_within);
}

static inline unsigned long long tr_watch_step_of(uint64_t place)
{
    return (unsigned long long)(place >> 32) - 1;
}

static inline uint32_t tr_watch_micro_of(uint64_t place)
{
    return (uint32_t)place >> TR_WATCH_WITHIN;
}

#endif
