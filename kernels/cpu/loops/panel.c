/* A product of some rows with a panel of a weight, TR_CPU_PANEL outputs side by side: panel[k]
 * holds what row element k is multiplied by. The sums of a block of rows stay in registers over the
 * whole depth.
 *
 * A network's weights do not fit a second-level cache, and the next ones come from beyond it too
 * late where nobody asks for them: the lines behind this panel are asked for while it is
 * multiplied, a share with each of the first blocks of rows. One thread, AVX-512, 32 rows, 784 x
 * 512, then 512 x 512: 174 GFLOP/s, 153 without that, 143 by oneDNN's product. */
#include "kernels/cpu/loops/lanes.h"

/* ROWS: sums of so many fill the registers of AVX-512; what asks for panels has that. */
enum { VECTORS = TR_CPU_PANEL / TR_LANES, LINE = 64, FOUR = 4, ROWS = 8 };
_Static_assert(VECTORS % 2 == 0, "whole vectors");

#define EACH(i, count) _Pragma("GCC unroll 16") for (size_t i = 0; i < (count); i++)

typedef uint32_t lane_bits __attribute__((vector_size(TR_LANE_BYTES), aligned(4), may_alias));

/* Of bfloat16 a number has an output's value below that of one half a panel on: they part without a
 * port that is not busy anyway. */
TR_INLINE void load(tr_dtype t, const char *w, tr_lanes row[VECTORS])
{
    if (t == TR_F32) {
        EACH(v, VECTORS) row[v] = *(const tr_lanes *)(w + v * TR_LANE_BYTES);
        return;
    }
    EACH(v, VECTORS / 2)
    {
        const lane_bits both = *(const lane_bits *)(w + v * TR_LANE_BYTES);
        row[v] = (tr_lanes)(both << 16);
        row[v + VECTORS / 2] = (tr_lanes)(both & 0xffff0000u);
    }
}

/* One more element of each row; at[i]: of row FOUR * i. */
TR_INLINE void step(tr_dtype t, size_t rows, size_t pitch, const float *at[], const char *w,
                    tr_lanes sums[ROWS][VECTORS])
{
    tr_lanes row[VECTORS];
    load(t, w, row);
    EACH(r, rows)
    {
        const float factor = at[r / FOUR][r % FOUR * pitch];
        EACH(v, VECTORS) sums[r][v] += factor * row[v];
    }
    for (size_t i = 0; i < rows; i += FOUR) {
        at[i / FOUR]++;
        /* else compilers keep a pointer for each row, those beyond 16 in vectors, whose way back is
         * a multiplier's port */
        __asm__("" : "+r"(at[i / FOUR]));
    }
}

/* ahead: a line of it is asked for with every other element. */
TR_INLINE void block(tr_dtype t, size_t rows, const tr_cpu_panel *p, const float *x, const char *w,
                     const float *bias, float *y, const char *ahead)
{
    const size_t size = TR_CPU_PANEL * (t == TR_F32 ? 4 : 2), depth = p->depth, pitch = p->x_pitch;
    tr_lanes sums[ROWS][VECTORS];
    const float *at[ROWS / FOUR];
    for (size_t i = 0; i < rows; i += FOUR) at[i / FOUR] = x + i * pitch;
    EACH(r, rows)
    EACH(v, VECTORS)
    {
        sums[r][v] = (tr_lanes){0};
        if (bias) sums[r][v] = *(const tr_lanes *)(bias + v * TR_LANES);
        if (p->add) sums[r][v] = *(const tr_lanes *)(y + r * p->y_pitch + v * TR_LANES);
    }
    size_t k = 0;
    for (; k + 2 <= depth; k += 2, w += 2 * size, ahead += LINE) {
        __builtin_prefetch(ahead, 0, 2);
        step(t, rows, pitch, at, w, sums);
        step(t, rows, pitch, at, w + size, sums);
    }
    if (k < depth) step(t, rows, pitch, at, w, sums);
    EACH(r, rows)
    EACH(v, VECTORS)
    {
        tr_lanes s = sums[r][v];
        if (p->relu) s = (tr_lanes)((lane_bits)s & ~(lane_bits)(s < 0)); /* NaN stays */
        *(tr_lanes *)(y + r * p->y_pitch + v * TR_LANES) = s;
    }
}

TR_INLINE void rows_of(tr_dtype t, const tr_cpu_panel *p, const float *x, const void *w,
                       const float *bias, float *y)
{
    const size_t size = p->depth * TR_CPU_PANEL * (t == TR_F32 ? 4 : 2),
                 share = p->depth / 2 * LINE;
    const char *next = (const char *)w + size;
    size_t left = p->rows, asked = 0;
#define ROWS_OF(n)                                                                                 \
    block(t, n, p, x, w, bias, y, next + (asked < size ? asked : 0)), x += (n)*p->x_pitch,         \
        y += (n)*p->y_pitch, left -= (n), asked += share
    while (left >= ROWS) ROWS_OF(ROWS);
    if (left == 7) ROWS_OF(7);
    if (left == 6) ROWS_OF(6);
    if (left == 5) ROWS_OF(5);
    if (left == 4) ROWS_OF(4);
    if (left == 3) ROWS_OF(3);
    if (left == 2) ROWS_OF(2);
    if (left == 1) ROWS_OF(1);
#undef ROWS_OF
}

void TR_LOOP(panel)(const tr_cpu_panel *p, const float *x, const void *w, const float *bias,
                    float *y)
{
    TR_BY_TYPE(p->type, rows_of(T, p, x, w, bias, y));
}
