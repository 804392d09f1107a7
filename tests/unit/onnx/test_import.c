/* links: trireme_cpu trireme_runtime */
/* What we write is read back as it was: a model for each layer in every opset, random models. What
 * others write that is damaged or no model of ours is told. */
#include "runtime/graph/facts.h"
#include "tests/unit/onnx/back.h"
#include "tests/unit/few_files.h"
#include "tests/unit/onnx/crafted.h"

/* Those layers are read back as the dense ones that they are a product of. */
static bool sketched(const tr_model *m)
{
    tr_sketch_facts f;
    return tr_layer_sketch(m, &m->layers[0], &f) ||
           tr_layer_sketch(m, &m->layers[m->nlayers - 1], &f);
}

/* Every row that computes something is there again with its bits. */
static void same_rows(const tr_network *a, const tr_network *b)
{
    for (size_t i = 0; i < a->model->nparams; i++) {
        const tr_param *p = &a->model->params[i], *q = tr_network_row(b, p->layer, p->name);
        if (!q) fail_msg("no %s.%s", p->layer, p->name);
        assert_int_equal(p->uses, q->uses);
        assert_int_equal(p->count, q->count);
        assert_memory_equal(a->params + p->offset, b->params + q->offset, p->count * sizeof(float));
    }
    assert_int_equal(a->model->nparams, b->model->nparams);
    for (size_t i = 0; i < a->model->nstates; i++) {
        const tr_state *p = &a->model->states[i], *q = tr_network_state_row(b, p->layer, p->name);
        if (!q) fail_msg("no %s.%s", p->layer, p->name);
        assert_memory_equal(a->states + p->offset, b->states + q->offset, p->count * sizeof(float));
    }
}

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(onnx_cases); i++) {
        tr_network *n = net_of(&onnx_cases[i], i);
        for (int opset = TR_ONNX_OPSET_MIN; opset <= TR_ONNX_OPSET_MAX; opset += 4) {
            const tr_onnx_options o = {.opset = opset};
            tr_network *back = read_back(&o, n, NULL);
            if (!sketched(n->model)) same_rows(n, back);
            same_outputs(onnx_cases[i].name, n, back, 1e-6);
            tr_network_close(back);
        }
        tr_network_close(n);
    }
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        char what[32];
        tr_network *n = net_random(random_model(seed, 0), seed);
        const tr_onnx_options o = {.opset = 13 + (int64_t)(seed % 9)};
        tr_network *back = read_back(&o, n, NULL);
        snprintf(what, sizeof what, "seed %d", (int)seed);
        same_rows(n, back);
        /* without dropout, and without flatten of what is flat */
        assert_true(back->model->nlayers <= n->model->nlayers);
        if (seed < 100) same_outputs(what, n, back, 1e-6);
        tr_network_close(back);
        tr_network_close(n);
    }
}

/* ---- What is not ours, or damaged ------------------------------------------------------------ */

static void fails(tr_status st, const char *text)
{
    const tr_status got = try_read();
    if (got != st || !strstr(tr_last_error()->text, text))
        print_message("%d: %s\n", (int)got, tr_last_error()->text);
    assert_int_equal(got, st);
    assert_non_null(strstr(tr_last_error()->text, text));
}

/* The same number of other bytes, everywhere. */
static void replace(unsigned char *v, size_t n, const char *from, const char *to)
{
    const size_t m = strlen(from);
    int found = 0;
    assert_int_equal(m, strlen(to));
    for (size_t i = 0; i + m <= n; i++)
        if (memcmp(v + i, from, m) == 0) memcpy(v + i, to, m), found++;
    assert_true(found > 0);
}

/* All that is not supported, at once, by node and operator. */
static void test_unsupported(void **state)
{
    (void)state;
    size_t n;
    write_case(FEATURES("    - tanh: {name: here}\n    - relu\n    - sigmoid: {name: there}\n"),
               &(tr_onnx_options){.opset = 17});
    unsigned char *v = whole(&n);
    replace(v, n, "Tanh", "Tanx");
    replace(v, n, "Sigmoid", "Sigmoix");
    put(v, n);
    fails(TR_UNSUPPORTED, "2 of its nodes cannot be layers here: node \"here\" (Tanx): there is no "
                          "layer for it; node \"there\" (Sigmoix): there is no layer for it");
    free(v);
}

/* Values in a second file: beside the first, whole, and nowhere else. */
static void test_external(void **state)
{
    (void)state;
    static const char model[] = FEATURES("    - linear: {out: 99}\n    - linear: {out: 3}\n");
    const onnx_case c = {"", model};
    const tr_onnx_options o = {.external_over = 1};
    size_t n;
    tr_network *net = net_of(&c, 1), *back = read_back(&o, net, NULL);
    same_rows(net, back);
    tr_network_close(net);
    tr_network_close(back);
    unsigned char *v = whole(&n);
    static const char *const places[] = {"../m.onnx.d", "/etc/passwd", "./../m.onnx",
                                         "dir/m.onnx."};
    for (size_t i = 0; i < 4; i++) {
        unsigned char *other = malloc(n);
        memcpy(other, v, n);
        replace(other, n, "m.onnx.data", places[i]);
        put(other, n);
        fails(TR_DATA, "which is no file below its folder");
        free(other);
    }
    put(v, n);
    ok(try_read());
    char *data = tr_sprintf("%s.data", path);
    assert_int_equal(truncate(data, 100), 0);
    fails(TR_DATA, "ends before the values of");
    unlink(data);
    assert_int_equal(symlink("/etc/passwd", data), 0);
    fails(TR_DATA, "which is no file below its folder");
    unlink(data);
    tr_free(data);
    free(v);
}

/* What fits one message stays in one, to the byte; one byte more, and values go out. */
static void test_too_large(void **state)
{
    (void)state;
    static const char model[] = FEATURES("    - linear: {out: 99}\n    - linear: {out: 3}\n");
    const onnx_case c = {"", model};
    tr_onnx_options o = {0};
    size_t n, graph;
    char *data = tr_sprintf("%s.data", path);
    tr_network *net = net_of(&c, 1);
    ok(tr_onnx_write(path, net, &o));
    free(whole(&n));
    for (int less = 0; less < 2; less++) {
        o.message_max = n - (size_t)less;
        tr_network *back = read_back(&o, net, NULL);
        same_rows(net, back);
        tr_network_close(back);
        free(whole(&graph));
        assert_int_equal(access(data, F_OK), less ? 0 : -1);
        assert_true(less ? graph < n : graph == n);
    }
    o.message_max = 100; /* names and nodes alone are more */
    assert_int_equal(tr_onnx_write(path, net, &o), TR_UNSUPPORTED);
    free(whole(&n));
    assert_int_equal(n, graph); /* both older files stay */
    assert_int_equal(access(data, F_OK), 0);
    tr_free(data);
    tr_network_close(net);
}

/* A graph in an attribute of a node of a graph, and so on: protobuf-c follows by recursion. */
static void test_deep(void **state)
{
    (void)state;
    enum { MOST = 1 << 17 };
    unsigned char *v = calloc(1, MOST);
    size_t at = MOST;
    static const unsigned char fields[] = {1, 5, 6}; /* node, attribute, g */
    for (int i = 0; i <= 9000; i++) {                /* the outermost one is a graph */
        size_t n = MOST - at;
        unsigned char length[5];
        int k = 0;
        do {
            length[k++] = (unsigned char)((n & 0x7f) | (n > 0x7f ? 0x80 : 0));
            n >>= 7;
        } while (n);
        at -= (size_t)k;
        memcpy(v + at, length, (size_t)k);
        v[--at] = (unsigned char)(fields[2 - i % 3] << 3 | 2);
    }
    v[at] = 7 << 3 | 2; /* the model's graph */
    put(v + at, MOST - at);
    fails(TR_DATA, "no ONNX file, or a damaged one");
    free(v);
}

/* Bytes changed, left out and put in at random: a network or an error with a text, and nothing is
 * left. */
static void test_damaged(void **state)
{
    (void)state;
    const size_t before = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_WEIGHTS);
    int good = 0, bad = 0;
    for (size_t i = 0; i < TR_COUNT(onnx_cases); i += 2) {
        size_t n;
        write_case(onnx_cases[i].model, &(tr_onnx_options){.opset = 13 + (int64_t)(i % 9)});
        unsigned char *v = whole(&n), *w = malloc(n);
        for (uint32_t k = 0; k < 60; k++) {
            const tr_philox any = tr_philox_at(i, TR_RNG_TEST, 7, k, 0);
            memcpy(w, v, n);
            for (uint32_t j = 0; j <= any.v[3] % 4; j++) {
                const tr_philox at = tr_philox_at(i, TR_RNG_TEST, 8, k, j);
                w[at.v[0] % n] = (unsigned char)(at.v[1] % 3 ? at.v[2] : 0xff);
            }
            put(w, k % 5 == 0 ? any.v[0] % n : n);
            if (try_read() == TR_OK)
                good++;
            else
                assert_true(++bad && *tr_last_error()->text);
        }
        free(v);
        free(w);
    }
    assert_true(good > 10 && bad > 100);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_WEIGHTS), before);
}

/* float16 weights come back as what they were rounded to; metadata and normalization are kept. */
static void test_options(void **state)
{
    (void)state;
    test_model t = test_model_open(IMAGE("    - conv2d: {out: 3, kernel: 3}\n    - flatten\n"));
    tr_config *c = NULL;
    static const char *const over[] = {"data.normalize={mean: [1, 2, 3, 4], std: 0.5}"};
    ok(tr_config_derive(t.config, &(tr_overrides){.texts = over, .count = 1}, &c));
    tr_model *m = t.model;
    t.model = NULL;
    tr_network *n = net_random(m, 4);
    for (size_t i = 0; i < m->flat_count; i++)
        n->params[i] = tr_f16_to_f32(tr_f32_to_f16(n->params[i]));
    tr_onnx_found found;
    const tr_onnx_options o = {.weights = TR_F16, .config = c, .normalize = true};
    tr_network *back = read_back(&o, n, &found);
    same_rows(n, back);
    assert_string_equal(found.normalize, "{input: {mean: [1, 2, 3, 4], std: [0.5]}}");
    assert_non_null(strstr(found.config, "conv2d:"));
    tr_onnx_found_free(&found);
    tr_network_close(back);
    tr_network_close(n);
    tr_config_close(c);
    test_model_close(&t);
}

/* ---- Files that nobody exports --------------------------------------------------------------- */

static const int64_t image[] = {4, 5, 5}, channels[] = {4, 1, 1};

/* y of x, by the nodes that are already there. */
static void write_graph(message *g, const int64_t *out, int ndim)
{
    graph_value(g, GRAPH_INPUT, "x", 3, image);
    graph_value(g, GRAPH_OUTPUT, "y", ndim, out);
    graph_write(path, g);
}

/* What several read is not changed for all of them: data.normalize is for what one node reads. */
static void test_readers(void **state)
{
    (void)state;
    static const float mean[] = {1, 2, 3, 4}, std[] = {2, 4, 8, 16};
    static const struct {
        const char *pass; /* x becomes v */
        bool early;       /* what is read twice is v, else v - mean */
        const char *normalize;
    } cases[] = {{"Identity", true, NULL},
                 {"Dropout", true, NULL},
                 {"Identity", false, "{x: {mean: [1, 2, 3, 4]}}"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        message g = {0};
        graph_tensor(&g, "mean", ONNX_FLOAT, 3, channels, mean, sizeof mean);
        graph_tensor(&g, "std", ONNX_FLOAT, 3, channels, std, sizeof std);
        graph_node(&g, cases[i].pass, "v", IN("x"));
        graph_node(&g, "Sub", "a", IN("v", "mean"));
        if (cases[i].early) {
            graph_node(&g, "Add", "y", IN("a", "v"));
        } else {
            graph_node(&g, "Div", "b", IN("a", "std"));
            graph_node(&g, "Add", "y", IN("b", "a"));
        }
        write_graph(&g, image, 3);
        const tr_loss_config mse = {.kind = {TR_LOSS_MSE}};
        const tr_onnx_import in = {.loss = &mse};
        tr_network *n = NULL;
        tr_onnx_found found;
        ok(tr_onnx_read(path, &in, &n, &found));
        if (cases[i].normalize)
            assert_string_equal(found.normalize, cases[i].normalize);
        else
            assert_null(found.normalize);
        tr_onnx_found_free(&found);
        tr_network_close(n);
    }
}

/* Weights of 8 bits take eight times their bytes while they are read, in files of any size. */
static void test_bytes(void **state)
{
    (void)state;
    static const int64_t count = 1 << 24;
    message g = {0};
    void *v = calloc(1, (size_t)count);
    graph_tensor(&g, "w", ONNX_INT8, 1, &count, v, (size_t)count);
    graph_node(&g, "Relu", "y", IN("x"));
    write_graph(&g, image, 3);
    free(v);
    ok(try_read());
}

/* Nothing is allocated for values that a second file does not have; nor for the same ones, without
 * end. */
static void test_external_size(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    char *data = tr_sprintf("%s.data", path);
    FILE *f = fopen(data, "wb");
    assert_true(f && fclose(f) == 0 && truncate(data, MIB) == 0);
    for (int shared = 0; shared < 2; shared++) {
        message g = {0};
        for (int i = 0; i < (shared ? 20 : 1); i++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", i);
            graph_external(&g, name, shared ? MIB / 4 : INT64_C(1) << 48, "m.onnx.data");
        }
        graph_node(&g, "Relu", "y", IN("x"));
        write_graph(&g, image, 3);
        fails(TR_DATA, shared ? "share the values in \"m.onnx.data\" too often"
                              : "ends before the values of");
    }
    unlink(data);
    tr_free(data);
}

/* Numbers at the ends of their range. */
static void test_extremes(void **state)
{
    (void)state;
    static const int64_t two = 2, axes[2] = {INT64_MAX, INT64_MAX}, least[4] = {INT64_MIN},
                         most[4] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    static const float scale = 0.5f;
    static const char *const types[] = {"Squeeze", "ReduceMean"};
    for (int i = 0; i < 2; i++) {
        message g = {0};
        graph_tensor(&g, "axes", ONNX_INT64, 1, &two, axes, sizeof axes);
        graph_node(&g, types[i], "y", IN("x", "axes"));
        write_graph(&g, image, 1);
        fails(TR_UNSUPPORTED, i ? "only the mean over" : "only (channels, 1, 1)");
    }
    message g = {0};
    graph_tensor(&g, "q", ONNX_INT64, 3, channels, most, sizeof most);
    graph_tensor(&g, "scale", ONNX_FLOAT, 0, NULL, &scale, sizeof scale);
    graph_tensor(&g, "zero", ONNX_INT64, 0, NULL, least, sizeof *least);
    graph_node(&g, "DequantizeLinear", "w", IN("q", "scale", "zero"));
    graph_node(&g, "Relu", "r", IN("x"));
    graph_node(&g, "Add", "y", IN("r", "w"));
    write_graph(&g, image, 3);
    ok(try_read());
    message zero = tensor_begin("zero", ONNX_UINT8, 0, NULL);
    msg_int(&zero, 5, 300);
    msg_message(&g, GRAPH_INITIALIZER, &zero);
    graph_tensor(&g, "scale", ONNX_FLOAT, 0, NULL, &scale, sizeof scale);
    graph_node(&g, "QuantizeLinear", "q", IN("x", "scale", "zero"));
    graph_node(&g, "DequantizeLinear", "y", IN("q", "scale", "zero"));
    write_graph(&g, image, 3);
    fails(TR_UNSUPPORTED, "only steps of 8 bits");
}

/* Too few files that may be open: of the graph, of its folder, of the values beside it. */
static void test_few_files(void **state)
{
    (void)state;
    int failed = 0;
    tr_status st = TR_DATA;
    write_case(FEATURES("    - linear: {out: 99}\n"), &(tr_onnx_options){.external_over = 1});
    for (int more = 0; st != TR_OK && more < 9; more++) {
        const struct rlimit before = few_files_left(more);
        st = try_read();
        more_files(before);
        failed += st != TR_OK;
        if (st != TR_OK) assert_few_files("");
    }
    assert_int_equal(st, TR_OK);
    assert_true(failed >= 2);
}

/* No infinity takes the place of a weight. */
static void test_float16(void **state)
{
    (void)state;
    const onnx_case c = {"", FEATURES("    - linear: {out: 3}\n")};
    tr_network *n = net_of(&c, 1);
    tr_network_param(n, "linear1", "weight")[2] = 70000;
    assert_int_equal(tr_onnx_write(path, n, &(tr_onnx_options){.weights = TR_F16}), TR_DATA);
    assert_non_null(
        strstr(tr_last_error()->text, "linear1.weight: a value of 70000 does not fit float16"));
    tr_network_close(n);
}

/* Weights of classes that the graph has not are told with their key. */
static void test_class_weights(void **state)
{
    (void)state;
    double two[] = {1, 2};
    const tr_loss_config loss = {.kind = {TR_LOSS_CROSS_ENTROPY},
                                 .class_weights = {.v = two, .count = 2},
                                 .ignore_index = TR_NO_LABEL};
    const tr_onnx_import in = {.loss = &loss};
    tr_network *n = NULL;
    write_case(FEATURES("    - linear: {out: 3}\n"), &(tr_onnx_options){.opset = 17});
    assert_int_equal(tr_onnx_read(path, &in, &n, NULL), TR_SHAPE);
    assert_non_null(strstr(tr_last_error()->text, "model.loss.cross_entropy.class_weights: 2 "
                                                  "class_weights, but layer \"linear1\" gives 3 "
                                                  "classes"));
    assert_null(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),        cmocka_unit_test(test_random),
        cmocka_unit_test(test_options),       cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_external),      cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_deep),          cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_readers),       cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_external_size), cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_float16),       cmocka_unit_test(test_class_weights),
        cmocka_unit_test(test_few_files)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
