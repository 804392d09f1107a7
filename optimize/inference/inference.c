/* An engine is a session of infer plans, one a number of samples, over one arena; weights are
 * packed when it is opened, and go where no kernel reads them themselves. A call converts the
 * inputs, runs a plan and converts the outputs. */
#include "optimize/inference/inference.h"

#include <string.h>

#include "optimize/inference/convert.h"
#include "optimize/inference/values.h"

struct tr_inference {
    tr_inference_options o; /* outputs: own; sizes are not kept */
    char **names;           /* [o.noutputs] */
    tr_model *model;
    tr_params *params;
    tr_session *session;
    size_t nmet;   /* sizes with a plan of their own, those of parts apart */
    int64_t ready; /* most samples that `staged` has room for */
    void *
        staged[TR_MAX_IN]; /* an input as the plan reads it, in memory that copies can start from */
    void **fetched;        /* [outputs] on a device: an output on its way to the caller */
    size_t nouts;
    tr_inference_value *outs;
};

/* ---- Opening --------------------------------------------------------------------------------- */

static tr_status check(const tr_inference_options *o)
{
    tr_status st = TR_OK;
    TR_NEED(o->max_batch >= 1, TR_CONFIG, "at most %lld samples a call", (long long)o->max_batch);
    for (size_t i = 0; i < o->nsizes; i++)
        TR_NEED(o->sizes[i] >= 1 && o->sizes[i] <= o->max_batch, TR_CONFIG,
                "%lld samples at once, of at most %lld", (long long)o->sizes[i],
                (long long)o->max_batch);
out:
    return st;
}

/* The outputs' names, which the session goes on reading. */
static tr_status keep_names(tr_inference *inf)
{
    inf->names = tr_alloc(TR_MEM_OTHER, inf->o.noutputs, sizeof *inf->names);
    if (!inf->names) return tr_last_status();
    for (size_t i = 0; i < inf->o.noutputs; i++) {
        inf->names[i] = tr_strdup(inf->o.outputs[i]);
        if (!inf->names[i]) return tr_last_status();
    }
    inf->o.outputs = (const char *const *)inf->names;
    return TR_OK;
}

/* Of whatever number of samples. */
static tr_status describe_outputs(tr_inference *inf, const tr_graph *g)
{
    inf->nouts = g->noutputs;
    inf->outs = tr_alloc(TR_MEM_OTHER, g->noutputs, sizeof *inf->outs);
    inf->fetched = tr_alloc(TR_MEM_OTHER, g->noutputs, sizeof *inf->fetched);
    if (!inf->outs || !inf->fetched) return tr_last_status();
    for (size_t k = 0; k < g->noutputs; k++) {
        const tr_layer *l = &inf->model->layers[inf->model->nlayers - 1];
        for (size_t i = 0; k < inf->o.noutputs && i < inf->model->nlayers; i++)
            if (strcmp(inf->model->layers[i].name, inf->names[k]) == 0) l = &inf->model->layers[i];
        tr_inference_value *v = &inf->outs[k];
        *v = (tr_inference_value){.name = l->name, .ndim = l->output.ndim, .dims = l->output.dims};
        v->count = 1;
        for (int i = 0; i < v->ndim; i++) v->count *= (size_t)v->dims[i];
    }
    return TR_OK;
}

static tr_status grow(const tr_inference *inf, void **buffer, size_t nbytes)
{
    const tr_device_memory *m = inf->o.backend->memory;
    void *more = m->host_alloc(inf->o.backend_ctx, TR_MEM_IO, nbytes);
    if (!more) return tr_last_status();
    m->host_free(inf->o.backend_ctx, *buffer);
    *buffer = more;
    return TR_OK;
}

/* Buffers for `n` samples, of which there is a plan. */
static tr_status make_room(tr_inference *inf, int64_t n)
{
    const tr_graph *g = tr_plan_graph(tr_session_plan(inf->session, TR_MODE_INFER, n));
    tr_status st = TR_OK;
    if (n <= inf->ready) return TR_OK;
    inf->ready = 0;
    for (size_t i = 0; i < inf->model->ninputs; i++)
        TR_TRY(grow(inf, &inf->staged[i], g->tensors[g->inputs[i]].nbytes));
    for (size_t k = 0; k < g->noutputs && !inf->o.backend->host; k++)
        TR_TRY(grow(inf, &inf->fetched[k], g->tensors[g->outputs[k]].nbytes));
    inf->ready = n;
out:
    return st;
}

/* A plan for each of o's sizes. `params` NULL: a dry one. */
static tr_status open_session(const tr_inference_options *o, const tr_model *m,
                              const tr_params *params, tr_session **out)
{
    tr_status st = TR_OK;
    tr_plan_key *keys = tr_alloc(TR_MEM_OTHER, o->nsizes, sizeof *keys);
    TR_HAVE(keys);
    for (size_t i = 0; i < o->nsizes; i++)
        keys[i] = (tr_plan_key){.mode = TR_MODE_INFER, .batch = o->sizes[i]};
    const tr_session_options s = {.model = m,
                                  .backend = o->backend,
                                  .backend_ctx = o->backend_ctx,
                                  .params = params,
                                  .threads = o->threads,
                                  .precision = o->precision,
                                  .ranks = 1,
                                  .skip_passes = o->skip_passes,
                                  .keys = keys,
                                  .nkeys = o->nsizes,
                                  .outputs = o->outputs,
                                  .noutputs = o->noutputs,
                                  .dry = !params};
    TR_TRY(tr_session_open(&s, out));
out:
    tr_free(keys);
    return st;
}

/* What is not said, as it is then. `o` keeps its place while *all is used. */
static tr_status resolve(const tr_inference_options *o, tr_inference_options *all)
{
    *all = *o;
    if (o->max_batch == 0) all->max_batch = 1;
    if (o->threads < 1) all->threads = 1;
    if (o->nsizes == 0) {
        all->sizes = &all->max_batch;
        all->nsizes = 1;
    }
    return check(all);
}

/* `giver`: n, which its values may leave; NULL: they are copied. */
static tr_status open_engine(const tr_network *n, tr_network *giver, const tr_inference_options *o,
                             tr_inference **out)
{
    tr_status st = TR_OK;
    tr_inference *inf = TR_NEW(TR_MEM_OTHER, tr_inference);
    if (!inf) return tr_last_status();
    TR_TRY(resolve(o, &inf->o));
    TR_TRY(keep_names(inf));
    TR_TRY(tr_model_copy(n->model, NULL, NULL, 0, &inf->model));
    TR_TRY(giver ? tr_inference_take_values(giver, inf->model, o->backend, o->backend_ctx,
                                            &inf->params)
                 : tr_inference_values(n, inf->model, o->backend, o->backend_ctx, &inf->params));
    TR_TRY(open_session(&inf->o, inf->model, inf->params, &inf->session));
    TR_TRY(tr_session_release(inf->session));
    inf->nmet = inf->o.nsizes;
    TR_TRY(describe_outputs(
        inf, tr_plan_graph(tr_session_plan(inf->session, TR_MODE_INFER, inf->o.sizes[0]))));
    for (size_t i = 0; i < inf->o.nsizes; i++) TR_TRY(make_room(inf, inf->o.sizes[i]));
    inf->o.sizes = NULL;
    *out = inf;
out:
    if (st != TR_OK) tr_inference_close(inf);
    return st;
}

tr_status tr_inference_open(const tr_network *n, const tr_inference_options *o, tr_inference **out)
{
    return open_engine(n, NULL, o, out);
}

tr_status tr_inference_take(tr_network *n, const tr_inference_options *o, tr_inference **out)
{
    return open_engine(n, n, o, out);
}

void tr_inference_close(tr_inference *inf)
{
    if (!inf) return;
    const tr_device_memory *m = inf->o.backend->memory;
    tr_session_close(inf->session);
    tr_params_close(inf->params);
    for (size_t i = 0; i < TR_MAX_IN; i++) m->host_free(inf->o.backend_ctx, inf->staged[i]);
    for (size_t k = 0; inf->fetched && k < inf->nouts; k++)
        m->host_free(inf->o.backend_ctx, inf->fetched[k]);
    tr_model_close(inf->model);
    for (size_t i = 0; inf->names && i < inf->o.noutputs; i++) tr_free(inf->names[i]);
    tr_free(inf->names);
    tr_free(inf->outs);
    tr_free(inf->fetched);
    tr_free(inf);
}

tr_status tr_inference_needs(const tr_network *n, const tr_inference_options *o, size_t *nbytes)
{
    tr_status st = TR_OK;
    tr_inference_options all;
    tr_session *dry = NULL;
    tr_memory_plan plan;
    size_t staged = 0;
    *nbytes = 0;
    if (!o->backend->host) return TR_OK;
    TR_TRY(resolve(o, &all));
    TR_TRY(open_session(&all, n->model, NULL, &dry));
    tr_session_memory(dry, &plan);
    for (int k = 0; k < TR_MEM_KINDS; k++) *nbytes += plan.bytes[k];
    for (size_t k = 0; k < all.nsizes; k++) {
        const tr_graph *g = tr_plan_graph(tr_session_plan(dry, TR_MODE_INFER, all.sizes[k]));
        size_t inputs = 0;
        for (size_t i = 0; i < n->model->ninputs; i++) inputs += g->tensors[g->inputs[i]].nbytes;
        if (inputs > staged) staged = inputs;
    }
    *nbytes += staged + (n->model->flat_count + n->model->state_count) * sizeof(float);
out:
    tr_session_close(dry);
    return st;
}

/* ---- Running --------------------------------------------------------------------------------- */

static tr_status set_inputs(tr_inference *inf, tr_plan *p, const void *const *inputs, size_t first)
{
    const tr_graph *g = tr_plan_graph(p);
    tr_status st = TR_OK;
    TR_TRY(tr_session_stage(inf->session));
    for (size_t i = 0; i < inf->model->ninputs; i++) {
        const tr_tensor *t = &g->tensors[g->inputs[i]];
        const size_t each = t->count / (size_t)g->batch;
        const void *from = (const char *)inputs[i] + first * each * sizeof(float); /* or int32 */
        if (inf->o.backend->host && tr_convert_none(t) && (uintptr_t)from % 64 == 0) {
            TR_TRY(tr_plan_set_input(p, i, from));
            continue;
        }
        tr_convert_in(t, from, inf->staged[i]);
        TR_TRY(tr_plan_set_input(p, i, inf->staged[i]));
    }
out:
    return st;
}

static tr_status get_outputs(tr_inference *inf, const tr_plan *p, float *const *outputs,
                             size_t first)
{
    const tr_graph *g = tr_plan_graph(p);
    const tr_backend *b = inf->o.backend;
    tr_status st = TR_OK;
    for (size_t k = 0; k < g->noutputs; k++) {
        const tr_tensor *t = &g->tensors[g->outputs[k]];
        const void *from = tr_plan_tensor(p, g->outputs[k]);
        if (!b->host) {
            TR_TRY(b->memory->download(inf->o.backend_ctx, inf->fetched[k], from, t->nbytes));
            from = inf->fetched[k];
        }
        tr_convert_out(t, from, outputs[k] + first * inf->outs[k].count);
    }
out:
    return st;
}

/* A plan for just so many samples, made when there is none. */
static tr_status get_ready(tr_inference *inf, int64_t n, tr_plan **out)
{
    tr_status st = TR_OK;
    tr_plan *p = tr_session_plan(inf->session, TR_MODE_INFER, n);
    if (!p) TR_TRY(tr_session_add(inf->session, (tr_plan_key){.mode = TR_MODE_INFER, .batch = n}));
    if (!p) p = tr_session_plan(inf->session, TR_MODE_INFER, n);
    TR_TRY(make_room(inf, n));
    *out = p;
out:
    return st;
}

static tr_status run_part(tr_inference *inf, const void *const *inputs, size_t first, int64_t n,
                          float *const *outputs)
{
    static const tr_run run; /* nothing of a training */
    tr_status st = TR_OK;
    tr_plan *p = NULL;
    TR_TRY(get_ready(inf, n, &p));
    TR_TRY(set_inputs(inf, p, inputs, first));
    TR_TRY(tr_plan_run(p, &run));
    TR_TRY(get_outputs(inf, p, outputs, first));
out:
    return st;
}

tr_status tr_inference_run(tr_inference *inf, const void *const *inputs, int64_t n,
                           float *const *outputs)
{
    tr_status st = TR_OK;
    TR_NEED(n >= 1 && n <= inf->o.max_batch, TR_CONFIG, "%lld samples in a call: 1 to %lld",
            (long long)n, (long long)inf->o.max_batch);
    const bool met = tr_session_plan(inf->session, TR_MODE_INFER, n);
    if (met || inf->nmet < TR_INFERENCE_SIZES) {
        TR_TRY(run_part(inf, inputs, 0, n, outputs));
        if (!met) inf->nmet++;
        return TR_OK;
    }
    size_t first = 0;
    for (int64_t part = (int64_t)1 << 62; part > 0; part >>= 1) {
        if (!(n & part)) continue;
        TR_TRY(run_part(inf, inputs, first, part, outputs));
        first += (size_t)part;
    }
out:
    return st;
}

/* ---- What it is ------------------------------------------------------------------------------ */

size_t tr_inference_inputs(const tr_inference *inf)
{
    return inf->model->ninputs;
}

size_t tr_inference_outputs(const tr_inference *inf)
{
    return inf->nouts;
}

tr_inference_value tr_inference_input(const tr_inference *inf, size_t i)
{
    const tr_input *in = &inf->model->inputs[i];
    tr_inference_value v = {
        .name = in->name, .ndim = in->ndim, .dims = in->dims, .count = 1, .ids = in->ids > 0};
    for (int k = 0; k < in->ndim; k++) v.count *= (size_t)in->dims[k];
    return v;
}

tr_inference_value tr_inference_output(const tr_inference *inf, size_t i)
{
    return inf->outs[i];
}

int64_t tr_inference_max_batch(const tr_inference *inf)
{
    return inf->o.max_batch;
}

tr_plan *tr_inference_plan(tr_inference *inf, int64_t n)
{
    return tr_session_plan(inf->session, TR_MODE_INFER, n);
}

void tr_inference_memory(const tr_inference *inf, tr_memory_plan *out)
{
    tr_session_memory(inf->session, out);
    out->bytes[TR_MEM_WEIGHTS] += tr_session_weights(inf->session);
}
