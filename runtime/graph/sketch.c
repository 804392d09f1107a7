/* The fixed part of sketched matrices (tr_sketch), made from its keyed stream wherever it is
 * needed: no file has it. */
#include "runtime/graph/model.h"

#include <math.h>
#include <string.h>

float tr_sketch_unit(const tr_sketch *s)
{
    return (float)(1 / (2 * (double)s->terms * sqrt((double)s->rank)));
}

void tr_sketch_signs(const tr_sketch *s, int64_t row, size_t first, size_t count, float unit,
                     float *to)
{
    const uint64_t key =
        tr_philox_key((uint64_t)s->seed, TR_RNG_SKETCH, s->side == TR_SKETCH_DOWN ? 0 : 1);
    for (size_t at = 0; at < count; at += TR_SIGNS_BLOCK) {
        const tr_philox w =
            tr_philox_block(key, (uint64_t)row, (uint32_t)((first + at) / TR_SIGNS_BLOCK));
        const size_t n = count - at < TR_SIGNS_BLOCK ? count - at : TR_SIGNS_BLOCK;
        for (size_t e = 0; e < n; e++) to[at + e] = w.v[e / 32] >> (e % 32) & 1 ? unit : -unit;
    }
}

void tr_sketch_matrix(const tr_sketch *s, const float *learned, int64_t out, int64_t in, float *to)
{
    const float unit = tr_sketch_unit(s);
    const size_t width = (size_t)in, half = width / 2;
    for (int64_t r = 0; r < out; r++, to += width) {
        if (s->side == TR_SKETCH_DOWN && r < out / 2)
            memcpy(to, learned + (size_t)r * width, width * sizeof *to);
        else if (s->side == TR_SKETCH_DOWN)
            tr_sketch_signs(s, r - out / 2, 0, width, unit, to);
        else
            tr_sketch_signs(s, r, 0, s->side == TR_SKETCH_UP ? half : width, unit, to);
        if (s->side == TR_SKETCH_UP)
            memcpy(to + half, learned + (size_t)r * half, half * sizeof *to);
    }
}
