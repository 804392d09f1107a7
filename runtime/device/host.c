/* Memory, marks and control where the kernels work on the host. */
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

/* ---- Marks: times, seconds ---- */

typedef struct {
    size_t n;
    double *at;
} host_marks;

static void marks_close(void *opened)
{
    host_marks *m = opened;
    if (!m) return;
    tr_free(m->at);
    tr_free(m);
}

static tr_status marks_open(void *ctx, size_t n, void **out)
{
    host_marks *m = TR_NEW(TR_MEM_OTHER, host_marks);
    (void)ctx;
    if (!m) return tr_last_status();
    m->n = n;
    m->at = tr_alloc(TR_MEM_OTHER, n, sizeof *m->at);
    if (!m->at) {
        marks_close(m);
        return tr_last_status();
    }
    *out = m;
    return TR_OK;
}

static tr_status marks_set(void *opened, size_t i)
{
    host_marks *m = opened;
    if (i >= m->n) return TR_FAIL(TR_INTERNAL, "mark %zu of %zu", i, m->n);
    m->at[i] = tr_now();
    return TR_OK;
}

static tr_status marks_read(void *opened, double *seconds, size_t n)
{
    const host_marks *m = opened;
    if (n >= m->n) return TR_FAIL(TR_INTERNAL, "%zu marks of %zu", n + 1, m->n);
    for (size_t i = 0; i < n; i++) seconds[i] = m->at[i + 1] - m->at[i];
    return TR_OK;
}

const tr_device_marks tr_host_marks = {
    .open = marks_open, .close = marks_close, .set = marks_set, .read = marks_read};

/* ---- The control of a step ---- */

tr_status tr_host_set_input(void *training, tr_control *c, const tr_control_input *in)
{
    (void)training;
    c->in = *in;
    if (in->first == 0) return TR_OK;
    memset(c->sums, 0, sizeof c->sums);
    c->sums[TR_SUM_STOP] = in->stop;
    return TR_OK;
}

tr_status tr_host_lap(void *training, tr_control *c, int lap)
{
    (void)training;
    tr_control_lap(c, lap, (uint64_t)(tr_now() * 1e9));
    return TR_OK;
}

/* A report is there as soon as it is asked for. */
tr_status tr_host_report_begin(void *training, const tr_control *c, int slot)
{
    ((tr_host_training *)training)->reports[slot] = *c;
    return TR_OK;
}

tr_status tr_host_report_poll(void *training, int slot, tr_control *out, bool *done)
{
    *out = ((tr_host_training *)training)->reports[slot];
    *done = true;
    return TR_OK;
}
