/* Products of small matrices that lie in caches, and a transposition for them. */
#include "kernels/cpu/loops/lanes.h"

typedef float number;
#define TARGET
#define MULTIPLY_ADD(sums, factor, row) ((sums) + (factor) * (row))

#include "kernels/cpu/loops/product_blocks.h"

void TR_LOOP(product)(const tr_cpu_product *p, const float *a, const float *b, float *c)
{
    by_blocks(p, a, b, c);
}

/* ---- Transposition --------------------------------------------------------------------------- */

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

#if defined __clang__
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* gcc has that from 12 on */
typedef int32_t places __attribute__((vector_size(16)));
#define MIX(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

void TR_LOOP(transpose_apart)(const float *x, size_t x_pitch, float *y, size_t y_pitch, size_t rows,
                              size_t cols)
{
    const size_t whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
    for (size_t r = 0; r < whole_rows; r += 4)
        for (size_t c = 0; c < whole_cols; c += 4) {
            const float *from = x + r * x_pitch + c;
            float *to = y + c * y_pitch + r;
            const four r0 = *(const four *)from, r1 = *(const four *)(from + x_pitch),
                       r2 = *(const four *)(from + 2 * x_pitch),
                       r3 = *(const four *)(from + 3 * x_pitch);
            const four low01 = MIX(r0, r1, 0, 4, 1, 5), high01 = MIX(r0, r1, 2, 6, 3, 7),
                       low23 = MIX(r2, r3, 0, 4, 1, 5), high23 = MIX(r2, r3, 2, 6, 3, 7);
            *(four *)to = MIX(low01, low23, 0, 1, 4, 5);
            *(four *)(to + y_pitch) = MIX(low01, low23, 2, 3, 6, 7);
            *(four *)(to + 2 * y_pitch) = MIX(high01, high23, 0, 1, 4, 5);
            *(four *)(to + 3 * y_pitch) = MIX(high01, high23, 2, 3, 6, 7);
        }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            y[c * y_pitch + r] = x[r * x_pitch + c];
}
