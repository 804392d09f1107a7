/* Products of rows with all panels of a weight (loops/panel.c), and what happens to their sums. Private. */
#ifndef TR_CPU_PANELS_H
#define TR_CPU_PANELS_H

#include "kernels/cpu/loops/loops.h"

typedef struct {
    const tr_cpu_loops *loops;
    size_t depth, out; /* out: a multiple of TR_CPU_PANEL */
    tr_dtype type;     /* of weights, y and residual */
    tr_act act;
    int threads;
} tr_panels;

/* Floats that a thread needs for so many rows. */
static inline size_t tr_panels_sums(size_t rows)
{
    return rows * TR_CPU_PANEL;
}

/* y(rows, out) = act(x(rows, depth) w + bias + residual(rows, out)); bias and residual may be NULL, the residual y. sums:
 * [threads * tr_panels_sums(rows)]. */
void tr_panels_run(const tr_panels *p, size_t rows, const float *x, const void *packed,
                   const float *bias, const void *residual, void *y, float *sums);

/* n rows of TR_CPU_PANEL floats as outputs have them, in the order in which a panel of bfloat16 has them, or back. */
void tr_panels_mix(float *rows, size_t n, bool back);

#endif
