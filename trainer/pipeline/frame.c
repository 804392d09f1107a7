/* What stages are evaluated and timed on: a device while it is held, and the model that goes from
 * one to the next. */
#include "trainer/pipeline/frame.h"

#include "trainer/pipeline/budget.h"
#include "trainer/pipeline/latency.h"

static void close_device(tr_stage_device *d)
{
    const tr_error why = *tr_last_error();
    if (d->ctx) d->backend->close(d->ctx);
    d->ctx = NULL;
    tr_set_error(&why);
}

/* *Collective.* On every rank or on none. */
static tr_status open_device(const tr_config *c, tr_comm *comm, tr_stage_device *out)
{
    tr_status st;
    tr_chosen_device d;
    tr_affinity affinity;
    *out = (tr_stage_device){0};
    TR_TRY(tr_device_choose(c, comm, false, &d));
    if (c->device == TR_DEVICE_CUDA)
        TR_TRY(tr_agree(
            comm, d.backend->computes(d.options.device, (tr_precision)c->train.precision), NULL));
    TR_TRY(tr_affinity_open(c, comm, NULL, NULL, &affinity));
    tr_affinity_undo(&affinity);
    out->backend = d.backend;
    out->threads = affinity.threads;
    TR_TRY(tr_agree(comm, d.backend->open(&d.options, &out->ctx), NULL));
out:
    if (st != TR_OK) close_device(out);
    return st;
}

tr_status tr_frame_open_device(tr_frame *f, tr_device device, tr_precision precision,
                               tr_stage_device *out)
{
    tr_config c = *f->config;
    if (device == TR_DEVICE_CPU && precision == TR_PRECISION_FP16)
        return TR_FAIL(TR_UNSUPPORTED,
                       "CPUs have no kernels for fp16: bf16 is the one to use there");
    c.device = (int)device;
    c.train.precision = (int)precision;
    c.run.collectives = TR_COLL_AUTO; /* nothing is reduced */
    c.run.wire = TR_WIRE_FP32;
    return open_device(&c, f->comm, out);
}

tr_status tr_frame_enter_device(tr_frame *f)
{
    tr_status st;
    tr_stage_device d;
    if (f->backend_ctx) return TR_OK;
    tr_config c = *f->config; /* who once took CPUs stays there, and has said why */
    if (f->backend && f->backend->host) c.device = TR_DEVICE_CPU;
    TR_TRY(open_device(&c, f->comm, &d));
    f->backend = d.backend;
    f->backend_ctx = d.ctx;
    f->threads = d.threads;
    if (!f->evaluator) {
        const tr_evaluator_options o = {.comm = f->comm, .config = f->config};
        TR_TRY(tr_agree(f->comm, tr_evaluator_open(&o, &f->evaluator), NULL));
    }
    tr_evaluator_move(f->evaluator, f->backend, f->backend_ctx, f->threads);
out:
    return st;
}

void tr_frame_leave_device(tr_frame *f)
{
    if (f->backend_ctx) f->backend->close(f->backend_ctx);
    f->backend_ctx = NULL;
    if (f->evaluator) tr_evaluator_move(f->evaluator, NULL, NULL, 0);
}

void tr_frame_close(tr_frame *f)
{
    tr_evaluator_close(f->evaluator);
    f->evaluator = NULL;
    tr_frame_leave_device(f);
    tr_chain_free(&f->chain);
}

static tr_status latencies(const tr_frame *f, const tr_network *const *n, size_t count, double *ms)
{
    const tr_latency_options o = {.backend = f->backend,
                                  .backend_ctx = f->backend_ctx,
                                  .threads = f->threads,
                                  .precision = (tr_precision)f->config->train.precision,
                                  .skip_passes = tr_graph_skip(f->config),
                                  .of = f->chain.file};
    return tr_latency(f->comm, n, count, &o, ms);
}

tr_status tr_frame_latency(const tr_frame *f, const tr_network *n, double *ms)
{
    return latencies(f, &n, 1, ms);
}

tr_status tr_frame_latencies(const tr_frame *f, const tr_network *n, double *parent_ms, double *ms)
{
    const tr_network *const both[] = {f->chain.network, n};
    double taken[TR_COUNT(both)];
    const tr_status st = latencies(f, both, TR_COUNT(both), taken);
    if (st != TR_OK) return st;
    *parent_ms = taken[0];
    *ms = taken[1];
    return TR_OK;
}

tr_status tr_frame_judge(tr_frame *f, const char *name, const tr_budget *b)
{
    tr_status st;
    const tr_chain *c = &f->chain;
    tr_measured m = {.bytes = c->nbytes};
    tr_miss miss;
    TR_TRY(tr_frame_enter_device(f));
    if (b->accuracy >= 0 || b->loss >= 0) {
        TR_TRY(tr_evaluate(f->evaluator, c->network, c->config, &m.after));
        m.evaluated = true;
    }
    if (b->latency_ms >= 0 && f->latency_ms == 0)
        TR_TRY(tr_frame_latency(f, c->network, &f->latency_ms));
    m.ms = f->latency_ms;
    tr_budget_judge(b, &m, &miss);
    if (miss.text[0]) st = TR_FAIL(TR_BUDGET, "stage %s: %s", name, miss.text);
out:
    return st;
}
