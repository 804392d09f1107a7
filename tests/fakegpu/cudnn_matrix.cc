// What attention's graphs have beside pointwise operations: products of matrices, reductions and
// other views of the same memory, as plain loops; sums in float32, in the order of the second
// factor's rows.
#include "tests/fakegpu/cudnn_math.h"

#include <algorithm>
#include <cmath>

#pragma GCC optimize("O3")

namespace fakegpu::dnn
{

// Where element (n, c, h, w) is in load's order.
static size_t place(const Tensor &t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (size_t)(((n * t.dim[2] + h) * t.dim[3] + w) * t.dim[1] + c);
}

static std::vector<float> matrix(const Tensor &t, const std::vector<float> &v, int64_t n, int64_t c)
{
    std::vector<float> m((size_t)(t.dim[2] * t.dim[3]));
    size_t i = 0;
    for (int64_t h = 0; h < t.dim[2]; h++)
        for (int64_t w = 0; w < t.dim[3]; w++) m[i++] = v[place(t, n, c, h, w)];
    return m;
}

std::vector<float> multiply(const Op &op, const std::vector<float> &a, const std::vector<float> &b)
{
    const Tensor &y = op.y;
    const int64_t rows = y.dim[2], columns = y.dim[3], inner = op.x.dim[3];
    std::vector<float> out((size_t)y.count()), sums((size_t)columns);
    for (int64_t n = 0; n < y.dim[0]; n++)
        for (int64_t c = 0; c < y.dim[1]; c++) {
            const std::vector<float> p = matrix(op.x, a, n, c);
            const std::vector<float> q = matrix(op.w, b, n, c / (y.dim[1] / op.w.dim[1]));
            for (int64_t i = 0; i < rows; i++) {
                std::fill(sums.begin(), sums.end(), 0.0f);
                for (int64_t k = 0; k < inner; k++) {
                    const float f = p[(size_t)(i * inner + k)];
                    const float *from = &q[(size_t)(k * columns)];
                    for (int64_t j = 0; j < columns; j++) sums[(size_t)j] += f * from[j];
                }
                for (int64_t j = 0; j < columns; j++) out[place(y, n, c, i, j)] = sums[(size_t)j];
            }
        }
    return out;
}

std::vector<float> reduce(const Op &op, const std::vector<float> &x)
{
    const Tensor &from = op.x, &to = op.y;
    const bool sum = op.reduce == CUDNN_REDUCE_TENSOR_ADD;
    std::vector<float> out((size_t)to.count(), sum ? 0.0f : -INFINITY);
    const auto of = [&](int d, int64_t i) { return i / (from.dim[d] / to.dim[d]); };
    for (int64_t n = 0; n < from.dim[0]; n++)
        for (int64_t h = 0; h < from.dim[2]; h++)
            for (int64_t w = 0; w < from.dim[3]; w++)
                for (int64_t c = 0; c < from.dim[1]; c++) {
                    const float v = x[place(from, n, c, h, w)];
                    float &y = out[place(to, of(0, n), of(1, c), of(2, h), of(3, w))];
                    y = sum ? y + v : std::isnan(v) || std::isnan(y) ? NAN : std::max(y, v);
                }
    return out;
}

static size_t offset(const Tensor &t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (size_t)(n * t.stride[0] + c * t.stride[1] + h * t.stride[2] + w * t.stride[3]);
}

std::vector<float> reshape(const Op &op, const std::vector<float> &x)
{
    const Tensor &from = op.x, &to = op.y;
    std::vector<float> memory(from.extent() / from.element()), out((size_t)to.count());
    for (int64_t n = 0; n < from.dim[0]; n++)
        for (int64_t h = 0; h < from.dim[2]; h++)
            for (int64_t w = 0; w < from.dim[3]; w++)
                for (int64_t c = 0; c < from.dim[1]; c++)
                    memory[offset(from, n, c, h, w)] = x[place(from, n, c, h, w)];
    for (int64_t n = 0; n < to.dim[0]; n++)
        for (int64_t h = 0; h < to.dim[2]; h++)
            for (int64_t w = 0; w < to.dim[3]; w++)
                for (int64_t c = 0; c < to.dim[1]; c++)
                    out[place(to, n, c, h, w)] = memory[offset(to, n, c, h, w)];
    return out;
}

} // namespace fakegpu::dnn
