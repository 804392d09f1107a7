/* Products and convolutions alone, each on arrays of its own, at the formats that oneDNN likes
 * best. */
#include <string.h>

#include "tests/bench/floor.h"

void *bench_numbers(size_t nbytes)
{
    uint16_t *v = tr_alloc(TR_MEM_OTHER, nbytes, 1);
    for (size_t i = 0; v && i < nbytes / 2; i++)
        v[i] = (uint16_t)(0x3c00 + i * 2654435761u % 0x180 + (i / 7 % 2 ? 0x8000 : 0));
    return v;
}

static tr_status add_argument(tr_cpu *team, bench_product *p, int arg)
{
    tr_status st = TR_OK;
    dnnl_memory_t m;
    const size_t size = tr_dnnl_arg_size(p->pd, arg);
    if (!size) return TR_OK;
    TR_NEED(p->nargs < BENCH_ARGS, TR_INTERNAL, "more than %d arguments", BENCH_ARGS);
    TR_HAVE(p->data[p->nargs] = bench_numbers(size));
    TR_DNNL(dnnl_memory_create(&m, dnnl_primitive_desc_query_md(p->pd, dnnl_query_exec_arg_md, arg),
                               team->engine, p->data[p->nargs]),
            "describe an argument");
    p->args[p->nargs++] = (dnnl_exec_arg_t){.arg = arg, .memory = m};
out:
    return st;
}

static tr_status finish(tr_cpu *team, bench_product *p, int first, int second, int result)
{
    tr_status st = TR_OK;
    TR_DNNL(dnnl_primitive_create(&p->primitive, p->pd), "generate code for a primitive");
    TR_TRY(add_argument(team, p, first));
    TR_TRY(add_argument(team, p, second));
    TR_TRY(add_argument(team, p, result));
    TR_TRY(add_argument(team, p, DNNL_ARG_SCRATCHPAD));
out:
    return st;
}

void bench_product_close(bench_product *p)
{
    for (int i = 0; i < p->nargs; i++) {
        dnnl_memory_destroy(p->args[i].memory);
        tr_free(p->data[i]);
    }
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->pd) dnnl_primitive_desc_destroy(p->pd);
}

static tr_dnnl_array any_matrix(int64_t rows, int64_t cols, tr_dtype type)
{
    return tr_dnnl_any(tr_dnnl_matrix(rows, cols, cols, 1, type), type);
}

tr_status bench_matmul(tr_cpu *team, int64_t m, int64_t k, int64_t n, tr_dtype type, tr_dtype to,
                       bench_product *p)
{
    tr_status st;
    const tr_dnnl_array x = any_matrix(m, k, type), w = any_matrix(k, n, type),
                        y = any_matrix(m, n, to);
    TR_TRY(tr_dnnl_matmul(team, &x, &w, NULL, &y, &(tr_dnnl_post){0}, &p->pd));
    TR_TRY(finish(team, p, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST));
out:
    return st;
}

static tr_status open_linear(tr_cpu *team, const tr_graph *g, const tr_op *op, tr_dtype type,
                             bench_product *p)
{
    const tr_tensor *in = &g->tensors[op->in[0]], *other = &g->tensors[op->in[1]];
    const int64_t cols = in->dims[in->ndim - 1], rows = (int64_t)in->count / cols;
    if (!strcmp(tr_op_name(op), "linear.grad_weight")) {
        const tr_tensor *dw = &g->tensors[op->out[0]];
        return bench_matmul(team, dw->dims[0], rows, dw->dims[1], type, TR_F32, p);
    }
    const bool back = !strcmp(tr_op_name(op), "linear.grad_input");
    return bench_matmul(team, rows, cols, other->dims[back ? 1 : 0], type, type, p);
}

static tr_status open_conv(tr_cpu *team, const tr_graph *g, const tr_op *op, tr_dtype type,
                           bench_product *p)
{
    tr_status st;
    const char *name = tr_op_name(op);
    const tr_conv2d_attrs *a = op->attrs;
    const bool input = !strcmp(name, "conv2d.grad_input"),
               weight = !strcmp(name, "conv2d.grad_weight");
    const tr_tensor *x = &g->tensors[input ? op->out[0] : op->in[0]],
                    *y = &g->tensors[input    ? op->in[0]
                                     : weight ? op->in[1]
                                              : op->out[0]];
    const int64_t dims[] = {a->groups, a->out / a->groups, x->dims[1] / a->groups, a->kernel[0],
                            a->kernel[1]};
    const tr_dnnl_array plain =
        a->groups > 1 ? tr_dnnl_dense(5, dims, TR_F32) : tr_dnnl_dense(4, dims + 1, TR_F32);
    tr_dnnl_conv c = {.src = tr_dnnl_any(tr_dnnl_channels_last(x->dims, type), type),
                      .dst = tr_dnnl_any(tr_dnnl_channels_last(y->dims, type), type),
                      .weights = tr_dnnl_any(plain, type)};
    for (int i = 0; i < 2; i++) {
        c.stride[i] = a->stride[i];
        c.dilation[i] = a->dilation[i] - 1;
        c.padding[i] = a->padding[i];
        c.padding_end[i] = a->padding[i] + a->extra[i];
    }
    TR_TRY(tr_dnnl_convolution(team,
                               input    ? TR_CONV_GRAD_INPUT
                               : weight ? TR_CONV_GRAD_WEIGHT
                                        : TR_CONV_TRAIN,
                               &c, NULL, NULL, &p->pd));
    TR_TRY(finish(team, p, input ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC,
                  weight ? DNNL_ARG_DIFF_DST : DNNL_ARG_WEIGHTS,
                  input    ? DNNL_ARG_DIFF_SRC
                  : weight ? DNNL_ARG_DIFF_WEIGHTS
                           : DNNL_ARG_DST));
out:
    return st;
}

static tr_status open_recurrence(tr_cpu *team, const tr_graph *g, const tr_op *op, tr_dtype type,
                                 bench_product *p)
{
    const bool back = strstr(tr_op_name(op), ".grad") != NULL;
    const tr_tensor *y = &g->tensors[back ? op->in[1] : op->out[0]],
                    *w = &g->tensors[op->in[back ? 4 : 1]];
    const tr_status st =
        bench_matmul(team, y->dims[0], w->dims[!back], w->dims[back], type, type, p);
    p->times = y->dims[1] - 1;
    return st;
}

static bool named(const tr_op *op, const char *kind)
{
    return strncmp(tr_op_name(op), kind, strlen(kind)) == 0;
}

bool bench_is_product(const tr_op *op)
{
    return named(op, "linear") || named(op, "conv2d");
}

bool bench_recurs(const tr_op *op)
{
    return named(op, "lstm_layer") || named(op, "gru_layer");
}

tr_status bench_product_open(tr_cpu *team, const tr_graph *g, const tr_op *op, tr_dtype type,
                             bench_product *p)
{
    p->times = 1;
    if (bench_recurs(op)) return open_recurrence(team, g, op, type, p);
    return named(op, "linear") ? open_linear(team, g, op, type, p)
                               : open_conv(team, g, op, type, p);
}
