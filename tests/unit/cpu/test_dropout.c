/* Dropout: the mask is the documented Philox one bit for bit, at every level, thread count and
 * split of the batch; backward makes the same mask. */
#include "tests/unit/cpu/loop_levels.h"

static bool kept(const harness *h, uint64_t sample, size_t e, double p)
{
    if (strncmp(tr_op_name(&h->op), "drop_path", 9) == 0) e = 0;
    const tr_philox r = tr_philox_at(h->run.seed, TR_RNG_DROPOUT, (uint32_t)h->op.layer_index,
                                     sample, (uint32_t)(e / 4));
    return tr_uniform(r.v[e % 4]) >= (float)p;
}

/* In place: what was prepared points into the harness. */
static void make(harness *h, const char *op, tr_precision p, int isa, int threads,
                 const int64_t d[4], const tr_dropout_attrs *a, int *x, int *y)
{
    *h = open_level(op, p, isa, threads);
    *x = h_in(h, h_activation(h), 4, d);
    *y = h_out(h, h_activation(h), 4, d);
    h->op.layer_index = 11;
    h->run.seed = 0x123456789abcdefu;
    h->run.ordinal = 0xffffffffu; /* ordinals pass 32 bits */
    for (size_t i = 0; i < h->tensors[*x].count; i++) h_put(h, *x, i, 1 + (double)(i % 7));
    h_prepare(h, a, TR_ACT_NONE);
    h_run(h, false);
}

static void check(const char *op, tr_precision p, int isa, int threads, const int64_t d[4],
                  double drop)
{
    const tr_dropout_attrs a = {.p = drop};
    int x, y;
    harness h;
    make(&h, op, p, isa, threads, d, &a, &x, &y);
    const size_t n = h.tensors[x].count, each = n / (size_t)d[0];
    const float scale = (float)(1 / (1 - drop));
    for (size_t i = 0; i < n; i++) {
        /* logical i is stored at s */
        const size_t s = h_stored(&h.tensors[x], i);
        const float v = (float)h_get(&h, x, i) * scale;
        const float want = p == TR_PRECISION_BF16   ? tr_bf16_to_f32(tr_f32_to_bf16(v))
                           : p == TR_PRECISION_FP16 ? tr_f16_to_f32(tr_f32_to_f16(v))
                                                    : v;
        const bool keep = kept(&h, h.run.ordinal + s / each, s % each, drop);
        assert_true(h_get(&h, y, i) == (keep ? (double)want : 0.0));
    }
    h_close(&h);
}

static void mask_is_the_documented_one(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {
        {1, 1, 1, 1}, {3, 5, 1, 1}, {4, 3, 5, 7}, {2, 16, 8, 8}, {2, 3, 200, 150}};
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        check("dropout", p, isa, 1, shapes[s], 0.5);
        check("dropout.grad", p, isa, 3, shapes[s], 0.1);
        check("drop_path", p, isa, 1, shapes[s], 0.5);
        check("drop_path.grad", p, isa, 3, shapes[s], 0.3);
    }
    check("dropout", TR_PRECISION_FP32, tr_cpu_isa(), 1, shapes[2], 0);
}

static void share_has_its_part(const char *op)
{
    const tr_dropout_attrs a = {.p = 0.3};
    const int64_t whole[4] = {4, 3, 5, 5}, half[4] = {2, 3, 5, 5};
    int x, y, x2, y2;
    harness h, part;
    make(&h, op, TR_PRECISION_FP32, tr_cpu_isa(), 1, whole, &a, &x, &y);
    make(&part, op, TR_PRECISION_FP32, tr_cpu_isa(), 1, half, &a, &x2, &y2);
    part.run.ordinal += 2;
    for (size_t i = 0; i < 150; i++) h_put(&part, x2, i, h_get(&h, x, 150 + i));
    h_run(&part, false);
    for (size_t i = 0; i < 150; i++) assert_true(h_get(&part, y2, i) == h_get(&h, y, 150 + i));
    h_close(&h);
    h_close(&part);
}

static void share_of_the_batch_has_its_part_of_the_mask(void **state)
{
    (void)state;
    share_has_its_part("dropout");
    share_has_its_part("drop_path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mask_is_the_documented_one),
        cmocka_unit_test(share_of_the_batch_has_its_part_of_the_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
