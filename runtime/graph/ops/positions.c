/* What tells the places of a sequence apart: a row of a table added to each, learned (as GPT-2's)
 * or of sines and cosines whose wavelengths go from 2 pi to 10000 * 2 pi (Vaswani et al. 2017). */
#include "runtime/graph/ops/registry.h"

#include <math.h>

static const char *const kinds[] = {"learned", "sinusoidal", NULL};
static const tr_field fields[] = {
    TR_CHOICE("kind", offsetof(tr_positions_attrs, kind), kinds, "learned",
              "the table: a parameter, or sines and cosines, which are not learned"),
    {0},
};

void tr_positions_table(size_t length, size_t width, float *out)
{
    for (size_t t = 0; t < length; t++)
        for (size_t f = 0; f < width; f++) {
            const double angle = (double)t * pow(10000.0, -(double)(f - f % 2) / (double)width);
            out[t * width + f] = (float)(f % 2 ? cos(angle) : sin(angle));
        }
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const tr_shape *x = &l->inputs[0];
    const tr_status st = tr_layer_rank(l, 2, 2, "(rows, features)");
    if (st != TR_OK) return st;
    l->output = *x;
    if (((const tr_positions_attrs *)l->attrs)->kind == TR_POSITIONS_SINUSOIDAL) return TR_OK;
    return tr_layer_param(mk, l,
                          &(tr_param_decl){.name = "weight",
                                           .ndim = 2,
                                           .dims = {x->dims[0], x->dims[1]},
                                           .init = TR_INIT_NORMAL,
                                           .by_row = true});
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const int x = tr_build_input(b, l, 0), y = tr_build_output(b, l), past = tr_build_past(b);
    const int weight = l->nparams > 0 ? tr_build_param(b, l, 0) : -1;
    tr_build_forward(b, l->def, l, past < 0 ? 2 : 3, (const int[]){x, weight, past}, TR_IDS(y));
    return y;
}

static int64_t most_rows(const tr_layer *l)
{
    return l->nparams > 0 ? l->inputs[0].dims[0] : 0;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]);
    tr_grad_pass(b, op->in[0], dy);
    if (tr_grad_learned(b, op->in[1]))
        tr_build_backward(b, &tr_def_positions_grad, op, TR_IDS(dy),
                          TR_IDS(tr_grad_param(b, op->in[1])));
}

static int64_t keeps(const tr_layer *l)
{
    (void)l;
    return 1;
}

const tr_op_def tr_def_positions = {
    .name = "positions",
    .example = "positions: {kind: sinusoidal}",
    .doc = "(rows, features): adds row `t` of a table to row `t` of each sample, so that what "
           "treats all rows alike can tell them apart. Parameter, of `learned`: weight (rows, "
           "features), initially normal with deviation 0.02, without weight decay.",
    .fields = fields,
    .attrs_size = sizeof(tr_positions_attrs),
    .learned = true,
    .min_in = 1,
    .max_in = 1,
    .infer = infer,
    .keeps = keeps,
    .rows = TR_ROWS_BEFORE,
    .most_rows = most_rows,
    .forward = forward,
    .gradient = gradient,
    .flops = tr_flops_elements,
    .share = TR_SHARE_FIRST};

const tr_op_def tr_def_positions_grad = {.name = "positions.grad", .flops = tr_flops_elements};
