/* The parameter store's arrays and arithmetic. */
#include "runtime/params/params.h"

#include <string.h>

/* Zeroed; `host`: of a device, that its copies run from. */
static void *get(const tr_params *p, tr_mem_kind kind, size_t count, bool host)
{
    size_t nbytes;
    if (!tr_mul_size(count, sizeof(float), &nbytes)) {
        (void)TR_FAIL(TR_MEMORY, "%zu parameters do not fit the address space", count);
        return NULL;
    }
    const tr_device_memory *m = p->o.backend ? p->o.backend->memory : NULL;
    if (!m) return tr_alloc(kind, nbytes, 1);
    return host ? m->host_alloc(p->o.backend_ctx, kind, nbytes)
                : m->alloc(p->o.backend_ctx, kind, nbytes);
}

static void give_back(const tr_params *p, float *array, const float *handed_in, bool host)
{
    const tr_device_memory *m = p->o.backend ? p->o.backend->memory : NULL;
    if (array == handed_in) return;
    if (!m)
        tr_free(array);
    else if (host)
        m->host_free(p->o.backend_ctx, array);
    else
        m->free(p->o.backend_ctx, array);
}

static tr_status allocate(tr_params *p)
{
    const tr_params_memory *m = &p->memory;
    p->grads = m->grads ? m->grads : get(p, TR_MEM_GRADIENTS, tr_params_learned(&p->o), false);
    p->weights = m->weights ? m->weights : get(p, TR_MEM_WEIGHTS, p->o.count, false);
    bool ok = p->grads && p->weights;
    for (int k = 0; ok && k < p->o.nslots; k++) {
        p->slots[k] = m->slots[k] ? m->slots[k] : get(p, TR_MEM_MOMENTS, p->held, p->o.offload);
        ok = p->slots[k] != NULL;
    }
    if (ok) p->states = get(p, TR_MEM_WEIGHTS, p->o.state_count, false);
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
    TR_NEED(!o->offload || (o->backend && !o->backend->host), TR_INTERNAL,
            "slots of the host's memory have nowhere to be offloaded to");
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
    for (int k = 0; k < TR_PARAM_SLOTS; k++) give_back(p, p->slots[k], m->slots[k], p->o.offload);
    give_back(p, p->states, NULL, false);
    give_back(p, p->weights, m->weights, false);
    give_back(p, p->grads, m->grads, false);
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

/* What lies with the host is the updater's until all that is under way is done. */
static tr_status settle(const tr_params *p, int k)
{
    if (k < 0 || k >= p->o.nslots) return TR_FAIL(TR_INTERNAL, "slot %d of %d", k, p->o.nslots);
    return p->o.offload ? tr_device_finish(p->o.backend, p->o.backend_ctx) : TR_OK;
}

tr_status tr_params_slot_get(const tr_params *p, int k, size_t at, size_t n, float *to)
{
    const tr_status st = settle(p, k);
    if (st != TR_OK) return st;
    if (p->o.backend && !p->o.offload)
        return p->o.backend->memory->download(p->o.backend_ctx, to, p->slots[k] + at,
                                              n * sizeof(float));
    memcpy(to, p->slots[k] + at, n * sizeof(float));
    return TR_OK;
}

tr_status tr_params_slot_set(tr_params *p, int k, size_t at, size_t n, const float *from)
{
    const tr_status st = settle(p, k);
    if (st != TR_OK) return st;
    if (p->o.backend && !p->o.offload)
        return p->o.backend->memory->upload(p->o.backend_ctx, p->slots[k] + at, from,
                                            n * sizeof(float));
    memcpy(p->slots[k] + at, from, n * sizeof(float));
    return TR_OK;
}

tr_status tr_params_slot_zero(tr_params *p, int k)
{
    const tr_status st = settle(p, k);
    if (st != TR_OK) return st;
    if (p->o.backend && !p->o.offload)
        return p->o.backend->memory->zero(p->o.backend_ctx, p->slots[k], p->held * sizeof(float));
    memset(p->slots[k], 0, p->held * sizeof(float));
    return TR_OK;
}
