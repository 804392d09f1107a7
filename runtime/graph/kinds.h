/* What kernels name as well as graphs: how many operands an op can have, and the activations;
 * functions for hosts and devices. */
#ifndef TR_KINDS_H
#define TR_KINDS_H

#ifdef __CUDACC__
#define TR_ON_BOTH __host__ __device__
#else
#define TR_ON_BOTH
#endif

#define TR_MAX_DIMS 5
#define TR_MAX_IN   8
#define TR_MAX_OUT  8

typedef enum {
    TR_ACT_NONE,
    TR_ACT_RELU,
    TR_ACT_GELU,
    TR_ACT_GELU_TANH,
    TR_ACT_SILU,
    TR_ACT_SIGMOID,
    TR_ACT_TANH
} tr_act;

#endif
