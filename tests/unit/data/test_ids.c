/* Inputs of ids: int32 in any type of activations, each checked as it passes, left alone by
 * normalization and augmentation; synthetic ones. */
#include "helpers.h"

#define N      12
#define LENGTH 5
#define IDS    7

static const double good[N][LENGTH] = {{0, 6, 3, 3, 1}, {6, 6, 6, 6, 6}, {0, 1, 2, 3, 4}};

/* N samples of ids as `name` in a.h5, from doubles. */
static void open_world(world *w, const char *name, hid_t type, const void *x)
{
    static uint8_t y[N];
    world_open(w, 1, (int64_t[]){LENGTH}, 3);
    w->inputs[0].ids = IDS;
    for (int i = 0; i < N; i++) y[i] = (uint8_t)(i % 3);
    write_h5(w, "a.h5", name, type, H5T_NATIVE_DOUBLE, 2, (hsize_t[]){N, LENGTH}, 0, 0, x);
    write_h5(w, "a.h5", "y", H5T_STD_U8LE, H5T_NATIVE_UINT8, 1, (hsize_t[]){N}, 0, 0, y);
    w->c.data.shuffle = false;
    w->c.data.train = (tr_source_config){.path = "a.h5", .inputs = scalar(w, 0, name)};
    w->c.data.train.labels = "y";
}

static tr_loader_options options(const world *w, tr_dataset *d, tr_dtype dtype)
{
    return (tr_loader_options){.config = &w->c,
                               .model = &w->m,
                               .dataset = d,
                               .train = true,
                               .batch = 4,
                               .micro_batches = 1,
                               .size = 1,
                               .dtype = dtype,
                               .prefetch = 2};
}

static void as_int32(void **state)
{
    (void)state;
    const hid_t types[] = {H5T_STD_U8LE,   H5T_STD_I8LE,  H5T_STD_U16BE, H5T_STD_I16LE,
                           H5T_STD_U32LE,  H5T_STD_I32BE, H5T_STD_U64LE, H5T_STD_I64LE,
                           H5T_IEEE_F32LE, H5T_IEEE_F64LE};
    static const tr_dtype dtypes[] = {TR_F32, TR_BF16, TR_F16};
    for (size_t t = 0; t < TR_COUNT(types); t++) {
        world w;
        open_world(&w, "x", types[t], good);
        for (size_t k = 0; k < 2 * TR_COUNT(dtypes); k++) {
            w.c.data.cache_mb = k % 2; /* held or read as it goes */
            tr_dataset *d = opens(&w);
            tr_loader_options o = options(&w, d, dtypes[k / 2]);
            o.workers = (int)k % 3;
            tr_loader *l = NULL;
            assert_int_equal(tr_loader_open(&o, &l), TR_OK);
            for (int i = 0; i < N;) {
                tr_batch b;
                assert_int_equal(tr_loader_next(l, &b), TR_OK);
                const int32_t *ids = b.inputs[0];
                for (int64_t s = 0; s < b.count; s++, i++)
                    for (int e = 0; e < LENGTH; e++)
                        assert_int_equal(ids[s * LENGTH + e], (int)good[i][e]);
            }
            tr_loader_close(l);
            tr_dataset_close(d);
        }
        world_close(&w);
    }
}

/* What is no id stops the loader where it stands, whoever reads it. */
static void refused(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } bad[] = {{3.5, "element 2 is 3.5,"}, {-1, "element 2 is -1,"},
               {IDS, "element 2 is 7,"},   {4294967296.0, "element 2 is 4294967296,"},
               {NAN, "element 2 is "},     {INFINITY, "element 2 is inf,"}};
    for (size_t k = 0; k < TR_COUNT(bad); k++)
        for (int workers = 0; workers < 3; workers++) {
            world w;
            double x[N][LENGTH];
            memcpy(x, good, sizeof x);
            x[9][2] = bad[k].value;
            open_world(&w, "words", H5T_IEEE_F64LE, x);
            w.c.data.cache_mb = workers % 2;
            tr_dataset *d = opens(&w);
            tr_loader_options o = options(&w, d, TR_F32);
            o.workers = workers;
            tr_loader *l = NULL;
            tr_batch b;
            assert_int_equal(tr_loader_open(&o, &l), TR_OK);
            assert_int_equal(tr_loader_next(l, &b), TR_OK);
            assert_int_equal(tr_loader_next(l, &b), TR_OK);
            for (int again = 0; again < 2; again++) {
                assert_int_equal(tr_loader_next(l, &b), TR_DATA);
                const char *text = tr_last_error()->text;
                static const char *const words[] = {"a.h5", "words", "sample 9",
                                                    "a whole number from 0 to 6"};
                for (size_t i = 0; i < TR_COUNT(words); i++)
                    if (!strstr(text, words[i])) fail_msg("no \"%s\" in: %s", words[i], text);
                if (!strstr(text, bad[k].text)) fail_msg("no \"%s\" in: %s", bad[k].text, text);
            }
            tr_loader_close(l);
            tr_dataset_close(d);
            world_close(&w);
        }
}

/* Neither normalized nor augmented, and not taken for images. */
static void left_alone(void **state)
{
    (void)state;
    world w;
    tr_prepare p;
    world_open(&w, 1, (int64_t[]){LENGTH}, 3);
    w.inputs[0].ids = IDS;
    w.mean[0] = 4;
    normalize_by(&w, 1, 0, NULL);
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "test.yaml:1:1: data.normalize: all inputs"));
    w.std[0] = 2;
    normalize_by(&w, 0, 1, NULL);
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    normalize_by(&w, 1, 1, w.inputs[0].name); /* by its name neither */
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(
        strstr(tr_last_error()->text, "data.normalize.input: the input \"input\" holds ids"));
    normalize_by(&w, 1, 1, NULL);
    w.m.ninputs = 2; /* beside values: these are normalized */
    w.inputs[1].ndim = 1;
    w.inputs[1].dims[0] = 2;
    float scratch[8], out[2];
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_OK);
    tr_prepare_sample(&p, 1, TR_ELEM_U8, (uint8_t[]){4, 8}, 3, scratch, out);
    assert_true(out[0] == 0 && out[1] == 2);
    int32_t ids[LENGTH];
    tr_array a = {.name = "a", .elem = TR_ELEM_U8};
    assert_int_equal(tr_prepare_ids(&p, 0, &a, (uint8_t[]){4, 5, 6, 0, 1}, 0, ids), TR_OK);
    assert_true(ids[0] == 4 && ids[2] == 6 && ids[4] == 1);
    tr_prepare_fini(&p);
    w.m.ninputs = 1;
    normalize_by(&w, 0, 0, NULL);
    w.c.data.augment.flip = true;
    assert_int_equal(tr_prepare_init(&w.c, &w.m, true, TR_F32, &p), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "data.augment"));
    world_close(&w);
}

enum { MADE = 3000 };

static void made_world(world *w, int64_t classes)
{
    world_open(w, 1, (int64_t[]){LENGTH}, classes);
    w->inputs[0].ids = 11;
    w->c.data.train.format = TR_FORMAT_SYNTHETIC;
    w->c.data.train.samples = MADE;
    w->c.data.eval = w->c.data.train;
}

/* Every id comes about as often, and the class tells what it is likely to be at each place. */
static void synthetic(void **state)
{
    (void)state;
    world w;
    made_world(&w, 40);
    tr_dataset *d = opens(&w), *e = NULL;
    assert_int_equal(tr_dataset_open(&w.c, &w.c.data.eval, &w.m, &e), TR_OK);
    static int counts[40][LENGTH][11];
    int all[11] = {0}, same = 0, guessed = 0;
    memset(counts, 0, sizeof counts);
    for (uint64_t i = 0; i < MADE; i++) {
        const int c = (int)target_at(d, i, 0);
        for (size_t k = 0; k < LENGTH; k++) {
            const double id = input_at(d, 0, i, k);
            assert_true(id >= 0 && id < 11 && id == floor(id));
            counts[c][k][(int)id]++;
            all[(int)id]++;
            same += id == input_at(e, 0, i, k);
        }
    }
    /* half of them are 200 numbers drawn by class and place: 18 +- 4 of each */
    for (int id = 0; id < 11; id++)
        assert_true(all[id] > MADE * LENGTH / 25 && all[id] < MADE * LENGTH / 6);
    assert_true(same < MADE * LENGTH / 5);
    for (uint64_t i = 0; i < MADE; i++)
        for (size_t k = 0; k < LENGTH; k++) {
            const int *of = counts[(int)target_at(e, i, 0)][k];
            int best = 0;
            for (int id = 1; id < 11; id++)
                if (of[id] > of[best]) best = id;
            guessed += best == (int)input_at(e, 0, i, k);
        }
    /* 1/2 + 1/22 of them */
    assert_true(guessed > MADE * LENGTH * 50 / 100 && guessed < MADE * LENGTH * 60 / 100);
    int32_t block[10 * LENGTH];
    assert_int_equal(d->inputs[0]->read(d->inputs[0], 40, 10, block), TR_OK);
    for (size_t k = 0; k < 10 * LENGTH; k++)
        assert_true(block[k] == (int)input_at(d, 0, 40 + k / LENGTH, k % LENGTH));
    tr_dataset_close(d);
    tr_dataset_close(e);
    world_close(&w);
}

/* A target is the sum of a value for each id, by place: such a fit explains it. */
static void synthetic_regression(void **state)
{
    (void)state;
    world w;
    made_world(&w, 0);
    world_targets(&w, 1, (int64_t[]){2});
    tr_dataset *d = opens(&w), *e = NULL;
    assert_int_equal(tr_dataset_open(&w.c, &w.c.data.eval, &w.m, &e), TR_OK);
    double value[LENGTH][11] = {{0}}, left = 0, all = 0;
    for (int pass = 0; pass < 20; pass++)
        for (uint64_t i = 0; i < MADE; i++) {
            double miss = -target_at(d, i, 1);
            for (size_t k = 0; k < LENGTH; k++) miss += value[k][(int)input_at(d, 0, i, k)];
            for (size_t k = 0; k < LENGTH; k++) value[k][(int)input_at(d, 0, i, k)] -= 0.02 * miss;
        }
    for (uint64_t i = 0; i < MADE; i++) {
        double y = 0, t = target_at(e, i, 1);
        for (size_t k = 0; k < LENGTH; k++) y += value[k][(int)input_at(e, 0, i, k)];
        left += (y - t) * (y - t);
        all += t * t;
    }
    assert_true(all / MADE > 0.2);
    assert_true(left < 0.1 * all);
    tr_dataset_close(d);
    tr_dataset_close(e);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_int32),
        cmocka_unit_test(refused),
        cmocka_unit_test(left_alone),
        cmocka_unit_test(synthetic),
        cmocka_unit_test(synthetic_regression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
