/* A problem as an operation graph of cuDNN's backend API: what operations are built of, and the
 * pack of addresses that a graph runs on. The operations: convolution.c, attention.c.
 *
 * What lies between two operations is a virtual tensor that is never written to memory. Source:
 * NVIDIA cuDNN documentation, "cudnn_graph Library", descriptor types. */
#include "kernels/cuda/dnn/internal.h"

#include <string.h>

tr_status tr_dnn_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    char call[64];
    const cudnnStatus_t s = cudnnBackendSetAttribute(d, name, type, n, values);
    if (s == CUDNN_STATUS_SUCCESS) return TR_OK;
    snprintf(call, sizeof call, "cudnnBackendSetAttribute(attribute %d)", (int)name);
    return tr_dnn_check(s, call);
}

tr_status tr_dnn_make(tr_dnn_builder *b, cudnnBackendDescriptorType_t type,
                      cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    *out = NULL;
    TR_NEED(b->g->n < TR_DNN_DESCRIPTORS, TR_INTERNAL, "too many descriptors in a graph");
    TR_DNN_TRY(cudnnBackendCreateDescriptor(type, &b->g->all[b->g->n]));
    *out = b->g->all[b->g->n++];
out:
    return st;
}

tr_status tr_dnn_finalize(tr_dnn_builder *b, cudnnBackendDescriptor_t d)
{
    const cudnnStatus_t s = cudnnBackendFinalize(d);
    if (s != CUDNN_STATUS_SUCCESS && tr_dnn_unsupported(b->dnn, s, "cudnnBackendFinalize")) {
        *b->refused = true;
        return TR_OK;
    }
    return tr_dnn_check(s, "cudnnBackendFinalize");
}

tr_status tr_dnn_finish(tr_dnn_builder *b, cudnnBackendDescriptor_t operation)
{
    tr_status st = TR_OK;
    TR_NEED(b->nops < TR_DNN_OPERATIONS, TR_INTERNAL, "too many operations in a graph");
    TR_TRY(tr_dnn_finalize(b, operation));
    b->ops[b->nops++] = operation;
out:
    return st;
}

tr_status tr_dnn_add_tensor(tr_dnn_builder *b, const tr_dnn_tensor *t,
                            cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    const int64_t align = 16;
    const bool inner = t->id >= TR_DNN_VIRTUAL;
    cudnnBackendDescriptor_t d;
    *out = NULL;
    if (*b->refused) return TR_OK;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dims));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->strides));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t->id));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
    if (inner) TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner));
    if (t->by_value)
        TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &t->by_value));
    TR_TRY(tr_dnn_finalize(b, d));
    *out = d;
out:
    return st;
}

int64_t tr_dnn_virtual(tr_dnn_builder *b)
{
    return TR_DNN_VIRTUAL + b->virtuals++;
}

static tr_status set_descriptor(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                cudnnBackendDescriptor_t value)
{
    return tr_dnn_set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

tr_status tr_dnn_add_pointwise(tr_dnn_builder *b, const tr_dnn_pointwise *o)
{
    tr_status st = TR_OK;
    cudnnBackendDescriptor_t what, d;
    if (*b->refused) return TR_OK;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &what));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &o->mode));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &o->math));
    if (o->mode == CUDNN_POINTWISE_GEN_INDEX)
        TR_TRY(tr_dnn_set(what, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &o->axis));
    TR_TRY(tr_dnn_finalize(b, what));
    if (*b->refused) goto out;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &d));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, o->x));
    if (o->b) TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, o->b));
    if (o->t) TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, o->t));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, o->y));
    TR_TRY(tr_dnn_finish(b, d));
out:
    return st;
}

tr_status tr_dnn_add_matmul(tr_dnn_builder *b, cudnnBackendDescriptor_t a,
                            cudnnBackendDescriptor_t by, cudnnBackendDescriptor_t c)
{
    tr_status st = TR_OK;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t what, d;
    if (*b->refused) return TR_OK;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &what));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TR_TRY(tr_dnn_finalize(b, what));
    if (*b->refused) goto out;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &d));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, what));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, by));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c));
    TR_TRY(tr_dnn_finish(b, d));
out:
    return st;
}

tr_status tr_dnn_add_reduction(tr_dnn_builder *b, cudnnReduceTensorOp_t op,
                               cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y)
{
    tr_status st = TR_OK;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t what, d;
    if (*b->refused) return TR_OK;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &what));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                      &op));
    TR_TRY(tr_dnn_finalize(b, what));
    if (*b->refused) goto out;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &d));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, what));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y));
    TR_TRY(tr_dnn_finish(b, d));
out:
    return st;
}

tr_status tr_dnn_add_reshape(tr_dnn_builder *b, cudnnBackendDescriptor_t x,
                             cudnnBackendDescriptor_t y)
{
    tr_status st = TR_OK;
    cudnnBackendDescriptor_t d;
    if (*b->refused) return TR_OK;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &d));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x));
    TR_TRY(set_descriptor(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y));
    TR_TRY(tr_dnn_finish(b, d));
out:
    return st;
}

tr_status tr_dnn_graph_build(tr_cuda_dnn *dnn, const tr_dnn_problem *p, tr_dnn_graph *g,
                             bool *refused)
{
    tr_status st = TR_OK;
    tr_dnn_builder b = {.dnn = dnn, .g = g, .refused = refused, .p = p};
    *g = (tr_dnn_graph){0};
    *refused = false;
    TR_TRY(tr_dnn_is_attention(p) ? tr_dnn_attention(&b) : tr_dnn_convolution(&b));
    if (*refused) goto out;
    TR_TRY(tr_dnn_make(&b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->graph));
    TR_TRY(
        tr_dnn_set(g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle));
    TR_TRY(tr_dnn_set(g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      b.nops, b.ops));
    TR_TRY(tr_dnn_finalize(&b, g->graph));
out:
    if (st != TR_OK) tr_dnn_graph_close(g);
    return st;
}

void tr_dnn_graph_close(tr_dnn_graph *g)
{
    while (g->n > 0) cudnnBackendDestroyDescriptor(g->all[--g->n]);
}

/* Ids are the places of tr_dnn_operands' addresses, from 1 on; numbers lie with the plan. */
tr_status tr_dnn_pack_open(const tr_dnn_plan *plan, const tr_dnn_operands *at,
                           cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    int64_t ids[TR_DNN_VIRTUAL], n = 0;
    void *pointers[TR_DNN_VIRTUAL], *of[TR_DNN_NUMBERS - 1];
    cudnnBackendDescriptor_t d = NULL;
    memcpy(of, at, sizeof of);
    for (int64_t id = 1; id < TR_DNN_NUMBERS; id++)
        if (of[id - 1]) ids[n] = id, pointers[n++] = of[id - 1];
    for (int64_t id = TR_DNN_NUMBERS; id < TR_DNN_VIRTUAL; id++)
        if (tr_dnn_attention_reads(&plan->problem, id))
            ids[n] = id, pointers[n++] = (void *)&plan->numbers[id - TR_DNN_NUMBERS];
    TR_DNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers));
    TR_TRY(
        tr_dnn_set(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &at->workspace));
    TR_DNN_TRY(cudnnBackendFinalize(d));
out:
    if (st != TR_OK) {
        if (d) cudnnBackendDestroyDescriptor(d);
        return st;
    }
    *out = d;
    return TR_OK;
}
