/* Transposes in blocks: rows of a block lie in the first-level cache on both sides. One loop for
 * each type, so that compilers see what they convert; where they can, compiled once for each level
 * of vectors, of which the machine's is taken when the program starts. */
#include "optimize/inference/convert.h"

#include <string.h>

enum { BLOCK = 16 };

#if defined __x86_64__ && defined __gnu_linux__ && defined __GNUC__ && !defined __clang__ &&       \
    !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#define LEVELS                                                                                     \
    __attribute__((optimize("O3"), target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define LEVELS
#endif

/* A tensor as samples of `outer` rows of `inner`: the caller's order; stored the other way round
 * where it is channels-last. Samples are stored `step` elements apart. */
typedef struct {
    size_t samples, outer, inner, step;
} shape;

static shape sizes_of(const tr_tensor *t)
{
    shape s = {.samples = 1, .outer = 1, .inner = t->count};
    if (t->pitch > 0) {
        s.inner = (size_t)t->dims[tr_innermost(t)];
        s.samples = t->count / s.inner;
        return s;
    }
    if (t->layout != TR_LAYOUT_CHANNELS_LAST) return s;
    s.samples = (size_t)t->dims[0];
    s.outer = (size_t)t->dims[1];
    s.inner = s.samples && s.outer ? t->count / s.samples / s.outer : 0;
    if (s.outer == 1 || s.inner == 1) s = (shape){.samples = 1, .outer = 1, .inner = t->count};
    return s;
}

static shape shape_of(const tr_tensor *t)
{
    shape s = sizes_of(t);
    s.step = t->pitch > 0 ? (size_t)t->pitch : s.outer * s.inner;
    return s;
}

bool tr_convert_none(const tr_tensor *t)
{
    return (t->dtype == TR_F32 || t->dtype == TR_I32) && t->pitch == 0 && shape_of(t).outer == 1;
}

#define AS_IS(v) (v)

/* As tr_f32_to_bf16, without a branch. */
static inline tr_bf16 to_bfloat(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    return (tr_bf16)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* to[c * outer + r] = from[r * inner + c], by blocks; few rows go as one. */
#define TRANSPOSE(name, from_type, to_type, convert)                                               \
    LEVELS static void name(const from_type *restrict from, to_type *restrict to, size_t outer,    \
                            size_t inner)                                                          \
    {                                                                                              \
        if (outer == 1 || inner == 1) {                                                            \
            for (size_t i = 0; i < outer * inner; i++) to[i] = convert(from[i]);                   \
            return;                                                                                \
        }                                                                                          \
        if (outer == 3) { /* colors */                                                             \
            for (size_t c = 0; c < inner; c++) {                                                   \
                to[3 * c] = convert(from[c]);                                                      \
                to[3 * c + 1] = convert(from[inner + c]);                                          \
                to[3 * c + 2] = convert(from[2 * inner + c]);                                      \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (size_t c0 = 0; c0 < inner; c0 += BLOCK) {                                             \
            const size_t c1 = c0 + BLOCK < inner ? c0 + BLOCK : inner;                             \
            for (size_t r0 = 0; r0 < outer; r0 += BLOCK) {                                         \
                const size_t r1 = r0 + BLOCK < outer ? r0 + BLOCK : outer;                         \
                for (size_t c = c0; c < c1; c++)                                                   \
                    for (size_t r = r0; r < r1; r++)                                               \
                        to[c * outer + r] = convert(from[r * inner + c]);                          \
            }                                                                                      \
        }                                                                                          \
    }
TRANSPOSE(from_f32, float, float, AS_IS)
TRANSPOSE(from_bf16, tr_bf16, float, tr_bf16_to_f32)
TRANSPOSE(from_f16, tr_f16, float, tr_f16_to_f32)
TRANSPOSE(to_bf16, float, tr_bf16, to_bfloat)
TRANSPOSE(to_f16, float, tr_f16, tr_f32_to_f16)

void tr_convert_in(const tr_tensor *t, const void *from, void *to)
{
    const shape s = shape_of(t);
    const size_t each = s.outer * s.inner;
    if (tr_convert_none(t)) {
        memcpy(to, from, t->nbytes);
        return;
    }
    for (size_t i = 0; i < s.samples; i++) {
        const float *x = (const float *)from + i * each;
        if (t->dtype == TR_BF16)
            to_bf16(x, (tr_bf16 *)to + i * each, s.outer, s.inner);
        else if (t->dtype == TR_F16)
            to_f16(x, (tr_f16 *)to + i * each, s.outer, s.inner);
        else
            from_f32(x, (float *)to + i * each, s.outer, s.inner);
    }
}

void tr_convert_out(const tr_tensor *t, const void *from, float *to)
{
    const shape s = shape_of(t);
    const size_t each = s.outer * s.inner;
    for (size_t i = 0; i < s.samples; i++) {
        float *y = to + i * each;
        if (t->dtype == TR_BF16)
            from_bf16((const tr_bf16 *)from + i * s.step, y, s.inner, s.outer);
        else if (t->dtype == TR_F16)
            from_f16((const tr_f16 *)from + i * s.step, y, s.inner, s.outer);
        else
            from_f32((const float *)from + i * s.step, y, s.inner, s.outer);
    }
}
