/* Checkpoints: snapshot, writer thread, restore.
 *
 * The snapshot is one more copy of weights, slots and states on rank 0, made at open, so that
 * saving allocates nothing that grows with the model. One write is under way at most: a save that
 * finds the writer busy waits for it, and that wait is part of the stall it reports. */
#include "trainer/run/checkpoint.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "trainer/loop/history.h"

enum { CHUNK = 1 << 20, NEWS = 4 }; /* elements of a broadcast while restoring; unheard reports */

struct tr_checkpointer {
    tr_checkpointer_options o;
    bool root;
    tr_snapshot snapshot;    /* arrays owned */
    tr_history history;      /* the writer's copy */
    tr_past_configs configs; /* up to the one in force */
    char parent_sha256[65];
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit, busy; /* busy: a snapshot waits for or is in the writer's hands */
    tr_checkpoint_kind kind;
    bool unsound; /* the step file written last, of step: */
    uint64_t unsound_step;
    bool resumable; /* there is a sound file */
    tr_status last;
    tr_error last_error;
    /* The loop asks after every step, and saves at most twice in one; what nobody asked for in time
     * is forgotten, the oldest first. */
    tr_checkpoint_report news[NEWS];
    char why[NEWS][TR_ERROR_TEXT];
    unsigned told, heard;
};

/* Where the disk is full, older checkpoints make room, as long as a newer one is whole; a sound one never for one that
 * is not. */
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
        if (k->kind.best) TR_TRY(tr_store_link(step, best));
        TR_TRY(prune(k));
    } else
        TR_TRY(write_file(k, best, &k->snapshot, nbytes));
    k->resumable |= !k->snapshot.train.unsound;
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
    const tr_params_options *p = &o->params->o;
    tr_snapshot *s = &k->snapshot;
    s->checkpoint = true;
    s->config_text = o->config_text;
    s->configs = &k->configs;
    s->params = tr_alloc(TR_MEM_SNAPSHOT, p->count, sizeof(float));
    s->states = tr_alloc(TR_MEM_SNAPSHOT, p->state_count, sizeof(float));
    TR_HAVE(s->params && s->states);
    s->nslots = p->nslots;
    for (int i = 0; i < p->nslots; i++) {
        s->slot_names[i] = p->slot_names[i];
        s->slots[i] = tr_alloc(TR_MEM_SNAPSHOT, p->count, sizeof(float));
        TR_HAVE(s->slots[i]);
    }
    s->history = &k->history;
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
    tr_free(k->snapshot.params);
    tr_free(k->snapshot.states);
    for (int i = 0; i < k->snapshot.nslots; i++) tr_free(k->snapshot.slots[i]);
    tr_history_free(&k->history);
    tr_past_configs_free(&k->configs);
    tr_free(k);
}

static tr_status fetch(const tr_checkpointer *k, float *to, const float *from, size_t count)
{
    const tr_params_options *p = &k->o.params->o;
    return p->backend->memory->download(p->backend_ctx, to, from, count * sizeof(float));
}

/* Frozen rows have no slots; a file has them, so that they can be set free later: no moments, and
 * an average of weights that never moved. */
static void fill_frozen(tr_snapshot *s, const tr_params *p)
{
    const size_t at = tr_params_learned(&p->o), nbytes = (p->o.count - at) * sizeof(float);
    const int ema = tr_params_slot(p, "ema");
    for (int i = 0; i < p->o.nslots; i++)
        if (i == ema)
            memcpy(s->slots[i] + at, s->params + at, nbytes);
        else
            memset(s->slots[i] + at, 0, nbytes);
}

/* *Collective.* With the writer idle: the arrays and numbers as they are now. */
static tr_status take(tr_checkpointer *k, const tr_train_state *state, const tr_history *h)
{
    tr_params *p = k->o.params;
    tr_snapshot *s = &k->snapshot;
    tr_status st = TR_OK;
    for (int i = 0; i < p->o.nslots; i++)
        TR_TRY(tr_comm_params_gather(p, i, k->root ? s->slots[i] : NULL));
    TR_TRY(tr_comm_params_weights(p, s->params));
    if (!k->root) goto out;
    TR_TRY(fetch(k, s->states, p->states, p->o.state_count));
    fill_frozen(s, p);
    s->train = *state;
    memcpy(s->parent_sha256, k->parent_sha256, sizeof s->parent_sha256);
    snprintf(s->teacher_sha256, sizeof s->teacher_sha256, "%s", k->o.teacher_sha256);
    s->origin = *k->o.origin;
    tr_history_copy(&k->history, h);
out:
    return st;
}

/* Peers must not give rank 0 up while it waits for its disk. */
static void wait_idle(tr_checkpointer *k)
{
    if (!k->busy) return;
    tr_comm_busy(k->o.comm, true);
    while (k->busy) pthread_cond_wait(&k->changed, &k->lock);
    tr_comm_busy(k->o.comm, false);
}

tr_status tr_checkpointer_save(tr_checkpointer *k, const tr_train_state *state, const tr_history *h,
                               tr_checkpoint_kind kind, double *stall)
{
    double begin = tr_now();
    *stall = 0;
    if (!k->root) return take(k, state, h);
    pthread_mutex_lock(&k->lock);
    wait_idle(k);
    tr_status st = take(k, state, h);
    if (st == TR_OK) {
        k->kind = kind;
        k->busy = true;
        pthread_cond_broadcast(&k->changed);
    }
    pthread_mutex_unlock(&k->lock);
    *stall = tr_now() - begin;
    return st;
}

void tr_checkpointer_move(tr_checkpointer *k, const char *folder)
{
    pthread_mutex_lock(&k->lock);
    wait_idle(k);
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
    wait_idle(k);
    k->history.nsteps = k->history.nevals = 0; /* a copy: nothing to keep */
    st = tr_history_reserve(&k->history, h->cap_steps, h->cap_evals, cells);
    pthread_mutex_unlock(&k->lock);
    return st;
}

tr_status tr_checkpointer_wait(tr_checkpointer *k)
{
    if (!k->root) return TR_OK;
    pthread_mutex_lock(&k->lock);
    wait_idle(k);
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

/* Rank 0. The arrays of best.h5, over those of the snapshot; and its step. */
static tr_status read_best(const tr_checkpointer *k, tr_snapshot *model)
{
    tr_status st = TR_OK;
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
    if (st != TR_OK)
        st = TR_FAIL(st,
                     "train.result: best: %.600s; --resume with train.result=last writes "
                     "model.h5 from the last step",
                     tr_last_error()->text);
    else
        model->train = best.train;
out:
    tr_free(path);
    return st;
}

tr_status tr_checkpointer_write_model(tr_checkpointer *k, const char *path, tr_model_choice choice,
                                      const tr_train_state *state, const tr_history *h)
{
    if (!k->root) return take(k, state, h);
    pthread_mutex_lock(&k->lock);
    wait_idle(k);
    tr_status st = take(k, state, h);
    tr_snapshot model = k->snapshot;
    const int ema = tr_params_slot(k->o.params, "ema");
    const bool best = choice.weights == TR_RESULT_BEST;
    tr_comm_busy(k->o.comm, true);
    if (st == TR_OK && best) st = read_best(k, &model);
    if (choice.weights == TR_RESULT_EMA || (best && choice.average))
        model.params = k->snapshot.slots[ema];
    model.checkpoint = false;
    model.nslots = 0;
    if (st == TR_OK) {
        tr_model_quantize(k->o.params->o.model, model.params, model.states);
        st = write_file(k, path, &model, NULL);
    }
    tr_comm_busy(k->o.comm, false);
    pthread_mutex_unlock(&k->lock);
    return st;
}

/* A slot goes by its number. */
typedef enum { STATES = -2, WEIGHTS = -1 } tr_spread_as;

/* Of elements [at, end), which came in `piece`, what this rank keeps. */
static tr_status keep(const tr_checkpointer *k, int as, float *to, tr_range came,
                      const float *piece)
{
    tr_params *p = k->o.params;
    const tr_backend *b = p->o.backend;
    tr_status st = TR_OK;
    tr_range part;
    size_t at;
    if (as == STATES)
        return b->memory->upload(p->o.backend_ctx, to + came.begin, piece,
                                 tr_range_count(came) * sizeof(float));
    for (size_t i = 0; st == TR_OK && i < p->nowned; i++) {
        if (!tr_params_part(p, i, came, &part, &at)) continue;
        const float *from = piece + (part.begin - came.begin);
        if (as >= 0)
            st = tr_params_slot_set(p, as, at, tr_range_count(part), from);
        else
            st = b->memory->upload(p->o.backend_ctx, to + part.begin, from,
                                   tr_range_count(part) * sizeof(float));
    }
    part = tr_range_common(p->frozen, came);
    if (st == TR_OK && as == WEIGHTS && tr_range_count(part) > 0)
        st = b->memory->upload(p->o.backend_ctx, to + part.begin, piece + (part.begin - came.begin),
                               tr_range_count(part) * sizeof(float));
    return st;
}

/* *Collective.* Root's array of n elements to every rank, which keeps its part; *kept is the first
 * failure of that, which peers do not know of: the rank goes on taking part. */
static tr_status spread(tr_checkpointer *k, int as, const float *from, float *to, size_t n,
                        float *buffer, tr_status *kept)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < n; at += CHUNK) {
        const tr_range piece = {at, n - at < CHUNK ? n : at + CHUNK};
        const size_t nbytes = tr_range_count(piece) * sizeof(float);
        if (k->root) memcpy(buffer, from + at, nbytes);
        TR_TRY(tr_comm_broadcast(k->o.comm, buffer, nbytes, 0));
        if (*kept == TR_OK) *kept = keep(k, as, to, piece, buffer);
    }
out:
    return st;
}

static tr_status read_latest(tr_checkpointer *k, tr_history *h, bool *found)
{
    char *path = NULL;
    uint64_t step;
    size_t rejected;
    tr_status st;
    TR_TRY(
        tr_store_latest(k->o.folder, k->o.params->o.model, &k->snapshot, &path, &step, &rejected));
    *found = path != NULL;
    TR_NEED(path || !rejected, TR_FILE,
            "none of the %zu checkpoints in %s can be read; they are renamed *.damaged; start over "
            "with --force",
            rejected, k->o.folder);
    if (!path) goto out;
    TR_TRY(tr_store_read(path, k->o.params->o.model, &k->snapshot, h));
    k->snapshot.history = &k->history; /* reading may have pointed it elsewhere */
    k->snapshot.config_text = k->o.config_text;
    k->snapshot.checkpoint = true;
    tr_past_configs_free(&k->configs);
    TR_TRY(tr_past_configs_read(path, &k->configs));
    TR_TRY(tr_store_sha256(path, k->parent_sha256));
    *k->o.origin = k->snapshot.origin;
    tr_log(TR_LOG_INFO, "resuming from %s (step %llu)", path, (unsigned long long)step);
    if (strcmp(k->snapshot.teacher_sha256, k->o.teacher_sha256) != 0)
        tr_log(TR_LOG_WARN,
               "the checkpoint was made with another teacher (SHA-256 %.12s), now %.12s: steps are "
               "counted on",
               k->snapshot.teacher_sha256[0] ? k->snapshot.teacher_sha256 : "none",
               k->o.teacher_sha256[0] ? k->o.teacher_sha256 : "none");
out:
    tr_free(path);
    return st;
}

const char *tr_checkpointer_config(const tr_checkpointer *k)
{
    return k->configs.v[k->configs.count - 1].text;
}

tr_status tr_checkpointer_config_begins(tr_checkpointer *k, uint64_t step)
{
    return tr_past_configs_add(&k->configs, step, k->o.config_text);
}

tr_status tr_checkpointer_restore(tr_checkpointer *k, tr_train_state *state, tr_history *h,
                                  bool *found)
{
    tr_comm *comm = k->o.comm;
    const tr_params *p = k->o.params;
    const tr_snapshot *s = &k->snapshot;
    tr_status kept = TR_OK;
    float *buffer = tr_alloc(TR_MEM_OTHER, CHUNK, sizeof(float));
    tr_status st = buffer ? TR_OK : tr_last_status();
    if (st == TR_OK && k->root) {
        pthread_mutex_lock(&k->lock);
        wait_idle(k);
        tr_comm_busy(comm, true);
        st = read_latest(k, h, found);
        k->resumable = *found;
        tr_comm_busy(comm, false);
        pthread_mutex_unlock(&k->lock);
    }
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, found, sizeof *found, 0));
    if (!*found) goto out;
    if (k->root) *state = k->snapshot.train;
    TR_TRY(tr_comm_broadcast(comm, state, sizeof *state, 0));
    TR_TRY(spread(k, WEIGHTS, s->params, p->weights, p->o.count, buffer, &kept));
    for (int i = 0; i < p->o.nslots; i++)
        TR_TRY(spread(k, i, s->slots[i], NULL, tr_params_learned(&p->o), buffer, &kept));
    TR_TRY(spread(k, STATES, s->states, p->states, p->o.state_count, buffer, &kept));
    TR_TRY(tr_agree(comm, kept, NULL));
    TR_TRY(tr_reducer_publish(k->o.reducer));
out:
    tr_free(buffer);
    return st;
}
