/* The command line of commands that take a config: any order, and what is said of wrong ones;
 * what is advised where something failed. */
#include "given.h"

#include <unistd.h>

#include "trainer/arguments/arguments.h"
#include "trainer/device/advice.h"
#include "trainer/device/device.h"
#include "trainer/stages/stages.h"
#include "trainer/plan/plan.h"

#define FLAGS "--resume --force --quiet"

static tr_status parse(const char *flags, tr_arguments *out, int n, const char *const *words)
{
    char *argv[12] = {"trainer"};
    assert_true(n < 12);
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)words[i];
    return tr_arguments_parse(n + 1, argv, flags, out);
}
#define PARSE(flags, out, ...)                                                                     \
    parse((flags), (out), (int)TR_COUNT(((const char *[]){__VA_ARGS__})),                          \
          (const char *[]){__VA_ARGS__})

static void test_order(void **state)
{
    (void)state;
    tr_arguments a;
    /* any order, but the first word that is no flag is the config */
    assert_int_equal(PARSE(FLAGS, &a, "train.batch=8", "--quiet", "c.yaml", "--resume", "name=x"),
                     TR_USAGE);
    assert_int_equal(PARSE(FLAGS, &a, "--quiet", "c.yaml", "train.batch=8", "--resume", "name=x"),
                     TR_OK);
    assert_string_equal(a.config, "c.yaml");
    assert_int_equal(a.noverrides, 2);
    assert_string_equal(a.overrides[0], "train.batch=8");
    assert_string_equal(a.overrides[1], "name=x");
    assert_true(a.quiet && a.resume && !a.force && !a.help_config && a.ranks == 0);
    tr_arguments_free(&a);
    tr_arguments_free(&a); /* twice is fine */
}

static void test_ranks(void **state)
{
    (void)state;
    tr_arguments a;
    assert_int_equal(PARSE("--ranks", &a, "c.yaml", "--ranks", "16"), TR_OK);
    assert_int_equal(a.ranks, 16);
    tr_arguments_free(&a);
    assert_int_equal(PARSE("--ranks", &a, "--ranks=3", "c.yaml"), TR_OK);
    assert_int_equal(a.ranks, 3);
    tr_arguments_free(&a);
    assert_int_equal(PARSE("--help-config", &a, "--help-config"), TR_OK);
    assert_true(a.help_config && !a.config);
    tr_arguments_free(&a);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *flags, *words[4];
        const char *text;
    } table[] = {
        {FLAGS, {"--quiet"}, "no config file given"},
        {FLAGS, {"c.yaml", "--fast"}, "unknown option --fast (expected: " FLAGS ")"},
        {FLAGS, {"c.yaml", "--ranks", "2"}, "unknown option --ranks (expected: " FLAGS ")"},
        {FLAGS, {"c.yaml", "--res"}, "unknown option --res (expected: " FLAGS ")"},
        {FLAGS, {"c.yaml", "--resume=yes"}, "--resume takes no value"},
        {FLAGS,
         {"c.yaml", "--resume", "--force"},
         "--resume goes on with a run, --force replaces it: give one of them"},
        {FLAGS, {"c.yaml", "d.yaml"}, "d.yaml: expected key=value or an option (" FLAGS ")"},
        {FLAGS,
         {"c.yaml", "--a-very-long-option-that-nobody-has=1"},
         "unknown option --a-very-long-option-that-nobody-has=1 (expected: " FLAGS ")"},
        {"--ranks",
         {"c.yaml", "--ranks"},
         "--ranks : expected a number of ranks from 1 to 1000000"},
        {"--ranks",
         {"c.yaml", "--ranks", "0"},
         "--ranks 0: expected a number of ranks from 1 to 1000000"},
        {"--ranks",
         {"c.yaml", "--ranks=4x"},
         "--ranks 4x: expected a number of ranks from 1 to 1000000"},
        {"--ranks",
         {"c.yaml", "--ranks=99999999999999999999"},
         "--ranks 99999999999999999999: expected a number of ranks from 1 to 1000000"},
        {"--ranks",
         {"c.yaml", "--ranks", "-3"},
         "--ranks -3: expected a number of ranks from 1 to 1000000"},
    };
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        tr_arguments a;
        int n = 0;
        while (n < 4 && table[i].words[n]) n++;
        assert_int_equal(parse(table[i].flags, &a, n, table[i].words), TR_USAGE);
        assert_string_equal(tr_last_error()->text, table[i].text);
        assert_null(a.overrides);
    }
    tr_arguments a;
    char *argv[] = {"trainer", NULL};
    assert_int_equal(tr_arguments_parse(1, argv, FLAGS, &a), TR_USAGE);
}

static void test_config(void **state)
{
    (void)state;
    tr_config *c = NULL;
    tr_arguments a;
    static const char text[] = "name: small\ndata: {train: {format: synthetic, samples: 9}}\n"
                               "model: {input: [2], layers: [{linear: {out: 2}}], loss: mse}\n"
                               "train: {batch: 4, steps: 1}\n";
    char path[] = "arguments-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    assert_int_equal(PARSE(FLAGS, &a, path, "train.batch=6", "name=larger"), TR_OK);
    assert_int_equal(tr_arguments_config(&a, NULL, &c), TR_OK);
    assert_int_equal(c->train.batch, 6);
    assert_string_equal(c->name, "larger");
    tr_config_close(c);
    tr_arguments_free(&a);
    assert_int_equal(PARSE(FLAGS, &a, path, "train.batsch=6"), TR_OK);
    assert_int_equal(tr_arguments_config(&a, NULL, &c), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "batsch"));
    tr_arguments_free(&a);

    /* stages: those of the program's one list; each has its say before anything starts */
    tr_variant_def known[TR_STAGES + 1];
    tr_stages_known(known);
    assert_string_equal(known[0].name, "train");
    for (size_t i = 0; i < TR_STAGES; i++) {
        assert_non_null(known[i].name && known[i].doc && tr_stages[i]->run ? known : NULL);
        assert_int_equal(known[i].size != 0, known[i].fields != NULL);
    }
    assert_null(known[TR_STAGES].name);
    assert_int_equal(PARSE(FLAGS, &a, path, "pipeline=[train]"), TR_OK);
    assert_int_equal(tr_arguments_config(&a, NULL, &c), TR_OK);
    assert_int_equal(c->pipeline.count, 1);
    assert_true(tr_arguments_start_timeout(&a) == c->run.start_timeout); /* by default */
    tr_config_close(c);
    tr_arguments_free(&a);
    assert_int_equal(PARSE(FLAGS, &a, path, "pipeline=[train, train]"), TR_OK);
    assert_int_equal(tr_arguments_config(&a, NULL, &c), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "pipeline.1: stage train stands twice"));
    tr_arguments_free(&a);
    assert_int_equal(PARSE(FLAGS, &a, path, "pipeline=[trian]"), TR_OK);
    assert_int_equal(tr_arguments_config(&a, NULL, &c), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "did you mean \"train\"?"));
    tr_arguments_free(&a);
    unlink(path);
    assert_int_equal(PARSE(FLAGS, &a, path), TR_OK);
    assert_int_equal(tr_arguments_config(&a, NULL, &c), TR_CONFIG); /* gone */
    assert_non_null(strstr(tr_last_error()->text, path));
    tr_arguments_free(&a);
}

/* Every hint of the kernels has its advice, which names what a config can say. */
static void test_advice(void **state)
{
    (void)state;
    assert_null(tr_advice(TR_HINT_NONE));
    for (int h = TR_HINT_NONE + 1; h <= TR_HINT_RECORDING; h++) {
        const char *advice = tr_advice((tr_hint)h);
        assert_non_null(advice);
        assert_true(strstr(advice, "train.") || strstr(advice, "run."));
    }
}

/* What GPUs are told of run.deterministic and run.benchmark. */
static void test_deterministic(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        bool on, benchmark;
    } table[] = {{"auto", false, false},  {"off", false, false}, {"on", true, false},
                 {"false", false, false}, {"true", true, false}, {"auto", false, true},
                 {"off", false, true}};
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        tr_config *c = NULL;
        char *text =
            tr_sprintf("run: {deterministic: %s, benchmark: %s}\n"
                       "name: t\ndata: {train: {format: synthetic, samples: 8}}\n"
                       "train: {batch: 4, steps: 1, optimizer: {sgd: {lr: 1}}}\nmodel:\n" GIVEN_MLP,
                       table[i].word, table[i].benchmark ? "true" : "false");
        assert_int_equal(tr_config_open("t.yaml", text, strlen(text), NULL, 0, NULL, &c), TR_OK);
        const tr_backend_options o = tr_gpu_options(c, 0, true);
        assert_int_equal(o.deterministic, table[i].on);
        assert_int_equal(o.benchmark, table[i].benchmark);
        assert_int_equal(tr_config_deterministic(c, false), table[i].on);
        assert_true(tr_config_deterministic(c, true));
        tr_config_close(c);
        tr_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_order),
        cmocka_unit_test(test_ranks),         cmocka_unit_test(test_errors),
        cmocka_unit_test(test_config),        cmocka_unit_test(test_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
