/* Embeddings in models and graphs: which input is one of ids, shapes, initial values, errors, and
 * the ops of a graph in every precision. */
#include "tests/unit/graph/models.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define HEAD "    - flatten\n    - linear: {out: 3}\n  loss: cross_entropy\n"
#define ONE  "  input: [6]\n  layers:\n"

static void ids_and_shapes(void **state)
{
    (void)state;
    test_model t = test_model_open(ONE "    - embedding: {num: 11, dim: 4}\n" HEAD);
    const tr_model *m = t.model;
    assert_int_equal(m->inputs[0].ids, 11);
    assert_string_equal(m->params[0].layer, "embedding1");
    assert_string_equal(m->params[0].name, "weight");
    assert_int_equal(m->params[0].ndim, 2);
    assert_int_equal(m->params[0].dims[0], 11);
    assert_int_equal(m->params[0].dims[1], 4);
    assert_true(m->params[0].decay);
    assert_int_equal(m->params[1].dims[1], 24);
    test_model_close(&t);
    /* of several tables the smallest decides; other inputs have values */
    t = test_model_open("  inputs: {a: [2], b: [3]}\n  layers:\n"
                        "    - embedding: {num: 9, dim: 4, from: a, name: p}\n"
                        "    - embedding: {num: 5, dim: 4, from: a, name: q}\n"
                        "    - add: {from: [p, q]}\n    - flatten: {name: f}\n"
                        "    - linear: {out: 8, from: b, name: g}\n"
                        "    - add: {from: [f, g]}\n    - linear: {out: 3}\n"
                        "  loss: cross_entropy\n");
    assert_int_equal(t.model->inputs[0].ids, 5);
    assert_int_equal(t.model->inputs[1].ids, 0);
    test_model_close(&t);
}

/* PyTorch's: N(0, 1), unlike what model.init: normal gives, or of the deviation given. */
static void initial_values(void **state)
{
    (void)state;
    static const struct {
        const char *option;
        double std;
    } cases[] = {{"", 1}, {", std: 0.07", 0.07}, {", std: 3", 3}};
    for (size_t k = 0; k < TR_COUNT(cases); k++) {
        char *text =
            tr_sprintf("  init: normal\n" ONE "    - embedding: {num: 500, dim: 40%s}\n" HEAD,
                       cases[k].option);
        test_model t = test_model_open(text);
        const tr_model *m = t.model;
        float *flat = tr_alloc(TR_MEM_OTHER, m->flat_count, sizeof *flat);
        assert_non_null(flat);
        tr_model_init_params(m, 3, flat, 0, m->flat_count);
        for (size_t p = 0; p < 2; p++) {
            const double std = p == 0 ? cases[k].std : 0.02;
            const float *v = flat + m->params[p].offset;
            double sum = 0, squares = 0, n = (double)m->params[p].count;
            for (size_t i = 0; i < m->params[p].count; i++) {
                sum += (double)v[i];
                squares += (double)v[i] * (double)v[i];
            }
            assert_true(fabs(sum / n) < 5 * std / sqrt(n));
            assert_true(fabs(sqrt(squares / n) / std - 1) < 5 / sqrt(2 * n));
        }
        tr_free(flat);
        test_model_close(&t);
        tr_free(text);
    }
}

static void graphs(void **state)
{
    (void)state;
    static const tr_precision all[] = {TR_PRECISION_FP32, TR_PRECISION_BF16, TR_PRECISION_FP16};
    test_model t = test_model_open(ONE "    - embedding: {num: 11, dim: 4}\n" HEAD);
    for (size_t p = 0; p < TR_COUNT(all); p++)
        for (int train = 0; train < 2; train++)
            for (int batch = 0; batch < 6; batch += 5) {
                const tr_graph_options o = {.batch = batch,
                                            .mode = train ? TR_MODE_TRAIN : TR_MODE_EVALUATE,
                                            .precision = all[p],
                                            .ranks = 1,
                                            .passes = TR_PASSES_ALL};
                tr_graph *g = test_graph(t.model, &o);
                const tr_tensor *x = &g->tensors[g->inputs[0]];
                assert_int_equal(x->dtype, TR_I32);
                assert_int_equal(x->nbytes, batch * 6 * 4);
                if (batch == 0) {
                    assert_int_equal(g->nops, 0);
                } else {
                    const tr_op *first = &g->ops[0], *last = &g->ops[g->nops - 1];
                    const tr_tensor *y = &g->tensors[first->out[0]];
                    assert_string_equal(tr_op_name(first), "embedding");
                    assert_int_equal(y->dtype, tr_precision_dtype(all[p]));
                    assert_int_equal(y->ndim, 3);
                    assert_true(y->dims[0] == 5 && y->dims[1] == 6 && y->dims[2] == 4);
                    if (train) {
                        assert_string_equal(tr_op_name(last), "embedding.grad");
                        assert_int_equal(last->in[1], x->id);
                        assert_int_equal(g->tensors[last->out[0]].role, TR_ROLE_GRAD);
                        assert_int_equal(last->bucket_ready, (int)t.model->nbuckets - 1);
                    }
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
        {ONE "    - embedding: {dim: 4}\n" HEAD,
         "m.yaml:6:18: layer \"embedding1\": required key \"num\" is missing: rows of the table: "
         "ids are "
         "whole numbers from 0 to num - 1 (an integer from 1 to 2147483647)",
         TR_CONFIG},
        {ONE "    - embedding: {num: 0, dim: 4}\n" HEAD,
         "m.yaml:6:24: layer \"embedding1\".num: found \"0\", expected an integer from 1 to "
         "2147483647",
         TR_CONFIG},
        {ONE "    - relu\n    - embedding: {num: 3, dim: 4}\n" HEAD,
         "m.yaml:7:7: layer \"embedding1\": it reads layer \"relu1\", but takes ids, so one of the "
         "model's inputs",
         TR_CONFIG},
        {ONE "    - repeat: {times: 2, layers: [{embedding: {num: 3, dim: 6}}]}\n" HEAD,
         "m.yaml:6:36: layer \"embedding1.2\": it reads layer \"embedding1.1\", but takes ids, so "
         "one of the model's inputs",
         TR_CONFIG},
        {"  input: [2, 3]\n  layers:\n    - embedding: {num: 3, dim: 4}\n" HEAD,
         "m.yaml:6:7: layer \"embedding1\": its input is (2, 3), but it takes (positions)",
         TR_SHAPE},
        {ONE "    - embedding: {num: 3, dim: 1, name: e}\n    - flatten: {name: f}\n"
             "    - add: {from: [f, input]}\n" HEAD,
         "m.yaml:8:7: layer \"add1\": it reads the input \"input\" as values, which another "
         "layer reads as ids",
         TR_CONFIG},
        {ONE "    - linear: {out: 6, name: before}\n"
             "    - embedding: {num: 3, dim: 1, from: input}\n    - flatten: {name: f}\n"
             "    - add: {from: [f, before]}\n" HEAD,
         "m.yaml:6:7: layer \"before\": it reads the input \"input\" as values, which another "
         "layer reads as ids",
         TR_CONFIG},
        {ONE "    - embedding: {num: 2147483647, dim: 2147483647}\n" HEAD,
         "m.yaml:6:7: layer \"embedding1\": its weight is too large", TR_SHAPE},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        test_model_fails(cases[i].model, cases[i].st, cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_shapes),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(graphs),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
