/* Flatten and its gradient: exact, over images of every stored order; views; rebinding. */
#include "tests/unit/cpu/loop_levels.h"

static const int64_t shapes[][4] = {{1, 1, 1, 1}, {3, 1, 4, 5},   {2, 16, 4, 4}, {3, 7, 1, 1},
                                    {2, 3, 5, 7}, {70, 64, 2, 2}, {1, 33, 17, 3}};

static void check(const int64_t *s, tr_precision p, int isa, bool backward)
{
    const int64_t flat[2] = {s[0], s[1] * s[2] * s[3]};
    harness h = open_level(backward ? "flatten.grad" : "flatten", p, isa, 2);
    const tr_dtype t = h_activation(&h);
    const int in = backward ? h_in(&h, t, 2, flat) : h_in(&h, t, 4, s);
    const int out = backward ? h_out(&h, t, 4, s) : h_out(&h, t, 2, flat);
    h_fill(&h, in, 1);
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    /* the harness reads both in (C, H, W) order */
    expect(&h, out, h_values(&h, in), 0, "flatten");
    h_close(&h);
}

static void values_move(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check(shapes[i], p, isa, false);
        check(shapes[i], p, isa, true);
    }
}

/* A view does nothing until its input is read elsewhere; then it copies. */
static void views(void **state)
{
    (void)state;
    const int64_t s[4] = {3, 1, 4, 5}, flat[2] = {3, 20};
    float other[60];
    harness h = h_open("flatten", TR_PRECISION_FP32, true);
    const int in = h_in(&h, TR_F32, 4, s), out = h_out(&h, TR_F32, 2, flat);
    tr_free(h.data[out]);
    h.data[out] = h.data[in];
    h_fill(&h, in, 1);
    double *before = h_values(&h, in);
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, out, before, 0, "view");
    for (size_t i = 0; i < 60; i++) other[i] = (float)i;
    assert_int_equal(h.kernel->rebind(h.kernel, 0, other), TR_OK);
    h_run(&h, false);
    for (size_t i = 0; i < 60; i++) assert_true(h_get(&h, out, i) == (double)i);
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_move), cmocka_unit_test(views)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
