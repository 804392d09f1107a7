/* links: trireme_cpu trireme_plan
 * Products of small matrices against plain C in double: rows and columns that are no multiple of a
 * block, the first factor as it is and transposed, added to what is there; nothing beside the
 * result is written. An element has the same bits in any block. A transposition is exact. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    size_t m, n, depth;
    bool turned, add;
} shape;

static const shape shapes[] = {
    {1, 16, 1, false, false},   {6, 64, 64, false, false},   {7, 80, 3, true, false},
    {32, 208, 40, false, true}, {13, 96, 33, true, true},    {29, 112, 5, false, true},
    {64, 64, 197, true, true},  {12, 160, 64, false, false}, {5, 32, 0, false, false},
};

enum { GAP = 5 }; /* between rows */

static float *numbers(size_t count, uint32_t seed)
{
    float *p = tr_alloc(TR_MEM_OTHER, count + 1, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < count; i++) p[i] = (float)uniform(seed, i, -1, 1);
    return p;
}

static tr_cpu_product product_of(const shape *s)
{
    return (tr_cpu_product){.m = s->m,
                            .n = s->n,
                            .depth = s->depth,
                            .a_row = s->turned ? 1 : s->depth + GAP,
                            .a_column = s->turned ? s->m + GAP : 1,
                            .b_pitch = s->n + GAP,
                            .c_pitch = s->n + GAP,
                            .add = s->add};
}

static void check(const shape *s, int isa)
{
    const tr_cpu_product p = product_of(s);
    const size_t count = s->m * p.c_pitch;
    float *a = numbers((s->m + GAP) * (s->depth + GAP), 1), *b = numbers(s->depth * p.b_pitch, 2);
    float *c = numbers(count, 3), *before = numbers(count, 3);
    tr_cpu_loops_at(isa)->product(&p, a, b, c);
    for (size_t i = 0; i < count; i++) {
        const size_t r = i / p.c_pitch, n = i % p.c_pitch;
        double want = s->add ? before[i] : 0, size = fabs(want);
        for (size_t k = 0; k < s->depth; k++) {
            const double term = (double)a[r * p.a_row + k * p.a_column] * b[k * p.b_pitch + n];
            want += term;
            size += fabs(term);
        }
        if (n >= s->n)
            assert_memory_equal(&c[i], &before[i], sizeof *c);
        else if (fabs(c[i] - want) > (double)(s->depth + 1) * 0x1p-24 * size)
            fail_msg("level %d, %zu x %zu x %zu: element %zu is %.9g, not %.9g", isa, s->m, s->n,
                     s->depth, i, (double)c[i], want);
    }
    tr_free(a);
    tr_free(b);
    tr_free(c);
    tr_free(before);
}

static void against_plain_c(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) check(&shapes[i], isa);
}

/* Row r and 16 columns alone, and within the whole. */
static void same_bits_in_any_block(void **state)
{
    (void)state;
    const shape s = {23, 176, 67, false, true};
    tr_cpu_product p = product_of(&s);
    float *a = numbers(s.m * p.a_row, 1), *b = numbers(s.depth * p.b_pitch, 2);
    FOR_LEVELS(isa)
    {
        const tr_cpu_loops *loops = tr_cpu_loops_at(isa);
        float *whole = numbers(s.m * p.c_pitch, 3), *parts = numbers(s.m * p.c_pitch, 3);
        p.m = s.m, p.n = s.n;
        loops->product(&p, a, b, whole);
        p.m = 1, p.n = TR_CPU_PRODUCT_COLUMNS;
        for (size_t r = 0; r < s.m; r++)
            for (size_t n = 0; n < s.n; n += p.n)
                loops->product(&p, a + r * p.a_row, b + n, parts + r * p.c_pitch + n);
        assert_memory_equal(whole, parts, s.m * p.c_pitch * sizeof *whole);
        tr_free(whole);
        tr_free(parts);
    }
    tr_free(a);
    tr_free(b);
}

/* ---- Words of two bfloat16 ------------------------------------------------------------------- */

static uint32_t *words(size_t count, uint32_t seed)
{
    uint32_t *p = tr_alloc(TR_MEM_OTHER, count + 1, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < count; i++)
        p[i] = tr_f32_to_bf16((float)uniform(seed, 2 * i, -1, 1)) |
               (uint32_t)tr_f32_to_bf16((float)uniform(seed, 2 * i + 1, -1, 1)) << 16;
    return p;
}

static double half(uint32_t word, int i)
{
    return tr_bf16_to_f32((tr_bf16)(word >> 16 * i));
}

static void check_pairs(const shape *s, int isa)
{
    const tr_cpu_product p = product_of(s);
    const size_t count = s->m * p.c_pitch;
    uint32_t *a = words((s->m + GAP) * (s->depth + GAP), 1), *b = words(s->depth * p.b_pitch, 2);
    float *c = numbers(count, 3), *before = numbers(count, 3);
    tr_cpu_loops_at(isa)->product_pairs(&p, a, b, c);
    for (size_t i = 0; i < count; i++) {
        const size_t r = i / p.c_pitch, n = i % p.c_pitch;
        double want = s->add ? before[i] : 0, size = fabs(want);
        for (size_t k = 0; k < 2 * s->depth; k++) {
            const double term = half(a[r * p.a_row + k / 2 * p.a_column], k % 2) *
                                half(b[k / 2 * p.b_pitch + n], k % 2);
            want += term;
            size += fabs(term);
        }
        if (n >= s->n)
            assert_memory_equal(&c[i], &before[i], sizeof *c);
        else if (fabs(c[i] - want) > (double)(2 * s->depth + 1) * 0x1p-23 * size)
            fail_msg("level %d, %zu x %zu x %zu pairs: element %zu is %.9g, not %.9g", isa, s->m,
                     s->n, s->depth, i, (double)c[i], want);
    }
    tr_free(a);
    tr_free(b);
    tr_free(c);
    tr_free(before);
}

static void pairs_against_plain_c(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) check_pairs(&shapes[i], isa);
}

/* Row r and 16 columns alone, and within the whole. */
static void same_bits_of_pairs_in_any_block(void **state)
{
    (void)state;
    const shape s = {23, 176, 67, false, true};
    tr_cpu_product p = product_of(&s);
    uint32_t *a = words(s.m * p.a_row, 1), *b = words(s.depth * p.b_pitch, 2);
    FOR_LEVELS(isa)
    {
        const tr_cpu_loops *loops = tr_cpu_loops_at(isa);
        float *whole = numbers(s.m * p.c_pitch, 3), *parts = numbers(s.m * p.c_pitch, 3);
        p.m = s.m, p.n = s.n;
        loops->product_pairs(&p, a, b, whole);
        p.m = 1, p.n = TR_CPU_PRODUCT_COLUMNS;
        for (size_t r = 0; r < s.m; r++)
            for (size_t n = 0; n < s.n; n += p.n)
                loops->product_pairs(&p, a + r * p.a_row, b + n, parts + r * p.c_pitch + n);
        assert_memory_equal(whole, parts, s.m * p.c_pitch * sizeof *whole);
        tr_free(whole);
        tr_free(parts);
    }
    tr_free(a);
    tr_free(b);
}

static void rows_to_pairs(void **state)
{
    (void)state;
    const uint16_t one[] = {1, 2, 3, 4, 5}, two[] = {6, 7, 8, 9, 0xffff};
    FOR_LEVELS(isa) for (int alone = 0; alone < 2; alone++)
    {
        uint32_t y[6] = {0, 0, 0, 0, 0, 77};
        tr_cpu_loops_at(isa)->pair_rows(one, alone ? NULL : two, y, 5);
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(y[i], one[i] | (alone ? 0 : (uint32_t)two[i] << 16));
        assert_int_equal(y[5], 77);
    }
}

static void transposed(void **state)
{
    (void)state;
    static const size_t sizes[][2] = {{1, 1}, {4, 4}, {3, 9}, {17, 6}, {64, 33}, {256, 64}};
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(sizes); i++)
    {
        const size_t rows = sizes[i][0], cols = sizes[i][1], from = cols + GAP, to = rows + GAP;
        float *x = numbers(rows * from, 1), *y = numbers(cols * to, 2),
              *old = numbers(cols * to, 2);
        tr_cpu_loops_at(isa)->transpose_apart(x, from, y, to, rows, cols);
        for (size_t c = 0; c < cols; c++)
            for (size_t r = 0; r < to; r++)
                assert_memory_equal(&y[c * to + r], r < rows ? &x[r * from + c] : &old[c * to + r],
                                    sizeof *y);
        tr_free(x);
        tr_free(y);
        tr_free(old);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_plain_c),       cmocka_unit_test(same_bits_in_any_block),
        cmocka_unit_test(pairs_against_plain_c), cmocka_unit_test(same_bits_of_pairs_in_any_block),
        cmocka_unit_test(rows_to_pairs),         cmocka_unit_test(transposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
