/* Attention and rotary embeddings in models and graphs: shapes, which input is one of ids,
 * operations counted, what a train graph keeps, recomputation, errors. */
#include "tests/unit/graph/models.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/graph/ops.h"

#define HEAD "    - flatten\n    - linear: {out: 3}\n  loss: cross_entropy\n"
#define ROWS "  input: [6, 24]\n  layers:\n"
#define TWO  "  inputs: {x: [6, 24], n: [1]}\n  layers:\n"

static void shapes_and_ids(void **state)
{
    (void)state;
    test_model t = test_model_open(ROWS "    - attention: {heads: 4, kv_heads: 1}\n" HEAD);
    assert_int_equal(t.model->layers[0].output.dims[0], 6);
    assert_int_equal(t.model->layers[0].output.dims[1], 16); /* 24 / (4 + 2) * 4 */
    test_model_close(&t);
    t = test_model_open("  inputs: {q: [9, 24], k: [5, 12], v: [5, 12], n: [1]}\n  layers:\n"
                        "    - attention: {heads: 4, kv_heads: 2, from: [q, k, v, n]}\n" HEAD);
    assert_int_equal(t.model->layers[0].output.dims[0], 9);
    assert_int_equal(t.model->layers[0].output.dims[1], 24);
    assert_int_equal(t.model->inputs[3].ids, 6); /* 0 to 5 keys */
    for (int i = 0; i < 3; i++) assert_int_equal(t.model->inputs[i].ids, 0);
    test_model_close(&t);
    t = test_model_open(ROWS "    - rotary: {heads: 3}\n" HEAD);
    assert_int_equal(((const tr_rotary_attrs *)t.model->layers[0].attrs)->dim, 8);
    test_model_close(&t);
}

static const tr_op *find(const tr_graph *g, const char *name, bool again)
{
    for (size_t i = 0; i < g->nops; i++)
        if (strcmp(tr_op_name(&g->ops[i]), name) == 0 && g->ops[i].recomputed == again)
            return &g->ops[i];
    return NULL;
}

static double flops_of(const char *layers, int mode, const char *op)
{
    test_model t = test_model_open(layers);
    const tr_graph_options o = {.batch = 5, .mode = mode, .ranks = 1, .passes = TR_PASSES_ALL};
    tr_graph *g = test_graph(t.model, &o);
    const double flops = tr_op_flops(g, find(g, op, false));
    tr_graph_close(g);
    test_model_close(&t);
    return flops;
}

/* Two products forward, five backward, of the pairs that are seen: 6 x 6, of causal ones 21, in a
 * window of 2 11. */
static void operations(void **state)
{
    (void)state;
    const double pair = 2.0 * 5 * 2 * 4; /* samples, heads, D */
    assert_true(flops_of(ROWS "    - attention: {heads: 2}\n" HEAD, TR_MODE_EVALUATE,
                         "attention") == 2 * 36 * pair);
    assert_true(flops_of(ROWS "    - attention: {heads: 2, causal: true}\n" HEAD, TR_MODE_EVALUATE,
                         "attention") == 2 * 21 * pair);
    assert_true(flops_of(ROWS "    - attention: {heads: 2, causal: true, window: 2}\n" HEAD,
                         TR_MODE_EVALUATE, "attention") == 2 * 11 * pair);
    assert_true(flops_of(ROWS "    - linear: {out: 24}\n"
                              "    - attention: {heads: 2, causal: true}\n" HEAD,
                         TR_MODE_TRAIN, "attention.grad") == 5 * 21 * pair);
}

/* A train graph keeps a number a row and nothing of queries x keys; others do not even that. What
 * is forgotten is computed again by the same op of the same layer: dropout's masks are a function
 * of these. */
static void graphs(void **state)
{
    (void)state;
    test_model t =
        test_model_open(TWO "    - linear: {out: 24, from: x, name: a}\n"
                            "    - attention: {heads: 2, dropout: 0.5, from: [a, n]}\n" HEAD);
    for (int mode = 0; mode < 3; mode++) {
        const tr_graph_options o = {.batch = 5,
                                    .mode = mode,
                                    .ranks = 1,
                                    .passes = TR_PASSES_ALL,
                                    .recompute = TR_RECOMPUTE_EVERY,
                                    .recompute_every = 2};
        tr_graph *g = test_graph(t.model, &o);
        const tr_op *op = find(g, "attention", false), *again = find(g, "attention", true);
        assert_non_null(op);
        assert_int_equal(op->in[3], g->inputs[1]);
        assert_int_equal(g->tensors[op->in[3]].dtype, TR_I32);
        assert_int_equal(op->out[1] >= 0, mode == TR_MODE_TRAIN);
        if (mode == TR_MODE_TRAIN) {
            assert_int_equal(g->tensors[op->out[1]].count, 5 * 2 * 6);
            assert_non_null(again);
            assert_int_equal(again->layer_index, op->layer_index);
            assert_ptr_equal(again->attrs, op->attrs);
        } else {
            assert_null(again);
        }
        tr_graph_close(g);
    }
    test_model_close(&t);
}

static void errors(void **state)
{
    (void)state;
    static const struct {
        const char *model, *text;
        tr_status st;
    } cases[] = {
        {ROWS "    - attention: {heads: 4, kv_heads: 3}\n" HEAD,
         "m.yaml:6:7: layer \"attention1\": kv_heads: 3 does not divide 4 heads", TR_CONFIG},
        {ROWS "    - attention: {heads: 2, dropout: 1}\n" HEAD,
         "m.yaml:6:7: layer \"attention1\": dropout: 1 is not below 1", TR_CONFIG},
        {ROWS "    - attention: {heads: 5}\n" HEAD,
         "m.yaml:6:7: layer \"attention1\": queries, keys and values: its input 1 is (6, 24), but "
         "it takes (positions, features) with features a multiple of 15",
         TR_SHAPE},
        {"  input: [24]\n  layers:\n    - attention: {heads: 2}\n    - linear: {out: 3}\n"
         "  loss: mse\n",
         "m.yaml:6:7: layer \"attention1\": queries, keys and values: its input 1 is (24), but it "
         "takes (positions, features) with features a multiple of 6",
         TR_SHAPE},
        {"  inputs: {q: [4, 24], k: [5, 12], v: [6, 12]}\n  layers:\n"
         "    - attention: {heads: 4, kv_heads: 2, from: [q, k, v]}\n" HEAD,
         "m.yaml:6:7: layer \"attention1\": its keys are (5, 12), but its values (6, 12)",
         TR_SHAPE},
        {"  inputs: {q: [4, 24], k: [5, 24]}\n  layers:\n"
         "    - attention: {heads: 4, kv_heads: 2, from: [q, k, k]}\n" HEAD,
         "m.yaml:6:7: layer \"attention1\": 4 heads of its queries (4, 24) have 6 values each, 2 "
         "of "
         "its keys (5, 24) 12",
         TR_SHAPE},
        {TWO "    - tanh: {from: n, name: t}\n    - attention: {heads: 2, from: [x, t]}\n" HEAD,
         "m.yaml:7:7: layer \"attention1\": it reads layer \"t\", but takes lengths, so one of "
         "the model's inputs",
         TR_CONFIG},
        {"  inputs: {x: [6, 24], n: [2]}\n  layers:\n    - attention: {heads: 2, from: [x, "
         "n]}\n" HEAD,
         "m.yaml:6:7: layer \"attention1\": lengths: its input 2 is (2), but it takes (1): how "
         "many "
         "keys a sample has",
         TR_SHAPE},
        {ROWS "    - rotary: {heads: 5}\n" HEAD,
         "m.yaml:6:7: layer \"rotary1\": heads: 5 does not divide the features of (6, 24)",
         TR_SHAPE},
        {ROWS "    - rotary: {heads: 8}\n" HEAD,
         "m.yaml:6:7: layer \"rotary1\": dim: expected an even number up to the 3 values of a "
         "head, "
         "not 3",
         TR_SHAPE},
        {ROWS "    - rotary: {heads: 2, dim: 14}\n" HEAD,
         "m.yaml:6:7: layer \"rotary1\": dim: expected an even number up to the 12 values of a "
         "head, not 14",
         TR_SHAPE},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        test_model_fails(cases[i].model, cases[i].st, cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_and_ids),
        cmocka_unit_test(operations),
        cmocka_unit_test(graphs),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
