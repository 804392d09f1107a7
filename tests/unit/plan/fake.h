/* A small backend in plain C and a graph built by hand: x -> flatten (view) -> linear -> relu in
 * place -> linear -> mse, with its backward ops and two buckets. Enough to see what the planner
 * does, without the graph passes and the real kernels. */
#ifndef TEST_PLAN_FAKE_H
#define TEST_PLAN_FAKE_H

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/device/host.h"
#include "runtime/plan/internal.h"

typedef struct {
    const char *missing;   /* op that the backend says it lacks, */
    tr_dtype missing_type; /* for activations of this type (not float32), or of any (0) */
    bool rebinds;          /* kernels offer rebind */
    int rebind_refused;    /* the n-th rebind from now fails; 0: none */
    int pack_refused;      /* the n-th pack from now fails; 0: none */
    bool fat_copies;       /* packed copies take twice the parameter's bytes */
    bool bad_copy;         /* kernels ask for copies of a parameter that is not there */
    int packs, closes, prepares, runs;
    const char *fail_run; /* op whose run fails */
    size_t marked;        /* marks made, in order */
} fake_ctx;

typedef struct {
    tr_kernel base;
    fake_ctx *ctx;
    const tr_graph *g;
    const tr_op *op;
    tr_binding b;
    int format;
} fake_kernel;

static inline const char *fake_name(const fake_kernel *k)
{
    return tr_op_name(k->op);
}

static inline int64_t fake_dim(const fake_kernel *k, int id, int d)
{
    return k->g->tensors[id].dims[d];
}

static inline void fake_matmul(
    const fake_kernel *k) /* y = x W^T + bias, from the packed (transposed, reversed) copies */
{
    const int64_t n = fake_dim(k, k->op->in[0], 0), in = fake_dim(k, k->op->in[1], 1),
                  out = fake_dim(k, k->op->in[1], 0);
    const float *x = k->b.in[0], *w = k->b.packed[0], *bias = k->b.packed[1];
    float *y = k->b.out[0];
    for (int64_t i = 0; i < n; i++)
        for (int64_t o = 0; o < out; o++) {
            float sum = bias ? bias[out - 1 - o] : 0;
            for (int64_t j = 0; j < in; j++) sum += x[i * in + j] * w[j * out + o];
            y[i * out + o] = sum;
        }
}

static inline void fake_grad_input(const fake_kernel *k)
{
    const int64_t n = fake_dim(k, k->op->in[0], 0), in = fake_dim(k, k->op->in[1], 1),
                  out = fake_dim(k, k->op->in[1], 0);
    const float *dy = k->b.in[0], *w = k->b.packed[0];
    float *dx = k->b.out[0];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < in; j++) {
            float sum = 0;
            for (int64_t o = 0; o < out; o++) sum += dy[i * out + o] * w[j * out + o];
            dx[i * in + j] = sum;
        }
}

static inline void fake_grad_weight(const fake_kernel *k, const tr_run *run)
{
    const int64_t n = fake_dim(k, k->op->in[0], 0), in = fake_dim(k, k->op->in[0], 1),
                  out = fake_dim(k, k->op->in[1], 1);
    const float *x = k->b.in[0], *dy = k->b.in[1];
    float *dw = k->b.out[0];
    for (int64_t o = 0; o < out; o++)
        for (int64_t j = 0; j < in; j++) {
            float sum = run->accumulate ? dw[o * in + j] : 0;
            for (int64_t i = 0; i < n; i++) sum += dy[i * out + o] * x[i * in + j];
            dw[o * in + j] = sum;
        }
}

static inline void fake_mse(const fake_kernel *k, const tr_run *run)
{
    const float *y = k->b.in[0], *t = k->b.in[1];
    float *dy = k->b.out[0];
    const size_t n = k->g->tensors[k->op->in[0]].count;
    for (size_t i = 0; i < n; i++) {
        run->tally[TR_TALLY_LOSS] += (double)(y[i] - t[i]) * (double)(y[i] - t[i]);
        if (dy) dy[i] = 2 * (y[i] - t[i]);
    }
}

static inline tr_status fake_run(tr_kernel *base, const tr_run *run)
{
    fake_kernel *k = (fake_kernel *)base;
    const char *name = fake_name(k);
    k->ctx->runs++;
    memset(k->b.workspace, 0xff, k->base.workspace); /* scratch is nobody's */
    if (k->ctx->fail_run && strcmp(name, k->ctx->fail_run) == 0)
        return TR_FAIL(TR_KERNEL, "it broke");
    const size_t n = k->op->out[0] >= 0 ? k->g->tensors[k->op->out[0]].count : 0;
    const float *a = k->b.in[0], *b = k->b.in[1];
    float *y = k->b.out[0];
    if (strcmp(name, "linear") == 0)
        fake_matmul(k);
    else if (strcmp(name, "linear.grad_input") == 0)
        fake_grad_input(k);
    else if (strcmp(name, "linear.grad_weight") == 0)
        fake_grad_weight(k, run);
    else if (strcmp(name, "mse") == 0)
        fake_mse(k, run);
    else if (strcmp(name, "relu") == 0)
        for (size_t i = 0; i < n; i++) y[i] = a[i] > 0 ? a[i] : 0;
    else if (strcmp(name, "relu.grad") == 0)
        for (size_t i = 0; i < n; i++) y[i] = b[i] > 0 ? a[i] : 0;
    else if (strcmp(name, "batchnorm.stats") == 0) /* of no samples */
        memset(y, 0, k->g->tensors[k->op->out[0]].nbytes);
    else if (strcmp(name, "flatten") == 0) /* only where it is no view: it would overlap */
        memcpy(y, a, n * sizeof *y);
    else if (strcmp(name, "batchnorm.merge") == 0)
        memcpy(k->b.out[0], k->b.in[0], k->g->tensors[k->op->out[0]].nbytes);
    return TR_OK;
}

static inline tr_status fake_pack(tr_kernel *base, int which)
{
    fake_kernel *k = (fake_kernel *)base;
    if (k->ctx->pack_refused > 0 && --k->ctx->pack_refused == 0)
        return TR_FAIL(TR_KERNEL, "no reorder");
    const int operand = 1 + which;
    const int64_t out = fake_dim(k, k->op->in[operand], 0), in = fake_dim(k, k->op->in[operand], 1);
    const float *w = k->b.in[operand];
    float *p = k->b.packed[which];
    memset(k->b.workspace, 0xff, k->base.workspace); /* packing may use it, too */
    for (int64_t o = 0; o < out; o++)
        for (int64_t j = 0; j < in; j++) p[which == 0 ? j * out + o : out - 1 - o] = w[o * in + j];
    k->ctx->packs++;
    return TR_OK;
}

static inline tr_status fake_bind(tr_kernel *base, const tr_binding *b)
{
    ((fake_kernel *)base)->b = *b;
    return TR_OK;
}

static inline tr_status fake_rebind(tr_kernel *base, int operand, void *data)
{
    fake_kernel *k = (fake_kernel *)base;
    if (k->ctx->rebind_refused > 0 && --k->ctx->rebind_refused == 0)
        return TR_FAIL(TR_UNSUPPORTED, "not here");
    k->b.in[operand] = data;
    return TR_OK;
}

static inline void fake_close(tr_kernel *base)
{
    ((fake_kernel *)base)->ctx->closes++;
    tr_free(base);
}

static inline const char *fake_unsupported(void *ctx, const tr_op_def *def, tr_dtype type)
{
    const fake_ctx *c = ctx;
    const bool this_type = !c->missing_type || type == c->missing_type;
    return c->missing && this_type && strcmp(c->missing, tr_op_def_name(def)) == 0
               ? "not written yet"
               : NULL;
}

static inline tr_status fake_prepare(void *ctx, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    fake_kernel *k = TR_NEW(TR_MEM_OTHER, fake_kernel);
    if (!k) return TR_MEMORY;
    k->ctx = ctx;
    k->ctx->prepares++;
    k->g = g;
    k->op = op;
    k->base = (tr_kernel){.impl = "plain", .bind = fake_bind, .close = fake_close};
    const char *name = fake_name(k);
    k->base.run = fake_run;
    if (k->ctx->rebinds) k->base.rebind = fake_rebind;
    k->base.workspace = strcmp(name, "mse") == 0 ? 1000 : 40;
    if (strcmp(name, "linear") == 0 || strcmp(name, "linear.grad_input") == 0) {
        k->format = 7;
        for (int i = 1; i < op->nin; i++) { /* weight, and where there is one, bias */
            const tr_tensor *w = &g->tensors[op->in[i]];
            k->base.packed[k->base.npacked++] =
                (tr_packing){.param = w->index,
                             .nbytes = k->ctx->fat_copies ? 2 * w->nbytes : w->nbytes,
                             .format = &k->format,
                             .format_size = sizeof k->format};
        }
        if (k->ctx->bad_copy) k->base.packed[0].param = 99;
        k->base.pack = fake_pack;
    }
    *out = &k->base;
    return TR_OK;
}

/* Time goes by as if each step took twice the one before. */
static inline tr_status fake_marks_open(void *ctx, size_t n, void **out)
{
    (void)n;
    *out = ctx;
    return TR_OK;
}

static inline void fake_marks_close(void *ctx)
{
    ((fake_ctx *)ctx)->marked = 0;
}

static inline tr_status fake_mark(void *ctx, size_t i)
{
    fake_ctx *c = ctx;
    if (i != 0 && i != c->marked) return TR_FAIL(TR_INTERNAL, "mark %zu after %zu", i, c->marked);
    c->marked = i + 1;
    return TR_OK;
}

static inline tr_status fake_marks_read(void *ctx, double *seconds, size_t n)
{
    if (((fake_ctx *)ctx)->marked != n + 1) return TR_FAIL(TR_INTERNAL, "marks are missing");
    for (size_t i = 0; i < n; i++) seconds[i] = (double)(1u << i);
    return TR_OK;
}

static const tr_device_kernels fake_kernels = {.unsupported = fake_unsupported,
                                               .prepare = fake_prepare};
static const tr_device_marks fake_marks = {
    .open = fake_marks_open, .close = fake_marks_close, .set = fake_mark, .read = fake_marks_read};
static const __attribute__((unused)) tr_backend fake_backend = {.name = "fake",
                                                                .host = true,
                                                                .memory = &tr_host_memory,
                                                                .kernels = &fake_kernels,
                                                                .marks = &fake_marks};

/* ---- Graphs by hand -------------------------------------------------------------------------- */

#define FAKE_TENSORS 40
#define FAKE_OPS     20

typedef struct {
    tr_graph g;
    tr_tensor tensors[FAKE_TENSORS];
    tr_op ops[FAKE_OPS];
} fake_graph;

static inline const tr_op_def *fake_def(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (strcmp(tr_op_def_name(tr_op_at(i)), name) == 0) return tr_op_at(i);
    fail_msg("no op %s", name);
    return NULL;
}

static inline void fake_start(fake_graph *f, const tr_model *m, int64_t batch, bool train)
{
    memset(f, 0, sizeof *f);
    f->g = (tr_graph){.model = m,
                      .batch = batch,
                      .mode = train ? TR_MODE_TRAIN : TR_MODE_EVALUATE,
                      .tensors = f->tensors,
                      .ops = f->ops,
                      .logits = -1,
                      .target = -1,
                      .weights = -1};
    for (int i = 0; i < TR_MAX_IN; i++) f->g.inputs[i] = -1;
}

static inline int fake_tensor(fake_graph *f, tr_role role, int index, int64_t rows, int64_t cols,
                              int alias)
{
    const int id = (int)f->g.ntensors++;
    assert_true(id < FAKE_TENSORS);
    tr_tensor *t = &f->tensors[id];
    *t = (tr_tensor){
        .id = id, .role = role, .index = index, .dtype = TR_F32, .ndim = 2, .alias = alias};
    t->dims[0] = rows;
    t->dims[1] = cols;
    t->count = (size_t)(rows * cols);
    t->nbytes = t->count * sizeof(float);
    snprintf(t->name, sizeof t->name, "t%d", id);
    return id;
}

static inline tr_op *fake_op(fake_graph *f, const char *name, int a, int b, int out)
{
    assert_true(f->g.nops < FAKE_OPS);
    tr_op *op = &f->ops[f->g.nops++];
    *op = (tr_op){.def = fake_def(name), .bucket_ready = -1};
    snprintf(op->layer, sizeof op->layer, "layer%zu", f->g.nops);
    op->nin = b == -2 ? 1 : 2;
    op->in[0] = a;
    op->in[1] = b;
    op->nout = out == -2 ? 0 : 1;
    op->out[0] = out;
    return op;
}

/* ---- The two-layer model --------------------------------------------------------------------- */

enum { IN = 3, HIDDEN = 20, OUT = 2, NONE = -2 };

typedef struct {
    tr_model m;
    tr_param params[3]; /* the third is for who counts it in: a bias of linear2 */
    tr_range buckets[2];
    tr_input input;
    float weights[128], grads[128], states[16];
    tr_params store;
} fake_model;

static inline void fake_model_init(fake_model *f)
{
    memset(f, 0, sizeof *f);
    f->params[0] = (tr_param){.layer = "linear1",
                              .name = "weight",
                              .ndim = 2,
                              .dims = {HIDDEN, IN},
                              .count = HIDDEN * IN,
                              .offset = 48};
    f->params[1] = (tr_param){.layer = "linear2",
                              .name = "weight",
                              .ndim = 2,
                              .dims = {OUT, HIDDEN},
                              .count = OUT * HIDDEN,
                              .offset = 0};
    f->params[2] = (tr_param){.layer = "linear2",
                              .name = "bias",
                              .ndim = 2,
                              .dims = {OUT, 1},
                              .count = OUT,
                              .offset = 112};
    f->buckets[0] = (tr_range){0, 48};
    f->buckets[1] = (tr_range){48, 112};
    f->input = (tr_input){.name = "input", .ndim = 1, .dims = {IN}};
    f->m = (tr_model){.nparams = 2,
                      .ninputs = 1,
                      .params = f->params,
                      .inputs = &f->input,
                      .flat_count = 112,
                      .nbuckets = 2,
                      .buckets = f->buckets};
    f->store = (tr_params){
        .o.model = &f->m, .weights = f->weights, .grads = f->grads, .states = f->states};
    for (int i = 0; i < 128; i++) f->weights[i] = (float)((i * 37) % 17 - 8) / 8;
}

static inline void fake_mlp(fake_graph *f, const fake_model *m, int64_t n, bool train)
{
    fake_start(f, &m->m, n, train);
    const int x = fake_tensor(f, TR_ROLE_INPUT, 0, n, IN, -1);
    const int t = fake_tensor(f, TR_ROLE_TARGET, 0, n, OUT, -1);
    const int w1 = fake_tensor(f, TR_ROLE_PARAM, 0, HIDDEN, IN, -1);
    const int w2 = fake_tensor(f, TR_ROLE_PARAM, 1, OUT, HIDDEN, -1);
    const int flat = fake_tensor(f, TR_ROLE_ACTIVATION, 0, n, IN, x);
    const int h = fake_tensor(f, TR_ROLE_SAVED, 0, n, HIDDEN, -1);
    const int r = fake_tensor(f, TR_ROLE_SAVED, 0, n, HIDDEN, h);
    const int y = fake_tensor(f, TR_ROLE_ACTIVATION, 0, n, OUT, -1);
    f->g.inputs[0] = x;
    f->g.target = t;
    f->g.logits = y;
    fake_op(f, "flatten", x, NONE, flat);
    fake_op(f, "linear", flat, w1, h);
    fake_op(f, "relu", h, NONE, r);
    fake_op(f, "linear", r, w2, y);
    if (!train) {
        fake_op(f, "mse", y, t, -1);
        return;
    }
    const int dy = fake_tensor(f, TR_ROLE_ACTIVATION, 0, n, OUT, -1);
    const int dw2 = fake_tensor(f, TR_ROLE_GRAD, 1, OUT, HIDDEN, -1);
    const int dr = fake_tensor(f, TR_ROLE_ACTIVATION, 0, n, HIDDEN, -1);
    const int dh = fake_tensor(f, TR_ROLE_ACTIVATION, 0, n, HIDDEN, dr);
    const int dw1 = fake_tensor(f, TR_ROLE_GRAD, 0, HIDDEN, IN, -1);
    fake_op(f, "mse", y, t, dy);
    fake_op(f, "linear.grad_weight", r, dy, dw2)->bucket_ready = 0;
    fake_op(f, "linear.grad_input", dy, w2, dr);
    fake_op(f, "relu.grad", dr, r, dh);
    fake_op(f, "linear.grad_weight", flat, dh, dw1)->bucket_ready = 1;
}

static inline tr_session_options fake_options(fake_model *m, fake_ctx *ctx)
{
    return (tr_session_options){.model = &m->m,
                                .backend = &fake_backend,
                                .backend_ctx = ctx,
                                .params = &m->store,
                                .ranks = 1};
}

#endif
