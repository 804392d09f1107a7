/* A network's values for an engine: copied, or handed over. */
#include "optimize/inference/values.h"

/* `own`: parameters that the store is to have; NULL: memory of its own, for copies. */
static tr_status open_values(const tr_network *n, const tr_params_memory *own, const tr_model *m,
                             const tr_backend *b, void *backend_ctx, tr_params **out)
{
    tr_status st = TR_OK;
    tr_params *p = NULL;
    const tr_params_options o = {.model = m,
                                 .count = m->flat_count,
                                 .state_count = m->state_count,
                                 .backend = b,
                                 .backend_ctx = backend_ctx};
    TR_TRY(tr_params_open(&o, NULL, 0, own, &p));
    if (!own)
        TR_TRY(
            b->memory->upload(backend_ctx, p->weights, n->params, m->flat_count * sizeof(float)));
    TR_TRY(b->memory->upload(backend_ctx, p->states, n->states, m->state_count * sizeof(float)));
    *out = p;
out:
    if (st != TR_OK && p) p->memory.release = NULL; /* stays the network's */
    if (st != TR_OK) tr_params_close(p);
    return st;
}

tr_status tr_inference_values(const tr_network *n, const tr_model *m, const tr_backend *b,
                              void *backend_ctx, tr_params **out)
{
    return open_values(n, NULL, m, b, backend_ctx, out);
}

tr_status tr_inference_take_values(tr_network *n, const tr_model *m, const tr_backend *b,
                                   void *backend_ctx, tr_params **out)
{
    const tr_params_memory own = {.weights = n->params, .ctx = n->params, .release = tr_free};
    const tr_status st = open_values(n, b->host ? &own : NULL, m, b, backend_ctx, out);
    if (b->host && st == TR_OK) n->params = NULL;
    return st;
}
