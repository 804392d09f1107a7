/* Blocks that a config defines, parameters, repeats over values: what they expand to, its names,
 * torchvision's among them, and what is told when something is wrong. */
#include "tests/unit/graph/expands.h"

#define HEAD "  loss: cross_entropy\n"

static void test_blocks(void **state)
{
    (void)state;
    expands("  input: [3, 8, 8]\n"
            "  params: {width: 4}\n"
            "  define:\n"
            "    unit:\n"
            "      params: {out: , stride: 1, half: $out // 2 + $width % 3, act: relu}\n"
            "      layers:\n"
            "        - conv2d: {out: $half, kernel: 1}\n"
            "        - conv2d: {out: $out, kernel: 1, stride: $stride, name: c}\n"
            "        - $act\n"
            "    gate:\n"
            "      layers: [global_avgpool, tanh, mul: {from: [input, tanh1]}]\n"
            "  layers:\n"
            "    - unit: {out: $width * 2 - 1}\n"
            "    - conv2d: {out: 2, kernel: 1}\n"
            "    - unit: {out: 5, stride: 2, name: stem, act: {dropout: {p: 0.1 * ($width + 1)}}}\n"
            "    - gate\n"
            "    - flatten\n" HEAD,
            "conv2d unit1.conv2d1<-input (4, 8, 8)\n"
            "conv2d unit1.c<-unit1.conv2d1 (7, 8, 8)\n"
            "relu unit1.relu1<-unit1.c (7, 8, 8)\n"
            "conv2d conv2d1<-unit1.relu1 (2, 8, 8)\n"
            "conv2d stem.conv2d1<-conv2d1 (3, 8, 8)\n"
            "conv2d stem.c<-stem.conv2d1 (5, 4, 4)\n"
            "dropout stem.dropout1<-stem.c (5, 4, 4)\n"
            "global_avgpool gate1.global_avgpool1<-stem.dropout1 (5, 1, 1)\n"
            "tanh gate1.tanh1<-gate1.global_avgpool1 (5, 1, 1)\n"
            "mul gate1.mul1<-stem.dropout1,gate1.tanh1 (5, 4, 4)\n"
            "flatten flatten1<-gate1.mul1 (80)");
}

/* A block in a block, one that takes layers, one read by its name, one in numbered repeats. */
static void test_names(void **state)
{
    (void)state;
    expands("  input: [4]\n"
            "  define:\n"
            "    inner: {params: {out: }, layers: [{linear: {out: $out, name: fc}}]}\n"
            "    block: {params: {out: , more: [relu]}, layers: [{inner: {out: $out}}, {residual: "
            "{name: sum, body: $more}}]}\n"
            "  layers:\n"
            "    - block: {out: 6, name: a, more: [{inner: {out: 6, name: mine}}, tanh]}\n"
            "    - repeat: {times: 2, layers: [{inner: {out: 4}}]}\n"
            "    - block: {from: a, out: 4}\n"
            "    - add: {from: [block2, repeat1]}\n" HEAD,
            "linear a.inner1.fc<-input (6)\n"
            "linear a.mine.fc<-a.inner1.fc (6)\n"
            "tanh a.tanh1<-a.mine.fc (6)\n"
            "add a.sum<-a.tanh1,a.inner1.fc (6)\n"
            "linear inner1.1.fc<-a.sum (4)\n"
            "linear inner1.2.fc<-inner1.1.fc (4)\n"
            "linear block2.inner1.fc<-a.sum (4)\n"
            "relu block2.relu1<-block2.inner1.fc (4)\n"
            "add block2.sum<-block2.relu1,block2.inner1.fc (4)\n"
            "add add1<-block2.sum,inner1.2.fc (4)");
}

static void test_paths(void **state)
{
    (void)state;
    expands(
        "  input: [4]\n  params: {zero: 0}\n"
        "  define:\n"
        "    unit: {params: {out: }, layers: [{linear: {out: $out}}, relu]}\n"
        "  layers:\n"
        "    - repeat: {name: stage, names: path, params: [out], values: [3, 5], layers: [{unit: "
        "{out: $out * 2}}]}\n"
        "    - repeat: {names: path, times: 2, layers: [tanh, {unit: {out: 4}}]}\n"
        "    - repeat: {names: none, params: [n, out], values: [[2, 7], [3, 8]], layers: [{unit: "
        "{out: $out, name: \"layer${n}\"}}, sigmoid]}\n"
        "    - repeat: {times: $zero - 0, layers: [relu]}\n"
        "    - relu\n" HEAD,
        "linear stage.0.linear1<-input (6)\n"
        "relu stage.0.relu1<-stage.0.linear1 (6)\n"
        "linear stage.1.linear1<-stage.0.relu1 (10)\n"
        "relu stage.1.relu1<-stage.1.linear1 (10)\n"
        "tanh repeat2.0.tanh1<-stage.1.relu1 (10)\n"
        "linear repeat2.0.unit1.linear1<-repeat2.0.tanh1 (4)\n"
        "relu repeat2.0.unit1.relu1<-repeat2.0.unit1.linear1 (4)\n"
        "tanh repeat2.1.tanh1<-repeat2.0.unit1.relu1 (4)\n"
        "linear repeat2.1.unit1.linear1<-repeat2.1.tanh1 (4)\n"
        "relu repeat2.1.unit1.relu1<-repeat2.1.unit1.linear1 (4)\n"
        "linear layer2.linear1<-repeat2.1.unit1.relu1 (7)\n"
        "relu layer2.relu1<-layer2.linear1 (7)\n"
        "sigmoid sigmoid1<-layer2.relu1 (7)\n"
        "linear layer3.linear1<-sigmoid1 (8)\n"
        "relu layer3.relu1<-layer3.linear1 (8)\n"
        "sigmoid sigmoid2<-layer3.relu1 (8)\n"
        "relu relu1<-sigmoid2 (8)");
}

/* Expressions of parameters from several places around, and a list as the value of a repeat's one
 * parameter. */
static void test_levels(void **state)
{
    (void)state;
    expands("  input: [4]\n  params: {w: 3, e: 1e1}\n"
            "  define:\n"
            "    unit: {params: {out: , more: [relu]}, layers: [{repeat: {params: [k], values: [1, "
            "2], layers: "
            "[{linear: {out: $out * $k + $w}}]}}, {residual: {body: $more}}]}\n"
            "  layers:\n"
            "    - repeat: {params: [a], values: [5], layers: [{repeat: {params: [b], values: [2], "
            "layers: "
            "[{linear: {out: ($a - $w) * $b}}, {unit: {out: $b * $e / $a}}]}}]}\n"
            "    - repeat: {params: [s], values: [[], [tanh]], layers: [{residual: {body: [relu], "
            "shortcut: $s}}]}\n" HEAD,
            "linear linear1.1.1<-input (4)\n"
            "linear unit1.1.1.linear1.1<-linear1.1.1 (7)\n"
            "linear unit1.1.1.linear1.2<-unit1.1.1.linear1.1 (11)\n"
            "relu unit1.1.1.relu1<-unit1.1.1.linear1.2 (11)\n"
            "add unit1.1.1.residual1<-unit1.1.1.relu1,unit1.1.1.linear1.2 (11)\n"
            "relu relu1.1<-unit1.1.1.residual1 (11)\n"
            "add residual1.1<-relu1.1,unit1.1.1.residual1 (11)\n"
            "relu relu1.2<-residual1.1 (11)\n"
            "tanh tanh1.2<-residual1.1 (11)\n"
            "add residual1.2<-relu1.2,tanh1.2 (11)");
}

static void test_errors(void **state)
{
    (void)state;
#define MODEL(params, define, layers)                                                              \
    "  input: [4]\n  params: " params "\n  define: " define "\n  layers:\n" layers HEAD
#define UNIT "{unit: {params: {out: , n: 1}, layers: [{linear: {out: $out}}]}}"
    static const struct {
        const char *model, *text;
    } cases[] = {
        {MODEL("{}", UNIT, "    - unit\n"),
         "m.yaml:8:7: block \"unit\": its parameter \"out\" is missing"},
        {MODEL("{}", UNIT, "    - unit: {uot: 4}\n"),
         "m.yaml:8:14: block \"unit\" has no parameter \"uot\": did you mean \"out\"?"},
        {MODEL("{}", UNIT, "    - unit: [4]\n"),
         "m.yaml:8:13: a block's options are a map of its parameters"},
        {MODEL("{}", UNIT, "    - unti: {out: 4}\n"),
         "m.yaml:8:7: unknown layer \"unti\": did you mean \"unit\"?"},
        {MODEL("{}", UNIT, "    - unit: {out: four}\n"),
         "m.yaml:8:19: layer \"unit1.linear1\".out: found \"four\", expected an integer from 1 to "
         "2147483647"},
        {MODEL("{}", UNIT, "    - unit: {out: 4, name: a}\n    - unit: {out: 4, name: a}\n"),
         "m.yaml:6:52: two layers are named \"a.linear1\""},
        {MODEL("{wide: 4}", UNIT, "    - linear: {out: $wdie}\n"),
         "m.yaml:8:21: there is no parameter \"wdie\" here: did you mean \"wide\"?"},
        {MODEL("{w: 5}", "{}", "    - linear: {out: $w / 2}\n"),
         "m.yaml:8:21: \"$w / 2\": the division leaves a remainder (// rounds down)"},
        {MODEL("{w: 5}", "{}", "    - linear: {out: 1 // ($w - 5)}\n"),
         "m.yaml:8:21: \"1 // ($w - 5)\": it divides by 0"},
        {MODEL("{w: [5]}", "{}", "    - linear: {out: 2 * $w}\n"),
         "m.yaml:8:21: \"2 * $w\": a list is no number"},
        {MODEL("{w: a}", "{}", "    - linear: {out: 2 * $w}\n"),
         "m.yaml:8:21: \"2 * $w\": \"a\" is no number"},
        {MODEL("{w: 9223372036854775807}", "{}", "    - linear: {out: 2 * $w}\n"),
         "m.yaml:8:21: \"2 * $w\": the number is too large"},
        {MODEL("{w: 5}", "{}", "    - linear: {out: ($w + 1}\n"),
         "m.yaml:8:21: \"($w + 1\": a ) is missing"},
        {MODEL("{w: 5}", "{}", "    - linear: {out: $w 1}\n"),
         "m.yaml:8:21: \"$w 1\": an operator was expected: + - * / // %"},
        {MODEL("{w: 5}", "{}", "    - linear: {out: 4, name: \"a${w\"}\n"),
         "m.yaml:8:30: \"a${w\": a parameter's name and } come after ${"},
        {MODEL("{w-h: 5}", "{}", "    - relu\n"),
         "m.yaml:5:12: a parameter's name has letters, digits and _ only"},
        {MODEL("{}", "{relu: {layers: [tanh]}}", "    - relu\n"),
         "m.yaml:6:12: model.define: \"relu\" is a layer already"},
        {MODEL("{}", "{a: {layer: [tanh]}}", "    - a\n"),
         "m.yaml:6:12: model.define: block \"a\" is a map with layers, and params where it has "
         "some"},
        {MODEL("{}", "{a: {layers: [tanh], param: {}}}", "    - a\n"),
         "m.yaml:6:32: unknown key \"param\"; there are: params, layers"},
        {MODEL("{}", "{a: {layers: [b]}, b: {layers: [a]}}", "    - a\n"),
         "m.yaml:6:43: block \"a\" stands within itself"},
        {MODEL("{}", "{a: {params: {from: 1}, layers: [relu]}}", "    - a\n"),
         "m.yaml:6:25: every layer has a \"from\": another word"},
        {MODEL("{}", "{}", "    - repeat: {layers: [relu]}\n"),
         "m.yaml:8:7: layer \"repeat1\": times is missing: how often"},
        {MODEL("{}", "{}", "    - repeat: {times: 2, values: [1], layers: [relu]}\n"),
         "m.yaml:8:7: layer \"repeat1\": params and values belong together"},
        {MODEL("{}", "{}", "    - repeat: {times: 2, params: [a], values: [1], layers: [relu]}\n"),
         "m.yaml:8:7: layer \"repeat1\": there are as many times as values: no times beside them"},
        {MODEL("{}", "{}",
               "    - repeat: {params: [a, b], values: [[1, 2], [1]], layers: [relu]}\n"),
         "m.yaml:8:49: a list of 2 values, one for each of the params"},
        {MODEL("{}", "{}",
               "    - repeat: {times: 65536, layers: [repeat: {times: 65536, layers: [repeat: "
               "{times: 0, layers: [relu]}]}]}\n    - relu\n"),
         "m.yaml:8:71: the layers are repeated more than 131072 times in all"},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        test_model_fails(cases[i].model, TR_CONFIG, cases[i].text);
}

/* It takes (rows, features) alone. */
static bool of_rows(const char *type)
{
    static const char *const types[] = {"class_token", "positions", "select",     "mean_rows",
                                        "attention",   "rotary",    "lstm",       "gru",
                                        "lstm_layer",  "gru_layer", "transformer"};
    for (size_t i = 0; i < TR_COUNT(types); i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

/* What the reference shows of each type is read as it stands there. */
static void test_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < tr_type_count(); i++) {
        const char *type = tr_type_at(i)->name,
                   *example = tr_type_at(i)->example ? tr_type_at(i)->example : type;
        const size_t n = strlen(type);
        assert_memory_equal(example, type, n);
        assert_true(example[n] == 0 || example[n] == ':');
        char layers[1024];
        const bool ids = strcmp(type, "embedding") == 0, two = strstr(example, "[left, right]");
        snprintf(layers, sizeof layers,
                 "  inputs: %s\n  layers:\n%s%s    - %s\n    - flatten\n    - linear: {out: 4, "
                 "name: head}\n" HEAD,
                 ids ? "{words: [4]}" : "{image: [8, 16, 16]}",
                 ids ? "" : "    - conv2d: {out: 8, kernel: 1, from: image, name: left}\n",
                 two ? "    - conv2d: {out: 8, kernel: 1, from: image, name: right}\n"
                 : strstr(type, "1d")     ? "    - reshape: {dims: [8, -1]}\n"
                 : of_rows(type)          ? "    - reshape: {dims: [16, 128]}\n"
                 : strstr(type, "linear") ? "    - flatten\n"
                                          : "",
                 example);
        test_model t = test_model_open(layers);
        test_model_close(&t);
    }
}

/* ---- The networks of configs/ that have torchvision's names ---- */

static char *file_text(const char *path)
{
    char *full = tr_sprintf("%s/%s", TR_SOURCE_DIR, path), *text = calloc(1, 1 << 16);
    FILE *f = fopen(full, "r");
    assert_true(f && text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) < (1 << 16) - 1);
    fclose(f);
    tr_free(full);
    return text;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *array_line(const char *config, const char *layer, const char *name, int ndim,
                        const int64_t *dims)
{
    char *line = NULL;
    size_t n;
    FILE *f = open_memstream(&line, &n);
    fprintf(f, "%s %s.%s", config, layer, name);
    for (int i = 0; i < ndim; i++) fprintf(f, "%c%lld", i ? 'x' : ' ', (long long)dims[i]);
    fputc('\n', f);
    fclose(f);
    return line;
}

/* The lines of torchvision.txt. */
static void write_arrays(const char *name, FILE *to)
{
    char *path = tr_sprintf("configs/%s.yaml", name), *text = file_text(path);
    tr_config *c = NULL;
    tr_model *m = NULL;
    assert_int_equal(tr_config_open(path, text, strlen(text), NULL, 0, NULL, &c), TR_OK);
    assert_int_equal(tr_model_open(c, 0, &m), TR_OK);
    const size_t n = m->nparams + m->nstates;
    char **lines = calloc(n, sizeof *lines);
    assert_non_null(lines);
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        lines[i] = array_line(name, p->layer, p->name, p->ndim, p->dims);
    }
    for (size_t i = 0; i < m->nstates; i++) {
        const tr_state *s = &m->states[i];
        lines[m->nparams + i] = array_line(name, s->layer, s->name, s->ndim, s->dims);
    }
    qsort(lines, n, sizeof *lines, by_text);
    for (size_t i = 0; i < n; i++) {
        fputs(lines[i], to);
        free(lines[i]);
    }
    free(lines);
    free(text);
    tr_free(path);
    tr_model_close(m);
    tr_config_close(c);
}

static void test_torchvision(void **state)
{
    (void)state;
    static const char *const names[] = {"mobilenetv2", "resnet18", "resnet50", "vgg16"};
    char *got = NULL, *want = file_text("tests/golden/torchvision.txt");
    size_t n, at = 0;
    FILE *f = open_memstream(&got, &n);
    for (size_t i = 0; i < TR_COUNT(names); i++) write_arrays(names[i], f);
    fclose(f);
    while (got[at] && got[at] == want[at]) at++;
    if (got[at] != want[at]) {
        while (at > 0 && got[at - 1] != '\n') at--;
        fail_msg("%.*s, torchvision: %.*s", (int)strcspn(got + at, "\n"), got + at,
                 (int)strcspn(want + at, "\n"), want + at);
    }
    free(got);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_paths),       cmocka_unit_test(test_levels),
        cmocka_unit_test(test_errors),      cmocka_unit_test(test_examples),
        cmocka_unit_test(test_torchvision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
