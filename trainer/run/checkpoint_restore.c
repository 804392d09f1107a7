/* Training goes on from a checkpoint: rank 0 reads the newest one that is whole, and every rank
 * gets its part. */
#include "trainer/run/checkpointer.h"

#include <string.h>

enum { CHUNK = 1 << 20 }; /* elements of a broadcast */

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
static tr_status spread(tr_checkpointer *k, int as, const tr_flat_parts *from, float *to, size_t n,
                        float *buffer, tr_status *kept)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < n; at += CHUNK) {
        const tr_range piece = {at, n - at < CHUNK ? n : at + CHUNK};
        const size_t nbytes = tr_range_count(piece) * sizeof(float);
        if (k->root) tr_flat_copy(from, piece, buffer);
        TR_TRY(tr_comm_broadcast(k->o.comm, buffer, nbytes, 0));
        if (*kept == TR_OK) *kept = keep(k, as, to, piece, buffer);
    }
out:
    return st;
}

/* *Collective.* */
static tr_status spread_all(tr_checkpointer *k, float *buffer, tr_status *kept)
{
    const tr_params *p = k->o.params;
    struct tr_flat_part part = {{0, p->o.count}, k->snapshot.params, false};
    tr_flat_parts whole = {&part, 1}, slot;
    tr_status st;
    TR_TRY(spread(k, WEIGHTS, &whole, p->weights, p->o.count, buffer, kept));
    for (int i = 0; i < p->o.nslots; i++) {
        slot = tr_checkpointer_slot(k, i, &part);
        TR_TRY(spread(k, i, &slot, NULL, tr_params_learned(&p->o), buffer, kept));
    }
    part = (struct tr_flat_part){{0, p->o.state_count}, k->snapshot.states, false};
    TR_TRY(spread(k, STATES, &whole, p->states, p->o.state_count, buffer, kept));
out:
    return st;
}

/* Evaluations write best.h5 between the files of steps: it may be of a later step than what is gone
 * on from, and has taken the place of what was the best there. What it holds stays the best until
 * an evaluation is better, unless it cannot be used: one of another model, it may be. */
static void keep_later_best(tr_checkpointer *k)
{
    tr_train_state *now = &k->snapshot.train, best = {0};
    tr_snapshot fits = {0}; /* no array of it is looked for */
    char *path = tr_sprintf("%s/checkpoints/best.h5", k->o.folder);
    const bool later = path && tr_store_train(path, &best) == TR_OK && best.step > now->step &&
                       best.step == best.best_step;
    const uint64_t step = best.step;
    if (later && tr_store_verify(path, &best) == TR_OK &&
        tr_store_read(path, k->o.params->o.model, &fits, NULL) == TR_OK) {
        now->best = best.best;
        now->best_step = best.best_step;
        tr_log(TR_LOG_INFO, "%s is of a later step (%llu, loss %.5f): it stays until one is better",
               path, (unsigned long long)step, best.best);
    } else if (later) {
        tr_log(
            TR_LOG_WARN,
            "%s; passed over, though of a later step (%llu): train.result: best has no weights to "
            "take until an evaluation is better",
            tr_last_error()->text, (unsigned long long)step);
    }
    tr_free(path);
}

static tr_status read_latest(tr_checkpointer *k, tr_history *h, bool *found)
{
    char *path = NULL;
    uint64_t step;
    tr_status st;
    TR_TRY(tr_store_latest(k->o.folder, k->o.params->o.model, &k->snapshot, &path, &step));
    *found = path != NULL;
    if (!path) goto out;
    tr_checkpointer_fill(k);
    TR_TRY(tr_store_read(path, k->o.params->o.model, &k->snapshot, h));
    k->snapshot.history = &k->history; /* reading may have pointed it elsewhere */
    k->snapshot.config_text = k->o.config_text;
    k->snapshot.checkpoint = true;
    tr_past_configs_free(&k->configs);
    TR_TRY(tr_past_configs_read(path, &k->configs));
    TR_TRY(tr_store_sha256(path, k->parent_sha256));
    *k->o.origin = k->snapshot.origin;
    tr_log(TR_LOG_INFO, "resuming from %s (step %llu)", path, (unsigned long long)step);
    keep_later_best(k);
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

tr_status tr_checkpointer_restore(tr_checkpointer *k, tr_train_state *state, tr_history *h,
                                  bool *found)
{
    tr_comm *comm = k->o.comm;
    tr_status kept = TR_OK;
    float *buffer = tr_alloc(TR_MEM_OTHER, CHUNK, sizeof(float));
    tr_status st = buffer ? TR_OK : tr_last_status();
    if (st == TR_OK && k->root) {
        pthread_mutex_lock(&k->lock);
        tr_checkpointer_idle(k);
        tr_comm_busy(comm, TR_BUSY_READS);
        st = read_latest(k, h, found);
        k->resumable = *found;
        tr_comm_busy(comm, TR_BUSY_NOT);
        pthread_mutex_unlock(&k->lock);
    }
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, found, sizeof *found, 0));
    if (!*found) goto out;
    if (k->root) *state = k->snapshot.train;
    TR_TRY(tr_comm_broadcast(comm, state, sizeof *state, 0));
    TR_TRY(spread_all(k, buffer, &kept));
    TR_TRY(tr_agree(comm, kept, NULL));
    TR_TRY(tr_reducer_publish(k->o.reducer));
out:
    tr_free(buffer);
    return st;
}
