/* Evaluation: each sample of data.eval once, over all ranks; sums first, one division at the
 * end. */
#include "trainer/loop/trainer.h"

#include <math.h>

#include "optimize/evaluation/metrics.h"

#include "trainer/loop/signals.h"
#include "trainer/optimizer/schedule.h"

tr_status tr_trainer_share_states(tr_trainer *t)
{
    const bool alike = t->config->train.sync_batchnorm == TR_SYNC_ALL || t->topology->size == 1 ||
                       (t->config->train.sync_batchnorm == TR_SYNC_NODE && t->topology->nodes == 1);
    if (alike || t->model->state_count == 0) return TR_OK;
    const size_t nbytes = t->model->state_count * sizeof(float);
    tr_status st;
    TR_TRY(t->backend->memory->download(t->backend_ctx, t->states_copy, t->params->states, nbytes));
    TR_TRY(tr_comm_broadcast(t->comm, t->states_copy, nbytes, 0));
    TR_TRY(t->backend->memory->upload(t->backend_ctx, t->params->states, t->states_copy, nbytes));
out:
    return st;
}

/* *Collective.* All samples, unless some rank is asked to stop: looked at every few batches. The
 * sums stay in the backend's memory. `kept`: NULL where sums say all that is asked for. */
static tr_status sweep(tr_trainer *t, tr_kept *kept, bool *through)
{
    enum { LOOK = 32 };
    tr_status st = TR_OK;
    const tr_backend *b = t->backend;
    const uint64_t steps = tr_loader_steps_per_epoch(t->eval_loader);
    TR_TRY(b->memory->zero(t->backend_ctx, t->eval_tally, TR_TALLY * sizeof(double)));
    if (t->confusion)
        TR_TRY(b->memory->zero(t->backend_ctx, t->eval_confusion,
                               tr_confusion_cells(t->model) * sizeof(int64_t)));
    TR_TRY(tr_loader_seek(t->eval_loader, 0));
    for (uint64_t s = 0; s < steps && *through; s++) {
        tr_batch batch;
        tr_plan *plan;
        TR_TRY(tr_trainer_staged(t));
        TR_TRY(tr_loader_next(t->eval_loader, &batch));
        if (batch.count > 0) {
            const tr_run run = {.seed = (uint64_t)t->config->seed,
                                .ordinal = batch.ordinal,
                                .loss_scale = 1,
                                .control = t->control,
                                .last = true,
                                .params_changed = t->params_changed,
                                .tally = t->eval_tally,
                                .confusion = t->eval_confusion,
                                .hooks = &t->hooks};
            TR_TRY(tr_trainer_stage(t, false, &batch, &plan));
            TR_TRY(tr_plan_run(plan, &run));
            t->params_changed = false;
            if (kept) TR_TRY(tr_kept_add(kept, s, b, t->backend_ctx, plan, &batch));
        } else {
            /* Slots are counted alike on all ranks: which recording is replayed depends on them. */
            TR_TRY(tr_trainer_next_slot(t));
        }
        if (s % LOOK == LOOK - 1) {
            double stop = tr_signals_ask_stop(t->comm);
            TR_TRY(tr_comm_all_reduce(t->comm, &stop, 1, TR_F64));
            *through = stop == 0;
        }
    }
    TR_TRY(tr_trainer_staged(t));
out:
    return st;
}

/* *Collective.* The sums of all ranks, on the host. */
static tr_status gather_sums(tr_trainer *t, double tally[TR_TALLY])
{
    const size_t cells = t->confusion ? tr_confusion_cells(t->model) : 0;
    tr_status st;
    TR_TRY(t->backend->memory->download(t->backend_ctx, tally, t->eval_tally,
                                        TR_TALLY * sizeof *tally));
    TR_TRY(tr_comm_all_reduce(t->comm, tally, TR_TALLY, TR_F64));
    if (cells == 0) goto out;
    TR_TRY(t->backend->memory->download(t->backend_ctx, t->confusion, t->eval_confusion,
                                        cells * sizeof *t->confusion));
    TR_TRY(tr_comm_all_reduce(t->comm, t->confusion, cells, TR_I64));
out:
    return st;
}

static void observe(tr_trainer *t, double loss)
{
    tr_train_state *s = &t->state;
    t->improved = tr_improves(loss, s->best, 0);
    if (t->improved) {
        s->best = loss;
        s->best_step = s->step;
    }
    if (tr_improves(loss, s->stop_best, t->config->train.early_stop.min_delta)) {
        s->stop_best = loss;
        s->stop_bad = 0;
    } else
        s->stop_bad++;
    tr_schedule_observe(t->config, s, loss);
}

/* *Collective.* The weights of every rank's ranges change places with their average. */
static tr_status swap_average(tr_trainer *t)
{
    if (t->config->train.ema <= 0) return TR_OK;
    t->params_changed = true;
    const tr_status st = tr_optimizer_swap_ema(t->optimizer);
    return st == TR_OK ? tr_reducer_publish(t->reducer) : st;
}

bool tr_trainer_measures(const tr_trainer *t, tr_metric metric)
{
    return tr_config_measures(t->config, metric, t->model->classes, tr_is_sequence(t->model));
}

/* *Collective.* What sums do not say is computed from every sample's outputs; *kept NULL where it
 * is not asked for. */
static tr_status open_kept(const tr_trainer *t, tr_kept **kept)
{
    const bool wanted =
        tr_trainer_measures(t, TR_METRIC_F1) || tr_trainer_measures(t, TR_METRIC_AUC) ||
        tr_trainer_measures(t, TR_METRIC_MAE) || tr_trainer_measures(t, TR_METRIC_R2);
    *kept = NULL;
    if (!wanted) return TR_OK;
    const tr_status st =
        tr_kept_open(t->comm, t->model, t->config, tr_dataset_samples(t->eval_data),
                     tr_loader_steps_per_epoch(t->eval_loader), kept);
    return tr_agree(t->comm, st, NULL);
}

/* *Collective.* */
static tr_status measure(const tr_trainer *t, tr_kept *kept, const double tally[TR_TALLY],
                         tr_eval_record *e)
{
    tr_full_evaluation f = {0};
    tr_status st = TR_OK;
    e->samples = (uint64_t)tally[TR_TALLY_SAMPLES];
    e->loss = tally[TR_TALLY_LOSS] / tally[TR_TALLY_WEIGHT];
    e->accuracy = e->top5 = e->f1 = e->auc = e->mae = e->r2 = NAN;
    if (t->model->rows > 1) e->targets = (uint64_t)tally[TR_TALLY_TARGETS];
    if (tr_trainer_measures(t, TR_METRIC_ACCURACY))
        e->accuracy = tally[TR_TALLY_CORRECT] / tally[TR_TALLY_TARGETS];
    if (tr_trainer_measures(t, TR_METRIC_TOP5))
        e->top5 = tally[TR_TALLY_TOP5] / tally[TR_TALLY_TARGETS];
    e->perplexity = tr_report_perplexity(t, e->loss);
    e->bits_per_byte = tr_report_bits_per_byte(t, e->loss);
    if (!kept) return st;
    const bool values =
        tr_trainer_measures(t, TR_METRIC_MAE) || tr_trainer_measures(t, TR_METRIC_R2);
    TR_TRY(tr_kept_measure(kept, values || tr_trainer_measures(t, TR_METRIC_AUC), &f));
    if (tr_trainer_measures(t, TR_METRIC_F1))
        e->f1 = f.labels && f.classes == 2 ? f.of[1].f1 : f.macro.f1;
    if (tr_trainer_measures(t, TR_METRIC_AUC)) e->auc = f.auc;
    if (tr_trainer_measures(t, TR_METRIC_MAE)) e->mae = f.all.mae;
    if (tr_trainer_measures(t, TR_METRIC_R2)) e->r2 = f.all.r2;
out:
    tr_full_free(&f);
    return st;
}

tr_status tr_trainer_evaluate(tr_trainer *t, bool *through)
{
    double tally[TR_TALLY] = {0}, begin = tr_now();
    tr_kept *kept = NULL;
    tr_status st;
    *through = true;
    t->improved = false;
    TR_TRY(open_kept(t, &kept));
    TR_TRY(tr_trainer_share_states(t));
    TR_TRY(swap_average(t));
    TR_TRY(sweep(t, kept, through));
    TR_TRY(gather_sums(t, tally)); /* after this nobody reads the average any more */
    TR_TRY(swap_average(t));
    if (!*through) goto out;
    tr_eval_record e = {.step = t->state.step};
    TR_TRY(measure(t, kept, tally, &e));
    e.seconds = tr_now() - begin;
    t->eval_failed = !isfinite(e.loss);
    observe(t, e.loss);
    TR_TRY(tr_report_begin(t));
    if (t->topology->rank == 0) TR_TRY(tr_report_eval(t, &e));
out:
    tr_kept_close(kept);
    return st;
}
