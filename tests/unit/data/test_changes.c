/* The changes of data.augment: composed as their draws say, draws by torchvision's laws, where they
 * do not apply. What each does to an image is compared with torchvision in test_image_golden.c. */
#include "helpers.h"

#include "runtime/data/change.h"

#define SIDE 12

/* As torchvision's RandomErasing.make_params draws: an area, uniform; height by width, uniform in
 * its logarithm; a place, uniform. Means of 4000: within five of their deviations. */
static void erasing_law(void **state)
{
    (void)state;
    enum { N = 4000, H = 400, W = 300 };
    const tr_erasing_range r = {.p = 1, .scale = {0.05, 0.1}, .ratio = {2, 5}};
    double area = 0, ratio = 0, top = 0, left = 0;
    for (uint64_t i = 0; i < N; i++) {
        tr_box b;
        assert_true(tr_erasing_draw(&r, H, W, 3, i, &b));
        const double part = (double)(b.height * b.width) / (H * W),
                     by = (double)b.height / (double)b.width;
        assert_true(part > 0.049 && part < 0.101 && by > 1.97 && by < 5.07);
        assert_true(b.top >= 0 && b.left >= 0 && b.top + b.height <= H && b.left + b.width <= W);
        area += part / N;
        ratio += log(by) / N;
        top += (double)b.top / (double)(H - b.height) / N;
        left += (double)b.left / (double)(W - b.width) / N;
    }
    assert_true(fabs(area - 0.075) < 0.0012);
    assert_true(fabs(ratio - log(10) / 2) < 0.022);
    assert_true(fabs(top - 0.5) < 0.023 && fabs(left - 0.5) < 0.023);
}

/* As RandomAffine.make_params: the first part of translate is of the width, in whole pixels; all
 * uniform. */
static void affine_law(void **state)
{
    (void)state;
    enum { N = 4000, H = 50, W = 200 };
    const tr_affine_range r = {.degrees = 30, .scale = {0.5, 2}, .translate = {0.3, 0.1}};
    double mean[4] = {0}, square[4] = {0};
    for (uint64_t i = 0; i < N; i++) {
        const tr_affine a = tr_affine_draw(&r, H, W, 3, i);
        const double v[4] = {a.degrees / 30, a.right / 60, a.down / 5, (a.scale - 1.25) / 0.75};
        assert_true(a.right == nearbyint(a.right) && a.down == nearbyint(a.down));
        for (int k = 0; k < 4; k++) {
            assert_true(fabs(v[k]) <= 1);
            mean[k] += v[k] / N;
            square[k] += v[k] * v[k] / N;
        }
    }
    for (int k = 0; k < 4;
         k++) /* of -1 to 1: 0 and 1/3, the latter of whole pixels a little more */
        assert_true(fabs(mean[k]) < 0.046 && fabs(square[k] - 1.0 / 3) < 0.03);
}

/* What comes out is the draws' parameters applied one after the other, of which the changes
 * themselves are compared with torchvision elsewhere. */
static void composed(void **state)
{
    (void)state;
    enum { COUNT = 3 * SIDE * SIDE };
    uint8_t raw[COUNT];
    float a[COUNT], b[COUNT], scratch[2 * COUNT], out[COUNT];
    int erased = 0;
    tr_prepare p;
    world w;
    world_open(&w, 3, (int64_t[]){3, SIDE, SIDE}, 3);
    all_changes(&w);
    w.c.data.augment.flip = false;
    w.mean[0] = 100;
    w.std[0] = 50;
    normalize_by(&w, 1, 1, NULL);
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
    const tr_affine_range range = {30, {0.7, 1.4}, {0.2, 0.3}};
    const tr_erasing_range rectangles = {0.7, {0.05, 0.3}, {0.4, 2.5}};
    for (int i = 0; i < COUNT; i++) raw[i] = (uint8_t)(i * 37 + i / 11);
    for (uint64_t ordinal = 0; ordinal < 200; ordinal++) {
        tr_box box = {0};
        tr_elem_to_f32(TR_ELEM_U8, raw, COUNT, a);
        const tr_jitter j = tr_jitter_draw(&w.c.data.augment.jitter, 7, ordinal);
        const tr_affine f = tr_affine_draw(&range, SIDE, SIDE, 7, ordinal);
        assert_true(j.by[0] >= 0.6f && j.by[0] <= 1.4f && j.by[3] >= -0.1f && j.by[3] <= 0.1f);
        assert_int_equal(1 << j.order[0] | 1 << j.order[1] | 1 << j.order[2] | 1 << j.order[3], 15);
        assert_true(fabs(f.degrees) <= 30 && fabs(f.right) <= 2 && fabs(f.down) <= 4 &&
                    f.scale >= 0.7 && f.scale <= 1.4);
        tr_jitter_apply(&j, 3, SIDE * SIDE, 255, a);
        tr_affine_apply(&f, 3, SIDE, SIDE, a, b);
        if (tr_erasing_draw(&rectangles, SIDE, SIDE, 7, ordinal, &box)) erased++;
        assert_true(box.top >= 0 && box.left >= 0 && box.top + box.height <= SIDE &&
                    box.left + box.width <= SIDE);
        tr_prepare_sample(&p, 0, TR_ELEM_U8, raw, ordinal, scratch, out);
        for (int64_t y = 0; y < SIDE; y++)
            for (int64_t x = 0; x < SIDE; x++)
                for (int64_t c = 0; c < 3; c++) {
                    const bool in = y >= box.top && y < box.top + box.height && x >= box.left &&
                                    x < box.left + box.width;
                    const float want = in ? -3.0f : (b[(c * SIDE + y) * SIDE + x] - 100.0f) / 50.0f;
                    assert_true(out[(y * SIDE + x) * 3 + c] == want);
                }
    }
    assert_true(erased > 110 && erased < 170); /* 0.7 of 200 */
    tr_prepare_fini(&p);
    world_close(&w);
}

static void random_boxes(void **state)
{
    (void)state;
    const tr_image_fit fit = {.scale = {0.3, 0.9}, .ratio = {0.5, 2}};
    double area = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        const tr_box b = tr_image_random_box(&fit, 60, 90, 3, i);
        assert_true(b.top >= 0 && b.left >= 0 && b.height > 0 && b.width > 0);
        assert_true(b.top + b.height <= 60 && b.left + b.width <= 90);
        const double part = (double)(b.height * b.width) / 5400;
        assert_true(part > 0.28 && part < 0.92);
        assert_true((double)b.width / (double)b.height < 2.1 &&
                    (double)b.width / (double)b.height > 0.48);
        area += part;
    }
    assert_true(area / 2000 > 0.45 && area / 2000 < 0.62);
    /* the ratio is the width by the height */
    for (uint64_t i = 0; i < 200; i++) {
        const tr_image_fit wide = {.scale = {0.1, 0.2}, .ratio = {2, 3}};
        const tr_box b = tr_image_random_box(&wide, 300, 300, 3, i);
        assert_true(b.width > 1.9 * (double)b.height && b.width < 3.1 * (double)b.height);
    }
    /* no part of such a strip has the ratio: the middle, as torchvision falls back to */
    const tr_box b = tr_image_random_box(&fit, 2, 100, 3, 1);
    assert_true(b.top == 0 && b.height == 2 && b.width == 4 && b.left == 48);
}

static void not_applicable(void **state)
{
    (void)state;
    world w;
    world_open(&w, 3, (int64_t[]){2, SIDE, SIDE}, 3);
    w.c.data.augment.jitter.present = true;
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "color_jitter"));
    world_close(&w);
    world_open(&w, 1, (int64_t[]){6}, 3);
    w.c.data.augment.rotate = 5;
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "data.augment"));
    world_close(&w);
}

/* What would part an image from a target that is one: values, or a class, for each pixel. Labels of
 * a sequence's rows are none. */
static void image_target(void **state)
{
    (void)state;
    static double to[2] = {0.1, 0.2};
    world values, labels;
    world_open(&values, 3, (int64_t[]){3, SIDE, SIDE}, 0);
    world_targets(&values, 3, (int64_t[]){1, SIDE, SIDE});
    world_open(&labels, 3, (int64_t[]){3, SIDE, SIDE}, 2);
    labels.m.rows = SIDE * SIDE;
    labels.m.ndim_target = 2;
    labels.m.target_dims[0] = labels.m.target_dims[1] = SIDE;
    for (int k = 0; k < 10; k++) {
        static const char *const keys[] = {"crop", "flip", "rotate", "scale", "translate"};
        world *w = k < 5 ? &values : &labels;
        const char *key = keys[k % 5];
        const int ndim = w->m.ndim_target;
        char want[96];
        tr_config c = w->c;
        c.data.augment.jitter = (tr_jitter_config){true, 0.4, 0.5, 0.6, 0.1};
        assert_int_equal(tr_data_check(&c, &w->m), TR_OK);
        if (strcmp(key, "crop") == 0) c.data.augment.crop = 1;
        if (strcmp(key, "flip") == 0) c.data.augment.flip = true;
        if (strcmp(key, "rotate") == 0) c.data.augment.rotate = 45;
        if (strcmp(key, "scale") == 0) c.data.augment.scale = (tr_reals){2, to};
        if (strcmp(key, "translate") == 0) c.data.augment.translate = (tr_reals){2, to};
        snprintf(want, sizeof want, "data.augment.%s: the target is an image%s", key,
                 k < 5 ? ", which" : " (a class for each pixel)");
        assert_int_equal(tr_data_check(&c, &w->m), TR_CONFIG);
        assert_non_null(strstr(tr_last_error()->text, want));
        w->m.ndim_target = 1;
        w->m.target_layout = TR_LAYOUT_PLAIN;
        assert_int_equal(tr_data_check(&c, &w->m), TR_OK);
        w->m.ndim_target = ndim;
        if (k < 5) w->m.target_layout = TR_LAYOUT_CHANNELS_LAST;
    }
    world_close(&values);
    world_close(&labels);
}

/* A pixel that is no colour has no hue: it stays, and so do its neighbours. */
static void no_numbers(void **state)
{
    (void)state;
    for (int bad = 1; bad < 8; bad++) { /* which of the channels */
        float v[6] = {0.2f, 0.2f, 0.5f, 0.5f, 0.9f, 0.9f}, one[3] = {0.2f, 0.5f, 0.9f};
        tr_jitter j = {.on = {[TR_HUE] = true}, .by = {[TR_HUE] = 0.25f}, .order = {0, 1, 2, 3}};
        for (int c = 0; c < 3; c++)
            if (bad >> c & 1) v[2 * c] = NAN;
        tr_jitter_apply(&j, 3, 1, 1, one);
        tr_jitter_apply(&j, 3, 2, 1, v);
        for (int c = 0; c < 3; c++) {
            const float was[] = {0.2f, 0.5f, 0.9f};
            assert_true(bad >> c & 1 ? isnan(v[2 * c]) : v[2 * c] == was[c]);
            assert_true(v[2 * c + 1] == one[c]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(erasing_law),    cmocka_unit_test(affine_law),
        cmocka_unit_test(composed),       cmocka_unit_test(random_boxes),
        cmocka_unit_test(not_applicable), cmocka_unit_test(image_target),
        cmocka_unit_test(no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
