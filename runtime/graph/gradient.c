/* differentiate(): reverse-mode differentiation over the op list. Ops are visited last to first;
 * each appends its backward ops by its definition. A tensor's gradient is the sum of one part from
 * each consumer; the sum is appended when the op that made the tensor is reached, for then all
 * parts are there. What leads to no parameter gets no gradient. */
#include "runtime/graph/builder.h"
#include "runtime/graph/maker.h"

#include <string.h>

bool tr_grad_wanted(const tr_builder *b, int id)
{
    return (size_t)id < b->nforward && b->wanted[id];
}

int tr_grad_of(const tr_builder *b, int id)
{
    return b->grad[id];
}

bool tr_grad_learned(const tr_builder *b, int param)
{
    return param >= 0 && !b->g->model->params[b->g->tensors[param].index].frozen;
}

int tr_grad_param(tr_builder *b, int param)
{
    if (param < 0) return -1;
    const tr_tensor *t = &b->g->tensors[param];
    if (t->role == TR_ROLE_ROUNDED && b->g->model->params[t->index].learned_scale >= 0)
        return tr_grad_new(b, param); /* the rounding's own gradient goes on from there */
    return tr_grad_learned(b, param)
               ? b->first_grad + t->index
               : tr_build_new(b, t->name, "unused", t->dtype, t->ndim, t->dims);
}

tr_op *tr_build_backward(tr_builder *b, const tr_op_def *def, const tr_op *of, int nin,
                         const int *in, int nout, const int *out)
{
    return tr_build_op(b, def, of->layer, of->layer_index, of->attrs, TR_PHASE_BACKWARD, nin, in,
                       nout, out);
}

void tr_grad_pass(tr_builder *b, int id, int grad)
{
    if (!tr_grad_wanted(b, id)) return;
    /* In order of arrival, so that sums are always made in the same order. */
    int *link = &b->parts[id];
    while (*link >= 0) link = &b->part[*link].next;
    *link = (int)b->npart;
    b->part[b->npart++] = (tr_grad_part){.grad = grad, .next = -1};
    b->nparts[id]++;
}

static int new_like(tr_builder *b, int id, const char *suffix)
{
    const tr_tensor *t = &b->g->tensors[id];
    char name[TR_NAME + 4];
    snprintf(name, sizeof name, "d.%s", t->name);
    name[TR_NAME - 13] = '\0';
    return tr_build_like(b, name, suffix, t->dtype, id);
}

int tr_grad_new(tr_builder *b, int id)
{
    if (!tr_grad_wanted(b, id)) return -1;
    char number[16];
    snprintf(number, sizeof(number), "%d", b->nparts[id] + 1);
    int grad = new_like(b, id, number);
    tr_grad_pass(b, id, grad);
    return grad;
}

/* Adds up what has arrived for an op's output; as many at once as an op can take. */
static tr_status sum_parts(tr_builder *b, int id, const tr_op *of)
{
    tr_status st = TR_OK;
    char layer[TR_NAME];
    int layer_index = of->layer_index;
    snprintf(layer, sizeof(layer), "%s", of->layer);
    TR_TRY(tr_build_reserve(b, TR_BUILD_ROOM + (size_t)b->nparts[id],
                            TR_BUILD_ROOM + (size_t)b->nparts[id]));
    int next = b->parts[id];
    int sum = b->part[next].grad;
    next = b->part[next].next;
    while (next >= 0) {
        int in[TR_MAX_IN] = {sum}, n = 1;
        for (; next >= 0 && n < TR_MAX_IN; next = b->part[next].next) in[n++] = b->part[next].grad;
        sum = new_like(b, id, "sum");
        tr_build_op(b, tr_op_sum(), layer, layer_index, NULL, TR_PHASE_BACKWARD, n, in, 1, &sum);
    }
    b->grad[id] = sum;
out:
    return st;
}

/* A tensor's gradient is wanted if a parameter lies before it. Returns how many parts there can
 * be. */
static size_t mark_wanted(tr_builder *b)
{
    const tr_graph *g = b->g;
    size_t parts = 1;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        bool any = false;
        for (int k = 0; k < op->nin; k++) {
            if (op->in[k] < 0) continue;
            any |= b->wanted[op->in[k]] ||
                   (g->tensors[op->in[k]].role == TR_ROLE_PARAM && tr_grad_learned(b, op->in[k]));
            parts++;
        }
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0) b->wanted[op->out[k]] = any;
    }
    return parts;
}

static tr_status open_lists(tr_builder *b)
{
    size_t n = b->nforward = b->g->ntensors;
    b->wanted = tr_alloc(TR_MEM_OTHER, n, sizeof *b->wanted);
    b->parts = tr_alloc(TR_MEM_OTHER, n, sizeof *b->parts);
    b->nparts = tr_alloc(TR_MEM_OTHER, n, sizeof *b->nparts);
    b->grad = tr_alloc(TR_MEM_OTHER, n, sizeof *b->grad);
    if (!b->wanted || !b->parts || !b->nparts || !b->grad) return tr_last_status();
    for (size_t i = 0; i < n; i++) b->parts[i] = b->grad[i] = -1;
    b->cap_part = mark_wanted(b);
    b->part = tr_alloc(TR_MEM_OTHER, b->cap_part, sizeof *b->part);
    return b->part ? TR_OK : tr_last_status();
}

tr_status tr_model_trainable(const tr_model *m)
{
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        if (p->stored != TR_F32 && p->stored != TR_I8 && !p->frozen)
            return tr_layer_fail(tr_model_layer(m, p->layer), TR_CONFIG,
                                 "its %s is stored as %s, and cannot be trained: freeze it, or set "
                                 "stored: float32 or int8",
                                 p->name, tr_dtype_name(p->stored));
    }
    return TR_OK;
}

tr_status tr_differentiate(tr_builder *b)
{
    tr_graph *g = b->g;
    tr_status st = TR_OK;
    TR_TRY(tr_model_trainable(g->model));
    TR_TRY(open_lists(b));
    size_t loss = g->nops;
    TR_TRY(tr_build_reserve(b, TR_BUILD_ROOM, 0));
    while (loss > 0 && g->ops[loss - 1].phase == TR_PHASE_LOSS) loss--;
    for (size_t i = loss; i < g->nops; i++) g->ops[i].out[0] = tr_grad_new(b, g->ops[i].in[0]);
    for (size_t i = loss; i-- > 0;) {
        int y = g->ops[i].out[0];
        if (!g->ops[i].def->gradient || b->parts[y] < 0) continue;
        TR_TRY(sum_parts(b, y, &g->ops[i]));
        g->ops[i].def->gradient(b, &g->ops[i]);
    }
    st = b->st;
out:
    return st;
}
