/* Folders of images: which files are which samples, classes by name, what is refused; and the changes of data.augment:
 * the same on any number of ranks and threads, and after a start in the middle. */
#include "helpers.h"

#include "runtime/data/change.h"

#define SIDE 12

/* Puts a file of tests/golden/images.h5 there. */
static void put_image(const world *w, const char *image, const char *as)
{
    static uint8_t bytes[65536];
    char name[64];
    const hid_t f = H5Fopen(TR_SOURCE_DIR "/tests/golden/images.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
    snprintf(name, sizeof name, "files/%s/bytes", image);
    const hid_t d = H5Dopen2(f, name, H5P_DEFAULT), space = H5Dget_space(d);
    const size_t n = (size_t)H5Sget_simple_extent_npoints(space);
    assert_true(d >= 0 && n <= sizeof bytes);
    assert_true(H5Dread(d, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes) >= 0);
    H5Sclose(space);
    H5Dclose(d);
    H5Fclose(f);
    write_bytes(w, as, bytes, n);
}

static void make_folder(const world *w, const char *name)
{
    assert_int_equal(mkdir(in_folder(w, name), 0755), 0);
}

/* Three classes, seven images. */
static void open_world(world *w)
{
    static const char *const folders[] = {"x",       "x/cat",   "x/cat-2",      "x/ant",
                                          "x/cat/b", "x/.left", "x/cat/.hidden"};
    static const char *const files[][2] = {
        {"rgb.png", "x/cat/z.png"},        {"j420.jpg", "x/cat/b/a.JPG"},
        {"exif6.jpg", "x/cat/b/B.jpeg"},   {"grey.png", "x/ant/1.png"},
        {"interlaced.png", "x/ant/0.png"}, {"cmyk.jpg", "x/cat-2/only.jpg"},
        {"rgb16.png", "x/cat/a.png"}};
    world_open(w, 3, (int64_t[]){3, SIDE, SIDE}, 3);
    for (size_t i = 0; i < TR_COUNT(folders); i++) make_folder(w, folders[i]);
    for (size_t i = 0; i < TR_COUNT(files); i++) put_image(w, files[i][0], files[i][1]);
    put_image(w, "rgb.png", "x/cat/._z.png");
    write_bytes(w, "x/cat/notes.txt", "x", 1);
    w->c.data.train.path = "x";
    w->c.data.image.resize = (tr_ints){1, {SIDE + 1}};
    w->c.data.image.center_crop = true;
}

static void order(void **state)
{
    (void)state;
    static const char *const files[] = {"ant/0.png",    "ant/1.png",   "cat/a.png",     "cat/z.png",
                                        "cat/b/B.jpeg", "cat/b/a.JPG", "cat-2/only.jpg"};
    static const int labels[] = {0, 0, 1, 1, 1, 1, 2};
    world w;
    open_world(&w);
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_samples(d), 7);
    for (uint64_t i = 0; i < 7; i++) {
        char where[512];
        assert_string_equal(tr_dataset_file(d, i), files[i]);
        assert_int_equal((int)target_at(d, i, 0), labels[i]);
        tr_dataset_where(d, i, where, sizeof where);
        assert_non_null(strstr(where, files[i]));
    }
    tr_dataset_close(d);
    world_close(&w);
}

/* The same pixels with and without a cache, before and after they are in it, and of parts of the samples. */
static void cached(void **state)
{
    (void)state;
    double seen[7];
    world w;
    open_world(&w);
    for (int round = 0; round < 3; round++) {
        w.c.data.cache_mb = round == 1 ? 0 : 64;
        w.c.data.train.offset = round == 2 ? 2 : 0;
        tr_dataset *d = opens(&w);
        assert_true(round == 1 ? tr_dataset_held(d) < 1000 : tr_dataset_held(d) > 7 * 432);
        for (int twice = 0; twice < 2; twice++)
            for (uint64_t i = 0; i < tr_dataset_samples(d); i++) {
                double sum = 0;
                for (size_t e = 0; e < 3 * SIDE * SIDE; e++)
                    sum += (double)(e + 1) * input_at(d, 0, i, e);
                if (round == 0 && !twice)
                    seen[i] = sum;
                else
                    assert_true(seen[i + (round == 2 ? 2 : 0)] == sum);
            }
        tr_dataset_close(d);
    }
    world_close(&w);
}

static void refused(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    tr_node *names[3] = {scalar(&w, 0, "ant"), scalar(&w, 1, "cat"), scalar(&w, 2, "dog")};
    tr_node list = {.kind = TR_NODE_LIST, .count = 3, .values = names};
    w.c.data.class_names = &list;
    fails(&w, TR_DATA, "x/cat-2", "no class has this name", "the nearest is \"cat\"", NULL);
    list.count = 2;
    fails(&w, TR_CONFIG, "2 classes", "expected 3", NULL);
    w.c.data.class_names = NULL;
    make_folder(&w, "x/dog");
    fails(&w, TR_DATA, "x/dog/: has no image", NULL);
    w.c.data.train.path = "x/ant";
    w.c.data.train.format = TR_FORMAT_FOLDER;
    fails(&w, TR_DATA, "has no folder in it", NULL);
    w.c.data.train.path = "y";
    fails(&w, TR_DATA, "y: No such file", NULL);
    world_close(&w);
}

static void bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *words[3];
        size_t n;
    } bad[] = {{"", {"1.png", "is empty"}, 0},
               {"GIF89a..", {"1.png", "47 49 46", "expected a PNG or JPEG image"}, 8},
               {"\x89PNG\r\n\x1a\n", {"1.png", "PNG: ends too early"}, 8},
               {"\xff\xd8\xff\xd9", {"1.png", "JPEG:"}, 4}};
    world w;
    uint8_t to[3 * SIDE * SIDE];
    open_world(&w);
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        write_bytes(&w, "x/ant/1.png", bad[i].bytes, bad[i].n);
        tr_dataset *d = opens(&w);
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        assert_int_equal(d->inputs[0]->read(d->inputs[0], 0, 1, to), TR_OK);
        assert_int_equal(d->inputs[0]->read(d->inputs[0], 1, 1, to), TR_DATA);
        for (size_t k = 0; k < 3 && bad[i].words[k]; k++)
            assert_non_null(strstr(tr_last_error()->text, bad[i].words[k]));
        assert_int_equal(tr_dataset_check_files(d, f), TR_DATA);
        assert_non_null(strstr(tr_last_error()->text, "1 of 7 files are bad"));
        fclose(f);
        assert_non_null(strstr(text, "# bad: "));
        assert_non_null(strstr(text, "ant/1.png"));
        free(text);
        tr_dataset_close(d);
    }
    put_image(&w, "grey.png", "x/ant/1.png");
    w.c.data.image.center_crop = false;
    tr_dataset *d = opens(&w);
    assert_int_equal(d->inputs[0]->read(d->inputs[0], 1, 1, to), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "15 x 13 pixels"));
    assert_non_null(strstr(tr_last_error()->text, "expected 12 x 12"));
    tr_dataset_close(d);
    world_close(&w);
}

/* With a random part for training and nothing for the rest, the rest is the whole image, resized. */
static void resized_plain(void **state)
{
    (void)state;
    uint8_t got[3 * SIDE * SIDE], want[3 * SIDE * SIDE];
    world w;
    open_world(&w);
    w.c.data.image.resize.count = 0;
    w.c.data.image.center_crop = false;
    w.c.data.augment.resized_crop =
        (tr_resized_crop_config){true, {2, (double[]){0.3, 0.9}}, {2, (double[]){0.5, 2}}};
    for (uint64_t i = 0; i < 7; i++) {
        tr_dataset *d = opens(&w);
        assert_int_equal(d->inputs[0]->read(d->inputs[0], i, 1, got), TR_OK);
        tr_dataset_close(d);
        tr_config plain = w.c;
        plain.data.augment.resized_crop.present = false;
        plain.data.image.resize = (tr_ints){2, {SIDE, SIDE}};
        assert_int_equal(tr_dataset_open(&plain, &plain.data.train, &w.m, &d), TR_OK);
        assert_int_equal(d->inputs[0]->read(d->inputs[0], i, 1, want), TR_OK);
        assert_memory_equal(got, want, sizeof got);
        tr_dataset_close(d);
    }
    world_close(&w);
}

/* A link that leads nowhere is one more other file, unless it should be an image; names are UTF-8. */
static void names(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    assert_int_equal(symlink("nowhere", in_folder(&w, "x/left")), 0);
    assert_int_equal(symlink("nowhere", in_folder(&w, "x/cat/left")), 0);
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_samples(d), 7);
    tr_dataset_close(d);
    assert_int_equal(symlink("nowhere", in_folder(&w, "x/cat/left.png")), 0);
    fails(&w, TR_DATA, "x/cat/left.png: No such file", NULL);
    assert_int_equal(unlink(in_folder(&w, "x/cat/left.png")), 0);
    put_image(&w, "rgb.png", "x/cat/\xff.png");
    fails(&w, TR_DATA, "x/cat/\xff.png", "not UTF-8", NULL);
    assert_int_equal(unlink(in_folder(&w, "x/cat/\xff.png")), 0);
    put_image(&w, "rgb.png", "x/cat/\xc3\xa9.png");
    tr_dataset_close(opens(&w));
    make_folder(&w, "x/\xff");
    fails(&w, TR_DATA, "x/\xff", "not UTF-8", NULL);
    world_close(&w);
}

/* ---- Changes --------------------------------------------------------------------------------------------- */

static double pairs[4][2] = {{0.3, 0.9}, {0.5, 2}, {0.05, 0.3}, {0.4, 2.5}}, scales[2] = {0.7, 1.4},
              places[2] = {0.2, 0.3}, value[1] = {-3};

static void all_changes(world *w)
{
    w->c.data.augment.flip = true;
    w->c.data.augment.rotate = 30;
    w->c.data.augment.scale = (tr_reals){2, scales};
    w->c.data.augment.translate = (tr_reals){2, places};
    w->c.data.augment.jitter = (tr_jitter_config){true, 0.4, 0.5, 0.6, 0.1};
    w->c.data.augment.erasing =
        (tr_erasing_config){true, 0.7, {2, pairs[2]}, {2, pairs[3]}, {1, value}};
}

/* The values of ranks' shares of `count` micro-batches from a step on, in order. */
static void record(const world *w, tr_dataset *d, int rank, int size, int workers, uint64_t step,
                   uint64_t steps, float *out)
{
    const tr_loader_options o = {.config = &w->c,
                                 .model = &w->m,
                                 .dataset = d,
                                 .train = true,
                                 .batch = 5,
                                 .micro_batches = 1,
                                 .rank = rank,
                                 .size = size,
                                 .dtype = TR_F32,
                                 .workers = workers,
                                 .prefetch = 3};
    tr_loader *l = NULL;
    assert_int_equal(tr_loader_open(&o, &l), TR_OK);
    assert_int_equal(tr_loader_seek(l, step), TR_OK);
    for (uint64_t s = step; s < steps; s++) {
        tr_batch b;
        const size_t each = 3 * SIDE * SIDE;
        if (tr_loader_next(l, &b) != TR_OK) fail_msg("%s", tr_last_error()->text);
        memcpy(out + b.ordinal * each, b.inputs[0], (size_t)b.count * each * sizeof *out);
    }
    tr_loader_close(l);
}

static void anywhere(void **state)
{
    (void)state;
    enum { STEPS = 8, ALL = 7 * STEPS * 3 * SIDE * SIDE };
    static float one[ALL], other[ALL];
    world w;
    open_world(&w);
    all_changes(&w);
    for (int random = 0; random < 2; random++) {
        w.c.data.augment.resized_crop =
            (tr_resized_crop_config){random, {2, pairs[0]}, {2, pairs[1]}};
        tr_dataset *d = opens(&w);
        memset(one, 0, sizeof one);
        record(&w, d, 0, 1, 0, 0, STEPS, one);
        /* two epochs of the same images differ */
        assert_true(memcmp(one, one + 7 * 3 * SIDE * SIDE, 7 * 3 * SIDE * SIDE * sizeof *one));
        for (int size = 1; size <= 3; size++) {
            memset(other, 0, sizeof other);
            for (int rank = 0; rank < size; rank++)
                record(&w, d, rank, size, size, 0, STEPS, other);
            assert_memory_equal(one, other, sizeof one);
        }
        for (int rank = 0; rank < 2; rank++) record(&w, d, rank, 2, 1, 3, STEPS, other);
        assert_memory_equal(one, other, sizeof one);
        tr_dataset_close(d);
    }
    world_close(&w);
}

/* What comes out is the draws' parameters applied one after the other, of which the changes themselves are compared
 * with torchvision elsewhere. */
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

/* What would part an image from a target that is one. */
static void image_target(void **state)
{
    (void)state;
    static double to[2] = {0.1, 0.2};
    world w;
    world_open(&w, 3, (int64_t[]){3, SIDE, SIDE}, 0);
    world_targets(&w, 3, (int64_t[]){1, SIDE, SIDE});
    w.c.data.augment.jitter = (tr_jitter_config){true, 0.4, 0.5, 0.6, 0.1};
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_OK);
    for (int k = 0; k < 5; k++) {
        static const char *const keys[] = {"crop", "flip", "rotate", "scale", "translate"};
        char want[64];
        tr_config c = w.c;
        if (k == 0) c.data.augment.crop = 1;
        if (k == 1) c.data.augment.flip = true;
        if (k == 2) c.data.augment.rotate = 45;
        if (k == 3) c.data.augment.scale = (tr_reals){2, to};
        if (k == 4) c.data.augment.translate = (tr_reals){2, to};
        snprintf(want, sizeof want, "data.augment.%s: the target is an image", keys[k]);
        assert_int_equal(tr_data_check(&c, &w.m), TR_CONFIG);
        assert_non_null(strstr(tr_last_error()->text, want));
        world_targets(&w, 1, (int64_t[]){4});
        assert_int_equal(tr_data_check(&c, &w.m), TR_OK);
        world_targets(&w, 3, (int64_t[]){1, SIDE, SIDE});
    }
    world_close(&w);
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
        cmocka_unit_test(order),         cmocka_unit_test(cached),
        cmocka_unit_test(refused),       cmocka_unit_test(bad_files),
        cmocka_unit_test(anywhere),      cmocka_unit_test(composed),
        cmocka_unit_test(random_boxes),  cmocka_unit_test(not_applicable),
        cmocka_unit_test(image_target),  cmocka_unit_test(no_numbers),
        cmocka_unit_test(resized_plain), cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
