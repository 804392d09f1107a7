/* What `lstm` and `gru` stand for: layers, names, parameters as PyTorch has them, and what is told
 * when something is wrong. */
#include "runtime/graph/maker.h"
#include "tests/unit/graph/models.h"

#include <math.h>

#define HEAD "  loss: mse\n"

/* "type name<-inputs (output)" of all layers, a line each, and the p of a dropout. */
static void expands(const char *layers, const char *want)
{
    const bool lengths = strstr(layers, "[x, n]") != NULL;
    char *model = tr_sprintf("  %s\n  layers:\n    - tanh: {name: x%s}\n%s" HEAD,
                             lengths ? "inputs: {given: [6, 5], n: [1]}" : "input: [6, 5]",
                             lengths ? ", from: given" : "", layers);
    test_model t = test_model_open(model);
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (size_t i = 1; i < t.model->nlayers; i++) {
        const tr_layer *l = &t.model->layers[i];
        char shape[TR_SHAPE_TEXT];
        fprintf(f, "%s %s", l->def->name, l->name);
        for (int k = 0; k < l->nin; k++) {
            const size_t in = (size_t)l->in[k], ninputs = t.model->ninputs;
            fprintf(f, "%s%s", k ? "," : "<-",
                    in < ninputs ? t.model->inputs[in].name : t.model->layers[in - ninputs].name);
        }
        if (strcmp(l->def->name, "lstm_layer") == 0 && ((const tr_recurrent_attrs *)l->attrs)->hold)
            fprintf(f, " hold");
        if (strcmp(l->def->name, "dropout") == 0)
            fprintf(f, " p %g", ((const tr_dropout_attrs *)l->attrs)->p);
        fprintf(f, " %s\n", tr_shape_text(&l->output, shape));
    }
    fclose(f);
    assert_string_equal(text, want);
    free(text);
    tr_free(model);
    test_model_close(&t);
}

static void test_layers(void **state)
{
    (void)state;
    expands("    - lstm: {hidden: 3}\n    - relu: {from: lstm1}\n",
            "lstm_layer lstm1.l0<-x (6, 3)\nrelu relu1<-lstm1.l0 (6, 3)\n");
    expands("    - gru: {hidden: 3, layers: 2, bidirectional: true, dropout: 0.2, name: g}\n",
            "gru_layer g.l0<-x (6, 3)\n"
            "gru_layer g.l0_reverse<-x (6, 3)\n"
            "concat g.concat0<-g.l0,g.l0_reverse (6, 6)\n"
            "dropout g.drop0<-g.concat0 p 0.2 (6, 6)\n"
            "gru_layer g.l1<-g.drop0 (6, 3)\n"
            "gru_layer g.l1_reverse<-g.drop0 (6, 3)\n"
            "concat g.concat1<-g.l1,g.l1_reverse (6, 6)\n");
    expands("    - lstm: {hidden: 3, layers: 3, dropout: 0.7}\n",
            "lstm_layer lstm1.l0<-x (6, 3)\n"
            "dropout lstm1.drop0<-lstm1.l0 p 0.7 (6, 3)\n"
            "lstm_layer lstm1.l1<-lstm1.drop0 (6, 3)\n"
            "dropout lstm1.drop1<-lstm1.l1 p 0.7 (6, 3)\n"
            "lstm_layer lstm1.l2<-lstm1.drop1 (6, 3)\n");
    expands("    - lstm: {hidden: 4, layers: 2, output: last}\n",
            "lstm_layer lstm1.l0<-x (6, 4)\n"
            "lstm_layer lstm1.l1<-lstm1.l0 (6, 4)\n"
            "select lstm1.last<-lstm1.l1 (4)\n");
    expands("    - lstm: {hidden: 4, bidirectional: true, output: last}\n",
            "lstm_layer lstm1.l0<-x (6, 4)\n"
            "lstm_layer lstm1.l0_reverse<-x (6, 4)\n"
            "select lstm1.last<-lstm1.l0 (4)\n"
            "select lstm1.last_reverse<-lstm1.l0_reverse (4)\n"
            "concat lstm1.h_n<-lstm1.last,lstm1.last_reverse (8)\n");
    expands("    - lstm: {hidden: 4, bidirectional: true, layers: 2, output: last, from: [x, n]}\n",
            "lstm_layer lstm1.l0<-x,n (6, 4)\n"
            "lstm_layer lstm1.l0_reverse<-x,n (6, 4)\n"
            "concat lstm1.concat0<-lstm1.l0,lstm1.l0_reverse (6, 8)\n"
            "lstm_layer lstm1.l1<-lstm1.concat0,n hold (6, 4)\n"
            "lstm_layer lstm1.l1_reverse<-lstm1.concat0,n (6, 4)\n"
            "select lstm1.last<-lstm1.l1 (4)\n"
            "select lstm1.last_reverse<-lstm1.l1_reverse (4)\n"
            "concat lstm1.h_n<-lstm1.last,lstm1.last_reverse (8)\n");
    expands("    - lstm_layer: {hidden: 2, reverse: true}\n", "lstm_layer lstm_layer1<-x (6, 2)\n");
}

static void test_lengths(void **state)
{
    (void)state;
    static const char *const names[] = {"n",       "l0",    "l1",   "l0_reverse",
                                        "concat0", "input", "lstm", NULL};
    test_model_lengths("lstm: {name: r, hidden: 3, layers: 2", names, 2);
    test_model_lengths("gru: {hidden: 3, layers: 3, bidirectional: true, output: last", names, 6);
    test_model_fails("  inputs: {x: [6, 5], n: [1]}\n  layers:\n    - tanh: {from: n, name: t}\n"
                     "    - lstm: {hidden: 3, from: [x, t]}\n" HEAD,
                     TR_CONFIG,
                     "m.yaml:7:7: layer \"lstm1.l0\": it reads layer \"t\", but takes "
                     "lengths, so one of the model's inputs");
    test_model_fails("  inputs: {x: [6, 5], n: [1]}\n  layers:\n"
                     "    - lstm_layer: {hidden: 3, from: [x, /lengths]}\n" HEAD,
                     TR_CONFIG,
                     "m.yaml:6:41: layer \"lstm_layer1\": no earlier layer or input is named "
                     "\"/lengths\"");
}

/* Four rows a layer, uniform within 1 / sqrt(hidden) whatever the features; biases do not decay. */
static void test_parameters(void **state)
{
    (void)state;
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    test_model t = test_model_open("  input: [2, 50]\n  layers:\n    - gru: {hidden: 16}\n" HEAD);
    const int64_t dims[4][2] = {{48, 50}, {48, 16}, {48, 0}, {48, 0}};
    float *v = tr_alloc(TR_MEM_OTHER, t.model->flat_count, sizeof *v);
    assert_non_null(v);
    tr_model_init_params(t.model, 7, v, 0, t.model->flat_count);
    assert_int_equal(t.model->nparams, 4);
    for (size_t r = 0; r < 4; r++) {
        const tr_param *p = &t.model->params[r];
        double most = 0;
        assert_string_equal(p->layer, "gru1.l0");
        assert_string_equal(p->name, names[r]);
        assert_int_equal(p->ndim, r < 2 ? 2 : 1);
        for (int i = 0; i < p->ndim; i++) assert_int_equal(p->dims[i], dims[r][i]);
        assert_int_equal(p->decay, r < 2);
        for (size_t i = 0; i < p->count; i++) most = fmax(most, fabs((double)v[p->offset + i]));
        assert_true(most <= 0.25 && most > 0.2);
    }
    tr_free(v);
    test_model_close(&t);
}

static void test_errors(void **state)
{
    (void)state;
    test_model_fails("  input: [6, 5]\n  layers:\n    - lstm: {hidden: 3, dropout: 0.1}\n" HEAD,
                     TR_CONFIG,
                     "m.yaml:6:7: layer \"lstm1\": dropout is between layers, of which there is "
                     "one: layers: 2 or more");
    test_model_fails("  input: [6]\n  layers:\n    - gru: {hidden: 3}\n" HEAD, TR_SHAPE,
                     "m.yaml:6:7: layer \"gru1\": its input is (6), but it takes (rows, features)");
    test_model_fails("  input: [6, 5]\n  layers:\n    - gru: {hiden: 3}\n" HEAD, TR_CONFIG,
                     "m.yaml:6:13: layer \"gru1\": unknown key \"hiden\"; did you mean "
                     "\"hidden\"?");
    test_model_fails("  inputs: {x: [6, 5], n: [2]}\n  layers:\n"
                     "    - gru_layer: {hidden: 3, from: [x, n]}\n" HEAD,
                     TR_SHAPE,
                     "m.yaml:6:7: layer \"gru_layer1\": lengths: its input 2 is (2), but it takes "
                     "(1): how many rows a sample has");
    test_model_fails(
        "  input: [6, 5]\n  layers:\n    - lstm_layer: {hidden: 3, hold: true}\n" HEAD, TR_CONFIG,
        "m.yaml:6:7: layer \"lstm_layer1\": hold: it has no lengths: a second input in "
        "`from`");
    test_model_fails("  inputs: {x: [6, 5], n: [1]}\n  layers:\n    - lstm_layer: {hidden: 3, "
                     "hold: true, reverse: true, from: [x, n]}\n" HEAD,
                     TR_CONFIG,
                     "m.yaml:6:7: layer \"lstm_layer1\": hold: backwards a sample begins at its "
                     "last row");
}

/* Gates lie where the product of the inputs was, and the gradient of that where the gates were. */
static void test_in_place(void **state)
{
    (void)state;
    static const char *const layers[] = {"lstm", "gru"};
    for (size_t i = 0; i < TR_COUNT(layers); i++) {
        char *text = tr_sprintf("  input: [2, 50]\n  layers:\n    - %s: {hidden: 16, layers: 2, "
                                "bidirectional: true, dropout: 0.5}\n" HEAD,
                                layers[i]);
        test_model t = test_model_open(text);
        tr_graph *g = test_graph(
            t.model, &(tr_graph_options){
                         .batch = 3, .mode = TR_MODE_TRAIN, .ranks = 1, .passes = TR_PASSES_ALL});
        int over = 0;
        for (size_t k = 0; k < g->nops; k++) {
            const tr_op *op = &g->ops[k];
            const bool grad = strstr(tr_op_name(op), "_layer.grad") != NULL;
            if (!strstr(tr_op_name(op), "_layer")) continue;
            assert_int_equal(tr_root(g, op->out[grad ? 0 : 1]), tr_root(g, op->in[grad ? 2 : 0]));
            over++;
        }
        assert_int_equal(over, 8);
        tr_graph_close(g);
        test_model_close(&t);
        tr_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_lengths), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
