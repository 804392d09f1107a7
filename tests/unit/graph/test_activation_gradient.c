/* links: trireme_graph
 * The pass activation_gradient: gradients of activations go into the products before them. What it
 * makes of small models, as text; and that it never changes what is computed (evaluate.h), on
 * models by chance, with recomputation of every kind. */
#include "tests/unit/chance.h"
#include "tests/unit/graph/evaluate.h"

static const tr_graph_options train = {.batch = 2,
                                       .mode = TR_MODE_TRAIN,
                                       .ranks = 1,
                                       .passes = TR_PASS_IS(TR_PASS_ACTIVATION_GRADIENT),
                                       .activation_gradient = true};

#define MODEL(layers) "  input: [8]\n  layers:\n" layers "  loss: mse\n"
#define UP            "    - linear: {out: 16, name: up}\n"
#define GELU          "    - gelu: {approximate: tanh, name: act}\n"
#define DOWN          "    - linear: {out: 8, name: down}\n"
#define BEFORE        "    - linear: {out: 8, name: in}\n"

static void test_pair(void **state)
{
    (void)state;
    test_graph_is(MODEL(BEFORE UP GELU DOWN), &train,
                  "linear input in.weight in.bias -> in(2,8)!\n"
                  "linear in up.weight up.bias -> up(2,16)!\n"
                  "gelu up -> act(2,16)!\n"
                  "linear act down.weight down.bias -> down(2,8)\n"
                  "mse down target -> d.down.1(2,8)\n"
                  "linear.grad_weight act d.down.1 -> d.down.weight(8,16) d.down.bias(8)\n"
                  "linear.grad_input+gelu_tanh d.down.1 down.weight up -> d.up.1(2,16)\n"
                  "linear.grad_weight in d.up.1 -> d.up.weight(16,8) d.up.bias(16)\n"
                  "linear.grad_input d.up.1 up.weight -> d.in.1(2,8)\n"
                  "linear.grad_weight input d.in.1 -> d.in.weight(8,8) d.in.bias(8) bucket 0\n");
}

/* How often the pass finds something in a model, which computes what it does without. */
static size_t found_in(const char *model, tr_graph_options o)
{
    test_model t = test_model_open(model);
    tr_graph *g = test_graph(t.model, &o);
    const size_t found = g->found[TR_PASS_ACTIVATION_GRADIENT];
    o.passes = 0;
    tr_graph *plain = test_graph(t.model, &o);
    test_same(plain, g);
    tr_graph_close(g);
    tr_graph_close(plain);
    test_model_close(&t);
    return found;
}

static void test_where(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        size_t found;
    } cases[] = {
        {MODEL(BEFORE UP GELU DOWN), 1},
        {MODEL(UP GELU DOWN), 1},
        {MODEL(BEFORE "    - gelu: {approximate: tanh}\n"), 0}, /* it begins at the loss */
        {MODEL(UP "    - gelu\n" DOWN), 0},                     /* not the exact one */
        {MODEL(UP "    - silu\n" DOWN), 0},
        {MODEL(UP "    - relu\n" DOWN), 0},
        {MODEL(UP "    - layernorm\n" GELU DOWN), 1},
        {MODEL(UP GELU "    - layernorm\n" DOWN), 0},
        {MODEL("    - sklinear: {out: 16, terms: 2, rank: 4}\n" GELU
               "    - sklinear: {out: 8, terms: 2, rank: 4}\n"),
         1},
        /* The activation is read twice: its gradient is a sum. */
        {MODEL(UP GELU DOWN "    - linear: {out: 8, from: act, name: other}\n"
                            "    - add: {from: [down, other]}\n"),
         0},
        /* So is what it is applied to. */
        {MODEL(BEFORE "    - gelu: {approximate: tanh, name: act}\n"
                      "    - linear: {out: 8, name: down}\n    - add: {from: [in, down]}\n"),
         1},
        /* Nothing has a gradient that is frozen. */
        {MODEL("    - linear: {out: 16, name: up, freeze: true}\n" GELU DOWN), 0},
        {MODEL(UP "    - gelu: {approximate: tanh, name: act}\n"
                  "    - gelu: {approximate: tanh, from: up, name: same}\n"
                  "    - linear: {out: 8, from: act, name: down}\n"
                  "    - linear: {out: 8, from: same, name: other}\n"
                  "    - add: {from: [down, other]}\n"),
         2},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        const size_t found = found_in(cases[i].model, train);
        if (found != cases[i].found)
            fail_msg("found %zu, expected %zu\n%s", found, cases[i].found, cases[i].model);
    }
}

/* Not where the backend's products cannot, nor where it is left out, nor outside training. */
static void test_off(void **state)
{
    (void)state;
    tr_graph_options o = train;
    o.activation_gradient = false;
    assert_int_equal(found_in(MODEL(UP GELU DOWN), o), 0);
    o = train;
    o.passes = TR_PASSES_ALL & ~TR_PASS_IS(TR_PASS_ACTIVATION_GRADIENT);
    assert_int_equal(found_in(MODEL(UP GELU DOWN), o), 0);
    o = train;
    o.mode = TR_MODE_EVALUATE;
    assert_int_equal(found_in(MODEL(UP GELU DOWN), o), 0);
}

/* ---- By chance ---- */

/* Layers that keep (5, 8), products and activations above all. */
static char *generate(uint64_t seed)
{
    static const char *const plain[] = {"gelu: {approximate: tanh, name: h",
                                        "gelu: {approximate: tanh, name: h",
                                        "gelu: {approximate: tanh, name: h",
                                        "gelu: {name: h",
                                        "relu: {name: h",
                                        "layernorm: {name: h",
                                        "dropout: {p: 0.1, name: h",
                                        "sklinear: {out: 8, terms: 1, rank: 4, name: h"};
    char *text = NULL;
    size_t n;
    generator r = {.state = seed * 77 + 5};
    r.to = open_memstream(&text, &n);
    fprintf(r.to, "  input: [5, 8]\n  layers:\n    - linear: {out: 8, name: h0}\n");
    const int layers = 3 + dice(&r, 8);
    for (int i = 1; i <= layers; i++) {
        const int what = dice(&r, 8);
        if (what < 3)
            fprintf(r.to, "    - linear: {out: 8, name: h%d%s%s}\n", i,
                    dice(&r, 3) ? "" : ", bias: false", dice(&r, 5) ? "" : ", freeze: true");
        else if (what == 3 && i > 1)
            fprintf(r.to, "    - add: {from: [h%d, h%d], name: h%d}\n", i - 1, dice(&r, i - 1), i);
        else
            fprintf(r.to, "    - %s%d}\n", plain[dice(&r, (int)TR_COUNT(plain))], i);
    }
    fprintf(r.to, "    - linear: {out: 3}\n  loss: mse\n");
    fclose(r.to);
    return text;
}

static int *random_segments(const tr_model *m, uint64_t seed)
{
    generator r = {.state = seed * 17 + 5};
    int *segments = malloc((m->nlayers + 1) * sizeof *segments), number = 0;
    for (size_t l = 0; l <= m->nlayers; l++) {
        const int what = dice(&r, 3);
        number += what == 0;
        segments[l] = what == 1 ? -1 : number;
        number += what == 1;
    }
    return segments;
}

static void test_generated(void **state)
{
    (void)state;
    size_t found = 0, again = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        char *text = generate(seed);
        test_model t;
        const tr_status st = test_model_try(&t, text, 256);
        if (st != TR_OK) fail_msg("seed %d: %s\n%s", (int)seed, tr_last_error()->text, text);
        tr_graph_options o = {.batch = 2, .mode = TR_MODE_TRAIN, .ranks = 1};
        tr_graph *plain = test_graph(t.model, &o);
        int *segments = random_segments(t.model, seed);
        o.activation_gradient = true;
        o.recompute_segments = segments;
        for (int kind = 0; kind < 8; kind++) {
            o.passes =
                kind % 2 ? TR_PASSES_ALL
                         : TR_PASS_IS(TR_PASS_ACTIVATION_GRADIENT) | TR_PASS_IS(TR_PASS_RECOMPUTE);
            o.recompute = (const int[]){TR_RECOMPUTE_NONE, TR_RECOMPUTE_BLOCKS, TR_RECOMPUTE_EVERY,
                                        TR_RECOMPUTE_SEGMENTS}[kind / 2];
            o.recompute_every = 1 + (int64_t)seed % 4;
            tr_graph *g = test_graph(t.model, &o);
            test_same(plain, g);
            found += g->found[TR_PASS_ACTIVATION_GRADIENT];
            for (size_t i = 0; i < g->nops; i++)
                again += g->ops[i].recomputed && tr_op_activation(&g->ops[i]) == TR_ACT_GELU_TANH;
            tr_graph_close(g);
        }
        free(segments);
        tr_graph_close(plain);
        test_model_close(&t);
        free(text);
    }
    assert_true(found > 1000); /* the generator reaches what is tested */
    assert_true(again > 100);
}

/* An allocation that fails fails the call and leaves nothing behind. */
static void test_memory(void **state)
{
    (void)state;
    test_model t = test_model_open(MODEL(BEFORE UP GELU DOWN));
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    tr_graph *g = NULL;
    for (uint64_t n = 1; !g; n++) {
        tr_mem_fail_at(n);
        const tr_status st = tr_graph_open(t.model, &train, &g);
        tr_mem_fail_at(0);
        if (st == TR_OK) break;
        assert_int_equal(st, TR_MEMORY);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
    }
    tr_graph_close(g);
    test_model_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pair),      cmocka_unit_test(test_where),  cmocka_unit_test(test_off),
        cmocka_unit_test(test_generated), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
