/* The activations in float64, for what tests expect of kernels. Formulas: PyTorch's ReLU, GELU (the
 * exact one by erfc, which keeps its digits left of zero; the other by tanh), SiLU, Sigmoid, Tanh.
 * NaN comes out as NaN. */
#ifndef TR_TEST_ACTIVATE_H
#define TR_TEST_ACTIVATE_H

#include <math.h>

#include "runtime/graph/graph.h"

static inline double activate(tr_act act, double v)
{
    switch (act) {
    case TR_ACT_NONE:
        break;
    case TR_ACT_RELU:
        return v < 0 ? 0 : v;
    case TR_ACT_GELU:
        return 0.5 * v * erfc(-v * M_SQRT1_2);
    case TR_ACT_GELU_TANH:
        return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case TR_ACT_SILU:
        return v / (1 + exp(-v));
    case TR_ACT_SIGMOID:
        return 1 / (1 + exp(-v));
    case TR_ACT_TANH:
        return tanh(v);
    }
    return v;
}

/* The derivative of TR_ACT_GELU_TANH. */
static inline double gelu_tanh_slope(double v)
{
    const double c = sqrt(2 / M_PI), t = tanh(c * (v + 0.044715 * v * v * v));
    return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * c * (1 + 3 * 0.044715 * v * v);
}

#endif
