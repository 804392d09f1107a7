/* Evaluation: each sample of data.eval once, over all ranks; sums first, one division at the end.
 */
#include "trainer/trainer.h"

#include <math.h>
#include <string.h>

#include "trainer/schedule.h"

tr_status tr_trainer_share_states(tr_trainer *t)
{
    if (t->config->train.sync_batchnorm || t->topology->size == 1 || t->model->state_count == 0)
        return TR_OK;
    return tr_comm_bcast(t->comm, t->states, t->model->state_count * sizeof(float), 0);
}

static tr_status sweep(tr_trainer *t, double tally[TR_TALLY])
{
    tr_status st = TR_OK;
    uint64_t steps = tr_loader_steps_per_epoch(t->eval_loader);
    if (t->confusion) memset(t->confusion, 0, tr_confusion_cells(t->model) * sizeof *t->confusion);
    TR_TRY(tr_loader_seek(t->eval_loader, 0));
    for (uint64_t s = 0; s < steps; s++) {
        tr_batch batch;
        TR_TRY(tr_loader_next(t->eval_loader, &batch));
        if (batch.count == 0) continue;
        tr_run run = {.loss_scale = 1, .last = true, .tally = tally, .confusion = t->confusion};
        TR_TRY(tr_trainer_run_batch(t, false, &batch, &run));
    }
out:
    return st;
}

static void observe(tr_trainer *t, double loss)
{
    tr_train_state *s = &t->state;
    const bool finite = isfinite(loss);
    const bool better =
        finite && (isnan(s->best) || loss < s->best - t->config->train.early_stop.min_delta);
    t->improved = finite && (isnan(s->best) || loss < s->best);
    s->stop_bad = better ? 0 : s->stop_bad + 1;
    if (t->improved) {
        s->best = loss;
        s->best_step = s->step;
    }
    tr_schedule_observe(t->config, s, loss);
}

tr_status tr_trainer_evaluate(tr_trainer *t)
{
    double tally[TR_TALLY] = {0}, begin = tr_now();
    bool average = t->config->train.ema > 0;
    tr_status st;
    TR_TRY(tr_trainer_share_states(t));
    if (average) {
        tr_optimizer_swap_ema(t->optimizer);
        TR_TRY(tr_reducer_publish(t->reducer));
        t->params_changed = true;
    }
    st = sweep(t, tally);
    if (st != TR_OK) goto out; /* the job ends: nothing to swap back */
    TR_TRY(tr_comm_sum(t->comm, tally, TR_TALLY));
    if (t->confusion) TR_TRY(tr_comm_sum_int(t->comm, t->confusion, tr_confusion_cells(t->model)));
    if (average) { /* the sum above: nobody reads the average any more */
        tr_optimizer_swap_ema(t->optimizer);
        TR_TRY(tr_reducer_publish(t->reducer));
        t->params_changed = true;
    }
    tr_eval_record e = {
        .step = t->state.step,
        .samples = (uint64_t)tally[TR_TALLY_SAMPLES],
        .loss = tally[TR_TALLY_LOSS] / tally[TR_TALLY_WEIGHT],
        .accuracy = NAN,
        .top5 = NAN,
        .seconds = tr_now() - begin,
    };
    int which = t->config->model.loss.kind.which;
    if (which != TR_LOSS_MSE) e.accuracy = tally[TR_TALLY_CORRECT] / tally[TR_TALLY_SAMPLES];
    if (which == TR_LOSS_CROSS_ENTROPY && t->model->outputs > 5)
        e.top5 = tally[TR_TALLY_TOP5] / tally[TR_TALLY_SAMPLES];
    observe(t, e.loss);
    if (t->topology->rank == 0) TR_TRY(tr_report_eval(t, &e));
out:
    return st;
}
