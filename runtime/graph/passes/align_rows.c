/* Rows of logits that begin where products like it. A vocabulary of 50257 has rows of 100,514
 * bytes; loads of 16 bytes, and the tensor memory accelerator of Hopper, which its fast kernels
 * use, want multiples of 16. On an H200 the three products of such logits take six times as long as
 * with 50264 (tests/gpu/RESULTS.md).
 *
 * What is between the rows belongs to the tensor: a product of logits computes as many columns
 * more, with rows of zeros of its packed weights, and the loss writes zeros there as the gradient,
 * so that products of that add nothing. */
#include "runtime/graph/ops/op.h"
#include "runtime/graph/passes/passes.h"

static unsigned apart(const tr_graph *g, const tr_op *op)
{
    return op->def->apart ? op->def->apart(g, op) : 0;
}

/* dense[t]: some op makes or reads it that needs its rows one behind the other, or it is 32-bit, or
 * no op of this graph makes it. */
static void find_dense(const tr_graph *g, bool *dense)
{
    for (size_t t = 0; t < g->ntensors; t++)
        dense[t] = tr_dtype_size(g->tensors[t].dtype) != 2 ||
                   g->tensors[t].role != TR_ROLE_ACTIVATION || g->tensors[t].alias >= 0;
    for (size_t k = 0; k < g->noutputs; k++) dense[g->outputs[k]] = true;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        const unsigned where = apart(g, op);
        for (int k = 0; k < op->nin; k++)
            if (op->in[k] >= 0 && !(where >> k & 1)) dense[op->in[k]] = true;
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0 && (k > 0 || !(where & TR_APART_OUT))) dense[op->out[k]] = true;
    }
}

static void stand_apart(tr_tensor *t, size_t align)
{
    const size_t size = tr_dtype_size(t->dtype), width = (size_t)t->dims[tr_innermost(t)];
    const size_t row = tr_align_up(width * size, align);
    t->pitch = (int64_t)(row / size);
    t->nbytes = t->count / width * row;
}

/* A loss whose logits, and gradient where there is one, can stand apart, and need it. */
static bool wants(const tr_graph *g, const tr_op *op, const bool *dense, size_t align)
{
    const tr_tensor *z = &g->tensors[op->in[0]];
    return op->phase == TR_PHASE_LOSS && apart(g, op) & TR_APART_OUT && !dense[op->in[0]] &&
           (op->out[0] < 0 || !dense[op->out[0]]) && z->count > 0 &&
           (size_t)z->dims[tr_innermost(z)] * tr_dtype_size(z->dtype) % align != 0;
}

tr_status tr_graph_pass_align_rows(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    const size_t align = b->o->row_align;
    if (align == 0) return TR_OK;
    bool *dense = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *dense);
    if (!dense) return tr_last_status();
    find_dense(g, dense);
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        if (!wants(g, op, dense, align)) continue;
        stand_apart(&g->tensors[op->in[0]], align);
        if (op->out[0] >= 0) stand_apart(&g->tensors[op->out[0]], align);
        ++*found;
    }
    tr_free(dense);
    return TR_OK;
}
