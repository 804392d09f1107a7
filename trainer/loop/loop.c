/* The loop around the step: records, evaluations, checkpoints, stopping, what to do about numbers
 * that are not finite. All decisions follow from values that every rank holds alike. */
#include "trainer/loop/trainer.h"

#include <math.h>
#include <string.h>

#include "trainer/loop/nonfinite.h"
#include "trainer/loop/signals.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/loop/resume.h"

static bool due(const tr_trainer *t, uint64_t s, int64_t every_steps, int64_t every_epochs)
{
    return (every_steps > 0 && s % (uint64_t)every_steps == 0) ||
           (every_epochs > 0 && s % ((uint64_t)every_epochs * t->steps_per_epoch) == 0);
}

static bool evaluation_due(const tr_trainer *t)
{
    return t->eval_loader && t->state.step > 0 &&
           (t->state.step == t->total_steps ||
            due(t, t->state.step, t->config->train.eval.every_steps,
                t->config->train.eval.every_epochs));
}

static bool patience_is_out(const tr_trainer *t)
{
    return t->config->train.early_stop.patience > 0 &&
           t->state.stop_bad >= (uint64_t)t->config->train.early_stop.patience;
}

/* The writer's news, in order. */
static tr_status report_writer(tr_trainer *t)
{
    tr_checkpoint_report r;
    tr_status st = TR_OK;
    while (st == TR_OK && tr_checkpointer_report(t->checkpointer, &r))
        st = tr_metrics_event(t->metrics, "checkpoint_written", "step:u saved:b bytes:u seconds:d",
                              r.step, (int)r.saved, (uint64_t)r.nbytes, r.seconds);
    return st;
}

/* After a skipped update or an evaluation that is not finite a step is not one to go on from:
 * --resume takes an earlier one. A run that was asked to stop goes on exactly here all the same. */
static bool is_sound(const tr_trainer *t)
{
    return t->stop || (t->state.failed_row == 0 && !t->eval_failed);
}

static tr_status save(tr_trainer *t, bool step_file, bool best)
{
    double stall;
    tr_status st = tr_trainer_share_states(t);
    if (st == TR_OK) st = tr_report_follow(t);
    if (st != TR_OK) return st;
    t->state.seconds += tr_now() - t->started;
    t->started = tr_now();
    const tr_checkpoint_kind kind = {
        .step_file = step_file, .best = best, .sound = best || is_sound(t)};
    st = tr_checkpointer_save(t->checkpointer, &t->state, &t->history, kind, &stall);
    t->stall += stall;
    if (st == TR_OK && t->topology->rank == 0)
        st = tr_metrics_event(t->metrics, "checkpoint", "step:u best:b stall_ms:d", t->state.step,
                              (int)best, stall * 1e3);
    return st;
}

/* *Collective.* What is due of the two: one file of both names, but for a step that is the best and
 * not one to go on from. */
static tr_status save_due(tr_trainer *t, bool step_file, bool best)
{
    const bool apart = step_file && best && !is_sound(t);
    tr_status st = TR_OK;
    if (apart) st = save(t, false, true);
    if (st == TR_OK && (step_file || best)) st = save(t, step_file, best && !apart);
    return st;
}

/* *Collective.* Back to the last checkpoint, or to the start, with a lower learning rate. The new
 * count and factor are saved at once, so that neither a kill nor a requeue forgets them. */
static tr_status roll_back(tr_trainer *t, const char *why)
{
    const tr_config *c = t->config;
    const uint64_t failed = t->state.step, rollbacks = t->state.rollbacks;
    bool found;
    tr_status st;
    TR_TRY(tr_trainer_discard(t));
    TR_TRY(tr_trainer_restore(t, &found));
    if (!found) TR_TRY(tr_trainer_initialize(t, true));
    TR_NEED(t->state.step < failed, TR_NONFINITE,
            "%s; there is no checkpoint of an earlier step to roll back to", why);
    const uint64_t count = (rollbacks > t->state.rollbacks ? rollbacks : t->state.rollbacks) + 1;
    t->state.lr_factor *= pow(c->train.rollback_lr, (double)(count - t->state.rollbacks));
    t->state.rollbacks = count;
    t->eval_failed = false;
    TR_TRY(save(t, true, false));
    (void)tr_checkpointer_wait(t->checkpointer); /* a failed write is told like any other */
    if (t->topology->rank == 0) {
        tr_log(TR_LOG_WARN, "%s; back to step %llu with the learning rate times %g", why,
               (unsigned long long)t->state.step, t->state.lr_factor);
        TR_TRY(tr_metrics_event(t->metrics, "rollback", "step:u to:u lr_factor:d reason:s", failed,
                                t->state.step, t->state.lr_factor, why));
        tr_metrics_rewind(t->metrics, t->state.step);
    }
    TR_TRY(tr_loader_seek(t->loader, t->state.step));
out:
    return st;
}

/* *Collective.* TR_OK when training goes on. */
static tr_status on_nonfinite(tr_trainer *t)
{
    const tr_config *c = t->config;
    const tr_error why = *tr_last_error();
    char limit[96];
    switch ((tr_on_nonfinite)c->train.on_nonfinite) {
    case TR_NONFINITE_SKIP:
        return tr_nonfinite_skipped(t, why.text);
    case TR_NONFINITE_STOP:
        return tr_nonfinite_end(t, why.text, "");
    case TR_NONFINITE_ROLLBACK:
        break;
    }
    if (t->state.rollbacks < (uint64_t)c->train.max_rollbacks) return roll_back(t, why.text);
    snprintf(limit, sizeof limit, "; rolled back %lld times already (train.max_rollbacks)",
             (long long)c->train.max_rollbacks);
    return tr_nonfinite_end(t, why.text, limit);
}

/* *Collective.* After an evaluation that is not finite. TR_OK when training goes on: a later
 * evaluation may be better, and tr_trainer_run looks at the last one. */
static tr_status on_bad_evaluation(tr_trainer *t)
{
    const tr_config *c = t->config;
    tr_status st = tr_nonfinite_evaluation(t);
    if (st != TR_NONFINITE) return st;
    const tr_error why = *tr_last_error();
    switch ((tr_on_nonfinite)c->train.on_nonfinite) {
    case TR_NONFINITE_SKIP:
        if (t->topology->rank == 0) tr_log(TR_LOG_WARN, "%s", why.text);
        return TR_OK;
    case TR_NONFINITE_STOP:
        return TR_NONFINITE;
    case TR_NONFINITE_ROLLBACK:
        break;
    }
    if (t->state.rollbacks < (uint64_t)c->train.max_rollbacks) return roll_back(t, why.text);
    return tr_fail_behind(st, "; rolled back %lld times already (train.max_rollbacks)",
                          (long long)c->train.max_rollbacks);
}

/* *Collective.* Evaluates and acts on it; *through false when a stop cut it short: it is then owed
 * to the run that resumes. `saved`: there is a checkpoint of this step, made before its evaluation;
 * where that fails, the checkpoint is no longer sound. *best: best.h5 is due. */
static tr_status evaluate(tr_trainer *t, bool saved, bool *through, bool *best)
{
    tr_status st;
    TR_TRY(tr_trainer_evaluate(t, through));
    if (*through && t->eval_failed && saved) TR_TRY(save(t, true, false));
    if (*through && t->eval_failed) TR_TRY(on_bad_evaluation(t));
    *best = *through && t->improved && t->config->train.checkpoint.best;
out:
    return st;
}

/* Something is to be done between this many steps and the next: none may be under way then. */
static bool milestone(const tr_trainer *t, uint64_t step)
{
    const tr_config *c = t->config;
    return step == t->total_steps || tr_step_profile_alone(t->profile) ||
           due(t, step, c->train.checkpoint.every_steps, c->train.checkpoint.every_epochs) ||
           (t->eval_loader && due(t, step, c->train.eval.every_steps, c->train.eval.every_epochs));
}

/* After a step that counted. */
static tr_status record(tr_trainer *t)
{
    tr_status st = TR_OK;
    const bool shown = t->state.step % (uint64_t)t->config->train.log_every == 0 ||
                       t->state.step == t->total_steps || t->stop;
    if (shown) tr_memory_watch_look(t);
    if (t->topology->rank != 0) return st;
    if (shown) TR_TRY(tr_report_step(t));
    if (t->state.step % t->steps_per_epoch == 0) TR_TRY(tr_report_epoch(t));
    const bool counts = tr_loss_counts(t->config->model.loss.kind.which);
    const double seconds = t->all.total + t->since.total;
    const double targets = (double)(t->all.targets + t->since.targets);
    const tr_progress_record now = {
        .step = t->state.step,
        .epoch = (t->state.step - 1) / t->steps_per_epoch,
        .loss = t->loss,
        .accuracy = counts ? t->state.epoch_correct / (double)t->state.epoch_targets : NAN,
        .samples_per_s = (double)(t->all.samples + t->since.samples) / seconds,
        .tokens_per_s = tr_is_sequence(t->model) ? targets / seconds : 0};
    tr_metrics_progress(t->metrics, &now);
out:
    return st;
}

/* *Collective.* With no step under way: evaluation, checkpoint. *end: the loop is over. */
static tr_status boundary(tr_trainer *t, bool *end)
{
    const tr_config *c = t->config;
    const uint64_t step = t->state.step;
    const bool last = step == t->total_steps;
    bool through = true, best = false;
    tr_status st = TR_OK;
    if (evaluation_due(t)) {
        through = !t->stop;
        if (through) TR_TRY(evaluate(t, false, &through, &best));
        if (t->state.step != step) goto out; /* rolled back */
    }
    t->stop = t->stop && !(last && through); /* a stop that comes with the end changes nothing */
    if (!through) t->stop = true;
    *end = last || t->stop || patience_is_out(t);
    TR_TRY(tr_step_profile_write(t, *end));
    TR_TRY(save_due(
        t, *end || due(t, step, c->train.checkpoint.every_steps, c->train.checkpoint.every_epochs),
        best));
out:
    return st;
}

/* After a step was collected, whatever came of it: the error record is its. */
static tr_status begin(tr_trainer *t)
{
    const tr_error kept = *tr_last_error();
    tr_status st = tr_report_begin(t);
    if (st == TR_OK) st = report_writer(t);
    if (st == TR_OK) tr_set_error(&kept);
    return st;
}

/* *Collective.* Issues a step and collects what is due; *drained: none is under way, and one was
 * collected. */
static tr_status advance(tr_trainer *t, bool *drained)
{
    tr_status st;
    bool stop = false;
    *drained = false;
    TR_TRY(tr_trainer_issue(t));
    while (t->issued - t->state.step > (milestone(t, t->issued) || stop ? 0 : (uint64_t)t->lag)) {
        const uint64_t before = t->state.step;
        const tr_status got = tr_trainer_collect(t);
        if (got == TR_OK || got == TR_NONFINITE) TR_TRY(begin(t));
        st = got;
        if (st == TR_NONFINITE) {
            TR_TRY(on_nonfinite(t));
            if (t->state.step <= before) goto out; /* rolled back */
        }
        TR_TRY(st);
        if (t->first_step_s == 0) t->first_step_s = tr_since_launch();
        stop = stop || t->stop;
        t->stop = stop;
        TR_TRY(record(t));
    }
    *drained = t->issued == t->state.step;
out:
    return st;
}

/* *Collective.* The run that was stopped owes an evaluation if one was due and is not in the
 * history. */
static tr_status evaluate_what_is_owed(tr_trainer *t)
{
    const tr_history *h = &t->history;
    const struct tr_history_eval *last = h->nevals > 0 ? &h->evals[h->nevals - 1] : NULL;
    struct {
        bool owed, failed;
    } is = {evaluation_due(t) && (!last || last->step != t->state.step),
            last && last->step == t->state.step && !isfinite(last->loss)};
    tr_status st = tr_comm_broadcast(t->comm, &is, sizeof is, 0);
    const bool owed = is.owed;
    bool through = true, best = false;
    t->eval_failed = is.failed;
    if (st == TR_OK && owed) st = evaluate(t, true, &through, &best);
    if (st == TR_OK && owed && through) st = save_due(t, t->state.step == t->total_steps, best);
    t->stop = !through;
    return st;
}

/* Rank 0's last words, whatever the end; the first failure counts. */
static tr_status close_books(tr_trainer *t, tr_ending how, const char *why, tr_status st)
{
    if (t->topology->rank != 0) return st;
    tr_error kept = *tr_last_error();
    tr_status wrote = tr_checkpointer_wait(t->checkpointer);
    if (st == TR_OK && wrote != TR_OK) {
        st = wrote;
        kept = *tr_last_error();
    }
    (void)report_writer(t);
    (void)tr_report_end(t, st == TR_OK ? how : TR_ENDING_FAILED, why);
    if (st != TR_OK) tr_set_error(&kept);
    return st;
}

/* *Collective.* With nothing under way. */
static tr_status agree_on_end(tr_trainer *t, tr_status st)
{
    st = tr_agree(t->comm, st, NULL);
    t->agreed = !tr_comm_broken(t->comm);
    return st;
}

static tr_status stopped(tr_trainer *t)
{
    tr_status st = tr_memory_watch_gather(t);
    if (st == TR_OK) st = agree_on_end(t, close_books(t, TR_ENDING_STOPPED, "stopped", TR_OK));
    if (st != TR_OK) return st;
    return TR_FAIL(TR_STOPPED,
                   "stopped on request at step %llu with a checkpoint saved; go on with --resume",
                   (unsigned long long)t->state.step);
}

/* Training ended in the middle of one. */
static tr_status report_part_of_epoch(tr_trainer *t)
{
    const bool trained = t->all.steps + t->since.steps > 0;
    return trained && t->state.step % t->steps_per_epoch > 0 ? tr_report_epoch(t) : TR_OK;
}

tr_model_choice tr_trainer_choice(const tr_trainer *t)
{
    const bool average = t->config->train.ema > 0;
    const tr_result r = (tr_result)t->config->train.result;
    return (tr_model_choice){r != TR_RESULT_AUTO ? r
                             : average           ? TR_RESULT_EMA
                                                 : TR_RESULT_LAST,
                             average};
}

static tr_status finished(tr_trainer *t, const char *why)
{
    char *path = NULL;
    tr_status st;
    TR_TRY(tr_trainer_share_states(t));
    st = tr_report_begin(t); /* there may have been nothing left to do */
    if (st == TR_OK) st = tr_report_follow(t);
    if (st == TR_OK && t->folder) {
        path = tr_sprintf("%s/model.h5", tr_run_folder_path(t->folder));
        if (!path) st = tr_last_status();
    }
    TR_TRY(tr_agree(t->comm, st, NULL));
    st = tr_checkpointer_write_model(t->checkpointer, path, tr_trainer_choice(t), &t->state,
                                     &t->history);
    st = tr_agree(t->comm, st, NULL); /* rank 0 alone writes */
    if (st == TR_OK) st = tr_memory_watch_gather(t);
    if (t->topology->rank == 0 && st == TR_OK) st = report_part_of_epoch(t);
    if (t->topology->rank == 0) st = close_books(t, TR_ENDING_DONE, why, st);
    st = agree_on_end(t, st);
out:
    tr_free(path);
    return st;
}

tr_status tr_trainer_run(tr_trainer *t)
{
    tr_status st = TR_OK;
    bool end = false, complete;
    t->started = tr_now();
    t->loop_began = true;
    tr_memory_watch_begin(t);
    if (t->topology->rank == 0) tr_report_start(t);
    TR_TRY(evaluate_what_is_owed(t));
    TR_TRY(tr_loader_seek(t->loader, t->state.step));
    end = t->stop || t->state.step >= t->total_steps || patience_is_out(t);
    while (!end) {
        bool drained;
        TR_TRY(advance(t, &drained));
        if (drained) TR_TRY(boundary(t, &end));
    }
    if (t->stop) return stopped(t);
    TR_TRY(tr_resume_complete(t, &complete));
    if (complete) {
        if (t->topology->rank == 0)
            tr_log(TR_LOG_INFO,
                   "nothing is left to do: the run is at step %llu of %llu, model.h5 is whole; all "
                   "files stay as they are",
                   (unsigned long long)t->state.step, (unsigned long long)t->total_steps);
        return TR_OK;
    }
    TR_TRY(tr_nonfinite_result(t));
    return finished(t, t->state.step < t->total_steps ? "early stop" : "done");
out:
    if (st == TR_NONFINITE) {
        const tr_error what = *tr_last_error();
        if (t->topology->rank == 0 && t->since.steps > 0) (void)tr_report_step(t);
        tr_set_error(&what);
        (void)close_books(t, TR_ENDING_FAILED, "not finite", st);
        const tr_error why = *tr_last_error();
        st = tr_trainer_discard(t); /* nothing is under way when it is closed */
        if (st == TR_OK) {
            tr_set_error(&why);
            st = TR_NONFINITE;
        }
    }
    return st;
}
