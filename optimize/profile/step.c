/* One plan on random samples, with the update that ends a training's step. */
#include "optimize/profile/step.h"

/* ---- Set-up ---------------------------------------------------------------------------------- */

static tr_params_options params_options(const tr_profile_options *o)
{
    const tr_model *m = o->network->model;
    const bool train = o->mode == TR_MODE_TRAIN;
    tr_params_options p = {.model = m,
                           .count = m->flat_count,
                           .buckets = train ? m->buckets : NULL,
                           .nbuckets = train ? m->nbuckets : 0,
                           .state_count = m->state_count,
                           .backend = o->backend,
                           .backend_ctx = o->backend_ctx};
    if (o->training) p.nslots = tr_optimizer_slots(o->training, p.slot_names);
    return p;
}

static tr_status open_params(tr_profile_step *s)
{
    tr_status st;
    const tr_profile_options *o = s->o;
    const tr_model *m = o->network->model;
    const tr_params_options p = params_options(o);
    const tr_range owned = {0, m->learned_count};
    TR_TRY(tr_params_open(&p, &owned, o->mode == TR_MODE_TRAIN ? 1 : 0, NULL, &s->params));
    TR_TRY(o->backend->memory->upload(o->backend_ctx, s->params->weights, o->network->params,
                                      m->flat_count * sizeof(float)));
    TR_TRY(o->backend->memory->upload(o->backend_ctx, s->params->states, o->network->states,
                                      m->state_count * sizeof(float)));
out:
    return st;
}

/* `params` NULL: a dry one. */
static tr_status open_session(const tr_profile_options *o, const tr_params *params,
                              tr_session **out)
{
    const tr_plan_key key = {.mode = o->mode, .batch = o->batch};
    const tr_session_options s = {.model = o->network->model,
                                  .backend = o->backend,
                                  .backend_ctx = o->backend_ctx,
                                  .params = params,
                                  .threads = o->threads,
                                  .precision = o->precision,
                                  .ranks = 1,
                                  .recompute = o->recompute,
                                  .recompute_every = o->recompute_every,
                                  .recompute_segments = o->recompute_segments,
                                  .skip_passes = o->skip_passes,
                                  .keys = &key,
                                  .nkeys = 1,
                                  .dry = !params};
    return tr_session_open(&s, out);
}

/* Values as normalized ones are; ids and labels among those there are. */
static void fill(const tr_tensor *t, int64_t below, uint32_t stream, void *to)
{
    for (size_t i = 0; i < t->count; i++) {
        float v[2];
        const tr_philox r = tr_philox_at(1, TR_RNG_SYNTHETIC, stream, i, 0);
        tr_normal2(r.v[0], r.v[1], v);
        if (t->dtype == TR_I32)
            ((int32_t *)to)[i] = (int32_t)(r.v[2] % (uint64_t)(below > 0 ? below : 1));
        else if (t->dtype == TR_BF16)
            ((tr_bf16 *)to)[i] = tr_f32_to_bf16(v[0]);
        else if (t->dtype == TR_F16)
            ((tr_f16 *)to)[i] = tr_f32_to_f16(v[0]);
        else
            ((float *)to)[i] = v[0];
    }
}

static tr_status open_data(tr_profile_step *s)
{
    tr_status st = TR_OK;
    const tr_device_memory *memory = s->o->backend->memory;
    void *ctx = s->o->backend_ctx;
    const tr_model *m = s->o->network->model;
    const tr_graph *g = tr_plan_graph(s->plan);
    for (size_t i = 0; i < m->ninputs; i++) {
        const tr_tensor *t = &g->tensors[g->inputs[i]];
        TR_HAVE(s->inputs[i] = memory->host_alloc(ctx, TR_MEM_IO, t->nbytes));
        fill(t, m->inputs[i].ids, (uint32_t)i, s->inputs[i]);
    }
    if (g->target < 0) goto out;
    const tr_tensor *t = &g->tensors[g->target];
    TR_HAVE(s->target = memory->host_alloc(ctx, TR_MEM_IO, t->nbytes));
    fill(t, m->classes > 0 ? m->classes : m->outputs, TR_MAX_IN, s->target);
    if (g->weights < 0) goto out;
    const size_t samples = g->tensors[g->weights].count;
    TR_HAVE(s->weights = memory->host_alloc(ctx, TR_MEM_IO, samples * sizeof *s->weights));
    for (size_t i = 0; i < samples; i++) s->weights[i] = 1;
out:
    return st;
}

/* A learning rate of 0: the update takes as long, and the weights stay. */
static tr_status open_update(tr_profile_step *s)
{
    tr_status st;
    const tr_profile_options *o = s->o;
    const tr_device_memory *memory = o->backend->memory;
    const tr_control c = {
        .loss_scale = 1, .updates = 1, .apply = 1, .grad_scale = 1, .correct1 = 1, .correct2 = 1};
    TR_HAVE(s->tally = memory->alloc(o->backend_ctx, TR_MEM_OTHER, TR_TALLY * sizeof(double)));
    TR_HAVE(s->control = memory->alloc(o->backend_ctx, TR_MEM_OTHER, sizeof c));
    TR_TRY(memory->upload(o->backend_ctx, s->control, &c, sizeof c));
    if (!o->training || !o->backend->training) goto out;
    TR_TRY(o->backend->training->open(o->backend_ctx, o->threads, &s->training));
    TR_TRY(tr_optimizer_open(o->training, s->params, s->training, &s->optimizer));
out:
    return st;
}

tr_status tr_profile_step_open(const tr_profile_options *o, tr_profile_step *s)
{
    tr_status st;
    *s = (tr_profile_step){.o = o};
    TR_TRY(open_params(s));
    TR_TRY(open_session(o, s->params, &s->session));
    s->plan = tr_session_plan(s->session, o->mode, o->batch);
    TR_TRY(open_data(s));
    TR_TRY(open_update(s));
out:
    return st;
}

void tr_profile_step_close(tr_profile_step *s)
{
    const tr_profile_options *o = s->o;
    const tr_device_memory *memory = o->backend->memory;
    tr_optimizer_close(s->optimizer);
    if (s->training) o->backend->training->close(s->training);
    tr_session_close(s->session);
    tr_params_close(s->params);
    for (size_t i = 0; i < TR_MAX_IN; i++) memory->host_free(o->backend_ctx, s->inputs[i]);
    memory->host_free(o->backend_ctx, s->target);
    memory->host_free(o->backend_ctx, s->weights);
    memory->free(o->backend_ctx, s->tally);
    memory->free(o->backend_ctx, s->control);
}

/* ---- What it takes --------------------------------------------------------------------------- */

static size_t data_bytes(const tr_model *m, const tr_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < m->ninputs; i++) n += g->tensors[g->inputs[i]].nbytes;
    if (g->target >= 0) n += g->tensors[g->target].nbytes;
    if (g->weights >= 0) n += g->tensors[g->weights].nbytes;
    return n;
}

tr_status tr_profile_needs(const tr_profile_options *o, size_t *nbytes)
{
    tr_status st = TR_OK;
    const tr_model *m = o->network->model;
    const tr_params_options p = params_options(o);
    const size_t learned = o->mode == TR_MODE_TRAIN ? m->learned_count : 0;
    tr_session *dry = NULL;
    tr_memory_plan plan;
    *nbytes = 0;
    if (!o->backend->host) return TR_OK;
    TR_TRY(open_session(o, NULL, &dry));
    tr_session_memory(dry, &plan);
    for (int k = 0; k < TR_MEM_KINDS; k++) *nbytes += plan.bytes[k];
    *nbytes += (m->flat_count + m->state_count + (size_t)(1 + p.nslots) * learned) * sizeof(float);
    *nbytes += data_bytes(m, tr_plan_graph(tr_session_plan(dry, o->mode, o->batch)));
out:
    tr_session_close(dry);
    return st;
}

/* ---- A run ----------------------------------------------------------------------------------- */

tr_status tr_profile_step_run(tr_profile_step *s, const tr_hooks *hooks, double *seconds,
                              double *update)
{
    tr_status st;
    const tr_profile_options *o = s->o;
    const tr_run run = {.seed = 1,
                        .loss_scale = 1,
                        .control = s->control,
                        .last = true,
                        .params_changed = o->mode == TR_MODE_TRAIN,
                        .tally = s->tally,
                        .hooks = hooks};
    if (o->stop && o->stop(o->stop_ctx)) return TR_FAIL(TR_STOPPED, "stopped between two runs");
    TR_TRY(tr_session_stage(s->session));
    for (size_t i = 0; i < o->network->model->ninputs; i++)
        TR_TRY(tr_plan_set_input(s->plan, i, s->inputs[i]));
    if (s->target) TR_TRY(tr_plan_set_target(s->plan, s->target));
    if (s->weights) TR_TRY(tr_plan_set_weights(s->plan, s->weights));
    TR_TRY(tr_device_finish(o->backend, o->backend_ctx));
    const double begin = tr_now();
    TR_TRY(tr_plan_run(s->plan, &run));
    TR_TRY(tr_device_finish(o->backend, o->backend_ctx));
    const double middle = tr_now();
    if (s->optimizer) TR_TRY(tr_optimizer_update(s->optimizer, s->control, NULL, NULL));
    TR_TRY(tr_device_finish(o->backend, o->backend_ctx));
    const double end = tr_now();
    *seconds = end - begin;
    *update = end - middle;
out:
    return st;
}
