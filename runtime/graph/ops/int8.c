/* Ops of infer graphs on values of 8 bits. passes/int8.c puts them in the place of others. */
#include "runtime/graph/facts.h"
#include "runtime/graph/ops/registry.h"

const tr_op_def tr_def_int8_quantize = {.name = "int8.quantize", .flops = tr_flops_elements};
const tr_op_def tr_def_int8_dequantize = {.name = "int8.dequantize", .flops = tr_flops_elements};
const tr_op_def tr_def_conv2d_int8 = {.name = "conv2d.int8", .flops = tr_flops_product};
const tr_op_def tr_def_linear_int8 = {.name = "linear.int8", .flops = tr_flops_product};

const char *tr_layer_rounder(void)
{
    return tr_def_fake_quantize.name;
}

const tr_op_def *tr_graph_int8(void)
{
    return &tr_def_conv2d_int8;
}
