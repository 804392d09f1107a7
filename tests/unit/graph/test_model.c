/* Layers of the config to a model: names, shapes, parameters, layout, initial values, and what is
 * told when something is wrong. */
#include "tests/unit/graph/models.h"

#include <math.h>

#define MODEL(layers) "  input: [3, 8, 8]\n  layers:\n" layers "  loss: cross_entropy\n"
#define HEAD          "    - flatten\n    - linear: {out: 5}\n"

static const tr_param *param(const tr_model *m, const char *layer, const char *name)
{
    for (size_t i = 0; i < m->nparams; i++)
        if (!strcmp(m->params[i].layer, layer) && !strcmp(m->params[i].name, name))
            return &m->params[i];
    fail_msg("no parameter %s.%s", layer, name);
    return NULL;
}

static void check_dims(const tr_param *p, int ndim, const int64_t *dims)
{
    assert_int_equal(p->ndim, ndim);
    assert_memory_equal(p->dims, dims, sizeof(*dims) * (size_t)ndim);
}

static void test_names_and_shapes(void **state)
{
    (void)state;
    test_model t = test_model_open(MODEL(
        "    - conv2d: {out: 6, kernel: [3, 5], padding: [1, 2], groups: 3}\n"
        "    - conv2d: {out: 8, kernel: 3, stride: 2, dilation: 2, name: stem}\n"
        "    - repeat: {times: 2, layers: [{conv2d: {out: 8, kernel: 1}}, {batchnorm: {name: b}},"
        " {repeat: {times: 2, layers: [{batchnorm: {}}]}}]}\n"
        "    - conv2d: {out: 4, kernel: 1}\n" HEAD));
    const tr_model *m = t.model;
    check_dims(param(m, "conv2d1", "weight"), 4, (int64_t[]){6, 1, 3, 5});
    check_dims(param(m, "conv2d1", "bias"), 1, (int64_t[]){6});
    check_dims(param(m, "stem", "weight"), 4, (int64_t[]){8, 6, 3, 3});
    check_dims(param(m, "conv2d3.1", "weight"), 4, (int64_t[]){8, 8, 1, 1});
    check_dims(param(m, "conv2d3.2", "weight"), 4, (int64_t[]){8, 8, 1, 1});
    check_dims(param(m, "b.2", "weight"), 1, (int64_t[]){8});
    check_dims(param(m, "batchnorm2.2.1", "bias"), 1, (int64_t[]){8});
    check_dims(param(m, "conv2d4", "weight"), 4, (int64_t[]){4, 8, 1, 1});
    /* (8 - 5) / 2 + 1 = 2 rows and columns after the stem */
    check_dims(param(m, "linear1", "weight"), 2, (int64_t[]){5, 4 * 2 * 2});
    assert_int_equal(m->outputs, 5);
    assert_true(m->labels);
    assert_int_equal(m->nstates, 2 * 6);
    assert_string_equal(m->states[1].name, "running_var");
    assert_true(m->states[1].initial == 1.0f);
    assert_true(param(m, "stem", "weight")->decay);
    assert_false(param(m, "stem", "bias")->decay);
    assert_false(param(m, "b.1", "weight")->decay);
    test_model_close(&t);
}

static void test_named_inputs(void **state)
{
    (void)state;
    test_model t = test_model_open("  inputs: {image: [1, 4, 4], meta: [3]}\n"
                                   "  layers:\n"
                                   "    - flatten: {from: image}\n"
                                   "    - concat: {from: [flatten1, meta]}\n"
                                   "    - linear: {out: 2}\n"
                                   "  loss: mse\n");
    assert_int_equal(t.model->ninputs, 2);
    assert_string_equal(t.model->inputs[1].name, "meta");
    check_dims(param(t.model, "linear1", "weight"), 2, (int64_t[]){2, 19});
    assert_false(t.model->labels);
    assert_int_equal(t.model->ndim_target, 1);
    assert_int_equal(t.model->target_dims[0], 2);
    test_model_close(&t);
}

/* `from` finds the same iteration first, then what is around it; a repeat's name is its last
 * output. */
static void test_from_in_repeat(void **state)
{
    (void)state;
    test_model t =
        test_model_open(MODEL("    - flatten\n    - linear: {out: 8, name: a}\n"
                              "    - repeat:\n        times: 2\n        name: r\n        layers:\n"
                              "          - linear: {out: 8, name: b}\n"
                              "          - relu\n"
                              "          - add: {from: [relu1, b, a]}\n"
                              "    - concat: {from: [r, b.1, add1.1]}\n"
                              "    - linear: {out: 2}\n"));
    tr_graph_options o = {.batch = 1};
    tr_graph *g = test_graph(t.model, &o);
    char *text = test_graph_text(g);
    assert_non_null(strstr(text, "add relu1.1 b.1 a -> add1.1"));
    assert_non_null(strstr(text, "linear add1.1 b.2.weight b.2.bias -> b.2"));
    assert_non_null(strstr(text, "add relu1.2 b.2 a -> add1.2"));
    assert_non_null(strstr(text, "concat add1.2 b.1 add1.1 -> concat1(1,24)"));
    free(text);
    tr_graph_close(g);
    test_model_close(&t);
}

static void test_resnet20(void **state)
{
    (void)state;
    test_model t = test_model_open(TEST_RESNET20);
    /* stem 432+32; stages 13824+192, 4608+46080+384+512+64, 18432+184320+768+2048+128; head 650 */
    assert_int_equal(t.model->nparameters, 272474);
    tr_graph_options o = {.batch = 2};
    tr_graph *g = test_graph(t.model, &o);
    double flops = 0;
    for (size_t i = 0; i < g->nops; i++)
        if (!strcmp(tr_op_name(&g->ops[i]), "conv2d")) flops += tr_op_flops(g, &g->ops[i]);
    /* 1024*432 + 6*1024*2304 + 256*(4608+512+5*9216) + 64*(18432+2048+5*36864) multiply-adds */
    assert_true(flops == 2.0 * 2 * (442368 + 14155776 + 13107200 + 13107200));
    tr_graph_close(g);
    test_model_close(&t);
}

static int by_offset(const void *a, const void *b)
{
    const tr_param *x = *(const tr_param *const *)a, *y = *(const tr_param *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void check_layout(const tr_model *m, size_t first, size_t rest)
{
    const tr_param **p = calloc(m->nparams, sizeof *p);
    for (size_t i = 0; i < m->nparams; i++) p[i] = &m->params[i];
    qsort(p, m->nparams, sizeof *p, by_offset);
    size_t end = 0, sum = 0, bucket = 0;
    for (size_t i = 0; i < m->nparams; i++) {
        assert_int_equal(p[i]->offset % 16, 0);
        assert_int_equal(p[i]->offset, end);
        end = tr_align_up(p[i]->offset + p[i]->count, 16);
        sum += p[i]->count;
        if (p[i]->offset >= m->buckets[bucket].end) bucket++;
        assert_true(p[i]->offset >= m->buckets[bucket].begin && end <= m->buckets[bucket].end);
        /* It is full with its last parameter and not before. */
        size_t nbytes = (end - m->buckets[bucket].begin) * 4, limit = bucket ? rest : first;
        if (end == m->buckets[bucket].end)
            assert_true(nbytes >= limit || end == m->flat_count);
        else
            assert_true(nbytes < limit);
    }
    assert_int_equal(end, m->flat_count);
    assert_int_equal(sum, m->nparameters);
    assert_int_equal(bucket + 1, m->nbuckets);
    for (size_t b = 0; b < m->nbuckets; b++) {
        assert_int_equal(m->buckets[b].begin, b ? m->buckets[b - 1].end : 0);
        assert_int_equal(m->buckets[b].begin % 16, 0);
    }
    assert_int_equal(m->buckets[m->nbuckets - 1].end, m->flat_count);
    /* The last layer lies first. */
    assert_string_equal(p[0]->layer, m->params[m->nparams - 1].layer);
    free(p);
}

static void test_layout(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 64, 4096, 100000, 1 << 20, 1 << 30};
    for (size_t i = 0; i < TR_COUNT(sizes); i++) {
        test_model t;
        assert_int_equal(test_model_try(&t, TEST_RESNET20, sizes[i]), TR_OK);
        check_layout(t.model, sizes[i] ? sizes[i] : 1 << 20, sizes[i] ? sizes[i] : 4 << 20);
        if (i == 0) assert_int_equal(t.model->nbuckets, 2);
        if (i == 5) assert_int_equal(t.model->nbuckets, 1);
        test_model_close(&t);
    }
}

static void test_init(void **state)
{
    (void)state;
    test_model t = test_model_open(
        MODEL("    - conv2d: {out: 16, kernel: 3}\n    - batchnorm\n    - flatten\n"
              "    - linear: {out: 50, init: xavier}\n    - linear: {out: 50, init: normal}\n"
              "    - linear: {out: 40, init: he}\n    - linear: {out: 5, init: zeros}\n"
              "    - linear: {out: 80, init_factor: 3}\n    - layernorm: {init_factor: 0.5}\n"
              "    - linear: {out: 60, init: normal, init_factor: 0.25}\n"
              "    - linear: {out: 60, init: xavier, init_factor: 0.5}\n"
              "    - linear: {out: 60, init: he, init_factor: 2}\n"));
    const tr_model *m = t.model;
    float *w = calloc(m->flat_count, sizeof *w), *part = calloc(m->flat_count, sizeof(*part));
    tr_model_init_params(m, 7, w, 0, m->flat_count);
    /* Any way of cutting the space gives the same. */
    for (size_t at = 0; at < m->flat_count; at += 37)
        tr_model_init_params(m, 7, part, at, at + 37 < m->flat_count ? at + 37 : m->flat_count);
    assert_memory_equal(w, part, m->flat_count * sizeof *w);
    tr_model_init_params(m, 8, part, 0, m->flat_count);
    const tr_param *conv = param(m, "conv2d1", "weight");
    assert_memory_not_equal(w + conv->offset, part + conv->offset, 64);
    const struct {
        const char *layer, *name;
        double bound, square; /* largest value; expected mean of squares, 0: exactly */
        double value;
    } cases[] = {
        {"conv2d1", "weight", 1 / sqrt(27), 1.0 / 27 / 3, 0},
        {"conv2d1", "bias", 1 / sqrt(27), -1, 0},
        {"batchnorm1", "weight", 1, 0, 1},
        {"batchnorm1", "bias", 0, 0, 0},
        {"linear1", "weight", sqrt(6.0 / (576 + 50)), 2.0 / (576 + 50), 0},
        {"linear1", "bias", 0, 0, 0},
        {"linear2", "weight", 0.2, 0.0004, 0},
        {"linear3", "weight", 1.2, 2.0 / 50, 0},
        {"linear3", "bias", 0, 0, 0},
        {"linear4", "weight", 0, 0, 0},
        {"linear5", "weight", 3 / sqrt(5), 9.0 / 5 / 3, 0},
        {"linear5", "bias", 1 / sqrt(5), -1, 0},
        {"layernorm1", "weight", 0.5, 0, 0.5},
        {"linear6", "weight", 0.05, 0.000025, 0},
        {"linear7", "weight", 0.5 * sqrt(6.0 / 120), 0.25 * 2 / 120, 0},
        {"linear8", "weight", 2.4, 4 * 2.0 / 60, 0},
    };
    for (size_t c = 0; c < TR_COUNT(cases); c++) {
        const tr_param *p = param(m, cases[c].layer, cases[c].name);
        double squares = 0;
        for (size_t e = 0; e < p->count; e++) {
            double v = w[p->offset + e];
            squares += v * v;
            assert_true(fabs(v) <= cases[c].bound * (1 + 1e-6));
            if (cases[c].square == 0) assert_true(v == cases[c].value);
        }
        for (size_t e = p->count; e < tr_align_up(p->count, 16); e++)
            assert_true(w[p->offset + e] == 0);
        if (cases[c].square > 0) /* four deviations of a uniform or normal sample's mean square */
            assert_true(fabs(squares / (double)p->count / cases[c].square - 1) <
                        4 * sqrt(2.0 / (double)p->count));
    }
    free(w);
    free(part);
    test_model_close(&t);
}

/* What is written is read back as the same model, and written as the same text. */
static void test_write(void **state)
{
    (void)state;
    char *text[2], *models[2];
    models[0] = tr_sprintf(
        "%s",
        MODEL(
            "    - conv2d: {out: 6, kernel: [3, 5], padding: 1, name: stem, init: normal}\n"
            "    - repeat: {times: 2, layers: [{residual: {body: [{conv2d: {out: 6, kernel: 1}},"
            " {gelu: {approximate: tanh}}], shortcut: [batchnorm]}}, {relu: {from: residual1}}]}\n"
            "    - maxpool2d: {kernel: 2}\n    - avgpool2d: {kernel: 2, padding: 1}\n"
            "    - dropout: {p: 0.25}\n    - softmax\n"
            "    - add: {from: [softmax1, dropout1]}\n" HEAD));
    for (int i = 0; i < 2; i++) {
        size_t n;
        test_model t = test_model_open(models[i]);
        FILE *f = open_memstream(&text[i], &n);
        assert_int_equal(tr_model_write(t.model, 2, f), TR_OK);
        fclose(f);
        if (i == 0) models[1] = tr_sprintf("%s", text[0]);
        test_model_close(&t);
    }
    assert_string_equal(text[0], text[1]);
    assert_non_null(strstr(text[0], "init: normal"));
    assert_non_null(strstr(text[0], "approximate: tanh"));
    test_model a = test_model_open(models[0]), b = test_model_open(models[1]);
    assert_int_equal(a.model->nparams, b.model->nparams);
    assert_memory_equal(a.model->params, b.model->params,
                        a.model->nparams * sizeof *a.model->params);
    test_model_close(&a);
    test_model_close(&b);
    for (int i = 0; i < 2; i++) {
        free(text[i]);
        tr_free(models[i]);
    }
}

static void test_help(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    tr_layers_help(f);
    fclose(f);
    static const char *const types[] = {
        "linear",         "conv2d",    "batchnorm", "layernorm", "relu",      "gelu",    "silu",
        "sigmoid",        "tanh",      "softmax",   "maxpool2d", "avgpool2d", "flatten", "dropout",
        "global_avgpool", "embedding", "add",       "concat",    "residual",  "repeat",  "block"};
    for (size_t i = 0; i < TR_COUNT(types); i++) {
        char heading[64];
        snprintf(heading, sizeof heading, "## `%s`\n", types[i]);
        assert_non_null(strstr(text, heading));
    }
    free(text);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *model, *text;
        tr_status st;
    } cases[] = {
        {MODEL("    - conv2d: {out: 4, kernel: 9, padding: [0, 1]}\n"),
         "m.yaml:6:7: layer \"conv2d1\": a kernel of (9, 9) with padding (0, 1) and dilation (1, "
         "1) "
         "does not fit its input (3, 8, 8)",
         TR_SHAPE},
        {"  input: [16, 3]\n  layers:\n    - linear: {out: 3}\n    - select: {index: 16}\n  loss: "
         "mse\n",
         "m.yaml:7:7: layer \"select1\": index 16: there are 16 rows: expected -16 to 15",
         TR_SHAPE},
        {"  input: [16, 3]\n  layers:\n    - linear: {out: 3}\n    - select: {index: -17}\n  loss: "
         "mse\n",
         "m.yaml:7:7: layer \"select1\": index -17: there are 16 rows: expected -16 to 15",
         TR_SHAPE},
        {MODEL("    - conv2d: {out: 4, kernel: [1, 2, 3]}\n"),
         "m.yaml:6:7: layer \"conv2d1\": kernel: one number or [height, width], not 3 numbers",
         TR_CONFIG},
        {MODEL("    - conv2d: {out: 4, kernel: 1, groups: 2}\n"),
         "m.yaml:6:7: layer \"conv2d1\": 3 channels of its input (3, 8, 8) are not a multiple of "
         "groups 2",
         TR_SHAPE},
        {MODEL("    - conv2d: {out: 4, kernel: 1, groups: 3}\n"),
         "m.yaml:6:7: layer \"conv2d1\": out 4 is not a multiple of groups 3", TR_SHAPE},
        {MODEL("    - relu\n    - linear: {out: 4}\n"),
         "m.yaml:7:7: layer \"linear1\": its input is (3, 8, 8), but it takes (features) or (rows, "
         "features): put flatten before it",
         TR_SHAPE},
        {MODEL("    - reshape: {dims: [3, 2, 4, 8]}\n"),
         "m.yaml:6:7: layer \"reshape1\": cross_entropy takes (classes), (rows, classes) or "
         "(classes, height, width), but the last layer gives (3, 2, 4, 8)",
         TR_SHAPE},
        {MODEL("    - relu: {name: x}\n    - maxpool2d: {kernel: 2}\n    - add: {from: [x, "
               "maxpool2d1]}\n"),
         "m.yaml:8:7: layer \"add1\": cannot add (3, 8, 8) and (3, 4, 4)", TR_SHAPE},
        {MODEL("    - maxpool2d: {kernel: 2}\n    - concat: {from: [input, maxpool2d1]}\n"),
         "m.yaml:7:7: layer \"concat1\": cannot concatenate (3, 8, 8) and (3, 4, 4) along axis 1",
         TR_SHAPE},
        {MODEL("    - conv2d: {out: 3, kernel: 3}\n    - concat: {from: [input, conv2d1], axis: "
               "-1}\n"),
         "m.yaml:7:7: layer \"concat1\": cannot concatenate (3, 8, 8) and (3, 6, 6) along axis 3",
         TR_SHAPE},
        {MODEL("    - concat: {from: [input, input], axis: 4}\n"),
         "m.yaml:6:7: layer \"concat1\": axis 4: expected 1 to 3 or -3 to -1 for samples of (3, 8, "
         "8)",
         TR_SHAPE},
        {MODEL("    - concat: {from: [input, input], axis: 0}\n"),
         "m.yaml:6:7: layer \"concat1\": axis 0: expected 1 to 3 or -3 to -1 for samples of (3, 8, "
         "8)",
         TR_SHAPE},
        {MODEL("    - residual: {body: [{conv2d: {out: 4, kernel: 1}}]}\n"),
         "m.yaml:6:7: layer \"residual1\": its body gives (4, 8, 8), its shortcut (3, 8, 8)",
         TR_SHAPE},
        {MODEL("    - maxpool2d: {kernel: 2, padding: 2}\n"),
         "m.yaml:6:7: layer \"maxpool2d1\": padding 2 is more than half the kernel 2", TR_SHAPE},
        {MODEL("    - dropout: {p: 1}\n"), "m.yaml:6:7: layer \"dropout1\": p: 1 is not below 1",
         TR_CONFIG},
        {MODEL("    - conv3d: {out: 4}\n"),
         "m.yaml:6:7: unknown layer \"conv3d\": did you mean \"conv1d\"?", TR_CONFIG},
        {MODEL("    - [relu]\n"),
         "m.yaml:6:7: a layer is a name, or a map of one name to its options", TR_CONFIG},
        {MODEL("    - relu: {}\n      tanh: {}\n"),
         "m.yaml:6:7: a layer is a name, or a map of one name to its options", TR_CONFIG},
        {MODEL("    - linear: 4\n"), "m.yaml:6:7: layer \"linear1\": its options are a map",
         TR_CONFIG},
        {MODEL("    - relu: {name: a}\n    - relu: {name: a}\n"),
         "m.yaml:7:7: two layers are named \"a\"", TR_CONFIG},
        {MODEL("    - relu: {name: input}\n"), "m.yaml:6:7: two layers are named \"input\"",
         TR_CONFIG},
        {MODEL("    - relu: {name: a/b}\n"),
         "m.yaml:6:20: a layer's name has letters, digits and _.- only, not \"a/b\"", TR_CONFIG},
        {MODEL("    - relu: {name: .}\n"),
         "m.yaml:6:20: a layer's name has letters, digits and _.- only, not \".\"", TR_CONFIG},
        {MODEL("    - relu: {from: inptu}\n"),
         "m.yaml:6:20: layer \"relu1\": no earlier layer or input is named \"inptu\": did you mean "
         "\"input\"?",
         TR_CONFIG},
        {MODEL("    - relu: {from: [input, input]}\n"),
         "m.yaml:6:7: layer \"relu1\": it takes one input, not 2", TR_CONFIG},
        {MODEL("    - add\n"), "m.yaml:6:7: layer \"add1\": from: it takes a list of 2 to 8 names",
         TR_CONFIG},
        {MODEL("    - relu\n    - tanh: {from: input}\n" HEAD),
         "m.yaml:6:7: layer \"relu1\": its output is not used", TR_CONFIG},
        {MODEL("    - repeat: {times: 65536, layers: [relu, tanh]}\n" HEAD),
         "m.yaml:6:39: layer \"relu1.32769\": a model has at most 65536 layers", TR_CONFIG},
        {MODEL("    - repeat: {times: 2, layers: []}\n"),
         "m.yaml:6:34: a list of layers was expected", TR_CONFIG},
        {"  inputs: {a: [4], b: [4]}\n  layers: [relu]\n  loss: mse\n",
         "m.yaml:4:20: input \"b\" is not used", TR_CONFIG},
        {"  input: [1000000000, 1000000000, 1000000000]\n  layers: [relu]\n  loss: mse\n",
         "m.yaml:4:3: input \"input\" is too large", TR_CONFIG},
        {"  input: [4]\n  layers: [{linear: {out: 3}}]\n  loss: {cross_entropy: {class_weights: "
         "[1, "
         "2]}}\n",
         "m.yaml:6:41: model.loss.cross_entropy.class_weights: 2 class_weights, but layer "
         "\"linear1\" gives 3 classes",
         TR_SHAPE},
        {"  input: [4]\n  layers: [{linear: {out: 3}}]\n  loss: {bce: {pos_weight: [1, 2]}}\n",
         "m.yaml:6:28: model.loss.bce.pos_weight: 2 pos_weights, but layer \"linear1\" gives 3 "
         "outputs",
         TR_SHAPE},
        {"  input: [4]\n  layers: [{linear: {out: 1}}]\n  loss: cross_entropy\n",
         "m.yaml:5:13: layer \"linear1\": it gives one output, of which cross_entropy learns "
         "nothing: model.loss: bce takes one for yes or no (labels 0 and 1), cross_entropy one a "
         "class",
         TR_SHAPE},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        test_model_fails(cases[i].model, cases[i].st, cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_shapes),
        cmocka_unit_test(test_named_inputs),
        cmocka_unit_test(test_from_in_repeat),
        cmocka_unit_test(test_resnet20),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
