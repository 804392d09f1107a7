/* Learning rate schedules, and where the loss scale starts. */
#include "trainer/schedule.h"

#include <math.h>

/* In a line from the first step to the last of the warm-up. */
static double warm(const tr_schedule_config *s, uint64_t step)
{
    if (s->warmup_start <= 0) return (double)(step + 1) / (double)s->warmup;
    if (s->warmup == 1) return s->warmup_start;
    return s->warmup_start + (1 - s->warmup_start) * (double)step / (double)(s->warmup - 1);
}

double tr_schedule_lr(const tr_config *c, const tr_train_state *state, uint64_t step,
                      uint64_t total, uint64_t steps_per_epoch)
{
    const tr_schedule_config *s = &c->train.schedule.o;
    double lr = c->train.optimizer.o.lr * state->lr_factor;
    uint64_t warmup = (uint64_t)s->warmup;
    if (step < warmup) return lr * warm(s, step);
    double p = total > warmup ? (double)(step - warmup) / (double)(total - warmup) : 1;
    if (p > 1) p = 1;
    switch ((tr_schedule_kind)c->train.schedule.kind.which) {
    case TR_SCHEDULE_COSINE:
        return lr * (s->final + (1 - s->final) * 0.5 * (1 + cos(M_PI * p)));
    case TR_SCHEDULE_LINEAR:
        return lr * (1 - (1 - s->final) * p);
    case TR_SCHEDULE_STEP:
        for (size_t i = 0; i < s->milestones.count; i++)
            if (step / steps_per_epoch >= (uint64_t)s->milestones.v[i]) lr *= s->gamma;
        return lr;
    case TR_SCHEDULE_CONSTANT:
    case TR_SCHEDULE_PLATEAU:
        break;
    }
    return lr;
}

bool tr_improves(double loss, double reference, double margin)
{
    return isfinite(loss) && (isnan(reference) || loss < reference - margin);
}

void tr_schedule_observe(const tr_config *c, tr_train_state *state, double eval_loss)
{
    const tr_schedule_config *s = &c->train.schedule.o;
    if (c->train.schedule.kind.which != TR_SCHEDULE_PLATEAU) return;
    if (tr_improves(eval_loss, state->plateau_best, s->threshold * fabs(state->plateau_best))) {
        state->plateau_best = eval_loss;
        state->plateau_bad = 0;
    } else if (++state->plateau_bad > (uint64_t)s->patience) {
        state->lr_factor *= s->gamma;
        state->plateau_bad = 0;
    }
}

double tr_loss_scale_start(const tr_config *c)
{
    if (c->train.loss_scale < 0) return c->train.loss_scale_init;
    return c->train.loss_scale > 0 ? c->train.loss_scale : 1;
}
