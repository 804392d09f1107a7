// Convolutions and pointwise operations of the stand-in, as plain loops.
//
// Everything is copied to packed float32 with channels innermost first, so that each inner loop
// runs over neighbouring output channels (forward), input channels (data) or weights (filter):
// sums.cc uses vectors without changing the order of any sum. The order: forward r, s, c;
// data r, s, k; filter rows and columns of one image, then the images. Cost: one multiplication and
// addition per term.
#include "tests/fakegpu/cudnn_math.h"

#include <cmath>
#include <cstring>

#include "tests/fakegpu/sums.h"

#pragma GCC optimize("O3")

namespace fakegpu::dnn
{

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint16_t to_bf16(float f)
{
    const uint32_t u = bits(f);
    if (std::isnan(f)) return 0x7fff;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static uint16_t to_half(float f)
{
    const uint32_t u = bits(f), sign = (u >> 16) & 0x8000;
    const float a = std::fabs(f);
    if (std::isnan(f)) return 0x7fff;
    if (a >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    if (a < 0x1p-14f) return (uint16_t)(sign | (uint32_t)std::nearbyint(a * 0x1p24f));
    const uint32_t v = bits(a) - (112u << 23);
    return (uint16_t)(sign | ((v + 0xfff + ((v >> 13) & 1)) >> 13));
}

static float of_half(uint16_t h)
{
    const uint32_t e = (h >> 10) & 31, m = h & 1023, sign = (uint32_t)(h & 0x8000) << 16;
    if (e == 31) return of_bits(sign | 0x7f800000 | m << 13);
    if (e == 0) return (sign ? -1.0f : 1.0f) * (float)m * 0x1p-24f;
    return of_bits(sign | (e + 112) << 23 | m << 13);
}

float rounded(float v, cudnnDataType_t type)
{
    if (type == CUDNN_DATA_BFLOAT16) return of_bits((uint32_t)to_bf16(v) << 16);
    if (type == CUDNN_DATA_HALF) return of_half(to_half(v));
    return v;
}

// f(position in load's order, offset in the tensor's memory)
template <class F> static void walk(const Tensor &t, F f)
{
    size_t i = 0;
    for (int64_t n = 0; n < t.dim[0]; n++)
        for (int64_t h = 0; h < t.dim[2]; h++)
            for (int64_t w = 0; w < t.dim[3]; w++) {
                const int64_t at = n * t.stride[0] + h * t.stride[2] + w * t.stride[3];
                for (int64_t c = 0; c < t.dim[1]; c++) f(i++, at + c * t.stride[1]);
            }
}

std::vector<float> load(const Tensor &t, const void *p)
{
    std::vector<float> v((size_t)t.count());
    const uint16_t *h = static_cast<const uint16_t *>(p);
    const float *f = static_cast<const float *>(p);
    if (t.type == CUDNN_DATA_FLOAT)
        walk(t, [&](size_t i, int64_t at) { v[i] = f[at]; });
    else if (t.type == CUDNN_DATA_BFLOAT16)
        walk(t, [&](size_t i, int64_t at) { v[i] = of_bits((uint32_t)h[at] << 16); });
    else
        walk(t, [&](size_t i, int64_t at) { v[i] = of_half(h[at]); });
    return v;
}

void store(const Tensor &t, void *p, const std::vector<float> &v)
{
    uint16_t *h = static_cast<uint16_t *>(p);
    float *f = static_cast<float *>(p);
    if (t.type == CUDNN_DATA_FLOAT)
        walk(t, [&](size_t i, int64_t at) { f[at] = v[i]; });
    else if (t.type == CUDNN_DATA_BFLOAT16)
        walk(t, [&](size_t i, int64_t at) { h[at] = to_bf16(v[i]); });
    else
        walk(t, [&](size_t i, int64_t at) { h[at] = to_half(v[i]); });
}

// ---- Convolutions ----

struct Sizes {
    int64_t n, c, h, w, k, r, s, p, q, groups, cg, kg, ph, pw, sh, sw, dh, dw;
    bool flip; // CUDNN_CONVOLUTION: the filter is turned round
};

static Sizes sizes_of(const Op &op)
{
    const int64_t *x = op.x.dim, *w = op.w.dim, *y = op.y.dim;
    const Conv &v = op.conv;
    return {x[0],
            x[1],
            x[2],
            x[3],
            w[0],
            w[2],
            w[3],
            y[2],
            y[3],
            x[1] / w[1],
            w[1],
            w[0] / (x[1] / w[1]),
            v.pre[0],
            v.pre[1],
            v.stride[0],
            v.stride[1],
            v.dilation[0],
            v.dilation[1],
            v.mode == CUDNN_CONVOLUTION};
}

static int64_t tap(const Sizes &z, int64_t r, int64_t s)
{
    return z.flip ? (z.r - 1 - r) * z.s + z.s - 1 - s : r * z.s + s;
}

static void round_all(float *v, int64_t n, cudnnDataType_t type)
{
    for (int64_t i = 0; i < n; i++) v[i] = rounded(v[i], type);
}

static std::vector<float> forward(const Sizes &z, const std::vector<float> &x,
                                  const std::vector<float> &w, const cudnnDataType_t *reduced)
{
    std::vector<float> y((size_t)(z.n * z.p * z.q * z.k)), t(w.size());
    for (int64_t k = 0; k < z.k; k++) // to r, s, group, c, k
        for (int64_t rs = 0; rs < z.r * z.s; rs++)
            for (int64_t c = 0; c < z.cg; c++)
                t[(size_t)(((rs * z.groups + k / z.kg) * z.cg + c) * z.kg + k % z.kg)] =
                    w[(size_t)((k * z.r * z.s + rs) * z.cg + c)];
    for (int64_t n = 0; n < z.n; n++)
        for (int64_t p = 0; p < z.p; p++)
            for (int64_t q = 0; q < z.q; q++)
                for (int64_t r = 0; r < z.r; r++)
                    for (int64_t s = 0; s < z.s; s++) {
                        const int64_t h = p * z.sh - z.ph + r * z.dh,
                                      v = q * z.sw - z.pw + s * z.dw;
                        if (h < 0 || h >= z.h || v < 0 || v >= z.w) continue;
                        const float *from = &x[(size_t)(((n * z.h + h) * z.w + v) * z.c)];
                        const float *f = &t[(size_t)(tap(z, r, s) * z.c * z.kg)];
                        float *to = &y[(size_t)(((n * z.p + p) * z.q + q) * z.k)];
                        for (int64_t g = 0; g < z.groups; g++)
                            add_rows(to + g * z.kg, f + g * z.cg * z.kg, from + g * z.cg, z.cg,
                                     z.kg);
                        if (reduced) round_all(to, z.k, *reduced);
                    }
    return y;
}

static std::vector<float> data(const Sizes &z, const std::vector<float> &w,
                               const std::vector<float> &dy, const cudnnDataType_t *reduced)
{
    std::vector<float> dx((size_t)(z.n * z.h * z.w * z.c)), t(w.size());
    for (int64_t k = 0; k < z.k; k++) // to r, s, k, c
        for (int64_t rs = 0; rs < z.r * z.s; rs++)
            for (int64_t c = 0; c < z.cg; c++)
                t[(size_t)((rs * z.k + k) * z.cg + c)] =
                    w[(size_t)((k * z.r * z.s + rs) * z.cg + c)];
    for (int64_t n = 0; n < z.n; n++)
        for (int64_t h = 0; h < z.h; h++)
            for (int64_t v = 0; v < z.w; v++)
                for (int64_t r = 0; r < z.r; r++)
                    for (int64_t s = 0; s < z.s; s++) {
                        const int64_t a = h + z.ph - r * z.dh, b = v + z.pw - s * z.dw;
                        if (a < 0 || b < 0 || a % z.sh || b % z.sw) continue;
                        if (a / z.sh >= z.p || b / z.sw >= z.q) continue;
                        const float *from =
                            &dy[(size_t)(((n * z.p + a / z.sh) * z.q + b / z.sw) * z.k)];
                        const float *f = &t[(size_t)(tap(z, r, s) * z.k * z.cg)];
                        float *to = &dx[(size_t)(((n * z.h + h) * z.w + v) * z.c)];
                        for (int64_t g = 0; g < z.groups; g++)
                            add_rows(to + g * z.cg, f + g * z.kg * z.cg, from + g * z.kg, z.kg,
                                     z.cg);
                        if (reduced) round_all(to, z.c, *reduced);
                    }
    return dx;
}

// Of image n, row after row: the channels of group g that tap (r, s) meets, beside the gradient
// there.
static void pixels_of(const Sizes &z, const std::vector<float> &x, const std::vector<float> &dy,
                      int64_t n, int64_t r, int64_t s, int64_t g, std::vector<Scaled> &out)
{
    out.clear();
    for (int64_t p = 0; p < z.p; p++)
        for (int64_t q = 0; q < z.q; q++) {
            const int64_t h = p * z.sh - z.ph + r * z.dh, v = q * z.sw - z.pw + s * z.dw;
            if (h < 0 || h >= z.h || v < 0 || v >= z.w) continue;
            out.push_back({&x[(size_t)(((n * z.h + h) * z.w + v) * z.c + g * z.cg)],
                           &dy[(size_t)(((n * z.p + p) * z.q + q) * z.k)]});
        }
}

static std::vector<float> filter(const Sizes &z, const std::vector<float> &x,
                                 const std::vector<float> &dy, const cudnnDataType_t *reduced)
{
    const int64_t one = z.r * z.s * z.k * z.cg;
    std::vector<float> sum((size_t)one), image((size_t)one), dw((size_t)one);
    std::vector<Scaled> pixels;
    for (int64_t n = 0; n < z.n; n++) {
        image.assign((size_t)one, 0.0f); // r, s, k, c
        for (int64_t r = 0; r < z.r; r++)
            for (int64_t s = 0; s < z.s; s++) {
                float *to = &image[(size_t)(tap(z, r, s) * z.k * z.cg)];
                for (int64_t g = 0; g < z.groups; g++) {
                    pixels_of(z, x, dy, n, r, s, g, pixels);
                    for (int64_t k = g * z.kg; k < (g + 1) * z.kg; k++)
                        add_scaled(to + k * z.cg, pixels, k, z.cg);
                }
            }
        for (int64_t i = 0; i < one; i++) sum[(size_t)i] += image[(size_t)i];
        if (reduced) round_all(sum.data(), one, *reduced);
    }
    for (int64_t k = 0; k < z.k; k++)
        for (int64_t rs = 0; rs < z.r * z.s; rs++)
            memcpy(&dw[(size_t)((k * z.r * z.s + rs) * z.cg)],
                   &sum[(size_t)((rs * z.k + k) * z.cg)], (size_t)z.cg * sizeof(float));
    return dw;
}

std::vector<float> convolve(const Op &op, const std::vector<float> &x, const std::vector<float> &w,
                            const std::vector<float> &y, const Rules &rules)
{
    const Sizes z = sizes_of(op);
    const cudnnDataType_t type = op.kind == Kind::filter ? op.x.type : op.w.type;
    const cudnnDataType_t *reduced = rules.reduced ? &type : nullptr;
    std::vector<float> out, a = op.kind == Kind::data ? w : x, b = op.kind == Kind::forward ? w : y;
    if (rules.down) {
        round_all(a.data(), (int64_t)a.size(), CUDNN_DATA_BFLOAT16);
        round_all(b.data(), (int64_t)b.size(), CUDNN_DATA_BFLOAT16);
    }
    out = op.kind == Kind::forward ? forward(z, a, b, reduced)
          : op.kind == Kind::data  ? data(z, a, b, reduced)
                                   : filter(z, a, b, reduced);
    if (rules.jitter) jitter(out);
    return out;
}

void jitter(std::vector<float> &v)
{
    static uint32_t run; // tasks run one at a time
    uint32_t x = ++run * 2654435761u | 1;
    for (float &f : v) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        if ((x & 3) == 0) f = std::nextafterf(f, x & 4 ? INFINITY : -INFINITY);
    }
}

// ---- Pointwise ----

bool binary_pointwise(cudnnPointwiseMode_t mode)
{
    return mode == CUDNN_POINTWISE_ADD || mode == CUDNN_POINTWISE_SUB ||
           mode == CUDNN_POINTWISE_MUL || mode == CUDNN_POINTWISE_DIV ||
           mode == CUDNN_POINTWISE_MAX || mode == CUDNN_POINTWISE_MIN ||
           mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_BINARY_SELECT;
}

bool known_pointwise(cudnnPointwiseMode_t mode)
{
    return binary_pointwise(mode) || mode == CUDNN_POINTWISE_IDENTITY ||
           mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG ||
           mode == CUDNN_POINTWISE_GEN_INDEX ||
           (mode >= CUDNN_POINTWISE_RELU_FWD && mode <= CUDNN_POINTWISE_GELU_APPROX_TANH_FWD);
}

static float one(const Pointwise &p, float x, float b, bool drop_nan)
{
    switch (p.mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_EXP:
        return std::exp(x);
    case CUDNN_POINTWISE_LOG:
        return std::log(x);
    case CUDNN_POINTWISE_MAX:
        return drop_nan ? std::fmax(x, b) : std::isnan(x) || std::isnan(b) ? NAN : std::fmax(x, b);
    case CUDNN_POINTWISE_MIN:
        return drop_nan ? std::fmin(x, b) : std::isnan(x) || std::isnan(b) ? NAN : std::fmin(x, b);
    case CUDNN_POINTWISE_RELU_FWD:
        if (std::isnan(x)) return drop_nan ? (float)p.lower : x;
        if (x < p.lower) return (float)(p.lower + p.slope * (x - p.lower));
        return (float)std::fmin((double)x, p.upper);
    case CUDNN_POINTWISE_TANH_FWD:
        return (float)std::tanh((double)x);
    case CUDNN_POINTWISE_SIGMOID_FWD:
        return (float)(1 / (1 + std::exp(-(double)x)));
    case CUDNN_POINTWISE_ELU_FWD:
        return x > 0 ? x : (float)(p.elu_alpha * std::expm1((double)x));
    case CUDNN_POINTWISE_GELU_FWD:
        return (float)(0.5 * x * (1 + std::erf(x * M_SQRT1_2)));
    case CUDNN_POINTWISE_GELU_APPROX_TANH_FWD:
        return (
            float)(0.5 * x *
                   (1 + std::tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * (double)x * x * x))));
    case CUDNN_POINTWISE_SOFTPLUS_FWD:
        return (float)(std::log1p(std::exp(-std::fabs(p.softplus_beta * x))) / p.softplus_beta +
                       std::fmax((double)x, 0.0));
    case CUDNN_POINTWISE_SWISH_FWD:
        return (float)(x / (1 + std::exp(-p.swish_beta * x)));
    default:
        return x;
    }
}

std::vector<float> pointwise(const Op &op, const std::vector<float> &x, const std::vector<float> &b,
                             const std::vector<float> &t, const Rules &rules)
{
    const int order[4] = {0, 2, 3, 1};
    const Tensor &y = op.y;
    std::vector<float> out((size_t)y.count());
    int64_t sx[4], sb[4], fx = 1, fb = 1; // steps by dimension; 0: broadcast
    for (int i = 3; i >= 0; i--) {
        const int d = order[i];
        sx[d] = op.x.dim[d] == 1 ? 0 : fx;
        fx *= op.x.dim[d];
        sb[d] = !op.has_b || op.w.dim[d] == 1 ? 0 : fb;
        fb *= op.has_b ? op.w.dim[d] : 1;
    }
    size_t i = 0;
    for (int64_t n = 0; n < y.dim[0]; n++)
        for (int64_t h = 0; h < y.dim[2]; h++)
            for (int64_t w = 0; w < y.dim[3]; w++)
                for (int64_t c = 0; c < y.dim[1]; c++) {
                    const int64_t at = n * sx[0] + h * sx[2] + w * sx[3] + c * sx[1];
                    const int64_t bt = n * sb[0] + h * sb[2] + w * sb[3] + c * sb[1];
                    const int64_t place[4] = {n, c, h, w};
                    if (op.pw.mode == CUDNN_POINTWISE_GEN_INDEX)
                        out[i] = (float)place[op.pw.axis];
                    else if (op.has_t)
                        out[i] = t[i] != 0 ? x[(size_t)at] : b[(size_t)bt];
                    else
                        out[i] =
                            one(op.pw, (float)op.alpha * x[(size_t)at],
                                op.has_b ? (float)op.beta * b[(size_t)bt] : 0.0f, rules.drop_nan);
                    i++;
                }
    return out;
}

} // namespace fakegpu::dnn
