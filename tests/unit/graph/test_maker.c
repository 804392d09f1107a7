/* Models made by hand and from other models: what is written is read back as an equal model, by the
 * same graphs; copies with layers dropped and replaced; what is told when something is wrong. */
#include "tests/unit/graph/random.h"

static void test_random(void **state)
{
    (void)state;
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    int tied = 0, frozen = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        const size_t bucket_bytes = seed % 3 ? 0 : 256;
        tr_model *m = random_model(seed, bucket_bytes), *b = again(m, bucket_bytes), *c = NULL;
        same_model(m, b);
        for (size_t i = 0; i < m->nparams; i++) tied += m->params[i].uses > 1;
        for (size_t i = 0; i < m->nparams; i++) frozen += m->params[i].frozen;
        ok(tr_model_copy(b, NULL, NULL, bucket_bytes, &c));
        tr_model_close(b);
        same_model(m, c);
        tr_model_close(c);
        tr_model_close(m);
    }
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
    assert_true(tied > 5 && frozen > 10);
}

/* Residuals, repeats and blocks of a config: as layers one after the other they are the same. */
static void test_structure(void **state)
{
    (void)state;
    static const char *const models[] = {
        TEST_RESNET20,
        "  input: [4]\n  layers:\n"
        "    - block: {name: b, layers: [{linear: {out: 4}}, relu, {residual: {body: [tanh]}}]}\n"
        "    - linear: {out: 4, name: linear9}\n    - linear: {out: 4}\n"
        "    - add: {from: [b, linear9, linear3, relu1]}\n    - add: {from: [add1, b]}\n"
        "    - repeat: {times: 2, layers: [{block: {layers: [silu]}}, tanh]}\n  loss: mse\n"};
    for (size_t i = 0; i < TR_COUNT(models); i++) {
        test_model t = test_model_open(models[i]);
        tr_config_close(t.config); /* the model does not need it */
        t.config = NULL;
        tr_model *b = again(t.model, 0), *c = NULL;
        same_model(t.model, b);
        ok(tr_model_copy(t.model, NULL, NULL, 0, &c));
        same_model(b, c);
        tr_model_close(b);
        tr_model_close(c);
        test_model_close(&t);
    }
}

/* ---- Changes --------------------------------------------------------------------------------- */

/* Drops every batchnorm, and makes a silu of every relu. */
static tr_status change(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    int *changed = ctx;
    if (strcmp(tr_op_def_name(l->def), "batchnorm") == 0) {
        *value = in[0];
        ++*changed;
    } else if (strcmp(tr_op_def_name(l->def), "relu") == 0) {
        ++*changed;
        return tr_maker_layer(mk, &(tr_layer_given){.type = "silu", .nin = 1, .in = in}, value);
    }
    return TR_OK;
}

static void test_changes(void **state)
{
    (void)state;
    test_model t = test_model_open(
        "  input: [2, 4, 4]\n  layers:\n    - conv2d: {out: 2, kernel: 1}\n    - batchnorm\n"
        "    - residual: {body: [relu, {conv2d: {out: 2, kernel: 1}}, batchnorm]}\n"
        "    - flatten\n    - linear: {out: 3}\n  loss: cross_entropy\n");
    tr_model *m = NULL;
    int changed = 0;
    ok(tr_model_copy(t.model, change, &changed, 0, &m));
    assert_int_equal(changed, 3);
    test_model_close(&t);
    test_model want =
        test_model_open("  input: [2, 4, 4]\n  layers:\n    - conv2d: {out: 2, kernel: 1}\n"
                        "    - residual: {body: [silu, {conv2d: {out: 2, kernel: 1}}]}\n"
                        "    - flatten\n    - linear: {out: 3}\n  loss: cross_entropy\n");
    same_model(m, want.model);
    tr_model *b = again(m, 0);
    same_model(m, b);
    tr_model_close(b);
    tr_model_close(m);
    test_model_close(&want);
}

static tr_status refuse(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    (void)ctx, (void)in;
    return tr_maker_layer(mk, &(tr_layer_given){.type = l->index ? "rellu" : "relu"}, value);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void told(tr_status st, const char *text)
{
    assert_int_equal(st, TR_CONFIG);
    assert_string_equal(tr_last_error()->text, text);
}

static void test_errors(void **state)
{
    (void)state;
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    tr_maker *mk = NULL;
    tr_model *m = NULL;
    int x, y;
    for (int wrong = 0; wrong < 12; wrong++) {
        ok(tr_maker_open(TR_INIT_KAIMING, &mk));
        if (wrong == 0) told(tr_maker_finish(mk, 0, &m), "a model without layers");
        if (wrong == 1)
            told(tr_maker_input(mk, "x", 0, NULL, &x),
                 "input \"x\" has 0 dimensions; 1 to 4 are possible");
        if (wrong == 2)
            told(tr_maker_input(mk, "x", 1, (int64_t[]){0}, &x), "input \"x\" is too small");
        if (wrong == 3)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "relu"}, &y),
                 "layer \"relu1\": there is no value 0 to read");
        ok(wrong < 4 ? TR_OK : tr_maker_input(mk, "x", 1, (int64_t[]){4}, &x));
        if (wrong == 4)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "repeat"}, &y),
                 "there is no layer \"repeat\"");
        if (wrong == 5)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "relu", .name = "a/b"}, &y),
                 "a layer's name has letters, digits and _.- only, not \"a/b\"");
        if (wrong == 6)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "relu", .nin = 1, .in = (int[]){7}},
                                &y),
                 "layer \"relu1\": there is no value 7 to read");
        if (wrong == 7)
            told(tr_maker_layer_text(mk, &(tr_layer_given){.type = "linear"}, "{outs: 3}", &y),
                 "linear:1:2: layer \"linear1\": unknown key \"outs\"; did you mean \"out\"?");
        ok(wrong < 8 ? TR_OK : tr_maker_layer(mk, &(tr_layer_given){.type = "relu"}, &y));
        if (wrong == 8)
            told(tr_maker_input(mk, "z", 1, (int64_t[]){4}, &x), "input \"z\" comes after a layer");
        if (wrong == 9) told(tr_maker_finish(mk, 0, &m), "a model without a loss");
        if (wrong == 10)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "tanh", .name = "relu1"}, &y),
                 "two layers are named \"relu1\"");
        if (wrong == 11) {
            ok(tr_maker_layer(mk, &(tr_layer_given){.type = "tanh", .nin = 1, .in = &x}, &y));
            ok(tr_maker_loss(mk, &(tr_loss_config){.kind = {TR_LOSS_MSE}}));
            told(tr_maker_finish(mk, 0, &m), "layer \"relu1\": its output is not used");
        }
        tr_maker_close(mk);
    }
    assert_null(m);
    test_model t = test_model_open("  input: [4]\n  layers: [tanh, tanh]\n  loss: mse\n");
    told(tr_model_copy(t.model, refuse, NULL, 0, &m), "there is no layer \"rellu\"");
    test_model_close(&t);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
}

static tr_status widen(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    (void)ctx, (void)l;
    return tr_maker_layer_text(mk, &(tr_layer_given){.type = "linear", .nin = 1, .in = in},
                               "{out: 3}", value);
}

/* Weights of a loss that a copy has too few of are told with their key, where there is no config to
 * point to. */
static void test_loss_weights(void **state)
{
    (void)state;
    static const struct {
        const char *loss, *said;
    } cases[] = {{"{cross_entropy: {class_weights: [1, 2]}}",
                  "model.loss.cross_entropy.class_weights: 2 class_weights, but layer \"linear1\" "
                  "gives 3 classes"},
                 {"{bce: {pos_weight: [1, 2]}}",
                  "model.loss.bce.pos_weight: 2 pos_weights, but layer \"linear1\" gives 3 "
                  "outputs"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char *text =
            tr_sprintf("  input: [4]\n  layers: [{linear: {out: 2}}]\n  loss: %s\n", cases[i].loss);
        test_model t = test_model_open(text);
        tr_model *m = NULL;
        assert_int_equal(tr_model_copy(t.model, widen, NULL, 0, &m), TR_SHAPE);
        assert_string_equal(tr_last_error()->text, cases[i].said);
        assert_null(m);
        test_model_close(&t);
        tr_free(text);
    }
}

/* An allocation that fails anywhere fails the call and leaves nothing behind. */
static void test_memory(void **state)
{
    (void)state;
    tr_model *m = random_model(11, 0);
    tr_config *base = config_of(BASE);
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    for (int what = 0; what < 2; what++) {
        int failed = 0;
        for (uint64_t n = 1;; n++) {
            tr_model *copy = NULL;
            char *text = NULL;
            size_t nbytes;
            FILE *f = open_memstream(&text, &nbytes);
            tr_mem_fail_at(n);
            const tr_status st =
                what ? tr_model_write_config(m, base, f) : tr_model_copy(m, NULL, NULL, 0, &copy);
            tr_mem_fail_at(0);
            fclose(f);
            free(text);
            tr_model_close(copy);
            assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
            if (st == TR_OK) break;
            assert_int_equal(st, TR_MEMORY);
            failed++;
        }
        assert_true(failed > 10);
    }
    tr_config_close(base);
    tr_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),  cmocka_unit_test(test_structure),
        cmocka_unit_test(test_changes), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_loss_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
