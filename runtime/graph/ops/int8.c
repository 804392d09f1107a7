/* Ops of infer graphs on values of 8 bits. passes/int8.c puts them in the place of others. */
#include "runtime/graph/facts.h"
#include "runtime/graph/ops/registry.h"

const tr_op_def tr_def_int8_quantize = {.name = "int8.quantize", .flops = tr_flops_elements};
const tr_op_def tr_def_int8_dequantize = {.name = "int8.dequantize", .flops = tr_flops_elements};
const tr_op_def tr_def_conv2d_int8 = {.name = "conv2d.int8", .flops = tr_flops_product};
const tr_op_def tr_def_conv2d_int8_groups = {.name = "conv2d.int8_groups",
                                             .flops = tr_flops_product};
const tr_op_def tr_def_linear_int8 = {.name = "linear.int8", .flops = tr_flops_product};
static double flops_pool(const tr_graph *g, const tr_op *op)
{
    const size_t in = g->tensors[op->in[0]].count, out = g->tensors[op->out[0]].count;
    const tr_pool2d_attrs *a = op->attrs;
    const bool whole = op->def == &tr_def_global_avgpool_int8;
    return whole ? (double)in : (double)out * (double)a->kernel[0] * (double)a->kernel[1];
}

const tr_op_def tr_def_avgpool2d_int8 = {.name = "avgpool2d.int8", .flops = flops_pool};
const tr_op_def tr_def_global_avgpool_int8 = {.name = "global_avgpool.int8", .flops = flops_pool};
const tr_op_def tr_def_concat_int8 = {.name = "concat.int8", .flops = tr_flops_elements};
const tr_op_def tr_def_int8_dynamic = {.name = "int8.dynamic", .flops = tr_flops_elements};
const tr_op_def tr_def_int8_rescale = {
    .name = "int8.rescale", .flops = tr_flops_elements, .share = TR_SHARE_FIRST};

const char *tr_layer_rounder(void)
{
    return tr_def_fake_quantize.name;
}

const char *tr_layer_dynamic_rounder(void)
{
    return tr_def_dynamic_quantize.name;
}

/* What a backend can have or lack by itself; without the first it has none of the others. */
static const tr_op_def *const asked[] = {&tr_def_conv2d_int8, &tr_def_conv2d_int8_groups};

unsigned tr_graph_int8(tr_unsupported *unsupported, void *ctx)
{
    unsigned set = 0;
    for (size_t i = 0; i < TR_COUNT(asked); i++)
        if (!unsupported(ctx, asked[i], TR_F32)) set |= 1u << i;
    return set & 1 ? set : 0;
}

bool tr_int8_has(const tr_graph_options *o, const tr_op_def *def)
{
    for (size_t i = 0; i < TR_COUNT(asked); i++)
        if (asked[i] == def) return o->int8 >> i & 1;
    return o->int8 & 1;
}
