/* From raw samples to kernels: normalization, layout, crop and flip against plain loops; rounding
 * to bfloat16 against its definition. */
#include "helpers.h"

/* Three dimensions that are no image: stored as they are written, a mean for each feature of the
 * last one, nothing to crop. */
static void plain_tensor(void **state)
{
    (void)state;
    static const int64_t dims[3] = {3, 2, 5};
    world w;
    tr_prepare p;
    uint8_t raw[30];
    float scratch[60], out[30];
    world_open(&w, 3, dims, 3);
    w.m.inputs[0].layout = TR_LAYOUT_PLAIN;
    for (int i = 0; i < 8; i++) w.mean[i] = 3.0 + i, w.std[i] = 0.5;
    normalize_by(&w, 5, 1, NULL);
    for (int k = 0; k < 30; k++) raw[k] = (uint8_t)(7 * k % 31);
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
    assert_false(p.in[0].image);
    tr_prepare_sample(&p, 0, TR_ELEM_U8, raw, 0, scratch, out);
    for (int k = 0; k < 30; k++) assert_true(out[k] == ((float)raw[k] - (float)(3 + k % 5)) / 0.5f);
    tr_prepare_fini(&p);
    w.c.data.augment.crop = 1;
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "no input of 3 dimensions"));
    world_close(&w);
}

static void normalization(void **state)
{
    (void)state;
    const struct {
        int ndim;
        int64_t dims[3];
        size_t nstats;
    } cases[] = {{1, {5}, 1},       {1, {5}, 5},        {2, {3, 4}, 1},
                 {2, {3, 4}, 4},    {3, {1, 3, 5}, 1},  {3, {3, 3, 5}, 1},
                 {3, {3, 3, 5}, 3}, {3, {4, 1, 33}, 4}, {1, {0}, 0}};
    for (size_t t = 0; cases[t].nstats; t++) {
        for (int e = 0; e < TR_ELEMS; e++) {
            world w;
            world_open(&w, cases[t].ndim, cases[t].dims, 3);
            for (int i = 0; i < 8; i++) w.mean[i] = 3.0 + i, w.std[i] = 0.7 * (i + 1);
            normalize_by(&w, cases[t].nstats, 1, NULL);
            size_t n = 1, c = (size_t)cases[t].dims[0];
            for (int d = 0; d < cases[t].ndim; d++) n *= (size_t)cases[t].dims[d];
            uint64_t raw[256];
            for (size_t k = 0; k < n; k++) {
                switch (tr_elem_size(e)) {
                case 1:
                    ((uint8_t *)raw)[k] = (uint8_t)(k % 100);
                    break;
                case 2:
                    ((uint16_t *)raw)[k] =
                        e == TR_ELEM_F16 ? tr_f32_to_f16((float)(k % 100)) : (uint16_t)(k % 100);
                    break;
                case 4:
                    if (e == TR_ELEM_F32)
                        ((float *)raw)[k] = (float)(k % 100);
                    else
                        ((uint32_t *)raw)[k] = (uint32_t)(k % 100);
                    break;
                default:
                    if (e == TR_ELEM_F64)
                        ((double *)raw)[k] = (double)(k % 100);
                    else
                        raw[k] = k % 100;
                }
            }
            for (int type = 0; type < 3; type++) {
                tr_prepare p;
                float scratch[512], out[256], want[256];
                tr_bf16 half[256];
                assert_int_equal(tr_prepare_init(&w.c, &w.m, true,
                                                 (tr_dtype[]){TR_F32, TR_BF16, TR_F16}[type], &p),
                                 TR_OK);
                assert_true(p.scratch_count == n);
                tr_prepare_sample(&p, 0, (tr_elem)e, raw, 0, scratch,
                                  type ? (void *)half : (void *)out);
                for (size_t k = 0; k < n; k++) {
                    size_t channel = k / (n / c), in = k % (n / c);
                    if (cases[t].ndim == 2) channel = k % (size_t)cases[t].dims[1];
                    float mean = (float)w.mean[cases[t].nstats > 1 ? channel : 0];
                    size_t at =
                        cases[t].ndim == 3 ? in * c + channel : k; /* stored channels-last */
                    want[at] = ((float)(k % 100) - mean) / (float)w.std[0];
                }
                for (size_t k = 0; k < n; k++) {
                    if (type)
                        assert_int_equal(half[k], type == 2 ? tr_f32_to_f16(want[k])
                                                            : tr_f32_to_bf16(want[k]));
                    else
                        assert_true(out[k] == want[k]);
                }
                tr_prepare_fini(&p);
            }
            world_close(&w);
        }
    }
}

/* Crop and flip of sample `ordinal` as torchvision has them: pad the raw image with zeros, cut,
 * mirror, then normalize. */
static void reference(const world *w, uint64_t ordinal, const uint8_t *raw, int64_t c, int64_t h,
                      int64_t wd, float *out)
{
    int64_t pad = w->c.data.augment.crop;
    tr_philox r = tr_philox_at((uint64_t)w->c.seed, TR_RNG_AUGMENT, 0, ordinal, 0);
    int64_t top = (int64_t)((r.v[0] * (uint64_t)(2 * pad + 1)) >> 32);
    int64_t left = (int64_t)((r.v[1] * (uint64_t)(2 * pad + 1)) >> 32);
    bool mirror = w->c.data.augment.flip && r.v[2] >> 31;
    for (int64_t k = 0; k < c; k++) {
        for (int64_t y = 0; y < h; y++) {
            for (int64_t x = 0; x < wd; x++) {
                int64_t sy = top + y - pad, sx = left + (mirror ? wd - 1 - x : x) - pad;
                bool inside = sy >= 0 && sy < h && sx >= 0 && sx < wd;
                float v = inside ? (float)raw[(k * h + sy) * wd + sx] : 0.0f;
                out[(y * wd + x) * c + k] = (v - (float)w->mean[k]) / (float)w->std[k];
            }
        }
    }
}

/* Padding as large as an image's shorter side: some crops would hold nothing of it. */
static void crop_beyond_the_image(void **state)
{
    (void)state;
    world w;
    tr_prepare p;
    world_open(&w, 3, (int64_t[]){1, 5, 7}, 3);
    w.c.data.augment.crop = 5;
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "5 pixels of padding for an image of 5 x 7"));
    assert_int_equal(tr_prepare_init(&w.c, &w.m, false, TR_F32, &p),
                     TR_OK); /* evaluations do not crop */
    tr_prepare_fini(&p);
    world_close(&w);
}

static void augmentation(void **state)
{
    (void)state;
    uint8_t raw[3 * 5 * 7];
    for (size_t k = 0; k < sizeof raw; k++) raw[k] = (uint8_t)(k + 1);
    for (int64_t c = 1; c <= 3; c += 2) {
        for (int64_t crop = 0; crop < 5; crop += crop ? crop : 1) {
            for (int flip = 0; flip < 2; flip++) {
                world w;
                world_open(&w, 3, (int64_t[]){c, 5, 7}, 3);
                for (int i = 0; i < 8; i++) w.mean[i] = 10.0 * i + 1, w.std[i] = 2.0 + i;
                normalize_by(&w, (size_t)c, (size_t)c, NULL);
                w.c.data.augment.crop = crop;
                w.c.data.augment.flip = flip;
                tr_prepare p, eval;
                float scratch[2 * sizeof raw], out[sizeof raw], want[sizeof raw];
                tr_bf16 half[sizeof raw];
                size_t n = (size_t)c * 35;
                int moved = 0;
                assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
                for (uint64_t ordinal = 0; ordinal < 100; ordinal++) {
                    reference(&w, ordinal, raw, c, 5, 7, want);
                    p.dtype = TR_F32;
                    tr_prepare_sample(&p, 0, TR_ELEM_U8, raw, ordinal, scratch, out);
                    assert_memory_equal(out, want, n * 4);
                    p.dtype = TR_BF16;
                    tr_prepare_sample(&p, 0, TR_ELEM_U8, raw, ordinal, scratch, half);
                    for (size_t k = 0; k < n; k++)
                        assert_int_equal(half[k], tr_f32_to_bf16(want[k]));
                    p.dtype = TR_F16;
                    tr_prepare_sample(&p, 0, TR_ELEM_U8, raw, ordinal, scratch, half);
                    for (size_t k = 0; k < n; k++)
                        assert_int_equal(half[k], tr_f32_to_f16(want[k]));
                    w.c.data.augment.crop = 0;
                    w.c.data.augment.flip = false;
                    reference(&w, ordinal, raw, c, 5, 7, out);
                    moved += memcmp(out, want, n * 4) != 0;
                    w.c.data.augment.crop = crop;
                    w.c.data.augment.flip = flip;
                }
                assert_true(crop == 0 && !flip ? moved == 0 : moved > 20);
                if (flip && crop == 0) assert_true(moved < 80); /* about half */
                assert_int_equal(tr_prepare_init(&w.c, &w.m, false, TR_F32, &eval), TR_OK);
                assert_true(eval.crop == 0 && !eval.flip);
                tr_prepare_fini(&eval);
                tr_prepare_fini(&p);
                world_close(&w);
            }
        }
    }
}

/* Nearest of the two neighbours, ties to the even one: decided in double, where both are exact. */
static void bf16_rounding(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200000; i++) {
        float f;
        uint32_t bits = tr_philox_at(1, TR_RNG_TEST, 0, i, 0).v[0];
        if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u; /* a tie */
        memcpy(&f, &bits, 4);
        tr_bf16 got;
        tr_round_bf16(&f, 1, &got);
        if (isnan(f)) {
            assert_true(isnan(tr_bf16_to_f32(got)));
            continue;
        }
        if (isinf(f) || (bits & 0x7f800000u) == 0x7f000000u) continue; /* near overflow: below */
        double low = (double)tr_bf16_to_f32((tr_bf16)(bits >> 16));
        double high = (double)tr_bf16_to_f32((tr_bf16)((bits >> 16) + 1));
        double a = fabs((double)f - low), b = fabs(high - (double)f);
        tr_bf16 want = (tr_bf16)((bits >> 16) + (b < a || (a == b && (bits >> 16 & 1))));
        assert_int_equal(got, want);
    }
    const float edges[] = {0.0f,        -0.0f,       INFINITY,       -INFINITY,
                           0x1.fep127f, 0x1.ffp127f, 0x1.fefffep127f};
    const tr_bf16 want[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7f7f, 0x7f80, 0x7f7f};
    tr_bf16 got[TR_COUNT(edges)];
    tr_round_bf16(edges, TR_COUNT(edges), got);
    for (size_t k = 0; k < TR_COUNT(edges); k++) assert_int_equal(got[k], want[k]);
}

/* Of an image and a vector the one that is named is normalized, the other taken as it is; which one
 * is meant must be said. */
static void beside_images(void **state)
{
    (void)state;
    world w;
    world_open(&w, 3, (int64_t[]){2, 2, 2}, 3);
    w.m.ninputs = 2;
    w.inputs[1].ndim = 1;
    w.inputs[1].dims[0] = 3;
    snprintf(w.inputs[0].name, sizeof w.inputs[0].name, "photo");
    snprintf(w.inputs[1].name, sizeof w.inputs[1].name, "facts");
    w.mean[0] = 4, w.mean[1] = 5, w.mean[2] = 6;
    w.c.data.augment.flip = true;
    tr_prepare p;
    float scratch[16], out[8];
    normalize_by(&w, 1, 0, NULL);
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "\"photo\" is an image, \"facts\" is not: say which one is meant, "
                           "{photo: {mean: ..., std: ...}}, or both"));
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_CONFIG);
    normalize_by(&w, 2, 0, "photo");
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_OK);
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
    tr_prepare_sample(&p, 1, TR_ELEM_I16, (int16_t[]){-1, 0, 7}, 3, scratch, out);
    assert_true(out[0] == -1 && out[1] == 0 && out[2] == 7);
    tr_prepare_sample(&p, 0, TR_ELEM_U8, (uint8_t[]){4, 4, 4, 4, 5, 5, 5, 5}, 3, scratch, out);
    for (int k = 0; k < 8; k++) assert_true(out[k] == 0);
    tr_prepare_fini(&p);
    normalize_by(&w, 2, 0, "facts");
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "data.normalize.facts.mean: 2 values, expected 1 or one for each of "
                           "the 3 features of the model's input \"facts\""));
    normalize_by(&w, 3, 0, "facts");
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
    tr_prepare_sample(&p, 1, TR_ELEM_I16, (int16_t[]){-1, 0, 7}, 3, scratch, out);
    assert_true(out[0] == -5 && out[1] == -5 && out[2] == 1);
    for (uint64_t i = 0; i < 8; i++) { /* flipped or not, each is there as it is */
        const uint8_t raw[] = {1, 2, 3, 4, 5, 6, 7, 8};
        float sum = 0;
        tr_prepare_sample(&p, 0, TR_ELEM_U8, raw, i, scratch, out);
        for (int k = 0; k < 8; k++) sum += out[k];
        assert_true(sum == 36 && (out[0] == 1 || out[0] == 2));
    }
    tr_prepare_fini(&p);
    world_close(&w);
}

/* Numbers far from 0 beside how they differ: the mean is subtracted before float32 takes their last
 * digits. */
static void far_from_zero(void **state)
{
    (void)state;
    enum { N = 4 };
    const double first = 1700000038912.0;
    double x[N], scratch[2 * N];
    int64_t whole[N];
    float out[N];
    tr_bf16 half[N];
    for (int i = 0; i < N; i++) x[i] = (double)(whole[i] = (int64_t)first + 100 * i);
    for (size_t stats = 1; stats <= N; stats += N - 1) {
        world w;
        tr_prepare p;
        world_open(&w, 1, (int64_t[]){N}, 2);
        for (int i = 0; i < N; i++) w.mean[i] = first, w.std[i] = 4;
        normalize_by(&w, stats, 1, NULL);
        assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
        for (int e = 0; e < 2; e++) {
            const void *raw = e ? (const void *)x : (const void *)whole;
            const tr_elem elem = e ? TR_ELEM_F64 : TR_ELEM_I64;
            p.dtype = TR_F32;
            tr_prepare_sample(&p, 0, elem, raw, 0, (float *)scratch, out);
            for (int i = 0; i < N; i++) assert_true(out[i] == 25.0f * (float)i);
            p.dtype = TR_BF16;
            tr_prepare_sample(&p, 0, elem, raw, 0, (float *)scratch, half);
            for (int i = 0; i < N; i++) assert_int_equal(half[i], tr_f32_to_bf16(25.0f * (float)i));
        }
        tr_prepare_fini(&p);
        world_close(&w);
    }
}

/* An image's values are normalized by channel, as inputs are, found by channel, and stored
 * channels-last. */
static void image_targets(void **state)
{
    (void)state;
    enum { N = 5, CHANNELS = 2, H = 2, W = 3, COUNT = CHANNELS * H * W };
    const hsize_t x_dims[] = {N, 4}, y_dims[] = {N, CHANNELS, H, W};
    float x[N * 4] = {0}, y[N][CHANNELS][H * W], scratch[COUNT], out[COUNT];
    tr_moments found[CHANNELS];
    world w;
    world_open(&w, 1, (int64_t[]){4}, 0);
    world_targets(&w, 3, (int64_t[]){CHANNELS, H, W});
    for (int i = 0; i < N * COUNT; i++)
        (&y[0][0][0])[i] = (float)(i * 7 % 11 + (i / (H * W) % 2 ? 1000 : 0));
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, x_dims, 0, 0, x);
    write_h5(&w, "a.h5", "y", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 4, y_dims, 0, 0, y);
    w.c.data.train = (tr_source_config){.present = true, .path = "a.h5", .labels = "y"};
    w.c.data.train.inputs = scalar(&w, 0, "x");
    w.mean[0] = 5, w.mean[1] = 1005, w.std[0] = 2, w.std[1] = 3;
    w.c.data.normalize_targets.stats.mean = (tr_reals){CHANNELS, w.mean};
    w.c.data.normalize_targets.stats.std = (tr_reals){CHANNELS, w.std};
    tr_dataset *d = opens(&w);
    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(tr_targets_prepare(d, y[i], i, scratch, out), TR_OK);
        for (int p = 0; p < H * W; p++)
            for (int c = 0; c < CHANNELS; c++)
                assert_true(out[p * CHANNELS + c] ==
                            (y[i][c][p] - (float)w.mean[c]) / (float)w.std[c]);
    }
    assert_int_equal(tr_dataset_target_places(&w.m), CHANNELS);
    assert_int_equal(tr_dataset_moments(d, &w.m, -1, (tr_range){0, N}, found), TR_OK);
    for (int c = 0; c < CHANNELS; c++) {
        double mean = 0;
        for (int i = 0; i < N; i++)
            for (int p = 0; p < H * W; p++) mean += (double)y[i][c][p] / (N * H * W);
        assert_true(found[c].count == N * H * W && fabs(found[c].mean - mean) < 1e-9);
    }
    tr_dataset_close(d);
    w.c.data.normalize_targets.stats.mean.count = W;
    fails(&w, TR_CONFIG, "normalize_targets.mean: 3 values", "each of the 2 channels", NULL);
    w.c.data.predict = w.c.data.train;
    assert_int_equal(tr_dataset_open(&w.c, &w.c.data.predict, &w.m, &d), TR_CONFIG);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_tensor),          cmocka_unit_test(normalization),
        cmocka_unit_test(crop_beyond_the_image), cmocka_unit_test(augmentation),
        cmocka_unit_test(bf16_rounding),         cmocka_unit_test(beside_images),
        cmocka_unit_test(image_targets),         cmocka_unit_test(far_from_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
