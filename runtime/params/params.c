/* The parameter store's arrays and arithmetic. */
#include "runtime/params/params.h"

#include <string.h>

static void *get(const tr_params *p, tr_mem_kind kind, size_t count)
{
    size_t nbytes;
    if (!tr_mul_size(count, sizeof(float), &nbytes)) {
        (void)TR_FAIL(TR_MEMORY, "%zu parameters do not fit the address space", count);
        return NULL;
    }
    return p->o.backend ? p->o.backend->memory->alloc(p->o.backend_ctx, kind, nbytes)
                        : tr_alloc(kind, nbytes, 1);
}

static void give_back(const tr_params *p, float *array, const float *handed_in)
{
    if (array == handed_in) return;
    if (p->o.backend)
        p->o.backend->memory->free(p->o.backend_ctx, array);
    else
        tr_free(array);
}

static tr_status allocate(tr_params *p)
{
    const tr_params_memory *m = &p->memory;
    p->grads = m->grads ? m->grads : get(p, TR_MEM_GRADIENTS, tr_params_learned(&p->o));
    p->weights = m->weights ? m->weights : get(p, TR_MEM_WEIGHTS, p->o.count);
    bool ok = p->grads && p->weights;
    for (int k = 0; ok && k < p->o.nslots; k++) {
        p->slots[k] = m->slots[k] ? m->slots[k] : get(p, TR_MEM_MOMENTS, p->held);
        ok = p->slots[k] != NULL;
    }
    if (ok) p->states = get(p, TR_MEM_WEIGHTS, p->o.state_count);
    return ok && p->states ? TR_OK : tr_last_status();
}

tr_status tr_params_open(const tr_params_options *o, const tr_range *owned, size_t nowned,
                         const tr_params_memory *memory, tr_params **out)
{
    tr_status st = TR_OK;
    tr_params *p = TR_NEW(TR_MEM_OTHER, tr_params);
    if (!p) return tr_last_status();
    p->o = *o;
    if (memory) p->memory = *memory;
    tr_range *buckets = tr_alloc(TR_MEM_OTHER, o->nbuckets, sizeof *buckets);
    tr_range *rounded = tr_alloc(TR_MEM_OTHER, o->nrounded, sizeof *rounded);
    p->o.buckets = buckets;
    p->o.rounded = rounded;
    p->owned = tr_alloc(TR_MEM_OTHER, nowned, sizeof *p->owned);
    p->slot_at = tr_alloc(TR_MEM_OTHER, nowned, sizeof *p->slot_at);
    TR_HAVE(buckets && rounded && p->owned && p->slot_at);
    TR_NEED(o->nslots >= 0 && o->nslots <= TR_PARAM_SLOTS, TR_INTERNAL, "%d optimizer slots",
            o->nslots);
    if (o->nbuckets) memcpy(buckets, o->buckets, o->nbuckets * sizeof *buckets);
    if (o->nrounded) memcpy(rounded, o->rounded, o->nrounded * sizeof *rounded);
    for (size_t i = 0; i < nowned; i++) {
        p->owned[i] = owned[i];
        p->slot_at[i] = p->held;
        p->held += tr_range_count(owned[i]);
    }
    p->nowned = nowned;
    p->frozen = (tr_range){tr_params_learned(o), o->count};
    TR_TRY(allocate(p));
out:
    if (st != TR_OK) {
        p->memory.release = NULL; /* stays the caller's */
        tr_params_close(p);
        return st;
    }
    *out = p;
    return TR_OK;
}

void tr_params_close(tr_params *p)
{
    if (!p) return;
    const tr_params_memory *m = &p->memory;
    for (int k = 0; k < TR_PARAM_SLOTS; k++) give_back(p, p->slots[k], m->slots[k]);
    give_back(p, p->states, NULL);
    give_back(p, p->weights, m->weights);
    give_back(p, p->grads, m->grads);
    if (m->release) m->release(m->ctx);
    tr_free((void *)p->o.buckets);
    tr_free((void *)p->o.rounded);
    tr_free(p->owned);
    tr_free(p->slot_at);
    tr_free(p);
}

float *tr_params_weight(const tr_params *p, size_t row)
{
    return p->weights + p->o.model->params[row].offset;
}

float *tr_params_grad(const tr_params *p, size_t row)
{
    return p->grads + p->o.model->params[row].offset;
}

float *tr_params_state(const tr_params *p, size_t row)
{
    return p->states + p->o.model->states[row].offset;
}

bool tr_params_part(const tr_params *p, size_t i, tr_range within, tr_range *part, size_t *at)
{
    *part = tr_range_common(p->owned[i], within);
    if (tr_range_count(*part) == 0) return false;
    *at = p->slot_at[i] + (part->begin - p->owned[i].begin);
    return true;
}

int tr_params_slot(const tr_params *p, const char *name)
{
    for (int k = 0; k < p->o.nslots; k++)
        if (strcmp(p->o.slot_names[k], name) == 0) return k;
    return -1;
}
