/* The gradient of the loss over some samples of data.train, without an update. Every rank computes
 * all of it, on one thread, one batch after the other: so it is the same on any number of them. */
#include "optimize/evaluation/internal.h"

#include <string.h>

typedef struct {
    tr_evaluator *e;
    const tr_network *n;
    const tr_config *config;
    tr_dataset *data;
    uint64_t samples;
    int64_t batch;
    tr_params *params;
    tr_session *session;
    tr_loader *loader;
    void *training;
    tr_control *control;
    double *tally;
} work;

static tr_status open_params(work *w)
{
    tr_status st = TR_OK;
    const tr_model *m = w->n->model;
    const tr_evaluator *e = w->e;
    const tr_device_memory *memory = e->backend->memory;
    const tr_params_options p = {.model = m,
                                 .count = m->flat_count,
                                 .buckets = m->buckets,
                                 .nbuckets = m->nbuckets,
                                 .state_count = m->state_count,
                                 .backend = e->backend,
                                 .backend_ctx = e->backend_ctx};
    TR_TRY(tr_params_open(&p, NULL, 0, NULL, &w->params));
    TR_TRY(memory->upload(e->backend_ctx, w->params->weights, w->n->params,
                          m->flat_count * sizeof(float)));
    TR_TRY(memory->upload(e->backend_ctx, w->params->states, w->n->states,
                          m->state_count * sizeof(float)));
    w->control = memory->alloc(e->backend_ctx, TR_MEM_OTHER, sizeof *w->control);
    w->tally = memory->alloc(e->backend_ctx, TR_MEM_OTHER, TR_TALLY * sizeof *w->tally);
    TR_HAVE(w->control && w->tally);
    const tr_control c = {.loss_scale = 1};
    TR_TRY(memory->upload(e->backend_ctx, w->control, &c, sizeof c));
    st = e->backend->training->open(e->backend_ctx, 1, &w->training);
out:
    return st;
}

static tr_status open_work(work *w)
{
    tr_status st = TR_OK;
    const tr_evaluator *e = w->e;
    const int64_t rest = (int64_t)(w->samples % (uint64_t)w->batch);
    const tr_plan_key keys[] = {{.mode = TR_MODE_TRAIN, .batch = w->batch},
                                {.mode = TR_MODE_TRAIN, .batch = rest}};
    TR_TRY(open_params(w));
    TR_TRY(tr_session_open(&(tr_session_options){.model = w->n->model,
                                                 .backend = e->backend,
                                                 .backend_ctx = e->backend_ctx,
                                                 .params = w->params,
                                                 .threads = 1,
                                                 .ranks = 1,
                                                 .skip_passes = tr_graph_skip(e->o.config),
                                                 .keys = keys,
                                                 .nkeys = rest ? 2 : 1},
                           &w->session));
    st = tr_loader_open(&(tr_loader_options){.config = w->config,
                                             .model = w->n->model,
                                             .dataset = w->data,
                                             .samples = w->samples,
                                             .batch = w->batch,
                                             .micro_batches = 1,
                                             .size = 1,
                                             .dtype = TR_F32,
                                             .backend = e->backend,
                                             .backend_ctx = e->backend_ctx},
                        &w->loader);
out:
    return st;
}

static void close_work(work *w)
{
    const tr_evaluator *e = w->e;
    tr_loader_close(w->loader);
    tr_session_close(w->session);
    if (w->training) e->backend->training->close(w->training);
    e->backend->memory->free(e->backend_ctx, w->control);
    e->backend->memory->free(e->backend_ctx, w->tally);
    tr_params_close(w->params);
}

static tr_status run_batch(work *w, bool first)
{
    tr_status st = TR_OK;
    tr_batch b;
    TR_TRY(tr_loader_next(w->loader, &b));
    tr_plan *p = tr_session_plan(w->session, TR_MODE_TRAIN, b.count);
    TR_NEED(p, TR_INTERNAL, "no plan for a batch of %lld", (long long)b.count);
    const tr_control_input in = {.ordinal = b.ordinal, .first = 1};
    TR_TRY(w->e->backend->training->set_input(w->training, w->control, &in));
    TR_TRY(tr_session_stage(w->session));
    for (size_t i = 0; i < w->n->model->ninputs; i++) TR_TRY(tr_plan_set_input(p, i, b.inputs[i]));
    TR_TRY(tr_plan_set_target(p, b.targets));
    TR_TRY(tr_plan_set_weights(p, b.weights));
    st = tr_plan_run(p, &(tr_run){.seed = (uint64_t)w->config->seed,
                                  .ordinal = b.ordinal,
                                  .loss_scale = 1,
                                  .control = w->control,
                                  .accumulate = !first,
                                  .last = true,
                                  .params_changed = first,
                                  .tally = w->tally});
    if (st == TR_OK) st = tr_device_finish(w->e->backend, w->e->backend_ctx);
out:
    return st;
}

static tr_status run(work *w, uint64_t samples, float *out)
{
    tr_status st = TR_OK;
    const tr_model *m = w->n->model;
    TR_NEED(w->e->backend->training, TR_UNSUPPORTED, "this device computes no gradients");
    TR_TRY(tr_config_settled(w->config));
    const uint64_t all = tr_dataset_samples(w->data);
    TR_NEED(all > 0, TR_DATA, "data.train has no samples");
    w->samples = samples > 0 && samples < all ? samples : all;
    w->batch = w->config->train.batch;
    if ((uint64_t)w->batch > w->samples) w->batch = (int64_t)w->samples;
    TR_TRY(open_work(w));
    const uint64_t batches = tr_loader_steps_per_epoch(w->loader);
    for (uint64_t i = 0; i < batches; i++) TR_TRY(run_batch(w, i == 0));
    memset(out, 0, m->flat_count * sizeof *out);
    st = w->e->backend->memory->download(w->e->backend_ctx, out, w->params->grads,
                                         m->learned_count * sizeof *out);
out:
    return st;
}

tr_status tr_gradients_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                            uint64_t samples, float *out)
{
    work w = {.e = e, .n = n, .config = config ? config : e->o.config};
    tr_status st;
    TR_TRY(tr_evaluator_data(e, n, TR_OVER_TRAIN, &w.data));
    tr_comm_busy(e->o.comm, TR_BUSY_COMPUTES);
    st = run(&w, samples, out);
    close_work(&w);
    tr_comm_busy(e->o.comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(e->o.comm, st, NULL));
    /* computed alike everywhere, but for devices whose sums vary and CPUs that differ: one rank's
     * count */
    TR_TRY(tr_comm_broadcast(e->o.comm, out, n->model->flat_count * sizeof *out, 0));
out:
    return st;
}
