/* Products of rows with all panels of a weight (loops/panel.c), and what happens to their sums.
 * Private. */
#ifndef TR_CPU_PANELS_H
#define TR_CPU_PANELS_H

#include "kernels/cpu/ops/loop_kernel.h"

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

/* y(rows, out) = act(x(rows, depth) w + bias + residual(rows, out)); bias and residual may be NULL,
 * the residual y. sums: [threads * tr_panels_sums(rows)]. */
void tr_panels_run(const tr_panels *p, size_t rows, const float *x, const void *packed,
                   const float *bias, const void *residual, void *y, float *sums);

/* ---- A kernel whose weight is packed as panels ----------------------------------------------- */

typedef struct tr_panels_kernel tr_panels_kernel;
struct tr_panels_kernel {
    tr_loop_kernel l;
    tr_panels p;
    /* Rows [at, at + n) of the panel of outputs from `o` on, (n, TR_CPU_PANEL), from the weight, or
     * back into it; n up to TR_CPU_PANEL_ROWS. */
    void (*move)(const tr_panels_kernel *k, bool back, size_t o, size_t at, size_t n, float *rows);
    struct {
        char what[8];
        int32_t type, out;
    } format;
};
enum { TR_CPU_PANEL_ROWS = 256 };
/* The kernel packs and unpacks `weight`, its input number 1, by its `move`; k->p is set. what: up
 * to 7 characters, which tell its packing from others'. */
void tr_panels_kernel_packs(tr_panels_kernel *k, const tr_tensor *weight, const char *what);

#endif
