/* Networks from models, run files and other networks. */
#include "optimize/network/network.h"

#include <math.h>
#include <string.h>

#include "runtime/graph/graph.h"
#include "runtime/store/store.h"

tr_status tr_network_open(tr_model *model, tr_network **out)
{
    tr_status st = TR_OK;
    tr_network *n = TR_NEW(TR_MEM_OTHER, tr_network);
    if (!n) {
        tr_model_close(model);
        return tr_last_status();
    }
    n->model = model;
    n->params = tr_alloc(TR_MEM_WEIGHTS, model->flat_count, sizeof *n->params);
    n->states = tr_alloc(TR_MEM_WEIGHTS, model->state_count, sizeof *n->states);
    TR_HAVE(n->params && n->states);
    *out = n;
out:
    if (st != TR_OK) tr_network_close(n);
    return st;
}

void tr_network_close(tr_network *n)
{
    if (!n) return;
    tr_free(n->params);
    tr_free(n->states);
    tr_model_close(n->model);
    tr_free(n);
}

tr_status tr_network_read(const char *path, const char *const *overrides, size_t noverrides,
                          const tr_variant_def *stages, tr_network **out, tr_config **config)
{
    tr_status st = TR_OK;
    char *text = NULL;
    tr_config *c = NULL;
    tr_model *m = NULL;
    tr_network *n = NULL;
    tr_snapshot s = {.checkpoint = false};
    tr_document doc = {0};
    TR_TRY(tr_store_config(path, &text));
    TR_TRY(tr_document_parse(path, text, strlen(text), &doc));
    for (size_t i = 0; i < noverrides; i++) TR_TRY(tr_document_override(&doc, overrides[i]));
    if (!stages) tr_document_drop(&doc, "pipeline");
    TR_TRY(tr_config_resolve(path, &doc, stages, &c));
    doc = (tr_document){0};
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_network_open(m, &n));
    s.params = n->params;
    s.states = n->states;
    TR_TRY(tr_store_read(path, n->model, &s, NULL));
    *out = n;
    if (config) {
        *config = c;
        c = NULL;
    }
out:
    if (st != TR_OK) tr_network_close(n);
    tr_config_close(c);
    tr_document_close(&doc);
    tr_free(text);
    return st;
}

static bool same_dims(int a, const int64_t *da, int b, const int64_t *db)
{
    return a == b && memcmp(da, db, (size_t)a * sizeof *da) == 0;
}

static void take_values(const tr_network *from, tr_network *to)
{
    for (size_t i = 0; i < to->model->nparams; i++) {
        const tr_param *p = &to->model->params[i], *q = tr_network_row(from, p->layer, p->name);
        if (q && same_dims(p->ndim, p->dims, q->ndim, q->dims))
            memcpy(to->params + p->offset, from->params + q->offset, p->count * sizeof(float));
        else
            tr_model_init_params(to->model, 0, to->params, p->offset, p->offset + p->count);
    }
    tr_model_init_states(to->model, to->states);
    for (size_t i = 0; i < to->model->nstates; i++) {
        const tr_state *p = &to->model->states[i];
        const tr_state *q = tr_network_state_row(from, p->layer, p->name);
        if (q && same_dims(p->ndim, p->dims, q->ndim, q->dims))
            memcpy(to->states + p->offset, from->states + q->offset, p->count * sizeof(float));
    }
}

tr_status tr_network_edit(const tr_network *n, tr_model_edit edit, void *ctx, tr_network **out)
{
    tr_status st = TR_OK;
    tr_model *m = NULL;
    tr_network *made = NULL;
    TR_TRY(tr_model_copy(n->model, edit, ctx, 0, &m));
    TR_TRY(tr_network_open(m, &made));
    take_values(n, made);
    *out = made;
out:
    return st;
}

/* ---- Weights of fewer bits ------------------------------------------------------------------- */

static float rounded(tr_dtype type, float v)
{
    return type == TR_F16 ? tr_f16_to_f32(tr_f32_to_f16(v)) : tr_bf16_to_f32(tr_f32_to_bf16(v));
}

static tr_status hold_halves(const tr_param *p, float *v)
{
    for (size_t i = 0; i < p->count; i++) {
        const float was = v[i];
        v[i] = rounded(p->stored, was);
        if (!isfinite(v[i]) && isfinite(was))
            return TR_FAIL(TR_CONFIG, "layer \"%s\": a weight of %g does not fit %s", p->layer,
                           (double)was, tr_dtype_name(p->stored));
    }
    return TR_OK;
}

static bool holds(const tr_param *p, const float *v, const float *scale)
{
    const size_t each = p->dims[0] > 0 ? p->count / (size_t)p->dims[0] : 1;
    for (size_t i = 0; i < p->count; i++) {
        const float s = scale[i / each], q = rintf(v[i] / s);
        if (!(fabsf(q) <= 127) || q * s != v[i]) return false;
    }
    return true;
}

bool tr_network_keeps_bits(const tr_model *m)
{
    bool any = false;
    for (size_t i = 0; i < m->nparams; i++)
        any = any || (m->params[i].frozen && m->params[i].stored != TR_F32);
    return any;
}

tr_status tr_network_hold(tr_network *n, bool trained)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        float *v = n->params + p->offset;
        if (p->stored == TR_F32) continue;
        if (p->stored != TR_I8) {
            TR_TRY(hold_halves(p, v));
            continue;
        }
        float *scale = n->states + m->states[p->scale].offset;
        if (!trained && !p->frozen) continue;
        if (!holds(p, v, scale)) tr_param_quantize(p, v, scale, NULL);
        for (size_t k = 0; k < p->count; k++) v[k] += 0.0f; /* integers have no -0 */
    }
out:
    return st;
}

void tr_network_values(const tr_network *n, const tr_model *m, size_t begin, size_t end, float *to)
{
    memset(to, 0, (end - begin) * sizeof *to);
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        const tr_range part =
            tr_range_common((tr_range){p->offset, p->offset + p->count}, (tr_range){begin, end});
        if (tr_range_count(part) == 0) continue;
        memcpy(to + (part.begin - begin),
               n->params + n->model->params[i].offset + (part.begin - p->offset),
               tr_range_count(part) * sizeof *to);
    }
}

const tr_param *tr_network_row(const tr_network *n, const char *layer, const char *name)
{
    for (size_t i = 0; i < n->model->nparams; i++) {
        const tr_param *p = &n->model->params[i];
        if (strcmp(p->layer, layer) == 0 && strcmp(p->name, name) == 0) return p;
    }
    return NULL;
}

const tr_state *tr_network_state_row(const tr_network *n, const char *layer, const char *name)
{
    for (size_t i = 0; i < n->model->nstates; i++) {
        const tr_state *s = &n->model->states[i];
        if (strcmp(s->layer, layer) == 0 && strcmp(s->name, name) == 0) return s;
    }
    return NULL;
}

float *tr_network_param(const tr_network *n, const char *layer, const char *name)
{
    const tr_param *p = tr_network_row(n, layer, name);
    return p ? n->params + p->offset : NULL;
}

float *tr_network_state(const tr_network *n, const char *layer, const char *name)
{
    const tr_state *s = tr_network_state_row(n, layer, name);
    return s ? n->states + s->offset : NULL;
}

tr_status tr_model_multiply_adds(const tr_model *m, double *out)
{
    const tr_graph_options o = {.mode = TR_MODE_INFER, .batch = 1, .ranks = 1};
    tr_graph *g = NULL;
    const tr_status st = tr_graph_open(m, &o, &g);
    if (st != TR_OK) return st;
    *out = 0;
    for (size_t i = 0; i < g->nops; i++) *out += tr_op_multiply_adds(g, &g->ops[i]);
    tr_graph_close(g);
    return TR_OK;
}
