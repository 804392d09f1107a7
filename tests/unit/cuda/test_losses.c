/* Losses in every layout of rows: sums, gradients and counts where logits are equal, not numbers or
 * not finite, labels that are no class, tails, no elements. Against plain C in float64. */
#include "loops_harness.h"

#include "kernels/cuda/loops/loss.h"

typedef struct {
    double tally[TR_TALLY], *dz;
    int64_t *confusion; /* only for few classes */
} xent_result;

/* As ops.h and kernels/cpu/loops/softmax.c define it. */
static void xent_reference(const array *z, const array *labels, const double *w, double s,
                           size_t rows, size_t C, double scale, bool train, xent_result *out)
{
    memset(out->tally, 0, sizeof out->tally);
    for (size_t r = 0; r < rows; r++) {
        const double *v = z->v + r * C;
        const size_t label = (size_t)labels->v[r];
        double top = -INFINITY, sum = 0, loss = 0, all = 0;
        size_t ahead = 0, first = 0;
        for (size_t c = C; c-- > 0;) top = v[c] > top ? v[c] : top;
        for (size_t c = C; c-- > 0;) first = v[c] == top ? c : first;
        for (size_t c = 0; c < C; c++) sum += exp(v[c] - top);
        for (size_t c = 0; c < C; c++) ahead += v[c] > v[label] || (v[c] == v[label] && c < label);
        const double lse = top + log(sum);
        for (size_t c = 0; c < C; c++) {
            const double weight = w ? w[c] : 1;
            all += weight;
            if (s > 0) loss += s / (double)C * weight * (lse - v[c]);
        }
        const double mine = w ? w[label] : 1;
        loss += (1 - s) * mine * (lse - v[label]);
        out->tally[TR_TALLY_LOSS] += loss;
        out->tally[TR_TALLY_WEIGHT] += mine;
        out->tally[TR_TALLY_SAMPLES]++;
        out->tally[TR_TALLY_TARGETS]++;
        out->tally[TR_TALLY_CORRECT] += isfinite(lse) && ahead == 0;
        if (!train) out->tally[TR_TALLY_TOP5] += isfinite(lse) && ahead < 5;
        if (out->confusion) out->confusion[label * C + first]++;
        for (size_t c = 0; train && c < C; c++) {
            const double p = exp(v[c] - top) / sum;
            out->dz[r * C + c] = scale * ((1 - s) * mine * (p - (c == label)) +
                                          s / (double)C * (p * all - (w ? w[c] : 1)));
        }
    }
}

static void same_tally(const double *got, const double *want, size_t rows, size_t D)
{
    for (int i = 0; i < TR_TALLY; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (!(got[i] == want[i] || fabs(got[i] - want[i]) <= 2e-6 * (1 + fabs(want[i]))))
            fail_msg("%zu rows of %zu: tally %d is %.12g, expected %.12g", rows, D, i, got[i],
                     want[i]);
    }
}

static void xent_case(tr_cuda *cuda, tr_dtype type, size_t rows, size_t C, size_t skew, size_t keep,
                      double s, bool weighted, bool train, bool odd)
{
    array z = array_of(cuda, type, rows * C, skew, 1, -8, 8), dz = array_like(&z);
    array labels = array_of(cuda, TR_I32, rows, 0, 2, 0, 1);
    array w = array_of(cuda, TR_F64, C, 0, 3, 0.2, 2);
    array tally = array_of(cuda, TR_F64, TR_TALLY, 0, 4, 0, 0);
    array part = array_of(cuda, TR_F64, TR_LOSS_WORKSPACE / sizeof(double), 0, 5, 1e30, 2e30);
    const bool count = C <= 300 && !train;
    void *confusion = count ? b->memory->alloc(cuda, TR_MEM_OTHER, C * C * sizeof(int64_t)) : NULL;
    const tr_control control = {.loss_scale = 8};
    tr_control *device = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof control);
    xent_result want = {.dz = malloc((rows * C + 1) * sizeof *want.dz),
                        .confusion = count ? calloc(C * C, sizeof *want.confusion) : NULL};
    double all = 0;
    assert_ok(b->memory->upload(cuda, device, &control, sizeof control));
    for (size_t c = 0; c < C; c++) all += w.v[c];
    for (size_t r = 0; r < rows; r++) {
        labels.v[r] = (double)((r * 7919 + C / 2) % C);
        if (r % 3 == 0) z.v[r * C + (size_t)labels.v[r]] = 8; /* right, but for equals before it */
        if (r % 6 == 0) z.v[r * C + C / 3] = 8;
        if (odd && r % 8 == 1) z.v[r * C + r % C] = -INFINITY;
        if (odd && r == 2) z.v[r * C + C / 2] = NAN;
        if (odd && r == 3) z.v[r * C + C / 2] = INFINITY;
        for (size_t c = 0; odd && r == 4 && c < C; c++) z.v[r * C + c] = NAN;
        for (size_t c = 0; odd && r == 5 && c < C; c++) z.v[r * C + c] = -INFINITY;
    }
    send(&z);
    send(&labels);
    xent_reference(&z, &labels, weighted ? w.v : NULL, s, rows, C, 8, train, &want);
    const tr_cuda_cross_entropy_args a = {.logits = z.at,
                                          .labels = labels.at,
                                          .dlogits = train ? dz.at : NULL,
                                          .rows = rows,
                                          .each = 1,
                                          .classes = C,
                                          .pitch = C,
                                          .smoothing = s,
                                          .weights = weighted ? w.at : NULL,
                                          .weight_sum = weighted ? all : (double)C,
                                          .factor = 1,
                                          .control = device,
                                          .scale = 1,
                                          .confusion = confusion,
                                          .tally = tally.at,
                                          .partial = part.at,
                                          .keep = keep};
    assert_ok(tr_cuda_cross_entropy_run(type, &a, cuda->stream));
    receive(&tally);
    same_tally(tally.v, want.tally, rows, C);
    if (train) close_to(&dz, want.dz, 4e-6 * (1 + s * (double)C * 1e-3), "dlogits", C);
    if (count) {
        int64_t *got = malloc(C * C * sizeof *got);
        assert_ok(b->memory->download(cuda, got, confusion, C * C * sizeof *got));
        assert_memory_equal(got, want.confusion, C * C * sizeof *got);
        free(got);
    }
    b->memory->free(cuda, confusion);
    b->memory->free(cuda, device);
    drop(&z);
    drop(&dz);
    drop(&labels);
    drop(&w);
    drop(&tally);
    drop(&part);
    free(want.dz);
    free(want.confusion);
}

static void xent_rows(tr_cuda *cuda, tr_dtype type, size_t rows, size_t D, size_t skew, size_t keep)
{
    xent_case(cuda, type, rows, D, skew, keep, 0, false, true, false);
    xent_case(cuda, type, rows, D, skew, keep, 0, true, false, false);
    if (D > 20000) return;
    xent_case(cuda, type, rows, D, skew, keep, 0.1, false, true, false);
    xent_case(cuda, type, rows, D, skew, keep, 0.1, true, true, false);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    over_rows(xent_rows, tr_cuda_cross_entropy_ready);
}

static void test_cross_entropy_odd(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (int train = 0; train < 2; train++) {
            xent_case(cuda, types[t], 40, 3, 0, 0, 0, false, train, true);
            xent_case(cuda, types[t], 40, 64, 0, 0, 0, false, train, true);
            xent_case(cuda, types[t], 6, 2000, 0, 0, 0, false, train, true);
            xent_case(cuda, types[t], 6, 9000, 0, 0, 0, false, train, true);
            xent_case(cuda, types[t], 40, 5, 0, 0, 0, false, train, false); /* all in the top 5 */
            xent_case(cuda, types[t], 3000, 4, 0, 0, 0.3, true, train, false);
            xent_case(cuda, types[t], 1100, 1100, 0, 0, 0, false, train, false);
        }
    b->close(cuda);
}

/* More rows than blocks: the next one comes into shared memory while the one before it is
 * written. */
static void test_cross_entropy_row_after_row(void **state)
{
    (void)state;
    enum { ROWS = TR_LOSS_BLOCKS + 40, CLASSES = 8200 };
    tr_cuda *cuda = open_with(false);
    const size_t room = tr_cuda_row_room(cuda);
    assert_ok(tr_cuda_cross_entropy_ready(TR_BF16, room));
    for (int train = 0; train < 2; train++)
        xent_case(cuda, TR_BF16, ROWS, CLASSES, 0, room, 0, false, train, true);
    b->close(cuda);
}

/* A label that no loader would let through harms nothing but the sums. */
static void test_cross_entropy_bad_label(void **state)
{
    (void)state;
    static const int32_t bad[] = {3, -1, INT32_MAX, INT32_MIN};
    tr_cuda *cuda = open_with(false);
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        array z = array_of(cuda, TR_F32, 6, 0, 1, -1, 1), dz = array_like(&z);
        array labels = array_of(cuda, TR_I32, 2, 0, 0, 0, 0),
              tally = array_of(cuda, TR_F64, TR_TALLY, 0, 0, 0, 0);
        array part = array_of(cuda, TR_F64, TR_LOSS_WORKSPACE / sizeof(double), 0, 0, 0, 0);
        int64_t counts[9], sum = 0;
        void *confusion = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof counts);
        labels.v[0] = 2;
        labels.v[1] = bad[i];
        send(&labels);
        const tr_cuda_cross_entropy_args a = {.logits = z.at,
                                              .labels = labels.at,
                                              .dlogits = dz.at,
                                              .rows = 2,
                                              .each = 1,
                                              .classes = 3,
                                              .pitch = 3,
                                              .weight_sum = 3,
                                              .scale = 1,
                                              .confusion = confusion,
                                              .tally = tally.at,
                                              .partial = part.at};
        assert_ok(tr_cuda_cross_entropy_run(TR_F32, &a, cuda->stream));
        receive(&tally);
        receive(&dz);
        assert_ok(b->memory->download(cuda, counts, confusion, sizeof counts));
        for (int k = 0; k < 9; k++) sum += counts[k];
        assert_true(isnan(tally.v[TR_TALLY_LOSS]) && tally.v[TR_TALLY_SAMPLES] == 2 && sum == 1);
        for (int k = 0; k < 3; k++) assert_true(isfinite(dz.v[k]) && isnan(dz.v[3 + k]));
        b->memory->free(cuda, confusion);
        drop(&z);
        drop(&dz);
        drop(&labels);
        drop(&tally);
        drop(&part);
    }
    b->close(cuda);
}

static const float positives[3] = {0.5f, 3, 1.25f};

static const tr_elementwise_loss_attrs elementwise[] = {
    {.kind = TR_LOSS_MSE},
    {.kind = TR_LOSS_BCE},
    {.kind = TR_LOSS_BCE, .npos = 3, .pos_weight = positives},
    {.kind = TR_LOSS_HUBER, .delta = 4, .curve = 1, .slope = 4},
    {.kind = TR_LOSS_FOCAL, .gamma = 2, .alpha = 0.25f},
};

/* Loss and gradient: bce and focal from the derivative of log p_t. */
static double element(const tr_elementwise_loss_attrs *a, size_t i, double z, double t,
                      double *grad)
{
    const double d = z - t, p = 1 / (1 + exp(-z)), other = 1 / (1 + exp(z));
    const double bce = fmax(z, 0) - z * t + log1p(exp(-fabs(z)));
    const double wrong = other * t + p * (1 - t), alpha = (double)a->alpha;
    const double counts = alpha * t + (1 - alpha) * (1 - t), gamma = (double)a->gamma;
    const double w = a->npos ? (double)positives[i % 3] : 1, delta = (double)a->delta;
    switch (a->kind) {
    case TR_LOSS_MSE:
        *grad = 2 * d;
        return d * d;
    case TR_LOSS_BCE:
        *grad = p * (1 - t) - w * t * other;
        return w * t * (fmax(-z, 0) + log1p(exp(-fabs(z)))) +
               (1 - t) * (fmax(z, 0) + log1p(exp(-fabs(z))));
    case TR_LOSS_FOCAL:
        *grad = counts * (pow(wrong, gamma) * (p - t) +
                          gamma * pow(wrong, gamma - 1) * (1 - 2 * t) * p * other * bce);
        return counts * pow(wrong, gamma) * bce;
    default:
        *grad = fabs(d) < delta ? d : copysign(delta, d);
        return fabs(d) < delta ? d * d / 2 : delta * (fabs(d) - delta / 2);
    }
}

static void elementwise_case(tr_cuda *cuda, tr_dtype type, size_t n, size_t skew, bool train,
                             const tr_elementwise_loss_attrs *loss)
{
    array y = array_of(cuda, type, n, skew, 1, -20, 20), dy = array_like(&y);
    array goal = array_of(cuda, TR_F32, n, skew, 2, 0, 1);
    array tally = array_of(cuda, TR_F64, TR_TALLY, 0, 3, 1, 2);
    array part = array_of(cuda, TR_F64, TR_LOSS_WORKSPACE / sizeof(double), 0, 5, 1e30, 2e30);
    array pos = array_of(cuda, TR_F32, 3, 0, 6, 0, 1);
    double want[TR_TALLY], *grad = malloc((n + 1) * sizeof *grad), correct = 0;
    memcpy(want, tally.v, sizeof want); /* is added to */
    for (size_t i = 0; i < 3; i++) pos.v[i] = (double)positives[i];
    send(&pos);
    for (size_t i = 0; i < n; i++) {
        want[TR_TALLY_LOSS] += element(loss, i, y.v[i], goal.v[i], &grad[i]);
        correct += tr_loss_counts(loss->kind) && (y.v[i] > 0) == (goal.v[i] > 0.5);
        grad[i] *= 4;
    }
    if (n > 0) {
        want[TR_TALLY_WEIGHT] += (double)n;
        want[TR_TALLY_SAMPLES] += 3;
        want[TR_TALLY_TARGETS] += 3;
        want[TR_TALLY_CORRECT] += correct * 3 / (double)n;
    }
    const tr_cuda_elementwise_loss_args a = {.y = y.at,
                                             .target = goal.at,
                                             .dy = train ? dy.at : NULL,
                                             .count = n,
                                             .samples = 3,
                                             .scale = 4,
                                             .tally = tally.at,
                                             .partial = part.at,
                                             .loss = loss,
                                             .pos = loss->npos ? pos.at : NULL};
    assert_ok(tr_cuda_elementwise_loss_run(type, &a, cuda->stream));
    receive(&tally);
    same_tally(tally.v, want, n, 1);
    if (train) close_to(&dy, grad, 2e-5, "dy", 1);
    free(grad);
    drop(&y);
    drop(&dy);
    drop(&goal);
    drop(&tally);
    drop(&part);
    drop(&pos);
}

static void test_elementwise_losses(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 8, 1023, 40001, 2100003};
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (size_t k = 0; k < TR_COUNT(sizes); k++)
            for (size_t which = 0; which < TR_COUNT(elementwise); which++)
                for (int how = 0; how < 4; how++) {
                    const size_t n = sizes[k], skew = how & 2 ? 1 : 0;
                    if (n > 100000 && (skew || types[t] != TR_BF16 || which > 1)) continue;
                    elementwise_case(cuda, types[t], n, skew, how & 1, &elementwise[which]);
                }
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_odd),
        cmocka_unit_test(test_cross_entropy_row_after_row),
        cmocka_unit_test(test_cross_entropy_bad_label),
        cmocka_unit_test(test_elementwise_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
