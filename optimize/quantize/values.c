/* Tensors of a plan, for the host to look at. */
#include "optimize/quantize/internal.h"

tr_status tr_host_values_of(const tr_evaluator *e, const tr_plan *p, int tensor, tr_host_values *v,
                            const void **at)
{
    const size_t nbytes = tr_plan_graph(p)->tensors[tensor].nbytes;
    const tr_backend *backend;
    void *ctx;
    int threads;
    tr_status st = TR_OK;
    tr_evaluator_place(e, &backend, &ctx, &threads);
    *at = tr_plan_tensor(p, tensor);
    if (backend->host) return TR_OK;
    if (nbytes > v->nbytes) {
        void *grown = tr_realloc(TR_MEM_OTHER, v->buffer, nbytes, 1);
        TR_HAVE(grown);
        v->buffer = grown;
        v->nbytes = nbytes;
    }
    TR_TRY(backend->memory->download(ctx, v->buffer, *at, nbytes));
    *at = v->buffer;
out:
    return st;
}
