/* Checkpoints: who writes them, and when.
 *
 * Where training goes on meanwhile, a thread of rank 0 writes a snapshot. One write is under way at
 * most: a save that finds the writer busy waits for it, and that wait is part of the stall it
 * reports. Else rank 0 writes at once, and all ranks wait. */
#include "trainer/run/checkpointer.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "trainer/run/history.h"

enum { NEWS = TR_CHECKPOINT_NEWS };

/* Where the disk is full, older checkpoints make room, as long as a newer one is whole; a sound one
 * never for one that is not. */
static tr_status write_file(const tr_checkpointer *k, const char *path, const tr_snapshot *s,
                            size_t *nbytes)
{
    for (;;) {
        bool removed;
        const tr_status st = tr_store_write(path, k->o.params->o.model, s, nbytes);
        const tr_error why = *tr_last_error();
        if (st == TR_OK || why.status != st || why.hint != TR_HINT_DISK_FULL) return st;
        if (tr_store_make_room(k->o.folder, s->train.step, !s->train.unsound, &removed) != TR_OK ||
            !removed) {
            tr_set_error(&why);
            return st;
        }
    }
}

static bool are_finite(const float *v, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) bad += !isfinite(v[i]);
    return bad == 0;
}

/* Of the step files, those go whose place the one just written takes. */
static tr_status prune(tr_checkpointer *k)
{
    const tr_train_state *now = &k->snapshot.train;
    tr_status st = TR_OK;
    if (k->unsound && k->unsound_step != now->step) {
        char *old = tr_store_checkpoint_path(k->o.folder, k->unsound_step);
        TR_HAVE(old);
        unlink(old); /* a rollback may have renamed it */
        tr_free(old);
    }
    k->unsound = now->unsound;
    k->unsound_step = now->step;
    if (!now->unsound) TR_TRY(tr_store_prune(k->o.folder, k->o.keep, now->step));
out:
    return st;
}

static tr_status write_files(tr_checkpointer *k, size_t *nbytes)
{
    tr_status st = TR_OK;
    char *best = tr_sprintf("%s/checkpoints/best.h5", k->o.folder);
    char *step = tr_store_checkpoint_path(k->o.folder, k->snapshot.train.step);
    TR_HAVE(best && step);
    k->snapshot.train.unsound =
        !(k->kind.sound && are_finite(k->snapshot.params, k->o.params->o.count) &&
          are_finite(k->snapshot.states, k->o.params->o.state_count));
    if (k->kind.step_file) {
        TR_TRY(write_file(k, step, &k->snapshot, nbytes));
        k->resumable |= !k->snapshot.train.unsound;
        const tr_status linked = k->kind.best ? tr_store_link(step, best) : TR_OK;
        const tr_error why = *tr_last_error();
        TR_TRY(prune(k));
        if (linked != TR_OK) { /* the step's file is whole all the same */
            tr_set_error(&why);
            st = tr_fail_before(linked, "best.h5 for it: ");
        }
    } else {
        TR_TRY(write_file(k, best, &k->snapshot, nbytes));
        k->resumable |= !k->snapshot.train.unsound;
    }
out:
    tr_free(best);
    tr_free(step);
    return st;
}

/* With the lock held. */
static void tell(tr_checkpointer *k, tr_status st, size_t nbytes, double seconds)
{
    unsigned at = k->told++ % NEWS;
    if (k->told - k->heard > NEWS) k->heard = k->told - NEWS;
    k->last = st;
    if (st != TR_OK) k->last_error = *tr_last_error();
    k->news[at] = (tr_checkpoint_report){st == TR_OK, k->snapshot.train.step, nbytes, seconds};
    snprintf(k->why[at], sizeof k->why[at], "%s", st == TR_OK ? "" : tr_last_error()->text);
}

static void *writer(void *arg)
{
    tr_checkpointer *k = arg;
    pthread_mutex_lock(&k->lock);
    for (;;) {
        while (!k->busy && !k->quit) pthread_cond_wait(&k->changed, &k->lock);
        if (!k->busy) break;
        pthread_mutex_unlock(&k->lock);
        double begin = tr_now();
        size_t nbytes = 0;
        tr_status st = write_files(k, &nbytes);
        double seconds = tr_now() - begin;
        pthread_mutex_lock(&k->lock);
        tell(k, st, nbytes, seconds);
        k->busy = false;
        pthread_cond_broadcast(&k->changed);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

tr_status tr_checkpointer_open(const tr_checkpointer_options *o, tr_checkpointer **out)
{
    tr_status st = TR_OK;
    tr_checkpointer *k = TR_NEW(TR_MEM_OTHER, tr_checkpointer);
    TR_HAVE(k);
    k->o = *o;
    k->root = tr_comm_topology(o->comm)->rank == 0;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    if (!k->root) goto out;
    TR_TRY(tr_checkpointer_snapshot(k));
    if (!o->copies) goto out;
    TR_NEED(pthread_create(&k->thread, NULL, writer, k) == 0, TR_IO,
            "the checkpoint writer's thread cannot be started");
    k->started = true;
out:
    if (st != TR_OK) {
        tr_checkpointer_close(k);
        return st;
    }
    *out = k;
    return TR_OK;
}

void tr_checkpointer_close(tr_checkpointer *k)
{
    if (!k) return;
    if (k->started) {
        pthread_mutex_lock(&k->lock);
        k->quit = true;
        pthread_cond_broadcast(&k->changed);
        pthread_mutex_unlock(&k->lock);
        pthread_join(k->thread, NULL);
    }
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->changed);
    tr_checkpointer_snapshot_free(k);
    tr_history_free(&k->history);
    tr_past_configs_free(&k->configs);
    tr_free(k);
}

void tr_checkpointer_idle(tr_checkpointer *k)
{
    if (!k->busy) return;
    tr_comm_busy(k->o.comm, TR_BUSY_WRITES);
    while (k->busy) pthread_cond_wait(&k->changed, &k->lock);
    tr_comm_busy(k->o.comm, TR_BUSY_NOT);
}

/* With the lock held: what the writer does, while peers wait. */
static void write_now(tr_checkpointer *k)
{
    const double begin = tr_now();
    size_t nbytes = 0;
    tr_comm_busy(k->o.comm, TR_BUSY_WRITES);
    const tr_status st = write_files(k, &nbytes);
    tr_comm_busy(k->o.comm, TR_BUSY_NOT);
    tell(k, st, nbytes, tr_now() - begin);
}

/* *Collective.* Where no copy is written, nobody changes the arrays before the file has them. */
static tr_status release(const tr_checkpointer *k, tr_status st)
{
    if (k->o.copies) return st;
    const tr_error why = *tr_last_error();
    const tr_status all = tr_comm_barrier(k->o.comm);
    if (st == TR_OK) return all;
    tr_set_error(&why);
    return st;
}

tr_status tr_checkpointer_save(tr_checkpointer *k, const tr_train_state *state, const tr_history *h,
                               tr_checkpoint_kind kind, double *stall)
{
    double begin = tr_now();
    *stall = 0;
    if (!k->root) return release(k, tr_checkpointer_take(k, state, h));
    pthread_mutex_lock(&k->lock);
    tr_checkpointer_idle(k);
    tr_status st = tr_checkpointer_take(k, state, h);
    if (st == TR_OK) {
        k->kind = kind;
        k->busy = k->o.copies;
        pthread_cond_broadcast(&k->changed);
    }
    if (st == TR_OK && !k->o.copies) write_now(k);
    pthread_mutex_unlock(&k->lock);
    st = release(k, st);
    *stall = tr_now() - begin;
    return st;
}

void tr_checkpointer_move(tr_checkpointer *k, const char *folder)
{
    pthread_mutex_lock(&k->lock);
    tr_checkpointer_idle(k);
    k->o.folder = folder;
    pthread_mutex_unlock(&k->lock);
}

bool tr_checkpointer_report(tr_checkpointer *k, tr_checkpoint_report *out)
{
    if (!k->root) return false;
    pthread_mutex_lock(&k->lock);
    const bool any = k->heard != k->told;
    if (any) {
        const unsigned at = k->heard++ % NEWS;
        *out = k->news[at];
        if (!out->saved)
            tr_log(TR_LOG_WARN,
                   "the checkpoint of step %llu could not be saved: %s; training goes on, earlier "
                   "checkpoints are untouched",
                   (unsigned long long)out->step, k->why[at]);
    }
    pthread_mutex_unlock(&k->lock);
    return any;
}

tr_status tr_checkpointer_reserve(tr_checkpointer *k, const tr_history *h, size_t cells)
{
    tr_status st = TR_OK;
    if (!k->root) return st;
    pthread_mutex_lock(&k->lock);
    tr_checkpointer_idle(k);
    k->history.nsteps = k->history.nevals = 0; /* a copy: nothing to keep */
    st = tr_history_reserve(&k->history, h->cap_steps, h->cap_evals, cells);
    pthread_mutex_unlock(&k->lock);
    return st;
}

tr_status tr_checkpointer_wait(tr_checkpointer *k)
{
    if (!k->root) return TR_OK;
    pthread_mutex_lock(&k->lock);
    tr_checkpointer_idle(k);
    tr_status st = k->last;
    if (st != TR_OK) tr_set_error(&k->last_error);
    pthread_mutex_unlock(&k->lock);
    return st;
}

tr_status tr_checkpointer_resumable(tr_checkpointer *k, bool *is)
{
    (void)tr_checkpointer_wait(k); /* a failed write is told like any other */
    *is = k->resumable;
    return tr_comm_broadcast(k->o.comm, is, sizeof *is, 0);
}

/* Rank 0. The arrays of best.h5, over those of the snapshot; and its step, which has to be that of
 * the best evaluation. */
static tr_status read_best(const tr_checkpointer *k, tr_snapshot *model)
{
    tr_status st = TR_OK;
    const uint64_t step = model->train.best_step;
    const int ema = tr_params_slot(k->o.params, "ema");
    tr_snapshot best = {.params = model->params, .states = model->states};
    char *path = tr_sprintf("%s/checkpoints/best.h5", k->o.folder);
    TR_HAVE(path);
    if (ema >= 0) {
        best.nslots = 1;
        best.slot_names[0] = "ema";
        best.slots[0] = model->slots[ema];
    }
    st = tr_store_read(path, k->o.params->o.model, &best, NULL);
    if (st == TR_OK && best.train.step != step)
        st = TR_FAIL(TR_IO,
                     "%s: the weights of step %llu; the best evaluation was at step %llu, whose "
                     "checkpoint could not be saved",
                     path, (unsigned long long)best.train.step, (unsigned long long)step);
    if (st == TR_OK) {
        model->train = best.train;
    } else {
        st = tr_fail_before(st, "train.result: best: ");
        st = tr_fail_behind(st, "; --resume with train.result=last writes model.h5 from the last "
                                "step");
    }
out:
    tr_free(path);
    return st;
}

tr_status tr_checkpointer_write_model(tr_checkpointer *k, const char *path, tr_model_choice choice,
                                      const tr_train_state *state, const tr_history *h)
{
    if (!k->root) return release(k, tr_checkpointer_take(k, state, h));
    pthread_mutex_lock(&k->lock);
    tr_checkpointer_idle(k);
    tr_status st = tr_checkpointer_take(k, state, h);
    tr_snapshot model = k->snapshot;
    const int ema = tr_params_slot(k->o.params, "ema");
    const bool best = choice.weights == TR_RESULT_BEST;
    tr_comm_busy(k->o.comm, TR_BUSY_WRITES);
    if (st == TR_OK && best) st = read_best(k, &model);
    if (choice.weights == TR_RESULT_EMA || (best && choice.average)) {
        model.params = k->snapshot.slots[ema];
        model.params_parts = k->snapshot.slot_parts[ema];
    }
    model.checkpoint = false;
    model.nslots = 0;
    if (st == TR_OK) {
        if (k->o.copies)
            tr_model_quantize(k->o.params->o.model, model.params,
                              model.states); /* else nothing is int8 */
        st = write_file(k, path, &model, NULL);
    }
    tr_comm_busy(k->o.comm, TR_BUSY_NOT);
    pthread_mutex_unlock(&k->lock);
    return release(k, st);
}

const char *tr_checkpointer_config(const tr_checkpointer *k)
{
    return k->configs.v[k->configs.count - 1].text;
}

tr_status tr_checkpointer_config_begins(tr_checkpointer *k, uint64_t step)
{
    return tr_past_configs_add(&k->configs, step, k->o.config_text);
}
