/* Images against Pillow and torchvision (tests/golden/images.h5): files decoded, grey made of
 * colours, turned by EXIF, resized, cropped: the same bits, with rows resized before columns, and
 * within 1 of whatever order Pillow chose. Colours and places of float images: some tens of
 * roundings of 2^-24, where a hue's division by a small range may make them ten times more; 2e-5 of
 * the bound, 1. */
#include "helpers.h"

#include "runtime/data/augment.h"
#include "runtime/data/mix.h"
#include "tests/unit/groups.h"

#define FLOAT_TOLERANCE 2e-5

static hid_t file;

/* All of a dataset in `type`; dims: [4], of which *ndim. Freed by the caller. */
static void *read_set(hid_t at, const char *name, hid_t type, size_t size, int *ndim, hsize_t *dims)
{
    const hid_t d = H5Dopen2(at, name, H5P_DEFAULT), space = H5Dget_space(d);
    assert_true(d >= 0 && space >= 0);
    *ndim = H5Sget_simple_extent_dims(space, dims, NULL);
    void *v = calloc((size_t)H5Sget_simple_extent_npoints(space), size);
    assert_non_null(v);
    assert_true(H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
    H5Sclose(space);
    H5Dclose(d);
    return v;
}

static uint8_t *read_bytes(hid_t at, const char *name, int *ndim, hsize_t *dims)
{
    return read_set(at, name, H5T_NATIVE_UINT8, 1, ndim, dims);
}

/* How many numbers an attribute has; 0: there is none. */
static size_t read_attr(hid_t at, const char *name, double *out)
{
    if (H5Aexists(at, name) <= 0) return 0;
    const hid_t a = H5Aopen(at, name, H5P_DEFAULT), space = H5Aget_space(a);
    const size_t n = (size_t)H5Sget_simple_extent_npoints(space);
    if (n > 0) assert_true(H5Aread(a, H5T_NATIVE_DOUBLE, out) >= 0);
    H5Sclose(space);
    H5Aclose(a);
    return n;
}

/* Runs `one` on each group of a group. */
static void each(const char *group, void (*one)(hid_t at, const char *name), int least)
{
    const hid_t g = H5Gopen2(file, group, H5P_DEFAULT);
    assert_true(test_each_group(g, one) >= least);
    H5Gclose(g);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void decoded(hid_t at, const char *name)
{
    int ndim;
    hsize_t dims[4], n[4];
    uint8_t *bytes = read_bytes(at, "bytes", &ndim, n);
    tr_image_work work = {0};
    for (int channels = 1; channels <= 3; channels += 2) {
        uint8_t *want = read_bytes(at, channels == 3 ? "rgb" : "grey", &ndim, dims);
        tr_image image;
        if (tr_image_decode(name, bytes, n[0], channels, &work, &image) != TR_OK)
            fail_msg("%s: %s", name, tr_last_error()->text);
        if (image.height != (int64_t)dims[0] || image.width != (int64_t)dims[1] ||
            image.channels != channels)
            fail_msg("%s: %" PRId64 " x %" PRId64 " x %d", name, image.height, image.width,
                     image.channels);
        for (size_t i = 0; i < dims[0] * dims[1] * (size_t)channels; i++)
            if (image.pixels[i] != want[i])
                fail_msg("%s: value %zu is %d, expected %d", name, i, image.pixels[i], want[i]);
        free(want);
    }
    tr_image_work_free(&work);
    free(bytes);
}

static void files(void **state)
{
    (void)state;
    each("files", decoded, 25);
}

/* Every beginning of a file is refused, and every byte changed is, or gives an image: nothing is
 * made up, nothing breaks, nothing is left allocated. */
static void damaged(hid_t at, const char *name)
{
    int ndim;
    hsize_t n[4];
    uint8_t *bytes = read_bytes(at, "bytes", &ndim, n);
    const size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA);
    tr_image_work work = {0};
    tr_image image;
    /* what ends both formats carries no pixel: the last 12 bytes of PNG, the last 2 of JPEG */
    for (size_t cut = 0; cut + 2 < n[0]; cut += 1 + n[0] / 200) {
        const tr_status st = tr_image_decode(name, bytes, cut, 3, &work, &image);
        if (st != TR_DATA) fail_msg("%s: cut to %zu of %zu bytes: read", name, cut, (size_t)n[0]);
        assert_non_null(strstr(tr_last_error()->text, name));
    }
    for (uint32_t i = 0; i < 60; i++) {
        const tr_philox r = tr_philox_at(5, TR_RNG_TEST, 0, i, 0);
        uint8_t *b = &bytes[r.v[0] % n[0]];
        const uint8_t was = *b;
        *b = (uint8_t)r.v[1];
        const tr_status st = tr_image_decode(name, bytes, n[0], 1, &work, &image);
        assert_true(st == TR_OK || st == TR_DATA);
        *b = was;
    }
    tr_image_work_free(&work);
    assert_int_equal(held, tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA));
    free(bytes);
}

static void damage(void **state)
{
    (void)state;
    each("files", damaged, 25);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static void resized(hid_t at, const char *name)
{
    int ndim, to_ndim;
    hsize_t dims[4], to[4];
    double numbers[4];
    uint8_t *source = read_bytes(at, "source", &ndim, dims);
    uint8_t *want = read_bytes(at, "result", &to_ndim, to);
    const size_t C = ndim == 3 ? dims[2] : 1, area = to[0] * to[1];
    const tr_image image = {(int64_t)dims[0], (int64_t)dims[1], (int)C, source};
    uint8_t *got = calloc(area, C);
    tr_image_work work = {0};
    memset(got, 0xee, area * C);
    if (read_attr(at, "box", numbers) == 4) {
        const tr_image_resize r = {.from = {(int64_t)numbers[0], (int64_t)numbers[1],
                                            (int64_t)numbers[2], (int64_t)numbers[3]},
                                   .part = {0, 0, (int64_t)to[0], (int64_t)to[1]},
                                   .height = (int64_t)to[0],
                                   .width = (int64_t)to[1],
                                   .out_height = (int64_t)to[0],
                                   .out_width = (int64_t)to[1]};
        assert_int_equal(tr_image_resample(&image, &r, &work, got), TR_OK);
    } else {
        tr_image_fit fit = {.height = (int64_t)to[0], .width = (int64_t)to[1]};
        fit.nresize = read_attr(at, "resize", numbers);
        for (size_t i = 0; i < fit.nresize; i++) fit.resize[i] = (int64_t)numbers[i];
        assert_int_equal(read_attr(at, "crop", numbers), 1);
        fit.center_crop = numbers[0] != 0;
        if (tr_image_fit_plain(name, &image, &fit, &work, got) != TR_OK)
            fail_msg("%s: %s", name, tr_last_error()->text);
    }
    uint8_t *rows = read_bytes(at, "rows_first", &to_ndim, to);
    for (size_t p = 0; p < area; p++)
        for (size_t c = 0; c < C; c++) {
            const int v = got[c * area + p], w = want[p * C + c], r = rows[p * C + c];
            if (v != r || abs(v - w) > 1)
                fail_msg("%s: pixel %zu, channel %zu is %d, expected %d, %d by another order of "
                         "the passes",
                         name, p, c, v, r, w);
        }
    free(rows);
    tr_image_work_free(&work);
    free(got);
    free(source);
    free(want);
}

static void sizes(void **state)
{
    (void)state;
    each("resized", resized, 26);
}

/* ---- Changes --------------------------------------------------------------------------------- */

static void changed(hid_t at, const char *name)
{
    int ndim;
    hsize_t dims[4];
    double by[4], order[4];
    float *v = read_set(at, "source", H5T_NATIVE_FLOAT, sizeof *v, &ndim, dims);
    float *want = read_set(at, "result", H5T_NATIVE_FLOAT, sizeof *v, &ndim, dims);
    const int64_t C = (int64_t)dims[0], H = (int64_t)dims[1], W = (int64_t)dims[2];
    const size_t count = dims[0] * dims[1] * dims[2];
    if (read_attr(at, "by", by) == 4) {
        tr_jitter j = {0};
        assert_int_equal(read_attr(at, "order", order), 4);
        for (int k = 0; k < 4; k++) {
            j.on[k] = true;
            j.by[k] = (float)by[k];
            j.order[k] = (int)order[k];
        }
        tr_jitter_apply(&j, C, H * W, 1.0f, v);
    } else {
        tr_affine a;
        float *from = v;
        assert_true(read_attr(at, "degrees", &a.degrees) && read_attr(at, "right", &a.right) &&
                    read_attr(at, "down", &a.down) && read_attr(at, "scale", &a.scale));
        v = calloc(count, sizeof *v);
        tr_affine_apply(&a, C, H, W, from, v);
        free(from);
    }
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)v[i] - (double)want[i]) <= FLOAT_TOLERANCE))
            fail_msg("%s: value %zu is %.9g, expected %.9g", name, i, (double)v[i],
                     (double)want[i]);
    free(v);
    free(want);
}

static void changes(void **state)
{
    (void)state;
    each("changed", changed, 13);
}

/* ---- Mixing ---------------------------------------------------------------------------------- */

/* From (c, h, w) to (h, w, c). */
static void turn(const hsize_t *dims, const float *in, float *out)
{
    const size_t C = dims[1], area = dims[2] * dims[3];
    for (size_t i = 0; i < area; i++)
        for (size_t c = 0; c < C; c++) out[i * C + c] = in[c * area + i];
}

static tr_mix mix_of(hid_t at, const hsize_t *dims)
{
    double share, place[2], box[4], adjusted;
    assert_int_equal(read_attr(at, "share", &share), 1);
    if (read_attr(at, "place", place) != 2)
        return (tr_mix){.kind = TR_MIX_UP, .share = (float)share};
    const tr_mix x =
        tr_mix_cut(share, (int64_t)place[0], (int64_t)place[1], (int64_t)dims[2], (int64_t)dims[3]);
    assert_true(read_attr(at, "box", box) == 4 && read_attr(at, "adjusted", &adjusted) == 1);
    const int64_t got[4] = {x.box.top, x.box.left, x.box.height, x.box.width};
    for (int k = 0; k < 4; k++) assert_int_equal(got[k], (int64_t)box[k]);
    assert_true(fabs((double)x.share - adjusted) < 1e-7);
    return x;
}

static void mixed(hid_t at, const char *name)
{
    int ndim;
    hsize_t dims[4];
    float *source = read_set(at, "source", H5T_NATIVE_FLOAT, sizeof *source, &ndim, dims);
    float *want = read_set(at, "result", H5T_NATIVE_FLOAT, sizeof *want, &ndim, dims);
    const size_t N = dims[0], count = dims[1] * dims[2] * dims[3];
    const tr_mix x = mix_of(at, dims);
    tr_prepare p = {.ninputs = 1};
    float *v[3]; /* own, other, wanted */
    p.in[0].count = count;
    p.in[0].c = (int64_t)dims[1];
    p.in[0].h = (int64_t)dims[2];
    p.in[0].w = (int64_t)dims[3];
    for (int k = 0; k < 3; k++) assert_non_null(v[k] = calloc(count, sizeof *v[k]));
    for (size_t n = 0; n < N; n++) {
        turn(dims, source + n * count, v[0]);
        turn(dims, source + (n + N - 1) % N * count, v[1]);
        turn(dims, want + n * count, v[2]);
        tr_mix_input(&x, &p, 0, v[0], v[1]);
        for (size_t i = 0; i < count; i++)
            if (!(fabs((double)v[0][i] - (double)v[2][i]) <= 2e-7))
                fail_msg("%s: value %zu of image %zu is %.9g, expected %.9g", name, i, n,
                         (double)v[0][i], (double)v[2][i]);
    }
    for (int k = 0; k < 3; k++) free(v[k]);
    free(source);
    free(want);
}

static void mixes(void **state)
{
    (void)state;
    each("mixed", mixed, 6);
}

int main(void)
{
    file = H5Fopen(TR_SOURCE_DIR "/tests/golden/images.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),   cmocka_unit_test(damage), cmocka_unit_test(sizes),
        cmocka_unit_test(changes), cmocka_unit_test(mixes),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (file >= 0) H5Fclose(file);
    return failed;
}
