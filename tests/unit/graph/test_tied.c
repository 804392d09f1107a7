/* Tied weights and frozen parameters: rows of the model, and the backward ops that are made for
 * them. */
#include "tests/unit/graph/equal.h"

#define TIED                                                                                       \
    "  input: [4]\n  layers:\n    - linear: {out: 4, name: a}\n    - relu\n"                       \
    "    - repeat: {times: 2, layers: [{linear: {out: 4, weight_of: a}}, tanh]}\n"                 \
    "    - linear: {out: 3}\n  loss: mse\n"

/* The graph's ops from the loss's on. */
static void ends_with(const tr_graph *g, const char *want)
{
    char *text = test_graph_text(g);
    const size_t n = strlen(text), most = strlen(want);
    assert_true(n > most);
    assert_string_equal(text + n - most, want);
    free(text);
}

/* One row; the layer that comes last in the backward pass finishes it. */
static void test_tied(void **state)
{
    (void)state;
    test_model t;
    ok(test_model_try(&t, TIED, 64));
    const tr_model *m = t.model;
    assert_int_equal(m->nparams, 6);
    assert_string_equal(m->params[0].layer, "a");
    assert_int_equal(m->params[0].uses, 3);
    assert_string_equal(tr_model_user(m, 0, 0), "a");
    assert_string_equal(tr_model_user(m, 0, 2), "linear2.2");
    assert_null(tr_model_user(m, 0, 3));
    assert_int_equal(m->nparameters, 16 + 3 * 4 + 15);
    const tr_graph_options o = {
        .batch = 2, .mode = TR_MODE_TRAIN, .passes = TR_PASSES_ALL, .ranks = 1};
    tr_graph *g = test_graph(m, &o);
    ends_with(
        g,
        "mse linear3 target -> d.linear3.1(2,3)\n"
        "linear.grad_weight tanh1.2 d.linear3.1 -> d.linear3.weight(3,4) d.linear3.bias(3) bucket "
        "1\n"
        "linear.grad_input d.linear3.1 linear3.weight -> d.tanh1.2.1(2,4)\n"
        "tanh.grad d.tanh1.2.1 tanh1.2 -> d.linear2.2.1(2,4)@d.tanh1.2.1\n"
        "linear.grad_weight tanh1.1 d.linear2.2.1 -> d.a.weight(4,4) d.linear2.2.bias(4) bucket 2\n"
        "linear.grad_input d.linear2.2.1 a.weight -> d.tanh1.1.1(2,4)\n"
        "tanh.grad d.tanh1.1.1 tanh1.1 -> d.linear2.1.1(2,4)@d.tanh1.1.1\n"
        "linear.grad_weight relu1 d.linear2.1.1 -> +d.a.weight(4,4) d.linear2.1.bias(4) bucket 3\n"
        "linear.grad_input d.linear2.1.1 a.weight -> d.relu1.1(2,4)\n"
        "relu.grad d.relu1.1 relu1 -> d.a.1(2,4)@d.relu1.1\n"
        "linear.grad_weight input d.a.1 -> +d.a.weight(4,4) d.a.bias(4) bucket 5\n");
    tr_graph_close(g);
    tr_model *b = again(m, 64);
    same_model(m, b);
    tr_model_close(b);
    test_model_close(&t);
}

/* Frozen rows lie last, behind all buckets, and no op writes their gradients; what stands
 * before all that learns has no backward ops. */
static void test_frozen(void **state)
{
    (void)state;
    test_model t = test_model_open(
        "  input: [4]\n  layers:\n    - linear: {out: 4, freeze: true}\n    - layernorm: "
        "{lr_factor: "
        "2}\n    - linear: {out: 4, freeze: true, name: f}\n    - relu\n"
        "    - linear: {out: 4, weight_of: f}\n    - linear: {out: 2}\n  loss: mse\n");
    const tr_model *m = t.model;
    assert_int_equal(m->nbuckets, 1);
    assert_int_equal(m->buckets[0].end, m->learned_count);
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        assert_int_equal(p->frozen, !strcmp(p->layer, "linear1") || !strcmp(p->layer, "f"));
        assert_int_equal(p->frozen, p->offset >= m->learned_count);
        assert_true(p->lr_factor == (strcmp(p->layer, "layernorm1") ? 1 : 2));
    }
    const tr_graph_options o = {
        .batch = 2, .mode = TR_MODE_TRAIN, .passes = TR_PASSES_ALL, .ranks = 1};
    tr_graph *g = test_graph(m, &o);
    ends_with(g,
              "mse linear4 target -> d.linear4.1(2,2)\n"
              "linear.grad_weight linear3 d.linear4.1 -> d.linear4.weight(2,4) d.linear4.bias(2)\n"
              "linear.grad_input d.linear4.1 linear4.weight -> d.linear3.1(2,4)\n"
              "linear.grad_weight relu1 d.linear3.1 -> f.weight.unused(4,4) d.linear3.bias(4)\n"
              "linear.grad_input d.linear3.1 f.weight -> d.relu1.1(2,4)\n"
              "relu.grad d.relu1.1 relu1 -> d.f.1(2,4)@d.relu1.1\n"
              "linear.grad_input d.f.1 f.weight -> d.layernorm1.1(2,4)\n"
              "layernorm.grad d.layernorm1.1 linear1 layernorm1.weight layernorm1.stats -> "
              "layernorm1.dx(2,4) d.layernorm1.weight(4) d.layernorm1.bias(4) bucket 0\n");
    tr_graph_close(g);
    test_model_close(&t);
    t = test_model_open("  input: [4]\n  layers: [{linear: {out: 4, stored: bfloat16, name: a}}]\n"
                        "  loss: mse\n");
    tr_graph *none;
    assert_int_equal(tr_graph_open(t.model, &o, &none), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "layer \"a\": its weight is stored as bfloat16, and cannot be trained"));
    test_model_close(&t);
    static const struct {
        const char *model, *text;
        tr_status st;
    } cases[] = {
        {"  input: [4]\n  layers: [{linear: {out: 3, name: a}}, {linear: {out: 4, weight_of: a}}]\n"
         "  loss: mse\n",
         "m.yaml:5:42: layer \"linear2\": its weight is (4, 3), but that of \"a\" is (3, 4)",
         TR_SHAPE},
        {"  input: [4]\n  layers: [relu, {linear: {out: 4, weight_of: relu1}}]\n  loss: mse\n",
         "m.yaml:5:19: layer \"linear1\": weight_of: \"relu1\" has no weight", TR_CONFIG},
        {"  input: [4]\n  layers: [{linear: {out: 4, weight_of: linear1}}]\n  loss: mse\n",
         "m.yaml:5:13: layer \"linear1\": no earlier layer or input is named \"linear1\"",
         TR_CONFIG},
        {"  input: [4]\n  layers: [{relu: {freeze: true}}]\n  loss: mse\n",
         "m.yaml:5:20: layer \"relu1\": unknown key \"freeze\"; there are: name, from", TR_CONFIG},
        {"  input: [4]\n  layers: [{linear: {out: 4, name: a}}, {linear: {out: 4, weight_of: a, "
         "stored: int8}}]\n  loss: mse\n",
         "m.yaml:5:42: layer \"linear2\": stored: its weight is that of \"a\", which says it",
         TR_CONFIG},
        {"  input: [4]\n  layers: [{linear: {out: 4, name: a}}, {linear: {out: 4, weight_of: a, "
         "masked: true}}]\n  loss: mse\n",
         "m.yaml:5:42: layer \"linear2\": masked: its weight is that of \"a\", which says it",
         TR_CONFIG},
        {"  input: [4]\n  layers: [{linear: {out: 4, name: a}}, {linear: {out: 4, weight_of: a, "
         "init_factor: 2}}]\n  loss: mse\n",
         "m.yaml:5:42: layer \"linear2\": init_factor: its weight is that of \"a\", which says it",
         TR_CONFIG},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        test_model_fails(cases[i].model, cases[i].st, cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
