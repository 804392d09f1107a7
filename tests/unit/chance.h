/* Models by chance: what tests that write some draw from. */
#ifndef TEST_CHANCE_H
#define TEST_CHANCE_H

#include <stdint.h>
#include <stdio.h>

typedef struct {
    uint64_t state;
    FILE *to;         /* the model's text */
    int names, depth; /* given so far, and how deep blocks stand; where they are counted */
} generator;

/* In [0, n): the upper half of a linear congruential step (Knuth's MMIX). */
static inline int dice(generator *r, int n)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((r->state >> 33) % (uint64_t)n);
}

#endif
