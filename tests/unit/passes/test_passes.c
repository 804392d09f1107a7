/* links: trireme_cpu trireme_plan */
/* Passes from model to model: what each finds in a model made for it, and what it leaves alone; and
 * that on hundreds of generated models nothing is computed otherwise. */
#include "tests/unit/passes/passes.h"

static void test_batchnorm(void **state)
{
    (void)state;
    finds("batchnorm", 2,
          IMAGE("{" CONV ", bias: false}}, batchnorm, relu, {" CONV "}}, batchnorm"),
          "conv2d1 relu1 conv2d2");
    finds("batchnorm", 2,
          IMAGE("{" CONV ", groups: 4}}, batchnorm, {" CONV ", groups: 2}}, batchnorm, flatten"),
          "conv2d1 conv2d2 flatten1");
    finds("batchnorm", 1, ROW("{linear: {out: 5}}, dropout, batchnorm"), "linear1 dropout1");
    finds("batchnorm", 1, IMAGE("{" CONV "}}, {batchnorm: {affine: false}}"), "conv2d1");
    /* one without parameters goes into another layer, and takes nothing */
    finds("batchnorm", 0, ROW("relu, {batchnorm: {affine: false}}, batchnorm"),
          "relu1 batchnorm1 batchnorm2");
    /* in pieces, through sums and pooling */
    finds("batchnorm", 1,
          IMAGE("{" CONV
                ", name: a}}, {conv2d: {out: 2, kernel: 1, from: input, name: b}}, {concat: "
                "{from: [a, b]}}, batchnorm"),
          "a b concat1");
    finds("batchnorm", 1,
          IMAGE("{" CONV ", name: a}}, {" CONV ", from: input, name: b}}, {add: {from: [a, b]}}, "
                "global_avgpool, flatten, batchnorm"),
          "a b add1 global_avgpool1 flatten1");
    finds("batchnorm", 1, ROW("batchnorm, batchnorm"), "batchnorm1");
    /* the same convolution is read elsewhere; its weights are; what is before is no product */
    finds("batchnorm", 0, IMAGE("{" CONV ", name: a}}, batchnorm, {add: {from: [a, batchnorm1]}}"),
          "a batchnorm1 add1");
    finds("batchnorm", 0,
          IMAGE("{" CONV ", name: a}}, batchnorm, relu, {" CONV ", weight_of: a}}, batchnorm"),
          "a batchnorm1 relu1 conv2d2 batchnorm2");
    finds("batchnorm", 0, IMAGE("{" CONV "}}, relu, batchnorm"), "conv2d1 relu1 batchnorm1");
    finds("batchnorm", 0, ROW("{linear: {out: 5, stored: bfloat16}}, batchnorm"),
          "linear1 batchnorm1");
}

static size_t count_in_8_bits(const char *options, tr_network **before, tr_network **after)
{
    prover p = {.seed = 3};
    char *text = tr_sprintf(IMAGE("{" CONV ", stored: int8%s}}, batchnorm, relu"), options);
    tr_network *n = network_of(text, 9);
    const tr_param *w = tr_network_row(n, "conv2d1", "weight");
    tr_param_quantize(w, n->params + w->offset, tr_network_state(n, "conv2d1", TR_SCALE_STATE),
                      NULL);
    static const float weights[] = {-0.7f, 0, 0.4f, 1.1f};
    memcpy(tr_network_param(n, "batchnorm1", "weight"), weights, sizeof weights);
    result r = run(n, "batchnorm", &p);
    if (report(&r, "batchnorm")->undone) fail_msg("%s", report(&r, "batchnorm")->note);
    tr_free(text);
    *before = r.before;
    *after = r.after;
    return report(&r, "batchnorm")->count;
}

/* Behind quantization-aware training: the integers stay, their scales take what batchnorm
 * multiplies by. */
static void test_batchnorm_of_8_bits(void **state)
{
    (void)state;
    static const char *const options[] = {"", ", bias: false", ", groups: 2",
                                          ", learn_scale: true"};
    for (size_t k = 0; k < TR_COUNT(options); k++) {
        tr_network *a, *b;
        const bool learned = k == 3;
        assert_int_equal(count_in_8_bits(options[k], &a, &b), !learned);
        assert_int_equal(b->model->nlayers, learned ? 3 : 2);
        const tr_param *p = tr_network_row(a, "conv2d1", "weight");
        const float *w = tr_network_param(a, "conv2d1", "weight"),
                    *v = tr_network_param(b, "conv2d1", "weight"),
                    *s = tr_network_state(a, "conv2d1", TR_SCALE_STATE),
                    *t = tr_network_state(b, "conv2d1", TR_SCALE_STATE);
        const size_t each = p->count / 4;
        for (size_t i = 0; !learned && i < p->count; i++) {
            const size_t o = i / each;
            const float q = rintf(v[i] / t[o]);
            assert_true(t[o] > 0 && v[i] == q * t[o] && q == rintf(q));
            assert_true(q == (o == 1 ? 0 : o == 0 ? -rintf(w[i] / s[o]) : copysignf(q, w[i])));
            assert_true(o < 2 || fabsf(q) == fabsf(rintf(w[i] / s[o])));
        }
        tr_network_close(a);
        tr_network_close(b);
    }
}

static void test_batchnorm_before(void **state)
{
    (void)state;
    finds("batchnorm_before", 1, IMAGE("relu, batchnorm, {conv2d: {out: 4, kernel: 3, groups: 2}}"),
          "relu1 conv2d1");
    finds("batchnorm_before", 1, IMAGE("batchnorm, flatten, {linear: {out: 3, bias: false}}"),
          "flatten1 linear1");
    finds(
        "batchnorm_before", 1,
        IMAGE("{relu: {name: x}}, {batchnorm: {name: y}}, {conv2d: {out: 2, kernel: 1, name: a}}, "
              "{concat: {from: [x, y]}}, {conv2d: {out: 2, kernel: 1, name: b}}, {add: {from: [a, "
              "b]}}"),
        "x a concat1 b add1");
    finds("batchnorm_before", 0, IMAGE("batchnorm, {" CONV "}}"), "batchnorm1 conv2d1");
    finds("batchnorm_before", 0, IMAGE("batchnorm, relu, {conv2d: {out: 4, kernel: 3}}"),
          "batchnorm1 relu1 conv2d1");
    finds("batchnorm_before", 0, ROW("{linear: {out: 5}}, batchnorm"), "linear1 batchnorm1");
}

static void test_identity(void **state)
{
    (void)state;
    finds("identity", 6,
          IMAGE("{" CONV
                "}}, dropout, relu, {maxpool2d: {kernel: 1}}, {maxpool2d: {kernel: 2}}, relu, "
                "flatten, flatten, sigmoid, relu, {linear: {out: 2}}, dropout"),
          "conv2d1 relu1 maxpool2d2 flatten1 sigmoid1 linear1");
    finds("identity", 3,
          IMAGE("relu, {pad: {padding: 0, value: 1}}, {pad: {padding: [1, -1, 0, 0]}}, {permute: "
                "{dims: [1, 2, 3]}}, {reshape: {dims: [4, 6, 6]}}"),
          "relu1 pad2");
    finds("identity", 0, ROW("dropout"), "dropout1");
    finds("identity", 2, ROW("{linear: {out: 5}}, hardsigmoid, relu, softplus, relu, elu, relu"),
          "linear1 hardsigmoid1 softplus1 elu1 relu3");
    finds("identity", 0, IMAGE("relu, {leaky_relu: {negative_slope: -1}}, relu"),
          "relu1 leaky_relu1 relu2");
}

static void test_pool(void **state)
{
    (void)state;
    finds("pool", 1, IMAGE("{avgpool2d: {kernel: 6}}, flatten"), "avgpool2d1 flatten1");
    finds("pool", 0, IMAGE("{avgpool2d: {kernel: 3}}, flatten"), "avgpool2d1 flatten1");
    prover p = {.seed = 1};
    result r = run(network_of(IMAGE("{avgpool2d: {kernel: 6}}, flatten"), 1), NULL, &p);
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    ok(tr_model_write(r.after->model, 0, f));
    fclose(f);
    assert_non_null(strstr(text, "- global_avgpool:\n      name: \"avgpool2d1\"\n"));
    free(text);
    done(&r);
}

static void test_products(void **state)
{
    (void)state;
    finds("products", 1, ROW("{linear: {out: 9}}, {linear: {out: 5, bias: false}}"), "linear1");
    finds("products", 2,
          ROW("{linear: {out: 9, bias: false}}, {linear: {out: 9}}, {linear: {out: 5}}"),
          "linear1");
    finds("products", 1, IMAGE("{" CONV ", stride: 2}}, {conv2d: {out: 3, kernel: 1}}"), "conv2d1");
    finds("products", 1,
          IMAGE("{conv2d: {out: 8, kernel: 1}}, {conv2d: {out: 3, kernel: [3, 2], dilation: 2}}"),
          "conv2d2");
    finds("products", 1,
          IMAGE("{conv2d: {out: 8, kernel: 1, bias: false}}, {" CONV ", bias: false}}"), "conv2d2");
    /* more to compute; zeros at the border; groups; something between */
    finds("products", 0, ROW("{linear: {out: 2}}, {linear: {out: 9}}"), "linear1 linear2");
    finds("products", 0, IMAGE("{conv2d: {out: 8, kernel: 1}}, {" CONV "}}"), "conv2d1 conv2d2");
    finds("products", 0, IMAGE("{" CONV ", groups: 2}}, {conv2d: {out: 3, kernel: 1}}"),
          "conv2d1 conv2d2");
    finds("products", 0, ROW("{linear: {out: 9}}, relu, {linear: {out: 5}}"),
          "linear1 relu1 linear2");
}

/* Layers of equal values, which chance does not make. */
static void test_common(void **state)
{
    (void)state;
    prover p = {.seed = 2};
    tr_network *n =
        network_of(IMAGE("{relu: {name: x}}, {" CONV ", name: a}}, {relu: {name: ra}}, {" CONV
                         ", name: b, from: x}}, {relu: {name: rb}}, {" CONV
                         ", name: c, from: x, weight_of: a}}, "
                         "{concat: {from: [ra, rb, c]}}"),
                   5);
    const char *const names[] = {"weight", "bias"};
    for (int i = 0; i < 2; i++)
        memcpy(tr_network_param(n, "b", names[i]), tr_network_param(n, "a", names[i]),
               sizeof(float) * tr_network_row(n, "a", names[i])->count);
    result r = run(n, "common", &p);
    assert_int_equal(report(&r, "common")->count, 2);
    assert_false(has_layer(r.after, "b") || has_layer(r.after, "rb"));
    assert_true(has_layer(r.after, "c")); /* its bias is another */
    done(&r);
}

static void test_constants(void **state)
{
    (void)state;
    prover p = {.seed = 2};
    tr_network *n = network_of(IMAGE("{relu: {name: x}}, {" CONV
                                     ", name: a}}, sigmoid, batchnorm, {maxpool2d: {kernel: 3, "
                                     "padding: 1, stride: 1, name: k}}, {" CONV
                                     ", name: b, from: x, bias: false}}, {add: "
                                     "{from: [k, b]}}, relu"),
                               5);
    memset(tr_network_param(n, "a", "weight"), 0,
           sizeof(float) * tr_network_row(n, "a", "weight")->count);
    result r = run(n, "constants", &p);
    if (report(&r, "constants")->undone) fail_msg("%s", report(&r, "constants")->note);
    assert_int_equal(report(&r, "constants")->count, 1);
    assert_int_equal(r.after->model->nlayers, 3);
    assert_non_null(tr_network_param(r.after, "b", "bias"));
    done(&r);
    n = network_of(
        ROW("{linear: {out: 4, name: a}}, {linear: {out: 4, name: b}}, {add: {from: [a, b]}}"), 1);
    memset(tr_network_param(n, "b", "weight"), 0,
           sizeof(float) * tr_network_row(n, "b", "weight")->count);
    r = run(n, "constants", &p);
    assert_int_equal(report(&r, "constants")->count, 1);
    assert_int_equal(r.after->model->nlayers, 1);
    done(&r);
    /* all that is left is constant */
    n = network_of(
        ROW("{linear: {out: 4, name: a}}, {linear: {out: 4, name: b}}, {add: {from: [a, b]}}"), 1);
    memset(tr_network_param(n, "a", "weight"), 0,
           sizeof(float) * tr_network_row(n, "a", "weight")->count);
    r = run(n, "constants", &p);
    assert_int_equal(r.after->model->nlayers, 3);
    done(&r);
}

static void test_bias(void **state)
{
    (void)state;
    prover p = {.seed = 2};
    tr_network *n = network_of(ROW("{linear: {out: 4}}, tanh, {linear: {out: 3}}"), 1);
    memset(tr_network_param(n, "linear2", "bias"), 0, 3 * sizeof(float));
    result r = run(n, "bias", &p);
    assert_int_equal(report(&r, "bias")->count, 1);
    assert_non_null(tr_network_param(r.after, "linear1", "bias"));
    assert_null(tr_network_param(r.after, "linear2", "bias"));
    done(&r);
}

static void normalized(const char *model, float mean, float std, bool folds, const char *note)
{
    prover p = {.seed = 4, .mean = mean, .std = std};
    result r = run(network_of(model, 8), "normalize", &p);
    assert_int_equal(r.raw, folds);
    assert_int_equal(report(&r, "normalize")->count, folds);
    assert_string_equal(report(&r, "normalize")->note, note);
    done(&r);
}

static void test_normalize(void **state)
{
    (void)state;
    normalized(IMAGE("flatten, {linear: {out: 3}}"), 0.3f, 2, true, "");
    normalized(IMAGE("batchnorm, relu, {" CONV "}}"), 0.3f, 2, true, "");
    normalized(IMAGE("{maxpool2d: {kernel: 2}}, {conv2d: {out: 2, kernel: 2}}"), 0.3f, 2, true, "");
    normalized(IMAGE("{" CONV "}}, relu"), 0, 16, true, "");
    normalized(IMAGE("{" CONV "}}, relu"), 0.5f, 16, false,
               "\"conv2d1\" pads with zeros, which a mean would move");
    normalized(IMAGE("tanh, {" CONV "}}"), 0, 16, false, "\"tanh1\" stands between");
    normalized(IMAGE("{relu: {name: x}}, {" CONV "}}, {add: {from: [conv2d1, input]}}"), 0, 16,
               false, "\"add1\" stands between");
}

/* What is not the same is undone, and nothing is tried that is to be skipped. */
static void test_undone(void **state)
{
    (void)state;
    prover p = {.seed = 4, .add = 1};
    result r = run(network_of(IMAGE("{" CONV "}}, batchnorm"), 8), "batchnorm", &p);
    assert_true(report(&r, "batchnorm")->undone);
    assert_int_equal(report(&r, "batchnorm")->count, 0);
    assert_int_equal(r.after->model->nlayers, 2);
    assert_true(networks_apart(r.before, r.after, 5) == 0);
    assert_non_null(
        strstr(report(&r, "batchnorm")->note, "outputs differ by 1, the bound is 2e-05"));
    assert_int_equal(p.calls, 1);
    for (size_t i = 0; i < tr_pass_count(); i++)
        assert_int_equal(r.reports[i].skipped, strcmp(tr_pass_at(i)->name, "batchnorm") != 0);
    done(&r);
    tr_network *n = network_of(ROW("relu"), 1), *out = NULL;
    const char *skip[] = {"batchnorms"};
    bool raw;
    tr_pass_report reports[32];
    assert_int_equal(
        tr_passes_run(n, &(tr_passes_options){.skip = skip, .nskip = 1}, &out, &raw, reports),
        TR_CONFIG);
    assert_string_equal(tr_last_error()->text,
                        "there is no pass \"batchnorms\": did you mean \"batchnorm\"?");
    tr_network_close(n);
}

/* Now and then a weight is zeros, or one layer has the values of another. */
static void contrive(tr_network *n, uint64_t seed)
{
    const tr_model *m = n->model;
    const tr_param *p = &m->params[seed % m->nparams];
    if (seed % 2 && (p->ndim > 1 || strcmp(p->name, "bias") == 0))
        memset(n->params + p->offset, 0, p->count * sizeof(float));
    for (size_t i = 0; seed % 2 == 0 && i < m->nparams; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(m->params[i].name, m->params[k].name) == 0 &&
                memcmp(m->params[i].dims, m->params[k].dims, sizeof m->params[i].dims) == 0)
                memcpy(n->params + m->params[i].offset, n->params + m->params[k].offset,
                       m->params[i].count * sizeof(float));
}

/* All passes together, and each alone, on models by chance: each is proven as it runs; what comes
 * out is the same once more by its own text. */
static void test_generated(void **state)
{
    (void)state;
    size_t found[32] = {0}, alone = 0, layers[2] = {0};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        char *text = generated_model(seed);
        /* data that is normalized: by a mean, where no zeros are padded, or by a factor alone */
        prover p = {
            .seed = seed, .mean = seed % 10 == 1 ? 0.3f : 0, .std = seed % 5 == 1 ? 2.f : 0};
        const char *only = seed % 3 == 0 ? tr_pass_at(seed / 3 % tr_pass_count())->name : NULL;
        tr_network *n = network_of(text, seed);
        if (seed % 4 == 0) contrive(n, seed / 4);
        result r = run(n, only, &p);
        for (size_t i = 0; i < tr_pass_count(); i++) {
            if (r.reports[i].undone)
                fail_msg("seed %d, %s: %s\n%s", (int)seed, tr_pass_at(i)->name, r.reports[i].note,
                         text);
            found[i] += r.reports[i].count;
        }
        if (only) alone += changed(&r);
        p.seed = seed + 1;
        double d;
        ok(differ(&p, &(tr_pass_subject){.network = r.before},
                  &(tr_pass_subject){.network = r.after, .raw = r.raw}, &d));
        if (!(d <= 5 * BOUND)) fail_msg("seed %d: %g\n%s", (int)seed, d, text);
        tr_network *again = rebuilt(r.after);
        assert_true(networks_apart(r.after, again, seed) == 0);
        layers[0] += r.before->model->nlayers;
        layers[1] += r.after->model->nlayers;
        tr_network_close(again);
        done(&r);
        free(text);
    }
    /* the generator does reach what is tested */
    for (size_t i = 0; i < tr_pass_count(); i++)
        if (found[i] == 0) fail_msg("no model has anything for %s", tr_pass_at(i)->name);
    assert_true(found[1] > 20 && found[5] > 600 && found[8] > 50 &&
                layers[1] < layers[0] * 9 / 10 && alone > 40);
}

/* The page has a row for each, in their order; then one for each pass over the graph. */
static void test_documented(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    ok(tr_read_text(TR_SOURCE_DIR "/docs/passes.md", &text, &n));
    const char *at = text;
    for (size_t i = 0; i < tr_pass_count() + TR_GRAPH_PASSES; i++) {
        const size_t graph = i - tr_pass_count();
        const bool over = i >= tr_pass_count();
        const tr_graph_pass *g = over ? tr_graph_pass_at((tr_graph_pass_id)graph) : NULL;
        char *row = tr_sprintf("\n| `%s` | %s |", over ? g->name : tr_pass_at(i)->name,
                               over ? g->what : tr_pass_at(i)->doc);
        const char *found = strstr(at, row);
        if (!found) fail_msg("docs/passes.md lacks, in its place:%s", row);
        at = found + 1;
        tr_free(row);
    }
    assert_null(strstr(at, "\n| `"));
    tr_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batchnorm),
        cmocka_unit_test(test_batchnorm_before),
        cmocka_unit_test(test_batchnorm_of_8_bits),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_common),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_normalize),
        cmocka_unit_test(test_undone),
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_documented),
    };
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
