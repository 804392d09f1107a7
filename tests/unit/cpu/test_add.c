/* Sums of 2 to 8 tensors against float64 at every level; fused activations; in place over any
 * input. */
#include "tests/unit/cpu/loop_levels.h"

static void check(int count, tr_precision p, int isa, int64_t n, tr_act act, int in_place)
{
    const int64_t d[4] = {n, 3, 2, 1};
    harness h = open_level("add", p, isa, 2);
    int in[TR_MAX_IN];
    for (int i = 0; i < count; i++) {
        in[i] = h_in(&h, h_activation(&h), 4, d);
        h_fill(&h, in[i], (uint32_t)i + 1);
    }
    const int y = h_out(&h, h_activation(&h), 4, d);
    double *want = doubles(h.tensors[y].count);
    for (size_t e = 0; e < h.tensors[y].count; e++) {
        for (int i = 0; i < count; i++) want[e] += h_get(&h, in[i], e);
        want[e] = activate(act, want[e]);
    }
    if (in_place >= 0) {
        tr_free(h.data[y]);
        h.data[y] = h.data[in[in_place]];
    }
    h_prepare(&h, NULL, act);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p) * 2, "sum");
    h_close(&h);
}

static void sums_match(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 5, 170, 171, 30000};
    FOR_LEVELS(isa)
    for (int count = 2; count <= TR_MAX_IN; count++)
        for (size_t s = 0; s < TR_COUNT(sizes); s++) FOR_PRECISIONS(p)
            {
                if (sizes[s] > 1000 && count > 3) continue;
                check(count, p, isa, sizes[s], TR_ACT_NONE, -1);
                check(count, p, isa, sizes[s], TR_ACT_RELU, count - 1);
                check(count, p, isa, sizes[s], TR_ACT_TANH, 0);
            }
}

static void nan_goes_through_relu(void **state)
{
    (void)state;
    const float a[3] = {NAN, 1, -2}, b[3] = {1, NAN, 1};
    float y[3];
    FOR_LEVELS(isa)
    {
        tr_cpu_loops_at(isa)->add(TR_F32, TR_ACT_RELU, 2, (const void *[]){a, b}, y, 3);
        assert_true(isnan(y[0]) && isnan(y[1]) && y[2] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_match),
                                       cmocka_unit_test(nan_goes_through_relu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
