/* Runs a graph with one number in place of each tensor, in memory that is shared exactly as the
 * graph says. relu, gelu's gradient, sums, masks and views are computed as they are; any other op
 * is some smooth function of its operands, fixed by its name and what the layer's attributes say.
 * Two graphs of one model must give the same numbers whatever passes were applied; a pass that
 * drops, doubles, misplaces or overwrites anything changes them. */
#ifndef TEST_EVALUATE_H
#define TEST_EVALUATE_H

#include "tests/unit/graph/models.h"
#include "runtime/graph/facts.h"
#include "runtime/graph/ops.h"

#include <math.h>

typedef struct {
    const tr_graph *g;
    double *memory; /* by place: a root, or a part of one (test_place) */
    bool *written;  /* by place */
    int *writes;    /* gradients: how often; states: updates */
} test_run;

static inline double test_constant(const char *a, const char *b, int k)
{
    uint64_t h = 1469598103934665603u + (uint64_t)k;
    for (; *a; a++) h = (h ^ (unsigned char)*a) * 1099511628211u;
    h = (h ^ 47) * 1099511628211u;
    for (; *b; b++) h = (h ^ (unsigned char)*b) * 1099511628211u;
    return (double)((h >> 20) & 0xfffff) / 0x80000 - 1.0;
}

static inline int test_root(const tr_graph *g, int id)
{
    int alias = g->tensors[id].alias;
    if (alias < 0) return id;
    assert_int_equal(g->tensors[alias].alias, -1); /* resolved to the root */
    return alias;
}

/* A part of a root's bytes stands for itself: the first tensor of the same part. */
static inline int test_place(const tr_graph *g, int id)
{
    const tr_tensor *t = &g->tensors[id];
    const int root = test_root(g, id);
    if (t->count == g->tensors[root].count) return root;
    for (int p = 0;; p++)
        if (g->tensors[p].alias == root && g->tensors[p].at == t->at &&
            g->tensors[p].count == t->count)
            return p;
}

static inline double test_get(const test_run *r, int id)
{
    const int place = test_place(r->g, id);
    assert_true(r->written[place]);
    return r->memory[place];
}

static inline void test_put(test_run *r, int id, double v)
{
    const int place = test_place(r->g, id);
    tr_role role = r->g->tensors[test_root(r->g, id)].role;
    /* What was given from outside is never written, but for views, which come with its own
     * value. */
    if (r->written[place] && role <= TR_ROLE_STATE) assert_true(r->memory[place] == v);
    r->memory[place] = v;
    r->written[place] = true;
    r->writes[id]++;
}

static inline double test_act(tr_act act, double x)
{
    if (act == TR_ACT_NONE) return x;
    return act == TR_ACT_RELU ? fmax(x, 0) : sin(x * (1.5 + act) + act);
}

static inline double test_act_slope(tr_act act, double x)
{
    return cos(x * (1.5 + act) + act);
}

static inline tr_act test_act_of(const tr_op *op)
{
    static const char *const names[] = {"", "relu", "gelu", "", "silu", "sigmoid", "tanh"};
    for (int a = 1; a < (int)TR_COUNT(names); a++)
        if (strcmp(tr_op_name(op), names[a]) == 0) {
            bool tanh_form = a == TR_ACT_GELU && ((const tr_gelu_attrs *)op->attrs)->tanh;
            return tanh_form ? TR_ACT_GELU_TANH : (tr_act)a;
        }
    return TR_ACT_NONE;
}

/* What makes an op's function its own: the first layer that is as its own; backward, the layer. */
static inline const char *test_salt(const tr_graph *g, const tr_op *op)
{
    const tr_model *m = g->model;
    if (g->mode == TR_MODE_TRAIN || (size_t)op->layer_index >= m->nlayers) return op->layer;
    size_t l = 0;
    while (!tr_layer_equal(&m->layers[l], &m->layers[op->layer_index])) l++;
    return m->layers[l].name;
}

/* Some smooth function of the operands `in` that `skip` does not name. */
static inline double test_some(const test_run *r, const tr_op *op, int k, int upto)
{
    const char *salt = test_salt(r->g, op);
    double sum = test_constant(tr_op_name(op), salt, 100 + k);
    for (int i = 0; i < op->nin && i < upto; i++)
        if (op->in[i] >= 0)
            sum += test_constant(tr_op_name(op), salt, i + 10 * k) * test_get(r, op->in[i]);
    return sin(3 * sum);
}

static inline void test_grad_stats(test_run *r, const tr_op *op)
{
    double dz = test_get(r, op->in[0]);
    if (op->in[5] >= 0) dz += test_get(r, op->in[5]);
    if (op->in[4] >= 0 && test_get(r, op->in[4]) <= 0) dz = 0;
    double out[3];
    for (int k = 1; k < 4; k++) {
        double sum = test_constant(tr_op_name(op), op->layer, k) + dz * k;
        for (int i = 1; i < 4; i++) sum += test_get(r, op->in[i]) * (i + k);
        out[k - 1] = sin(sum);
    }
    if (op->in[4] < 0 && op->in[5] < 0)
        assert_int_equal(test_root(r->g, op->out[0]), test_root(r->g, op->in[0]));
    test_put(r, op->out[0], dz);
    for (int k = 1; k < 4; k++) test_put(r, op->out[k], out[k - 1]);
}

static inline void test_op(test_run *r, const tr_op *op)
{
    const char *name = tr_op_name(op);
    size_t n = strlen(name);
    int residual = strcmp(name, "conv2d") == 0            ? 3
                   : strcmp(name, "batchnorm") == 0       ? 6
                   : strcmp(name, "batchnorm.infer") == 0 ? 5
                   : strstr(name, "linear.grad_input")    ? 2
                                                          : TR_MAX_IN;
    double out[TR_MAX_OUT];
    if (strcmp(name, "batchnorm.grad_stats") == 0) {
        test_grad_stats(r, op);
        return;
    }
    for (int k = 0; k < op->nout; k++) out[k] = test_some(r, op, k, residual);
    if (strstr(name, "linear.grad_input")) {
        if (op->act != TR_ACT_NONE) out[0] *= test_act_slope(op->act, test_get(r, op->in[2]));
        test_put(r, op->out[0], out[0]);
        return;
    }
    if (residual < TR_MAX_IN && op->in[residual] >= 0) out[0] += test_get(r, op->in[residual]);
    if (test_act_of(op) != TR_ACT_NONE) {
        out[0] = test_act(test_act_of(op), test_get(r, op->in[0]));
    } else if (strcmp(name, "gelu.grad") == 0) {
        out[0] =
            test_get(r, op->in[0]) * test_act_slope(tr_op_activation(op), test_get(r, op->in[1]));
    } else if (strcmp(name, "relu.grad") == 0) {
        out[0] = test_get(r, op->in[1]) > 0 ? test_get(r, op->in[0]) : 0;
    } else if (strncmp(name, "flatten", 7) == 0) {
        out[0] = test_get(r, op->in[0]);
    } else if (n == 3 && strcmp(name, "add") == 0) {
        out[0] = 0;
        for (int i = 0; i < op->nin; i++) out[0] += test_get(r, op->in[i]);
    }
    if (strcmp(name, "batchnorm") == 0 && !op->recomputed)
        for (int i = 4; i < 6; i++) r->writes[op->in[i]]++;
    out[0] = test_act(op->act, out[0]);
    for (int k = 0; k < op->nout; k++)
        if (op->out[k] >= 0) test_put(r, op->out[k], out[k]);
}

static inline test_run test_evaluate(const tr_graph *g)
{
    test_run r = {.g = g,
                  .memory = calloc(g->ntensors, sizeof(double)),
                  .written = calloc(g->ntensors, sizeof(bool)),
                  .writes = calloc(g->ntensors, sizeof(int))};
    for (size_t t = 0; t < g->ntensors; t++) {
        if (g->tensors[t].role > TR_ROLE_STATE) continue;
        r.memory[t] = test_constant("given", g->tensors[t].name, 0);
        r.written[t] = true;
    }
    for (size_t i = 0; i < g->nops; i++) test_op(&r, &g->ops[i]);
    return r;
}

static inline void test_run_close(test_run *r)
{
    free(r->memory);
    free(r->written);
    free(r->writes);
}

/* The tensor of a role and row; they have no fixed ids. */
static inline int test_tensor(const tr_graph *g, tr_role role, int row)
{
    for (size_t t = 0; t < g->ntensors; t++)
        if (g->tensors[t].role == role && g->tensors[t].index == row) return (int)t;
    fail_msg("no tensor of role %d, row %d", role, row);
    return -1;
}

/* The loss has written its gradient over the output. */
static inline bool test_loss_took(const tr_graph *g)
{
    for (size_t i = 0; i < g->nops; i++)
        if (g->ops[i].phase == TR_PHASE_LOSS && g->ops[i].out[0] >= 0 &&
            tr_root(g, g->ops[i].out[0]) == tr_root(g, g->logits))
            return true;
    return false;
}

/* Same output, same gradients, each written once, each state updated once. */
static inline void test_same(const tr_graph *a, const tr_graph *b)
{
    test_run ra = test_evaluate(a), rb = test_evaluate(b);
    if (!test_loss_took(a) && !test_loss_took(b))
        assert_true(fabs(test_get(&ra, a->logits) - test_get(&rb, b->logits)) < 1e-9);
    for (size_t i = 0; a->mode == TR_MODE_TRAIN && i < a->model->nparams; i++) {
        if (a->model->params[i].frozen) continue;
        int ta = test_tensor(a, TR_ROLE_GRAD, (int)i), tb = test_tensor(b, TR_ROLE_GRAD, (int)i);
        double va = test_get(&ra, ta), vb = test_get(&rb, tb);
        if (fabs(va - vb) > 1e-9) print_message("%s: %g, %g\n", a->tensors[ta].name, va, vb);
        assert_true(fabs(va - vb) < 1e-9);
        assert_int_equal(ra.writes[ta], 1);
        assert_int_equal(rb.writes[tb], 1);
    }
    for (size_t i = 0; i < a->model->nstates; i++)
        assert_int_equal(rb.writes[test_tensor(b, TR_ROLE_STATE, (int)i)],
                         b->mode == TR_MODE_TRAIN);
    test_run_close(&ra);
    test_run_close(&rb);
}

#endif
