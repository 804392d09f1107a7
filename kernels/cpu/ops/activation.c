/* Activations and their gradients, element by element. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t count;
    tr_act act;
} kernel;

/* The activation an op's name (up to a dot) and attributes mean. */
static tr_status which(const tr_op *op, tr_act *act)
{
    static const struct {
        const char *name;
        tr_act act;
    } table[] = {{"relu", TR_ACT_RELU},
                 {"gelu", TR_ACT_GELU},
                 {"silu", TR_ACT_SILU},
                 {"sigmoid", TR_ACT_SIGMOID},
                 {"tanh", TR_ACT_TANH}};
    const char *name = tr_op_def_name(op->def);
    const size_t length = strcspn(name, ".");
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        if (strlen(table[i].name) != length || memcmp(table[i].name, name, length) != 0) continue;
        const tr_gelu_attrs *gelu = op->attrs;
        *act = table[i].act;
        if (*act == TR_ACT_GELU && gelu && gelu->tanh) *act = TR_ACT_GELU_TANH;
        return TR_OK;
    }
    return TR_FAIL(TR_INTERNAL, "%s is no activation", name);
}

static tr_status open_activation(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                 tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    kernel *k = NULL;
    tr_act act = TR_ACT_NONE;
    tr_status st = which(op, &act);
    if (st != TR_OK) return st;
    const tr_tensor *t = tr_loop_in(g, op, 0);
    st = tr_loop_kernel_open(cpu, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = t->count;
    k->act = act;
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads)
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->act(o->dtype, k->act, tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK),
                      tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK),
                      tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads)
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->act_grad(o->dtype, k->act, tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK),
                           tr_loop_at(o->dtype, o->b.in[1], i * TR_CHUNK),
                           tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK),
                           tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

tr_status tr_cpu_activation(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_activation(cpu, g, op, run_forward, out);
}

tr_status tr_cpu_activation_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_activation(cpu, g, op, run_grad, out);
}
