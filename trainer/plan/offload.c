#include "trainer/plan/offload.h"

#include <math.h>

void tr_offload_cost_of(const tr_memory_of *of, tr_offload_cost *out)
{
    const tr_config *c = of->config;
    const tr_params_options p = tr_params_options_of(c, of->model, of->backend);
    tr_reducer_cost cost;
    *out = (tr_offload_cost){0};
    if (!p.offload) return;
    tr_predict_reducer(of, &cost);
    *out = (tr_offload_cost){cost.slots, cost.slots, cost.slots};
    if (c->train.optimizer.kind.which ==
        TR_OPT_LAMB) { /* reads its moments twice: for norms, too */
        const size_t one = cost.slots / (size_t)p.nslots;
        out->up += 2 * one;
    }
}

void tr_offload_describe(const tr_offload_cost *c, char *buf, size_t room)
{
    char slots[32], up[32], down[32];
    snprintf(buf, room, "the optimizer's %s in host memory, %s up and %s down a step",
             tr_format_bytes((double)c->slots, slots, sizeof slots),
             tr_format_bytes((double)c->up, up, sizeof up),
             tr_format_bytes((double)c->down, down, sizeof down));
}

tr_status tr_offload_link(const tr_backend *b, void *ctx, double *up, double *down)
{
    enum { TIMES = 4 };
    const size_t nbytes = (size_t)8 << 20;
    const tr_device_memory *m = b->memory;
    tr_status st = TR_OK;
    void *host = m->host_alloc(ctx, TR_MEM_OTHER, nbytes), *device = NULL;
    *up = *down = 0;
    TR_HAVE(host);
    TR_HAVE(device = m->alloc(ctx, TR_MEM_OTHER, nbytes));
    for (int i = 0; i < TIMES; i++) {
        const double begin = tr_now();
        TR_TRY(m->upload(ctx, device, host, nbytes));
        const double middle = tr_now();
        TR_TRY(m->download(ctx, host, device, nbytes));
        const double end = tr_now();
        *up = fmax(*up, (double)nbytes / fmax(middle - begin, 1e-9));
        *down = fmax(*down, (double)nbytes / fmax(end - middle, 1e-9));
    }
out:
    m->free(ctx, device);
    m->host_free(ctx, host);
    return st;
}

tr_status tr_offload_check(const tr_config *c, const tr_backend *b)
{
    if (!b->host || c->run.offload != TR_OFFLOAD_ON) return TR_OK;
    return tr_config_fail(c, "run.offload",
                          "on is for GPUs: on CPUs the optimizer's state lies in the host's memory "
                          "as it is; expected auto or off");
}
