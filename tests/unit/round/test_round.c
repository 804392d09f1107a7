/* links: trireme_cpu trireme_plan */
/* Widths as multiples: which change together and which stay, in models of every kind of joint; and
 * of generated models that what comes out is a model, has no more to round and is found again by
 * its layers' names. */
#include "optimize/round/round.h"
#include "tests/unit/networks.h"

#define EXACT(n) ((tr_round_rule){(n), (n), 1e18})

static char *changes_of(const tr_model *m, const tr_round_rule *rule, const tr_round_kept *kept,
                        tr_model **made)
{
    tr_round_row *rows = NULL;
    size_t n, size;
    char *text = NULL;
    FILE *f = open_memstream(&text, &size);
    ok(tr_round_widths(m, rule, kept, made, &rows, &n));
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
#define SKETCH(how)                                                                                \
    ROW("{linear: {out: 192}}, {sklinear: {out: 320, name: s, " how "}}, {linear: {out: 4}}")
#define HEAD "    - flatten\n    - linear: {out: 3, name: head}\n"

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
            EXACT(16), "sklinear1.out 20->32");
}

/* Ranks go up as long as a sketch takes less arithmetic than the dense layer. */
static void test_ranks(void **state)
{
    (void)state;
    static const tr_round_rule by_less = {64, 4, 0.125};
    becomes(SKETCH("terms: 1, rank: 5"), EXACT(16), "s.rank 5->16");
    becomes(SKETCH("terms: 2, rank: 5"), EXACT(16), "s.rank 5->8");
    becomes(SKETCH("terms: 1, rank: 33"), EXACT(16), "s.rank 33->48");
    becomes(SKETCH("terms: 1, rank: 33"), EXACT(32), ""); /* 64 (192 + 320) 2 > 192 320 */
    becomes(SKETCH("terms: 1, rank: 55"), by_less, "s.rank 55->56");
    becomes(SKETCH("terms: 1, rank: 59"), by_less, "");
}

/* ---- A run that is gone on with ---- */

static void goes_on(const char *was, tr_round_rule first, const char *now, tr_round_rule rule,
                    int64_t most, const char *want)
{
    tr_network *a = network_of(was, 1), *b = network_of(now, 1);
    tr_model *there = NULL, *made = NULL;
    free(changes_of(a->model, &first, NULL, &there));
    const tr_round_kept kept = {there ? there : a->model, most, 4};
    char *got = changes_of(b->model, &rule, &kept, &made);
    assert_string_equal(got, want);
    free(got);
    tr_model_close(made);
    tr_model_close(there);
    tr_network_close(b);
    tr_network_close(a);
}

static void is_refused(const char *was, tr_round_rule first, const char *now, tr_round_rule rule,
                       int64_t most, const char *want)
{
    tr_network *a = network_of(was, 1), *b = network_of(now, 1);
    tr_model *there = NULL, *made = NULL;
    tr_round_row *rows = NULL;
    size_t n;
    free(changes_of(a->model, &first, NULL, &there));
    const tr_round_kept kept = {there ? there : a->model, most, 4};
    if (tr_round_widths(b->model, &rule, &kept, &made, &rows, &n) != TR_CONFIG)
        fail_msg("not refused: %s", want);
    assert_null(made);
    assert_null(rows);
    if (!strstr(tr_last_error()->text, want))
        fail_msg("%s\nnot in %s", want, tr_last_error()->text);
    tr_model_close(there);
    tr_network_close(b);
    tr_network_close(a);
}

#define UP(n, name) ROW("{linear: {out: " n ", name: " name "}}, relu, {linear: {out: 5}}")
#define AUTO        ((tr_round_rule){64, 16, 0.125})
#define HEADS(width, heads)                                                                        \
    ROWS("    - linear: {out: " width ", name: in}\n"                                              \
         "    - transformer: {layers: 1, heads: " heads ", causal: true, mlp: 64, name: t}\n"      \
         "    - layernorm\n" HEAD)

static void test_kept(void **state)
{
    (void)state;
    const tr_round_rule by8 = EXACT(8);
    /* a number: what it says must be there */
    goes_on(UP("60", "up"), by8, UP("60", "up"), by8, 0, "up.out 60->64");
    goes_on(UP("60", "up"), by8, UP("60", "up"), EXACT(16), 0, "up.out 60->64");
    goes_on(UP("60", "up"), by8, UP("62", "up"), by8, 0, "up.out 62->64");
    is_refused(UP("60", "up"), by8, UP("100", "up"), by8, 0,
               "layer \"up\": model.round_dims: out: 100 becomes 104, but the run that is to go on "
               "has 64: leave");
    is_refused(UP("60", "up"), by8, UP("40", "up"), by8, 0,
               "out: 40 becomes 40, but the run that "
               "is to go on has 64");
    is_refused(UP("37", "up"), by8, UP("37", "up"), EXACT(16), 0,
               "out: 37 becomes 48, but the run "
               "that is to go on has 40");
    is_refused(UP("37", "up"), EXACT(1), UP("37", "up"), by8, 0,
               "out: 37 becomes 40, but the run "
               "that is to go on has 37");
    /* auto: what some device makes of the written width */
    goes_on(UP("97", "up"), EXACT(4), UP("97", "up"), AUTO, 64, "up.out 97->100");
    goes_on(UP("97", "up"), by8, UP("97", "up"), AUTO, 64, "up.out 97->104");
    goes_on(UP("97", "up"), EXACT(1), UP("97", "up"), AUTO, 64, "");
    is_refused(UP("97", "up"), EXACT(32), UP("97", "up"), AUTO, 64,
               "out: 97 becomes 97, but the "
               "run that is to go on has 128");
    is_refused(UP("97", "up"), EXACT(7), UP("97", "up"), EXACT(4), 0, "out: 97 becomes 100, but");
    is_refused(UP("60", "up"), AUTO, UP("100", "up"), AUTO, 64,
               "out: 100 becomes 112, but the run "
               "that is to go on has 64");
    is_refused(UP("60", "up"), AUTO, UP("40", "up"), AUTO, 64,
               "out: 40 becomes 40, but the run "
               "that is to go on has 64");
    /* a layer of another name has nothing to keep: its tensors are looked for by name */
    goes_on(UP("97", "up"), EXACT(4), UP("97", "wide"), AUTO, 64, "");
    goes_on(UP("97", "up"), EXACT(4), ROW("{linear: {out: 5, name: up}}"), AUTO, 64, "");
    /* sums and heads: the class as a whole, divisible by the heads that are written now */
    goes_on(HEADS("36", "3"), by8, HEADS("36", "3"), EXACT(8), 64,
            "in.out 36->40, t.0.qkv.out 108->144, t.0.proj.out 36->40, t.0.down.out 36->40");
    is_refused(
        HEADS("60", "4"), by8, HEADS("60", "3"), AUTO, 64,
        "layer \"t.0.qkv\": model.round_dims: out: 180 becomes 180, but the run that is to go "
        "on has 192");
    is_refused(
        HEADS("60", "3"), EXACT(4), HEADS("60", "3"), EXACT(16), 0,
        "layer \"in\": model.round_dims: out: 60 becomes 64, but the run that is to go on has "
        "60");
    static const char sum[] = ROW("{linear: {out: 60, name: a}}, {linear: {out: 60, name: b}}, "
                                  "{add: {from: [a, b]}}, {linear: {out: 5}}");
    static const char apart[] = ROW("{linear: {out: 60, name: a}}, {linear: {out: 30, name: b}}, "
                                    "{linear: {out: 5}}");
    is_refused(apart, by8, sum, by8, 0,
               "layer \"b\": model.round_dims: out: 60 becomes 64, but the "
               "run that is to go on has 32");
    /* ranks */
    goes_on(SKETCH("terms: 1, rank: 33"), EXACT(4), SKETCH("terms: 1, rank: 33"), AUTO, 64,
            "s.rank 33->36");
    is_refused(SKETCH("terms: 1, rank: 33"), EXACT(16), SKETCH("terms: 1, rank: 5"), AUTO, 64,
               "layer \"s\": model.round_dims: rank: 5 becomes 5, but the run that is to go on has "
               "48");
    is_refused(SKETCH("terms: 1, rank: 33"), EXACT(16), SKETCH("terms: 1, rank: 33"), by8, 0,
               "rank: 33 becomes 40");
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
            const tr_round_kept kept = {made, 1024, 2};
            const tr_round_rule any = {1, 1, 1e18};
            free(changes_of(n->model, seed % 5 == 2 ? &rule : &any, &kept, &found));
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_kept),      cmocka_unit_test(test_images),
        cmocka_unit_test(test_sequences), cmocka_unit_test(test_generated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
