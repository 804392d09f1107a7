/* Mixed samples: draws by their laws, partners that are a permutation, batches that are those
 * without mixing, mixed by hand; the same for any number of ranks, micro-batches and threads, and
 * from any step on. What mixing does to an image is compared with torchvision in
 * test_image_golden.c. */
#include "helpers.h"

#include "runtime/data/mix.h"

#define N     23
#define SIDE  4
#define C     2
#define ELEMS (C * SIDE * SIDE)
#define BATCH 8

static double half(double x)
{
    return 2 / 3.14159265358979323846 * asin(sqrt(x));
}

static double one(double x)
{
    return x;
}

static double two(double x)
{
    return x * x * (3 - 2 * x);
}

static double three(double x)
{
    return x * x * x * (10 + x * (6 * x - 15));
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov and Smirnov: sqrt(n) times the largest distance is above 1.95 in one case of a
 * thousand. */
static void beta_law(void **state)
{
    (void)state;
    enum { DRAWS = 4000 };
    static const struct {
        double alpha;
        double (*law)(double);
    } cases[] = {{0.5, half}, {1, one}, {2, two}, {3, three}};
    static double x[DRAWS];
    for (size_t k = 0; k < TR_COUNT(cases); k++) {
        double most = 0;
        for (uint64_t i = 0; i < DRAWS; i++) x[i] = tr_beta_draw(cases[k].alpha, 11, i);
        qsort(x, DRAWS, sizeof *x, ascending);
        for (size_t i = 0; i < DRAWS; i++) {
            const double at = cases[k].law(x[i]);
            most = fmax(most, fmax(at - (double)i / DRAWS, (double)(i + 1) / DRAWS - at));
        }
        if (!(most * sqrt(DRAWS) < 1.95))
            fail_msg("alpha %g: a distance of %g", cases[k].alpha, most * sqrt(DRAWS));
    }
}

/* Mean 1/2 and variance 1 / (4 (2 alpha + 1)) within five deviations of them, where no law is at
 * hand; always in [0, 1]. */
static void beta_moments(void **state)
{
    (void)state;
    enum { DRAWS = 4000 };
    const double alphas[] = {0.01, 0.2, 0.8, 1.5, 40, 1000};
    for (size_t k = 0; k < TR_COUNT(alphas); k++) {
        const double variance = 1 / (4 * (2 * alphas[k] + 1));
        double mean = 0, square = 0;
        for (uint64_t i = 0; i < DRAWS; i++) {
            const double x = tr_beta_draw(alphas[k], 5, i);
            assert_true(x >= 0 && x <= 1);
            mean += x / DRAWS;
            square += (x - 0.5) * (x - 0.5) / DRAWS;
        }
        assert_true(fabs(mean - 0.5) < 5 * sqrt(variance / DRAWS));
        assert_true(fabs(square - variance) < 5 * variance * sqrt(2.0 / DRAWS));
    }
}

/* One of the two by even chance, then by its own probability; boxes about uniform places. Means of
 * 4000: within five deviations. */
static void draws(void **state)
{
    (void)state;
    enum { STEPS = 4000, H = 400, W = 1000 };
    const tr_mixing m = {
        .on = true, .up = {true, 0.4, 0.8}, .cut = {true, 1, 0.5}, .height = H, .width = W};
    const tr_mixing alone = {.on = true, .cut = {true, 1, 1}, .height = H, .width = W};
    double n[3] = {0}, share = 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        const tr_mix x = tr_mix_draw(&m, 3, step), y = tr_mix_draw(&alone, 3, step);
        n[x.kind]++;
        assert_true(x.share >= 0 && x.share <= 1);
        assert_true(x.kind != TR_MIX_NONE || x.share == 1.0f);
        assert_int_equal(y.kind, TR_MIX_CUT);
        const tr_box b = y.box;
        assert_true(b.top >= 0 && b.left >= 0 && b.height >= 0 && b.width >= 0 &&
                    b.top + b.height <= H && b.left + b.width <= W);
        assert_true(fabs((double)y.share - (1 - (double)(b.height * b.width) / (H * W))) < 1e-6);
        share += (double)y.share / STEPS;
    }
    assert_true(fabs(n[TR_MIX_UP] / STEPS - 0.4) < 5 * 0.0078);
    assert_true(fabs(n[TR_MIX_CUT] / STEPS - 0.25) < 5 * 0.0069);
    /* a box of side s about a uniform place covers s (1 - s / 4) of a side on average, s^2 uniform:
     * 1/2 - 1/5 + 1/48 of the area, less what whole pixels leave out */
    assert_true(fabs(share - (1 - 0.5 + 0.2 - 1.0 / 48)) < 0.025);
}

static void partners(void **state)
{
    (void)state;
    int seen[61], fixed = 0;
    for (uint64_t step = 0; step < 100; step++)
        for (uint64_t n = 1; n <= 61; n += 20) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                const uint64_t p = tr_mix_partner(9, step, n, i);
                assert_true(p < n && seen[p]++ == 0);
                fixed += n == 61 && p == i;
            }
        }
    assert_in_range(fixed, 60, 140); /* one a permutation on average */
}

/* ---- Batches --------------------------------------------------------------------------------- */

static void open_world(world *w)
{
    static uint8_t x[N][ELEMS], y[N];
    const hsize_t x_dims[] = {N, C, SIDE, SIDE}, y_dims[] = {N};
    world_open(w, 3, (int64_t[]){C, SIDE, SIDE}, 5);
    for (int i = 0; i < N; i++) {
        for (int e = 0; e < ELEMS; e++) x[i][e] = (uint8_t)(i * 7 + e * 5);
        y[i] = (uint8_t)(i % 5);
    }
    write_h5(w, "a.h5", "x", H5T_STD_U8LE, H5T_NATIVE_UINT8, 4, x_dims, 0, 0, x);
    write_h5(w, "a.h5", "y", H5T_STD_U8LE, H5T_NATIVE_UINT8, 1, y_dims, 0, 0, y);
    w->c.data.train.path = "a.h5";
    w->c.data.train.inputs = scalar(w, 0, "x");
    w->c.data.train.labels = "y";
    w->c.data.augment.crop = 1;
    w->c.data.augment.flip = true;
}

static void mix_both(world *w)
{
    w->c.data.augment.mixup = (tr_mix_config){true, 0.4, 0.8};
    w->c.data.augment.cutmix = (tr_mix_config){true, 1, 0.8};
}

enum { STEPS = 12 };

/* Inputs and targets of `STEPS` steps from `first` on, in their order: of steps of 8, 8 and 7
 * samples. */
typedef struct {
    float x[STEPS * BATCH][ELEMS], y[STEPS * BATCH][5];
    int32_t labels[STEPS * BATCH];
    uint64_t step[STEPS * BATCH];
    size_t at[STEPS + 1]; /* where a step begins */
} seen;

static void run(world *w, tr_dataset *d, bool mixed, int size, int micro_batches, int workers,
                tr_dtype dtype, uint64_t first, seen *out)
{
    memset(out, 0, sizeof *out);
    for (int rank = 0; rank < size; rank++) {
        const tr_loader_options o = {.config = &w->c,
                                     .model = &w->m,
                                     .dataset = d,
                                     .train = true,
                                     .batch = BATCH,
                                     .micro_batches = micro_batches,
                                     .rank = rank,
                                     .size = size,
                                     .dtype = dtype,
                                     .workers = workers,
                                     .prefetch = 3};
        tr_loader *l = NULL;
        assert_int_equal(tr_loader_open(&o, &l), TR_OK);
        assert_int_equal(tr_loader_seek(l, first), TR_OK);
        for (int k = 0; k < (STEPS - (int)first) * micro_batches; k++) {
            tr_batch b;
            assert_int_equal(tr_loader_next(l, &b), TR_OK);
            for (int64_t i = 0; i < b.count; i++) {
                /* every sample has a row by its ordinal, which no other step has */
                const size_t at = (size_t)(b.ordinal + (uint64_t)i);
                for (size_t e = 0; e < ELEMS; e++)
                    out->x[at][e] =
                        dtype == TR_F32
                            ? ((const float *)b.inputs[0])[(size_t)i * ELEMS + e]
                            : tr_bf16_to_f32(((const tr_bf16 *)b.inputs[0])[(size_t)i * ELEMS + e]);
                if (mixed)
                    memcpy(out->y[at], (const float *)b.targets + i * 5, sizeof out->y[at]);
                else
                    out->labels[at] = ((const int32_t *)b.targets)[i];
                out->step[at] = b.step;
            }
        }
        tr_loader_close(l);
    }
}

/* As the header of mix.h says: what each sample and its partner are without mixing, put
 * together. */
static void by_hand(const world *w, const seen *plain, seen *out)
{
    const tr_mixing m = {.on = true,
                         .up = w->c.data.augment.mixup,
                         .cut = w->c.data.augment.cutmix,
                         .height = SIDE,
                         .width = SIDE};
    memset(out, 0, sizeof *out);
    for (size_t begin = 0; begin < STEPS / 3 * N;) {
        const uint64_t step = plain->step[begin];
        const tr_mix x = tr_mix_draw(&m, 7, step);
        size_t n = 0;
        while (begin + n < STEPS / 3 * N && plain->step[begin + n] == step) n++;
        for (size_t i = 0; i < n; i++) {
            const size_t at = begin + i, other = begin + tr_mix_partner(7, step, n, i);
            const tr_box b = x.box;
            out->step[at] = step;
            for (int64_t e = 0; e < ELEMS; e++) {
                const int64_t row = e / C / SIDE, column = e / C % SIDE;
                const bool in = x.kind == TR_MIX_CUT && row >= b.top && row < b.top + b.height &&
                                column >= b.left && column < b.left + b.width;
                const float own = plain->x[at][e], its = plain->x[other][e];
                out->x[at][e] = x.kind == TR_MIX_UP ? own * x.share + its * (1 - x.share)
                                : in                ? its
                                                    : own;
            }
            out->y[at][plain->labels[at]] += x.share;
            if (x.kind != TR_MIX_NONE) out->y[at][plain->labels[other]] += 1 - x.share;
        }
        begin += n;
    }
}

static void batches(void **state)
{
    (void)state;
    static seen plain, want, got;
    world w;
    open_world(&w);
    tr_dataset *d = opens(&w);
    run(&w, d, false, 1, 1, 0, TR_F32, 0, &plain);
    mix_both(&w);
    by_hand(&w, &plain, &want);
    for (int size = 1; size <= 3; size++)
        for (int micro_batches = 1; micro_batches <= 3; micro_batches++) {
            run(&w, d, true, size, micro_batches, size - 1, TR_F32, 0, &got);
            assert_memory_equal(&got, &want, sizeof got);
        }
    /* rounded once, after it was mixed */
    run(&w, d, true, 2, 1, 1, TR_BF16, 0, &got);
    for (size_t i = 0; i < TR_COUNT(want.x); i++)
        for (size_t e = 0; e < ELEMS; e++)
            assert_true(got.x[i][e] == tr_bf16_to_f32(tr_f32_to_bf16(want.x[i][e])));
    assert_memory_equal(got.y, want.y, sizeof got.y);
    tr_dataset_close(d);
    world_close(&w);
}

static void resumed(void **state)
{
    (void)state;
    static seen all, rest;
    world w;
    open_world(&w);
    mix_both(&w);
    tr_dataset *d = opens(&w);
    run(&w, d, true, 2, 2, 1, TR_F32, 0, &all);
    for (uint64_t first = 1; first < STEPS; first += 3) {
        run(&w, d, true, 3, 1, 2, TR_F32, first, &rest);
        for (size_t i = 0; i < STEPS / 3 * N; i++)
            if (all.step[i] >= first) {
                assert_memory_equal(all.x[i], rest.x[i], sizeof all.x[i]);
                assert_memory_equal(all.y[i], rest.y[i], sizeof all.y[i]);
            }
    }
    tr_dataset_close(d);
    world_close(&w);
}

/* Evaluations see samples and labels as they are. */
static void evaluated(void **state)
{
    (void)state;
    world w;
    tr_batch b;
    tr_loader *l = NULL;
    open_world(&w);
    mix_both(&w);
    tr_dataset *d = opens(&w);
    const tr_loader_options o = {.config = &w.c,
                                 .model = &w.m,
                                 .dataset = d,
                                 .batch = BATCH,
                                 .micro_batches = 1,
                                 .size = 1,
                                 .dtype = TR_F32};
    assert_int_equal(tr_loader_open(&o, &l), TR_OK);
    assert_int_equal(tr_loader_next(l, &b), TR_OK);
    for (int i = 0; i < BATCH; i++) {
        assert_int_equal(((const int32_t *)b.targets)[i], i % 5);
        assert_true(((const float *)b.inputs[0])[i * ELEMS] == (float)(i * 7));
    }
    tr_loader_close(l);
    tr_dataset_close(d);
    world_close(&w);
}

static void refused(const world *w, const char *a, const char *b)
{
    assert_int_equal(tr_data_check(&w->c, &w->m), TR_CONFIG);
    if (!strstr(tr_last_error()->text, a) || !strstr(tr_last_error()->text, b))
        fail_msg("no \"%s\", \"%s\" in: %s", a, b, tr_last_error()->text);
}

static void inputs(void **state)
{
    (void)state;
    world w;
    world_open(&w, 1, (int64_t[]){6}, 5);
    w.c.data.augment.mixup = (tr_mix_config){true, 1, 1};
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_OK);
    w.c.data.augment.cutmix = (tr_mix_config){true, 1, 1};
    refused(&w, "data.augment.cutmix", "\"input\" is no image");
    w.inputs[0].ids = 9;
    refused(&w, "data.augment.mixup", "\"input\" holds ids");
    world_close(&w);
    world_open(&w, 3, (int64_t[]){C, SIDE, SIDE}, 5);
    w.m.ninputs = 2;
    w.inputs[1] = w.inputs[0];
    strcpy(w.inputs[1].name, "wide");
    w.inputs[1].dims[2] = SIDE + 1;
    w.c.data.augment.mixup = (tr_mix_config){true, 1, 1};
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_OK);
    w.c.data.augment.cutmix = (tr_mix_config){true, 1, 1};
    refused(&w, "\"input\" and \"wide\"", "differ");
    world_close(&w);
}

/* Of probabilities for each pixel those of the partner can be a share, but lie elsewhere than the
 * rectangle. */
static void image_target(void **state)
{
    (void)state;
    world w;
    world_open(&w, 3, (int64_t[]){C, SIDE, SIDE}, 0);
    world_targets(&w, 3, (int64_t[]){5, SIDE, SIDE});
    w.m.rows = SIDE * SIDE;
    w.c.data.augment.mixup = (tr_mix_config){true, 1, 1};
    assert_int_equal(tr_data_check(&w.c, &w.m), TR_OK);
    w.c.data.augment.cutmix = (tr_mix_config){true, 1, 1};
    refused(&w, "data.augment.cutmix", "the target is an image");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beta_law),  cmocka_unit_test(beta_moments), cmocka_unit_test(draws),
        cmocka_unit_test(partners),  cmocka_unit_test(batches),      cmocka_unit_test(resumed),
        cmocka_unit_test(evaluated), cmocka_unit_test(inputs),       cmocka_unit_test(image_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
