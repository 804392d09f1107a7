/* Learning rate schedules: small state machines whose whole state is in
 * tr_train_state, so that a resume continues them exactly. Local; every rank computes the same. */
#ifndef TR_SCHEDULE_H
#define TR_SCHEDULE_H

#include "runtime/config/config.h"
#include "runtime/store/store.h"

/* The learning rate of step `step` (from 0) of `total`, epochs of `steps_per_epoch`:
 * lr * warm-up * schedule * state->lr_factor. Warm-up: linear from warmup_start (0: 1/warmup) at
 * step 0 to 1 at step warmup-1, PyTorch's LinearLR(start_factor, total_iters=warmup-1). cosine:
 * final + (1-final)/2 (1 + cos(pi p)), Loshchilov and Hutter 2017; linear: 1 - (1-final) p; of n
 * steps after the warm-up step i (from 0) has p = i/n, so that p = 1 lies behind the last, as with
 * PyTorch's CosineAnnealingLR(T_max=n) and LinearLR(total_iters=n). polynomial: final + (1-final)
 * (1-p)^power, PolynomialLR(total_iters=n); restarts: CosineAnnealingWarmRestarts, from the end of
 * the warm-up on; exponential: gamma^(periods that are over); one_cycle:
 * OneCycleLR(total_steps=total), whose p = 1 is the last step. From each `restart` on all of that
 * begins anew, as a run of the length of that part. */
double tr_schedule_lr(const tr_config *c, const tr_train_state *state, uint64_t step,
                      uint64_t total, uint64_t steps_per_epoch);
/* After an evaluation: plateau counts evaluations without relative improvement by `threshold`, and
 * multiplies lr_factor by gamma when there were more than `patience`. */
void tr_schedule_observe(const tr_config *c, tr_train_state *state, double eval_loss);

/* Is `loss` below `reference` by more than `margin`? Anything finite beats NaN, "none yet"; what is
 * not finite beats nothing. */
bool tr_improves(double loss, double reference, double margin);

/* The loss scale to start with; how it changes is decided with the update
 * (runtime/device/control.h). */
double tr_loss_scale_start(const tr_config *c);

#endif
