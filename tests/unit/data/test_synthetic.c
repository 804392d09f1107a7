/* Synthetic samples: normal, the same for the same seed and index however they are read, other for
 * evaluation, and with a class (or a linear function) in them that can be learned. */
#include "helpers.h"

#define D 49

static void make(world *w, int64_t samples, int64_t classes)
{
    world_open(w, 3, (int64_t[]){1, 7, 7}, classes);
    w->c.data.train.format = TR_FORMAT_SYNTHETIC;
    w->c.data.train.samples = samples;
    w->c.data.eval = w->c.data.train;
}

static tr_dataset *open_eval(const world *w)
{
    tr_dataset *d = NULL;
    assert_int_equal(tr_dataset_open(&w->c, &w->c.data.eval, &w->m, &d), TR_OK);
    return d;
}

static void moments(void **state)
{
    (void)state;
    world w;
    make(&w, 2000, 10);
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_held(d), 0);
    double sum = 0, squares = 0;
    int counts[10] = {0};
    for (uint64_t i = 0; i < 2000; i++) {
        counts[(int)target_at(d, i, 0)]++;
        for (size_t e = 0; e < D; e++) {
            double x = input_at(d, 0, i, e);
            sum += x;
            squares += x * x;
        }
    }
    double n = 2000.0 * D, mean = sum / n;
    /* the classes' own part has only 10 * 49 independent numbers: 0.5 / sqrt(490) = 0.023 */
    assert_true(fabs(mean) < 0.1);
    assert_true(fabs(squares / n - mean * mean - 1.0) < 0.1);
    for (int c = 0; c < 10; c++)
        assert_true(counts[c] > 140 && counts[c] < 260); /* 200 +- 4 sigma */
    tr_dataset_close(d);
    world_close(&w);
}

static void reproducible(void **state)
{
    (void)state;
    world w;
    make(&w, 100, 5);
    tr_dataset *d = opens(&w), *e = open_eval(&w);
    w.c.data.train.samples = 1000000000000; /* costs nothing */
    tr_dataset *big = opens(&w);
    w.c.seed = 8;
    tr_dataset *other = opens(&w);
    float block[10 * D];
    assert_int_equal(d->inputs[0]->read(d->inputs[0], 40, 10, block), TR_OK);
    int same = 0;
    for (uint64_t i = 0; i < 10; i++) {
        for (size_t k = 0; k < D; k++) {
            double x = input_at(d, 0, 40 + i, k);
            assert_true((double)block[i * D + k] == x);
            assert_true(input_at(big, 0, 40 + i, k) == x);
            assert_true(input_at(e, 0, 40 + i, k) != x);
            assert_true(input_at(other, 0, 40 + i, k) != x);
        }
        same += target_at(d, 40 + i, 0) == target_at(e, 40 + i, 0);
        assert_true(target_at(d, 40 + i, 0) == target_at(big, 40 + i, 0));
    }
    assert_true(same < 10);
    assert_true(target_at(big, 999999999999, 0) < 5);
    tr_dataset_close(d);
    tr_dataset_close(e);
    tr_dataset_close(big);
    tr_dataset_close(other);
    world_close(&w);
}

/* The nearest class mean of the training set tells most of the evaluation set. */
static void learnable(void **state)
{
    (void)state;
    world w;
    make(&w, 1000, 4);
    tr_dataset *d = opens(&w), *e = open_eval(&w);
    double means[4][D] = {{0}};
    int counts[4] = {0}, right = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        int c = (int)target_at(d, i, 0);
        counts[c]++;
        for (size_t k = 0; k < D; k++) means[c][k] += input_at(d, 0, i, k);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        int best = 0;
        double least = INFINITY;
        for (int c = 0; c < 4; c++) {
            double dist = 0;
            for (size_t k = 0; k < D; k++) {
                double diff = input_at(e, 0, i, k) - means[c][k] / counts[c];
                dist += diff * diff;
            }
            if (dist < least) least = dist, best = c;
        }
        right += best == (int)target_at(e, i, 0);
    }
    assert_true(right > 900);
    tr_dataset_close(d);
    tr_dataset_close(e);
    world_close(&w);
}

/* Targets of a regression have unit variance and are explained by a linear fit (gradient
 * descent). */
static void regression(void **state)
{
    (void)state;
    world w;
    make(&w, 1000, 0);
    world_targets(&w, 1, (int64_t[]){2});
    tr_dataset *d = opens(&w), *e = open_eval(&w);
    assert_int_equal(d->targets->count, 2);
    double weights[D] = {0};
    for (int pass = 0; pass < 20; pass++) {
        for (uint64_t i = 0; i < 1000; i++) {
            double y = 0;
            for (size_t k = 0; k < D; k++) y += weights[k] * input_at(d, 0, i, k);
            double miss = y - target_at(d, i, 1);
            for (size_t k = 0; k < D; k++) weights[k] -= 0.005 * miss * input_at(d, 0, i, k);
        }
    }
    double left = 0, all = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        double y = 0, t = target_at(e, i, 1);
        for (size_t k = 0; k < D; k++) y += weights[k] * input_at(e, 0, i, k);
        left += (y - t) * (y - t);
        all += t * t;
    }
    assert_true(all / 1000 > 0.5 && all / 1000 < 2.0);
    assert_true(left < 0.1 * all);
    tr_dataset_close(d);
    tr_dataset_close(e);
    for (int focal = 0; focal < 2; focal++) {
        w.c.model.loss.kind.which = focal ? TR_LOSS_FOCAL : TR_LOSS_BCE;
        d = opens(&w);
        int ones = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            double t = target_at(d, i, 0);
            assert_true(t == 0 || t == 1);
            ones += t == 1;
        }
        assert_true(ones > 400 && ones < 600);
        tr_dataset_close(d);
    }
    world_close(&w);
}

static void refuses(void **state)
{
    (void)state;
    world w;
    make(&w, 0, 10);
    fails(&w, TR_CONFIG, "data.train.samples", NULL);
    w.c.data.train.samples = 5;
    w.c.data.train.classes = 11;
    fails(&w, TR_CONFIG, "data.train.classes", NULL);
    w.c.data.train.classes = 3;
    w.c.data.train.path = "x.h5";
    fails(&w, TR_CONFIG, "data.train.path", NULL);
    w.c.data.train.path = NULL;
    world_targets(&w, 1, (int64_t[]){2});
    fails(&w, TR_CONFIG, "data.train.classes", NULL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments),    cmocka_unit_test(reproducible), cmocka_unit_test(learnable),
        cmocka_unit_test(regression), cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
