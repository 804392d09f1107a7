/* links: trireme_cpu trireme_plan
 * Rotary embeddings against plain C in double: both styles, a part of each head, in place; turned
 * back they give what was there; products of what is turned depend on distances alone. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t samples, positions, heads, D, dim;
    double base;
    int style;
} shape;

static const shape shapes[] = {
    {2, 5, 1, 2, 2, 10000, TR_ROTARY_HALF},          {2, 7, 3, 8, 8, 10000, TR_ROTARY_HALF},
    {1, 9, 2, 11, 6, 500, TR_ROTARY_HALF},           {3, 70, 4, 64, 64, 10000, TR_ROTARY_HALF},
    {2, 7, 3, 8, 8, 10000, TR_ROTARY_INTERLEAVED},   {1, 9, 2, 11, 6, 500, TR_ROTARY_INTERLEAVED},
    {1, 130, 2, 40, 34, 1e6, TR_ROTARY_INTERLEAVED}, {2, 6, 3, 64, 32, 10000, TR_ROTARY_HALF},
    {2, 6, 3, 64, 48, 10000, TR_ROTARY_INTERLEAVED},
};

/* x as the harness has it, turned by `sign`; free. */
static double *turned(const harness *h, int x, const shape *s, double sign)
{
    double *v = h_values(h, x);
    const int64_t pairs = s->dim / 2;
    for (int64_t at = 0; at < s->samples * s->positions * s->heads; at++)
        for (int64_t k = 0; k < pairs; k++) {
            const int64_t i = at / s->heads % s->positions;
            const double angle = sign * (double)i * pow(s->base, -2.0 * (double)k / (double)s->dim);
            double *one = v + at * s->D + (s->style == TR_ROTARY_HALF ? k : 2 * k);
            double *other = one + (s->style == TR_ROTARY_HALF ? pairs : 1);
            const double a = *one, b = *other;
            *one = a * cos(angle) - b * sin(angle);
            *other = b * cos(angle) + a * sin(angle);
        }
    return v;
}

static tr_rotary_attrs attrs_of(const shape *s)
{
    return (tr_rotary_attrs){.heads = s->heads, .dim = s->dim, .base = s->base, .style = s->style};
}

static void check(const shape *s, tr_precision p, int isa, int threads, bool back, bool in_place)
{
    const tr_rotary_attrs a = attrs_of(s);
    const int64_t dims[] = {s->samples, s->positions, s->heads * s->D};
    harness h = open_level(back ? "rotary.grad" : "rotary", p, isa, threads);
    const int x = h_in(&h, h_activation(&h), 3, dims), y = h_out(&h, h_activation(&h), 3, dims);
    h_fill(&h, x, 1);
    double *want = turned(&h, x, s, back ? -1 : 1);
    if (in_place) {
        tr_free(h.data[y]);
        h.data[y] = h.data[x];
    }
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p), back ? "turned back" : "turned");
    h_close(&h);
}

static void check_all(int isa, tr_precision p)
{
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (int how = 0; how < 4; how++)
            check(&shapes[i], p, isa, 1 + (int)(i % 3), how & 1, how & 2);
}

static void pairs_are_turned(void **state)
{
    (void)state;
    FOR_LEVELS(isa) FOR_PRECISIONS(p) check_all(isa, p);
}

/* What the paper is about: <turn(q, i), turn(k, j)> is a function of i - j. */
static void products_depend_on_distances(void **state)
{
    (void)state;
    const shape s = {1, 40, 1, 16, 16, 10000, TR_ROTARY_HALF};
    const tr_rotary_attrs a = attrs_of(&s);
    harness h = h_open("rotary", TR_PRECISION_FP32, true);
    const int64_t dims[] = {1, s.positions, s.D};
    const int x = h_in(&h, TR_F32, 3, dims), y = h_out(&h, TR_F32, 3, dims);
    for (size_t e = 0; e < (size_t)(s.positions * s.D);
         e++) /* the same at even, at odd positions */
        h_put(&h, x, e, cos((double)(e % 16 + e / 16 % 2 * 31)));
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    double *v = h_values(&h, y);
    for (size_t i = 0; i + 7 < 40; i += 2)
        assert_true(fabs(h_dot(v + i * 16, v + (i + 7) * 16, 16) - h_dot(v, v + 7 * 16, 16)) <
                    1e-5);
    assert_true(fabs(h_dot(v, v + 3 * 16, 16) - h_dot(v, v + 7 * 16, 16)) > 1e-2);
    tr_free(v);
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_turned),
        cmocka_unit_test(products_depend_on_distances),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
