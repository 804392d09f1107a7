/* Training: the control of a step, the optimizer, and what the host hears of both. */
#ifndef TR_DEVICE_TRAINING_H
#define TR_DEVICE_TRAINING_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/base.h"
#include "runtime/device/control.h"
#include "runtime/device/exact.h"

/* What a group of parameters may have for itself. rmsprop: beta2 is alpha. */
typedef struct tr_rates {
    double beta1, beta2, eps, momentum;
} tr_rates;

/* A part of the flat parameter space (multiples of 16 elements) with one weight decay (lr not yet
 * multiplied in): decoupled; SGD: L2 as PyTorch's; and one factor of the learning rate. */
typedef struct tr_segment {
    tr_range range;
    /* where it begins in the moments and the average, which hold less than the space */
    size_t slot;
    double decay, lr_factor;
    bool masked; /* weights that are 0 stay so; their moments move on */
    /* Of updates with norms: the step's length goes by the norms of `row`, else it is as long as it
     * comes. */
    bool adapt;
    size_t row; /* less than nrows */
    bool own;   /* `rates` count in the place of the update's */
    tr_rates rates;
} tr_segment;

/* What an update computes: SGD, AdamW (Loshchilov and Hutter, 2019), Lion (Chen et al., 2023), Adam
 * (Kingma and Ba, 2015), RMSprop (Tieleman and Hinton, 2012), LARS (You et al., 2017), LAMB (You et
 * al., 2019). */
typedef enum {
    TR_UPDATE_SGD,
    TR_UPDATE_ADAMW,
    TR_UPDATE_LION,
    TR_UPDATE_ADAM,
    TR_UPDATE_RMSPROP,
    TR_UPDATE_LARS,
    TR_UPDATE_LAMB
} tr_update_kind;
static inline bool tr_update_has_norms(tr_update_kind kind)
{
    return kind == TR_UPDATE_LARS || kind == TR_UPDATE_LAMB;
}

/* Of each row of an update with norms: the sums of squares of its weights, and of its gradient
 * (LARS) or of its update (LAMB), each as digits of exact.h. */
enum { TR_NORM_WEIGHT, TR_NORM_STEP, TR_NORMS };
#define TR_NORM_CELLS (TR_NORMS * TR_EXACT_DIGITS)

/* The optimizer over the segments that a rank owns: w and g span the flat parameter space. */
typedef struct tr_update {
    tr_update_kind kind;
    double beta1, beta2, eps, momentum; /* rmsprop: beta2 is alpha */
    double trust_coefficient;           /* lars */
    bool nesterov;
    double ema_decay; /* with ema != NULL: ema = d * ema + (1 - d) * w */
    float *w;
    const float *g;
    float *m, *v;  /* moments the optimizer has; else NULL */
    float *a;      /* rmsprop, centered: the mean gradient; else NULL */
    double *norms; /* [nrows * TR_NORM_CELLS] of updates with norms; else NULL */
    size_t nrows;
    float *ema;
    bool offload; /* to a device from the host's memory (its host_alloc), where m, v, a, ema lie */
    const tr_segment *segments; /* ascending; not owned, must outlive the updater */
    size_t nsegments;
} tr_update;

/* Of an update that is streamed a device holds buffers, each with so many elements of each slot, of
 * `held` in all: long copies, but an eighth of what is offloaded at the most, or the least that an
 * update takes. */
#define TR_UPDATE_BUFFERS      2
#define TR_UPDATE_WINDOW_LEAST 8192
static inline size_t tr_update_window(size_t held)
{
    const size_t unit = TR_UPDATE_WINDOW_LEAST, most = (size_t)4 << 20,
                 part = tr_align_up(held / 16, unit);
    return part < unit ? unit : part > most ? most : part;
}

/* What a row's step is multiplied with. lars: coefficient |w| / (|g| + decay |w| + eps); lamb: |w|
 * / |step|; 1 where either norm is 0. */
static inline TR_HOST_DEVICE double tr_update_trust(const tr_update *u, const double *norms,
                                                    double decay)
{
    const double w = sqrt(tr_exact_value(norms)),
                 step = sqrt(tr_exact_value(norms + TR_EXACT_DIGITS));
    if (!(w > 0) || !(step > 0)) return 1;
    return u->kind == TR_UPDATE_LARS ? u->trust_coefficient * w / (step + decay * w + u->eps)
                                     : w / step;
}

/* Of a segment, or of a part of it. */
static inline TR_HOST_DEVICE tr_rates tr_update_rates(const tr_update *u, bool own,
                                                      const tr_rates *rates)
{
    tr_rates r = *rates;
    if (own) return r;
    r.beta1 = u->beta1;
    r.beta2 = u->beta2;
    r.eps = u->eps;
    r.momentum = u->momentum;
    return r;
}

/* beta^t by squaring: a call of pow() would give the kernels a stack. */
static inline TR_HOST_DEVICE double tr_update_power(double beta, uint64_t t)
{
    double power = 1;
    for (; t; t >>= 1, beta *= beta)
        if (t & 1) power *= beta;
    return power;
}

/* 1 - beta^t of this update; `usual`: of the control, for the update's own beta. */
static inline TR_HOST_DEVICE double tr_update_correct(const tr_update *u, bool own, double beta,
                                                      double usual, uint64_t updates)
{
    const bool corrects =
        u->kind == TR_UPDATE_ADAMW || u->kind == TR_UPDATE_ADAM || u->kind == TR_UPDATE_LAMB;
    return own && corrects ? 1 - tr_update_power(beta, updates) : usual;
}

/* A part of the weights (a multiple of 16 elements), and where it stands in a message, as
 * `type`. */
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
    /* Weights into messages, rounded to nearest even, and from there, widened. Parts are copied.
     * NULL on the host. */
    tr_status (*wire_open)(void *ctx, const tr_wire_part *parts, size_t nparts, void **out);
    tr_status (*wire_run)(void *wire, bool unpack);
    void (*wire_close)(void *wire);
    tr_status (*updater_open)(void *training, const tr_update *u, void **out);
    void (*updater_close)(void *updater);
    /* Looks for the first gradient that is not finite where the sums say there is one, and decides
     * (tr_control_decide). */
    tr_status (*updater_decide)(void *updater, tr_control *c);
    /* Where c->apply, of updates with norms, before updater_run: this rank's part of u.norms, to be
     * summed over ranks; moves the moments on that the steps are made of. */
    tr_status (*updater_measure)(void *updater, const tr_control *c);
    /* Updates where c->apply. adamw, adam, sgd, rmsprop: PyTorch's; lion: Chen et al. 2023. */
    tr_status (*updater_run)(void *updater, const tr_control *c);
    /* Weights and their average change places. */
    tr_status (*updater_swap_ema)(void *updater);
    /* Copies the control as it is at this point of the stream; report_poll gives it under `slot` (0
     * or 1). */
    tr_status (*report_begin)(void *training, const tr_control *c, int slot);
    /* *done: it is there, in *out. Does not wait. */
    tr_status (*report_poll)(void *training, int slot, tr_control *out, bool *done);
} tr_device_training;

#endif
