/* Activations: the vector functions against libm over sweeps with their stated errors, the ops and
 * their gradients against float64 at every level, special values, fusing into other ops. */
#include "tests/unit/cpu/loop_levels.h"

#include "kernels/cpu/loops/vmath.h"

/* Distance in units of the last place of the exact value's float. */
static double ulps(float got, double want)
{
    const float w = (float)want;
    if (isnan(want) || isinf(w)) return (isnan(got) && isnan(want)) || got == w ? 0 : 1e30;
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void sweep(float (*f)(float), double (*exact)(double), float low, float high, double limit)
{
    const int steps = 400000;
    for (int i = 0; i <= steps; i++) {
        const float x = (float)(low + ((double)high - low) * i / steps);
        const double off = ulps(f(x), exact((double)x));
        if (!(off <= limit)) fail_msg("f(%.9g) = %.9g is off by %g ulp", x, f(x), off);
    }
}

static float own_exp(float x)
{
    return tr_vexp(x);
}

static float own_tanh(float x)
{
    return tr_vtanh(x);
}

static float own_log1p(float x)
{
    return tr_vlog1p(x);
}

static float own_expm1(float x)
{
    return tr_vexpm1(x);
}

static float own_sigmoid(float x)
{
    return tr_vsigmoid(x);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static float own_gelu_tanh(float x)
{
    return tr_vact(TR_ACT_GELU_TANH, x);
}

static double gelu_tanh(double x)
{
    return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void functions_are_accurate(void **state)
{
    (void)state;
    sweep(own_exp, exp, -110, 95, 2);
    sweep(own_exp, exp, -1, 1, 2);
    sweep(own_tanh, tanh, -12, 12, 7);
    sweep(own_tanh, tanh, -0.01f, 0.01f, 3);
    for (float x = 7; x < 10; x += 0x1p-18f)
        if (!(tr_vtanh(x) <= 1 && tr_vtanh(-x) >= -1)) fail_msg("tanh(%.9g)", x);
    sweep(own_sigmoid, sigmoid, -10, 20, 6);
    sweep(own_sigmoid, sigmoid, -87, 0, 4);
    sweep(own_expm1, expm1, -40, 88, 3);
    sweep(own_expm1, expm1, -1, 1, 3);
    sweep(own_expm1, expm1, -1e-4f, 1e-4f, 1);
    sweep(own_log1p, log1p, 0, 1, 2);
    sweep(own_log1p, log1p, 0, 1e-6f, 2);
    sweep(own_gelu_tanh, gelu_tanh, -3, 6, 20); /* roundings of an exponent up to 7 */
    for (int i = -600000; i <= 600000; i++) {
        const float x = (float)i * 2e-5f;
        float density;
        const double phi = 0.5 * erfc(-(double)x / sqrt(2));
        if (!(fabs((double)tr_vphi(x, &density) - phi) <= 1e-7)) fail_msg("Phi(%.9g)", x);
        assert_true(fabs((double)density - exp(-0.5 * (double)x * (double)x) / sqrt(2 * M_PI)) <=
                    1e-7);
    }
    assert_true(isnan(tr_vexp(NAN)) && isnan(tr_vtanh(NAN)));
    assert_true(isnan(tr_vexpm1(NAN)) && tr_vexpm1(-INFINITY) == -1 && tr_vexpm1(0) == 0);
    assert_true(tr_vexp(INFINITY) == INFINITY && tr_vexp(-INFINITY) == 0 && tr_vexp(0) == 1);
    assert_true(tr_vtanh(INFINITY) == 1 && tr_vtanh(-INFINITY) == -1);
    assert_true(tr_vsigmoid(-INFINITY) == 0 && tr_vsigmoid(INFINITY) == 1);
    assert_true(isnan(tr_vsigmoid(NAN)) && tr_vsigmoid(0) == 0.5f);
}

static double slope(tr_act act, double x)
{
    if (act == TR_ACT_RELU) return x > 0;
    const double step = 1e-5;
    return (activate(act, x + step) - activate(act, x - step)) / (2 * step);
}

static const struct {
    const char *op, *grad;
    tr_act act;
    bool by_input; /* the gradient takes x */
} ops[] = {
    {"relu", "relu.grad", TR_ACT_RELU, false},          {"gelu", "gelu.grad", TR_ACT_GELU, true},
    {"gelu", "gelu.grad", TR_ACT_GELU_TANH, true},      {"silu", "silu.grad", TR_ACT_SILU, true},
    {"sigmoid", "sigmoid.grad", TR_ACT_SIGMOID, false}, {"tanh", "tanh.grad", TR_ACT_TANH, false}};

static const int64_t sizes[] = {1, 3, 17, 100, 70001};

/* Exact but for the one rounding; as torch.nn.LeakyReLU for NaN, infinities and negative slopes. */
static void check_leaky(double slope, tr_precision p, int isa, int64_t n, bool in_place)
{
    const tr_leaky_relu_attrs attrs = {.negative_slope = slope};
    const int64_t d[2] = {n, 2};
    const double a = (double)(float)slope;
    harness h = open_level("leaky_relu", p, isa, 2);
    const int x = h_in(&h, h_activation(&h), 2, d), y = h_out(&h, h_activation(&h), 2, d);
    h_fill_range(&h, x, 1, -9, 9);
    double *want = h_values(&h, x);
    for (size_t i = 0; i < h.tensors[x].count; i++) want[i] *= want[i] > 0 ? 1 : a;
    if (in_place) {
        tr_free(h.data[y]);
        h.data[y] = h.data[x];
    }
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p), "leaky_relu");
    h_close(&h);

    h = open_level("leaky_relu.grad", p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 2, d), saved = h_in(&h, h_activation(&h), 2, d);
    const int dx = h_out(&h, h_activation(&h), 2, d);
    h_fill(&h, dy, 1);
    h_fill_range(&h, saved, 2, -3, 3);
    want = h_values(&h, dy);
    for (size_t i = 0; i < h.tensors[dy].count; i++) want[i] *= h_get(&h, saved, i) > 0 ? 1 : a;
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, dx, want, tolerance(p), "leaky_relu.grad");
    h_close(&h);
}

/* Exact: values are kept, or are 0 or 6; NaN stays. */
static void check_relu6(tr_precision p, int isa, int64_t n)
{
    const int64_t d[2] = {n, 2};
    harness h = open_level("relu6", p, isa, 2);
    const int x = h_in(&h, h_activation(&h), 2, d), y = h_out(&h, h_activation(&h), 2, d);
    h_fill_range(&h, x, 1, -9, 9);
    h_put(&h, x, 0, NAN);
    double *want = h_values(&h, x);
    for (size_t i = 0; i < h.tensors[x].count; i++)
        want[i] = want[i] <= 0 ? 0 : want[i] >= 6 ? 6 : want[i];
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    assert_true(isnan(h_get(&h, y, 0)));
    for (size_t i = 1; i < h.tensors[y].count; i++) assert_true(h_get(&h, y, i) == want[i]);
    tr_free(want);
    h_close(&h);

    h = open_level("relu6.grad", p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 2, d), saved = h_in(&h, h_activation(&h), 2, d);
    const int dx = h_out(&h, h_activation(&h), 2, d);
    h_fill(&h, dy, 1);
    h_fill_range(&h, saved, 2, 0.5, 5.5);
    h_put(&h, saved, 0, 0);
    h_put(&h, saved, 1, 6);
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < h.tensors[dx].count; i++)
        assert_true(h_get(&h, dx, i) == (i < 2 ? 0 : h_get(&h, dy, i)));
    h_close(&h);
}

/* ---- Functions of one number, whose gradients go by their input ---- */

static double elu(double x, const void *attrs)
{
    return x > 0 ? x : (double)(float)((const tr_elu_attrs *)attrs)->alpha * expm1(x);
}

static double hardsigmoid(double x, const void *attrs)
{
    (void)attrs;
    return fmin(fmax(x + 3, 0), 6) / 6;
}

static double hardswish(double x, const void *attrs)
{
    return x * hardsigmoid(x, attrs);
}

static double softplus(double x, const void *attrs)
{
    const tr_softplus_attrs *a = attrs;
    const double v = a->beta * x;
    return v > a->threshold ? x : (fmax(v, 0) + log1p(exp(-fabs(v)))) / a->beta;
}

static const struct {
    const char *op, *grad;
    double (*f)(double, const void *);
    union {
        tr_elu_attrs elu;
        tr_softplus_attrs softplus;
    } attrs;
    double at_infinity[2]; /* -, + */
} curves[] = {{"elu", "elu.grad", elu, {.elu = {1}}, {-1, INFINITY}},
              {"elu", "elu.grad", elu, {.elu = {0.375}}, {-0.375, INFINITY}},
              {"elu", "elu.grad", elu, {.elu = {-2}}, {2, INFINITY}},
              {"hardswish", "hardswish.grad", hardswish, {{0}}, {0, INFINITY}},
              {"hardsigmoid", "hardsigmoid.grad", hardsigmoid, {{0}}, {0, 1}},
              {"softplus", "softplus.grad", softplus, {.softplus = {1, 20}}, {0, INFINITY}},
              {"softplus", "softplus.grad", softplus, {.softplus = {4, 100}}, {0, INFINITY}},
              {"softplus", "softplus.grad", softplus, {.softplus = {0.5, 1}}, {0, INFINITY}}};

/* Four float32 functions of 3 ulp at the most, then the rounding. */
static double curve_tolerance(tr_precision p)
{
    return p == TR_PRECISION_FP32 ? 0x1p-20 : tolerance(p) * 1.01;
}

static void check_curve(size_t o, tr_precision p, int isa, int64_t n)
{
    const int64_t d[2] = {n, 2};
    const void *attrs = &curves[o].attrs;
    harness h = open_level(curves[o].op, p, isa, 2);
    const int x = h_in(&h, h_activation(&h), 2, d), y = h_out(&h, h_activation(&h), 2, d);
    h_fill_range(&h, x, 1, -9, 9);
    double *want = h_values(&h, x);
    for (size_t i = 0; i < h.tensors[x].count; i++) want[i] = curves[o].f(want[i], attrs);
    h_prepare(&h, attrs, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, curve_tolerance(p), curves[o].op);
    h_close(&h);

    h = open_level(curves[o].grad, p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 2, d), saved = h_in(&h, h_activation(&h), 2, d);
    const int dx = h_out(&h, h_activation(&h), 2, d);
    h_fill(&h, dy, 1);
    h_fill_range(&h, saved, 2, -9, 9);
    want = h_values(&h, dy);
    for (size_t i = 0; i < h.tensors[dy].count; i++) {
        double at = h_get(&h, saved, i);
        const double step = 1e-5, bend = o >= 5 ? curves[o].attrs.softplus.threshold /
                                                      curves[o].attrs.softplus.beta
                                                : 3;
        if (fabs(at) < 2 * step || fabs(fabs(at) - bend) < 2 * step) h_put(&h, saved, i, at = 0.5);
        want[i] *= (curves[o].f(at + step, attrs) - curves[o].f(at - step, attrs)) / (2 * step);
    }
    if (n % 2) { /* in place */
        tr_free(h.data[dx]);
        h.data[dx] = h.data[dy];
    }
    h_prepare(&h, attrs, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, dx, want, curve_tolerance(p) + 1e-9, curves[o].grad);
    h_close(&h);
}

static void curves_match(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    for (size_t o = 0; o < TR_COUNT(curves); o++)
        for (size_t s = 0; s + 1 < TR_COUNT(sizes); s++)
            FOR_PRECISIONS(p) check_curve(o, p, isa, sizes[s]);
    const double in[] = {NAN, -INFINITY, INFINITY, 200, -200};
    for (size_t o = 0; o < TR_COUNT(curves); o++) {
        harness h = open_level(curves[o].op, TR_PRECISION_FP32, TR_ISA_BASE, 1);
        const int64_t d[2] = {1, TR_COUNT(in)};
        const int x = h_in(&h, TR_F32, 2, d), y = h_out(&h, TR_F32, 2, d);
        for (size_t i = 0; i < TR_COUNT(in); i++) h_put(&h, x, i, in[i]);
        h_prepare(&h, &curves[o].attrs, TR_ACT_NONE);
        h_run(&h, false);
        assert_true(isnan(h_get(&h, y, 0)));
        for (size_t i = 0; i < 2; i++)
            assert_true(fabs(h_get(&h, y, 1 + i) - curves[o].at_infinity[i]) < 1e-30 ||
                        h_get(&h, y, 1 + i) == curves[o].at_infinity[i]);
        assert_true(h_get(&h, y, 3) == (curves[o].at_infinity[1] == 1 ? 1 : 200));
        assert_true(fabs(h_get(&h, y, 4) - curves[o].at_infinity[0]) < 1e-30);
        h_close(&h);
    }
}

/* ---- Slopes that are learned ---- */

static void check_prelu(int64_t rows, int64_t C, bool each, bool dx_wanted, tr_precision p, int isa)
{
    const int64_t d[2] = {rows, C}, weights = each ? C : 1;
    const size_t n = (size_t)(rows * C);
    harness h = open_level("prelu", p, isa, 2);
    int x = h_in(&h, h_activation(&h), 2, d), w = h_param(&h, 1, &weights);
    const int y = h_out(&h, h_activation(&h), 2, d);
    h_fill_range(&h, x, 1, -9, 9);
    h_fill_range(&h, w, 2, -1, 1);
    double *want = h_values(&h, x), *xs = h_values(&h, x), *ws = h_values(&h, w);
    for (size_t i = 0; i < n; i++)
        if (!(xs[i] > 0)) want[i] *= ws[each ? i % (size_t)C : 0];
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p), "prelu");
    h_close(&h);

    h = open_level("prelu.grad", p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 2, d);
    x = h_in(&h, h_activation(&h), 2, d), w = h_param(&h, 1, &weights);
    const int dx = dx_wanted ? h_out(&h, h_activation(&h), 2, d) : -1;
    if (!dx_wanted) h_absent_out(&h);
    const int dw = h_grad(&h, 1, &weights);
    h_fill(&h, dy, 3);
    for (size_t i = 0; i < n; i++) h_put(&h, x, i, xs[i]);
    for (size_t c = 0; c < (size_t)weights; c++) h_put(&h, w, c, ws[c]);
    double *gs = h_values(&h, dy), *sum = doubles((size_t)weights),
           *size = doubles((size_t)weights);
    for (size_t c = 0; c < (size_t)weights; c++) sum[c] = size[c] = 0;
    want = h_values(&h, dy);
    for (size_t i = 0; i < n; i++) {
        const size_t c = each ? i % (size_t)C : 0;
        if (xs[i] > 0) continue;
        want[i] *= ws[c];
        sum[c] += gs[i] * xs[i];
        size[c] += fabs(gs[i] * xs[i]);
    }
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    if (dx_wanted)
        expect(&h, dx, want, tolerance(p), "prelu.grad");
    else
        tr_free(want);
    for (int twice = 0; twice < 2; twice++) { /* in float32 over blocks of 2048 at the most */
        h_check_sums(&h, dw, sum, size, each ? 32 : 512, 0, "the weights' gradient");
        for (size_t c = 0; c < (size_t)weights; c++) sum[c] *= 2, size[c] *= 2;
        h_run(&h, true);
    }
    h_close(&h);
    tr_free(gs), tr_free(sum), tr_free(size), tr_free(xs), tr_free(ws);
}

static void prelu_matches(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1},     {3, 5},     {17, 24},
                                        {700, 130}, {40, 1032}, {9, 4100}};
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(shapes); s++)
        for (int each = 0; each < 2; each++) FOR_PRECISIONS(p)
    check_prelu(shapes[s][0], shapes[s][1], each, s != 2, p, isa);
}

static void relu6_matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(sizes); s++) FOR_PRECISIONS(p) check_relu6(p, isa, sizes[s]);
}

static void leaky_relu_matches(void **state)
{
    (void)state;
    static const double slopes[] = {0.01, -0.5, 0, 1.5};
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(sizes); s++) FOR_PRECISIONS(p)
    for (size_t k = 0; k < TR_COUNT(slopes); k++) check_leaky(slopes[k], p, isa, sizes[s], k == 1);
    const tr_leaky_relu_attrs attrs = {.negative_slope = 0.5};
    const double in[] = {NAN, INFINITY, -INFINITY, -0.0, 0.0, -2};
    harness h = open_level("leaky_relu", TR_PRECISION_FP32, TR_ISA_BASE, 1);
    const int64_t d[2] = {1, TR_COUNT(in)};
    const int x = h_in(&h, TR_F32, 2, d), y = h_out(&h, TR_F32, 2, d);
    for (size_t i = 0; i < TR_COUNT(in); i++) h_put(&h, x, i, in[i]);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    assert_true(isnan(h_get(&h, y, 0)) && h_get(&h, y, 1) == INFINITY);
    assert_true(h_get(&h, y, 2) == -INFINITY && h_get(&h, y, 5) == -1);
    assert_true(h_get(&h, y, 3) == 0 && signbit(h_get(&h, y, 3)) && !signbit(h_get(&h, y, 4)));
    h_close(&h);
}

static void check_op(size_t o, tr_precision p, int isa, int64_t n)
{
    const tr_gelu_attrs gelu = {.tanh = ops[o].act == TR_ACT_GELU_TANH};
    const int64_t d[2] = {n, 2};
    harness h = open_level(ops[o].op, p, isa, 2);
    const int x = h_in(&h, h_activation(&h), 2, d), y = h_out(&h, h_activation(&h), 2, d);
    h_fill_range(&h, x, 1, -9, 9);
    double *want = h_values(&h, x);
    for (size_t i = 0; i < h.tensors[x].count; i++) want[i] = activate(ops[o].act, want[i]);
    h_prepare(&h, &gelu, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p) * (p == TR_PRECISION_BF16 ? 1 : 2), ops[o].op);
    h_close(&h);

    h = open_level(ops[o].grad, p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 2, d), saved = h_in(&h, h_activation(&h), 2, d);
    const int dx = h_out(&h, h_activation(&h), 2, d);
    h_fill(&h, dy, 1);
    want = doubles(h.tensors[dx].count);
    for (size_t i = 0; i < h.tensors[dx].count; i++) {
        /* beyond 4 a saved y of sigmoid or tanh has lost what its gradient is made of */
        double at = uniform(2, i, -4, 4);
        if (ops[o].by_input) {
            h_put(&h, saved, i, at);
            at = h_get(&h, saved, i);
            want[i] = slope(ops[o].act, at);
        } else {
            h_put(&h, saved, i, activate(ops[o].act, at));
            const double y0 = h_get(&h, saved, i);
            want[i] = ops[o].act == TR_ACT_RELU   ? y0 > 0
                      : ops[o].act == TR_ACT_TANH ? 1 - y0 * y0
                                                  : y0 * (1 - y0);
            if (p == TR_PRECISION_FP32 && ops[o].act != TR_ACT_RELU)
                assert_true(fabs(want[i] - slope(ops[o].act, at)) < 1e-6);
        }
        want[i] *= h_get(&h, dy, i);
    }
    if (n % 2) { /* in place */
        tr_free(h.data[dx]);
        h.data[dx] = h.data[dy];
    }
    h_prepare(&h, &gelu, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, dx, want, tolerance(p) * (p == TR_PRECISION_BF16 ? 1 : 2), ops[o].grad);
    h_close(&h);
}

static void ops_match(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    for (size_t o = 0; o < TR_COUNT(ops); o++)
        for (size_t s = 0; s < TR_COUNT(sizes); s++)
            FOR_PRECISIONS(p) check_op(o, p, isa, sizes[s]);
}

static void special_values(void **state)
{
    (void)state;
    const float in[] = {NAN, INFINITY, -INFINITY, 0.0f, 200.0f, -200.0f, 1e-30f, -1e30f};
    FOR_LEVELS(isa)
    {
        const tr_cpu_loops *l = tr_cpu_loops_at(isa);
        for (size_t o = 0; o < TR_COUNT(ops); o++) {
            float y[8];
            l->act(TR_F32, ops[o].act, in, y, 8);
            assert_true(isnan(y[0]));
            const bool bounded = ops[o].act == TR_ACT_SIGMOID || ops[o].act == TR_ACT_TANH;
            assert_true(y[1] == (bounded ? 1.0f : INFINITY));
            assert_true(y[4] == (bounded ? 1.0f : 200.0f));
            assert_true(isfinite(y[5]) && isfinite(y[6]) && isfinite(y[7]));
        }
    }
}

/* The input of a network may be read elsewhere from one run to the next. */
static void input_can_be_rebound(void **state)
{
    (void)state;
    const int64_t d[2] = {4, 8};
    float other[32];
    harness h = h_open("relu", TR_PRECISION_FP32, false);
    const int x = h_in(&h, TR_F32, 2, d), y = h_out(&h, TR_F32, 2, d);
    h_fill(&h, x, 1);
    for (size_t i = 0; i < 32; i++) other[i] = (float)i - 16;
    h_prepare(&h, NULL, TR_ACT_NONE);
    assert_int_equal(h.kernel->rebind(h.kernel, 0, other), TR_OK);
    h_run(&h, false);
    for (size_t i = 0; i < 32; i++) assert_true(h_get(&h, y, i) == (i < 16 ? 0.0 : (double)i - 16));
    assert_int_equal(h.kernel->rebind(h.kernel, TR_MAX_IN, other), TR_INTERNAL);
    h_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_match),           cmocka_unit_test(prelu_matches),
        cmocka_unit_test(leaky_relu_matches),     cmocka_unit_test(relu6_matches),
        cmocka_unit_test(functions_are_accurate), cmocka_unit_test(ops_match),
        cmocka_unit_test(special_values),         cmocka_unit_test(input_can_be_rebound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
