/* Convolutions and linear layers of 8-bit values: int8/ computes them; here are their shapes, and
 * the packed weights with what turns sums into values. */
#include "kernels/cpu/int8/int8.h"

#include <string.h>

enum { X, WEIGHT, SCALE, BIAS, RESIDUAL };

typedef struct {
    tr_kernel base;
    tr_binding b;
    tr_int8_level level;
    tr_int8_plan plan;
    tr_int8_run run;
    /* What the packed weights depend on. The bias is the layer's. */
    struct {
        char what[8];
        int32_t layer;
        float x_scale, y_scale;
    } format;
} kernel;

static tr_status bind(tr_kernel *base, const tr_binding *b)
{
    kernel *k = (kernel *)base;
    k->b = *b;
    k->run.x = b->in[X];
    k->run.residual = b->in[RESIDUAL];
    k->run.y = b->out[0];
    k->run.workspace = b->workspace;
    k->run.w = tr_int8_parts(&k->plan, b->packed[0]);
    return TR_OK;
}

static tr_status rebind(tr_kernel *base, int operand, void *data)
{
    kernel *k = (kernel *)base;
    tr_binding b = k->b;
    b.in[operand] = data;
    return bind(base, &b);
}

static tr_status pack(tr_kernel *base, int which)
{
    const kernel *k = (const kernel *)base;
    tr_int8_pack(&k->plan, k->b.in[WEIGHT], k->b.in[SCALE], k->b.in[BIAS], k->format.x_scale,
                 k->format.y_scale, k->b.packed[which]);
    return TR_OK;
}

static tr_status unpack(tr_kernel *base, int which)
{
    const kernel *k = (const kernel *)base;
    tr_int8_unpack(&k->plan, k->b.packed[which], k->b.in[SCALE], k->b.in[WEIGHT]);
    return TR_OK;
}

static tr_status run(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    tr_int8_product(k->level, &k->plan, &k->run);
    return TR_OK;
}

static void close_kernel(tr_kernel *base)
{
    tr_free(base);
}

static tr_int8_shape shape_of(const tr_graph *g, const tr_op *op)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *y = &g->tensors[op->out[0]],
                    *weight = &g->tensors[op->in[WEIGHT]];
    if (tr_op_place(op->def) == TR_OP_linear_int8) {
        const int64_t rows = (int64_t)x->count / weight->dims[1];
        return (tr_int8_shape){.images = 1,
                               .groups = 1,
                               .C = weight->dims[1],
                               .H = 1,
                               .W = rows,
                               .O = weight->dims[0],
                               .OH = 1,
                               .OW = rows,
                               .kernel = {1, 1},
                               .stride = {1, 1},
                               .dilation = {1, 1}};
    }
    const tr_conv2d_attrs *a = op->attrs;
    tr_int8_shape s = {.images = x->dims[0],
                       .groups = a->groups,
                       .C = x->dims[1] / a->groups,
                       .H = x->dims[2],
                       .W = x->dims[3],
                       .O = a->out / a->groups,
                       .OH = y->dims[2],
                       .OW = y->dims[3]};
    memcpy(s.kernel, a->kernel, sizeof s.kernel);
    memcpy(s.stride, a->stride, sizeof s.stride);
    memcpy(s.padding, a->padding, sizeof s.padding);
    memcpy(s.extra, a->extra, sizeof s.extra);
    memcpy(s.dilation, a->dilation, sizeof s.dilation);
    return s;
}

static bool eight_bits(const tr_tensor *t)
{
    return t->dtype == TR_U8 || t->dtype == TR_I8;
}

tr_status tr_cpu_product_int8(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *x = &g->tensors[op->in[X]], *y = &g->tensors[op->out[0]];
    const tr_tensor *residual = op->in[RESIDUAL] >= 0 ? &g->tensors[op->in[RESIDUAL]] : NULL;
    const bool small = eight_bits(y);
    kernel *k = TR_NEW(TR_MEM_OTHER, kernel);
    TR_HAVE(k);
    const tr_int8_shape s = shape_of(g, op);
    TR_NEED(eight_bits(x) && (!residual || eight_bits(residual)) &&
                tr_int8_plan_of(&s, x->dtype == TR_I8, &k->plan),
            TR_UNSUPPORTED, "a product of these sizes has no kernel of 8 bits");
    k->level = tr_int8_level_of(cpu);
    k->run =
        (tr_int8_run){.residual_signed = residual && residual->dtype == TR_I8,
                      .residual_scale = residual ? residual->scale / (small ? y->scale : 1) : 0,
                      .relu = op->act == TR_ACT_RELU,
                      .type = y->dtype,
                      .least = y->dtype == TR_U8 ? 0 : -128,
                      .most = y->dtype == TR_U8 ? 255 : 127,
                      .threads = cpu->threads};
    memcpy(k->format.what, "product", sizeof k->format.what);
    k->format.layer = op->layer_index;
    k->format.x_scale = x->scale;
    k->format.y_scale = small ? y->scale : 1;
    k->base = (tr_kernel){.impl = tr_int8_level_name(k->level),
                          .workspace = (size_t)cpu->threads * k->plan.image_bytes,
                          .npacked = 1,
                          .packed = {{.param = g->tensors[op->in[WEIGHT]].index,
                                      .nbytes = k->plan.packed_bytes,
                                      .format = &k->format,
                                      .format_size = sizeof k->format}},
                          .bind = bind,
                          .pack = pack,
                          .unpack = unpack,
                          .run = run,
                          .close = close_kernel,
                          .rebind = rebind};
    *out = &k->base;
out:
    if (st != TR_OK) tr_free(k);
    return st;
}
