/* What decides whether and how an update is made: the sums of a step, the loss scale and the state
 * of its search, the clip factor. One struct in the memory that the kernels work in, and one
 * function that moves it on, compiled for the host and for devices alike: a device decides by
 * itself, and the host reads later what came out.
 *
 * A step: `in` is set and the sums are zeroed; loss ops add to `sums`; the reducer adds them over
 * all ranks and fills sum_squares; tr_control_decide says whether to update and with what
 * factor. */
#ifndef TR_CONTROL_H
#define TR_CONTROL_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TR_HOST_DEVICE __host__ __device__
#else
#define TR_HOST_DEVICE
#endif

/* Sums over samples; divided once, at the end, over all ranks and micro-batches.
 * cross_entropy: weight = sum of the class weights of the labels; mse, bce: number of elements.
 * targets: what is right or wrong, of labels those that count. A sample with one target counts
 * where that does; one with a target a row always. */
enum {
    TR_TALLY_LOSS,
    TR_TALLY_WEIGHT,
    TR_TALLY_SAMPLES,
    TR_TALLY_TARGETS,
    TR_TALLY_CORRECT,
    TR_TALLY_TOP5,
    TR_TALLY
};
/* Of a step, all doubles: the tally, and how many ranks were asked to stop. */
enum { TR_SUM_STOP = TR_TALLY, TR_SUMS };
/* What a step's time goes to, by the clock of what computes: it waited for work, it computed, it
 * waited for other ranks. */
enum { TR_LAP_IDLE, TR_LAP_COMPUTE, TR_LAP_COMM, TR_LAPS };

/* What the host says, anew for every micro-batch. */
typedef struct tr_control_input {
    uint64_t ordinal; /* of the batch's first sample: epoch * samples + place in the epoch's order;
                         the batch holds consecutive ordinals. Keys dropout and augmentation. */
    double lr;
    double stop;  /* 1: this rank was asked to stop */
    double first; /* 1: the step's first micro-batch: the sums start at zero */
    double fresh; /* 1: no step was under way before: what went by since the last one is not idle */
} tr_control_input;

typedef struct tr_control {
    /* Fixed for the run. */
    double clip_norm;      /* 0: off */
    double beta1, beta2;   /* of the optimizer's bias corrections; 0 where it has none */
    uint64_t scale_window; /* good steps after which a dynamic loss scale doubles; 0: it is fixed */
    uint64_t hold;         /* 1: nothing is updated after a step that failed */
    /* Carried from step to step. */
    double loss_scale;   /* multiplies the loss's gradient */
    uint64_t scale_good; /* steps since it last changed */
    uint64_t updates, skipped;
    uint64_t held; /* a step failed and `hold` is set: later steps change nothing */
    /* The step. */
    tr_control_input in;
    double sums[TR_SUMS];
    double sum_squares; /* of all reduced gradients; not finite iff one of them is not */
    /* this rank's lowest element whose gradient is not finite; UINT64_MAX: all are */
    uint64_t first_nonfinite;
    /* What was decided. */
    uint64_t apply; /* 1: the optimizer updates */
    /* 1: the gradient overflowed and the dynamic loss scale was lowered. The step counts as failed
     * only where its loss is not finite either. */
    uint64_t searched;
    double used_scale; /* the loss scale of this step */
    double grad_norm;  /* after unscaling and dividing; NaN when not finite */
    double grad_scale; /* of every gradient: 1 / (loss scale * total weight) * clip factor */
    double correct1, correct2; /* 1 - beta^t: bias corrections of this update */
    /* Nanoseconds. */
    uint64_t clock;         /* at the last lap */
    uint64_t laps[TR_LAPS]; /* sums over all steps since the control was filled */
} tr_control;

enum { TR_LOSS_SCALE_MAX_LOG2 = 24 };

/* The loss scale after an overflow (Micikevicius et al. 2018). True when that is the ordinary
 * search of a dynamic scale; false when the scale is fixed or can go no lower. */
static inline TR_HOST_DEVICE int tr_control_overflow(tr_control *c)
{
    c->scale_good = 0;
    if (c->scale_window == 0 || c->loss_scale <= 1) return 0;
    c->loss_scale = c->loss_scale / 2 > 1 ? c->loss_scale / 2 : 1;
    return 1;
}

static inline TR_HOST_DEVICE void tr_control_good(tr_control *c)
{
    if (c->scale_window == 0 || ++c->scale_good < c->scale_window) return;
    if (c->loss_scale * 2 <= (double)(1u << TR_LOSS_SCALE_MAX_LOG2)) c->loss_scale *= 2;
    c->scale_good = 0;
}

/* Counts what went by since the last lap. The first of a step is TR_LAP_IDLE. */
static inline TR_HOST_DEVICE void tr_control_lap(tr_control *c, int lap, uint64_t now)
{
    const int counts = lap != TR_LAP_IDLE || c->in.fresh == 0;
    if (counts && now > c->clock) c->laps[lap] += now - c->clock;
    c->clock = now;
}

/* After the sums are complete. Gradients are sums over samples; the one division, the loss scale
 * and the clip factor become grad_scale. */
static inline TR_HOST_DEVICE void tr_control_decide(tr_control *c)
{
    const double divide = c->loss_scale * c->sums[TR_TALLY_WEIGHT];
    c->used_scale = c->loss_scale;
    c->apply = c->searched = 0;
    c->grad_scale = 0;
    c->grad_norm = NAN;
    if (c->held) return;
    if (!isfinite(c->sum_squares) || !isfinite(c->sums[TR_TALLY_LOSS])) {
        c->skipped++;
        c->searched = (uint64_t)tr_control_overflow(c);
        c->held = c->hold && (!c->searched || !isfinite(c->sums[TR_TALLY_LOSS]));
        return;
    }
    c->grad_scale = divide > 0 ? 1 / divide : 0;
    c->grad_norm = sqrt(c->sum_squares) * c->grad_scale;
    if (c->clip_norm > 0 && c->grad_norm > c->clip_norm)
        c->grad_scale *= c->clip_norm / c->grad_norm;
    c->updates++;
    c->correct1 = 1 - pow(c->beta1, (double)c->updates);
    c->correct2 = 1 - pow(c->beta2, (double)c->updates);
    c->apply = 1;
    tr_control_good(c);
}

#endif
