/* A convolution problem as operations.
 *
 *   x, w -> convolution -> [+ bias] -> [+ residual] -> [activation] -> y
 *
 * A float32 result of 16-bit operands is written by an identity behind the convolution: no engine
 * takes a convolution of mixed types, but those that fuse may end in any type.
 *
 * The logical order of dimensions is N, C, H, W; strides say that they are stored channels-last.
 * The number of groups follows from the channels of x and w. */
#include "kernels/cuda/dnn/internal.h"

/* (n, c, h, w), stored channels-last. */
static tr_status tensor(tr_dnn_builder *b, int64_t id, cudnnDataType_t type, const int64_t dims[4],
                        cudnnBackendDescriptor_t *out)
{
    const int64_t c = dims[1], h = dims[2], w = dims[3];
    const tr_dnn_tensor t = {
        .id = id, .type = type, .dims = {dims[0], c, h, w}, .strides = {h * w * c, 1, w * c, c}};
    return tr_dnn_add_tensor(b, &t, out);
}

/* The result of the pass: x, w or y. `last`: as it is given; else a virtual one. */
static tr_status result(tr_dnn_builder *b, bool last, cudnnBackendDescriptor_t *out)
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
    return tensor(b, tr_dnn_virtual(b), CUDNN_DATA_FLOAT, dims, out);
}

static tr_status geometry(tr_dnn_builder *b, cudnnBackendDescriptor_t *out)
{
    tr_status st = TR_OK;
    const tr_dnn_problem *p = b->p;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t spatial = 2, end[2] = {p->padding[0] + p->extra[0], p->padding[1] + p->extra[1]};
    cudnnBackendDescriptor_t d;
    TR_TRY(tr_dnn_make(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &d));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, p->dilation));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, p->stride));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, p->padding));
    TR_TRY(tr_dnn_set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, end));
    TR_TRY(tr_dnn_finalize(b, d));
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

static tr_status convolution(tr_dnn_builder *b, bool last, cudnnBackendDescriptor_t *out)
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
    TR_TRY(tr_dnn_make(b, n->type, &d));
    TR_TRY(tr_dnn_set(d, n->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &conv));
    TR_TRY(tr_dnn_set(d, n->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x));
    TR_TRY(tr_dnn_set(d, n->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w));
    TR_TRY(tr_dnn_set(d, n->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y));
    TR_TRY(tr_dnn_set(d, n->alpha, CUDNN_TYPE_FLOAT, 1, &one));
    TR_TRY(tr_dnn_set(d, n->beta, CUDNN_TYPE_FLOAT, 1, &zero));
    TR_TRY(tr_dnn_finish(b, d));
out:
    return st;
}

/* *at becomes mode(*at[, operand]). */
static tr_status pointwise(tr_dnn_builder *b, cudnnPointwiseMode_t mode,
                           cudnnBackendDescriptor_t operand, bool last,
                           cudnnBackendDescriptor_t *at)
{
    tr_status st = TR_OK;
    tr_dnn_pointwise o = {.mode = mode, .math = CUDNN_DATA_FLOAT, .x = *at, .b = operand};
    TR_TRY(result(b, last, &o.y));
    TR_TRY(tr_dnn_add_pointwise(b, &o));
    *at = o.y;
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

tr_status tr_dnn_convolution(tr_dnn_builder *b)
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
