/* Elementwise loops: activations and their gradients, n-ary addition, plain ops, casts, dropout.
 *
 * Bound by memory but for gelu, silu and tanh (about 30 operations an element). */
#include "kernels/cpu/loops/philox.h"
#include "kernels/cpu/loops/vmath.h"

TR_INLINE void act_body(tr_dtype t, tr_act act, const void *x, void *y, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, i, tr_vact(act, tr_load(t, x, i)));
}

void TR_LOOP(act)(tr_dtype t, tr_act act, const void *x, void *y, size_t n)
{
    TR_BY_TYPE_ACT(t, act, act_body(T, ACT, x, y, n));
}

TR_INLINE void act_grad_body(tr_dtype t, tr_act act, const void *dy, const void *saved, void *dx,
                             size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
        tr_store(t, dx, i, tr_vact_grad(act, tr_load(t, dy, i), tr_load(t, saved, i)));
}

void TR_LOOP(act_grad)(tr_dtype t, tr_act act, const void *dy, const void *saved, void *dx,
                       size_t n)
{
    TR_BY_TYPE_ACT(t, act, act_grad_body(T, ACT, dy, saved, dx, n));
}

TR_INLINE void add2_body(tr_dtype t, tr_act act, const void *a, const void *b, void *y, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
        tr_store(t, y, i, tr_vact(act, tr_load(t, a, i) + tr_load(t, b, i)));
}

/* More than two go through a block of float32 that stays in the first-level cache. */
enum { ADD_BLOCK = 1024 };

TR_INLINE void add_into(tr_dtype t, float *sum, const void *x, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) sum[i] += tr_load(t, x, i);
}

TR_INLINE void add_last(tr_dtype t, tr_act act, const float *sum, const void *x, void *y, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
        tr_store(t, y, i, tr_vact(act, sum[i] + tr_load(t, x, i)));
}

TR_INLINE void add_body(tr_dtype t, tr_act act, int count, const void *const *in, void *y, size_t n)
{
    if (count == 2) {
        add2_body(t, act, in[0], in[1], y, n);
        return;
    }
    float sum[ADD_BLOCK];
    for (size_t from = 0; from < n; from += ADD_BLOCK) {
        size_t some = tr_least(ADD_BLOCK, n - from);
        memset(sum, 0, some * sizeof *sum);
        for (int k = 0; k + 1 < count; k++) add_into(t, sum, tr_from(t, in[k], from), some);
        add_last(t, act, sum, tr_from(t, in[count - 1], from), tr_into(t, y, from), some);
    }
}

void TR_LOOP(add)(tr_dtype t, tr_act act, int count, const void *const *in, void *y, size_t n)
{
    TR_BY_TYPE_ACT(t, act, add_body(T, ACT, count, in, y, n));
}

/* The ops of kernels/elementwise.h: a body and a loop each. */
#define X(op, operands, value, numbers)                                                            \
    TR_INLINE float op##_value(float x, float y, tr_numbers n)                                     \
    {                                                                                              \
        (void)y, (void)n;                                                                          \
        return value;                                                                              \
    }                                                                                              \
    TR_INLINE void op##_body(tr_dtype t, tr_numbers n, const void *x, const void *y, void *out,    \
                             size_t count)                                                         \
    {                                                                                              \
        TR_SIMD for (size_t i = 0; i < count; i++) tr_store(                                       \
            t, out, i, op##_value(tr_load(t, x, i), (operands) > 1 ? tr_load(t, y, i) : 0.0f, n)); \
    }
TR_ELEMENTWISE(X)
#undef X

void TR_LOOP(elementwise)(tr_dtype t, tr_elementwise which, tr_numbers numbers, const void *x,
                          const void *y, void *out, size_t count)
{
    switch (which) {
#define X(op, operands, value, of)                                                                 \
    case TR_ELEMENTWISE_##op:                                                                      \
        TR_BY_TYPE(t, op##_body(T, numbers, x, y, out, count));                                    \
        break;
        TR_ELEMENTWISE(X)
#undef X
    }
}

void TR_LOOP(cast_bf16)(tr_bf16 *dst, const float *src, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) dst[i] = tr_round_bf16(src[i]);
}

void TR_LOOP(cast_f32)(float *dst, const tr_bf16 *src, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) dst[i] = tr_float((uint32_t)src[i] << 16);
}

void TR_LOOP(round_bf16)(float *dst, const float *src, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) dst[i] = tr_float(tr_rounded_bits(src[i]) & 0xffff0000u);
}

TR_INLINE void scale_body(tr_dtype t, const void *x, float factor, void *y, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, i, tr_load(t, x, i) * factor);
}

void TR_LOOP(scale)(tr_dtype t, const void *x, float factor, void *y, size_t n)
{
    TR_BY_TYPE(t, scale_body(T, x, factor, y, n));
}

TR_INLINE void dropout_body(tr_dtype t, const void *x, void *y, size_t n, const uint32_t *bits,
                            float p, float scale)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        float uniform = (float)(int32_t)(bits[i] >> 8) * 0x1p-24f;
        float v = tr_load(t, x, i) * scale;
        tr_store(t, y, i, uniform >= p ? v : 0.0f);
    }
}

void TR_LOOP(dropout)(tr_dtype t, const void *x, void *y, size_t n, uint64_t key, uint64_t sample,
                      size_t first, float p, float scale)
{
    uint32_t bits[4 * TR_PHILOX_BLOCKS];
    for (size_t from = 0; from < n; from += TR_COUNT(bits)) {
        size_t some = tr_least(TR_COUNT(bits), n - from);
        tr_philox_blocks(key, sample, (uint32_t)((first + from) / 4), bits);
        TR_BY_TYPE(t,
                   dropout_body(T, tr_from(T, x, from), tr_into(T, y, from), some, bits, p, scale));
    }
}
