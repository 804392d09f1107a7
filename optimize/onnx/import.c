/* From a file to a network: values by name; from the output backwards, which nodes count and which
 * of them are one layer together; then forwards, node by node, the layers; last the values of their
 * rows. */
#include <stdlib.h>
#include <string.h>

#include "optimize/onnx/ops/ops.h"
#include "optimize/onnx/view.h"

enum { NODES_MAX = 1 << 18 };

/* ---- Values ---------------------------------------------------------------------------------- */

static int new_value(tr_onnx_reader *r, const char *name)
{
    const size_t n = r->names.n;
    if (tr_onnx_find(&r->names, name) >= 0) {
        if (r->pool.st == TR_OK)
            r->pool.st = TR_FAIL(TR_DATA, "%s: two values are named \"%s\"", r->path, name);
        return -1;
    }
    if (n == r->cap_values) {
        r->cap_values = n ? 2 * n : 64;
        tr_onnx_value *more = tr_pool_get(&r->pool, r->cap_values, sizeof *more);
        if (!more) return -1;
        if (n) memcpy(more, r->values, n * sizeof *more);
        r->values = more;
    }
    r->values[n] = (tr_onnx_value){.name = name, .value = -1, .input = -1, .maker = -1};
    return tr_onnx_name(&r->pool, &r->names, name);
}

static tr_status add_initializers(tr_onnx_reader *r)
{
    const Onnx__GraphProto *g = r->model->graph;
    tr_status st = TR_OK;
    TR_NEED(g->n_sparse_initializer == 0, TR_UNSUPPORTED, "%s: it has sparse values", r->path);
    for (size_t i = 0; i < g->n_initializer; i++) {
        const Onnx__TensorProto *t = g->initializer[i];
        const int v = new_value(r, t->name ? t->name : "");
        TR_TRY(r->pool.st);
        tr_onnx_const *c = (tr_onnx_const *)tr_onnx_tensor(r, t);
        TR_TRY(r->pool.st);
        c->name = r->values[v].name;
        r->values[v].kind = TR_ONNX_CONST;
        r->values[v].constant = c;
    }
out:
    return st;
}

/* Inputs that have a value are parameters: files of old say so. */
static void add_inputs(tr_onnx_reader *r)
{
    const Onnx__GraphProto *g = r->model->graph;
    for (size_t i = 0; i < g->n_input && r->pool.st == TR_OK; i++) {
        const char *name = g->input[i]->name ? g->input[i]->name : "";
        if (tr_onnx_find(&r->names, name) < 0) new_value(r, name);
    }
}

static tr_status add_step(tr_onnx_reader *r, const Onnx__NodeProto *n, tr_onnx_step *s)
{
    tr_status st = TR_OK;
    const char *what = n->name ? n->name : "";
    const bool ours = !n->domain || !*n->domain || strcmp(n->domain, "ai.onnx") == 0;
    *s = (tr_onnx_step){.proto = n, .nin = (int)n->n_input, .nout = (int)n->n_output};
    const char *type = n->op_type ? n->op_type : "";
    s->type = ours ? type : tr_pool_text(&r->pool, "%s.%s", n->domain, type);
    s->in = tr_pool_get(&r->pool, n->n_input, sizeof *s->in);
    s->out = tr_pool_get(&r->pool, n->n_output, sizeof *s->out);
    TR_TRY(r->pool.st);
    for (int i = 0; i < s->nin; i++) {
        s->in[i] = *n->input[i] ? tr_onnx_find(&r->names, n->input[i]) : -1;
        TR_NEED(s->in[i] >= 0 || !*n->input[i], TR_DATA,
                "%s: node \"%s\" (%s) reads \"%s\", which nothing before it makes", r->path, what,
                s->type, n->input[i]);
        if (s->in[i] >= 0) r->values[s->in[i]].uses++;
    }
    for (int k = 0; k < s->nout; k++) {
        s->out[k] = *n->output[k] ? new_value(r, n->output[k]) : -1;
        TR_TRY(r->pool.st);
        if (s->out[k] >= 0) r->values[s->out[k]].maker = (int)(s - r->steps);
    }
out:
    return st;
}

static tr_status add_steps(tr_onnx_reader *r)
{
    const Onnx__GraphProto *g = r->model->graph;
    tr_status st = TR_OK;
    TR_NEED(g->n_node <= NODES_MAX, TR_UNSUPPORTED, "%s: more than %d nodes", r->path, NODES_MAX);
    r->steps = tr_pool_get(&r->pool, g->n_node, sizeof *r->steps);
    TR_TRY(r->pool.st);
    for (size_t i = 0; i < g->n_node; i++) {
        r->nsteps = i + 1;
        TR_TRY(add_step(r, g->node[i], &r->steps[i]));
        if (!tr_onnx_fold_sequence(r, &r->steps[i])) tr_onnx_fold(r, &r->steps[i]);
        TR_TRY(r->pool.st);
    }
out:
    return st;
}

/* ---- Backwards: what counts ------------------------------------------------------------------ */

static tr_status find_output(tr_onnx_reader *r, const char *wanted, int *out)
{
    const Onnx__GraphProto *g = r->model->graph;
    tr_status st = TR_OK;
    TR_NEED(wanted || g->n_output == 1, TR_UNSUPPORTED,
            "%s: %zu outputs: \"%s\", \"%s\", ...: say which one counts (--output)", r->path,
            g->n_output, g->output[0]->name ? g->output[0]->name : "",
            g->output[1]->name ? g->output[1]->name : "");
    const char *name = wanted ? wanted : g->output[0]->name ? g->output[0]->name : "";
    *out = tr_onnx_find(&r->names, name);
    TR_NEED(*out >= 0, TR_DATA, "%s: there is no output \"%s\"", r->path, name);
    r->values[*out].uses++;
    r->values[*out].needed = true;
out:
    return st;
}

static bool is_needed(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    for (int k = 0; k < s->nout; k++)
        if (s->out[k] >= 0 && r->values[s->out[k]].needed) return true;
    return false;
}

static bool is_done(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    return s->nout > 0 && s->out[0] >= 0 && r->values[s->out[0]].kind == TR_ONNX_CONST;
}

static void mark(tr_onnx_reader *r)
{
    for (size_t i = r->nsteps; i > 0; i--) {
        tr_onnx_step *s = &r->steps[i - 1];
        if (!is_needed(r, s) || is_done(r, s)) continue;
        s->pattern = tr_onnx_pattern_of(r, s);
        const int n = s->pattern ? s->noperands : s->nin;
        const int *of = s->pattern ? s->operands : s->in;
        for (int k = 0; k < n; k++)
            if (of[k] >= 0) r->values[of[k]].needed = true;
    }
}

/* ---- Forwards: layers ------------------------------------------------------------------------ */

/* (batch, ...): the batch is any; all else must be said. */
static tr_status input_dims(const tr_onnx_reader *r, const Onnx__ValueInfoProto *v, int *ndim,
                            int64_t *dims)
{
    tr_status st = TR_OK;
    const Onnx__TypeProto__Tensor *t =
        v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ? v->type->tensor_type
                                                                              : NULL;
    const Onnx__TensorShapeProto *s = t ? t->shape : NULL;
    TR_NEED(s && s->n_dim >= 2 && s->n_dim <= TR_MAX_DIMS, TR_UNSUPPORTED,
            "%s: input \"%s\": a batch and 1 to %d dimensions are needed", r->path, v->name,
            TR_MAX_DIMS - 1);
    *ndim = (int)s->n_dim - 1;
    for (int i = 0; i < *ndim; i++) {
        const Onnx__TensorShapeProto__Dimension *d = s->dim[i + 1];
        dims[i] = tr_onnx_sequence_dim(r, d);
        TR_NEED(dims[i] > 0, TR_UNSUPPORTED,
                "%s: input \"%s\": dimension %d is not a number: only the batch may be any",
                r->path, v->name, i + 1);
    }
out:
    return st;
}

static const char *input_name(tr_onnx_reader *r, const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    char text[32];
    const size_t n = strlen(name);
    if (n && n < 40 && name[0] != '.' && strspn(name, good) == n) return name;
    for (int i = 0;; i++) {
        snprintf(text, sizeof text, i ? "input%d" : "input", i + 1);
        if (tr_onnx_find(&r->taken, text) < 0) return tr_pool_copy(&r->pool, text);
    }
}

/* Of the nodes that read it, those that ask for its dimensions alone. */
static int asked(const tr_onnx_reader *r, int value)
{
    int n = 0;
    for (size_t i = 0; i < r->nsteps; i++) {
        const tr_onnx_step *s = &r->steps[i];
        n += strcmp(s->type, "Shape") == 0 && s->nin == 1 && s->in[0] == value && !is_done(r, s);
    }
    return n;
}

static tr_status make_inputs(tr_onnx_reader *r)
{
    const Onnx__GraphProto *g = r->model->graph;
    tr_status st = TR_OK;
    size_t n = 0;
    for (size_t i = 0; i < g->n_input; i++) {
        const int at = tr_onnx_find(&r->names, g->input[i]->name ? g->input[i]->name : "");
        tr_onnx_value *v = &r->values[at];
        int64_t dims[TR_MAX_DIMS];
        int ndim = 0;
        if (v->kind == TR_ONNX_CONST || !v->needed) continue;
        TR_TRY(input_dims(r, g->input[i], &ndim, dims));
        const int64_t batch = g->input[i]->type->tensor_type->shape->dim[0]->dim_value;
        r->batch = n == 0 || r->batch == batch ? batch : 0;
        const char *name = input_name(r, v->name);
        TR_TRY(r->pool.st);
        TR_TRY(tr_maker_input(r->maker, name, ndim, dims, &v->value));
        if (tr_onnx_name(&r->pool, &r->taken, name) < 0) return r->pool.st;
        v->kind = TR_ONNX_VALUE;
        v->uses -= asked(r, at);
        v->input = v->uses == 1 ? (int)n : -1;
        r->inputs[n++].name = name;
    }
out:
    return st;
}

static bool any_refused(const tr_onnx_reader *r, const int *values, int n)
{
    for (int i = 0; i < n; i++)
        if (values[i] >= 0 && r->values[values[i]].kind == TR_ONNX_REFUSED) return true;
    return false;
}

static void set_refused(tr_onnx_reader *r, const tr_onnx_step *s)
{
    for (int k = 0; k < s->nout; k++)
        if (s->out[k] >= 0) r->values[s->out[k]].kind = TR_ONNX_REFUSED;
}

static void no_layer(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_refuse(r, s, "there is no layer for it");
}

static void read_step(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_operator *o = s->pattern ? NULL : tr_onnx_operator_of(s->type);
    const size_t before = r->nrefused;
    if (!s->pattern && tr_onnx_fold(r, s)) return;
    if (!s->pattern && !o && !tr_onnx_may_wait(s) && !tr_onnx_may_fold(s)) {
        no_layer(r, s);
    } else if (s->pattern ? any_refused(r, s->operands, s->noperands)
                          : any_refused(r, s->in, s->nin)) {
        set_refused(r, s); /* what it reads was named already */
    } else if (s->pattern || !tr_onnx_waits(r, s)) {
        void (*read)(tr_onnx_reader *, const tr_onnx_step *) = s->pattern ? s->pattern->read
                                                               : o        ? o->read
                                                                          : no_layer;
        if (!tr_onnx_read_by_row(r, s, read)) read(r, s);
    }
    for (int k = 0; k < s->nout; k++) {
        tr_onnx_value *y = s->out[k] >= 0 ? &r->values[s->out[k]] : NULL;
        if (!y || !y->needed || y->kind != TR_ONNX_NOTHING || r->pool.st != TR_OK) continue;
        if (r->nrefused == before)
            tr_onnx_refuse(r, s, "its output %d is used", k);
        else
            y->kind = TR_ONNX_REFUSED;
    }
}

static tr_status make_layers(tr_onnx_reader *r, int output)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < r->nsteps; i++) {
        const tr_onnx_step *s = &r->steps[i];
        if (is_needed(r, s) && !is_done(r, s)) read_step(r, s);
        TR_TRY(r->pool.st);
    }
    if (r->values[output].waits) tr_onnx_settle(r, r->values[output].waits, output);
    TR_TRY(r->pool.st);
    fflush(r->refusals);
    if (r->nrefused)
        st = TR_FAIL(TR_UNSUPPORTED, "%s: %zu of its nodes cannot be layers here: %.*s%s", r->path,
                     r->nrefused, 640, r->refused, r->refused_size > 640 ? " ..." : "");
out:
    return st;
}

/* ---- The network ----------------------------------------------------------------------------- */

static tr_status make_loss(tr_onnx_reader *r, int output, const tr_onnx_import *o)
{
    tr_status st = TR_OK;
    const tr_onnx_value *v = &r->values[output];
    TR_NEED(v->kind == TR_ONNX_VALUE, TR_UNSUPPORTED, "%s: its output is a constant", r->path);
    const tr_shape s = tr_onnx_shape(r, v->value);
    const bool classes = s.ndim == 1 && s.dims[0] >= 2;
    const tr_loss_config usual = {.kind = {classes ? TR_LOSS_CROSS_ENTROPY : TR_LOSS_MSE},
                                  .ignore_index = TR_NO_LABEL};
    st = tr_maker_loss(r->maker, o->loss ? o->loss : &usual);
out:
    return st;
}

/* Matrices that the file has the other way round are written transposed. */
static void put_values(float *to, const tr_onnx_fill *f)
{
    if (!f->turned) {
        memcpy(to, f->v, f->count * sizeof *to);
        return;
    }
    const size_t rows = (size_t)f->of->dims[0], cols = (size_t)f->of->dims[1];
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) to[j * rows + i] = f->v[i * cols + j];
}

static tr_status fill(const tr_onnx_reader *r, tr_network *n)
{
    tr_status st = TR_OK;
    for (const tr_onnx_fill *f = r->fills; f; f = f->next) {
        const tr_param *p = tr_network_row(n, f->layer, f->row);
        const tr_state *s = p ? NULL : tr_network_state_row(n, f->layer, f->row);
        const size_t count = p ? p->count : s ? s->count : 0;
        TR_NEED(count == f->count, TR_DATA,
                "%s: layer \"%s\": %zu values for its %s, which has %zu", r->path, f->layer,
                f->count, f->row, count);
        put_values(p ? n->params + p->offset : n->states + s->offset, f);
    }
out:
    return st;
}

static tr_status find_rest(const tr_onnx_reader *r, tr_onnx_found *found)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < r->model->n_metadata_props && !found->config; i++) {
        const Onnx__StringStringEntryProto *e = r->model->metadata_props[i];
        if (!e->key || !e->value || strcmp(e->key, "trireme.config") != 0) continue;
        TR_HAVE(found->config = tr_strdup(e->value));
    }
    found->nodes = r->nsteps;
    for (size_t i = 0; i < r->nsteps; i++) found->constants += is_done(r, &r->steps[i]);
    found->ntogether = r->ntogether;
    memcpy(found->together, r->together, sizeof found->together);
    st = tr_onnx_normalize_text(r, &found->normalize, &found->normalize_targets);
out:
    return st;
}

void tr_onnx_found_free(tr_onnx_found *f)
{
    tr_free(f->normalize);
    tr_free(f->normalize_targets);
    tr_free(f->config);
    *f = (tr_onnx_found){0};
}

static int64_t opset_of(const Onnx__ModelProto *m)
{
    for (size_t i = 0; i < m->n_opset_import; i++) {
        const Onnx__OperatorSetIdProto *o = m->opset_import[i];
        if (!o->domain || !*o->domain || strcmp(o->domain, "ai.onnx") == 0) return o->version;
    }
    return 0;
}

static tr_status read_graph(tr_onnx_reader *r, const tr_onnx_import *o, tr_network **out)
{
    tr_status st = TR_OK;
    tr_model *m = NULL;
    tr_network *n = NULL;
    int output = -1;
    TR_TRY(tr_onnx_load(r));
    r->opset = opset_of(r->model);
    TR_NEED(r->opset >= 7, TR_UNSUPPORTED, "%s: operators of opset %lld: 7 and above are read",
            r->path, (long long)r->opset);
    TR_TRY(add_initializers(r));
    add_inputs(r);
    TR_TRY(r->pool.st);
    TR_TRY(tr_onnx_sequence_said(r));
    TR_TRY(add_steps(r));
    TR_TRY(find_output(r, o->output, &output));
    tr_onnx_denormalizes(r, &output);
    mark(r);
    TR_TRY(make_inputs(r));
    TR_TRY(make_layers(r, output));
    TR_TRY(make_loss(r, output, o));
    TR_TRY(tr_maker_finish(r->maker, 0, &m));
    TR_TRY(tr_network_open(m, &n));
    tr_model_init_params(m, 0, n->params, 0, m->flat_count);
    tr_model_init_states(m, n->states);
    TR_TRY(fill(r, n));
    *out = n;
out:
    if (st != TR_OK) tr_network_close(n);
    return st;
}

tr_status tr_onnx_read(const char *path, const tr_onnx_import *o, tr_network **out,
                       tr_onnx_found *found)
{
    tr_onnx_reader r = {.path = path};
    tr_onnx_found rest = {0};
    tr_network *n = NULL;
    tr_status st = TR_OK;
    r.refusals = open_memstream(&r.refused, &r.refused_size);
    TR_NEED(r.refusals, TR_MEMORY, "%s: out of memory", path);
    TR_TRY(tr_maker_open(TR_INIT_KAIMING, &r.maker));
    TR_TRY(read_graph(&r, o, &n));
    if (found) TR_TRY(find_rest(&r, &rest));
    *out = n;
    if (found) *found = rest;
out:
    if (st != TR_OK) {
        tr_network_close(n);
        tr_onnx_found_free(&rest);
    }
    if (r.refusals) fclose(r.refusals);
    free(r.refused);
    tr_maker_close(r.maker);
    tr_pool_close(&r.pool);
    return st;
}
