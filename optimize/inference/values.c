/* A network's values, copied for an engine. */
#include "optimize/inference/values.h"

tr_status tr_inference_values(const tr_network *n, const tr_model *m, const tr_backend *b,
                              void *backend_ctx, tr_params **out)
{
    tr_status st = TR_OK;
    tr_params *p = NULL;
    const tr_params_options o = {.model = m,
                                 .count = m->flat_count,
                                 .state_count = m->state_count,
                                 .backend = b,
                                 .backend_ctx = backend_ctx};
    TR_TRY(tr_params_open(&o, NULL, 0, NULL, &p));
    TR_TRY(b->memory->upload(backend_ctx, p->weights, n->params, m->flat_count * sizeof(float)));
    TR_TRY(b->memory->upload(backend_ctx, p->states, n->states, m->state_count * sizeof(float)));
    *out = p;
out:
    if (st != TR_OK) tr_params_close(p);
    return st;
}
