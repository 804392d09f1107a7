/* Folders of images: which files are which samples, classes by name, what is refused; and the
 * changes of data.augment: the same on any number of ranks and threads, and after a start in the
 * middle. */
#include "helpers.h"

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

/* The same pixels with and without a cache, before and after they are in it, and of parts of the
 * samples. */
static void cached(void **state)
{
    (void)state;
    double seen[7];
    world w;
    open_world(&w);
    for (int round = 0; round < 3; round++) {
        w.c.data.cache_mb = round == 1 ? 0 : 64;
        w.c.data.train.offset = round == 2 ? 2 : 0;
        const size_t before = tr_mem_held(TR_MEM_DATA);
        tr_dataset *d = opens(&w);
        /* pixels and a state of each sample in use; labels, names, what they are decoded in */
        const size_t images = round == 1 ? 0 : round == 2 ? 5 : 7, held = tr_dataset_held(d);
        assert_true(held >= images * 433);
        assert_true(tr_mem_held(TR_MEM_DATA) - before <= held);
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
        /* but for what images that are grey and in colours, one after the other, would take */
        assert_in_range(held - (tr_mem_held(TR_MEM_DATA) - before), 0, 23 * 19 * 3);
        tr_dataset_close(d);
        w.c.data.workers = 3; /* each decodes */
        d = opens(&w);
        assert_true(tr_dataset_held(d) > held + 2 * (size_t)(23 * 19 * 3));
        tr_dataset_close(d);
        w.c.data.workers = 0;
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

/* With a random part for training and nothing for the rest, the rest is the whole image,
 * resized. */
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

/* The other part of a split leaves room to this one. */
static void cached_split(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    w.c.data.split.present = true;
    w.c.data.split.fraction = 0.3;
    w.c.data.split.seed = 1;
    size_t names[2]; /* and what they are decoded in */
    w.c.data.cache_mb = 0;
    tr_dataset *d = opens(&w), *out = NULL;
    assert_int_equal(tr_dataset_open(&w.c, &w.c.data.eval, &w.m, &out), TR_OK);
    names[0] = tr_dataset_held(d);
    names[1] = tr_dataset_held(out);
    tr_dataset_close(d);
    tr_dataset_close(out);
    w.c.data.cache_mb = 64;
    d = opens(&w);
    assert_int_equal(tr_dataset_open(&w.c, &w.c.data.eval, &w.m, &out), TR_OK);
    assert_true(tr_dataset_samples(d) == 5 && tr_dataset_samples(out) == 2);
    /* labels may be held where there is room */
    assert_in_range(tr_dataset_held(d) - names[0], 5 * 433, 5 * 433 + 5 * 4);
    assert_in_range(tr_dataset_held(out) - names[1], 2 * 433, 2 * 433 + 2 * 4);
    for (int twice = 0; twice < 2; twice++)
        for (uint64_t i = 0; i < 5; i++)
            for (uint64_t k = 0; k < 2; k++) {
                double apart = 0;
                for (size_t e = 0; e < 3 * SIDE * SIDE; e++)
                    apart += fabs(input_at(d, 0, i, e) - input_at(out, 0, k, e));
                assert_true(apart > 0);
            }
    tr_dataset_close(d);
    tr_dataset_close(out);
    world_close(&w);
}

static char *described(const world *w, uint64_t *names)
{
    char *text = NULL;
    size_t n;
    tr_dataset *d = opens(w);
    FILE *f = open_memstream(&text, &n);
    assert_int_equal(tr_dataset_describe(d, "x", 1, f), TR_OK);
    fclose(f);
    *names = tr_dataset_names(d);
    tr_dataset_close(d);
    return text;
}

/* The same bytes by another name are other data: it decides on the order. */
static void described_by_name(void **state)
{
    (void)state;
    world w;
    uint64_t names[3];
    char from[160];
    open_world(&w);
    char *one = described(&w, &names[0]);
    snprintf(from, sizeof from, "%s", in_folder(&w, "x/cat/z.png"));
    assert_int_equal(rename(from, in_folder(&w, "x/cat/y.png")), 0);
    char *two = described(&w, &names[1]);
    assert_int_equal(rename(in_folder(&w, "x/cat/y.png"), from), 0);
    char *three = described(&w, &names[2]);
    assert_string_equal(one, three);
    assert_string_not_equal(one, two);
    assert_true(names[0] != names[1] && names[0] == names[2] && names[0] != 0);
    free(one);
    free(two);
    free(three);
    world_close(&w);
}

/* A progressive file of 8192 x 8192 pixels of unreduced colour: as many as may be, but not these
 * coefficients. */
static void big_progressive(void **state)
{
    (void)state;
    static uint8_t bytes[65536];
    uint8_t to[3 * SIDE * SIDE];
    world w;
    open_world(&w);
    put_image(&w, "progressive.jpg", "x/ant/1.png");
    FILE *f = fopen(in_folder(&w, "x/ant/1.png"), "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    size_t at = 2; /* behind the start: segments of a marker and a length */
    while (at + 20 < n && bytes[at + 1] != 0xc2)
        at += 2 + (size_t)(bytes[at + 2] << 8 | bytes[at + 3]);
    assert_true(bytes[at] == 0xff && bytes[at + 1] == 0xc2 && bytes[at + 9] == 3);
    bytes[at + 5] = bytes[at + 7] = 0x20; /* 8192 */
    bytes[at + 6] = bytes[at + 8] = 0;
    for (size_t c = 0; c < 3; c++) bytes[at + 11 + 3 * c] = 0x11;
    write_bytes(&w, "x/ant/1.png", bytes, n);
    tr_dataset *d = opens(&w);
    assert_int_equal(d->inputs[0]->read(d->inputs[0], 1, 1, to), TR_DATA);
    assert_non_null(
        strstr(tr_last_error()->text, "1.png: JPEG: 8192 x 8192 pixels in several scans"));
    assert_non_null(strstr(tr_last_error()->text, "402653184 bytes"));
    tr_dataset_close(d);
    world_close(&w);
}

/* A link that leads nowhere is one more other file, unless it should be an image; names are
 * UTF-8. */
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

/* ---- Changes --------------------------------------------------------------------------------- */

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
            (tr_resized_crop_config){random, {2, (double[]){0.3, 0.9}}, {2, (double[]){0.5, 2}}};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),           cmocka_unit_test(cached),
        cmocka_unit_test(cached_split),    cmocka_unit_test(described_by_name),
        cmocka_unit_test(refused),         cmocka_unit_test(bad_files),
        cmocka_unit_test(big_progressive), cmocka_unit_test(names),
        cmocka_unit_test(resized_plain),   cmocka_unit_test(anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
