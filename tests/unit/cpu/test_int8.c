/* Products of 8 bits: every level that this CPU has, bitwise against plain C on random shapes; and
 * infer graphs with them against the same model in float32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/int8/int8.h"
#include "kernels/cpu/loops/loops.h"

static uint32_t words;

static uint32_t any(uint32_t below)
{
    return tr_philox_at(3, TR_RNG_TEST, 8, words++, 0).v[0] % below;
}

static void *bytes(size_t n)
{
    void *p = aligned_alloc(64, tr_align_up(n + 64, 64));
    assert_non_null(p);
    memset(p, 0x55, n + 64);
    return p;
}

typedef struct {
    tr_int8_shape s;
    bool x_signed, residual_signed;
    uint8_t *x, *residual;
    int8_t *q;
    float *weight, *scale, *bias, x_scale, y_scale;
    size_t ny;
} problem;

static size_t window(const tr_int8_shape *s)
{
    return (size_t)(s->C * s->kernel[0] * s->kernel[1]);
}

static void make(problem *t)
{
    const tr_int8_shape *s = &t->s;
    const size_t O = (size_t)(s->groups * s->O), nw = window(s) * O;
    const size_t nx = (size_t)(s->images * s->H * s->W * s->groups * s->C);
    t->ny = (size_t)(s->images * s->OH * s->OW) * O;
    t->x = bytes(nx);
    t->residual = bytes(t->ny);
    t->q = bytes(nw);
    t->weight = bytes(nw * 4);
    t->scale = bytes(O * 4);
    t->bias = bytes(O * 4);
    for (size_t i = 0; i < nx; i++) t->x[i] = (uint8_t)any(256);
    for (size_t i = 0; i < t->ny; i++) t->residual[i] = (uint8_t)any(256);
    for (size_t o = 0; o < O; o++) {
        t->scale[o] = 0.001f + 0.00001f * (float)any(100);
        t->bias[o] = 0.01f * (float)any(200) - 1;
    }
    for (size_t i = 0; i < nw; i++) {
        t->q[i] = (int8_t)((int)any(255) - 127);
        t->weight[i] = (float)t->q[i] * t->scale[i / window(s)];
    }
}

static void drop(problem *t)
{
    void *all[] = {t->x, t->residual, t->q, t->weight, t->scale, t->bias};
    for (size_t i = 0; i < TR_COUNT(all); i++) free(all[i]);
}

static int32_t sum_of(const problem *t, int64_t n, int64_t oh, int64_t ow, int64_t o)
{
    const tr_int8_shape *s = &t->s;
    int32_t sum = 0;
    for (int64_t c = 0; c < s->C; c++)
        for (int64_t ky = 0; ky < s->kernel[0]; ky++)
            for (int64_t kx = 0; kx < s->kernel[1]; kx++) {
                const int64_t h = oh * s->stride[0] + ky * s->dilation[0] - s->padding[0];
                const int64_t w = ow * s->stride[1] + kx * s->dilation[1] - s->padding[1];
                if (h < 0 || h >= s->H || w < 0 || w >= s->W) continue;
                const int64_t channel = o / s->O * s->C + c;
                const uint8_t v = t->x[((n * s->H + h) * s->W + w) * s->groups * s->C + channel];
                sum += (t->x_signed ? (int32_t)(int8_t)v : (int32_t)v) *
                       t->q[((o * s->C + c) * s->kernel[0] + ky) * s->kernel[1] + kx];
            }
    return sum;
}

/* What int8.h states, of one element. */
static void expect_one(const problem *t, const tr_int8_run *r, int32_t sum, int64_t o, size_t at,
                       void *y)
{
    const float factor = t->x_scale * t->scale[o] / t->y_scale;
    float v = fmaf((float)sum, factor, t->bias[o] / t->y_scale);
    if (r->residual)
        v = fmaf(t->residual_signed ? (float)(int8_t)t->residual[at] : (float)t->residual[at],
                 r->residual_scale, v);
    if (r->relu && !(v > 0)) v = 0;
    if (r->type == TR_F32)
        ((float *)y)[at] = v;
    else if (r->type == TR_BF16)
        ((tr_bf16 *)y)[at] = tr_f32_to_bf16(v);
    else
        ((uint8_t *)y)[at] = (uint8_t)(int)nearbyintf(fminf(fmaxf(v, r->least), r->most));
}

/* Weights on the grid come back to the bit. */
static void check_unpacked(const problem *t, const tr_int8_plan *p, const void *packed)
{
    const size_t nw = window(&t->s) * (size_t)(t->s.groups * t->s.O);
    float *weight = bytes(nw * sizeof *weight);
    tr_int8_unpack(p, packed, t->scale, weight);
    for (size_t i = 0; i < nw; i++) assert_true(weight[i] == t->weight[i]);
    free(weight);
}

static void check(problem *t, int level_count, uint32_t threads)
{
    static const tr_dtype types[] = {TR_U8, TR_I8, TR_F32, TR_BF16};
    const tr_int8_shape *s = &t->s;
    tr_int8_plan p;
    make(t);
    const tr_dtype type = types[any(4)];
    const bool small = tr_dtype_size(type) == 1;
    t->x_scale = 0.02f;
    t->y_scale = small ? 0.13f : 1;
    assert_true(tr_int8_plan_of(s, t->x_signed, &p));
    void *packed = bytes(p.packed_bytes), *want = bytes(t->ny * 4), *y = bytes(t->ny * 4);
    tr_int8_pack(&p, t->weight, t->scale, t->bias, t->x_scale, t->y_scale, packed);
    check_unpacked(t, &p, packed);
    const tr_int8_run r = {.x = t->x,
                           .w = tr_int8_parts(&p, packed),
                           .residual = any(2) ? t->residual : NULL,
                           .residual_signed = t->residual_signed,
                           .residual_scale = 0.37f,
                           .relu = any(2),
                           .type = type,
                           .least = type == TR_U8 ? 0 : -128,
                           .most = type == TR_U8 ? 255 : 127,
                           .y = y,
                           .workspace = bytes(threads * p.image_bytes),
                           .threads = (int)threads};
    size_t at = 0;
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t oh = 0; oh < s->OH; oh++)
            for (int64_t ow = 0; ow < s->OW; ow++)
                for (int64_t o = 0; o < s->groups * s->O; o++, at++)
                    expect_one(t, &r, sum_of(t, n, oh, ow, o), o, at, want);
    for (int level = 0; level < level_count; level++) {
        memset(y, 0x55, t->ny * 4);
        tr_int8_product((tr_int8_level)level, &p, &r);
        if (memcmp(want, y, t->ny * 4 + 64) != 0)
            fail_msg(
                "%s: %lld groups, %lld x (%lld, %lld, %lld) -> %lld, kernel %lldx%lld, stride %lld",
                tr_int8_level_name((tr_int8_level)level), (long long)s->groups,
                (long long)s->images, (long long)s->C, (long long)s->H, (long long)s->W,
                (long long)s->O, (long long)s->kernel[0], (long long)s->kernel[1],
                (long long)s->stride[0]);
    }
    free(r.workspace);
    free(packed);
    free(want);
    free(y);
    drop(t);
}

static tr_int8_shape linear(int64_t rows, int64_t in, int64_t out)
{
    return (tr_int8_shape){.images = 1,
                           .groups = 1,
                           .C = in,
                           .H = 1,
                           .W = rows,
                           .O = out,
                           .OH = 1,
                           .OW = rows,
                           .kernel = {1, 1},
                           .stride = {1, 1},
                           .dilation = {1, 1}};
}

/* Rows that fill blocks and such that do not, odd channels, a stride, padding, dilation, groups of
 * some channels and of one. */
static tr_int8_shape convolution(void)
{
    tr_int8_shape s;
    do {
        s = (tr_int8_shape){.images = 1 + any(3),
                            .groups = 1,
                            .C = 1 + any(any(4) ? 20 : 90),
                            .H = 1 + any(12),
                            .W = 1 + any(36),
                            .O = 1 + any(40),
                            .kernel = {1 + any(3), 1 + any(3)},
                            .stride = {1 + any(2), 1 + any(2)},
                            .padding = {any(2), any(2)},
                            .dilation = {1 + any(2), 1 + any(2)}};
        const uint32_t kind = any(4);
        if (kind < 2) s.groups = kind ? 1 + any(150) : 2 + any(3);
        if (kind == 0) s.C = 1 + any(12), s.O = 1 + any(20);
        if (kind == 1) s.C = s.O = 1;
        for (int i = 0; i < 2; i++) {
            const int64_t size = i ? s.W : s.H;
            const int64_t room = size + 2 * s.padding[i] - s.dilation[i] * (s.kernel[i] - 1) - 1;
            *(i ? &s.OW : &s.OH) = room < 0 ? 0 : room / s.stride[i] + 1;
        }
    } while (s.OH < 1 || s.OW < 1);
    return s;
}

static void test_products(void **state)
{
    (void)state;
    const tr_cpu cpu = {.isa = tr_cpu_isa()};
    const int levels = (int)tr_int8_level_of(&cpu) + 1;
    print_message("the best level here: %s\n", tr_int8_level_name((tr_int8_level)(levels - 1)));
    for (int i = 0; i < 200; i++) {
        problem t = {.s = i % 4 ? convolution() : linear(1 + any(40), 1 + any(200), 1 + any(70)),
                     .x_signed = any(2),
                     .residual_signed = any(2)};
        check(&t, levels, 1 + any(3));
    }
}

/* Images one to three columns wide: a block of positions is in as many rows of the output. */
static void test_narrow(void **state)
{
    (void)state;
    const tr_cpu cpu = {.isa = tr_cpu_isa()};
    for (int64_t w = 1; w <= 3; w++)
        for (int i = 0; i < 4; i++) {
            problem t = {.s = {.images = 2,
                               .groups = 1,
                               .C = 8 + i,
                               .H = 40,
                               .W = w,
                               .O = 20,
                               .OH = 40,
                               .OW = w,
                               .kernel = {3, 1},
                               .stride = {1, 1},
                               .padding = {1, 0},
                               .dilation = {1, 1}},
                         .x_signed = i % 2};
            check(&t, (int)tr_int8_level_of(&cpu) + 1, 1);
        }
}

/* Rows of whole runs of 14, as images of 224 have them: weights that stay in the first cache and
 * such that do not, odd numbers of tiles, strides, images that need no copy. */
static void test_runs(void **state)
{
    (void)state;
    const tr_cpu cpu = {.isa = tr_cpu_isa()};
    const int64_t of[][5] = {/* C, W, O, kernel, stride */
                             {3, 56, 64, 7, 2}, {64, 14, 70, 3, 1}, {16, 28, 40, 3, 1},
                             {4, 28, 33, 1, 1}, {4, 56, 16, 1, 2},  {32, 28, 48, 3, 2},
                             {8, 14, 7, 5, 1}};
    for (size_t i = 0; i < TR_COUNT(of); i++)
        for (int x_signed = 0; x_signed < 2; x_signed++) {
            const int64_t k = of[i][3], out = of[i][1] / of[i][4];
            problem t = {.s = {.images = 2,
                               .groups = 1 + (i == 2),
                               .C = of[i][0],
                               .H = 3 * of[i][4],
                               .W = of[i][1],
                               .O = of[i][2],
                               .OH = 3,
                               .OW = out,
                               .kernel = {k, k},
                               .stride = {of[i][4], of[i][4]},
                               .padding = {k / 2, k / 2},
                               .dilation = {1, 1}},
                         .x_signed = x_signed,
                         .residual_signed = x_signed};
            assert_int_equal(out % 14, 0);
            check(&t, (int)tr_int8_level_of(&cpu) + 1, 1 + (uint32_t)i % 2);
        }
}

/* Steps that are moved: the largest of a window, and transposed. */
static void test_moved(void **state)
{
    (void)state;
    enum { MOST = 3 * 14 * 14 * 90 };
    uint8_t *x = bytes(MOST), *y = bytes(MOST);
    for (int i = 0; i < 60; i++) {
        const bool is_signed = any(2);
        tr_cpu_pool p = {.type = is_signed ? TR_I8 : TR_U8,
                         .C = 1 + any(90),
                         .H = 3 + any(10),
                         .W = 3 + any(10)};
        for (int k = 0; k < 2; k++) {
            p.kernel[k] = 1 + any(3);
            p.stride[k] = 1 + any(3);
            p.padding[k] = p.kernel[k] > 1 ? any(2) : 0;
            *(k ? &p.OW : &p.OH) =
                ((k ? p.W : p.H) + 2 * p.padding[k] - p.kernel[k]) / p.stride[k] + 1;
        }
        for (size_t e = 0; e < (size_t)(2 * p.H * p.W) * p.C; e++) x[e] = (uint8_t)any(256);
        for (int isa = TR_ISA_BASE; isa <= tr_cpu_isa(); isa++) {
            tr_cpu_loops_at(isa)->max_pool_steps(&p, x, y, 0, (size_t)(2 * p.OH));
            for (int64_t r = 0; r < 2 * p.OH * p.OW; r++)
                for (size_t c = 0; c < p.C; c++) {
                    int best = -129;
                    for (int64_t k = 0; k < p.kernel[0] * p.kernel[1]; k++) {
                        const int64_t h =
                            r / p.OW % p.OH * p.stride[0] - p.padding[0] + k / p.kernel[1];
                        const int64_t w = r % p.OW * p.stride[1] - p.padding[1] + k % p.kernel[1];
                        if (h < 0 || h >= p.H || w < 0 || w >= p.W) continue;
                        const int64_t image = r / (p.OW * p.OH);
                        const uint8_t v = x[(size_t)((image * p.H + h) * p.W + w) * p.C + c];
                        const int step = is_signed ? (int8_t)v : v;
                        best = step > best ? step : best;
                    }
                    assert_int_equal((uint8_t)best, y[(size_t)r * p.C + c]);
                }
            tr_cpu_loops_at(isa)->transpose(1, x, y, (size_t)p.H, p.C);
            for (size_t e = 0; e < (size_t)p.H * p.C; e++)
                assert_int_equal(x[e], y[e % p.C * (size_t)p.H + e / p.C]);
        }
    }
    free(x);
    free(y);
}

/* Averages of windows, padding counted or not, and requantized steps: exact sums, then one
 * rounding. */
static void test_carried(void **state)
{
    (void)state;
    enum { MOST = 3 * 14 * 14 * 90 };
    uint8_t *x = bytes(MOST), *y = bytes(MOST);
    for (int i = 0; i < 60; i++) {
        const bool is_signed = any(2), to_signed = any(2);
        const float least = to_signed ? -128 : 0, factor = 0.2f + 0.01f * (float)any(100);
        tr_cpu_pool p = {.type = is_signed ? TR_I8 : TR_U8,
                         .C = 1 + any(90),
                         .H = 3 + any(10),
                         .W = 3 + any(10),
                         .include_pad = any(2)};
        for (int k = 0; k < 2; k++) {
            p.kernel[k] = 1 + any(3);
            p.stride[k] = 1 + any(3);
            p.end[k] = p.padding[k] = p.kernel[k] > 1 ? any(2) : 0;
            *(k ? &p.OW : &p.OH) =
                ((k ? p.W : p.H) + 2 * p.padding[k] - p.kernel[k]) / p.stride[k] + 1;
        }
        for (size_t e = 0; e < (size_t)(2 * p.H * p.W) * p.C; e++) x[e] = (uint8_t)any(256);
        for (int isa = TR_ISA_BASE; isa <= tr_cpu_isa(); isa++) {
            const tr_cpu_loops *l = tr_cpu_loops_at(isa);
            l->avg_pool_steps(&p, to_signed, factor, x, y, 0, (size_t)(2 * p.OH));
            for (int64_t r = 0; r < 2 * p.OH * p.OW; r++)
                for (size_t c = 0; c < p.C; c++) {
                    int sum = 0, count = 0;
                    for (int64_t k = 0; k < p.kernel[0] * p.kernel[1]; k++) {
                        const int64_t h =
                            r / p.OW % p.OH * p.stride[0] - p.padding[0] + k / p.kernel[1];
                        const int64_t w = r % p.OW * p.stride[1] - p.padding[1] + k % p.kernel[1];
                        const bool in = h >= 0 && h < p.H && w >= 0 && w < p.W;
                        count += in || p.include_pad;
                        if (!in) continue;
                        const uint8_t v =
                            x[(size_t)((r / (p.OW * p.OH) * p.H + h) * p.W + w) * p.C + c];
                        sum += is_signed ? (int8_t)v : v;
                    }
                    const float v = (float)sum * (factor / (float)count);
                    assert_int_equal((uint8_t)(int)rintf(fminf(fmaxf(v, least), least + 255)),
                                     y[(size_t)r * p.C + c]);
                }
            l->requantize(is_signed, to_signed, factor, x, y, p.C);
            for (size_t c = 0; c < p.C; c++) {
                const float v = (float)(is_signed ? (int8_t)x[c] : x[c]) * factor;
                assert_int_equal((uint8_t)(int)rintf(fminf(fmaxf(v, least), least + 255)), y[c]);
            }
        }
    }
    free(x);
    free(y);
}

/* The largest of a row, and sums by scales of rows, at every level. */
static void test_dynamic(void **state)
{
    (void)state;
    enum { MOST = 12 * 90 };
    static float x[MOST], add[MOST], y[MOST], scale[12], bias[90];
    for (int i = 0; i < 40; i++) {
        const size_t rows = 1 + any(12), C = 1 + any(90), places = any(2) ? 1 : 1 + any(4);
        float magnitude, value;
        for (size_t e = 0; e < rows * C; e++) {
            x[e] = 0.3f * (float)any(4000) - 700;
            add[e] = 0.01f * (float)any(4000);
        }
        x[any((uint32_t)(rows * C))] = i % 8 == 0 ? NAN : 0;
        for (size_t r = 0; r < rows; r++) scale[r] = 1e-4f * (float)(1 + any(99));
        for (size_t c = 0; c < C; c++) bias[c] = 0.01f * (float)any(99);
        const bool relu = any(2), has_bias = any(2), residual = any(2);
        magnitude = value = 0;
        for (size_t e = 0; e < rows * C; e++) {
            magnitude = fmaxf(magnitude, fabsf(x[e])); /* of a NaN and a number: the number */
            value = fmaxf(value, x[e]);
        }
        for (int isa = TR_ISA_BASE; isa <= tr_cpu_isa(); isa++) {
            const tr_cpu_loops *l = tr_cpu_loops_at(isa);
            assert_true(l->largest(TR_F32, true, x, rows * C) == magnitude);
            assert_true(l->largest(TR_F32, false, x, rows * C) == value);
            uint8_t steps[MOST];
            l->quantize(TR_F32, true, -127, 0.2f, x, steps, rows * C);
            for (size_t e = 0; e < rows * C; e++) {
                const float v = isnan(x[e]) ? -127 : fminf(fmaxf(x[e] * 0.2f, -127), 127);
                assert_int_equal((int8_t)steps[e], (int)rintf(v));
            }
            l->rescale(TR_F32, relu ? TR_ACT_RELU : TR_ACT_NONE, x, scale, places,
                       has_bias ? bias : NULL, residual ? add : NULL, y, rows, C);
            for (size_t e = 0; e < rows * C; e++) {
                float want = fmaf(x[e], scale[e / C / places], has_bias ? bias[e % C] : 0.0f);
                want += residual ? add[e] : 0.0f;
                if (relu && want < 0) want = 0;
                assert_true(y[e] == want || (isnan(y[e]) && isnan(want)));
            }
        }
    }
}

/* A sum that would not fit is refused. */
static void test_too_long(void **state)
{
    (void)state;
    tr_int8_plan p;
    const tr_int8_shape fits = linear(1, 66000, 1), not = linear(1, 67000, 1);
    assert_true(tr_int8_plan_of(&fits, false, &p));
    assert_false(tr_int8_plan_of(&not, false, &p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_runs),     cmocka_unit_test(test_moved),
        cmocka_unit_test(test_too_long), cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_carried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
