/* Models for shorter sequences (data.buckets): which layers rows behind a sample's end mean nothing
 * to, and that parameters are the whole model's. */
#include "tests/unit/graph/models.h"

#define IDS          "  inputs: {x: [12], n: [1]}\n  layers:\n    - embedding: {num: 9, dim: 8, from: x}\n"
#define LABELS       "  loss: {cross_entropy: {ignore_index: -1}}\n"
#define USES_LENGTHS "    - gru: {hidden: 8, name: r, from: [read, n]}\n"
#define READ(layers)                                                                               \
    IDS "    - linear: {out: 24, name: read}\n" layers "    - linear: {out: 9}\n" LABELS

static const tr_ints rows = {.count = 2, .v = {5, 8}};

static const struct {
    const char *model, *fails; /* NULL: it can be shortened */
} cases[] = {
    {READ(USES_LENGTHS), NULL},
    {READ("    - attention: {heads: 2, from: [read, n]}\n"), NULL},
    {READ("    - attention: {heads: 2, alibi: true, from: [read, n]}\n"), NULL},
    {READ("    - attention: {heads: 2, causal: true, window: 3, name: a}\n" USES_LENGTHS
          "    - add: {from: [a, r.l0]}\n"),
     NULL},
    {READ("    - transformer: {layers: 2, heads: 4, position: rotary, causal: false, from: [read, "
          "n]}\n"),
     NULL},
    {READ("    - gru: {hidden: 8, bidirectional: true, from: [read, n]}\n"), NULL},
    {READ("    - positions\n    - layernorm\n    - dropout: {p: 0.1, name: d}\n"
          "    - lstm: {hidden: 8, layers: 2, output: last, from: [d, n]}\n"),
     NULL},
    {READ("    - lstm: {hidden: 8, bidirectional: true, output: last, from: [read, n]}\n"), NULL},
    {READ("    - class_token\n    - positions: {name: p}\n    - attention: {heads: 2, from: [p, "
          "n]}\n"
          "    - select: {index: 0}\n"),
     NULL},
    {READ(USES_LENGTHS "    - sklinear: {out: 8, rank: 2, terms: 1}\n"), NULL},
    {READ(USES_LENGTHS "    - select: {index: -2, from: [r, n]}\n"), NULL},
    {READ(USES_LENGTHS "    - mean_rows: {from: [r, n]}\n"), NULL},
    /* every token is seen by all */
    {READ("    - attention: {heads: 2, name: a}\n" USES_LENGTHS "    - add: {from: [a, r.l0]}\n"),
     "layer \"a\": attention takes in rows behind a sample's end, for its attention is not causal, "
     "and "
     "fewer of them are left: expected layers to which they mean nothing"},
    {READ("    - gru: {hidden: 8, bidirectional: true, name: g}\n" USES_LENGTHS
          "    - concat: {from: [g, r.l0], axis: 2}\n"),
     "takes in rows behind a sample's end, for it goes from the last row to the first, and"},
    {READ(USES_LENGTHS "    - select: {index: -1}\n"),
     "layer \"select1\": select takes in rows behind"},
    {READ(USES_LENGTHS "    - mean_rows\n"),
     "layer \"mean_rows1\": mean_rows takes in rows behind"},
    {READ(USES_LENGTHS "    - permute: {dims: [2, 1]}\n    - conv1d: {out: 4, kernel: 1}\n"),
     "permute takes in rows"},
    {READ(USES_LENGTHS "    - batchnorm\n"), "rows"},
    {READ(USES_LENGTHS "    - concat: {from: [r.l0, r.l0], axis: 1}\n"), "concat takes in rows"},
    {READ(USES_LENGTHS "    - layernorm: {normalized_shape: [12, 8]}\n"),
     "5 rows: layer \"layernorm1\": normalized_shape"},
    {READ(USES_LENGTHS "    - flatten\n"), "layer \"flatten1\": flatten takes in rows"},
};

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        test_model t = test_model_open(cases[i].model);
        const tr_status st = tr_model_shorten(t.model, &rows);
        if (!cases[i].fails && st != TR_OK) fail_msg("%s%s", cases[i].model, tr_last_error()->text);
        if (cases[i].fails) {
            assert_int_equal(st, TR_CONFIG);
            if (!strstr(tr_last_error()->text, cases[i].fails))
                fail_msg("%s\nnot in %s", cases[i].fails, tr_last_error()->text);
        }
        assert_int_equal(t.model->nshorter, cases[i].fails ? 0 : 2);
        for (size_t b = 0; b < t.model->nshorter; b++) {
            const tr_model *s = t.model->shorter[b];
            assert_int_equal(s->inputs[0].dims[0], rows.v[b]);
            assert_int_equal(s->inputs[1].dims[0], 1);
            assert_int_equal(s->flat_count, t.model->flat_count);
            assert_memory_equal(s->params, t.model->params, t.model->nparams * sizeof *s->params);
        }
        test_model_close(&t);
    }
}

static void test_rows(void **state)
{
    (void)state;
    static const struct {
        tr_ints rows;
        const char *fails;
    } bad[] = {{{.count = 2, .v = {8, 5}}, "5 rows: expected rising numbers below 12"},
               {{.count = 1, .v = {12}}, "12 rows: expected rising numbers below 12"}};
    test_model t = test_model_open(READ(USES_LENGTHS));
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        assert_int_equal(tr_model_shorten(t.model, &bad[i].rows), TR_CONFIG);
        if (!strstr(tr_last_error()->text, bad[i].fails)) fail_msg("%s", tr_last_error()->text);
    }
    test_model_close(&t);
    t = test_model_open(
        "  input: [3, 8, 8]\n  layers:\n    - conv2d: {out: 2, kernel: 3}\n  loss: mse\n");
    assert_int_equal(tr_model_shorten(t.model, &rows), TR_CONFIG);
    assert_non_null(
        strstr(tr_last_error()->text, "5 rows: the model's input \"input\" is no sequence"));
    test_model_close(&t);
    t = test_model_open(IDS
                        "    - gru: {hidden: 9, from: [embedding1, n]}\n  loss: cross_entropy\n");
    assert_int_equal(tr_model_shorten(t.model, &rows), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "set model.loss.cross_entropy.ignore_index"));
    test_model_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers), cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
