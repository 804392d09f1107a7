/* Products of 8 bits run on CPUs: infer graphs for a GPU have none (tr_graph_options.int8). */
#include "kernels/cuda/internal.h"

static tr_status refuse(const tr_op *op)
{
    return TR_FAIL(TR_UNSUPPORTED, "layer %s: %s runs on CPUs alone", op->layer,
                   tr_op_def_name(op->def));
}

tr_status tr_cuda_product_int8(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    (void)cuda, (void)g, (void)out;
    return refuse(op);
}

tr_status tr_cuda_quantize(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    (void)cuda, (void)g, (void)out;
    return refuse(op);
}

tr_status tr_cuda_dequantize(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    (void)cuda, (void)g, (void)out;
    return refuse(op);
}
