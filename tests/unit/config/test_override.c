/* key.path=value on the command line. */
#include "runtime/config/chosen.h"
#include "tests/unit/config/good.h"

static void test_replace_and_add(void **state)
{
    (void)state;
    tr_config *c = open_good("train.batch=128");
    assert_int_equal(c->train.batch, 128);
    tr_config_close(c);
    c = open_good("train.optimizer.lr=0.01"); /* beside the name of the variant */
    assert_true(c->train.optimizer.o.lr == 0.01 && c->train.optimizer.o.momentum == 0.9);
    tr_config_close(c);
    c = open_good("train.optimizer.sgd.lr=0.02");
    assert_true(c->train.optimizer.o.lr == 0.02 && c->train.optimizer.o.momentum == 0.9);
    tr_config_close(c);
    c = open_good("train.optimizer={adamw: {lr: 0.5, weight_decay: 0}}");
    assert_int_equal(c->train.optimizer.kind.which, TR_OPT_ADAMW);
    assert_true(c->train.optimizer.o.lr == 0.5 && c->train.optimizer.o.weight_decay == 0);
    tr_config_close(c);
    c = open_good("data.cache_mb=5"); /* was not in the file */
    assert_int_equal(c->data.cache_mb, 5);
    tr_config_close(c);
    c = open_good("train.eval.every_steps=3"); /* nor its map */
    assert_int_equal(c->train.eval.every_steps, 3);
    tr_config_close(c);
    c = open_good("model.input=[1, 2, 3]");
    assert_int_equal(c->model.input.v[2], 3);
    tr_config_close(c);
    c = open_good("output=a=b");
    assert_string_equal(c->output, "a=b");
    tr_config_close(c);
}

static void test_lists(void **state)
{
    (void)state;
    tr_config *c = open_good("model.layers.0.conv2d.out=8");
    const tr_node *conv = tr_node_get(c->model.layers->values[0], "conv2d");
    assert_string_equal(tr_node_get(conv, "out")->text, "8");
    assert_string_equal(tr_node_get(conv, "kernel")->text, "3");
    tr_config_close(c);
    c = open_good("model.layers.1.batchnorm.eps=0.1"); /* `- batchnorm` becomes a map */
    const tr_node *eps = tr_node_get(tr_node_get(c->model.layers->values[1], "batchnorm"), "eps");
    assert_string_equal(eps->text, "0.1");
    tr_config_close(c);
    c = open_good("model.layers.4=relu"); /* one past the end appends */
    assert_int_equal(c->model.layers->count, 5);
    assert_string_equal(c->model.layers->values[4]->text, "relu");
    tr_config_close(c);
}

static void test_names(void **state)
{
    (void)state;
    tr_config *c = open_good("model.layers.conv2d.out=8"); /* the only one of that name */
    const tr_node *conv = tr_node_get(c->model.layers->values[0], "conv2d");
    assert_string_equal(tr_node_get(conv, "out")->text, "8");
    assert_string_equal(tr_node_get(conv, "kernel")->text, "3");
    tr_config_close(c);
    c = open_good("model.layers.batchnorm.eps=0.1");
    const tr_node *eps = tr_node_get(tr_node_get(c->model.layers->values[1], "batchnorm"), "eps");
    assert_string_equal(eps->text, "0.1");
    tr_config_close(c);
    const char *twice[] = {"model.layers.4=relu", "model.layers.5=relu", "model.layers.relu={}"};
    assert_int_equal(open_with(GOOD, twice, 3, &c), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "has several elements \"relu\": expected the index of one: 4"));
}

/* A value that stands in another file: what is wrong is told with its place there. */
static void test_set(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\ntrain.batch: 32", ""},
        {"\ntrain.optimizer.lr: 0.5", ""}, /* beside the name of the variant, which has one */
        {"\n\n  train.batch: few", "s.yaml:3:16: train.batch: found \"few\""},
        {"\n train.bacth: 3", "s.yaml:2:8: train: unknown key \"bacth\""},
        {"train.batch.x: 3", "s.yaml:1:13: \"train.batch\" is \"64\", not a map"},
        {"train=batch: 3", "s.yaml:1:1: expected a key's path"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_document doc, other;
        tr_config *c = NULL;
        assert_int_equal(tr_document_parse("c.yaml", GOOD, strlen(GOOD), &doc), TR_OK);
        assert_int_equal(tr_document_parse("s.yaml", cases[i][0], strlen(cases[i][0]), &other),
                         TR_OK);
        tr_status st = tr_document_set(&doc, other.root->keys[0], other.root->values[0]);
        if (st == TR_OK) st = tr_config_resolve("c.yaml", &doc, STAGES, &c);
        assert_int_equal(st, *cases[i][1] ? TR_CONFIG : TR_OK);
        if (st != TR_OK)
            assert_ptr_equal(strstr(tr_last_error()->text, cases[i][1]), tr_last_error()->text);
        if (i == 0) assert_int_equal(c->train.batch, 32);
        if (i == 1) assert_true(c->train.optimizer.o.lr == 0.5);
        tr_config_close(c);
        tr_document_close(&doc);
        tr_document_close(&other);
    }
}

static void test_order(void **state)
{
    (void)state;
    tr_config *c = NULL;
    const char *both[] = {"train.batch=32", "train.batch=96"};
    assert_int_equal(open_with(GOOD, both, 2, &c), TR_OK);
    assert_int_equal(c->train.batch, 96);
    tr_config_close(c);
    const char *deep[] = {"train.optimizer=sgd", "train.optimizer.lr=0.25"};
    assert_int_equal(open_with(GOOD, deep, 2, &c), TR_OK);
    assert_int_equal(c->train.optimizer.kind.which, TR_OPT_SGD);
    assert_true(c->train.optimizer.o.lr == 0.25 && c->train.optimizer.o.momentum == 0);
    tr_config_close(c);
}

/* An override of a part that an alias made changes that copy alone. */
static void test_alias_is_a_copy(void **state)
{
    (void)state;
    tr_document doc;
    static const char text[] = "a: &x {k: 1}\nb: *x\n";
    assert_int_equal(tr_document_parse("t", text, strlen(text), &doc), TR_OK);
    assert_int_equal(tr_document_override(&doc, "b.k=2"), TR_OK);
    assert_string_equal(tr_node_get(tr_node_get(doc.root, "a"), "k")->text, "1");
    assert_string_equal(tr_node_get(tr_node_get(doc.root, "b"), "k")->text, "2");
    tr_document_close(&doc);
}

static void test_refused(void **state)
{
    (void)state;
    refuse(GOOD, "train.bacth=3",
           "command line: train.bacth=3: train: unknown key \"bacth\"; did you mean \"batch\"?");
    refuse(GOOD, "bogus.deep.path=3",
           "command line: bogus.deep.path=3: unknown key \"bogus\"; there are: name, "
           "seed, output, device, data, model, train, run, pipeline");
    refuse(GOOD, "train.batch=-3",
           "command line: train.batch=-3: train.batch: found \"-3\", expected an integer from 1 to "
           "2147483647");
    refuse(GOOD, "train.batch.x=3",
           "command line: train.batch.x=3: \"train.batch\" is \"64\", not a map");
    refuse(GOOD, "model.layers.5=relu",
           "command line: model.layers.5=relu: index 5 is past the end of "
           "\"model.layers\", which has 4 elements");
    refuse(GOOD, "model.layers.-1=relu",
           "command line: model.layers.-1=relu: \"model.layers\" is a list: expected an index, "
           "found \"-1\"");
    refuse(GOOD, "model.layers.first=relu",
           "command line: model.layers.first=relu: \"model.layers\" is a list: "
           "expected an index, found \"first\"");
    refuse(GOOD, "train.optimizer.adamw.lr=1",
           "command line: train.optimizer.adamw.lr=1: train.optimizer: both "
           "\"sgd\" and \"adamw\", expected one");
    refuse(GOOD, "batch", "command line: expected key.path=value, found \"batch\"");
    refuse(GOOD, "=3", "command line: expected key.path=value, found \"=3\"");
    refuse(GOOD, "a..b=3", "command line: a..b=3: an empty name in the path");
    refuse(GOOD, ".a=3", "command line: .a=3: an empty name in the path");
    refuse(GOOD, "a.=3", "command line: a.=3: an empty name in the path");
    refuse(GOOD, "train.<<={batch: 3}",
           "command line: train.<<={batch: 3}: << merges maps of a file and is no key of its own");
    refuse(GOOD, "train.batch=[1",
           "command line: train.batch=[1: not valid YAML: did not find expected ',' or "
           "']' (while parsing a flow sequence from line 1)");
    refuse(GOOD, "train.batch=*x",
           "command line: train.batch=*x: alias \"x\" refers to no anchor above it");
    refuse(GOOD, "seed=\xff", "command line: seed=\\xff: byte 0xff is not UTF-8 text");
}

static void test_too_deep(void **state)
{
    (void)state;
    char path[200];
    for (size_t i = 0; i + 1 < sizeof path; i += 2) memcpy(path + i, "a.", 2);
    memcpy(path + sizeof path - 4, "a=1", 4);
    tr_config *c = NULL;
    const char *override = path;
    assert_int_equal(open_with(GOOD, &override, 1, &c), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "nested more than 64 deep"));
}

/* What another training takes back of a config in which memory chose, with this override. */
static void taken_back(const char *override, const char *expected)
{
    char got[300] = "";
    const char *back[TR_CHOSEN_MOST];
    const char *all[] = {"run.chosen={train: {micro_batch: max, recompute: auto, eval: {batch: "
                         "auto}}, run: {offload: auto}}",
                         override};
    tr_config *c = NULL;
    assert_int_equal(open_with(GOOD, all, override ? 2 : 1, &c), TR_OK);
    const size_t n = tr_config_unchoose(c, back);
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", back[i]);
    assert_string_equal(got, expected);
    tr_config_close(c);
}

/* A key that is set again is the user's, and stays. */
static void test_chosen(void **state)
{
    (void)state;
    taken_back(NULL, "train.micro_batch=max train.eval.batch=auto train.recompute=auto "
                     "run.offload=auto run.chosen=null ");
    taken_back("train.micro_batch=4", "train.eval.batch=auto train.recompute=auto run.offload=auto "
                                      "run.chosen=null ");
    taken_back("train.accumulate=2", "train.eval.batch=auto train.recompute=auto run.offload=auto "
                                     "run.chosen=null ");
    taken_back("train.eval={batch: 3}",
               "train.micro_batch=max train.recompute=auto run.offload=auto run.chosen=null ");
    taken_back("run.chosen=null", "");
    taken_back("run.chosen={train: {micro_batch: 3, recompute: [auto]}}", "");
    tr_config *c = open_good("train.batch=32");
    const char *back[TR_CHOSEN_MOST];
    assert_int_equal(tr_config_unchoose(c, back), 0);
    tr_config_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace_and_add), cmocka_unit_test(test_lists),
        cmocka_unit_test(test_names),           cmocka_unit_test(test_set),
        cmocka_unit_test(test_order),           cmocka_unit_test(test_alias_is_a_copy),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_too_deep),
        cmocka_unit_test(test_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
