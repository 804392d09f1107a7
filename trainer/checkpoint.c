/* Checkpoints: snapshot, writer thread, restore.
 *
 * The snapshot is one more copy of weights, slots and states on rank 0, made at open, so that
 * saving allocates nothing that grows with the model. One write is under way at most: a save that
 * finds the writer busy waits for it, and that wait is part of the stall it reports. */
#include "trainer/checkpoint.h"

#include <pthread.h>
#include <string.h>

#include "trainer/history.h"

enum { CHUNK = 1 << 20, NEWS = 4 }; /* elements of a broadcast while restoring; unheard reports */

struct tr_checkpointer {
    tr_checkpointer_options o;
    bool root;
    tr_snapshot snapshot; /* arrays owned */
    tr_history history;   /* the writer's copy */
    char parent_sha256[65];
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit, busy; /* busy: a snapshot waits for or is in the writer's hands */
    bool step_file, best;
    tr_status last;
    tr_error last_error;
    tr_checkpoint_report
        news[NEWS]; /* the loop asks after every step, and saves at most twice in one */
    char why[NEWS][TR_ERROR_TEXT];
    unsigned told, heard;
};

static tr_status write_files(tr_checkpointer *k, size_t *nbytes)
{
    tr_status st = TR_OK;
    char *best = tr_sprintf("%s/checkpoints/best.h5", k->o.folder);
    char *step = tr_store_checkpoint_path(k->o.folder, k->snapshot.train.step);
    TR_NEED(best && step, TR_MEMORY, "%s", tr_last_error()->text);
    if (k->step_file) {
        TR_TRY(tr_store_write(step, k->o.model, &k->snapshot, nbytes));
        if (k->best) TR_TRY(tr_store_link(step, best));
        TR_TRY(tr_store_prune(k->o.folder, k->o.keep, k->snapshot.train.step));
    } else
        TR_TRY(tr_store_write(best, k->o.model, &k->snapshot, nbytes));
out:
    tr_free(best);
    tr_free(step);
    return st;
}

/* With the lock held. */
static void tell(tr_checkpointer *k, tr_status st, size_t nbytes, double seconds)
{
    unsigned at = k->told++ % NEWS;
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
    TR_NEED(k, TR_MEMORY, "%s", tr_last_error()->text);
    k->o = *o;
    k->root = tr_comm_topology(o->comm)->rank == 0;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    if (!k->root) goto out;
    const tr_model *m = o->model;
    tr_snapshot *s = &k->snapshot;
    s->checkpoint = true;
    s->config_text = o->config_text;
    s->params = tr_alloc(TR_MEM_SNAPSHOT, m->flat_count, sizeof(float));
    s->states = tr_alloc(TR_MEM_SNAPSHOT, m->state_count, sizeof(float));
    TR_NEED(s->params && s->states, TR_MEMORY, "%s", tr_last_error()->text);
    s->nslots = o->nslots;
    for (int i = 0; i < o->nslots; i++) {
        s->slot_names[i] = o->slot_names[i];
        s->slots[i] = tr_alloc(TR_MEM_SNAPSHOT, m->flat_count, sizeof(float));
        TR_NEED(s->slots[i], TR_MEMORY, "%s", tr_last_error()->text);
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
    tr_free(k);
}

static tr_status fetch(const tr_checkpointer *k, float *to, const float *from, size_t count)
{
    return k->o.backend->memory->download(k->o.backend_ctx, to, from, count * sizeof(float));
}

/* With the writer idle: the arrays and numbers as they are now. */
static tr_status take(tr_checkpointer *k, const tr_train_state *state, const tr_history *h)
{
    const size_t n = k->o.model->flat_count;
    tr_snapshot *s = &k->snapshot;
    tr_status st;
    TR_TRY(fetch(k, s->params, tr_reducer_weights(k->o.reducer), n));
    for (int i = 0; i < s->nslots; i++)
        TR_TRY(fetch(k, s->slots[i], tr_reducer_slot(k->o.reducer, i), n));
    TR_TRY(fetch(k, s->states, k->o.states, k->o.model->state_count));
    s->train = *state;
    memcpy(s->parent_sha256, k->parent_sha256, sizeof s->parent_sha256);
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
                               bool step_file, bool best, double *stall)
{
    *stall = 0;
    if (!k->root) return TR_OK;
    double begin = tr_now();
    pthread_mutex_lock(&k->lock);
    wait_idle(k);
    tr_status st = take(k, state, h);
    if (st == TR_OK) {
        k->step_file = step_file;
        k->best = best;
        k->busy = true;
        pthread_cond_broadcast(&k->changed);
    }
    pthread_mutex_unlock(&k->lock);
    *stall = tr_now() - begin;
    return st;
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

tr_status tr_checkpointer_write_model(tr_checkpointer *k, const char *path,
                                      const tr_train_state *state, const tr_history *h)
{
    pthread_mutex_lock(&k->lock);
    wait_idle(k);
    tr_status st = take(k, state, h);
    tr_snapshot model = k->snapshot;
    model.checkpoint = false;
    model.nslots = 0;
    for (int i = 0; i < k->snapshot.nslots; i++) /* trained with an average: that is the model */
        if (strcmp(k->snapshot.slot_names[i], "ema") == 0) model.params = k->snapshot.slots[i];
    tr_comm_busy(k->o.comm, true);
    if (st == TR_OK) st = tr_store_write(path, k->o.model, &model, NULL);
    tr_comm_busy(k->o.comm, false);
    pthread_mutex_unlock(&k->lock);
    return st;
}

/* *Collective.* Root's array to every rank, which keeps the ranges it owns (of the flat space; all
 * of it where `owned` is NULL). */
static tr_status spread(tr_checkpointer *k, const float *from, float *to, size_t n,
                        const tr_range *owned, size_t nowned, float *buffer)
{
    const tr_range everything = {0, n};
    if (!owned) {
        owned = &everything;
        nowned = 1;
    }
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t end = n - at < CHUNK ? n : at + CHUNK;
        if (k->root) memcpy(buffer, from + at, (end - at) * sizeof(float));
        tr_status st = tr_comm_broadcast(k->o.comm, buffer, (end - at) * sizeof(float), 0);
        if (st != TR_OK) return st;
        for (size_t r = 0; r < nowned; r++) {
            size_t b = owned[r].begin > at ? owned[r].begin : at;
            size_t e = owned[r].end < end ? owned[r].end : end;
            if (b < e)
                st = k->o.backend->memory->upload(k->o.backend_ctx, to + b, buffer + (b - at),
                                                  (e - b) * sizeof(float));
            if (st != TR_OK) return st;
        }
    }
    return TR_OK;
}

static tr_status read_latest(tr_checkpointer *k, tr_history *h, bool *found)
{
    char *path = NULL;
    uint64_t step;
    size_t rejected;
    tr_status st;
    TR_TRY(tr_store_latest(k->o.folder, &path, &step, &rejected));
    *found = path != NULL;
    TR_NEED(path || !rejected, TR_FILE,
            "none of the %zu checkpoints in %s can be read; they are renamed *.damaged; start over "
            "with --force",
            rejected, k->o.folder);
    if (!path) goto out;
    TR_TRY(tr_store_read(path, k->o.model, &k->snapshot, h));
    k->snapshot.history = &k->history; /* reading may have pointed it elsewhere */
    k->snapshot.config_text = k->o.config_text;
    k->snapshot.checkpoint = true;
    TR_TRY(tr_store_sha256(path, k->parent_sha256));
    tr_log(TR_LOG_INFO, "resuming from %s (step %llu)", path, (unsigned long long)step);
out:
    tr_free(path);
    return st;
}

tr_status tr_checkpointer_restore(tr_checkpointer *k, tr_train_state *state, tr_history *h,
                                  bool *found)
{
    tr_comm *comm = k->o.comm;
    size_t n = k->o.model->flat_count;
    size_t nowned;
    const tr_range *owned = tr_reducer_owned(k->o.reducer, &nowned);
    float *buffer = tr_alloc(TR_MEM_OTHER, CHUNK, sizeof(float));
    tr_status st = buffer ? TR_OK : TR_MEMORY;
    if (st == TR_OK && k->root) {
        pthread_mutex_lock(&k->lock);
        wait_idle(k);
        tr_comm_busy(comm, true);
        st = read_latest(k, h, found);
        tr_comm_busy(comm, false);
        pthread_mutex_unlock(&k->lock);
    }
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, found, sizeof *found, 0));
    if (!*found) goto out;
    if (k->root) *state = k->snapshot.train;
    TR_TRY(tr_comm_broadcast(comm, state, sizeof *state, 0));
    TR_TRY(
        spread(k, k->snapshot.params, tr_reducer_weights(k->o.reducer), n, owned, nowned, buffer));
    for (int i = 0; i < k->o.nslots; i++)
        TR_TRY(spread(k, k->snapshot.slots[i], tr_reducer_slot(k->o.reducer, i), n, owned, nowned,
                      buffer));
    TR_TRY(spread(k, k->snapshot.states, k->o.states, k->o.model->state_count, NULL, 0, buffer));
    TR_TRY(tr_reducer_publish(k->o.reducer));
out:
    tr_free(buffer);
    return st;
}
