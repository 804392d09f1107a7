/* Losses of one output and one target each: values, gradients and tallies against float64 at every
 * level, gradients by central differences, what NaN does, independence of the thread count. */
#include "tests/unit/cpu/loop_levels.h"

static double element(const tr_elementwise_loss_attrs *a, size_t place, double z, double t)
{
    const double d = z - t, far = fabs(d), p = 1 / (1 + exp(-z));
    const double positive = a->npos ? (double)a->pos_weight[place % a->npos] : 1;
    const double bce = positive * t * (log1p(exp(-fabs(z))) + fmax(-z, 0)) +
                       (1 - t) * (log1p(exp(-fabs(z))) + fmax(z, 0));
    const double right = p * t + (1 - p) * (1 - t);
    const double alpha = (double)a->alpha;
    switch (a->kind) {
    case TR_LOSS_MSE:
        return d * d;
    case TR_LOSS_BCE:
        return bce;
    case TR_LOSS_FOCAL:
        return bce * pow(1 - right, (double)a->gamma) *
               (alpha < 0 ? 1 : alpha * t + (1 - alpha) * (1 - t));
    default:
        return far < (double)a->delta ? (double)a->curve / 2 * d * d
                                      : (double)a->slope * (far - (double)a->delta / 2);
    }
}

static const float positives[3] = {0.5f, 3, 1.25f};

/* As runtime/graph/loss.c makes them of a config. */
static const struct {
    const char *op;
    tr_elementwise_loss_attrs a;
} elementwise[] = {
    {"mse", {.kind = TR_LOSS_MSE}},
    {"l1", {.kind = TR_LOSS_L1, .slope = 1}},
    {"huber", {.kind = TR_LOSS_HUBER, .delta = 4, .curve = 1, .slope = 4}},
    {"smooth_l1", {.kind = TR_LOSS_SMOOTH_L1, .delta = 4, .curve = 0.25f, .slope = 1}},
    {"bce", {.kind = TR_LOSS_BCE}},
    {"bce", {.kind = TR_LOSS_BCE, .npos = 1, .pos_weight = positives}},
    {"bce", {.kind = TR_LOSS_BCE, .npos = 3, .pos_weight = positives}},
    {"focal", {.kind = TR_LOSS_FOCAL, .gamma = 2, .alpha = 0.25f}},
    {"focal", {.kind = TR_LOSS_FOCAL, .gamma = 0.5f, .alpha = -1}},
    {"focal", {.kind = TR_LOSS_FOCAL, .gamma = 0, .alpha = 0.75f}},
};

static const tr_elementwise_loss_attrs *attrs_of(const char *op)
{
    for (size_t i = 0; i < TR_COUNT(elementwise); i++)
        if (strcmp(elementwise[i].op, op) == 0) return &elementwise[i].a;
    return NULL;
}

/* weighted: samples have weights, some of them 0. */
static void check_elementwise(size_t which, tr_precision p, int isa, int64_t n, int64_t width,
                              bool train, bool weighted)
{
    const int64_t d[2] = {n, width};
    const tr_elementwise_loss_attrs *a = &elementwise[which].a;
    const bool classes = tr_loss_counts(a->kind);
    double tally[TR_TALLY] = {0}, loss = 0, correct = 0, weight = 0;
    harness h = open_level(elementwise[which].op, p, isa, 2);
    const int y = h_in(&h, h_activation(&h), 2, d), t = h_in_role(&h, TR_ROLE_TARGET, TR_F32, 2, d);
    const int w = weighted ? h_in_role(&h, TR_ROLE_TARGET, TR_F32, 1, d) : -1;
    const int grad = train ? h_out(&h, h_activation(&h), 2, d) : -1;
    if (!train) h_absent_out(&h);
    if (weighted) h_fill_range(&h, w, 3, 0, 3);
    if (weighted) h_put(&h, w, 0, 0);
    h_fill_range(&h, y, 1, -20, 20);
    h_fill_range(&h, t, 2, 0, 1);
    const size_t count = h.tensors[y].count;
    double *want = doubles(count);
    for (size_t i = 0; i < count; i++) {
        const double step = 1e-5;
        if (i % 4 == 1) h_put(&h, t, i, (double)(i % 8 == 1));
        const double z = h_get(&h, y, i), goal = h_get(&h, t, i);
        const double counts = weighted ? h_get(&h, w, i / (size_t)width) : 1;
        loss += counts * element(a, i, z, goal);
        weight += counts;
        correct += classes && (z > 0) == (goal > 0.5);
        want[i] = counts * 4 * (element(a, i, z + step, goal) - element(a, i, z - step, goal)) /
                  (2 * step);
    }
    h.run.tally = tally;
    h.run.loss_scale = 4;
    h_prepare(&h, a, TR_ACT_NONE);
    h_run(&h, false);
    if (!(fabs(tally[TR_TALLY_LOSS] - loss) <= 1e-6 * (1 + loss)))
        fail_msg("%s (%zu): the loss is %.9g, expected %.9g", elementwise[which].op, which,
                 tally[TR_TALLY_LOSS], loss);
    assert_true(fabs(tally[TR_TALLY_WEIGHT] - weight) <= 1e-12 * weight);
    assert_true(tally[TR_TALLY_SAMPLES] == (double)n);
    assert_true(fabs(tally[TR_TALLY_CORRECT] - correct / (double)width) < 1e-9 * (1 + correct));
    if (train)
        expect(&h, grad, want, p == TR_PRECISION_FP32 ? 2e-6 : 2 * tolerance(p), "dy");
    else
        tr_free(want);
    h_close(&h);
}

static void elementwise_losses_match(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 3}, {7, 3}, {33, 12}, {300, 786}};
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(shapes); s++)
        FOR_PRECISIONS(p) for (size_t which = 0; which < TR_COUNT(elementwise); which++)
        {
            check_elementwise(which, p, isa, shapes[s][0], shapes[s][1], true, false);
            check_elementwise(which, p, isa, shapes[s][0], shapes[s][1], true, true);
            check_elementwise(which, p, isa, shapes[s][0], shapes[s][1], false, s % 2);
        }
}

/* One loss op over `n` x `width` float32 values and targets. */
static void run_loss(const char *op, int isa, int64_t n, int64_t width, const float *x,
                     const float *target, float *grad, double tally[TR_TALLY])
{
    const int64_t d[2] = {n, width};
    harness h = open_level(op, TR_PRECISION_FP32, isa, 1);
    const int in = h_in(&h, TR_F32, 2, d), t = h_in_role(&h, TR_ROLE_TARGET, TR_F32, 2, d);
    const int out = h_out(&h, TR_F32, 2, d);
    memcpy(h.data[in], x, h.tensors[in].nbytes);
    memcpy(h.data[t], target, h.tensors[t].nbytes);
    memset(tally, 0, TR_TALLY * sizeof *tally);
    h.run.tally = tally;
    h_prepare(&h, attrs_of(op), TR_ACT_NONE);
    h_run(&h, false);
    memcpy(grad, h.data[out], h.tensors[out].nbytes);
    h_close(&h);
}

static void extreme_outputs(void **state)
{
    (void)state;
    double tally[TR_TALLY];
    float grad[2];
    FOR_LEVELS(isa)
    {
        const float far[2] = {500, -500}, same[2] = {1, 0}, other[2] = {0, 1}, nan[2] = {NAN, 1};
        run_loss("bce", isa, 1, 2, far, same, grad, tally);
        assert_true(tally[TR_TALLY_LOSS] == 0 && tally[TR_TALLY_CORRECT] == 1);
        assert_true(grad[0] == 0 && grad[1] == 0);
        run_loss("bce", isa, 1, 2, far, other, grad, tally);
        assert_true(tally[TR_TALLY_LOSS] == 1000 && tally[TR_TALLY_CORRECT] == 0);
        assert_true(grad[0] == 1 && grad[1] == -1);
        run_loss("bce", isa, 1, 2, nan, same, grad, tally);
        assert_true(isnan(tally[TR_TALLY_LOSS]) && isnan(grad[0]) && isfinite(grad[1]));
        assert_true(tally[TR_TALLY_CORRECT] == 0);
        run_loss("mse", isa, 1, 2, nan, same, grad, tally);
        assert_true(isnan(tally[TR_TALLY_LOSS]) && isnan(grad[0]));
        run_loss("l1", isa, 1, 2, nan, nan, grad, tally);
        assert_true(isnan(tally[TR_TALLY_LOSS]) && isnan(grad[0]) && grad[1] == 0);
        run_loss("huber", isa, 1, 2, nan, same, grad, tally);
        assert_true(isnan(tally[TR_TALLY_LOSS]) && isnan(grad[0]) && grad[1] == 1);
        run_loss("focal", isa, 1, 2, far, same, grad, tally);
        assert_true(tally[TR_TALLY_LOSS] == 0 && tally[TR_TALLY_CORRECT] == 1);
        assert_true(grad[0] == 0 && grad[1] == 0);
        run_loss("focal", isa, 1, 2, far, other, grad, tally);
        assert_true(tally[TR_TALLY_LOSS] == 500 && tally[TR_TALLY_CORRECT] == 0);
        assert_true(grad[0] == 0.75f && grad[1] == -0.25f);
        run_loss("focal", isa, 1, 2, nan, same, grad, tally);
        assert_true(isnan(tally[TR_TALLY_LOSS]) && isnan(grad[0]) && isfinite(grad[1]));
        const float huge[2] = {2e30f, 0};
        run_loss("mse", isa, 1, 2, huge, same, grad, tally);
        assert_true(fabs(tally[TR_TALLY_LOSS] / 4e60 - 1) < 1e-6);
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    double first = 0;
    for (int threads = 1; threads <= 3; threads++) {
        const int64_t d[2] = {400, 500};
        double tally[TR_TALLY] = {0};
        harness h = h_open_with("bce", TR_PRECISION_FP32, true, threads);
        h_fill(&h, h_in(&h, TR_F32, 2, d), 1);
        h_fill_range(&h, h_in_role(&h, TR_ROLE_TARGET, TR_F32, 2, d), 2, 0, 1);
        h_out(&h, TR_F32, 2, d);
        h.run.tally = tally;
        h_prepare(&h, attrs_of("bce"), TR_ACT_NONE);
        h_run(&h, false);
        if (threads == 1) first = tally[TR_TALLY_LOSS];
        assert_true(tally[TR_TALLY_LOSS] == first);
        h_close(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise_losses_match),
        cmocka_unit_test(extreme_outputs),
        cmocka_unit_test(threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
