/* Learning rate schedules, and where the loss scale starts. */
#include "trainer/optimizer/schedule.h"

#include <math.h>

/* In a line from the first step to the last of the warm-up. */
static double warm(double start, uint64_t warmup, uint64_t step)
{
    if (start <= 0) return (double)(step + 1) / (double)warmup;
    if (warmup == 1) return start;
    return start + (1 - start) * (double)step / (double)(warmup - 1);
}

static double half_cosine(double from, double to, double p)
{
    return to + (from - to) * 0.5 * (1 + cos(M_PI * p));
}

/* Cycles of period, period * mult, ... steps: how far the one is that step `at` is in. */
static double cycle(double period, double mult, double at)
{
    double begin = 0;
    if (mult == 1) return fmod(at, period) / period;
    while (at - begin >= period) {
        begin += period;
        period *= mult;
    }
    return (at - begin) / period;
}

/* OneCycleLR: phases end at steps that need not be whole; the last one at step total - 1. */
static double one_cycle(const tr_schedule_config *s, double step, double total)
{
    const double first = 1 / s->div_factor, last = first / s->final_div_factor;
    const double up = s->pct_start * total - 1, down = 2 * s->pct_start * total - 2;
    const double ends[] = {up, s->three_phase ? down : total - 1, total - 1};
    const double levels[] = {first, 1, s->three_phase ? first : last, last};
    const int phases = s->three_phase ? 3 : 2;
    double begin = 0;
    for (int i = 0; i < phases; i++) {
        if (step <= ends[i] || i == phases - 1) {
            const double length = ends[i] - begin;
            const double p = length > 0 ? fmin((step - begin) / length, 1) : 1;
            return s->anneal == TR_ANNEAL_LINEAR ? levels[i] + (levels[i + 1] - levels[i]) * p
                                                 : half_cosine(levels[i], levels[i + 1], p);
        }
        begin = ends[i];
    }
    return last;
}

/* Where the part of a run that a step is in begins, and how long it is: restarts part it. */
static uint64_t part_of(const tr_schedule_config *s, uint64_t step, uint64_t *total,
                        uint64_t steps_per_epoch)
{
    uint64_t begin = 0, end = *total;
    for (size_t i = 0; i < s->restart.count; i++) {
        const uint64_t at = tr_span_steps(s->restart.v[i], *total, steps_per_epoch);
        if (at <= step)
            begin = at > begin ? at : begin; /* spans of other units may stand in any order */
        else if (at < end)
            end = at;
    }
    *total = end > begin ? end - begin : 0;
    return begin;
}

double tr_schedule_lr(const tr_config *c, const tr_train_state *state, uint64_t step,
                      uint64_t total, uint64_t steps_per_epoch)
{
    const tr_schedule_config *s = &c->train.schedule.o;
    if (s->restart.count > 0) step -= part_of(s, step, &total, steps_per_epoch);
    double lr = c->train.optimizer.o.lr * state->lr_factor;
    const uint64_t warmup = tr_span_steps(s->warmup, total, steps_per_epoch);
    const uint64_t period = tr_span_steps(s->period, total, steps_per_epoch);
    if (step < warmup) return lr * warm(s->warmup_start, warmup, step);
    double p = total > warmup ? (double)(step - warmup) / (double)(total - warmup) : 1;
    if (p > 1) p = 1;
    switch ((tr_schedule_kind)c->train.schedule.kind.which) {
    case TR_SCHEDULE_COSINE:
        return lr * (s->final + (1 - s->final) * 0.5 * (1 + cos(M_PI * p)));
    case TR_SCHEDULE_LINEAR:
        return lr * (1 - (1 - s->final) * p);
    case TR_SCHEDULE_POLYNOMIAL:
        return lr * (s->final + (1 - s->final) * pow(1 - p, s->power));
    case TR_SCHEDULE_RESTARTS:
        return lr * half_cosine(1, s->final,
                                cycle(period ? (double)period : 1, (double)s->mult,
                                      (double)(step - warmup)));
    case TR_SCHEDULE_ONE_CYCLE:
        return lr * one_cycle(s, (double)step, (double)total);
    case TR_SCHEDULE_EXPONENTIAL:
        return lr * pow(s->gamma, (double)(step / (period ? period : 1)));
    case TR_SCHEDULE_STEP:
        for (size_t i = 0; i < s->milestones.count; i++)
            if (step >= tr_span_steps(s->milestones.v[i], total, steps_per_epoch)) lr *= s->gamma;
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
