/* Embeddings: rows by number exactly as the table has them, rounded once; gradients against sums in
 * double, with ids that come again and again, added to and overwritten, the same bits for any
 * number of threads; ids that lie elsewhere in the next run. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t batch, positions, num, dim;
    bool large; /* one run of it is enough */
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1, false},    {3, 5, 7, 13, false},    {2, 9, 40, 64, false},
    {7, 31, 11, 96, false}, {5, 60, 3, 130, false},  {4, 100, 5, 33, false},
    {2, 64, 1, 8, false},   {1, 32, 300, 16, false}, {2, 1100, 2, 24, true},
    {3, 700, 9, 72, true},  {1, 140001, 4, 1, true}, /* more rows than chunks of the least size */
};

/* Ids of which low ones are more frequent; `skip`: the last row of the table is never asked for. */
static int32_t id_of(const shape *s, size_t i, uint32_t seed, bool skip)
{
    const double u = uniform(seed, i, 0, 1);
    const int64_t num = skip && s->num > 1 ? s->num - 1 : s->num;
    return (int32_t)(u * u * (double)num);
}

static size_t positions_of(const shape *s)
{
    return (size_t)(s->batch * s->positions);
}

static void fill_ids(harness *h, int ids, const shape *s, uint32_t seed)
{
    for (size_t i = 0; i < positions_of(s); i++) h_put(h, ids, i, id_of(s, i, seed, true));
}

static int add_ids(harness *h, const shape *s)
{
    return h_in_role(h, TR_ROLE_INPUT, TR_I32, 2, (int64_t[]){s->batch, s->positions});
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void expect_rows(const harness *h, int ids, int weight, int y, int64_t dim)
{
    for (size_t i = 0; i < h->tensors[y].count; i++) {
        const size_t row = (size_t)h_get(h, ids, i / (size_t)dim);
        const float v = (float)h_get(h, weight, row * (size_t)dim + i % (size_t)dim);
        const float want = h_activation(h) == TR_BF16  ? tr_bf16_to_f32(tr_f32_to_bf16(v))
                           : h_activation(h) == TR_F16 ? tr_f16_to_f32(tr_f32_to_f16(v))
                                                       : v;
        if (h_get(h, y, i) != (double)want)
            fail_msg("element %zu is %g, expected %g", i, h_get(h, y, i), (double)want);
    }
}

static void check_forward(const shape *s, tr_precision p, int isa, int threads)
{
    const tr_embedding_attrs a = {.num = s->num, .dim = s->dim};
    harness h = open_level("embedding", p, isa, threads);
    const int ids = add_ids(&h, s), weight = h_param(&h, 2, (int64_t[]){s->num, s->dim}),
              y = h_out(&h, h_activation(&h), 3, (int64_t[]){s->batch, s->positions, s->dim});
    h_fill(&h, weight, 3);
    fill_ids(&h, ids, s, 1);
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    expect_rows(&h, ids, weight, y, s->dim);
    /* the next batch lies elsewhere */
    int32_t *other = tr_alloc(TR_MEM_OTHER, positions_of(s), sizeof *other);
    assert_non_null(other);
    fill_ids(&h, ids, s, 2);
    memcpy(other, h.data[ids], h.tensors[ids].nbytes);
    fill_ids(&h, ids, s, 1);
    assert_int_equal(h.kernel->rebind(h.kernel, 0, other), TR_OK);
    h_run(&h, false);
    memcpy(h.data[ids], other, h.tensors[ids].nbytes);
    expect_rows(&h, ids, weight, y, s->dim);
    h_close(&h);
    tr_free(other);
}

static void rows_of_the_table(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        if (shapes[s].large && p != TR_PRECISION_FP32) continue;
        check_forward(&shapes[s], p, isa, 1 + (int)(s % 3));
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

typedef struct {
    harness h;
    int dy, ids, dw;
} backward;

/* In place: what was prepared points into the harness. */
static void open_backward(backward *b, const shape *s, tr_precision p, int isa, int threads,
                          const tr_embedding_attrs *a)
{
    b->h = open_level("embedding.grad", p, isa, threads);
    b->dy = h_in(&b->h, h_activation(&b->h), 3, (int64_t[]){s->batch, s->positions, s->dim});
    b->ids = add_ids(&b->h, s);
    b->dw = h_grad(&b->h, 2, (int64_t[]){s->num, s->dim});
    h_fill(&b->h, b->dy, 5);
    fill_ids(&b->h, b->ids, s, 1);
    h_prepare(&b->h, a, TR_ACT_NONE);
}

/* After `times` runs that added up. A float32 sum of n terms, each of which rounds. */
static void expect_sums(const backward *b, const shape *s, int times)
{
    const size_t n = (size_t)(s->num * s->dim), D = (size_t)s->dim;
    double *want = doubles(n), *size = doubles(n), most = 0;
    double *count = doubles((size_t)s->num);
    for (size_t i = 0; i < positions_of(s); i++) {
        const size_t row = (size_t)h_get(&b->h, b->ids, i);
        count[row] += times;
        most = fmax(most, count[row]);
        for (size_t d = 0; d < D; d++) {
            const double v = times * h_get(&b->h, b->dy, i * D + d);
            want[row * D + d] += v;
            size[row * D + d] += fabs(v);
        }
    }
    h_check_sums(&b->h, b->dw, want, size, most, 0, "dweight");
    for (size_t i = 0; i < n; i++) /* rows that nobody asked for */
        if (count[i / D] == 0) assert_true(h_get(&b->h, b->dw, i) == 0);
    tr_free(want);
    tr_free(size);
    tr_free(count);
}

static void check_backward(const shape *s, tr_precision p, int isa, int threads)
{
    const tr_embedding_attrs a = {.num = s->num, .dim = s->dim};
    backward b;
    open_backward(&b, s, p, isa, threads, &a);
    h_run(&b.h, false);
    expect_sums(&b, s, 1);
    h_run(&b.h, true);
    expect_sums(&b, s, 2);
    /* other ids, over what was there */
    int32_t *other = tr_alloc(TR_MEM_OTHER, positions_of(s), sizeof *other);
    assert_non_null(other);
    fill_ids(&b.h, b.ids, s, 9);
    memcpy(other, b.h.data[b.ids], b.h.tensors[b.ids].nbytes);
    assert_int_equal(b.h.kernel->rebind(b.h.kernel, 1, other), TR_OK);
    h_run(&b.h, false);
    expect_sums(&b, s, 1);
    h_close(&b.h);
    tr_free(other);
}

static void sums_by_id(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        if (shapes[s].large && p != TR_PRECISION_FP32) continue;
        check_backward(&shapes[s], p, isa, 1 + (int)(s % 3));
    }
}

static void one_id_and_all_different(void **state)
{
    (void)state;
    const shape s = {2, 150, 300, 20, false};
    const tr_embedding_attrs a = {.num = s.num, .dim = s.dim};
    FOR_PRECISIONS(p)
    {
        backward b;
        open_backward(&b, &s, p, tr_cpu_isa(), 2, &a);
        for (size_t i = 0; i < positions_of(&s); i++) h_put(&b.h, b.ids, i, 299);
        h_run(&b.h, false);
        expect_sums(&b, &s, 1);
        for (size_t i = 0; i < positions_of(&s); i++) /* 7 and 300 have no common factor */
            h_put(&b.h, b.ids, i, (double)(i * 7 % 300));
        h_run(&b.h, true);
        h_run(&b.h, false);
        expect_sums(&b, &s, 1);
        h_close(&b.h);
    }
}

static void same_bits_for_any_threads(void **state)
{
    (void)state;
    static const size_t which[] = {1, 3, 4, 5, 8};
    for (size_t k = 0; k < TR_COUNT(which); k++) {
        const shape *s = &shapes[which[k]];
        const tr_embedding_attrs a = {.num = s->num, .dim = s->dim};
        backward one;
        open_backward(&one, s, TR_PRECISION_FP32, tr_cpu_isa(), 1, &a);
        h_run(&one.h, false);
        h_run(&one.h, true);
        for (int threads = 2; threads < 8; threads += 2) {
            backward b;
            open_backward(&b, s, TR_PRECISION_FP32, tr_cpu_isa(), threads, &a);
            h_run(&b.h, false);
            h_run(&b.h, true);
            assert_memory_equal(b.h.data[b.dw], one.h.data[one.dw], b.h.tensors[b.dw].nbytes);
            h_close(&b.h);
        }
        h_close(&one.h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_the_table),
        cmocka_unit_test(sums_by_id),
        cmocka_unit_test(one_id_and_all_different),
        cmocka_unit_test(same_bits_for_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
