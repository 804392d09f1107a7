/* How batch normalization's loops walk rows of C contiguous channels (channels last).
 *
 * Rows narrower than a few vectors are taken several at a time: `fold` rows become one wide row
 * whose width is a multiple of 16 floats, with the coefficients repeated. Rows wider than
 * TR_BN_WIDTH are cut into tiles. Within a wide row of bfloat16 elements go in pairs
 * (tr_pair_place), and so do coefficients and sums. */
#ifndef TR_CPU_LOOPS_BATCHNORM_H
#define TR_CPU_LOOPS_BATCHNORM_H

#include "kernels/cpu/loops/pairs.h"
#include "kernels/cpu/loops/vmath.h"

/* TR_BN_TOGETHER: wide rows that are gone through side by side, so that sums and coefficients are
 * loaded once for all. Where rows are written, beyond the cache, a core is up to twice as fast with
 * one after the other (Zen 4, 96 MB: 29 GB/s for 14). */
enum { TR_BN_WIDTH = 512, TR_BN_BLOCK = 64, TR_BN_TOGETHER = 4, TR_BN_AHEAD = 4096 };

typedef struct {
    size_t fold, width, stride, rows; /* rows: wide ones */
    size_t rest;                      /* rows of C channels that are left over */
} tr_bn_shape;

/* How rows of C channels are walked, from channel `from` on; one by one. */
static inline tr_bn_shape tr_bn_shape_apart(size_t rows, size_t C, size_t from)
{
    return (tr_bn_shape){
        .fold = 1, .width = tr_least(C - from, TR_BN_WIDTH), .stride = C, .rows = rows};
}

static inline tr_bn_shape tr_bn_shape_of(size_t rows, size_t C, size_t from)
{
    tr_bn_shape s = tr_bn_shape_apart(rows, C, from);
    size_t odd = 16; /* rows until the width is a multiple of 16 */
    while (odd > 1 && (odd / 2 * C) % 16 == 0) odd /= 2;
    if (C * odd <= TR_BN_WIDTH && C < 128) {
        while (s.fold * C < 128 && (s.fold + odd) * C <= TR_BN_WIDTH)
            s.fold += s.fold < odd ? odd - 1 : odd;
        s.width = s.stride = s.fold * C;
        s.rows = rows / s.fold;
        s.rest = rows % s.fold;
    }
    return s;
}

/* From the order of elements to that of pairs. */
TR_INLINE void tr_bn_to_pairs(tr_dtype t, size_t n, const float *in, float *out)
{
    const size_t second = (n + 1) / 2;
    if (t != TR_BF16) {
        memcpy(out, in, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n / 2; i++) out[i] = in[2 * i];
    for (size_t i = 0; i < n / 2; i++) out[second + i] = in[2 * i + 1];
    if (n % 2) out[n / 2] = in[n - 1];
}

/* And back. */
TR_INLINE void tr_bn_from_pairs(tr_dtype t, size_t n, const double *in, double *out)
{
    const size_t second = (n + 1) / 2;
    if (t != TR_BF16) {
        memcpy(out, in, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n / 2; i++) {
        out[2 * i] = in[i];
        out[2 * i + 1] = in[second + i];
    }
    if (n % 2) out[n - 1] = in[n / 2];
}

/* Coefficients of the tile, repeated over the folded rows. */
static inline void tr_bn_repeat(tr_dtype t, const tr_bn_shape *s, const float *c, size_t from,
                                float wide[TR_BN_WIDTH])
{
    float all[TR_BN_WIDTH];
    const size_t C = s->width / s->fold;
    for (size_t f = 0; f < s->fold; f++) memcpy(all + f * C, c + from, C * sizeof *c);
    tr_bn_to_pairs(t, s->width, all, wide);
}

/* The same of those that make what is stored: a NaN as tr_pairs_store wants it. */
static inline void tr_bn_repeat_stored(tr_dtype t, const tr_bn_shape *s, const float *c,
                                       size_t from, float wide[TR_BN_WIDTH])
{
    tr_bn_repeat(t, s, c, from, wide);
    for (size_t e = 0; e < s->width; e++) wide[e] = wide[e] != wide[e] ? NAN : wide[e];
}

/* Elements of wide row r, of which there is one more than `rows`: what is left over. */
static inline size_t tr_bn_count(const tr_bn_shape *s, size_t r)
{
    return r < s->rows ? s->width : s->rest * (s->width / s->fold);
}

/* Has the rows fetched that come TR_BN_AHEAD bytes behind these: further than the hardware looks by
 * itself, which alone reads from memory at 50 to 70 % of a copy's rate. What is asked for beyond an
 * array's end is ignored. */
TR_INLINE void tr_bn_fetch(tr_dtype t, const void *p, const tr_bn_shape *s, size_t rows)
{
    const size_t nbytes = rows * s->stride * (t == TR_BF16 ? 2 : 4);
    if (s->stride != s->width) return; /* cut into tiles */
    for (size_t b = 0; b < nbytes; b += 64)
        __builtin_prefetch((const char *)p + TR_BN_AHEAD + b, 0, 3);
}

/* The same of what will be written; in float32, with twice the bytes an element, it only costs. */
TR_INLINE void tr_bn_fetch_to_write(tr_dtype t, const void *p, const tr_bn_shape *s, size_t rows)
{
    if (t != TR_BF16 || s->stride != s->width) return;
    for (size_t b = 0; b < rows * s->stride * 2; b += 64)
        __builtin_prefetch((const char *)p + TR_BN_AHEAD + b, 1, 3);
}

/* Where the coefficients of the second elements of pairs begin. */
static inline size_t tr_bn_second(const tr_bn_shape *s)
{
    return (s->width + 1) / 2;
}

/* And those of element e that has no partner: any of float32, else the last of an odd row. */
TR_INLINE size_t tr_bn_single(tr_dtype t, size_t e)
{
    return t == TR_BF16 ? e / 2 : e;
}

#endif
