/* From raw outputs to probabilities and the most probable classes. */
#include "optimize/predict/predict.h"

#include <math.h>

bool tr_predict_has_class(int loss, size_t outputs)
{
    return loss == TR_LOSS_CROSS_ENTROPY || (tr_loss_binary(loss) && outputs == 1);
}

size_t tr_predict_classes(int loss, size_t outputs)
{
    return tr_loss_binary(loss) && outputs == 1 ? 2 : outputs;
}

/* A row's outputs, or its classes, `next` apart. */
static void softmax(const float *z, size_t n, size_t next, float *p)
{
    double most = -INFINITY, sum = 0;
    for (size_t k = 0; k < n; k++)
        if (z[k * next] > most || isnan(z[k * next])) most = z[k * next];
    for (size_t k = 0; k < n; k++) sum += exp(z[k * next] - most);
    for (size_t k = 0; k < n; k++) p[k * next] = (float)(exp(z[k * next] - most) / sum);
}

static double sigmoid(double z)
{
    return z >= 0 ? 1 / (1 + exp(-z)) : exp(z) / (1 + exp(z));
}

/* Whether a class can be told: infinity leaves a softmax no number. */
static bool has_class(int loss, const float *z, size_t n, size_t next)
{
    for (size_t k = 0; k < n * next; k += next)
        if (isnan(z[k]) || (loss == TR_LOSS_CROSS_ENTROPY && z[k] == INFINITY)) return false;
    return true;
}

/* The `top` greatest, equal ones by their index: insertion into a short list. By the raw outputs,
 * as probabilities round to equal ones. */
static void find_top(const float *z, const float *p, size_t n, size_t next, size_t top,
                     int32_t *classes, float *values)
{
    size_t have = 0;
    for (size_t k = 0; k < n; k++) {
        size_t at = have;
        while (at > 0 && z[k * next] > z[(size_t)classes[(at - 1) * next] * next]) at--;
        if (at >= top) continue;
        if (have < top) have++;
        for (size_t i = have - 1; i > at; i--) classes[i * next] = classes[(i - 1) * next];
        classes[at * next] = (int32_t)k;
    }
    for (size_t i = 0; i < top * next; i += next) values[i] = p[(size_t)classes[i] * next];
}

static void top_of_row(const tr_predictions *o, const float *z, const float *p, size_t n,
                       size_t next, int32_t *top, float *values)
{
    const bool binary = tr_loss_binary(o->loss);
    if (!has_class(o->loss, z, n, next)) {
        for (size_t k = 0; k < o->top * next; k += next) {
            top[k] = -1;
            values[k] = NAN;
        }
        return;
    }
    const float both[2] = {-z[0], z[0]}, chances[2] = {(float)sigmoid(-(double)z[0]), p[0]};
    find_top(binary ? both : z, binary ? chances : p, binary ? 2 : n, next, o->top, top, values);
}

static void compute_sample(const tr_predictions *o, const float *raw, float *values, int32_t *top,
                           float *top_values)
{
    const size_t n = o->outputs / o->rows, next = o->planes ? o->rows : 1;
    const size_t row = o->planes ? 1 : n, row_top = o->planes ? 1 : o->top;
    for (size_t k = 0; k < o->outputs && o->loss != TR_LOSS_CROSS_ENTROPY; k++)
        values[k] = tr_loss_binary(o->loss) ? (float)sigmoid(raw[k]) : raw[k];
    for (size_t r = 0; r < o->rows; r++) {
        const float *z = raw + r * row;
        float *p = values + r * row;
        if (o->loss == TR_LOSS_CROSS_ENTROPY) softmax(z, n, next, p);
        if (o->top > 0) top_of_row(o, z, p, n, next, top + r * row_top, top_values + r * row_top);
    }
}

void tr_predict_compute(const tr_predictions *o, uint64_t count, const float *raw, float *values,
                        int32_t *top, float *top_values)
{
    const size_t tops = o->rows * o->top;
    for (uint64_t i = 0; i < count; i++)
        compute_sample(o, raw + i * o->outputs, values + i * o->outputs, top + i * tops,
                       top_values + i * tops);
}
