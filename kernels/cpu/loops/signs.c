/* Sums of numbers with signs that are bits, a thirty-second of the bytes of a matrix of floats.
 * Four numbers have sixteen sums by their signs: a table that is one vector of AVX-512, from which
 * each of sixteen rows chooses by four bits of its word (a shift, a permutation and an addition for
 * 64 numbers, where turning their signs takes eight operations). */
#include "kernels/cpu/loops/vec.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum {
    ROWS = TR_SIGN_ROWS,
    TABLES = 8, /* of the 32 numbers of a word */
    BLOCK = 16, /* words of a float32 sum */
    GROUPS = 4  /* of ROWS, that share what is loaded of the tables */
};

typedef float sums __attribute__((vector_size(4 * ROWS), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * ROWS), aligned(4), may_alias));

/* sum += the element of the table that the lowest four bits name. */
TR_INLINE void choose(const sums *table, const words *bits, sums *sum)
{
#ifdef __AVX512F__
    *sum += (sums)_mm512_permutexvar_ps((__m512i)*bits, (__m512)*table);
#else
    for (int i = 0; i < ROWS; i++) (*sum)[i] += (*table)[(*bits)[i] % 16];
#endif
}

TR_INLINE void add_groups(const float *tables, const uint32_t *signs, size_t count, int groups,
                          double *total)
{
    for (int i = 0; i < groups * ROWS; i++) total[i] = 0.0;
    for (size_t from = 0; from < count; from += BLOCK) {
        const size_t end = tr_least(count, from + BLOCK);
        sums sum[GROUPS] = {{0}};
        for (size_t w = from; w < end; w++) {
            words bits[GROUPS];
            for (int g = 0; g < groups; g++)
                bits[g] = *(const words *)(signs + ((size_t)g * count + w) * ROWS);
            for (int t = 0; t < TABLES; t++) {
                const sums *table = (const sums *)(tables + (TABLES * w + (size_t)t) * ROWS);
                for (int g = 0; g < groups; g++) {
                    choose(table, &bits[g], &sum[g]);
                    bits[g] >>= 4;
                }
            }
        }
        for (int g = 0; g < groups; g++)
            for (int i = 0; i < ROWS; i++) total[g * ROWS + i] += (double)sum[g][i];
    }
}

void TR_LOOP(sign_tables)(const float *x, size_t n, float *tables)
{
    static const float turn[4][ROWS] = {{1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
                                        {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
                                        {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
                                        {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
    for (size_t e = 0; e < n; e += 4, tables += ROWS)
#pragma omp simd
        for (int i = 0; i < ROWS; i++)
            tables[i] = (turn[0][i] * x[e] + turn[1][i] * x[e + 1]) +
                        (turn[2][i] * x[e + 2] + turn[3][i] * x[e + 3]);
}

void TR_LOOP(signed_sums)(const float *tables, const uint32_t *signs, size_t count, size_t rows,
                          float unit, bool add, float *y)
{
    double total[GROUPS * ROWS];
    for (size_t r = 0, n; r < rows; r += n, signs += n * count) {
        n = rows - r > (GROUPS - 1) * ROWS ? GROUPS * ROWS : ROWS;
        if (n == ROWS)
            add_groups(tables, signs, count, 1, total);
        else
            add_groups(tables, signs, count, GROUPS, total);
        for (size_t i = 0; i < tr_least(n, rows - r); i++)
            y[r + i] = (float)((double)unit * total[i]) + (add ? y[r + i] : 0.0f);
    }
}
