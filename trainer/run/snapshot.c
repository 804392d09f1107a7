/* What a checkpoint is written from.
 *
 * Where files are written while training goes on: one more copy of weights, slots and states, in
 * the host's memory, made at open, so that saving allocates nothing that grows with the model.
 * Where none is, all that is written is written while ranks wait: the arrays as they lie. Slots
 * lie in parts then, of each of the node's ranks:
 *
 *     flat space      [ rank 0 | rank 1 | rank 0 | rank 1 | frozen ]   buckets, in slices
 *     in the window   [ 0 0 ] [ 1 1 ]                                  frozen rows have none */
#include "trainer/run/checkpointer.h"

#include <string.h>

#include "trainer/run/history.h"

static tr_status make_copies(tr_checkpointer *k)
{
    const tr_params_options *p = &k->o.params->o;
    tr_snapshot *s = &k->snapshot;
    tr_status st = TR_OK;
    s->params = tr_alloc(TR_MEM_SNAPSHOT, p->count, sizeof(float));
    s->states = tr_alloc(TR_MEM_SNAPSHOT, p->state_count, sizeof(float));
    TR_HAVE(s->params && s->states);
    for (int i = 0; i < p->nslots; i++) {
        s->slots[i] = tr_alloc(TR_MEM_SNAPSHOT, p->count, sizeof(float));
        TR_HAVE(s->slots[i]);
    }
out:
    return st;
}

/* The last part is that of the frozen rows. */
static tr_status find_parts(tr_checkpointer *k, int slot)
{
    const tr_params *p = k->o.params;
    tr_status st = TR_OK;
    tr_range *ranges = NULL;
    float **at = NULL;
    size_t count;
    TR_TRY(tr_comm_params_places(p, slot, &ranges, &at, &count));
    struct tr_flat_part *v = tr_alloc(TR_MEM_OTHER, count + 1, sizeof *v);
    TR_HAVE(v);
    for (size_t i = 0; i < count; i++) {
        const bool own = at[i] >= p->slots[slot] && at[i] < p->slots[slot] + p->held;
        v[i] = (struct tr_flat_part){ranges[i], at[i], !own};
    }
    v[count].range = (tr_range){tr_params_learned(&p->o), p->o.count};
    k->parts[slot] = v;
    k->snapshot.slot_parts[slot] = (tr_flat_parts){v, count + 1};
out:
    tr_free(ranges);
    tr_free(at);
    return st;
}

tr_status tr_checkpointer_snapshot(tr_checkpointer *k)
{
    const tr_params *p = k->o.params;
    tr_snapshot *s = &k->snapshot;
    tr_status st = TR_OK;
    s->checkpoint = true;
    s->config_text = k->o.config_text;
    s->configs = &k->configs;
    s->history = &k->history;
    s->nslots = p->o.nslots;
    for (int i = 0; i < p->o.nslots; i++) s->slot_names[i] = p->o.slot_names[i];
    if (k->o.copies) return make_copies(k);
    s->params = p->weights;
    s->states = p->states;
    for (int i = 0; i < p->o.nslots; i++) TR_TRY(find_parts(k, i));
out:
    return st;
}

void tr_checkpointer_snapshot_free(tr_checkpointer *k)
{
    if (k->o.copies) {
        tr_free(k->snapshot.params);
        tr_free(k->snapshot.states);
    }
    for (int i = 0; i < TR_STORE_SLOTS; i++) {
        tr_free(k->snapshot.slots[i]);
        tr_free(k->parts[i]);
    }
}

/* Frozen rows have no slots; a file has them, so that they can be set free later: no moments, and
 * an average of weights that never moved. */
static void fill_frozen(tr_checkpointer *k)
{
    const tr_params *p = k->o.params;
    tr_snapshot *s = &k->snapshot;
    const size_t at = tr_params_learned(&p->o), nbytes = (p->o.count - at) * sizeof(float);
    const int ema = tr_params_slot(p, "ema");
    for (int i = 0; i < p->o.nslots; i++)
        if (!k->o.copies)
            k->parts[i][s->slot_parts[i].count - 1].at = i == ema ? s->params + at : NULL;
        else if (i == ema)
            memcpy(s->slots[i] + at, s->params + at, nbytes);
        else
            memset(s->slots[i] + at, 0, nbytes);
}

void tr_checkpointer_fill(tr_checkpointer *k)
{
    for (int i = 0; i < k->snapshot.nslots; i++)
        if (k->parts[i]) k->parts[i][k->snapshot.slot_parts[i].count - 1].at = NULL;
}

/* *Collective.* */
static tr_status copy_arrays(tr_checkpointer *k)
{
    tr_params *p = k->o.params;
    tr_snapshot *s = &k->snapshot;
    tr_status st = TR_OK;
    for (int i = 0; i < p->o.nslots; i++)
        TR_TRY(tr_comm_params_gather(p, i, k->root ? s->slots[i] : NULL));
    TR_TRY(tr_comm_params_weights(p, s->params));
    if (k->root)
        TR_TRY(p->o.backend->memory->download(p->o.backend_ctx, s->states, p->states,
                                              p->o.state_count * sizeof(float)));
out:
    return st;
}

tr_status tr_checkpointer_take(tr_checkpointer *k, const tr_train_state *state, const tr_history *h)
{
    tr_snapshot *s = &k->snapshot;
    tr_status st = TR_OK;
    if (k->o.copies) TR_TRY(copy_arrays(k));
    if (!k->root) goto out;
    fill_frozen(k);
    s->train = *state;
    memcpy(s->parent_sha256, k->parent_sha256, sizeof s->parent_sha256);
    snprintf(s->teacher_sha256, sizeof s->teacher_sha256, "%s", k->o.teacher_sha256);
    s->origin = *k->o.origin;
    tr_history_copy(&k->history, h);
out:
    return st;
}

tr_flat_parts tr_checkpointer_slot(const tr_checkpointer *k, int i, struct tr_flat_part *whole)
{
    if (!k->o.copies) return k->snapshot.slot_parts[i];
    *whole = (struct tr_flat_part){{0, k->o.params->o.count}, k->snapshot.slots[i], false};
    return (tr_flat_parts){whole, 1};
}
