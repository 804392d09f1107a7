/* Memory, batches and sections where the kernels work on the host: copies are memcpy, batches are
 * read where they lie, nothing is recorded. */
#include "runtime/plan/host.h"

#include <string.h>

int tr_host_devices(char *why, size_t size)
{
    (void)why, (void)size;
    return 1;
}

bool tr_host_load(void *ctx, tr_device_load *out)
{
    (void)ctx, (void)out;
    return false;
}

void *tr_host_alloc(void *ctx, tr_mem_kind kind, size_t nbytes)
{
    (void)ctx;
    return tr_alloc(kind, nbytes, 1);
}

void tr_host_free(void *ctx, void *p)
{
    (void)ctx;
    tr_free(p);
}

tr_status tr_host_zero(void *ctx, void *p, size_t nbytes)
{
    (void)ctx;
    memset(p, 0, nbytes);
    return TR_OK;
}

tr_status tr_host_copy(void *ctx, void *to, const void *from, size_t nbytes)
{
    (void)ctx;
    memcpy(to, from, nbytes);
    return TR_OK;
}

tr_status tr_host_done(void *ctx)
{
    (void)ctx;
    return TR_OK;
}

tr_status tr_host_stage_reserve(void *ctx, size_t nbytes)
{
    (void)ctx, (void)nbytes;
    return TR_OK;
}

tr_status tr_host_stage(void *ctx, const void *data, size_t nbytes, void **where)
{
    (void)ctx, (void)nbytes;
    *where = (void *)data;
    return TR_OK;
}

tr_status tr_host_staged(void *ctx, bool *done)
{
    (void)ctx;
    *done = true;
    return TR_OK;
}

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

tr_status tr_host_section_begin(void *ctx, uint64_t key, bool *replay)
{
    (void)ctx, (void)key;
    *replay = false;
    return TR_OK;
}

tr_status tr_host_section_end(void *ctx, tr_status st)
{
    (void)ctx;
    return st;
}

void *tr_host_stream(void *ctx)
{
    (void)ctx;
    return NULL;
}
