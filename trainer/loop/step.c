/* One optimizer step. It is issued: micro-batches go through the plan while buckets are reduced,
 * then the control (runtime/device/control.h) decides, where the kernels run, on clip factor and
 * loss scale, and the optimizer updates. And it is collected: what the control came to is read
 * back. On the host both are one; on a device the host issues the next step before it collects the
 * last, so that the device never waits for it. Gradients are sums over samples; the one division,
 * the loss scale and the clip factor are multiplied in while the optimizer reads them. */
#include "trainer/loop/trainer.h"

#include <math.h>
#include <string.h>

#include "trainer/loop/signals.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/plan/shares.h"

static tr_status staged(void *ctx, bool *done)
{
    const tr_trainer *t = ctx;
    const tr_status st = tr_session_staged(t->session, done);
    return st == TR_OK && *done ? tr_teacher_staged(t->teacher, done) : st;
}

tr_status tr_trainer_staged(tr_trainer *t)
{
    return tr_reducer_wait(t->reducer, t->state.step, staged, t);
}

tr_status tr_trainer_next_slot(tr_trainer *t)
{
    const tr_status st = tr_session_stage(t->session);
    return st == TR_OK ? tr_teacher_stage(t->teacher) : st;
}

tr_status tr_trainer_stage(tr_trainer *t, bool train, const tr_batch *batch, tr_plan **out)
{
    tr_status st = TR_OK;
    const tr_plan_key key = {.mode = train ? TR_MODE_TRAIN : TR_MODE_EVALUATE,
                             .batch = batch->count,
                             .model =
                                 batch->count > 0 ? tr_model_of_rows(t->model, batch->rows) : NULL};
    tr_plan *plan = tr_session_plan_of(t->session, key);
    TR_NEED(plan, TR_INTERNAL, "no %s plan for a share of %lld samples",
            train ? "training" : "evaluation", (long long)batch->count);
    TR_TRY(tr_trainer_next_slot(t));
    if (batch->count > 0) {
        for (size_t i = 0; i < t->model->ninputs; i++)
            TR_TRY(tr_plan_set_input(plan, i, batch->inputs[i]));
        TR_TRY(tr_plan_set_target(plan, batch->targets));
        TR_TRY(tr_plan_set_weights(plan, batch->weights));
    }
    if (train && t->teacher) TR_TRY(tr_teacher_set(t->teacher, batch));
    *out = plan;
out:
    return st;
}

tr_status tr_trainer_control(tr_trainer *t)
{
    const tr_config *c = t->config;
    const bool adam = tr_optimizer_corrects(c);
    const tr_control now = {
        .clip_norm = c->train.clip_norm,
        .beta1 = adam ? c->train.optimizer.o.beta1 : 0,
        .beta2 = adam ? c->train.optimizer.o.beta2 : 0,
        .scale_window = c->train.loss_scale < 0 ? (uint64_t)c->train.loss_scale_window : 0,
        .hold = t->lag > 0 && c->train.on_nonfinite != TR_NONFINITE_SKIP,
        .loss_scale = t->state.loss_scale,
        .scale_good = t->state.loss_scale_good,
        .updates = t->state.updates,
        .skipped = t->state.skipped,
    };
    t->issued = t->state.step;
    t->params_changed = true;
    memset(t->laps, 0, sizeof t->laps);
    return t->backend->memory->upload(t->backend_ctx, t->control, &now, sizeof now);
}

tr_status tr_trainer_lap(tr_trainer *t, int lap)
{
    return t->backend->training->lap(t->training, t->control, lap);
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static bool asked_to_stop(const tr_trainer *t)
{
    return tr_signals_ask_stop(t->comm) ||
           (t->config->train.max_seconds > 0 && t->topology->rank == 0 &&
            tr_since_launch() >= t->config->train.max_seconds);
}

/* tr_optimizer_sum: over the ranks of the reducer. */
static tr_status sum_norms(void *ctx, double *norms, size_t count)
{
    return tr_reducer_sum_owned(ctx, norms, count);
}

/* *Collective.* After the last micro-batch. */
static tr_status complete(tr_trainer *t)
{
    tr_status st;
    tr_control *c = t->control;
    tr_step_profile_part(t->profile, TR_STEP_REDUCE);
    TR_TRY(tr_reducer_finish(t->reducer, c->sums, TR_SUMS, &c->sum_squares));
    TR_TRY(tr_trainer_lap(t, TR_LAP_COMM));
    tr_step_profile_part(t->profile, TR_STEP_UPDATE);
    TR_TRY(tr_optimizer_step(t->optimizer, c, sum_norms, t->reducer));
    TR_TRY(tr_trainer_lap(t, TR_LAP_COMPUTE));
    tr_step_profile_part(t->profile, TR_STEP_PUBLISH);
    TR_TRY(tr_reducer_publish(t->reducer));
    tr_step_profile_parted(t->profile);
    if (t->backend->host)
        TR_TRY(tr_trainer_lap(t, TR_LAP_COMM)); /* a device has nothing to wait for */
out:
    return st;
}

/* What is put into the stream for one micro-batch, and is recorded where the backend can. */
static tr_status run_micro(tr_trainer *t, tr_plan *plan, int micro, const tr_control_input *in)
{
    const bool last = micro == t->micro_batches - 1;
    const tr_run run = {.seed = (uint64_t)t->config->seed,
                        .ordinal = in->ordinal,
                        .loss_scale = t->backend->host ? (float)t->control->loss_scale : 0,
                        .control = t->control,
                        .accumulate = micro > 0,
                        .last = last,
                        /* recorded work repacks in every step */
                        .params_changed = t->params_changed || (micro == 0 && !t->backend->host),
                        .tally = t->control->sums,
                        .hooks = &t->hooks};
    tr_status st;
    TR_TRY(tr_trainer_lap(t, TR_LAP_IDLE));
    if (last) tr_reducer_ready(t->reducer, -1);
    const double begin = tr_step_profile_now(t->profile);
    if (t->teacher) TR_TRY(tr_teacher_run(t->teacher, plan, &run));
    TR_TRY(tr_plan_run(plan, &run));
    t->params_changed = false;
    TR_TRY(tr_trainer_lap(t, TR_LAP_COMPUTE));
    TR_TRY(tr_step_profile_ran(t->profile, plan, begin));
    if (last) TR_TRY(complete(t));
out:
    return st;
}

/* *Collective.* A device may refuse to record, and NCCL's operations are launched from recordings
 * on all ranks or on none. *again: some rank's did refuse; none records any more, and what stands
 * in the section, of which nothing has run, is to be issued as it comes. */
static tr_status agree_recording(tr_trainer *t, tr_status st, bool *again)
{
    if (st != TR_OK && tr_last_error()->hint != TR_HINT_RECORDING) return st;
    st = tr_agree(t->comm, st, NULL);
    if (st == TR_OK || tr_comm_broken(t->comm)) return st;
    if (t->topology->rank == 0)
        tr_log(TR_LOG_WARN, "run.cuda_graph: auto does without recorded steps: %s",
               tr_last_error()->text);
    tr_sections_disable(t->backend, t->backend_ctx);
    *again = true;
    return TR_OK;
}

/* Agreed on before NCCL is given operations to record: it must be given the same ones on all
 * ranks. */
static tr_status begin_section(tr_trainer *t, int micro, int64_t rows, bool *replay, bool *again)
{
    const tr_status st =
        tr_session_section_begin(t->session, tr_section_key(t, t->issued, micro, rows), replay);
    return tr_session_section_recording(t->session) ? agree_recording(t, st, again) : st;
}

static tr_status end_section(tr_trainer *t, tr_status st, bool *again)
{
    bool recorded;
    st = tr_session_section_recorded(t->session, st, &recorded);
    if (recorded) st = agree_recording(t, st, again);
    return *again ? TR_OK : tr_session_section_end(t->session, st);
}

/* The part of a micro-batch that is recorded, or replayed. */
static tr_status run_section(tr_trainer *t, tr_plan *plan, int micro, int64_t rows,
                             const tr_control_input *in, bool *again)
{
    bool replay = false;
    tr_status st;
    *again = false;
    TR_TRY(tr_reducer_step(t->reducer, t->issued, micro));
    TR_TRY(begin_section(t, micro, rows, &replay, again));
    if (*again) goto out;
    if (replay && micro == 0) tr_session_replayed(t->session);
    st = replay ? TR_OK : run_micro(t, plan, micro, in);
    st = end_section(t, st, again);
out:
    return st;
}

static tr_status issue_micro(tr_trainer *t, int micro, double lr)
{
    tr_status st;
    tr_batch batch;
    tr_plan *plan;
    bool again;
    TR_TRY(tr_trainer_staged(t));
    TR_TRY(tr_loader_next(t->loader, &batch));
    TR_NEED(batch.step == t->issued && batch.micro == micro, TR_INTERNAL,
            "the loader is at step %llu.%d, the loop at %llu.%d", (unsigned long long)batch.step,
            batch.micro, (unsigned long long)t->issued, micro);
    t->since.data_wait += batch.waited;
    tr_step_profile_data(t->profile, batch.waited);
    TR_TRY(tr_trainer_stage(t, true, &batch, &plan));
    const tr_control_input in = {.ordinal = batch.ordinal,
                                 .lr = lr,
                                 .first = micro == 0,
                                 .stop = micro == 0 && asked_to_stop(t),
                                 .fresh = micro == 0 && t->issued == t->state.step};
    TR_TRY(t->backend->training->set_input(t->training, t->control, &in));
    TR_TRY(run_section(t, plan, micro, batch.rows, &in, &again));
    if (again) {
        tr_reducer_again(t->reducer);
        t->params_changed = true; /* what was recorded has packed nothing */
        TR_TRY(run_section(t, plan, micro, batch.rows, &in, &again));
    }
out:
    return st;
}

tr_status tr_trainer_issue(tr_trainer *t)
{
    tr_status st = TR_OK;
    const double lr =
        tr_schedule_lr(t->config, &t->state, t->issued, t->total_steps, t->steps_per_epoch);
    if (t->issued == t->state.step) t->mark = tr_now(); /* nothing was under way */
    TR_TRY(tr_step_profile_begin(t));
    for (int micro = 0; micro < t->micro_batches; micro++) TR_TRY(issue_micro(t, micro, lr));
    tr_reducer_issued(t->reducer);
    TR_TRY(t->backend->training->report_begin(t->training, t->control, (int)(t->issued % 2)));
    t->params_changed = true;
    tr_step_profile_end(t);
    t->issued++;
out:
    return st;
}

/* ---- Collecting ------------------------------------------------------------------------------ */

/* *Collective.* Which parameter's gradient went wrong first: offsets run in backward order. */
static tr_status find_nonfinite(tr_trainer *t, uint64_t first, const tr_param **out)
{
    uint64_t *all = t->gathered;
    double begin = tr_now();
    tr_status st = tr_comm_all_gather(t->comm, &first, all, sizeof first);
    t->since.comm_wait += tr_now() - begin;
    *out = NULL;
    if (st != TR_OK) return st;
    for (int r = 0; r < t->topology->size; r++)
        if (all[r] < first) first = all[r];
    for (size_t i = 0; i < t->model->nparams; i++) {
        const tr_param *p = &t->model->params[i];
        if (first >= p->offset && first < p->offset + p->count) *out = p;
    }
    return st;
}

/* *Collective.* Loss or gradient was not finite: there was no update. */
static tr_status skipped(tr_trainer *t, const tr_control *c)
{
    const tr_param *p;
    tr_status st = find_nonfinite(t, c->first_nonfinite, &p);
    if (st != TR_OK) return st;
    int n = p ? snprintf(t->skipped_text, sizeof t->skipped_text,
                         "the gradient of %s.%s is not finite", p->layer, p->name)
              : snprintf(t->skipped_text, sizeof t->skipped_text, "the loss is not finite");
    if (c->searched && n > 0 && (size_t)n < sizeof t->skipped_text)
        snprintf(t->skipped_text + n, sizeof t->skipped_text - (size_t)n,
                 " at loss scale %g, now %g", c->used_scale, c->loss_scale);
    t->skipped = t->skipped_text;
    if (c->searched && isfinite(t->loss)) return TR_OK; /* the loss itself is never scaled */
    return TR_FAIL(TR_NONFINITE, "step %llu: %s (first in backward order)",
                   (unsigned long long)t->state.step + 1, t->skipped_text);
}

typedef struct {
    const tr_trainer *t;
    uint64_t step;
    tr_control *out;
} report;

static tr_status report_is_there(void *ctx, bool *done)
{
    const report *r = ctx;
    return r->t->backend->training->report_poll(r->t->training, (int)(r->step % 2), r->out, done);
}

/* What step `step`, which is under way, came to. */
static tr_status await(tr_trainer *t, uint64_t step, tr_control *out)
{
    report r = {t, step, out};
    return tr_reducer_wait(t->reducer, step, report_is_there, &r);
}

/* Seconds that this step added to a lap. */
static double took(tr_trainer *t, const tr_control *c, int lap)
{
    const uint64_t before = t->laps[lap];
    t->laps[lap] = c->laps[lap];
    return (double)(c->laps[lap] - before) * 1e-9;
}

/* A step's sums, to those of its epoch; before it is counted. What is not finite is left out. */
static void add_to_epoch(tr_trainer *t, const double *sums)
{
    tr_train_state *s = &t->state;
    if (s->step % t->steps_per_epoch == 0) tr_trainer_new_epoch(t);
    if (!isfinite(sums[TR_TALLY_LOSS])) return;
    s->epoch_loss += sums[TR_TALLY_LOSS];
    s->epoch_weight += sums[TR_TALLY_WEIGHT];
    s->epoch_correct += sums[TR_TALLY_CORRECT];
    s->epoch_samples += (uint64_t)sums[TR_TALLY_SAMPLES];
    s->epoch_targets += (uint64_t)sums[TR_TALLY_TARGETS];
}

void tr_trainer_new_epoch(tr_trainer *t)
{
    t->state.epoch_loss = t->state.epoch_weight = t->state.epoch_correct = 0;
    t->state.epoch_samples = t->state.epoch_targets = 0;
    t->state.epoch_seconds = 0;
}

tr_status tr_trainer_collect(tr_trainer *t)
{
    tr_control c;
    double laps[TR_LAPS];
    tr_status st;
    t->skipped = NULL;
    TR_TRY(await(t, t->state.step, &c));
    t->stop = c.sums[TR_SUM_STOP] > 0;
    for (int i = 0; i < TR_LAPS; i++) laps[i] = took(t, &c, i);
    t->since.compute += laps[TR_LAP_COMPUTE];
    t->since.comm_wait += laps[TR_LAP_COMM];
    t->since.idle += laps[TR_LAP_IDLE];
    TR_TRY(tr_step_profile_collected(t, t->mark, laps));
    t->loss = c.sums[TR_TALLY_LOSS] / c.sums[TR_TALLY_WEIGHT];
    t->lr = c.in.lr;
    t->grad_norm = c.grad_norm;
    t->state.loss_scale = c.loss_scale;
    t->state.loss_scale_good = c.scale_good;
    t->state.updates = c.updates;
    t->state.skipped = c.skipped;
    if (c.apply)
        t->state.failed_row = 0;
    else
        st = skipped(t, &c);
    if (st == TR_NONFINITE) t->state.failed++, t->state.failed_row++;
    if (st != TR_OK && st != TR_NONFINITE) goto out;
    add_to_epoch(t, c.sums);
    t->state.step++;
    t->state.epoch = t->state.step / t->steps_per_epoch;
    const double now = tr_now();
    t->since.total += now - t->mark;
    t->state.epoch_seconds += now - t->mark;
    t->mark = now;
    t->since.steps++;
    t->since.samples += (uint64_t)c.sums[TR_TALLY_SAMPLES];
    t->since.targets += (uint64_t)c.sums[TR_TALLY_TARGETS];
out:
    return st;
}

tr_status tr_trainer_discard(tr_trainer *t)
{
    tr_control c;
    tr_status st = TR_OK;
    if (t->issued > t->state.step) TR_TRY(await(t, t->issued - 1, &c));
    TR_TRY(tr_device_finish(t->backend, t->backend_ctx));
    t->issued = t->state.step;
out:
    return st;
}
