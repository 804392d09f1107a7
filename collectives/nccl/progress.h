/* How far the ranks of a node are: what the device tells its host, what the hosts tell each other,
 * and the order of it. Written by progress.c, read by late.c. */
#ifndef TR_NCCL_PROGRESS_H
#define TR_NCCL_PROGRESS_H

#include "collectives/nccl/internal.h"

/* As the device writes it. */
typedef struct {
    uint32_t step, micro;
    uint32_t gathers, buckets; /* gathers: begun; buckets: 2b + 1 begun, 2b + 2 done */
} tr_word;

/* What one rank tells the others, in a cache line of its own. */
typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t issued; /* tr_place_of() */
    _Atomic uint64_t at;                             /* the device's: for order */
    _Atomic uint32_t gathers, buckets;               /* for words */
    _Atomic double beat;                             /* tr_now() as it was told */
} tr_place;

struct tr_progress {
    tr_reducer *r;
    uint32_t *numbers; /* device: 0, 1, 2, ... */
    size_t count, next;
    tr_word *cell; /* device: a step's first word, on its way */
    tr_word *ring; /* pinned: where it comes from */
    tr_word *word; /* pinned; written by the device */
    tr_word seen;
    uint64_t issued; /* by the host */
    uint64_t mine;   /* where this rank waits, as on the board */
    double patience; /* silence beyond it is noticed */
    tr_window window;
    tr_place *board; /* [local_size]; NULL: no shared memory */
};

/* Places in their order: 32 bits of step + 1, 14 of the micro-batch, 18 of what is done in it. */
#define TR_PLACE_WITHIN 18
#define TR_PLACE_MICRO  14
#define TR_PLACE_ALL    UINT32_MAX /* as the low 32 bits: the whole step */

static inline uint64_t tr_place_of(uint32_t step, uint32_t micro, uint32_t within)
{
    const uint32_t most_micro = (1u << TR_PLACE_MICRO) - 1;
    const uint32_t most_within = (1u << TR_PLACE_WITHIN) - 1;
    return ((uint64_t)step + 1) << 32 |
           (micro < most_micro ? micro : most_micro) << TR_PLACE_WITHIN |
           (within < most_within ? within : most_within);
}

static inline unsigned long long tr_place_step(uint64_t place)
{
    return (unsigned long long)(place >> 32) - 1;
}

static inline uint32_t tr_place_micro(uint64_t place)
{
    return (uint32_t)place >> TR_PLACE_WITHIN;
}

#endif
