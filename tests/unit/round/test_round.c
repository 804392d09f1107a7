/* links: trireme_cpu trireme_plan */
/* Widths as multiples: which change together and which stay, in models of every kind of joint; and of generated models that
 * what comes out is a model, has no more to round and is found again by its layers' names. */
#include "optimize/round/round.h"
#include "tests/unit/networks.h"

#define EXACT(n) ((tr_round_rule){(n), (n), 1e18})

static char *changes_of(const tr_model *m, const tr_round_rule *rule, const tr_model *like,
                        tr_model **made)
{
    tr_round_row *rows = NULL;
    size_t n, size;
    char *text = NULL;
    FILE *f = open_memstream(&text, &size);
    ok(tr_round_widths(m, rule, like, made, &rows, &n));
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%s%s.%s %lld->%lld", i ? ", " : "", rows[i].layer, rows[i].option,
                (long long)rows[i].from, (long long)rows[i].to);
    fclose(f);
    assert_int_equal(*made != NULL, n > 0);
    tr_free(rows);
    return text;
}

static void becomes(const char *model, tr_round_rule rule, const char *want)
{
    tr_network *n = network_of(model, 1);
    tr_model *made = NULL;
    char *got = changes_of(n->model, &rule, NULL, &made);
    assert_string_equal(got, want);
    if (made) {
        const size_t last = made->nlayers - 1;
        assert_int_equal(made->outputs, n->model->outputs);
        assert_memory_equal(&made->layers[last].output, &n->model->layers[last].output,
                            sizeof(tr_shape));
    }
    free(got);
    tr_model_close(made);
    tr_network_close(n);
}

#define ROW(layers)   "  input: [10]\n  layers: [" layers "]\n  loss: mse\n"
#define IMAGE(layers) "  input: [3, 8, 8]\n  layers:\n" layers "  loss: mse\n"
#define ROWS(layers)  "  input: [6, 7]\n  layers:\n" layers "  loss: mse\n"
#define HEAD          "    - flatten\n    - linear: {out: 3, name: head}\n"

static void test_rows(void **state)
{
    (void)state;
    static const char mlp[] =
        ROW("{linear: {out: 100}}, relu, {linear: {out: 50}}, dropout, {linear: {out: 4}}");
    becomes(mlp, EXACT(16), "linear1.out 100->112, linear2.out 50->64");
    becomes(mlp, EXACT(25), "");
    becomes(mlp, EXACT(1), "");
    /* what adds more than an eighth is not done, then by half as many */
    becomes(mlp, (tr_round_rule){16, 8, 0.125}, "linear1.out 100->112, linear2.out 50->56");
    becomes(mlp, (tr_round_rule){64, 8, 0.125}, "linear1.out 100->112, linear2.out 50->56");
    becomes(mlp, (tr_round_rule){64, 16, 0.125}, "linear1.out 100->112");
    becomes(ROW("{linear: {out: 1000}}, relu, {linear: {out: 9}}, {linear: {out: 4}}"),
            (tr_round_rule){64, 8, 0.125}, "linear1.out 1000->1024");
    /* the output's width, and what is added to it or to the input */
    becomes(ROW("{linear: {out: 30}}, {residual: {body: [{linear: {out: 30}}]}}"), EXACT(16), "");
    becomes(ROW("{residual: {body: [{linear: {out: 30}}, relu, {linear: {out: 10}}]}}, {linear: "
                "{out: 4}}"),
            EXACT(16), "linear1.out 30->32");
    becomes(ROW("{sklinear: {out: 20, terms: 3, rank: 5}}, {sklinear: {out: 4, terms: 4, rank: "
                "6}}"),
            EXACT(16), "sklinear1.out 20->32, sklinear1.rank 5->16, sklinear2.rank 6->8");
}

static void test_images(void **state)
{
    (void)state;
    becomes(IMAGE("    - conv2d: {out: 20, kernel: 3}\n"
                  "    - residual: {body: [batchnorm, relu, {conv2d: {out: 40, kernel: 3, padding: "
                  "1, groups: 20}}, {conv2d: {out: 20, kernel: 1}}]}\n" HEAD),
            EXACT(8), "conv2d1.out 20->24, conv2d2.out 40->48, conv2d3.out 20->24");
    becomes(IMAGE("    - conv2d: {out: 9, kernel: 3}\n    - groupnorm: {groups: 3}\n" HEAD),
            EXACT(8), "conv2d1.out 9->24");
    becomes(IMAGE("    - conv2d: {out: 9, kernel: 3}\n"
                  "    - conv2d: {out: 12, kernel: 3, groups: 3}\n    - relu\n" HEAD),
            EXACT(4), "conv2d1.out 9->12");
    /* side by side: each by itself, unless a sum asks for all of them */
    static const char joined[] =
        "    - conv2d: {out: 5, kernel: 1, name: a}\n"
        "    - conv2d: {out: 6, kernel: 1, name: b, from: input}\n    - concat: {from: [a, b]}\n"
        "    - batchnorm\n    - conv2d: {out: 11, kernel: 1, name: c}\n";
    char text[600];
    snprintf(text, sizeof text, IMAGE("%s" HEAD), joined);
    becomes(text, EXACT(8), "a.out 5->8, b.out 6->8, c.out 11->16");
    snprintf(text, sizeof text, IMAGE("%s    - add: {from: [c, batchnorm1]}\n" HEAD), joined);
    becomes(text, EXACT(8), "");
    becomes(IMAGE("    - conv2d: {out: 5, kernel: 1}\n    - conv_transpose2d: {out: 6, kernel: 2, "
                  "stride: 2}\n    - maxpool2d: {kernel: 2}\n" HEAD),
            EXACT(8), "conv2d1.out 5->8, conv_transpose2d1.out 6->8");
    becomes(IMAGE("    - conv2d: {out: 5, kernel: 1}\n    - reshape: {dims: [5, 64]}\n" HEAD),
            EXACT(8), "");
    becomes(IMAGE("    - conv2d: {out: 5, kernel: 1}\n    - layernorm: {normalized_shape: [5, 8, "
                  "8]}\n" HEAD),
            EXACT(8), "");
    becomes(IMAGE("    - conv2d: {out: 5, kernel: 1}\n    - layernorm\n" HEAD), EXACT(8),
            "conv2d1.out 5->8");
}

static void test_sequences(void **state)
{
    (void)state;
    /* the stream as one, values of a head as many for all, and the second half's by themselves */
    becomes(ROWS("    - linear: {out: 36, name: in}\n"
                 "    - transformer: {layers: 1, heads: 3, causal: true, mlp: 50, name: t}\n"
                 "    - layernorm\n" HEAD),
            EXACT(16),
            "in.out 36->48, t.0.qkv.out 108->144, t.0.proj.out 36->48, t.0.up.out 50->64, "
            "t.0.down.out 36->48");
    becomes(ROWS("    - linear: {out: 24, name: in}\n"
                 "    - transformer: {layers: 1, heads: 4, kv_heads: 2, causal: true, position: "
                 "rotary, activation: swiglu, mlp: 20, name: t}\n" HEAD),
            EXACT(8),
            "t.0.q.out 24->32, t.0.k.out 12->16, t.0.v.out 12->16, t.0.gate.out 20->24, t.0.up.out "
            "20->24");
    becomes("  input: [6]\n  layers:\n    - embedding: {num: 30, dim: 10, name: e}\n"
            "    - positions\n    - linear: {out: 5}\n    - linear: {out: 10}\n    - layernorm\n"
            "    - linear: {out: 30, weight_of: e}\n  loss: cross_entropy\n",
            EXACT(16), "e.dim 10->16, linear1.out 5->16, linear2.out 10->16");
    becomes(ROWS("    - lstm: {hidden: 10, layers: 2, bidirectional: true, name: r}\n" HEAD),
            EXACT(16),
            "r.l0.hidden 10->16, r.l0_reverse.hidden 10->16, r.l1.hidden 10->16, "
            "r.l1_reverse.hidden 10->16");
}

static char *text_of(const tr_model *m)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    ok(tr_model_write(m, 2, f));
    fclose(f);
    return text;
}

static void test_generated(void **state)
{
    (void)state;
    int rounded = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        static const int64_t by[] = {4, 8, 12, 16, 64};
        const tr_round_rule rule = EXACT(by[seed % 5]);
        char *text = generated_model(seed);
        tr_network *n = network_of(text, seed);
        tr_model *made = NULL, *again = NULL, *found = NULL;
        free(changes_of(n->model, &rule, NULL, &made));
        if (made) {
            rounded++;
            char *more = changes_of(made, &rule, NULL, &again);
            if (again) fail_msg("seed %d: more to round: %s\n%s", (int)seed, more, text);
            free(more);
            free(changes_of(n->model, &EXACT(1000), made, &found));
            char *a = text_of(made), *b = text_of(found);
            assert_string_equal(a, b);
            tr_network *read = network_of(a, seed); /* what is written is read */
            assert_int_equal(read->model->nparameters, made->nparameters);
            assert_true(made->nparameters > n->model->nparameters);
            tr_network_close(read);
            free(a);
            free(b);
        }
        tr_model_close(found);
        tr_model_close(made);
        tr_network_close(n);
        free(text);
    }
    assert_true(rounded > 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_images),
                                       cmocka_unit_test(test_sequences),
                                       cmocka_unit_test(test_generated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
