/* The teacher of a training: its file, what must fit, its session. Weights never change, so packed
 * copies are made once; a sample's outputs depend on nothing but the sample, on any number of
 * ranks. */
#include "trainer/models/teacher.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/config/files.h"

struct tr_teacher {
    const tr_model *model; /* that learns */
    tr_chain chain;        /* who teaches */
    tr_feature_config features[TR_FEATURES_MAX];
    size_t nfeatures;
    tr_distill_feature given[TR_FEATURES_MAX];
    tr_distill distill;
    const char *outputs[TR_MAX_IN]; /* layers, in the order of tr_graph.given */
    size_t noutputs;
    const tr_backend *backend;
    void *backend_ctx;
    tr_params *params;
    tr_session *session;
    tr_config own;     /* the training's, but for what is done to inputs */
    tr_loader *loader; /* NULL: the training's has the same values */
};

/* ---- What must fit --------------------------------------------------------------------------- */

static bool same_dims(int n, const int64_t *a, int m, const int64_t *b)
{
    return n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* Who learns from whom, and where that is asked for. */
typedef struct {
    const tr_teacher_place *at;
    const tr_model *model, *teacher;
    const char *file;
} pairing;

static tr_status teacher_fail(const pairing *l, const char *option, const char *fmt, ...)
    TR_PRINTF(3, 4);
static tr_status teacher_fail(const pairing *l, const char *option, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT], key[96];
    va_list a;
    va_start(a, fmt);
    vsnprintf(text, sizeof text, fmt, a);
    va_end(a);
    snprintf(key, sizeof key, "%s.%s", l->at->key, option);
    return tr_config_fail(l->at->config, key, "%s", text);
}

static tr_status check_inputs(const pairing *l)
{
    const tr_model *m = l->model, *k = l->teacher;
    char is[96], wants[96];
    if (m->ninputs != k->ninputs)
        return teacher_fail(l, "teacher", "%s has %zu inputs, the model has %zu", l->file,
                            k->ninputs, m->ninputs);
    for (size_t i = 0; i < m->ninputs; i++) {
        const tr_input *a = &m->inputs[i], *b = &k->inputs[i];
        tr_format_dims(a->ndim, a->dims, is, sizeof is);
        tr_format_dims(b->ndim, b->dims, wants, sizeof wants);
        if (a->ids && b->ids && a->ids > b->ids)
            return teacher_fail(l, "teacher", "%s knows %lld ids of \"%s\", the model has %lld",
                                l->file, (long long)b->ids, b->name, (long long)a->ids);
        if (!same_dims(a->ndim, a->dims, b->ndim, b->dims) || (a->ids > 0) != (b->ids > 0))
            return teacher_fail(l, "teacher", "%s takes %s%s as \"%s\", the model %s%s", l->file,
                                b->ids ? "ids " : "", wants, b->name, a->ids ? "ids " : "", is);
    }
    return TR_OK;
}

static tr_status check_feature(const pairing *l, const tr_feature_config *f)
{
    const tr_layer *mine = tr_model_layer(l->model, f->student);
    const tr_layer *theirs = tr_model_layer(l->teacher, f->teacher);
    char is[96], gives[96];
    if (!theirs) return teacher_fail(l, "features", "%s has no layer \"%s\"", l->file, f->teacher);
    if (l->at->model_may_change) return TR_OK; /* what it will give is not known yet */
    if (!mine) return teacher_fail(l, "features", "the model has no layer \"%s\"", f->student);
    const tr_shape *a = &mine->output, *b = &theirs->output;
    if (same_dims(a->ndim, a->dims, b->ndim, b->dims) && a->layout == b->layout) return TR_OK;
    tr_format_dims(a->ndim, a->dims, is, sizeof is);
    tr_format_dims(b->ndim, b->dims, gives, sizeof gives);
    return teacher_fail(l, "features",
                        "layer \"%s\" of the model gives %s, layer \"%s\" of %s gives %s",
                        f->student, is, f->teacher, l->file, gives);
}

/* f: of d, to be released by tr_features_free also when it fails. */
static tr_status fit(const pairing *l, const tr_distill_config *d,
                     tr_feature_config f[TR_FEATURES_MAX], size_t *nfeatures)
{
    const tr_model *k = l->teacher;
    tr_status st;
    TR_TRY(check_inputs(l));
    if (k->loss_config.kind.which != TR_LOSS_CROSS_ENTROPY)
        return teacher_fail(l, "teacher",
                            "%s was not trained with cross_entropy: its outputs are no classes",
                            l->file);
    if (k->outputs != l->model->outputs)
        return teacher_fail(l, "teacher", "%s gives %lld classes, the model %lld", l->file,
                            (long long)k->outputs, (long long)l->model->outputs);
    TR_TRY(tr_config_features(d, l->at->key, f, nfeatures));
    for (size_t i = 0; i < *nfeatures; i++) TR_TRY(check_feature(l, &f[i]));
out:
    return st;
}

/* What cannot be read is told of the option that names it. Returns st. */
static tr_status blame_option(const tr_teacher_place *at, tr_status st)
{
    char key[96];
    if (tr_last_error()->hearsay || (st != TR_CONFIG && st != TR_FILE && st != TR_IO)) return st;
    snprintf(key, sizeof key, "%s.teacher", at->key);
    return tr_config_blame(at->config, key, st);
}

tr_status tr_teacher_check(const tr_teacher_place *at, const tr_distill_config *d, const char *path,
                           const tr_model *m)
{
    tr_feature_config f[TR_FEATURES_MAX];
    size_t nfeatures = 0;
    tr_config *config = NULL;
    tr_model *teacher = NULL;
    tr_status st = tr_chain_model(path, &config, &teacher);
    if (st != TR_OK) return blame_option(at, st);
    const pairing l = {.at = at, .model = m, .teacher = teacher, .file = d->teacher};
    st = fit(&l, d, f, &nfeatures);
    tr_features_free(f, nfeatures);
    tr_model_close(teacher);
    tr_config_close(config);
    return st;
}

static tr_status adopt(tr_teacher *t, const tr_config *c)
{
    const tr_distill_config *d = &c->train.distill;
    const tr_model *k = t->chain.network->model;
    const tr_teacher_place at = {.config = c, .key = "train.distill"};
    const pairing l = {.at = &at, .model = t->model, .teacher = k, .file = t->chain.file};
    tr_status st;
    TR_TRY(fit(&l, d, t->features, &t->nfeatures));
    if (d->soft > 0) t->outputs[t->noutputs++] = k->layers[k->nlayers - 1].name;
    for (size_t i = 0; i < t->nfeatures; i++) {
        t->given[i] = (tr_distill_feature){t->features[i].student, t->features[i].weight};
        t->outputs[t->noutputs++] = t->features[i].teacher;
    }
    t->distill = (tr_distill){.temperature = d->temperature,
                              .hard = d->hard,
                              .soft = d->soft,
                              .nfeatures = t->nfeatures,
                              .features = t->given};
out:
    return st;
}

tr_status tr_teacher_open(const tr_teacher_options *o, tr_teacher **out)
{
    const tr_distill_config *d = &o->config->train.distill;
    tr_status st;
    tr_teacher *t = TR_NEW(TR_MEM_OTHER, tr_teacher);
    char *path = t ? tr_config_path(o->config, d->teacher) : NULL;
    TR_TRY(tr_agree(o->comm, t && path ? TR_OK : tr_last_status(), NULL));
    t->model = o->model;
    const tr_teacher_place at = {.config = o->config, .key = "train.distill"};
    st = tr_chain_load(o->comm, path, NULL, 0, &t->chain);
    if (st != TR_OK) st = blame_option(&at, st);
    TR_TRY(st);
    TR_TRY(tr_agree(o->comm, adopt(t, o->config), NULL));
out:
    tr_free(path);
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        tr_teacher_close(t);
        tr_set_error(&why);
        return st;
    }
    *out = t;
    return TR_OK;
}

void tr_teacher_close(tr_teacher *t)
{
    if (!t) return;
    tr_loader_close(t->loader);
    tr_session_close(t->session);
    tr_params_close(t->params);
    tr_features_free(t->features, t->nfeatures);
    tr_chain_free(&t->chain);
    tr_free(t);
}

const tr_distill *tr_teacher_distill(const tr_teacher *t)
{
    return t ? &t->distill : NULL;
}

const char *tr_teacher_sha256(const tr_teacher *t)
{
    return t ? t->chain.sha256 : "";
}

/* ---- Its session ----------------------------------------------------------------------------- */

static tr_status open_params(tr_teacher *t)
{
    const tr_network *n = t->chain.network;
    const tr_model *m = n->model;
    const tr_device_memory *memory = t->backend->memory;
    tr_status st;
    const tr_params_options p = {.model = m,
                                 .count = m->flat_count,
                                 .state_count = m->state_count,
                                 .backend = t->backend,
                                 .backend_ctx = t->backend_ctx};
    const tr_params_memory lent = {.weights = n->params};
    TR_TRY(tr_params_open(&p, NULL, 0, t->backend->host ? &lent : NULL, &t->params));
    if (!t->backend->host)
        TR_TRY(memory->upload(t->backend_ctx, t->params->weights, n->params,
                              m->flat_count * sizeof(float)));
    TR_TRY(memory->upload(t->backend_ctx, t->params->states, n->states,
                          m->state_count * sizeof(float)));
out:
    return st;
}

static tr_status open_session(tr_teacher *t, const tr_session_options *of)
{
    tr_status st = TR_OK;
    size_t n = 0;
    tr_plan_key *keys = tr_alloc(TR_MEM_OTHER, of->nkeys, sizeof *keys);
    TR_HAVE(keys);
    for (size_t i = 0; i < of->nkeys; i++)
        if (of->keys[i].mode == TR_MODE_TRAIN && of->keys[i].batch > 0)
            keys[n++] = (tr_plan_key){.mode = TR_MODE_INFER, .batch = of->keys[i].batch};
    const tr_session_options o = {.model = t->chain.network->model,
                                  .backend = t->backend,
                                  .backend_ctx = t->backend_ctx,
                                  .params = t->params,
                                  .threads = of->threads,
                                  .precision = of->precision,
                                  .skip_passes = of->skip_passes,
                                  .ranks = 1,
                                  .keys = keys,
                                  .nkeys = n,
                                  .outputs = t->outputs,
                                  .noutputs = t->noutputs,
                                  .dry = of->dry};
    TR_TRY(tr_session_open(&o, &t->session));
out:
    tr_free(keys);
    return st;
}

static bool same_reals(const tr_reals *a, const tr_reals *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->v, b->v, a->count * sizeof *a->v) == 0);
}

static bool same_inputs(const tr_config *a, const tr_config *b)
{
    bool same = a->data.normalize.count == b->data.normalize.count;
    for (size_t i = 0; same && i < a->data.normalize.count; i++) {
        const tr_normalize_config *x = &a->data.normalize.inputs[i],
                                  *y = &b->data.normalize.inputs[i];
        same = !x->input == !y->input && (!x->input || strcmp(x->input, y->input) == 0) &&
               same_reals(&x->mean, &y->mean) && same_reals(&x->std, &y->std);
    }
    return same;
}

tr_status tr_teacher_ready(tr_teacher *t, const tr_session_options *session,
                           const tr_loader_options *loader)
{
    tr_status st;
    t->backend = session->backend;
    t->backend_ctx = session->backend_ctx;
    TR_TRY(tr_config_settled(t->chain.config));
    TR_TRY(open_params(t));
    TR_TRY(open_session(t, session));
    if (same_inputs(loader->config, t->chain.config)) goto out;
    tr_loader_options o = *loader;
    t->own = *loader->config;
    t->own.data.normalize = t->chain.config->data.normalize;
    o.config = &t->own;
    o.model = t->chain.network->model;
    TR_TRY(tr_loader_open(&o, &t->loader));
out:
    return st;
}

tr_status tr_teacher_plan(tr_teacher *t, const tr_session_options *session)
{
    t->backend = session->backend;
    t->backend_ctx = session->backend_ctx;
    return open_session(t, session);
}

void tr_teacher_forget(tr_teacher *t)
{
    if (!t) return;
    tr_session_close(t->session);
    t->session = NULL;
    t->backend = NULL;
    t->backend_ctx = NULL;
}

const tr_model *tr_teacher_model(const tr_teacher *t)
{
    return t->chain.network->model;
}

double tr_teacher_flops(const tr_teacher *t, int64_t batch)
{
    const tr_plan *p = tr_session_plan(t->session, TR_MODE_INFER, batch);
    double sum = 0;
    for (size_t i = 0; i < tr_plan_rows(p); i++) sum += tr_plan_row_at(p, i).flops;
    return sum / (double)batch;
}

tr_status tr_teacher_stage(tr_teacher *t)
{
    return t ? tr_session_stage(t->session) : TR_OK;
}

tr_status tr_teacher_staged(const tr_teacher *t, bool *done)
{
    *done = true;
    return t ? tr_session_staged(t->session, done) : TR_OK;
}

/* The same place of its own loader, which is sought there at the start and after a rollback. */
static tr_status next(tr_teacher *t, const tr_batch *of, tr_batch *out)
{
    tr_status st;
    TR_TRY(tr_loader_next(t->loader, out));
    if (out->step == of->step && out->micro == of->micro) goto out;
    TR_TRY(tr_loader_seek(t->loader, of->step));
    do {
        TR_TRY(tr_loader_next(t->loader, out));
    } while (out->step == of->step && out->micro < of->micro);
    TR_NEED(out->step == of->step && out->micro == of->micro && out->count == of->count,
            TR_INTERNAL, "the teacher's loader is at step %llu.%d, the loop at %llu.%d",
            (unsigned long long)out->step, out->micro, (unsigned long long)of->step, of->micro);
out:
    return st;
}

tr_status tr_teacher_set(tr_teacher *t, const tr_batch *batch)
{
    tr_status st = TR_OK;
    tr_batch own;
    if (t->loader) TR_TRY(next(t, batch, &own));
    if (batch->count == 0) goto out;
    tr_plan *p = tr_session_plan(t->session, TR_MODE_INFER, batch->count);
    TR_NEED(p, TR_INTERNAL, "no teacher's plan for a share of %lld samples",
            (long long)batch->count);
    for (size_t i = 0; i < t->model->ninputs; i++)
        TR_TRY(tr_plan_set_input(p, i, (t->loader ? &own : batch)->inputs[i]));
out:
    return st;
}

tr_status tr_teacher_run(tr_teacher *t, tr_plan *plan, const tr_run *run)
{
    tr_status st = TR_OK;
    tr_plan *p = tr_session_plan(t->session, TR_MODE_INFER, tr_plan_batch(plan));
    if (tr_plan_batch(plan) == 0) return TR_OK;
    const tr_graph *g = tr_plan_graph(p), *to = tr_plan_graph(plan);
    TR_TRY(tr_plan_run(p, &(tr_run){.loss_scale = 1, .last = true, .hooks = run->hooks}));
    for (size_t i = 0; i < t->noutputs; i++) {
        const tr_tensor *y = &g->tensors[g->outputs[i]], *x = &to->tensors[to->given[i]];
        TR_NEED(y->nbytes == x->nbytes && y->dtype == x->dtype, TR_INTERNAL,
                "the teacher's \"%s\" does not fit \"%s\"", y->name, x->name);
        TR_TRY(tr_plan_set_given(plan, i, tr_plan_tensor(p, g->outputs[i])));
    }
out:
    return st;
}

void tr_teacher_memory(const tr_teacher *t, tr_memory_total *add)
{
    const tr_model *m = t->chain.network->model;
    const size_t states = m->state_count * sizeof(float),
                 values = m->flat_count * sizeof(float) + states;
    size_t *host = add->bytes[TR_SPACE_HOST], *there = add->bytes[tr_space_of(t->backend)];
    tr_memory_plan session;
    tr_session_memory(t->session, &session);
    for (int k = 0; k < TR_MEM_KINDS; k++) there[k] += session.bytes[k];
    host[TR_MEM_WEIGHTS] += values;
    there[TR_MEM_WEIGHTS] += there == host ? states : values;
    if (t->loader) host[TR_MEM_IO] += tr_loader_held(t->loader);
}
