/* The loop around the step: records, evaluations, checkpoints, stopping, what to do about numbers
 * that are not finite. All decisions follow from values that every rank holds alike. */
#include "trainer/trainer.h"

#include <math.h>
#include <string.h>

#include "trainer/schedule.h"
#include "trainer/signals.h"

static bool due(const tr_trainer *t, int64_t every_steps, int64_t every_epochs)
{
    uint64_t s = t->state.step;
    return (every_steps > 0 && s % (uint64_t)every_steps == 0) ||
           (every_epochs > 0 && s % ((uint64_t)every_epochs * t->steps_per_epoch) == 0);
}

static tr_status save(tr_trainer *t, bool step_file, bool best)
{
    double stall;
    tr_status st = tr_trainer_share_states(t);
    if (st != TR_OK) return st;
    t->state.seconds += tr_now() - t->started;
    t->started = tr_now();
    tr_checkpointer_save(t->checkpointer, &t->state, &t->history, step_file, best, &stall);
    t->stall += stall;
    if (t->topology->rank == 0)
        st = tr_metrics_event(t->metrics, "checkpoint", "step:u best:b stall_ms:d", t->state.step,
                              (int)best, stall * 1e3);
    return st;
}

static tr_status report_writer(tr_trainer *t)
{
    tr_checkpoint_report r = tr_checkpointer_report(t->checkpointer);
    if (!r.done) return TR_OK;
    return tr_metrics_event(t->metrics, "checkpoint_written", "step:u saved:b bytes:u seconds:d",
                            r.step, (int)r.saved, (uint64_t)r.nbytes, r.seconds);
}

/* *Collective.* TR_OK when training goes on. */
static tr_status on_nonfinite(tr_trainer *t)
{
    const tr_config *c = t->config;
    tr_error why = *tr_last_error();
    bool root = t->topology->rank == 0;
    switch ((tr_on_nonfinite)c->train.on_nonfinite) {
    case TR_NONFINITE_SKIP:
        if (root) tr_log(TR_LOG_WARN, "%s; the update is skipped", why.text);
        return TR_OK;
    case TR_NONFINITE_STOP:
        return TR_NONFINITE;
    case TR_NONFINITE_ROLLBACK:
        break;
    }
    if (t->state.rollbacks >= (uint64_t)c->train.max_rollbacks)
        return TR_FAIL(TR_NONFINITE, "%s; rolled back %lld times already (train.max_rollbacks)",
                       why.text, (long long)c->train.max_rollbacks);
    tr_train_state next = {0};
    bool found;
    tr_status st = tr_checkpointer_restore(t->checkpointer, &next, &t->history, &found);
    if (st != TR_OK) return st;
    double factor = t->state.lr_factor * c->train.rollback_lr;
    uint64_t rollbacks = t->state.rollbacks + 1, failed = t->state.step;
    if (found)
        t->state = next;
    else
        st = tr_trainer_initialize(t);
    t->state.lr_factor = factor;
    t->state.rollbacks = rollbacks;
    t->params_changed = true;
    if (st != TR_OK) return st;
    if (root) {
        tr_log(TR_LOG_WARN, "%s; back to step %llu with the learning rate times %g", why.text,
               (unsigned long long)t->state.step, factor);
        st = tr_metrics_event(t->metrics, "rollback", "step:u to:u lr_factor:d reason:s", failed,
                              t->state.step, factor, why.text);
    }
    if (st == TR_OK) st = tr_loader_seek(t->loader, t->state.step);
    return st;
}

/* *Collective.* After a step that counted: records, evaluation, checkpoint. *done: early stop. */
static tr_status boundary(tr_trainer *t, bool last, bool *done)
{
    const tr_config *c = t->config;
    tr_status st = TR_OK;
    bool root = t->topology->rank == 0, evaluated = false;
    if (root) {
        if (t->state.step % (uint64_t)c->train.log_every == 0 || last || t->stop)
            TR_TRY(tr_report_step(t));
        tr_metrics_progress(
            t->metrics, t->state.step, (t->state.step - 1) / t->steps_per_epoch, t->loss,
            (double)(t->all.samples + t->since.samples) / (t->all.total + t->since.total));
        TR_TRY(report_writer(t));
    }
    if (t->eval_loader && !t->stop &&
        (last || due(t, c->train.eval.every_steps, c->train.eval.every_epochs))) {
        TR_TRY(tr_trainer_evaluate(t));
        evaluated = true;
    }
    *done = evaluated && c->train.early_stop.patience > 0 &&
            t->state.stop_bad >= (uint64_t)c->train.early_stop.patience;
    bool step_file = last || *done || t->stop ||
                     due(t, c->train.checkpoint.every_steps, c->train.checkpoint.every_epochs);
    bool best = evaluated && t->improved && c->train.checkpoint.best;
    if (step_file || best) TR_TRY(save(t, step_file, best));
out:
    return st;
}

static tr_status stopped(tr_trainer *t)
{
    tr_status st = tr_checkpointer_wait(t->checkpointer);
    if (t->topology->rank == 0) {
        (void)report_writer(t);
        tr_status told = tr_report_end(t, "stopped");
        if (st == TR_OK) st = told;
    }
    st = tr_agree(t->comm, st, NULL);
    if (st != TR_OK) return st;
    return TR_FAIL(TR_STOPPED,
                   "stopped on request at step %llu with a checkpoint saved; go on with --resume",
                   (unsigned long long)t->state.step);
}

static tr_status finished(tr_trainer *t, const char *why)
{
    tr_status st = TR_OK;
    TR_TRY(tr_trainer_share_states(t));
    if (t->topology->rank == 0) {
        char *path = tr_sprintf("%s/model.h5", t->config->output);
        st = path ? tr_checkpointer_wait(t->checkpointer) : TR_MEMORY;
        (void)report_writer(t);
        if (path) {
            tr_status wrote =
                tr_checkpointer_write_model(t->checkpointer, path, &t->state, &t->history);
            if (st == TR_OK) st = wrote;
        }
        tr_free(path);
        tr_status told = tr_report_end(t, why);
        if (st == TR_OK) st = told;
    }
    st = tr_agree(t->comm, st, NULL);
out:
    return st;
}

tr_status tr_trainer_run(tr_trainer *t)
{
    tr_status st = TR_OK;
    bool done = false;
    t->started = tr_now();
    if (t->topology->rank == 0) tr_report_start(t);
    TR_TRY(tr_loader_seek(t->loader, t->state.step));
    while (t->state.step < t->total_steps && !done) {
        st = tr_trainer_step(t);
        if (st == TR_NONFINITE) {
            uint64_t at = t->state.step;
            TR_TRY(on_nonfinite(t));
            if (t->state.step < at) continue; /* rolled back */
        }
        if (st != TR_OK) goto out;
        if (t->first_step_s == 0) t->first_step_s = tr_since_launch();
        TR_TRY(boundary(t, t->state.step == t->total_steps, &done));
        if (t->stop && t->state.step < t->total_steps && !done) return stopped(t);
    }
    return finished(t, done ? "early stop" : "done");
out:
    return st;
}
