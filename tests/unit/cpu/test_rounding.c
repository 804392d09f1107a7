/* Weights and values rounded to steps of 8 bits and back: against the file's rounding and torch's,
 * at every level; gradients; NaN and infinities. */
#include "tests/unit/cpu/loop_levels.h"

static const int64_t sizes[] = {1, 3, 17, 100, 70001};

/* The bits that the file of such a weight would hold. */
static void quantize_weight_matches(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{5, 3, 9}, {3, 1, 1}, {17, 64, 65}, {1, 7, 1}, {600, 2, 4}};
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(shapes); s++)
        for (int one = 0; one < 2; one++) {
            harness h = open_level("quantize_weight", TR_PRECISION_FP32, isa, 2);
            const tr_quantize_weight_attrs a = {one};
            const int w = h_param(&h, 3, shapes[s]),
                      y = h_out_role(&h, TR_ROLE_ROUNDED, TR_F32, 3, shapes[s]);
            const size_t n = h.tensors[w].count;
            h_fill_range(&h, w, 1, -3, 3);
            for (size_t i = 0; i < n / (size_t)shapes[s][0]; i++) h_put(&h, w, i, 0);
            const tr_param p = {.dims = {shapes[s][0]}, .count = n, .per_tensor = one};
            float *want = tr_alloc(TR_MEM_OTHER, n, sizeof *want),
                  *scale = tr_alloc(TR_MEM_OTHER, (size_t)shapes[s][0], sizeof *scale);
            for (size_t i = 0; i < n; i++) want[i] = (float)h_get(&h, w, i);
            tr_param_quantize(&p, want, scale, NULL);
            h_prepare(&h, &a, TR_ACT_NONE);
            h_run(&h, false);
            for (size_t i = 0; i < n; i++) {
                if (h_get(&h, y, i) != (double)want[i])
                    fail_msg("%zu: %.9g, expected %.9g", i, h_get(&h, y, i), (double)want[i]);
                assert_true(fabs(rint(want[i] / scale[i / (n / (size_t)shapes[s][0])])) <= 127);
            }
            assert_true(shapes[s][0] == 1 || (one ? scale[0] == scale[1] : scale[0] == 1));
            h_put(&h, w, 0, NAN);
            h_run(&h, false);
            assert_true(isnan(h_get(&h, y, 0)));
            tr_free(want);
            tr_free(scale);
            h_close(&h);
        }
}

/* As torch.fake_quantize_per_tensor_affine, but for NaN, which stays NaN; halves of steps too. */
static void check_fake_quantize(const tr_fake_quantize_attrs *a, tr_precision p, int isa, int64_t n)
{
    const int64_t d[2] = {n, 2};
    const float inverse = 1.0f / (float)a->scale;
    const double least = a->is_signed ? -128 : 0, zero = (double)a->zero_point;
    harness h = open_level("fake_quantize", p, isa, 2);
    const int x = h_in(&h, h_activation(&h), 2, d), y = h_out(&h, h_activation(&h), 2, d);
    h_fill_range(&h, x, 1, -9, 9);
    for (size_t i = 0; i < h.tensors[x].count; i += 3)
        h_put(&h, x, i, (rint(h_get(&h, x, i) * inverse) + 0.5) * a->scale);
    double *want = h_values(&h, x);
    const size_t count = h.tensors[x].count;
    bool *kept = tr_alloc(TR_MEM_OTHER, count, sizeof *kept);
    for (size_t i = 0; i < count; i++) {
        const double q = nearbyintf((float)want[i] * inverse) + zero;
        kept[i] = q >= least && q <= least + 255;
        want[i] = (float)(fmin(fmax(q, least), least + 255) - zero) * (float)a->scale;
    }
    h_prepare(&h, a, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, p == TR_PRECISION_FP32 ? 0 : tolerance(p), "fake_quantize");
    h_close(&h);

    h = open_level("fake_quantize.grad", p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 2, d), saved = h_in(&h, h_activation(&h), 2, d);
    const int dx = h_out(&h, h_activation(&h), 2, d);
    h_fill(&h, dy, 1);
    h_fill_range(&h, saved, 1, -9, 9);
    for (size_t i = 0; i < count; i += 3)
        h_put(&h, saved, i, (rint(h_get(&h, saved, i) * inverse) + 0.5) * a->scale);
    want = h_values(&h, dy);
    for (size_t i = 0; i < count; i++) want[i] *= kept[i];
    h_prepare(&h, a, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, dx, want, 0, "fake_quantize.grad");
    h_close(&h);
    tr_free(kept);
}

static void fake_quantize_matches(void **state)
{
    (void)state;
    static const tr_fake_quantize_attrs all[] = {
        {.scale = 0.0625, .is_signed = true},
        {.scale = 0.0371, .zero_point = -17, .is_signed = true},
        {.scale = 0.03},
        {.scale = 0.0625, .zero_point = 131}};
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(sizes); s++) FOR_PRECISIONS(p)
    for (size_t k = 0; k < TR_COUNT(all); k++) {
        tr_fake_quantize_attrs a = all[k];
        a.scale = (double)(float)a.scale;
        if (k > 0 && sizes[s] > 1000) continue; /* one is enough of these */
        check_fake_quantize(&a, p, isa, sizes[s]);
    }
    const double in[] = {NAN, INFINITY, -INFINITY, 1e30, -1e30, -0.01};
    const double want[] = {NAN, 7.9375, -8, 7.9375, -8, 0};
    harness h = open_level("fake_quantize", TR_PRECISION_FP32, TR_ISA_BASE, 1);
    const int64_t d[2] = {1, TR_COUNT(in)};
    const int x = h_in(&h, TR_F32, 2, d), y = h_out(&h, TR_F32, 2, d);
    for (size_t i = 0; i < TR_COUNT(in); i++) h_put(&h, x, i, in[i]);
    h_prepare(&h, &all[0], TR_ACT_NONE);
    h_run(&h, false);
    assert_true(isnan(h_get(&h, y, 0)));
    for (size_t i = 1; i < TR_COUNT(in); i++) assert_true(h_get(&h, y, i) == want[i]);
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantize_weight_matches),
        cmocka_unit_test(fake_quantize_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
