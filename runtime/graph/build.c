/* From a model to a graph: tensors of inputs, parameters and states, the forward ops layer by
 * layer, the loss; then backward and the passes. */
#include "runtime/graph/builder.h"
#include "runtime/graph/maker.h"

#include <string.h>

tr_status tr_build_reserve(tr_builder *b, size_t tensors, size_t ops)
{
    tr_status st = b->st;
    if (st != TR_OK) return st;
    tr_graph *g = b->g;
    TR_TRY(tr_grow(&g->tensors, &b->cap_tensors, g->ntensors + tensors, sizeof *g->tensors));
    TR_TRY(tr_grow(&g->ops, &b->cap_ops, g->nops + ops, sizeof *g->ops));
out:
    return st;
}

static int new_tensor(tr_builder *b, const char *name, tr_role role, int index, tr_dtype dtype,
                      int ndim, const int64_t *dims)
{
    tr_graph *g = b->g;
    int id = (int)g->ntensors++;
    tr_tensor *t = &g->tensors[id];
    *t = (tr_tensor){.id = id,
                     .role = role,
                     .index = index,
                     .dtype = dtype,
                     .ndim = ndim,
                     .alias = -1,
                     .count = 1};
    snprintf(t->name, sizeof t->name, "%.*s", TR_NAME - 1, name);
    bool fits = true;
    for (int i = 0; i < ndim; i++) {
        t->dims[i] = dims[i];
        fits = fits && tr_mul_size(t->count, (size_t)dims[i], &t->count);
    }
    fits = fits && tr_mul_size(t->count, tr_dtype_size(dtype), &t->nbytes) &&
           t->nbytes <= SIZE_MAX >> 4;
    if (!fits && b->st == TR_OK)
        b->st =
            TR_FAIL(TR_SHAPE, "\"%s\" is too large at a batch of %lld", name, (long long)g->batch);
    return id;
}

tr_dtype tr_precision_dtype(tr_precision p)
{
    switch (p) {
    case TR_PRECISION_BF16:
        return TR_BF16;
    case TR_PRECISION_FP16:
        return TR_F16;
    case TR_PRECISION_FP32:
        break;
    }
    return TR_F32;
}

/* A sample's shape with the batch in front; a sequence is an image of height 1. */
static int new_batched(tr_builder *b, const char *name, tr_role role, int index, tr_dtype dtype,
                       int ndim, const int64_t *sample, tr_tensor_layout layout)
{
    int64_t dims[TR_MAX_DIMS] = {b->g->batch};
    const bool sequence = ndim == 2 && layout == TR_LAYOUT_CHANNELS_LAST;
    for (int i = 0; i < ndim; i++) dims[1 + i] = sample[i];
    if (sequence) dims[3] = dims[2], dims[2] = 1;
    const int id = new_tensor(b, name, role, index, dtype, 1 + ndim + sequence, dims);
    b->g->tensors[id].layout = layout;
    return id;
}

bool tr_build_train(const tr_builder *b)
{
    return b->g->mode == TR_MODE_TRAIN;
}

bool tr_build_sync(const tr_builder *b)
{
    return b->sync;
}

const tr_tensor *tr_build_tensor(const tr_builder *b, int id)
{
    return &b->g->tensors[id];
}

int tr_build_as(tr_builder *b, const tr_layer *l, int id, const tr_shape *shape)
{
    const tr_tensor *t = &b->g->tensors[id];
    char name[2 * TR_NAME];
    snprintf(name, sizeof name, "%.55s.as.%d", l->name, id);
    name[TR_NAME - 1] = '\0';
    const int made = new_batched(b, name, TR_ROLE_ACTIVATION, -1, t->dtype, shape->ndim,
                                 shape->dims, shape->layout);
    tr_build_op(b, tr_op_same_elements(), l->name, l->index, NULL, TR_PHASE_FORWARD, TR_IDS(id),
                TR_IDS(made));
    return made;
}

int tr_build_input(tr_builder *b, const tr_layer *l, int i)
{
    const int id = b->value[l->in[i]];
    const tr_shape *s = &l->inputs[i];
    if (s->ndim != 2 || b->g->tensors[id].layout == s->layout) return id;
    return tr_build_as(b, l, id, s);
}

int tr_build_result(tr_builder *b, size_t layer)
{
    const tr_layer *l = &b->g->model->layers[layer];
    const int id = b->value[b->g->model->ninputs + layer];
    tr_shape rows = l->output;
    if (rows.ndim != 2 || rows.layout == TR_LAYOUT_PLAIN) return id;
    rows.layout = TR_LAYOUT_PLAIN;
    return tr_build_as(b, l, id, &rows);
}

int tr_build_param(const tr_builder *b, const tr_layer *l, int i)
{
    const int row = l->params[i];
    return b->rounded[row] >= 0 ? b->rounded[row] : b->first_param + row;
}

int tr_build_state(const tr_builder *b, const tr_layer *l, int i)
{
    return b->first_state + l->first_state + i;
}

int tr_build_output(tr_builder *b, const tr_layer *l)
{
    int64_t room[TR_MAX_DIMS];
    return new_batched(b, l->name, TR_ROLE_ACTIVATION, -1, tr_precision_dtype(b->o->precision),
                       l->output.ndim, tr_build_rows(b, l->output.dims, room), l->output.layout);
}

int tr_build_new(tr_builder *b, const char *layer, const char *what, tr_dtype dtype, int ndim,
                 const int64_t *dims)
{
    char name[2 * TR_NAME];
    snprintf(name, sizeof name, "%.63s.%s", layer, what);
    name[TR_NAME - 1] = '\0';
    return new_tensor(b, name, TR_ROLE_ACTIVATION, -1, dtype, ndim, dims);
}

int tr_build_image(tr_builder *b, const char *layer, const char *what, tr_dtype dtype,
                   const int64_t dims[4])
{
    const int id = tr_build_new(b, layer, what, dtype, 4, dims);
    b->g->tensors[id].layout = TR_LAYOUT_CHANNELS_LAST;
    return id;
}

int tr_build_like(tr_builder *b, const char *layer, const char *what, tr_dtype dtype, int id)
{
    const tr_tensor *t = &b->g->tensors[id];
    const int made = tr_build_new(b, layer, what, dtype, t->ndim, t->dims);
    b->g->tensors[made].layout = t->layout;
    return made;
}

int tr_build_channels(tr_builder *b, const char *layer, const char *what, int id, int64_t channels)
{
    const tr_tensor *t = &b->g->tensors[id];
    const int64_t dims[4] = {t->dims[0], channels, t->dims[2], t->dims[3]};
    const int made = tr_build_new(b, layer, what, t->dtype, t->ndim, dims);
    b->g->tensors[made].layout = t->layout;
    return made;
}

int tr_build_given(tr_builder *b, const char *name, int like)
{
    tr_graph *g = b->g;
    const tr_tensor t = g->tensors[like];
    const int id = new_tensor(b, name, TR_ROLE_GIVEN, (int)g->ngiven, t.dtype, t.ndim, t.dims);
    g->tensors[id].layout = t.layout;
    g->given[g->ngiven++] = id;
    return id;
}

void tr_build_share(tr_builder *b, int id, int of)
{
    b->g->tensors[id].alias = tr_root(b->g, of);
}

tr_op *tr_build_op(tr_builder *b, const tr_op_def *def, const char *layer, int layer_index,
                   const void *attrs, tr_phase phase, int nin, const int *in, int nout,
                   const int *out)
{
    tr_op *op = &b->g->ops[b->g->nops++];
    *op = (tr_op){.def = def,
                  .phase = phase,
                  .nin = nin,
                  .nout = nout,
                  .attrs = attrs,
                  .layer_index = layer_index,
                  .bucket_ready = -1};
    snprintf(op->layer, sizeof op->layer, "%s", layer);
    for (int i = 0; i < TR_MAX_IN; i++) op->in[i] = i < nin ? in[i] : -1;
    for (int i = 0; i < TR_MAX_OUT; i++) op->out[i] = i < nout ? out[i] : -1;
    return op;
}

tr_op *tr_build_forward(tr_builder *b, const tr_op_def *def, const tr_layer *l, int nin,
                        const int *in, int nout, const int *out)
{
    return tr_build_op(b, def, l->name, l->index, l->attrs, TR_PHASE_FORWARD, nin, in, nout, out);
}

static void round_row(tr_builder *b, const tr_layer *l, const tr_param *p, int id, int made)
{
    const bool learned = p->learned_scale >= 0;
    const int in[] = {id, learned ? b->first_param + p->learned_scale : -1};
    tr_build_op(b, learned ? tr_op_rounds_weight_learned() : tr_op_rounds_weight(), l->name,
                l->index,
                learned ? (const void *)&tr_learned_weight_steps : tr_quantize_weight_of(p),
                TR_PHASE_FORWARD, learned ? 2 : 1, in, 1, &made);
}

/* Rows of the layer that are trained and stored as int8: rounded once, before their first
 * reader. */
static void round_rows(tr_builder *b, const tr_layer *l)
{
    const tr_graph *g = b->g;
    if (g->mode != TR_MODE_TRAIN && !(g->mode == TR_MODE_EVALUATE && b->o->trained)) return;
    for (int i = 0; i < l->nparams; i++) {
        const int row = l->params[i], id = b->first_param + row;
        const tr_param *p = &g->model->params[row];
        if (p->stored != TR_I8 || p->frozen || b->rounded[row] >= 0) continue;
        const int made = tr_build_like(b, g->tensors[id].name, "rounded", TR_F32, id);
        g->tensors[made].role = TR_ROLE_ROUNDED;
        g->tensors[made].index = row;
        round_row(b, l, p, id, made);
        b->rounded[row] = made;
    }
}

/* Inputs, parameters, states, then absent operands. */
static int forward_plain(tr_builder *b, const tr_layer *l)
{
    int in[TR_MAX_IN], n = 0;
    for (int i = 0; i < l->nin; i++) in[n++] = tr_build_input(b, l, i);
    /* learned scales stand behind the others, and are read where the weight is rounded */
    const int nparams = l->nparams - ((const tr_common *)l->storage)->learn_scale;
    for (int i = 0; i < nparams; i++) in[n++] = tr_build_param(b, l, i);
    for (int i = 0; i < l->nstates; i++) in[n++] = tr_build_state(b, l, i);
    while (n < l->def->operands) in[n++] = -1;
    int y = tr_build_output(b, l);
    tr_build_forward(b, l->def, l, n, in, 1, &y);
    return y;
}

static void build_inputs(tr_builder *b)
{
    static const char *const more[] = {
        [TR_DECODE_PAST] = "past", [TR_DECODE_COUNT] = "count", [TR_DECODE_INPUTS] = NULL};
    tr_graph *g = b->g;
    const int64_t one = 1;
    int64_t room[TR_MAX_DIMS];
    const bool decodes = b->o->decode.rows > 0; /* lengths: of all rows that there are */
    for (size_t i = 0; i < g->model->ninputs; i++) b->value[i] = -1;
    for (size_t i = 0; i < (decodes ? 1 : g->model->ninputs); i++) {
        const tr_input *in = &g->model->inputs[i];
        g->inputs[i] = b->value[i] =
            new_batched(b, in->name, TR_ROLE_INPUT, (int)i,
                        in->ids > 0 ? TR_I32 : tr_precision_dtype(b->o->precision), in->ndim,
                        tr_build_rows(b, in->dims, room), in->layout);
    }
    for (int i = TR_DECODE_PAST; decodes && i < TR_DECODE_INPUTS; i++)
        g->inputs[i] = new_batched(b, more[i], TR_ROLE_INPUT, i, TR_I32, 1, &one, TR_LAYOUT_PLAIN);
}

/* Everything that is there before the first op. */
static tr_status build_given(tr_builder *b)
{
    tr_graph *g = b->g;
    const tr_model *m = g->model;
    tr_status st = TR_OK;
    char name[2 * TR_NAME];
    TR_TRY(tr_build_reserve(b, m->ninputs + TR_DECODE_INPUTS + 2 + 2 * m->nparams + m->nstates, 0));
    build_inputs(b);
    g->target = -1;
    if (g->mode == TR_MODE_TRAIN && b->o->mixed && m->labels)
        g->target =
            new_batched(b, "target", TR_ROLE_TARGET, -1, TR_F32, 1, &m->outputs, TR_LAYOUT_PLAIN);
    else if (g->mode != TR_MODE_INFER)
        g->target = new_batched(b, "target", TR_ROLE_TARGET, -1, m->labels ? TR_I32 : TR_F32,
                                m->ndim_target, m->target_dims, m->target_layout);
    g->weights = -1;
    if (g->target >= 0 && m->loss_config.weighted)
        g->weights =
            new_batched(b, "weights", TR_ROLE_TARGET, -1, TR_F32, 0, NULL, TR_LAYOUT_PLAIN);
    b->first_param = (int)g->ntensors;
    b->first_grad = b->first_param + (int)m->nparams;
    for (int grad = 0; grad < (g->mode == TR_MODE_TRAIN ? 2 : 1); grad++)
        for (size_t i = 0; i < m->nparams; i++) {
            const tr_param *p = &m->params[i];
            snprintf(name, sizeof name, "%s%.63s.%.60s", grad ? "d." : "", p->layer, p->name);
            name[TR_NAME - 1] = '\0';
            new_tensor(b, name, grad ? TR_ROLE_GRAD : TR_ROLE_PARAM, (int)i, TR_F32, p->ndim,
                       p->dims);
        }
    b->first_state = (int)g->ntensors;
    for (size_t i = 0; i < m->nstates; i++) {
        const tr_state *s = &m->states[i];
        snprintf(name, sizeof name, "%.63s.%.60s", s->layer, s->name);
        name[TR_NAME - 1] = '\0';
        new_tensor(b, name, TR_ROLE_STATE, (int)i, TR_F32, s->ndim, s->dims);
    }
out:
    return st;
}

/* The tensors of an infer graph's outputs. */
static tr_status find_outputs(tr_builder *b)
{
    const tr_model *m = b->g->model;
    const tr_graph_options *o = b->o;
    tr_graph *g = b->g;
    bool logits = o->noutputs == 0;
    if (o->decode.fill) {
        g->logits = -1;
        return b->st;
    }
    g->noutputs = logits ? 1 : o->noutputs;
    g->outputs = tr_alloc(TR_MEM_OTHER, g->noutputs, sizeof *g->outputs);
    if (!g->outputs) return tr_last_status();
    g->outputs[0] = g->logits;
    tr_status st = tr_build_reserve(b, o->noutputs, o->noutputs);
    if (st != TR_OK) return st;
    for (size_t k = 0; k < o->noutputs; k++) {
        const tr_layer *l = tr_model_layer(m, o->outputs[k]);
        if (!l) return TR_FAIL(TR_CONFIG, "the model has no layer \"%s\"", o->outputs[k]);
        const size_t i = (size_t)l->index;
        g->outputs[k] = i + 1 == m->nlayers ? g->logits : tr_build_result(b, i);
        logits |= g->outputs[k] == g->logits;
    }
    if (!logits) g->logits = -1;
    return b->st;
}

tr_status tr_build_all_forward(tr_builder *b)
{
    const tr_model *m = b->g->model;
    tr_status st = TR_OK;
    b->value = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *b->value);
    b->rounded = tr_alloc(TR_MEM_OTHER, m->nparams, sizeof *b->rounded);
    if (!b->value || !b->rounded) return tr_last_status();
    for (size_t i = 0; i < m->nparams; i++) b->rounded[i] = -1;
    TR_TRY(build_given(b));
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        TR_TRY(tr_build_reserve(b, TR_BUILD_ROOM, TR_BUILD_ROOM));
        round_rows(b, l);
        b->value[m->ninputs + i] = l->def->forward ? l->def->forward(b, l) : forward_plain(b, l);
    }
    TR_TRY(tr_build_reserve(b, 1, 1));
    b->g->logits = tr_build_result(b, m->nlayers - 1);
    if (b->g->mode == TR_MODE_INFER) return find_outputs(b);
    TR_TRY(tr_build_reserve(b, 1, 1));
    if (b->g->weights < 0)
        tr_build_op(b, m->loss, "loss", (int)m->nlayers, m->loss_attrs, TR_PHASE_LOSS,
                    TR_IDS(b->g->logits, b->g->target), TR_IDS(-1));
    else
        tr_build_op(b, m->loss, "loss", (int)m->nlayers, m->loss_attrs, TR_PHASE_LOSS,
                    TR_IDS(b->g->logits, b->g->target, b->g->weights), TR_IDS(-1));
    if (b->g->mode == TR_MODE_TRAIN && b->o->distill) TR_TRY(tr_build_distill(b));
    st = b->st;
out:
    return st;
}

static void free_builder(tr_builder *b)
{
    tr_free(b->value);
    tr_free(b->rounded);
    tr_free(b->wanted);
    tr_free(b->parts);
    tr_free(b->nparts);
    tr_free(b->grad);
    tr_free(b->part);
}

tr_status tr_graph_open(const tr_model *m, const tr_graph_options *o, tr_graph **out)
{
    tr_status st = TR_OK;
    tr_builder b = {.o = o, .sync = o->mode == TR_MODE_TRAIN && o->sync_batchnorm && o->ranks > 1};
    tr_graph *g = b.g = TR_NEW(TR_MEM_OTHER, tr_graph);
    if (!g) return tr_last_status();
    g->model = m;
    g->batch = o->batch;
    g->mode = o->mode;
    g->precision = o->precision;
    g->ranks = o->ranks;
    g->decode = o->decode;
    memset(g->inputs, -1, sizeof g->inputs);
    if (o->decode.rows > 0) TR_TRY(tr_graph_decodes(m));
    TR_TRY(tr_build_all_forward(&b));
    TR_TRY(tr_passes_over_graph(&b, true));
    if (g->mode == TR_MODE_TRAIN) TR_TRY(tr_differentiate(&b));
    TR_TRY(tr_passes_over_graph(&b, false));
    if (g->mode == TR_MODE_TRAIN) TR_TRY(tr_pass_buckets(&b));
    TR_TRY(tr_pass_roles(&b));
    if (g->batch == 0) tr_pass_empty_share(&b);
    if (g->mode == TR_MODE_TRAIN) TR_TRY(tr_pass_adds(&b)); /* of the ops that are left */
    st = b.st;
out:
    free_builder(&b);
    if (st != TR_OK) {
        tr_graph_close(g);
        return st;
    }
    *out = g;
    return TR_OK;
}

void tr_graph_close(tr_graph *g)
{
    if (!g) return;
    tr_free(g->outputs);
    tr_free(g->distill);
    tr_free(g->tensors);
    tr_free(g->ops);
    tr_free(g);
}

const char *tr_op_name(const tr_op *op)
{
    return op->def->name;
}

static bool passes_on(const tr_graph *g, const tr_op *op)
{
    return op->def->view && op->def->view(g, op) && tr_root(g, op->out[0]) == tr_root(g, op->in[0]);
}

bool tr_op_is_view(const tr_graph *g, const tr_op *op)
{
    return (op->def->share == TR_SHARE_VIEW || op->def->share == TR_SHARE_PARTS) &&
           passes_on(g, op);
}

bool tr_op_writes(const tr_graph *g, const tr_op *op, int k)
{
    return op->out[k] >= 0 && !(k == 0 && passes_on(g, op));
}

tr_dtype tr_op_dtype(const tr_graph *g, const tr_op *op)
{
    for (int k = 0; k < op->nin + op->nout; k++) {
        const int id = k < op->nin ? op->in[k] : op->out[k - op->nin];
        if (id < 0) continue;
        const tr_tensor *t = &g->tensors[id];
        const bool given = t->role == TR_ROLE_PARAM || t->role == TR_ROLE_STATE ||
                           t->role == TR_ROLE_GRAD || t->role == TR_ROLE_TARGET ||
                           t->role == TR_ROLE_ROUNDED || t->role == TR_ROLE_HELD;
        if (!given && (t->dtype == TR_F32 || t->dtype == TR_BF16 || t->dtype == TR_F16))
            return t->dtype;
    }
    return TR_F32;
}

bool tr_op_over_batch(const tr_op *op)
{
    return op->def->over_batch;
}

int64_t tr_op_turns(const tr_graph *g, const tr_op *op, size_t *weight)
{
    const int place = op->def->recurs;
    *weight = place ? g->tensors[op->in[place]].count : 0;
    return place ? g->tensors[op->in[0]].dims[1] : 1;
}

bool tr_op_made_once(const tr_op *op)
{
    return op->def->statistics || op->def->gathers;
}

size_t tr_op_gathered(const tr_graph *g, const tr_op *op)
{
    return op->def->gathers ? g->tensors[op->in[0]].nbytes : 0;
}

double tr_op_flops(const tr_graph *g, const tr_op *op)
{
    return op->def->flops ? op->def->flops(g, op) : 0;
}

double tr_op_multiply_adds(const tr_graph *g, const tr_op *op)
{
    return op->def->tied || op->def->multiplies ? tr_op_flops(g, op) / 2 : 0;
}

double tr_flops_elements(const tr_graph *g, const tr_op *op)
{
    return (double)g->tensors[op->in[0]].count;
}
