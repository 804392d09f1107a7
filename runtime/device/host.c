/* Memory and control where the kernels work on the host. */
#include "runtime/device/host.h"

#include <string.h>

static void *host_alloc(void *ctx, tr_mem_kind kind, size_t nbytes)
{
    (void)ctx;
    return tr_alloc(kind, nbytes, 1);
}

static void host_free(void *ctx, void *p)
{
    (void)ctx;
    tr_free(p);
}

static tr_status host_zero(void *ctx, void *p, size_t nbytes)
{
    (void)ctx;
    memset(p, 0, nbytes);
    return TR_OK;
}

static tr_status host_copy(void *ctx, void *to, const void *from, size_t nbytes)
{
    (void)ctx;
    memcpy(to, from, nbytes);
    return TR_OK;
}

const tr_device_memory tr_host_memory = {
    .alloc = host_alloc,
    .free = host_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .zero = host_zero,
    .copy = host_copy,
    .upload = host_copy,
    .download = host_copy,
};

tr_status tr_host_set_input(void *ctx, tr_control *c, const tr_control_input *in)
{
    (void)ctx;
    c->in = *in;
    if (in->first == 0) return TR_OK;
    memset(c->sums, 0, sizeof c->sums);
    c->sums[TR_SUM_STOP] = in->stop;
    return TR_OK;
}

tr_status tr_host_lap(void *ctx, tr_control *c, int lap)
{
    (void)ctx;
    tr_control_lap(c, lap, (uint64_t)(tr_now() * 1e9));
    return TR_OK;
}
