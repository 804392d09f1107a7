/* Flatten and its gradient: exact, over images of every stored order. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_move)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
