/* The structure `transformer`: the plain layers that it stands for, and what is told where it
 * cannot. */
#include "tests/unit/graph/equal.h"
#include "tests/unit/graph/expands.h"

#include <math.h>

#define MODEL(options)                                                                             \
    "  input: [6, 8]\n"                                                                            \
    "  layers:\n"                                                                                  \
    "    - linear: {out: 8, name: in}\n"                                                           \
    "    - transformer: {" options "}\n"                                                           \
    "  loss: mse\n"

/* Norms in front, one product for queries, keys and values; drop_path from the second block on. */
static void test_pre(void **state)
{
    (void)state;
    expands(MODEL("layers: 2, heads: 4, kv_heads: 2, causal: true, dropout: 0.1, drop_path: 0.2"),
            "linear in<-input (6, 8)\n"
            "layernorm transformer1.0.norm1<-in (6, 8)\n"
            "linear transformer1.0.qkv<-transformer1.0.norm1 (6, 16)\n"
            "attention transformer1.0.attention<-transformer1.0.qkv (6, 8)\n"
            "linear transformer1.0.proj<-transformer1.0.attention (6, 8)\n"
            "dropout transformer1.0.drop1<-transformer1.0.proj (6, 8)\n"
            "add transformer1.0.add1<-transformer1.0.drop1,in (6, 8)\n"
            "layernorm transformer1.0.norm2<-transformer1.0.add1 (6, 8)\n"
            "linear transformer1.0.up<-transformer1.0.norm2 (6, 32)\n"
            "gelu transformer1.0.act<-transformer1.0.up (6, 32)\n"
            "linear transformer1.0.down<-transformer1.0.act (6, 8)\n"
            "dropout transformer1.0.drop2<-transformer1.0.down (6, 8)\n"
            "add transformer1.0.add2<-transformer1.0.drop2,transformer1.0.add1 (6, 8)\n"
            "layernorm transformer1.1.norm1<-transformer1.0.add2 (6, 8)\n"
            "linear transformer1.1.qkv<-transformer1.1.norm1 (6, 16)\n"
            "attention transformer1.1.attention<-transformer1.1.qkv (6, 8)\n"
            "linear transformer1.1.proj<-transformer1.1.attention (6, 8)\n"
            "dropout transformer1.1.drop1<-transformer1.1.proj (6, 8)\n"
            "drop_path transformer1.1.path1<-transformer1.1.drop1 (6, 8)\n"
            "add transformer1.1.add1<-transformer1.1.path1,transformer1.0.add2 (6, 8)\n"
            "layernorm transformer1.1.norm2<-transformer1.1.add1 (6, 8)\n"
            "linear transformer1.1.up<-transformer1.1.norm2 (6, 32)\n"
            "gelu transformer1.1.act<-transformer1.1.up (6, 32)\n"
            "linear transformer1.1.down<-transformer1.1.act (6, 8)\n"
            "dropout transformer1.1.drop2<-transformer1.1.down (6, 8)\n"
            "drop_path transformer1.1.path2<-transformer1.1.drop2 (6, 8)\n"
            "add transformer1.1.add2<-transformer1.1.path2,transformer1.1.add1 (6, 8)");
}

/* As Llama's: rotary places, a gate, no biases; three products. */
static void test_gated(void **state)
{
    (void)state;
    expands(MODEL("name: t, layers: 1, heads: 2, causal: true, norm_type: rmsnorm, activation: "
                  "swiglu, position: rotary, bias: false"),
            "linear in<-input (6, 8)\n"
            "rmsnorm t.0.norm1<-in (6, 8)\n"
            "linear t.0.q<-t.0.norm1 (6, 8)\n"
            "linear t.0.k<-t.0.norm1 (6, 8)\n"
            "linear t.0.v<-t.0.norm1 (6, 8)\n"
            "rotary t.0.q_rotary<-t.0.q (6, 8)\n"
            "rotary t.0.k_rotary<-t.0.k (6, 8)\n"
            "attention t.0.attention<-t.0.q_rotary,t.0.k_rotary,t.0.v (6, 8)\n"
            "linear t.0.proj<-t.0.attention (6, 8)\n"
            "add t.0.add1<-t.0.proj,in (6, 8)\n"
            "rmsnorm t.0.norm2<-t.0.add1 (6, 8)\n"
            "linear t.0.gate<-t.0.norm2 (6, 64)\n"
            "linear t.0.up<-t.0.norm2 (6, 64)\n"
            "silu t.0.act<-t.0.gate (6, 64)\n"
            "mul t.0.gated<-t.0.act,t.0.up (6, 64)\n"
            "linear t.0.down<-t.0.gated (6, 8)\n"
            "add t.0.add2<-t.0.down,t.0.add1 (6, 8)");
}

/* As BERT's, with lengths; within a repeat, whose blocks are numbered. */
static void test_post(void **state)
{
    (void)state;
    expands("  inputs: {x: [6, 8], n: [1]}\n"
            "  layers:\n"
            "    - linear: {out: 8, name: in, from: x}\n"
            "    - repeat: {times: 1, name: r, names: path, layers: [{transformer: {name: t, "
            "layers: 1, heads: 2, mlp: 12, causal: false, norm: post, qkv: separate, "
            "activation: gelu_tanh, from: [in, n]}}, tanh]}\n"
            "  loss: mse\n",
            "linear in<-x (6, 8)\n"
            "linear r.0.t.0.q<-in (6, 8)\n"
            "linear r.0.t.0.k<-in (6, 8)\n"
            "linear r.0.t.0.v<-in (6, 8)\n"
            "attention r.0.t.0.attention<-r.0.t.0.q,r.0.t.0.k,r.0.t.0.v,n (6, 8)\n"
            "linear r.0.t.0.proj<-r.0.t.0.attention (6, 8)\n"
            "add r.0.t.0.add1<-r.0.t.0.proj,in (6, 8)\n"
            "layernorm r.0.t.0.norm1<-r.0.t.0.add1 (6, 8)\n"
            "linear r.0.t.0.up<-r.0.t.0.norm1 (6, 12)\n"
            "gelu r.0.t.0.act<-r.0.t.0.up (6, 12)\n"
            "linear r.0.t.0.down<-r.0.t.0.act (6, 8)\n"
            "add r.0.t.0.add2<-r.0.t.0.down,r.0.t.0.norm1 (6, 8)\n"
            "layernorm r.0.t.0.norm2<-r.0.t.0.add2 (6, 8)\n"
            "tanh r.0.tanh1<-r.0.t.0.norm2 (6, 8)");
}

/* GPT-2's: products that end a half start smaller, by the root of how many there are; biases and
 * all others do not. */
static void test_init_residual(void **state)
{
    (void)state;
    static const double wanted[] = {0.02, 0.02 / 2.449489742783178};
    for (int scaled = 0; scaled < 2; scaled++) {
        char *model = tr_sprintf("  init: normal\n  input: [6, 64]\n  layers:\n"
                                 "    - transformer: {layers: 3, heads: 2, causal: true%s}\n"
                                 "  loss: mse\n",
                                 scaled ? ", init_residual: scaled" : "");
        test_model t = test_model_open(model);
        float *v = calloc(t.model->flat_count, sizeof *v);
        assert_non_null(v);
        tr_model_init_params(t.model, 5, v, 0, t.model->flat_count);
        for (size_t i = 0; i < t.model->nparams; i++) {
            const tr_param *p = &t.model->params[i];
            const bool ends = strstr(p->layer, "proj") || strstr(p->layer, "down");
            double squares = 0;
            if (p->ndim != 2) continue;
            for (size_t e = 0; e < p->count; e++)
                squares += (double)v[p->offset + e] * (double)v[p->offset + e];
            /* five deviations of a sample's deviation */
            assert_true(fabs(sqrt(squares / (double)p->count) / wanted[scaled && ends] - 1) <
                        5 / sqrt(2 * (double)p->count));
        }
        free(v);
        test_model_close(&t);
        tr_free(model);
    }
}

/* One block with these options is the model that names plain layers, with their attributes, in its
 * place. */
static void stands_for(const char *options, const char *plain)
{
    char *text[2] = {tr_sprintf("  input: [6, 8]\n  layers:\n    - linear: {out: 8, name: in}\n"
                                "    - transformer: {name: t, layers: 1, eps: 0.003, %s}\n"
                                "  loss: mse\n",
                                options),
                     tr_sprintf("  input: [6, 8]\n  layers:\n    - linear: {out: 8, name: in}\n"
                                "    - block: {layers: [%s]}\n  loss: mse\n",
                                plain)};
    test_model block = test_model_open(text[0]), wanted = test_model_open(text[1]);
    print_message("%s\n", options);
    same_model(block.model, wanted.model);
    test_model_close(&block);
    test_model_close(&wanted);
    tr_free(text[0]);
    tr_free(text[1]);
}

/* Every option reaches the layers. */
static void test_options(void **state)
{
    (void)state;
    static const struct {
        const char *options, *attention, *act, *ends; /* ends: of products that end a half */
        int mlp;
        bool drop;
    } packed[] = {
        {"heads: 2, causal: true, position: alibi, window: 3, attention_dropout: 0.25, dropout: "
         "0.3, activation: relu, init_residual: scaled",
         "heads: 2, causal: true, window: 3, dropout: 0.25, alibi: true", "relu: {name: t.0.act}",
         ", init_factor: 0.7071067811865475", 32, true},
        {"heads: 4, causal: false, activation: silu, mlp: 12", "heads: 4", "silu: {name: t.0.act}",
         "", 12, false},
        {"heads: 2, causal: true, activation: gelu_tanh", "heads: 2, causal: true",
         "gelu: {name: t.0.act, approximate: tanh}", "", 32, false},
    };
    for (size_t i = 0; i < TR_COUNT(packed); i++) {
        const char *ends = packed[i].ends;
        const bool drop = packed[i].drop;
        char *plain = tr_sprintf(
            "layernorm: {name: t.0.norm1, eps: 0.003}, linear: {name: t.0.qkv, out: 24}, "
            "attention: {name: t.0.attention, %s}, linear: {name: t.0.proj, out: 8%s}, %s"
            "add: {name: t.0.add1, from: [t.0.%s, in]}, layernorm: {name: t.0.norm2, eps: 0.003}, "
            "linear: {name: t.0.up, out: %d}, %s, linear: {name: t.0.down, out: 8%s}, %s"
            "add: {name: t.0.add2, from: [t.0.%s, t.0.add1]}",
            packed[i].attention, ends, drop ? "dropout: {name: t.0.drop1, p: 0.3}, " : "",
            drop ? "drop1" : "proj", packed[i].mlp, packed[i].act, ends,
            drop ? "dropout: {name: t.0.drop2, p: 0.3}, " : "", drop ? "drop2" : "down");
        stands_for(packed[i].options, plain);
        tr_free(plain);
    }
    stands_for("heads: 4, kv_heads: 2, causal: true, position: rotary, rotary_base: 500, norm: "
               "post, norm_type: rmsnorm, activation: geglu, bias: false, window: 2, "
               "attention_dropout: 0.125",
               "linear: {name: t.0.q, out: 8, bias: false}, "
               "linear: {name: t.0.k, out: 4, bias: false, from: in}, "
               "linear: {name: t.0.v, out: 4, bias: false, from: in}, "
               "rotary: {name: t.0.q_rotary, heads: 4, base: 500, from: t.0.q}, "
               "rotary: {name: t.0.k_rotary, heads: 2, base: 500, from: t.0.k}, "
               "attention: {name: t.0.attention, heads: 4, kv_heads: 2, causal: true, window: 2, "
               "dropout: 0.125, from: [t.0.q_rotary, t.0.k_rotary, t.0.v]}, "
               "linear: {name: t.0.proj, out: 8, bias: false}, "
               "add: {name: t.0.add1, from: [t.0.proj, in]}, "
               "rmsnorm: {name: t.0.norm1, eps: 0.003}, "
               "linear: {name: t.0.gate, out: 64, bias: false}, "
               "linear: {name: t.0.up, out: 64, bias: false, from: t.0.norm1}, "
               "gelu: {name: t.0.act, from: t.0.gate}, "
               "mul: {name: t.0.gated, from: [t.0.act, t.0.up]}, "
               "linear: {name: t.0.down, out: 8, bias: false}, "
               "add: {name: t.0.add2, from: [t.0.down, t.0.norm1]}, "
               "rmsnorm: {name: t.0.norm2, eps: 0.003}");
}

/* From none in the first block to all of it in the last, in even steps. */
static void test_drop_path(void **state)
{
    (void)state;
    for (int layers = 1; layers <= 4; layers++) {
        char *text =
            tr_sprintf("  input: [6, 8]\n  layers:\n    - transformer: {layers: %d, heads: 2, "
                       "causal: true, drop_path: 0.3}\n  loss: mse\n",
                       layers);
        test_model t = test_model_open(text);
        int found = 0;
        for (size_t i = 0; i < t.model->nlayers; i++) {
            const tr_layer *l = &t.model->layers[i];
            if (strcmp(l->def->name, "drop_path") != 0) continue;
            const double p = ((const tr_dropout_attrs *)l->attrs)->p;
            assert_true(fabs(p - 0.3 * l->block / (layers - 1)) < 1e-12);
            found++;
        }
        assert_int_equal(found, 2 * (layers - 1));
        test_model_close(&t);
        tr_free(text);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    static const char *const names[] = {"n", "norm1", "qkv", "attention", "add1", "input", NULL};
    test_model_lengths("transformer: {layers: 3, heads: 2, causal: true", names, 3);
    test_model_lengths("transformer: {layers: 2, heads: 2, causal: false, norm: post", names, 2);
}

/* Each block is one to recompute. */
static void test_recomputed(void **state)
{
    (void)state;
    test_model t = test_model_open(MODEL("layers: 3, heads: 2, causal: true"));
    const int per = (int)(t.model->nlayers - 1) / 3;
    for (size_t i = 0; i < t.model->nlayers; i++)
        assert_int_equal(t.model->layers[i].block, i == 0 ? -1 : ((int)i - 1) / per);
    test_model_close(&t);
}

/* Configs, and the files that hold them, may write defaults out. */
static void test_default_written(void **state)
{
    (void)state;
    static const char *const models[] = {
        MODEL("layers: 1, heads: 2, causal: true, rotary_base: 10000"),
        MODEL("layers: 1, heads: 2, causal: true, rotary_base: 1e4, position: alibi"),
        MODEL("layers: 1, heads: 2, causal: true, rotary_base: 10000, position: rotary"),
    };
    for (size_t i = 0; i < TR_COUNT(models); i++) {
        test_model t = test_model_open(models[i]);
        test_model_close(&t);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        tr_status status;
        const char *model, *said;
    } bad[] = {
        {TR_CONFIG, MODEL("layers: 1, heads: 3, causal: true"),
         "m.yaml:7:7: layer \"transformer1\": heads: 3 do not divide the width, 8"},
        {TR_CONFIG, MODEL("layers: 1, heads: 4, kv_heads: 3, causal: true"),
         "m.yaml:7:7: layer \"transformer1\": kv_heads: 3 do not divide the heads, 4"},
        {TR_CONFIG, MODEL("layers: 1, heads: 2"),
         "m.yaml:7:20: layer \"transformer1\": required key \"causal\" is missing: true: a token "
         "attends to itself and to those before it, as a language model's; false: to all, as ViT's "
         "and BERT's (true or false)"},
        {TR_SHAPE, MODEL("layers: 1, heads: 2, width: 16, causal: true"),
         "m.yaml:7:7: layer \"transformer1\": width: 16, but its input has 8 features"},
        {TR_CONFIG, MODEL("layers: 1, heads: 8, causal: true, position: rotary"),
         "m.yaml:7:7: layer \"transformer1\": position: rotary turns pairs: a head's 1 features "
         "are odd"},
        {TR_CONFIG, MODEL("layers: 1, heads: 2, causal: true, rotary_base: 500"),
         "m.yaml:7:7: layer \"transformer1\": rotary_base: 500 means nothing with position: none"},
        {TR_CONFIG, MODEL("layers: 1, heads: 2, causal: true, rotary_base: 500, position: alibi"),
         "m.yaml:7:7: layer \"transformer1\": rotary_base: 500 means nothing with position: alibi"},
        {TR_CONFIG, MODEL("layers: 1, heads: 2, causal: true, position: rotary, qkv: packed"),
         "m.yaml:7:7: layer \"transformer1\": position: rotary turns queries and keys by "
         "themselves: qkv: separate"},
        {TR_SHAPE,
         "  input: [8]\n  layers:\n    - transformer: {layers: 1, heads: 2, causal: true}\n"
         "  loss: mse\n",
         "m.yaml:6:7: layer \"transformer1\": it takes (tokens, features), not (8)"},
    };
    for (size_t i = 0; i < TR_COUNT(bad); i++)
        test_model_fails(bad[i].model, bad[i].status, bad[i].said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pre),           cmocka_unit_test(test_gated),
        cmocka_unit_test(test_post),          cmocka_unit_test(test_recomputed),
        cmocka_unit_test(test_lengths),       cmocka_unit_test(test_errors),
        cmocka_unit_test(test_init_residual), cmocka_unit_test(test_default_written),
        cmocka_unit_test(test_options),       cmocka_unit_test(test_drop_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
