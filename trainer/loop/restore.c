/* Where training starts: the initial values, or what a checkpoint holds. */
#include "trainer/loop/trainer.h"

#include <math.h>
#include <string.h>

#include "trainer/loop/resume.h"
#include "trainer/models/init_from.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/run/history.h"

/* Rows that may come, from the step where training goes on. */
static tr_status reserve_history(tr_trainer *t)
{
    if (t->topology->rank != 0) return TR_OK;
    tr_history *h = &t->history;
    uint64_t left = t->total_steps > t->state.step ? t->total_steps - t->state.step : 0;
    size_t steps = (size_t)(left / (uint64_t)t->config->train.log_every) + 4, evals = 4;
    if (t->config->train.eval.every_steps > 0)
        evals += (size_t)(left / (uint64_t)t->config->train.eval.every_steps);
    if (t->config->train.eval.every_epochs > 0)
        evals += (size_t)(left / t->steps_per_epoch / (uint64_t)t->config->train.eval.every_epochs);
    tr_status st =
        tr_history_reserve(h, steps, evals, t->confusion ? tr_confusion_cells(t->model) : 0);
    if (st != TR_OK) return st;
    return tr_checkpointer_reserve(t->checkpointer, h,
                                   t->confusion ? tr_confusion_cells(t->model) : 0);
}

/* Initial weights of `part`: made on the host in pieces, which every backend takes. `average`: the
 * slot where they go too, from `slot_at` on; -1: nowhere else. */
static tr_status initial_weights(tr_trainer *t, const tr_network *start, tr_range part, int average,
                                 size_t slot_at, float *piece, size_t most)
{
    const tr_device_memory *memory = t->backend->memory;
    tr_status st = TR_OK;
    for (size_t at = part.begin, end; at < part.end; at = end) {
        end = part.end - at < most ? part.end : at + most;
        const size_t nbytes = (end - at) * sizeof(float);
        if (start)
            tr_network_values(start, t->model, at, end, piece);
        else
            tr_model_init_params(t->model, (uint64_t)t->config->seed, piece - at, at, end);
        TR_TRY(memory->upload(t->backend_ctx, t->params->weights + at, piece, nbytes));
        if (average >= 0)
            TR_TRY(tr_params_slot_set(t->params, average, slot_at + (at - part.begin), end - at,
                                      piece));
    }
out:
    return st;
}

/* Of what this rank owns, and of frozen rows. `start` NULL: as the model's layers say. */
static tr_status initial_values(tr_trainer *t, const tr_network *start, float *piece, size_t most)
{
    const tr_model *m = t->model;
    const tr_params *p = t->params;
    const int ema = tr_params_slot(p, "ema");
    tr_status st = TR_OK;
    for (int s = 0; s < p->o.nslots; s++) TR_TRY(tr_params_slot_zero(t->params, s));
    for (size_t i = 0; i < p->nowned; i++)
        TR_TRY(initial_weights(t, start, p->owned[i], ema, p->slot_at[i], piece, most));
    TR_TRY(initial_weights(t, start, p->frozen, -1, 0, piece, most));
    if (start)
        memcpy(t->states_copy, start->states, m->state_count * sizeof(float));
    else
        tr_model_init_states(m, t->states_copy);
    TR_TRY(t->backend->memory->upload(t->backend_ctx, p->states, t->states_copy,
                                      m->state_count * sizeof(float)));
out:
    return st;
}

/* *Collective.* Whoever gave the values is not kept: what comes back to step 0 reads the file
 * again. */
static tr_status set_values(tr_trainer *t, bool init_from)
{
    enum { PIECE = 1 << 18 };
    tr_status st = TR_OK;
    tr_network *own = NULL;
    if (init_from && !t->start)
        TR_TRY(tr_init_from_open(t->config, t->comm, t->rounded, &t->origin, &own));
    float *piece = tr_alloc(TR_MEM_OTHER, PIECE, sizeof *piece);
    st = piece ? initial_values(t, own ? own : t->start, piece, PIECE) : tr_last_status();
    tr_free(piece);
out:
    tr_network_close(own);
    return st;
}

tr_status tr_trainer_initialize(tr_trainer *t, bool init_from)
{
    const uint64_t samples = t->state.samples, names = t->state.names;
    tr_status st = set_values(t, init_from);
    t->state = (tr_train_state){
        .seed = (uint64_t)t->config->seed,
        .loss_scale = tr_loss_scale_start(t->config),
        .lr_factor = 1,
        .plateau_best = NAN,
        .best = NAN,
        .stop_best = NAN,
        .samples = samples,
        .names = names,
        .batch = (uint64_t)t->config->train.batch,
        .micro_batches = (uint64_t)t->micro_batches,
        .threads = (uint64_t)t->affinity.threads,
    };
    t->history.nsteps = t->history.nevals = 0;
    if (st == TR_OK) st = tr_trainer_control(t);
    if (st == TR_OK) st = reserve_history(t);
    st = tr_agree(t->comm, st, NULL);
    return st == TR_OK ? tr_reducer_publish(t->reducer) : st;
}

/* A checkpoint of other data or another batch still fits the model: say what no longer holds. */
static void compare_state(const tr_trainer *t, uint64_t samples, uint64_t names)
{
    if (t->state.samples != samples)
        tr_log(
            TR_LOG_WARN,
            "the checkpoint was made with %llu training samples, there are %llu now: the order of "
            "samples is not that run's",
            (unsigned long long)t->state.samples, (unsigned long long)samples);
    else if (t->state.names != names && t->state.names != 0)
        tr_log(TR_LOG_WARN, "the checkpoint was made with training samples in files of other "
                            "names: the order of samples is not that run's");
    if (t->state.batch != (uint64_t)t->config->train.batch)
        tr_log(TR_LOG_WARN,
               "the checkpoint was made with train.batch %llu, now %lld: steps are counted on",
               (unsigned long long)t->state.batch, (long long)t->config->train.batch);
    if (t->state.micro_batches != (uint64_t)t->micro_batches && t->model->nstates > 0)
        tr_log(TR_LOG_WARN,
               "the checkpoint was made with %llu micro-batches a step, now %d: batchnorm "
               "normalizes over "
               "other groups of samples",
               (unsigned long long)t->state.micro_batches, t->micro_batches);
    if (t->state.seed != (uint64_t)t->config->seed)
        tr_log(TR_LOG_WARN, "the checkpoint was made with seed %llu, now %lld",
               (unsigned long long)t->state.seed, (long long)t->config->seed);
}

/* *Collective.* From now on this start's config is in force. What is told is told once: a rollback
 * changes nothing. */
static tr_status compare_config(tr_trainer *t)
{
    tr_status st = TR_OK;
    bool changed = false;
    if (t->topology->rank == 0) {
        const char *was = tr_checkpointer_config(t->checkpointer);
        st = tr_resume_compare(t, &t->state, was, !t->loop_began, &changed);
        if (st == TR_OK && changed)
            st = tr_checkpointer_config_begins(t->checkpointer, t->state.step);
    }
    return tr_agree(t->comm, st, NULL);
}

tr_status tr_trainer_restore(tr_trainer *t, bool *found)
{
    tr_status st;
    const uint64_t samples = t->state.samples, names = t->state.names;
    *found = false;
    TR_TRY(tr_checkpointer_restore(t->checkpointer, &t->state, &t->history, found));
    if (!*found) goto out;
    TR_TRY(compare_config(t));
    if (t->topology->rank == 0) compare_state(t, samples, names);
    if (t->state.samples != samples || (t->state.names != names && t->state.names != 0) ||
        t->state.batch != (uint64_t)t->config->train.batch)
        tr_trainer_new_epoch(t); /* what the sums are of is no longer the beginning of an epoch */
    t->state.samples = samples;
    t->state.names = names;
    t->state.batch = (uint64_t)t->config->train.batch;
    t->state.micro_batches = (uint64_t)t->micro_batches;
    t->state.threads = (uint64_t)t->affinity.threads;
    t->state.seed = (uint64_t)t->config->seed;
    t->state.epoch = t->state.step / t->steps_per_epoch;
    if (t->config->train.loss_scale >= 0) t->state.loss_scale = tr_loss_scale_start(t->config);
    st = tr_trainer_control(t);
    if (st == TR_OK) st = reserve_history(t);
    TR_TRY(tr_agree(t->comm, st, NULL));
out:
    return st;
}
