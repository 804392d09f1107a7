/* The numbers of an evaluation, from scores and counts. */
#include "optimize/evaluation/metrics.h"

#include <math.h>
#include <stdlib.h>

/* log(sum of exp(z[j])) over all but j = k. */
static double sum_without(const float *z, size_t outputs, size_t k)
{
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j < outputs; j++)
        if (j != k && (z[j] > most || isnan(z[j]))) most = z[j];
    if (most == -INFINITY) return most;
    for (size_t j = 0; j < outputs; j++)
        if (j != k) sum += exp(z[j] - most);
    return most + log(sum);
}

void tr_scores(int loss, size_t samples, size_t outputs, float *z)
{
    if (loss != TR_LOSS_CROSS_ENTROPY || outputs < 2) return;
    for (size_t s = 0; s < samples; s++, z += outputs) {
        size_t top = 0;
        double sum = 0;
        for (size_t k = 1; k < outputs; k++)
            if (z[k] > z[top]) top = k;
        const double most = z[top], others = sum_without(z, outputs, top);
        for (size_t k = 0; k < outputs; k++) sum += exp(z[k] - most);
        /* but for the greatest, whose part the others' sum would vanish beside */
        for (size_t k = 0; k < outputs; k++)
            z[k] = (float)(z[k] - (k == top ? others : most + log(sum - exp(z[k] - most))));
    }
}

size_t tr_class_of(int loss, const float *logits, size_t outputs)
{
    size_t best = 0;
    if (tr_loss_binary(loss)) return isnan(logits[0]) ? TR_NO_CLASS : logits[0] > 0;
    for (size_t k = 0; k < outputs; k++)
        if (isnan(logits[k]) || logits[k] == INFINITY) return TR_NO_CLASS;
    for (size_t k = 1; k < outputs; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}

typedef struct {
    float score;
    bool positive;
} scored;

static int by_score(const void *a, const void *b)
{
    const float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return x < y ? -1 : x > y;
}

tr_status tr_auc(const float *scores, const bool *positive, size_t samples, double *out)
{
    scored *s = tr_alloc(TR_MEM_OTHER, samples, sizeof *s);
    double pairs = 0, negatives = 0, positives = 0; /* whole and half ones: exact up to 2^52 */
    bool numbers = true;
    if (!s) return tr_last_status();
    for (size_t i = 0; i < samples; i++) {
        s[i] = (scored){scores[i], positive[i]};
        numbers = numbers && !isnan(scores[i]);
    }
    qsort(s, samples, sizeof *s, by_score);
    for (size_t i = 0, end; i < samples; i = end) {
        double up = 0, down = 0; /* of equal scores */
        for (end = i; end < samples && s[end].score == s[i].score; end++)
            *(s[end].positive ? &up : &down) += 1;
        if (end == i) break; /* not a number */
        pairs += up * (negatives + down / 2);
        positives += up;
        negatives += down;
    }
    *out = numbers && positives > 0 && negatives > 0 ? pairs / (positives * negatives) : NAN;
    tr_free(s);
    return TR_OK;
}

static double divide(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

void tr_class_rates(uint64_t right, uint64_t predicted, uint64_t support, tr_class_metrics *m)
{
    *m = (tr_class_metrics){.precision = divide(right, predicted),
                            .recall = divide(right, support),
                            .f1 = divide(2 * right, predicted + support),
                            .auc = NAN,
                            .support = support,
                            .predicted = predicted};
}

static void add(tr_class_metrics *sum, double *auc_weight, const tr_class_metrics *m, double weight)
{
    sum->precision += weight * m->precision;
    sum->recall += weight * m->recall;
    sum->f1 += weight * m->f1;
    if (isnan(m->auc)) return;
    sum->auc += weight * m->auc;
    *auc_weight += weight;
}

static void mean(tr_class_metrics *sum, double weight, double auc_weight)
{
    sum->precision = weight > 0 ? sum->precision / weight : 0;
    sum->recall = weight > 0 ? sum->recall / weight : 0;
    sum->f1 = weight > 0 ? sum->f1 / weight : 0;
    sum->auc = auc_weight > 0 ? sum->auc / auc_weight : NAN;
}

void tr_class_means(tr_full_evaluation *f)
{
    double plain = 0, by_support = 0;
    f->macro = f->weighted = (tr_class_metrics){0};
    f->absent = 0;
    for (size_t k = 0; k < f->classes; k++) {
        if (!tr_class_occurs(f, k)) {
            f->absent++;
            continue;
        }
        add(&f->macro, &plain, &f->of[k], 1);
        add(&f->weighted, &by_support, &f->of[k], (double)f->of[k].support);
        f->macro.support += f->of[k].support;
        f->macro.predicted += f->of[k].predicted;
    }
    f->weighted.support = f->macro.support;
    f->weighted.predicted = f->macro.predicted;
    mean(&f->macro, (double)(f->classes - f->absent), plain);
    mean(&f->weighted, (double)f->weighted.support, by_support);
}

void tr_value_rates(const float *y, const float *target, size_t samples, tr_value_metrics *m)
{
    const double n = (double)samples;
    double sum = 0, absolute = 0, squares = 0, spread = 0;
    for (size_t i = 0; i < samples; i++) sum += target[i];
    for (size_t i = 0; i < samples; i++) {
        const double error = (double)y[i] - target[i], from_mean = target[i] - sum / n;
        absolute += fabs(error);
        squares += error * error;
        spread += from_mean * from_mean;
    }
    *m = (tr_value_metrics){.mae = absolute / n,
                            .mse = squares / n,
                            .rmse = sqrt(squares / n),
                            .r2 = samples < 2  ? NAN
                                  : spread > 0 ? 1 - squares / spread
                                               : squares == 0};
}
