/* One optimizer step: micro-batches through the plan while buckets are reduced, then clip, update,
 * publish. Gradients are sums over samples; the one division, the loss scale and the clip factor
 * are multiplied in while the optimizer reads them. */
#include "trainer/trainer.h"

#include <math.h>
#include <string.h>

#include "trainer/schedule.h"
#include "trainer/signals.h"

tr_status tr_trainer_run_batch(tr_trainer *t, bool train, const tr_batch *batch, tr_run *run)
{
    tr_status st = TR_OK;
    tr_plan *plan = tr_session_plan(t->session, train, batch->count);
    TR_NEED(plan, TR_INTERNAL, "no %s plan for a share of %lld samples",
            train ? "training" : "evaluation", (long long)batch->count);
    if (batch->count > 0) {
        for (size_t i = 0; i < t->model->ninputs; i++) 
            TR_TRY(tr_plan_set_input(plan, i, batch->inputs[i]));
        TR_TRY(tr_plan_set_target(plan, batch->targets));
    }
    run->seed = (uint64_t)t->config->seed;
    run->ordinal = batch->ordinal;
    run->params_changed = t->params_changed;
    run->hooks = &t->hooks;
    TR_TRY(tr_plan_run(plan, run));
    t->params_changed = false;
out:
    return st;
}

/* *Collective.* Which parameter's gradient went wrong first: offsets run in backward order. */
static tr_status find_nonfinite(tr_trainer *t, const tr_param **out)
{
    uint64_t first = tr_optimizer_first_nonfinite(t->optimizer), *all = t->gathered;
    double begin = tr_now();
    tr_status st = tr_comm_gather(t->comm, &first, all, sizeof first);
    t->gather_wait += tr_now() - begin;
    for (int r = 0; r < t->topology->size; r++)
        if (all[r] < first) first = all[r];
    *out = NULL;
    for (size_t i = 0; i < t->model->nparams; i++) {
        const tr_param *p = &t->model->params[i];
        if (first >= p->offset && first < p->offset + p->count) *out = p;
    }
    return st;
}

/* *Collective.* Loss or gradient is not finite: no update. */
static tr_status skip(tr_trainer *t)
{
    const tr_param *p;
    tr_status st = find_nonfinite(t, &p);
    if (st != TR_OK) return st;
    t->state.skipped++;
    double scale = t->state.loss_scale;
    bool search = tr_loss_scale_overflow(t->config, &t->state);
    int n = p ? snprintf(t->skipped_text, sizeof t->skipped_text,
                         "the gradient of %s.%s is not finite", p->layer, p->name)
              : snprintf(t->skipped_text, sizeof t->skipped_text, "the loss is not finite");
    if (search && n > 0 && (size_t)n < sizeof t->skipped_text)
        snprintf(t->skipped_text + n, sizeof t->skipped_text - (size_t)n,
                 " at loss scale %g, now %g", scale, t->state.loss_scale);
    t->skipped = t->skipped_text;
    if (search) return TR_OK;
    return TR_FAIL(TR_NONFINITE, "step %llu: %s (first in backward order)",
                   (unsigned long long)t->state.step + 1, t->skipped_text);
}

static tr_status update(tr_trainer *t, const double *tally, double sum_squares)
{
    double divide = t->state.loss_scale * tally[TR_TALLY_WEIGHT];
    double scale = divide > 0 ? 1 / divide : 0, clip = t->config->train.clip_norm;
    t->grad_norm = sqrt(sum_squares) * scale;
    if (clip > 0 && t->grad_norm > clip) scale *= clip / t->grad_norm;
    tr_optimizer_step(t->optimizer, t->lr, scale, t->state.updates + 1);
    t->state.updates++;
    tr_loss_scale_good(t->config, &t->state);
    t->params_changed = true;
    return TR_OK;
}

tr_status tr_trainer_step(tr_trainer *t)
{
    enum { STOP = TR_TALLY, ITEMS };
    tr_status st = TR_OK;
    double tally[ITEMS] = {0}, sum_squares, begin = tr_now(), plans = 0, waited = 0;
    t->gather_wait = 0;
    t->skipped = NULL;
    t->lr = tr_schedule_lr(t->config, &t->state, t->state.step, t->total_steps, t->steps_per_epoch);
    for (int j = 0; j < t->micro; j++) {
        tr_batch batch;
        TR_TRY(tr_loader_next(t->loader, &batch));
        TR_NEED(batch.step == t->state.step && batch.micro == j, TR_INTERNAL,
                "the loader is at step %llu.%d, the loop at %llu.%d",
                (unsigned long long)batch.step, batch.micro, (unsigned long long)t->state.step, j);
        waited += batch.waited;
        double before = tr_now();
        tr_run run = {.loss_scale = (float)t->state.loss_scale,
                      .accumulate = j > 0,
                      .last = j == t->micro - 1,
                      .tally = tally};
        TR_TRY(tr_trainer_run_batch(t, true, &batch, &run));
        plans += tr_now() - before;
    }
    if (tr_signals_pending()) tally[STOP] = 1;
    if (t->config->train.max_seconds > 0 && t->topology->rank == 0 &&
        tr_since_launch() >= t->config->train.max_seconds)
        tally[STOP] = 1;

    double before = tr_now();
    TR_TRY(tr_reducer_finish(t->reducer, tally, ITEMS, &sum_squares));
    double wait = tr_now() - before;
    t->stop = tally[STOP] > 0;
    t->loss = tally[TR_TALLY_LOSS] / tally[TR_TALLY_WEIGHT];
    before = tr_now();
    if (isfinite(sum_squares) && isfinite(tally[TR_TALLY_LOSS]))
        TR_TRY(update(t, tally, sum_squares));
    else {
        t->grad_norm = NAN;
        st = skip(t);
        if (st != TR_OK && st != TR_NONFINITE) goto out;
    }
    double updated = tr_now();
    tr_status published = tr_reducer_publish(t->reducer);
    double end = tr_now();
    t->state.step++;
    t->state.epoch = t->state.step / t->steps_per_epoch;
    t->since.total += end - begin;
    t->since.compute += plans - t->gather_wait + (updated - before);
    t->since.comm_wait += wait + (end - updated) + t->gather_wait;
    t->since.data_wait += waited;
    t->since.steps++;
    t->since.samples += (uint64_t)tally[TR_TALLY_SAMPLES];
    if (published != TR_OK) st = published;
out:
    return st;
}
