/* Op lists of small models, word for word: before and after each pass. tr_graph_print explains
 * itself in the room's README. */
#include <math.h>

#include "runtime/graph/facts.h"
#include "tests/unit/graph/models.h"

#define BLOCK                                                                                      \
    "  input: [2, 4, 4]\n  layers:\n"                                                              \
    "    - conv2d: {out: 2, kernel: 1, bias: false}\n"                                             \
    "    - batchnorm\n    - relu\n"                                                                \
    "    - residual: {body: [{conv2d: {out: 2, kernel: 1}}, batchnorm]}\n"                         \
    "    - relu\n    - global_avgpool\n    - flatten\n    - linear: {out: 3}\n"                    \
    "  loss: cross_entropy\n"
#define MLP                                                                                        \
    "  input: [4]\n  layers:\n    - linear: {out: 5}\n    - relu\n    - linear: {out: 5}\n"        \
    "    - tanh\n    - linear: {out: 3}\n  loss: cross_entropy\n"

static void test_mlp_plain(void **state)
{
    (void)state;
    test_graph_is(
        MLP, &(tr_graph_options){.batch = 2, .mode = TR_MODE_TRAIN},
        "linear input linear1.weight linear1.bias -> linear1(2,5)\n"
        "relu linear1 -> relu1(2,5)!\n"
        "linear relu1 linear2.weight linear2.bias -> linear2(2,5)\n"
        "tanh linear2 -> tanh1(2,5)!\n"
        "linear tanh1 linear3.weight linear3.bias -> linear3(2,3)\n"
        "cross_entropy linear3 target -> d.linear3.1(2,3)\n"
        "linear.grad_weight tanh1 d.linear3.1 -> d.linear3.weight(3,5) d.linear3.bias(3)\n"
        "linear.grad_input d.linear3.1 linear3.weight -> d.tanh1.1(2,5)\n"
        "tanh.grad d.tanh1.1 tanh1 -> d.linear2.1(2,5)\n"
        "linear.grad_weight relu1 d.linear2.1 -> d.linear2.weight(5,5) d.linear2.bias(5)\n"
        "linear.grad_input d.linear2.1 linear2.weight -> d.relu1.1(2,5)\n"
        "relu.grad d.relu1.1 relu1 -> d.linear1.1(2,5)\n"
        "linear.grad_weight input d.linear1.1 -> d.linear1.weight(5,4) d.linear1.bias(5) bucket "
        "0\n");
}

static void test_mlp_fused(void **state)
{
    (void)state;
    test_graph_is(
        MLP, &(tr_graph_options){.batch = 2, .mode = TR_MODE_TRAIN, .passes = TR_PASSES_ALL},
        "linear+relu input linear1.weight linear1.bias -> relu1(2,5)!\n"
        "linear relu1 linear2.weight linear2.bias -> linear2(2,5)!\n"
        "tanh linear2 -> tanh1(2,5)!@linear2\n"
        "linear tanh1 linear3.weight linear3.bias -> linear3(2,3)\n"
        "cross_entropy linear3 target -> d.linear3.1(2,3)@linear3\n"
        "linear.grad_weight tanh1 d.linear3.1 -> d.linear3.weight(3,5) d.linear3.bias(3)\n"
        "linear.grad_input d.linear3.1 linear3.weight -> d.tanh1.1(2,5)\n"
        "tanh.grad d.tanh1.1 tanh1 -> d.linear2.1(2,5)@d.tanh1.1\n"
        "linear.grad_weight relu1 d.linear2.1 -> d.linear2.weight(5,5) d.linear2.bias(5)\n"
        "linear.grad_input d.linear2.1 linear2.weight -> d.relu1.1(2,5)\n"
        "relu.grad d.relu1.1 relu1 -> d.linear1.1(2,5)@d.relu1.1\n"
        "linear.grad_weight input d.linear1.1 -> d.linear1.weight(5,4) d.linear1.bias(5) bucket "
        "0\n");
}

/* Logits of rows are not stored twice either: their gradient lies in their bytes. */
static void test_rows_fused(void **state)
{
    (void)state;
    test_graph_is(
        "  input: [6]\n  layers:\n    - embedding: {num: 9, dim: 5}\n    - linear: {out: 9}\n"
        "  loss: cross_entropy\n",
        &(tr_graph_options){.batch = 2, .mode = TR_MODE_TRAIN, .passes = TR_PASSES_ALL},
        "embedding input embedding1.weight -> embedding1(2,6,5)!\n"
        "linear embedding1 linear1.weight linear1.bias -> linear1(2,6,9)\n"
        "cross_entropy linear1 target -> d.linear1.1(2,6,9)@linear1\n"
        "linear.grad_weight embedding1 d.linear1.1 -> d.linear1.weight(9,5) d.linear1.bias(9)\n"
        "linear.grad_input d.linear1.1 linear1.weight -> d.embedding1.1(2,6,5)\n"
        "embedding.grad d.embedding1.1 input -> d.embedding1.weight(9,5) bucket 0\n");
}

static void test_mlp_eval(void **state)
{
    (void)state;
    test_graph_is(MLP, &(tr_graph_options){.batch = 2, .passes = TR_PASSES_ALL},
                  "linear+relu input linear1.weight linear1.bias -> relu1(2,5)\n"
                  "linear+tanh relu1 linear2.weight linear2.bias -> tanh1(2,5)\n"
                  "linear tanh1 linear3.weight linear3.bias -> linear3(2,3)\n"
                  "cross_entropy linear3 target -> -\n");
}

static void test_mlp_recompute_every(void **state)
{
    (void)state;
    test_graph_is(
        MLP,
        &(tr_graph_options){.batch = 2,
                            .mode = TR_MODE_TRAIN,
                            .passes = TR_PASSES_ALL,
                            .recompute = TR_RECOMPUTE_EVERY,
                            .recompute_every = 4},
        "linear+relu input linear1.weight linear1.bias -> relu1(2,5)\n"
        "linear relu1 linear2.weight linear2.bias -> linear2(2,5)!\n"
        "tanh linear2 -> tanh1(2,5)!@linear2\n"
        "linear tanh1 linear3.weight linear3.bias -> linear3(2,3)\n"
        "cross_entropy linear3 target -> d.linear3.1(2,3)@linear3\n"
        "linear.grad_weight tanh1 d.linear3.1 -> d.linear3.weight(3,5) d.linear3.bias(3)\n"
        "linear.grad_input d.linear3.1 linear3.weight -> d.tanh1.1(2,5)\n"
        "tanh.grad d.tanh1.1 tanh1 -> d.linear2.1(2,5)@d.tanh1.1\n"
        "linear+relu input linear1.weight linear1.bias -> relu1.again(2,5) again\n"
        "linear.grad_weight relu1.again d.linear2.1 -> d.linear2.weight(5,5) d.linear2.bias(5)\n"
        "linear.grad_input d.linear2.1 linear2.weight -> d.relu1.1(2,5)\n"
        "relu.grad d.relu1.1 relu1.again -> d.linear1.1(2,5)@d.relu1.1\n"
        "linear.grad_weight input d.linear1.1 -> d.linear1.weight(5,4) d.linear1.bias(5) bucket "
        "0\n");
}

static void test_block_plain(void **state)
{
    (void)state;
    test_graph_is(
        BLOCK, &(tr_graph_options){.batch = 2, .mode = TR_MODE_TRAIN},
        "conv2d input conv2d1.weight - - -> conv2d1(2,2,4,4)!\n"
        "batchnorm.stats conv2d1 -> batchnorm1.stats(5)!\n"
        "batchnorm conv2d1 batchnorm1.weight batchnorm1.bias batchnorm1.stats "
        "batchnorm1.running_mean batchnorm1.running_var - -> batchnorm1(2,2,4,4)\n"
        "relu batchnorm1 -> relu1(2,2,4,4)!\n"
        "conv2d relu1 conv2d2.weight conv2d2.bias - -> conv2d2(2,2,4,4)!\n"
        "batchnorm.stats conv2d2 -> batchnorm2.stats(5)!\n"
        "batchnorm conv2d2 batchnorm2.weight batchnorm2.bias batchnorm2.stats "
        "batchnorm2.running_mean batchnorm2.running_var - -> batchnorm2(2,2,4,4)\n"
        "add batchnorm2 relu1 -> residual1(2,2,4,4)\n"
        "relu residual1 -> relu2(2,2,4,4)!\n"
        "global_avgpool relu2 -> global_avgpool1(2,2,1,1)\n"
        "flatten global_avgpool1 -> flatten1(2,2)!\n"
        "linear flatten1 linear1.weight linear1.bias -> linear1(2,3)\n"
        "cross_entropy linear1 target -> d.linear1.1(2,3)\n"
        "linear.grad_weight flatten1 d.linear1.1 -> d.linear1.weight(3,2) d.linear1.bias(3)\n"
        "linear.grad_input d.linear1.1 linear1.weight -> d.flatten1.1(2,2)\n"
        "flatten.grad d.flatten1.1 -> d.global_avgpool1.1(2,2,1,1)\n"
        "global_avgpool.grad d.global_avgpool1.1 -> d.relu2.1(2,2,4,4)\n"
        "relu.grad d.relu2.1 relu2 -> d.residual1.1(2,2,4,4)\n"
        "batchnorm.grad_stats d.residual1.1 conv2d2 batchnorm2.stats batchnorm2.weight - - -> "
        "batchnorm2.dz(2,2,4,4)@d.residual1.1 batchnorm2.sums(4) d.batchnorm2.weight(2) "
        "d.batchnorm2.bias(2)\n"
        "batchnorm.grad_input batchnorm2.dz conv2d2 batchnorm2.stats batchnorm2.weight "
        "batchnorm2.sums -> d.conv2d2.1(2,2,4,4)\n"
        "conv2d.grad_weight relu1 d.conv2d2.1 -> d.conv2d2.weight(2,2,1,1) d.conv2d2.bias(2)\n"
        "conv2d.grad_input d.conv2d2.1 conv2d2.weight -> d.relu1.2(2,2,4,4)\n"
        "add d.residual1.1 d.relu1.2 -> d.relu1.sum(2,2,4,4)\n"
        "relu.grad d.relu1.sum relu1 -> d.batchnorm1.1(2,2,4,4)\n"
        "batchnorm.grad_stats d.batchnorm1.1 conv2d1 batchnorm1.stats batchnorm1.weight - - -> "
        "batchnorm1.dz(2,2,4,4)@d.batchnorm1.1 batchnorm1.sums(4) d.batchnorm1.weight(2) "
        "d.batchnorm1.bias(2)\n"
        "batchnorm.grad_input batchnorm1.dz conv2d1 batchnorm1.stats batchnorm1.weight "
        "batchnorm1.sums -> d.conv2d1.1(2,2,4,4)\n"
        "conv2d.grad_weight input d.conv2d1.1 -> d.conv2d1.weight(2,2,1,1) - bucket 0\n");
}

static void test_block_fused(void **state)
{
    (void)state;
    test_graph_is(
        BLOCK, &(tr_graph_options){.batch = 2, .mode = TR_MODE_TRAIN, .passes = TR_PASSES_ALL},
        "conv2d input conv2d1.weight - - -> conv2d1(2,2,4,4)!\n"
        "batchnorm.stats conv2d1 -> batchnorm1.stats(5)!\n"
        "batchnorm+relu conv2d1 batchnorm1.weight batchnorm1.bias batchnorm1.stats "
        "batchnorm1.running_mean batchnorm1.running_var - -> relu1(2,2,4,4)!\n"
        "conv2d relu1 conv2d2.weight conv2d2.bias - -> conv2d2(2,2,4,4)!\n"
        "batchnorm.stats conv2d2 -> batchnorm2.stats(5)!\n"
        "batchnorm+relu conv2d2 batchnorm2.weight batchnorm2.bias batchnorm2.stats "
        "batchnorm2.running_mean batchnorm2.running_var relu1 -> relu2(2,2,4,4)!\n"
        "global_avgpool relu2 -> global_avgpool1(2,2,1,1)!\n"
        "flatten global_avgpool1 -> flatten1(2,2)!@global_avgpool1\n"
        "linear flatten1 linear1.weight linear1.bias -> linear1(2,3)\n"
        "cross_entropy linear1 target -> d.linear1.1(2,3)@linear1\n"
        "linear.grad_weight flatten1 d.linear1.1 -> d.linear1.weight(3,2) d.linear1.bias(3)\n"
        "linear.grad_input d.linear1.1 linear1.weight -> d.flatten1.1(2,2)\n"
        "flatten.grad d.flatten1.1 -> d.global_avgpool1.1(2,2,1,1)@d.flatten1.1\n"
        "global_avgpool.grad d.global_avgpool1.1 -> d.relu2.1(2,2,4,4)\n"
        "batchnorm.grad_stats d.relu2.1 conv2d2 batchnorm2.stats batchnorm2.weight relu2 - -> "
        "batchnorm2.dz(2,2,4,4)@d.relu2.1 batchnorm2.sums(4) d.batchnorm2.weight(2) "
        "d.batchnorm2.bias(2)\n"
        "batchnorm.grad_input batchnorm2.dz conv2d2 batchnorm2.stats batchnorm2.weight "
        "batchnorm2.sums -> d.conv2d2.1(2,2,4,4)\n"
        "conv2d.grad_weight relu1 d.conv2d2.1 -> d.conv2d2.weight(2,2,1,1) d.conv2d2.bias(2)\n"
        "conv2d.grad_input d.conv2d2.1 conv2d2.weight -> d.relu1.2(2,2,4,4)\n"
        "batchnorm.grad_stats batchnorm2.dz conv2d1 batchnorm1.stats batchnorm1.weight relu1 "
        "d.relu1.2 -> batchnorm1.dz(2,2,4,4)@d.relu2.1 batchnorm1.sums(4) d.batchnorm1.weight(2) "
        "d.batchnorm1.bias(2)\n"
        "batchnorm.grad_input batchnorm1.dz conv2d1 batchnorm1.stats batchnorm1.weight "
        "batchnorm1.sums -> d.conv2d1.1(2,2,4,4)@d.relu2.1\n"
        "conv2d.grad_weight input d.conv2d1.1 -> d.conv2d1.weight(2,2,1,1) - bucket 0\n");
}

static void test_block_recompute(void **state)
{
    (void)state;
    test_graph_is(
        BLOCK,
        &(tr_graph_options){.batch = 2,
                            .mode = TR_MODE_TRAIN,
                            .passes = TR_PASSES_ALL,
                            .recompute = TR_RECOMPUTE_BLOCKS},
        "conv2d input conv2d1.weight - - -> conv2d1(2,2,4,4)!\n"
        "batchnorm.stats conv2d1 -> batchnorm1.stats(5)!\n"
        "batchnorm+relu conv2d1 batchnorm1.weight batchnorm1.bias batchnorm1.stats "
        "batchnorm1.running_mean batchnorm1.running_var - -> relu1(2,2,4,4)!\n"
        "conv2d relu1 conv2d2.weight conv2d2.bias - -> conv2d2(2,2,4,4)\n"
        "batchnorm.stats conv2d2 -> batchnorm2.stats(5)!\n"
        "batchnorm+relu conv2d2 batchnorm2.weight batchnorm2.bias batchnorm2.stats "
        "batchnorm2.running_mean batchnorm2.running_var relu1 -> relu2(2,2,4,4)!\n"
        "global_avgpool relu2 -> global_avgpool1(2,2,1,1)!\n"
        "flatten global_avgpool1 -> flatten1(2,2)!@global_avgpool1\n"
        "linear flatten1 linear1.weight linear1.bias -> linear1(2,3)\n"
        "cross_entropy linear1 target -> d.linear1.1(2,3)@linear1\n"
        "linear.grad_weight flatten1 d.linear1.1 -> d.linear1.weight(3,2) d.linear1.bias(3)\n"
        "linear.grad_input d.linear1.1 linear1.weight -> d.flatten1.1(2,2)\n"
        "flatten.grad d.flatten1.1 -> d.global_avgpool1.1(2,2,1,1)@d.flatten1.1\n"
        "global_avgpool.grad d.global_avgpool1.1 -> d.relu2.1(2,2,4,4)\n"
        "conv2d relu1 conv2d2.weight conv2d2.bias - -> conv2d2.again(2,2,4,4) again\n"
        "batchnorm.grad_stats d.relu2.1 conv2d2.again batchnorm2.stats batchnorm2.weight relu2 - "
        "-> batchnorm2.dz(2,2,4,4)@d.relu2.1 batchnorm2.sums(4) d.batchnorm2.weight(2) "
        "d.batchnorm2.bias(2)\n"
        "batchnorm.grad_input batchnorm2.dz conv2d2.again batchnorm2.stats batchnorm2.weight "
        "batchnorm2.sums -> d.conv2d2.1(2,2,4,4)\n"
        "conv2d.grad_weight relu1 d.conv2d2.1 -> d.conv2d2.weight(2,2,1,1) d.conv2d2.bias(2)\n"
        "conv2d.grad_input d.conv2d2.1 conv2d2.weight -> d.relu1.2(2,2,4,4)\n"
        "batchnorm.grad_stats batchnorm2.dz conv2d1 batchnorm1.stats batchnorm1.weight relu1 "
        "d.relu1.2 -> batchnorm1.dz(2,2,4,4)@d.relu2.1 batchnorm1.sums(4) d.batchnorm1.weight(2) "
        "d.batchnorm1.bias(2)\n"
        "batchnorm.grad_input batchnorm1.dz conv2d1 batchnorm1.stats batchnorm1.weight "
        "batchnorm1.sums -> d.conv2d1.1(2,2,4,4)@d.relu2.1\n"
        "conv2d.grad_weight input d.conv2d1.1 -> d.conv2d1.weight(2,2,1,1) - bucket 0\n");
}

static void test_block_eval(void **state)
{
    (void)state;
    test_graph_is(BLOCK, &(tr_graph_options){.batch = 2, .passes = TR_PASSES_ALL},
                  "conv2d input conv2d1.weight - - -> conv2d1(2,2,4,4)\n"
                  "batchnorm.infer+relu conv2d1 batchnorm1.weight batchnorm1.bias "
                  "batchnorm1.running_mean batchnorm1.running_var - -> relu1(2,2,4,4)\n"
                  "conv2d relu1 conv2d2.weight conv2d2.bias - -> conv2d2(2,2,4,4)\n"
                  "batchnorm.infer+relu conv2d2 batchnorm2.weight batchnorm2.bias "
                  "batchnorm2.running_mean batchnorm2.running_var relu1 -> relu2(2,2,4,4)\n"
                  "global_avgpool relu2 -> global_avgpool1(2,2,1,1)\n"
                  "flatten global_avgpool1 -> flatten1(2,2)@global_avgpool1\n"
                  "linear flatten1 linear1.weight linear1.bias -> linear1(2,3)\n"
                  "cross_entropy linear1 target -> -\n");
}

static void test_infer(void **state)
{
    (void)state;
    test_graph_is(MLP,
                  &(tr_graph_options){.batch = 2, .mode = TR_MODE_INFER, .passes = TR_PASSES_ALL},
                  "linear+relu input linear1.weight linear1.bias -> relu1(2,5)\n"
                  "linear+tanh relu1 linear2.weight linear2.bias -> tanh1(2,5)\n"
                  "linear tanh1 linear3.weight linear3.bias -> linear3(2,3)\n");
    /* A wanted tensor is neither fused away nor written over; what no output needs is not there. */
    test_graph_is(MLP,
                  &(tr_graph_options){.batch = 2,
                                      .mode = TR_MODE_INFER,
                                      .passes = TR_PASSES_ALL,
                                      .outputs = (const char *const[]){"tanh1", "linear1"},
                                      .noutputs = 2},
                  "linear input linear1.weight linear1.bias -> linear1(2,5)\n"
                  "relu linear1 -> relu1(2,5)\n"
                  "linear+tanh relu1 linear2.weight linear2.bias -> tanh1(2,5)\n");
}

static void test_infer_outputs(void **state)
{
    (void)state;
    test_model t = test_model_open(MLP);
    const char *names[] = {"relu1", "linear3"};
    tr_graph_options o = {.batch = 2, .mode = TR_MODE_INFER, .outputs = names, .noutputs = 2};
    tr_graph *g = test_graph(t.model, &o);
    assert_int_equal(g->target, -1);
    assert_int_equal(g->noutputs, 2);
    assert_string_equal(g->tensors[g->outputs[0]].name, "relu1");
    assert_int_equal(g->outputs[1], g->logits);
    tr_graph_close(g);
    o.noutputs = 1;
    o.passes = TR_PASS_IS(TR_PASS_UNREAD);
    g = test_graph(t.model, &o);
    assert_int_equal(g->logits, -1);
    assert_int_equal(g->found[TR_PASS_UNREAD], 3);
    assert_int_equal(g->nops, 2);
    tr_graph_close(g);
    names[0] = "relu7";
    assert_int_equal(tr_graph_open(t.model, &o, &g), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "the model has no layer \"relu7\"");
    test_model_close(&t);
}

static void test_block_empty(void **state)
{
    (void)state;
    test_graph_is(BLOCK,
                  &(tr_graph_options){.batch = 0,
                                      .mode = TR_MODE_TRAIN,
                                      .passes = TR_PASSES_ALL,
                                      .sync_batchnorm = true,
                                      .ranks = 2},
                  "batchnorm.stats conv2d1 -> batchnorm1.stats(5)\n"
                  "batchnorm.merge batchnorm1.stats -> batchnorm1.merged(5)!\n"
                  "batchnorm+relu conv2d1 batchnorm1.weight batchnorm1.bias batchnorm1.merged "
                  "batchnorm1.running_mean batchnorm1.running_var - -> relu1(0,2,4,4)!\n"
                  "batchnorm.stats conv2d2 -> batchnorm2.stats(5)\n"
                  "batchnorm.merge batchnorm2.stats -> batchnorm2.merged(5)!\n"
                  "batchnorm+relu conv2d2 batchnorm2.weight batchnorm2.bias batchnorm2.merged "
                  "batchnorm2.running_mean batchnorm2.running_var relu1 -> relu2(0,2,4,4)!\n"
                  "batchnorm.grad_stats d.relu2.1 conv2d2 batchnorm2.merged batchnorm2.weight "
                  "relu2 - -> batchnorm2.dz(0,2,4,4)@d.relu2.1 batchnorm2.sums(4) "
                  "d.batchnorm2.weight(2) d.batchnorm2.bias(2)\n"
                  "batchnorm.grad_merge batchnorm2.sums -> batchnorm2.merged_sums(4)\n"
                  "batchnorm.grad_stats batchnorm2.dz conv2d1 batchnorm1.merged batchnorm1.weight "
                  "relu1 d.relu1.2 -> batchnorm1.dz(0,2,4,4)@d.relu2.1 batchnorm1.sums(4) "
                  "d.batchnorm1.weight(2) d.batchnorm1.bias(2)\n"
                  "batchnorm.grad_merge batchnorm1.sums -> batchnorm1.merged_sums(4)\n");
}

/* What is counted for a convolution, and what of it is not with zeros around its input. */
static void test_padding(void **state)
{
    (void)state;
    static const struct {
        const char *input, *layer;
        double part;
    } cases[] = {
        {"[2, 8, 8]", "conv2d: {out: 3, kernel: 3}", 1},
        {"[2, 8, 8]", "conv2d: {out: 3, kernel: 3, padding: 1}", 22.0 * 22 / (24 * 24)},
        {"[2, 4, 6]", "conv2d: {out: 3, kernel: [3, 5], padding: [1, 2]}", 10.0 * 24 / (12 * 30)},
        {"[2, 7, 7]", "conv2d: {out: 4, kernel: 3, padding: 1, stride: 2, groups: 2}",
         10.0 * 10 / (12 * 12)},
        {"[2, 8, 8]", "conv2d: {out: 3, kernel: 3, padding: 2, dilation: 2}",
         20.0 * 20 / (24 * 24)},
        {"[2, 5, 5]", "conv2d: {out: 3, kernel: 2, padding: same}", 9.0 * 9 / (10 * 10)},
        {"[2, 10]", "conv1d: {out: 3, kernel: 3, padding: 1}", 28.0 / 30},
        {"[2, 4, 4]", "conv_transpose2d: {out: 3, kernel: 3, padding: 1}", 1},
        {"[7]", "linear: {out: 3}", 1},
        {"[7]", "relu", 1},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char *text =
            tr_sprintf("  input: %s\n  layers:\n    - %s\n    - flatten\n    - linear: {out: 2}\n"
                       "  loss: mse\n",
                       cases[i].input, cases[i].layer);
        test_model m = test_model_open(text);
        const double part = tr_layer_unpadded(m.model, &m.model->layers[0]);
        if (!(fabs(part - cases[i].part) < 1e-12)) fail_msg("%s: %g", cases[i].layer, part);
        test_model_close(&m);
        tr_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp_plain),
        cmocka_unit_test(test_mlp_fused),
        cmocka_unit_test(test_rows_fused),
        cmocka_unit_test(test_mlp_eval),
        cmocka_unit_test(test_mlp_recompute_every),
        cmocka_unit_test(test_block_plain),
        cmocka_unit_test(test_block_fused),
        cmocka_unit_test(test_block_recompute),
        cmocka_unit_test(test_block_eval),
        cmocka_unit_test(test_block_empty),
        cmocka_unit_test(test_infer),
        cmocka_unit_test(test_infer_outputs),
        cmocka_unit_test(test_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
