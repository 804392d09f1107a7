/* Losses of classes: values, gradients and tallies against float64 at every level, gradients by
 * central differences, what NaN does, labels out of range and those that do not count,
 * probabilities; losses beside a teacher. */
#include "tests/unit/cpu/loop_levels.h"

/* Straight from the definition in ops.h. */
static double xent(size_t C, const double *z, size_t label, double s, const double *w, double *dz)
{
    double top = -INFINITY, sum = 0, loss = 0, factors = 0;
    for (size_t c = 0; c < C; c++) top = fmax(top, z[c]);
    for (size_t c = 0; c < C; c++) sum += exp(z[c] - top);
    const double log_sum = top + log(sum);
    for (size_t c = 0; c < C; c++) {
        const double weight = w ? w[c] : 1;
        const double factor = weight * (s / (double)C + (c == label ? 1 - s : 0));
        factors += factor;
        loss -= factor * (z[c] - log_sum);
        if (dz) dz[c] -= factor;
    }
    for (size_t c = 0; dz && c < C; c++) dz[c] += factors * exp(z[c] - log_sum);
    return loss;
}

static void reference_is_the_derivative(void **state)
{
    (void)state;
    double z[6], w[6], dz[6] = {0};
    for (size_t i = 0; i < 6; i++) z[i] = uniform(1, i, -2, 2), w[i] = uniform(2, i, 0.2, 2);
    xent(6, z, 4, 0.1, w, dz);
    for (size_t i = 0; i < 6; i++) {
        const double keep = z[i];
        z[i] = keep + 1e-5;
        const double up = xent(6, z, 4, 0.1, w, NULL);
        z[i] = keep - 1e-5;
        const double down = xent(6, z, 4, 0.1, w, NULL);
        z[i] = keep;
        assert_true(fabs((up - down) / 2e-5 - dz[i]) < 1e-9);
    }
}

static void check_xent(size_t rows, size_t C, tr_precision p, int isa, double smoothing,
                       bool weighted, bool train)
{
    const int64_t d[2] = {(int64_t)rows, (int64_t)C};
    double *w = doubles(C), *z = doubles(C), *want = doubles(rows * C), tally[TR_TALLY] = {0};
    double expected[TR_TALLY] = {0};
    int64_t *confusion = tr_alloc(TR_MEM_OTHER, C * C, sizeof *confusion);
    for (size_t c = 0; c < C; c++) w[c] = uniform(7, c, 0.2, 3);
    const tr_cross_entropy_attrs a = {.label_smoothing = smoothing,
                                      .classes = C,
                                      .class_weights = weighted ? w : NULL,
                                      .factor = 1};
    harness h = open_level("cross_entropy", p, isa, 2);
    const int logits = h_in(&h, h_activation(&h), 2, d);
    const int labels = h_in_role(&h, TR_ROLE_TARGET, TR_I32, 1, d);
    int grad = -1;
    if (train)
        grad = h_out(&h, h_activation(&h), 2, d);
    else
        h_absent_out(&h);
    h_fill_range(&h, logits, 1, -6, 6);
    for (size_t r = 0; r < rows; r++) {
        const size_t label = (size_t)(uniform(3, r, 0, 1) * (double)C);
        size_t before = 0, best = 0;
        h_put(&h, labels, r, (double)label);
        if (r % 3 == 0 && C > 2) /* ties, some of them for the first place */
            for (size_t c = 0; c < C; c += 2) h_put(&h, logits, r * C + c, r % 2 ? 6 : 2);
        for (size_t c = 0; c < C; c++) z[c] = h_get(&h, logits, r * C + c);
        for (size_t c = 0; c < C; c++) {
            before += z[c] > z[label] || (z[c] == z[label] && c < label);
            if (z[c] > z[best]) best = c;
        }
        expected[TR_TALLY_LOSS] += xent(C, z, label, smoothing, a.class_weights, want + r * C);
        expected[TR_TALLY_WEIGHT] += weighted ? w[label] : 1;
        expected[TR_TALLY_SAMPLES] += 1;
        expected[TR_TALLY_TARGETS] += 1;
        expected[TR_TALLY_CORRECT] += before == 0;
        expected[TR_TALLY_TOP5] += before < 5 && !train;
        confusion[label * C + best] -= 1; /* to be cancelled */
    }
    h.run.tally = tally;
    h.run.confusion = confusion;
    h.run.loss_scale = 8;
    for (size_t i = 0; i < rows * C; i++) want[i] *= 8;
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < TR_TALLY; i++)
        if (!(fabs(tally[i] - expected[i]) <= 1e-6 * (1 + fabs(expected[i]))))
            fail_msg("tally %zu is %.9g, expected %.9g", i, tally[i], expected[i]);
    for (size_t i = 0; i < C * C; i++) assert_int_equal(confusion[i], 0);
    if (train)
        expect(&h, grad, want, tolerance(p) * 8, "dlogits");
    else
        tr_free(want);
    tr_free(w);
    tr_free(z);
    tr_free(confusion);
    h_close(&h);
}

/* What a label's focal loss makes of -log p. */
static double focal(size_t C, const double *z, size_t label, double gamma, double w)
{
    const double far = xent(C, z, label, 0, NULL, NULL);
    return w * far * pow(-expm1(-far), gamma);
}

/* Every third label does not count. */
static void check_counted(size_t rows, size_t C, tr_precision p, int isa, double gamma, bool train,
                          bool weighted)
{
    const int64_t d[2] = {(int64_t)rows, (int64_t)C};
    double *w = doubles(C), *z = doubles(C), *want = doubles(rows * C), tally[TR_TALLY] = {0};
    double loss = 0, weight = 0, counted = 0;
    int64_t *confusion = tr_alloc(TR_MEM_OTHER, C * C, sizeof *confusion), seen = 0;
    for (size_t c = 0; c < C; c++) w[c] = uniform(7, c, 0.2, 3);
    const tr_cross_entropy_attrs a = {.classes = C,
                                      .class_weights = w,
                                      .factor = 1,
                                      .gamma = gamma,
                                      .ignores = true,
                                      .ignore_index = -100};
    harness h = open_level("cross_entropy", p, isa, 2);
    const int logits = h_in(&h, h_activation(&h), 2, d);
    const int labels = h_in_role(&h, TR_ROLE_TARGET, TR_I32, 1, d);
    const int own = weighted ? h_in_role(&h, TR_ROLE_TARGET, TR_F32, 1, d) : -1;
    const int grad = train ? h_out(&h, h_activation(&h), 2, d) : -1;
    if (!train) h_absent_out(&h);
    h_fill_range(&h, logits, 1, -6, 6);
    if (weighted) h_fill_range(&h, own, 8, 0, 3);
    for (size_t r = 0; r < rows; r++) {
        const size_t label = (size_t)(uniform(3, r, 0, 1) * (double)C);
        h_put(&h, labels, r, r % 3 == 1 ? -100 : (double)label);
        if (r % 3 == 1) {
            if (r % 2) h_put(&h, logits, r * C, NAN);
            continue;
        }
        for (size_t c = 0; c < C; c++) z[c] = h_get(&h, logits, r * C + c);
        const double mine = w[label] * (weighted ? h_get(&h, own, r) : 1);
        loss += focal(C, z, label, gamma, mine);
        weight += mine;
        counted++;
        for (size_t c = 0; c < C; c++) {
            const double keep = z[c], step = 1e-5;
            z[c] = keep + step;
            const double up = focal(C, z, label, gamma, mine);
            z[c] = keep - step;
            want[r * C + c] = 8 * (up - focal(C, z, label, gamma, mine)) / (2 * step);
            z[c] = keep;
        }
    }
    h.run.tally = tally;
    h.run.confusion = confusion;
    h.run.loss_scale = 8;
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < C * C; i++) seen += confusion[i];
    assert_true(tally[TR_TALLY_SAMPLES] == counted && seen == (int64_t)counted);
    assert_true(fabs(tally[TR_TALLY_WEIGHT] - weight) <= 1e-9 * weight);
    if (!(fabs(tally[TR_TALLY_LOSS] - loss) <= 2e-6 * (1 + loss)))
        fail_msg("%zu rows of %zu, gamma %g: the loss is %.9g, expected %.9g", rows, C, gamma,
                 tally[TR_TALLY_LOSS], loss);
    if (train)
        expect(&h, grad, want, tolerance(p) * 64 + 1e-6, "dlogits");
    else
        tr_free(want);
    tr_free(w);
    tr_free(z);
    tr_free(confusion);
    h_close(&h);
}

static void labels_that_do_not_count(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 2}, {64, 10}, {17, 33}, {5, 300}};
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        check_counted(shapes[s][0], shapes[s][1], p, isa, 0, true, false);
        check_counted(shapes[s][0], shapes[s][1], p, isa, 2, true, true);
        if (shapes[s][1] < 300) check_counted(shapes[s][0], shapes[s][1], p, isa, 0.5, false, true);
    }
}

/* Rows behind the end of a text that is evaluated, by a loss that ignores none. */
static void filled_rows_do_not_count(void **state)
{
    (void)state;
    enum { N = 2, ROWS = 5, C = 7 };
    const tr_cross_entropy_attrs a = {.classes = C, .factor = 1};
    double tally[TR_TALLY] = {0}, loss = 0, z[C];
    harness h = h_open("cross_entropy", TR_PRECISION_FP32, false);
    h.graph.mode = TR_MODE_EVALUATE;
    const int logits = h_in(&h, TR_F32, 3, (int64_t[]){N, ROWS, C});
    const int labels = h_in_role(&h, TR_ROLE_TARGET, TR_I32, 2, (int64_t[]){N, ROWS});
    h_absent_out(&h);
    h_fill_range(&h, logits, 1, -6, 6);
    for (size_t r = 0; r < N * ROWS; r++) {
        h_put(&h, labels, r, r < 7 ? (double)(r % C) : TR_FILLED_LABEL);
        for (size_t c = 0; c < C; c++) z[c] = h_get(&h, logits, r * C + c);
        if (r < 7) loss += xent(C, z, r % C, 0, NULL, NULL);
    }
    h.run.tally = tally;
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    assert_true(tally[TR_TALLY_SAMPLES] == N && tally[TR_TALLY_TARGETS] == 7 &&
                tally[TR_TALLY_WEIGHT] == 7);
    assert_true(fabs(tally[TR_TALLY_LOSS] - loss) <= 2e-6 * (1 + loss));
    h_close(&h);
}

static double soft_xent(size_t C, const double *z, const double *t, double s, const double *w,
                        double *dz)
{
    double top = -INFINITY, sum = 0, loss = 0, all = 0;
    for (size_t c = 0; c < C; c++) top = fmax(top, z[c]);
    for (size_t c = 0; c < C; c++) sum += exp(z[c] - top);
    for (size_t c = 0; c < C; c++) {
        const double q = (w ? w[c] : 1) * ((1 - s) * t[c] + s / (double)C);
        all += q;
        loss += q * (top + log(sum) - z[c]);
        dz[c] = -q;
    }
    for (size_t c = 0; c < C; c++) dz[c] += all * exp(z[c] - top) / sum;
    return loss;
}

static void check_soft(size_t rows, size_t C, tr_precision p, int isa, double smoothing,
                       bool weighted, bool train, bool samples)
{
    const int64_t d[2] = {(int64_t)rows, (int64_t)C};
    double *w = doubles(C), *z = doubles(C), *t = doubles(C), *want = doubles(rows * C);
    double tally[TR_TALLY] = {0}, loss = 0, correct = 0, top5 = 0, weight = 0;
    int64_t *confusion = tr_alloc(TR_MEM_OTHER, C * C, sizeof *confusion);
    for (size_t c = 0; c < C; c++) w[c] = uniform(7, c, 0.2, 3);
    const tr_cross_entropy_attrs a = {.label_smoothing = smoothing,
                                      .classes = C,
                                      .class_weights = weighted ? w : NULL,
                                      .factor = 1};
    harness h = open_level("cross_entropy", p, isa, 2);
    const int logits = h_in(&h, h_activation(&h), 2, d);
    const int target = h_in_role(&h, TR_ROLE_TARGET, TR_F32, 2, d);
    const int own = samples ? h_in_role(&h, TR_ROLE_TARGET, TR_F32, 1, d) : -1;
    const int grad = train ? h_out(&h, h_activation(&h), 2, d) : -1;
    if (!train) h_absent_out(&h);
    h_fill_range(&h, logits, 1, -6, 6);
    if (samples) h_fill_range(&h, own, 8, 0, 3);
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        size_t label = 0, best = 0, ahead = 0;
        for (size_t c = 0; c < C; c++) sum += t[c] = uniform(5, r * C + c, 0, 1);
        for (size_t c = 0; c < C; c++) {
            h_put(&h, target, r * C + c, r % 4 == 3 ? c == r % C : t[c] / sum);
            t[c] = h_get(&h, target, r * C + c);
            z[c] = h_get(&h, logits, r * C + c);
            if (t[c] > t[label]) label = c;
            if (z[c] > z[best]) best = c;
        }
        for (size_t c = 0; c < C; c++) ahead += z[c] > z[label] || (z[c] == z[label] && c < label);
        const double counts = samples ? h_get(&h, own, r) : 1;
        weight += counts;
        loss += counts * soft_xent(C, z, t, smoothing, a.class_weights, want + r * C);
        correct += ahead == 0;
        top5 += ahead < 5 && !train;
        confusion[label * C + best]--; /* to be cancelled */
        for (size_t c = 0; c < C; c++) want[r * C + c] *= 8 * counts;
    }
    h.run.tally = tally;
    h.run.confusion = confusion;
    h.run.loss_scale = 8;
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    if (!(fabs(tally[TR_TALLY_LOSS] - loss) <= 2e-6 * (1 + loss)))
        fail_msg("%zu rows of %zu: the loss is %.9g, expected %.9g", rows, C, tally[TR_TALLY_LOSS],
                 loss);
    assert_true(fabs(tally[TR_TALLY_WEIGHT] - weight) <= 1e-9 * weight);
    assert_true(tally[TR_TALLY_SAMPLES] == (double)rows);
    assert_true(tally[TR_TALLY_CORRECT] == correct && tally[TR_TALLY_TOP5] == top5);
    for (size_t i = 0; i < C * C; i++) assert_int_equal(confusion[i], 0);
    if (train)
        expect(&h, grad, want, tolerance(p) * 48, "dlogits");
    else
        tr_free(want);
    tr_free(w);
    tr_free(z);
    tr_free(t);
    tr_free(confusion);
    h_close(&h);
}

static void probabilities_match(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 2}, {64, 10}, {17, 33}, {9, 128}, {5, 1000}};
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        const size_t rows = shapes[s][0], C = shapes[s][1];
        check_soft(rows, C, p, isa, 0, false, true, false);
        check_soft(rows, C, p, isa, 0.2, true, true, true);
        if (C <= 128) check_soft(rows, C, p, isa, 0.1, false, false, true);
    }
}

static void cross_entropy_matches(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 2}, {64, 10}, {17, 33}, {5, 3000}, {200, 100}};
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        const size_t rows = shapes[s][0], C = shapes[s][1];
        check_xent(rows, C, p, isa, 0, false, true);
        check_xent(rows, C, p, isa, 0.1, false, true);
        if (C <= 100) check_xent(rows, C, p, isa, 0.2, true, true);
        if (C <= 100) check_xent(rows, C, p, isa, 0, true, false);
    }
}

/* Over `n` rows of `width` float32 logits; grad NULL: evaluating. */
static tr_status run_loss(int isa, int64_t n, int64_t width, const float *x, const int32_t *labels,
                          float *grad, double tally[TR_TALLY], int64_t *confusion)
{
    const int64_t d[2] = {n, width};
    const tr_cross_entropy_attrs a = {.classes = (size_t)width, .factor = 1};
    harness h = open_level("cross_entropy", TR_PRECISION_FP32, isa, 1);
    const int in = h_in(&h, TR_F32, 2, d), t = h_in_role(&h, TR_ROLE_TARGET, TR_I32, 1, d);
    const int out = grad ? h_out(&h, TR_F32, 2, d) : -1;
    if (!grad) h_absent_out(&h);
    memcpy(h.data[in], x, h.tensors[in].nbytes);
    memcpy(h.data[t], labels, h.tensors[t].nbytes);
    memset(tally, 0, TR_TALLY * sizeof *tally);
    h.run.tally = tally;
    h.run.confusion = confusion;
    h_prepare(&h, &a, TR_ACT_NONE);
    const tr_status st = h.kernel->run(h.kernel, &h.run);
    if (grad) memcpy(grad, h.data[out], h.tensors[out].nbytes);
    h_close(&h);
    return st;
}

static void odd_logits(void **state)
{
    (void)state;
    const float big = 3e38f;
    const float x[5][3] = {
        {NAN, 1, 2}, {NAN, NAN, NAN}, {1, INFINITY, 0}, {big, -big, 0}, {1, 0, 0}};
    const int32_t labels[5] = {0, 1, 1, 0, 0};
    FOR_LEVELS(isa) for (size_t r = 0; r < 5; r++)
    {
        double tally[TR_TALLY];
        int64_t confusion[9] = {0}, seen = 0;
        float grad[3];
        assert_int_equal(run_loss(isa, 1, 3, x[r], &labels[r], grad, tally, confusion), TR_OK);
        for (size_t i = 0; i < 9; i++) seen += confusion[i];
        assert_int_equal(seen, 1);
        assert_true(isfinite(tally[TR_TALLY_LOSS]) == (r > 2));
        assert_true(tally[TR_TALLY_CORRECT] == (r > 2 ? 1 : 0));
        assert_true(isnan(grad[0]) == (r < 2) || r == 2);
        run_loss(isa, 1, 3, x[r], &labels[r], NULL, tally, NULL);
        assert_true(tally[TR_TALLY_TOP5] == (r > 2 ? 1 : 0));
    }
}

static void labels_out_of_range_are_bad_data(void **state)
{
    (void)state;
    const float x[6] = {0};
    static const int32_t bad[] = {3, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        const int32_t labels[2] = {2, bad[i]};
        double tally[TR_TALLY];
        const tr_status st = run_loss(1, 2, 3, x, labels, NULL, tally, NULL);
#ifdef TEST_MIRROR /* a device cannot stop a run: the loss is NaN (labels are checked when read)   \
                    */
        assert_int_equal(st, TR_OK);
        assert_true(isnan(tally[TR_TALLY_LOSS]));
#else
        assert_int_equal(st, TR_DATA);
        assert_true(tally[TR_TALLY_SAMPLES] == 0);
        assert_non_null(strstr(tr_last_error()->text, "sample 1"));
#endif
    }
}

/* ---- Beside a teacher ------------------------------------------------------------------------ */

/* KL(softmax(t / T) || softmax(z / T)); dz: of that. */
static double soft(size_t C, const double *z, const double *t, double T, double *dz)
{
    double top_z = -INFINITY, top_t = -INFINITY, sum_z = 0, sum_t = 0, kl = 0;
    for (size_t c = 0; c < C; c++) top_z = fmax(top_z, z[c] / T), top_t = fmax(top_t, t[c] / T);
    for (size_t c = 0; c < C; c++) sum_z += exp(z[c] / T - top_z), sum_t += exp(t[c] / T - top_t);
    for (size_t c = 0; c < C; c++) {
        const double q = exp(z[c] / T - top_z) / sum_z, p = exp(t[c] / T - top_t) / sum_t;
        if (p > 0) kl += p * (log(p) - (z[c] / T - top_z - log(sum_z)));
        dz[c] = (q - p) / T;
    }
    return kl;
}

static double squares(size_t C, const double *z, const double *t, double *dz)
{
    double sum = 0;
    for (size_t c = 0; c < C; c++) {
        sum += (z[c] - t[c]) * (z[c] - t[c]);
        dz[c] = 2 * (z[c] - t[c]);
    }
    return sum;
}

static void check_taught(bool features, size_t rows, size_t C, tr_precision p, int isa, double T,
                         bool weighted, bool gradient)
{
    const int64_t d[2] = {(int64_t)rows, (int64_t)C};
    double weights[7], tally[TR_TALLY] = {0}, loss = 0, largest = 0;
    double *z = doubles(C), *t = doubles(C), *want = doubles(rows * C);
    for (size_t i = 0; i < 7; i++) weights[i] = uniform(7, i, 0.2, 3);
    const tr_distill_attrs a = {
        .factor = 1.75, .temperature = T, .classes = 7, .class_weights = weighted ? weights : NULL};
    harness h = open_level(features ? "feature_loss" : "soft_loss", p, isa, 2);
    const int x = h_in(&h, h_activation(&h), 2, d), teacher = h_in(&h, h_activation(&h), 2, d);
    int labels = -1, grad = -1;
    if (weighted)
        labels = h_in_role(&h, TR_ROLE_TARGET, TR_I32, 1, d);
    else
        h_absent_in(&h);
    if (gradient)
        grad = h_out(&h, h_activation(&h), 2, d);
    else
        h_absent_out(&h);
    h_fill_range(&h, x, 1, -6, 6);
    h_fill_range(&h, teacher, 2, -9, 9);
    for (size_t r = 0; r < rows; r++) {
        const double counts = 1.75 * (weighted ? weights[r % 7] : 1);
        if (weighted) h_put(&h, labels, r, (double)(r % 7));
        if (!features && r % 3 == 1 && C > 1) h_put(&h, teacher, r * C + r % C, -INFINITY);
        for (size_t c = 0; c < C; c++)
            z[c] = h_get(&h, x, r * C + c), t[c] = h_get(&h, teacher, r * C + c);
        loss +=
            counts * (features ? squares(C, z, t, want + r * C) : soft(C, z, t, T, want + r * C));
        for (size_t c = 0; c < C; c++) {
            want[r * C + c] *= 8 * counts;
            largest = fmax(largest, fabs(want[r * C + c]));
        }
    }
    h.run.tally = tally;
    h.run.loss_scale = 8;
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    /* sums of blocks in float32, in turn where the compiler does not make vectors of them */
    if (!(fabs(tally[TR_TALLY_LOSS] - loss) <= 2e-6 * (double)rows + 1e-5 * fabs(loss)))
        fail_msg("%zu rows of %zu: the loss is %.9g, expected %.9g", rows, C, tally[TR_TALLY_LOSS],
                 loss);
    for (size_t i = 0; i < TR_TALLY; i++) assert_true(i == TR_TALLY_LOSS || tally[i] == 0);
    if (gradient)
        expect(&h, grad, want, tolerance(p) * (4 + largest), "dx");
    else
        tr_free(want);
    tr_free(z);
    tr_free(t);
    h_close(&h);
}

static void teachers_match(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 2}, {64, 10}, {17, 33}, {40, 256}, {5, 3000}};
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    {
        const size_t rows = shapes[s][0], C = shapes[s][1];
        check_taught(false, rows, C, p, isa, 1, false, true);
        check_taught(false, rows, C, p, isa, 4, true, true);
        check_taught(true, rows, C, p, isa, 0, false, true);
        check_taught(true, rows, C, p, isa, 0, true, true);
        if (C <= 33) check_taught(false, rows, C, p, isa, 2, false, false);
        if (C <= 33) check_taught(true, rows, C, p, isa, 0, true, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_derivative),
        cmocka_unit_test(cross_entropy_matches),
        cmocka_unit_test(labels_that_do_not_count),
        cmocka_unit_test(filled_rows_do_not_count),
        cmocka_unit_test(probabilities_match),
        cmocka_unit_test(odd_logits),
        cmocka_unit_test(labels_out_of_range_are_bad_data),
        cmocka_unit_test(teachers_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
