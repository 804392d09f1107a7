/* Training: the control of a step, the optimizer, and what the host hears of both. */
#ifndef TR_DEVICE_TRAINING_H
#define TR_DEVICE_TRAINING_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/base.h"
#include "runtime/device/control.h"

/* A part of the flat parameter space (multiples of 16 elements) with one weight decay (lr not yet
 * multiplied in): decoupled; SGD: L2 as PyTorch's; and one factor of the learning rate. */
typedef struct tr_segment {
    tr_range range;
    /* where it begins in the moments and the average, which hold less than the space */
    size_t slot;
    double decay, lr_factor;
    bool masked; /* weights that are 0 stay so; their moments move on */
} tr_segment;

/* What an update computes: SGD, AdamW (Loshchilov and Hutter, 2019), Lion (Chen et al., 2023). */
typedef enum { TR_UPDATE_SGD, TR_UPDATE_ADAMW, TR_UPDATE_LION } tr_update_kind;

/* The optimizer over the segments that a rank owns: w and g span the flat parameter space. */
typedef struct tr_update {
    tr_update_kind kind;
    double beta1, beta2, eps, momentum;
    bool nesterov;
    double ema_decay; /* with ema != NULL: ema = d * ema + (1 - d) * w */
    float *w;
    const float *g;
    float *m, *v; /* moments the optimizer has; else NULL */
    float *ema;
    const tr_segment *segments; /* ascending; not owned, must outlive the updater */
    size_t nsegments;
} tr_update;

/* A part of the weights (a multiple of 16 elements), and where it stands in a message, as `type`. */
typedef struct tr_wire_part {
    float *weights;
    void *wire;
    size_t count;
    tr_dtype type;
} tr_wire_part;

/* All in stream order. */
typedef struct tr_device_training {
    /* What one run trains with; `threads`: of the host, where it updates. Before close, its
     * updaters are closed. */
    tr_status (*open)(void *ctx, int threads, void **training);
    void (*close)(void *training); /* NULL is fine */
    /* Where in->first: zeroes the sums, then sums[TR_SUM_STOP] = in->stop. */
    tr_status (*set_input)(void *training, tr_control *c, const tr_control_input *in);
    /* tr_control_lap at this point of the stream; within sections, too. */
    tr_status (*lap)(void *training, tr_control *c, int lap);
    /* *out = sum of squares of g[0..count) in double; +inf or NaN iff an element is not finite. The
     * same bits every time. NULL where collectives sum while they reduce (the CPU). */
    tr_status (*sum_squares)(void *ctx, const float *g, size_t count, double *out);
    /* The same of ranges of g (multiples of 16 elements; not kept). NULL on the host. */
    tr_status (*squares_open)(void *ctx, const float *g, const tr_range *ranges, size_t nranges,
                              void **out);
    tr_status (*squares_run)(void *squares, double *out);
    void (*squares_close)(void *squares);
    /* Weights into messages, rounded to nearest even, and from there, widened. Parts are copied. NULL
     * on the host. */
    tr_status (*wire_open)(void *ctx, const tr_wire_part *parts, size_t nparts, void **out);
    tr_status (*wire_run)(void *wire, bool unpack);
    void (*wire_close)(void *wire);
    tr_status (*updater_open)(void *training, const tr_update *u, void **out);
    void (*updater_close)(void *updater);
    /* Looks for the first gradient that is not finite where the sums say there is one, and decides
     * (tr_control_decide). */
    tr_status (*updater_decide)(void *updater, tr_control *c);
    /* Updates where c->apply. adamw, sgd: PyTorch's; lion: Chen et al. 2023. */
    tr_status (*updater_run)(void *updater, const tr_control *c);
    /* Weights and their average change places. */
    tr_status (*updater_swap_ema)(void *updater);
    /* Copies the control as it is at this point of the stream; report_poll gives it under `slot` (0 or 1). */
    tr_status (*report_begin)(void *training, const tr_control *c, int slot);
    /* *done: it is there, in *out. Does not wait. */
    tr_status (*report_poll)(void *training, int slot, tr_control *out, bool *done);
} tr_device_training;

#endif
