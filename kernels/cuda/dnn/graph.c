/* A convolution problem as an operation graph of cuDNN's backend API.
 *
 *   x, w -> convolution -> [+ bias] -> [+ residual] -> [activation] -> y
 *
 * A float32 result of 16-bit operands is written by an identity behind the convolution: no engine
 * takes a convolution of mixed types, but those that fuse may end in any type.
 *
 * What lies between two operations is a virtual tensor, float32, that is never written to memory.
 * The logical order of dimensions is N, C, H, W; strides say that they are stored channels-last.
 * The number of groups follows from the channels of x and w. Source: NVIDIA cuDNN documentation,
 * "cudnn_graph Library", descriptor types. */
#include "kernels/cuda/dnn/internal.h"

tr_status tr_dnn_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    char call[64];
    const cudnnStatus_t s = cudnnBackendSetAttribute(d, name, type, n, values);
    if (s == CUDNN_STATUS_SUCCESS) return TR_OK;
    snprintf(call, sizeof call, "cudnnBackendSetAttribute(attribute %d)", (int)name);
    return tr_dnn_check(s, call);
}

/* What is being built: once refused, nothing more is added and everything returns TR_OK. */
typedef struct {
    tr_cuda_dnn *dnn;
    tr_dnn_graph *g;
    bool *refused;
    const tr_dnn_problem *p;
    int virtuals, nops;
    cudnnBackendDescriptor_t ops[4];
} builder;

static tr_status make(builder *b, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    *out = NULL;
    TR_NEED(b->g->n < TR_DNN_DESCRIPTORS, TR_INTERNAL,
            "too many descriptors in a convolution's graph");
    TR_DNN_TRY(cudnnBackendCreateDescriptor(type, &b->g->all[b->g->n]));
    *out = b->g->all[b->g->n++];
out:
    return st;
}

static tr_status finalize(builder *b, cudnnBackendDescriptor_t d)
{
    const cudnnStatus_t s = cudnnBackendFinalize(d);
    if (s != CUDNN_STATUS_SUCCESS && tr_dnn_unsupported(b->dnn, s, "cudnnBackendFinalize")) {
        *b->refused = true;
        return TR_OK;
    }
    return tr_dnn_check(s, "cudnnBackendFinalize");
}

/* (n, c, h, w), stored channels-last. */
static tr_status tensor(builder *b, int64_t id, cudnnDataType_t type, const int64_t dims[4],
                        cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    const int64_t c = dims[1], h = dims[2], w = dims[3], align = 16;
    const int64_t strides[4] = {h * w * c, 1, w * c, c};
    const bool inner = id >= TR_DNN_VIRTUAL;
    cudnnBackendDescriptor_t d;
    TR_TRY(make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
    if (inner) TR_TRY(tr_dnn_set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner));
    TR_TRY(finalize(b, d));
    *out = d;
out:
    return st;
}

/* The result of the pass: x, w or y. `last`: as it is given; else a virtual one. */
static tr_status result(builder *b, bool last, cudnnBackendDescriptor_t *out)
{
    const tr_dnn_problem *p = b->p;
    const int64_t x[4] = {p->batch, p->in, p->size[0], p->size[1]};
    const int64_t w[4] = {p->out, p->in / p->groups, p->kernel[0], p->kernel[1]};
    const int64_t y[4] = {p->batch, p->out, p->result[0], p->result[1]};
    const int64_t *dims = p->pass == TR_DNN_GRAD_INPUT ? x : p->pass == TR_DNN_GRAD_WEIGHT ? w : y;
    const int64_t id = p->pass == TR_DNN_GRAD_INPUT    ? TR_DNN_X
                       : p->pass == TR_DNN_GRAD_WEIGHT ? TR_DNN_W
                                                       : TR_DNN_Y;
    const int64_t type = id == TR_DNN_X   ? p->type
                         : id == TR_DNN_W ? p->weight_type
                                          : p->result_type;
    if (last) return tensor(b, id, tr_dnn_type(type), dims, out);
    return tensor(b, TR_DNN_VIRTUAL + b->virtuals++, CUDNN_DATA_FLOAT, dims, out);
}

static tr_status geometry(builder *b, cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    const tr_dnn_problem *p = b->p;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t spatial = 2, end[2] = {p->padding[0] + p->extra[0], p->padding[1] + p->extra[1]};
    cudnnBackendDescriptor_t d;
    TR_TRY(make(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, p->dilation));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, p->stride));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, p->padding));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, end));
    TR_TRY(finalize(b, d));
    *out = d;
out:
    return st;
}

/* Attribute names by pass: alpha, beta, geometry, x, w, y. */
typedef struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, x, w, y;
} names;

static const names passes[] = {
    [TR_DNN_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    [TR_DNN_GRAD_INPUT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    [TR_DNN_GRAD_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

static tr_status convolution(builder *b, bool last, cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    const tr_dnn_problem *p = b->p;
    const names *n = &passes[p->pass];
    const int64_t x_dims[4] = {p->batch, p->in, p->size[0], p->size[1]};
    const int64_t w_dims[4] = {p->out, p->in / p->groups, p->kernel[0], p->kernel[1]};
    const int64_t y_dims[4] = {p->batch, p->out, p->result[0], p->result[1]};
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t x, w, y, conv, d;
    TR_TRY(result(b, last, out));
    x = w = y = *out;
    if (p->pass != TR_DNN_GRAD_INPUT) TR_TRY(tensor(b, TR_DNN_X, tr_dnn_type(p->type), x_dims, &x));
    if (p->pass != TR_DNN_GRAD_WEIGHT)
        TR_TRY(tensor(b, TR_DNN_W, tr_dnn_type(p->weight_type), w_dims, &w));
    if (p->pass != TR_DNN_FORWARD)
        TR_TRY(tensor(b, TR_DNN_Y, tr_dnn_type(p->result_type), y_dims, &y));
    TR_TRY(geometry(b, &conv));
    if (*b->refused) goto out;
    TR_TRY(make(b, n->type, &d));
    TR_TRY(tr_dnn_set(d, n->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &conv));
    TR_TRY(tr_dnn_set(d, n->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x));
    TR_TRY(tr_dnn_set(d, n->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w));
    TR_TRY(tr_dnn_set(d, n->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y));
    TR_TRY(tr_dnn_set(d, n->alpha, CUDNN_TYPE_FLOAT, 1, &one));
    TR_TRY(tr_dnn_set(d, n->beta, CUDNN_TYPE_FLOAT, 1, &zero));
    TR_TRY(finalize(b, d));
    b->ops[b->nops++] = d;
out:
    return st;
}

/* *at becomes mode(*at[, operand]). */
static tr_status pointwise(builder *b, cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t operand,
                           bool last, cudnnBackendDescriptor_t *at)
{
    tr_status st = TR_OK;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t what, y, d;
    if (*b->refused) return TR_OK;
    TR_TRY(make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &what));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TR_TRY(tr_dnn_set(what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TR_TRY(finalize(b, what));
    TR_TRY(result(b, last, &y));
    if (*b->refused) goto out;
    TR_TRY(make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &what));
    TR_TRY(
        tr_dnn_set(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, at));
    if (operand)
        TR_TRY(tr_dnn_set(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                          &operand));
    TR_TRY(
        tr_dnn_set(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y));
    TR_TRY(finalize(b, d));
    b->ops[b->nops++] = d;
    *at = y;
out:
    return st;
}

static cudnnPointwiseMode_t activation(tr_act act)
{
    switch (act) {
    case TR_ACT_GELU:
        return CUDNN_POINTWISE_GELU_FWD;
    case TR_ACT_GELU_TANH:
        return CUDNN_POINTWISE_GELU_APPROX_TANH_FWD;
    case TR_ACT_SILU:
        return CUDNN_POINTWISE_SWISH_FWD; /* of beta 1, the default */
    case TR_ACT_SIGMOID:
        return CUDNN_POINTWISE_SIGMOID_FWD;
    case TR_ACT_TANH:
        return CUDNN_POINTWISE_TANH_FWD;
    default:
        return CUDNN_POINTWISE_IDENTITY;
    }
}

static tr_status operations(builder *b)
{
    tr_status st = TR_OK;
    const tr_dnn_problem *p = b->p;
    const bool mixed = p->type != p->weight_type || p->type != p->result_type;
    int left = (p->bias != 0) + (p->residual != 0) + (p->act != 0);
    const bool convert = mixed && left == 0;
    cudnnBackendDescriptor_t at, operand;
    TR_TRY(convolution(b, left == 0 && !convert, &at));
    if (p->bias) {
        const int64_t dims[4] = {1, p->out, 1, 1};
        TR_TRY(tensor(b, TR_DNN_BIAS, CUDNN_DATA_FLOAT, dims, &operand));
        TR_TRY(pointwise(b, CUDNN_POINTWISE_ADD, operand, --left == 0, &at));
    }
    if (p->residual) {
        const int64_t dims[4] = {p->batch, p->out, p->result[0], p->result[1]};
        TR_TRY(tensor(b, TR_DNN_RESIDUAL, tr_dnn_type(p->type), dims, &operand));
        TR_TRY(pointwise(b, CUDNN_POINTWISE_ADD, operand, --left == 0, &at));
    }
    if (p->act) TR_TRY(pointwise(b, activation((tr_act)p->act), NULL, true, &at));
    if (convert) TR_TRY(pointwise(b, CUDNN_POINTWISE_IDENTITY, NULL, true, &at));
out:
    return st;
}

tr_status tr_dnn_graph_build(tr_cuda_dnn *dnn, const tr_dnn_problem *p, tr_dnn_graph *g,
                             bool *refused)
{
    tr_status st = TR_OK;
    builder b = {.dnn = dnn, .g = g, .refused = refused, .p = p};
    *g = (tr_dnn_graph){0};
    *refused = false;
    TR_TRY(operations(&b));
    if (*refused) goto out;
    TR_TRY(make(&b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->graph));
    TR_TRY(
        tr_dnn_set(g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle));
    TR_TRY(tr_dnn_set(g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      b.nops, b.ops));
    TR_TRY(finalize(&b, g->graph));
out:
    if (st != TR_OK) tr_dnn_graph_close(g);
    return st;
}

void tr_dnn_graph_close(tr_dnn_graph *g)
{
    while (g->n > 0) cudnnBackendDestroyDescriptor(g->all[--g->n]);
}

tr_status tr_dnn_pack_open(const tr_dnn_operands *at, cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    int64_t ids[5] = {TR_DNN_X, TR_DNN_W, TR_DNN_Y}, n = 3;
    void *pointers[5] = {at->x, at->w, at->y};
    cudnnBackendDescriptor_t d = NULL;
    if (at->bias) ids[n] = TR_DNN_BIAS, pointers[n++] = at->bias;
    if (at->residual) ids[n] = TR_DNN_RESIDUAL, pointers[n++] = at->residual;
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
