// Four rows at a time, so that `to` is read and written less often, in vectors as wide as the
// machine's. Each element's sum has the order that the header says, and nothing is contracted, so
// no choice here is seen in the results.
#include "tests/fakegpu/sums.h"

#pragma GCC optimize("O3", "fp-contract=off")

namespace fakegpu
{

namespace
{

[[gnu::always_inline]] inline void add_four(float *__restrict to, const float *a, const float *b,
                                            const float *c, const float *d, const float *by,
                                            int64_t n)
{
    const float p = by[0], q = by[1], r = by[2], s = by[3];
    for (int64_t i = 0; i < n; i++) to[i] = (((to[i] + p * a[i]) + q * b[i]) + r * c[i]) + s * d[i];
}

[[gnu::always_inline]] inline void add_one(float *__restrict to, const float *a, float by,
                                           int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += by * a[i];
}

[[gnu::always_inline]] inline void rows_of(float *to, const float *from, const float *by, int64_t m,
                                           int64_t n)
{
    int64_t j = 0;
    for (; j + 4 <= m; j += 4) {
        const float *a = from + j * n;
        add_four(to, a, a + n, a + 2 * n, a + 3 * n, by + j, n);
    }
    for (; j < m; j++) add_one(to, from + j * n, by[j], n);
}

[[gnu::always_inline]] inline void scaled_of(float *to, const Scaled *v, std::size_t m, int64_t at,
                                             int64_t n)
{
    std::size_t j = 0;
    for (; j + 4 <= m; j += 4, v += 4) {
        const float by[] = {v[0].by[at], v[1].by[at], v[2].by[at], v[3].by[at]};
        add_four(to, v[0].row, v[1].row, v[2].row, v[3].row, by, n);
    }
    for (; j < m; j++, v++) add_one(to, v->row, v->by[at], n);
}

#if defined __x86_64__ && !defined __AVX2__
#define WIDE [[gnu::target("avx2")]]
const bool wide = __builtin_cpu_supports("avx2");
#else
#define WIDE
constexpr bool wide = false;
#endif

WIDE void rows_wide(float *to, const float *from, const float *by, int64_t m, int64_t n)
{
    rows_of(to, from, by, m, n);
}

WIDE void scaled_wide(float *to, const Scaled *v, std::size_t m, int64_t at, int64_t n)
{
    scaled_of(to, v, m, at, n);
}

} // namespace

void add_rows(float *to, const float *from, const float *by, int64_t m, int64_t n)
{
    if (wide)
        rows_wide(to, from, by, m, n);
    else
        rows_of(to, from, by, m, n);
}

void add_scaled(float *to, const std::vector<Scaled> &rows, int64_t at, int64_t n)
{
    if (wide)
        scaled_wide(to, rows.data(), rows.size(), at, n);
    else
        scaled_of(to, rows.data(), rows.size(), at, n);
}

} // namespace fakegpu
