/* Functions of a float that gcc turns into vector code: no branch, no table, no call.
 *
 * Polynomials are minimax fits (Lawson iteration in float64); tests/unit/cpu/test_activation.c
 * holds the stated errors against libm. NaN gives NaN everywhere. */
#ifndef TR_CPU_LOOPS_VMATH_H
#define TR_CPU_LOOPS_VMATH_H

#include "kernels/cpu/loops/vec.h"

/* (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2 */
TR_INLINE float tr_vexp_rest(float r)
{
    float p = 0x1.6dbc68p-10f;
    p = p * r + 0x1.124148p-7f;
    p = p * r + 0x1.555454p-5f;
    p = p * r + 0x1.555486p-3f;
    return p * r + 0.5f;
}

/* exp(x), 2 ulp (also where it is subnormal, within 2^-149): x = n ln 2 + r, |r| <= ln 2 / 2. */
TR_INLINE float tr_vexp(float x)
{
    const float magic = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float t = x * 0x1.715476p0f + magic;
    float n = t - magic;
    float r = x - n * 0x1.62e4p-1f; /* n times these 14 bits is exact */
    r = r - n * 0x1.7f7d1cp-20f;
    float p = tr_vexp_rest(r) * (r * r) + r + 1.0f;
    /* 2^n in two factors, because n runs from -150 to 128 */
    uint32_t i = tr_bits(t) - tr_bits(magic) + 256u, half = i >> 1;
    float low = tr_float((half - 128u + 127u) << 23);
    float high = tr_float((i - half - 128u + 127u) << 23);
    return p * low * high;
}

/* exp(x) - 1 for x up to 88, 3 ulp: as above, with 2^n (e^r - 1) + (2^n - 1). */
TR_INLINE float tr_vexpm1(float x)
{
    const float magic = 0x1.8p23f;
    x = x < -30.0f ? -30.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float t = x * 0x1.715476p0f + magic;
    float n = t - magic;
    float r = x - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    float power = tr_float((tr_bits(t) - tr_bits(magic) + 127u) << 23);
    return (tr_vexp_rest(r) * (r * r) + r) * power + (power - 1.0f);
}

/* exp(x), 2 ulp, of what is added to 1: at the least e^-87, infinite from 2^127.5 on; so 2^n is one
 * factor. */
TR_INLINE float tr_vexp_beside_1(float x)
{
    const float magic = 0x1.8p23f + 127.0f; /* leaves the exponent's bits at the low end */
    x = x < -87.0f ? -87.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float t = x * 0x1.715476p0f + magic;
    float n = t - magic;
    float r = x - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    return (tr_vexp_rest(r) * (r * r) + r + 1.0f) * tr_float(tr_bits(t) << 23);
}

/* 1 / (1 + exp(-x)); 0 where that is subnormal */
TR_INLINE float tr_vsigmoid(float x)
{
    return 1.0f / (1.0f + tr_vexp_beside_1(-x));
}

/* tanh(x), 7 ulp, never beyond 1: x times a ratio of polynomials of x^2, and from 7.9 on 1. */
TR_INLINE float tr_vtanh(float x)
{
    float z = x * x, p = 0x1.090c2ep-26f, q = 0x1.cda3ccp-21f;
    p = p * z + 0x1.717c9ep-16f;
    q = q * z + 0x1.66fe9ep-12f;
    p = p * z + 0x1.d51adp-9f;
    q = q * z + 0x1.ad221ap-6f;
    p = p * z + 0x1.1377f6p-3f;
    q = q * z + 0x1.df114cp-2f;
    p = p * z + 1.0f;
    q = q * z + 1.0f;
    float y = x * p / q; /* far out not a number */
    return fabsf(x) > 7.9f ? copysignf(1.0f, x) : y;
}

/* log(1 + u) for u in [0, 1], 2 ulp: 2 artanh(u / (2 + u)) */
TR_INLINE float tr_vlog1p(float u)
{
    float s = u / (2.0f + u), z = s * s;
    float p = 0x1.f1aee0p-4f;
    p = p * z + 0x1.b6d6a4p-4f;
    p = p * z + 0x1.250972p-3f;
    p = p * z + 0x1.9996a8p-3f;
    p = p * z + 0x1.555558p-2f;
    return 2.0f * (s + s * (z * p));
}

/* 2^x of what lies below 0, or hardly above, and is added to something near 1: 3 ulp; below `least`
 * 2^least, of -127: 0. */
TR_INLINE float tr_vexp2_below(float x, float least)
{
    const float magic = 0x1.8p23f + 127.0f; /* leaves the exponent's bits at the low end */
    const float y = least > x ? least : x;
    const float t = y + magic, f = y - (t - magic);
    float p = 0x1.5bba14p-10f;
    p = p * f + 0x1.3cea88p-7f;
    p = p * f + 0x1.c6b752p-5f;
    p = p * f + 0x1.ebf9bcp-3f;
    p = p * f + 0x1.62e42ap-1f;
    p = p * f + 1.0f;
    return p * tr_float(tr_bits(t) << 23);
}

/* The normal distribution function Phi(x), absolute error 1e-7, and its density in *density. What
 * lies beyond |x| is exp(-x^2 / 2) times a polynomial of u = 0.4 |x| / (1 + 0.4 |x|), with a
 * relative error of 2e-6 for |x| up to 5. */
TR_INLINE float tr_vphi(float x, float *density)
{
    const float e = tr_vexp2_below(x * x * -0x1.715476p-1f, -127.0f);
    const float far = fabsf(x), a = 0.4f * (far > 16.0f ? 16.0f : far);
    const float u = a / (1.0f + a); /* small where x is, and so are its errors */
    float p = -0x1.3292c0p-5f;
    p = p * u + 0x1.bd8b54p-4f;
    p = p * u + -0x1.16b810p-4f;
    p = p * u + -0x1.6d6e1ep-7f;
    p = p * u + -0x1.c6782ep-4f;
    p = p * u + 0x1.a285e4p-5f;
    p = p * u + 0x1.214f78p-1f;
    p = p * u + -0x1.fea528p-1f;
    const float tail = e * (p * u + 0.5f);
    *density = 0.39894228f * e;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* sigmoid(2u), where gelu's tanh form is x * sigmoid(2u), and d(2u)/dx in *slope */
TR_INLINE float tr_vgelu_gate(float x, float *slope)
{
    float z = x * x;
    *slope = 1.5957691f + 0.21406445f * z;
    return tr_vsigmoid(x * (1.5957691f + 0.071354816f * z));
}

TR_INLINE float tr_vact(tr_act act, float x)
{
    float unused;
    switch (act) {
    case TR_ACT_RELU:
        return x < 0.0f ? 0.0f : x; /* NaN stays */
    case TR_ACT_GELU:
        return x * tr_vphi(x, &unused);
    case TR_ACT_GELU_TANH:
        return x * tr_vgelu_gate(x, &unused);
    case TR_ACT_SILU:
        return x * tr_vsigmoid(x);
    case TR_ACT_SIGMOID:
        return tr_vsigmoid(x);
    case TR_ACT_TANH:
        return tr_vtanh(x);
    case TR_ACT_NONE:
        break;
    }
    return x;
}

/* dy * act'(..), from what is saved: y for relu, sigmoid and tanh, else x. */
TR_INLINE float tr_vact_grad(tr_act act, float dy, float saved)
{
    float s, d;
    switch (act) {
    case TR_ACT_RELU:
        return saved > 0.0f ? dy : 0.0f;
    case TR_ACT_GELU:
        s = tr_vphi(saved, &d);
        return dy * (s + saved * d);
    case TR_ACT_GELU_TANH:
        s = tr_vgelu_gate(saved, &d);
        return dy * (s + saved * s * (1.0f - s) * d);
    case TR_ACT_SILU:
        s = tr_vsigmoid(saved);
        return dy * (s + saved * s * (1.0f - s));
    case TR_ACT_SIGMOID:
        return dy * saved * (1.0f - saved);
    case TR_ACT_TANH:
        return dy * (1.0f - saved * saved);
    case TR_ACT_NONE:
        break;
    }
    return dy;
}

#endif
