/* From raw outputs to probabilities and the most probable classes. */
#include "optimize/predict/predict.h"

#include <math.h>
#include <string.h>

bool tr_predict_has_class(int loss, size_t outputs)
{
    return loss == TR_LOSS_CROSS_ENTROPY || (tr_loss_binary(loss) && outputs == 1);
}

size_t tr_predict_classes(int loss, size_t outputs)
{
    return tr_loss_binary(loss) && outputs == 1 ? 2 : outputs;
}

static void softmax(const float *z, size_t n, float *p)
{
    double most = -INFINITY, sum = 0;
    for (size_t k = 0; k < n; k++)
        if (z[k] > most || isnan(z[k])) most = z[k];
    for (size_t k = 0; k < n; k++) sum += exp(z[k] - most);
    for (size_t k = 0; k < n; k++) p[k] = (float)(exp(z[k] - most) / sum);
}

static double sigmoid(double z)
{
    return z >= 0 ? 1 / (1 + exp(-z)) : exp(z) / (1 + exp(z));
}

/* Whether a class can be told: infinity leaves a softmax no number. */
static bool has_class(int loss, const float *z, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (isnan(z[k]) || (loss == TR_LOSS_CROSS_ENTROPY && z[k] == INFINITY)) return false;
    return true;
}

/* The `top` greatest, equal ones by their index: insertion into a short list. By the raw outputs, as probabilities
 * round to equal ones. */
static void find_top(const float *z, const float *p, size_t n, size_t top, int32_t *classes,
                     float *values)
{
    size_t have = 0;
    for (size_t k = 0; k < n; k++) {
        size_t at = have;
        while (at > 0 && z[k] > z[classes[at - 1]]) at--;
        if (at >= top) continue;
        if (have < top) have++;
        memmove(classes + at + 1, classes + at, (have - at - 1) * sizeof *classes);
        classes[at] = (int32_t)k;
    }
    for (size_t i = 0; i < top; i++) values[i] = p[classes[i]];
}

void tr_predict_compute(const tr_predictions *o, uint64_t count, const float *raw, float *values,
                        int32_t *top, float *top_values)
{
    const size_t n = o->outputs;
    for (uint64_t i = 0; i < count; i++, raw += n, values += n) {
        if (o->loss == TR_LOSS_CROSS_ENTROPY)
            softmax(raw, n, values);
        else
            for (size_t k = 0; k < n; k++)
                values[k] = tr_loss_binary(o->loss) ? (float)sigmoid(raw[k]) : raw[k];
        if (o->top == 0) continue;
        if (!has_class(o->loss, raw, n)) {
            for (size_t k = 0; k < o->top; k++) {
                top[k] = -1;
                top_values[k] = NAN;
            }
        } else if (tr_loss_binary(o->loss)) {
            const float z[2] = {-raw[0], raw[0]};
            const float p[2] = {(float)sigmoid(-(double)raw[0]), values[0]};
            find_top(z, p, 2, o->top, top, top_values);
        } else {
            find_top(raw, values, n, o->top, top, top_values);
        }
        top += o->top;
        top_values += o->top;
    }
}
