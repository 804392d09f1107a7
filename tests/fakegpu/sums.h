// Sums of scaled rows, which is what products and convolutions of the stand-in are made of.
#ifndef FAKEGPU_SUMS_H
#define FAKEGPU_SUMS_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fakegpu
{

// to[i] += by[j] * from[j * n + i] for i < n, j = 0 .. m-1 one after the other.
void add_rows(float *to, const float *from, const float *by, int64_t m, int64_t n);

// A row, and where its factor stands.
struct Scaled {
    const float *row, *by;
};
// to[i] += by[j][at] * row[j][i] for i < n, j one after the other.
void add_scaled(float *to, const std::vector<Scaled> &rows, int64_t at, int64_t n);

} // namespace fakegpu

#endif
