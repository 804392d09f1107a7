/* links: trireme_cpu trireme_plan */
/* Passes over a graph, on hundreds of models by chance: what the CPU computes with all of them is
 * what it computes with each left out, and with all left out: outputs in inference, losses in
 * evaluation; losses, gradients and states in training. To the bit, but for products of 8 bits and
 * for those that go into another primitive (bound below). Each pass is found at work. */
#include "runtime/plan/internal.h"
#include "tests/unit/networks.h"

#include "runtime/params/params.h"

/* Over the largest value. A sum or an activation that goes into a product, and a product of fewer
 * rows, may choose other loops of oneDNN's, which add up in another order: float32's 2^-24 times
 * the square root of some thousand terms, and what layers make of that. */
#define FUSED_BOUND 2e-5
/* 8 bits: the product's exact sum is rounded once where float32 rounds often; where that tells two
 * steps apart, the outputs differ by a step's worth of a few terms. */
#define INT8_BOUND 0.03

enum { MODES = 3, MODELS = 200 };

typedef struct {
    size_t count, found[TR_GRAPH_PASSES];
    float *v; /* of malloc */
} answer;

static bool moves_arithmetic(int pass)
{
    return pass == TR_PASS_RESIDUAL || pass == TR_PASS_ACTIVATION ||
           pass == TR_PASS_RESIDUAL_IN_PLACE || pass == TR_PASS_ROW;
}

/* ---- Models ---------------------------------------------------------------------------------- */

/* A chain of concats, as DenseNet's, with other readers here and there; heads side by side. */
static char *grown_model(uint64_t seed)
{
    char *text = NULL;
    size_t n;
    generator r = {.state = seed * 91 + 3};
    r.to = open_memstream(&text, &n);
    fprintf(r.to, "  input: [3, 6, 6]\n  layers:\n");
    say(&r, 4, "conv2d: {out: %d, kernel: 3, padding: 1, name: k0}", 4 + dice(&r, 20));
    const int layers = 2 + dice(&r, 4);
    for (int i = 1; i <= layers; i++) {
        say(&r, 4, "batchnorm: {from: k%d}", i - 1);
        if (dice(&r, 4)) say(&r, 4, "relu");
        say(&r, 4, "conv2d: {out: %d, kernel: 3, padding: 1, bias: false, name: c%d}",
            1 + dice(&r, 20), i);
        const char *same = i > 1 && dice(&r, 4) == 0 ? ", k1" : "";
        say(&r, 4, "concat: {from: [k%d, c%d%s], name: k%d}", i - 1, i, same, i);
    }
    /* written over what the last but one is part of, which is read later */
    const bool late = dice(&r, 2);
    say(&r, 4, "%s: {from: k%d, name: last}", late ? "relu" : "batchnorm", layers);
    if (late) {
        say(&r, 4, "batchnorm: {from: k%d}", layers - 1);
        say(&r, 4, "global_avgpool");
        say(&r, 4, "flatten: {name: h}");
        say(&r, 4, "batchnorm: {from: last}");
    }
    say(&r, 4, "relu");
    say(&r, 4, "global_avgpool");
    say(&r, 4, "flatten: {name: f}");
    say(&r, 4, "linear: {out: 16, name: a}");
    say(&r, 4, "%s: {name: ra}", dice(&r, 2) ? "relu" : "tanh");
    say(&r, 4, "linear: {out: %d, from: f, name: b%s}", dice(&r, 2) ? 16 : 5,
        dice(&r, 2) ? ", bias: false" : "");
    say(&r, 4, "tanh: {from: b, name: t}");
    say(&r, 4, "tanh: {from: b, name: u}");
    say(&r, 4, "concat: {from: [ra, t, u, f%s]}", late ? ", h" : "");
    say(&r, 4, "linear: {out: 3}");
    fprintf(r.to, "  loss: mse\n");
    fclose(r.to);
    return text;
}

/* Products between layers that round to 8 bits. */
static char *rounded_model(uint64_t seed)
{
    char *text = NULL;
    size_t n;
    generator r = {.state = seed * 57 + 11};
    r.to = open_memstream(&text, &n);
    fprintf(r.to, "  input: [4, 6, 6]\n  layers:\n");
    const int layers = 2 + dice(&r, 3);
    for (int i = 0; i < layers; i++) {
        say(&r, 4, "fake_quantize: {scale: 0.03, signed: %s, name: q%d}", i ? "false" : "true", i);
        static const int groups[] = {1, 1, 2, 8}; /* the first layer has four channels */
        say(&r, 4,
            "conv2d: {out: 8, kernel: 3, padding: 1, groups: %d, stored: int8, freeze: true}",
            groups[dice(&r, i ? 4 : 3)]);
        if (i && dice(&r, 2)) say(&r, 4, "add: {from: [conv2d%d, q%d]}", i + 1, i);
        say(&r, 4, dice(&r, 2) ? "relu" : "relu6");
    }
    if (dice(&r, 2)) say(&r, 4, "global_avgpool");
    say(&r, 4, "flatten");
    say(&r, 4, "fake_quantize: {scale: 0.03, signed: false}");
    say(&r, 4, "linear: {out: 3, stored: int8, freeze: true}");
    say(&r, 4, "linear: {out: 3}");
    fprintf(r.to, "  loss: mse\n");
    fclose(r.to);
    return text;
}

/* Sequences of which one row is read, or two, or one and all. */
static char *row_model(uint64_t seed)
{
    static const char *const alone[] = {"gelu",      "rmsnorm", "leaky_relu",
                                        "layernorm", "tanh",    "drop_path: {p: 0.3}"};
    char *text = NULL;
    size_t n;
    generator r = {.state = seed * 71 + 7};
    r.to = open_memstream(&text, &n);
    fprintf(r.to, "  input: [%d, 8]\n  layers:\n", 2 + dice(&r, 5));
    say(&r, 4, "linear: {out: 16, name: h0}");
    const int layers = 2 + dice(&r, 4);
    for (int i = 1; i <= layers; i++) {
        const int what = dice(&r, 6);
        if (what == 0) say(&r, 4, "transformer: {layers: 1, heads: 2, causal: false}");
        if (what == 1) say(&r, 4, "class_token");
        if (what < 4) {
            say(&r, 4, "%s: {name: p%d}", what ? "relu" : "layernorm", i);
            say(&r, 4, "%s", alone[dice(&r, (int)TR_COUNT(alone))]);
            say(&r, 4, "linear: {out: 16, name: d%d}", i);
            say(&r, 4, "%s: {from: [d%d, p%d], name: h%d}", dice(&r, 3) ? "add" : "mul", i, i, i);
        } else {
            say(&r, 4, "sklinear: {out: 16, terms: 1, rank: 4, name: h%d}", i);
        }
    }
    const int more = dice(&r, 4);
    say(&r, 4, "select: {index: %d, name: s}", dice(&r, 3) - 1);
    say(&r, 4, "linear: {out: 4, name: a}");
    if (more == 1) say(&r, 4, "select: {index: %d, from: h%d, name: b}", dice(&r, 2), layers);
    if (more == 2) say(&r, 4, "select: {index: 0, from: h%d, name: b}", layers - 1);
    if (more == 3) say(&r, 4, "flatten: {from: h%d, name: b}", layers - dice(&r, 2));
    if (more) say(&r, 4, "concat: {from: [a, b]}");
    say(&r, 4, "linear: {out: 3}");
    fprintf(r.to, "  loss: mse\n");
    fclose(r.to);
    return text;
}

static tr_network *make_network(uint64_t seed, char **text)
{
    *text = seed % 5 == 0   ? rounded_model(seed)
            : seed % 9 == 1 ? row_model(seed)
            : seed % 5 < 3  ? grown_model(seed)
                            : generated_model(seed);
    tr_network *n = network_of(*text, seed);
    const tr_model *m = n->model;
    for (size_t i = 0; i < m->nparams; i++)
        if (m->params[i].stored == TR_I8)
            tr_param_quantize(&m->params[i], n->params + m->params[i].offset,
                              n->states + m->states[m->params[i].scale].offset, NULL);
    return n;
}

/* ---- Running --------------------------------------------------------------------------------- */

static void *batch_of(const tr_graph *g, int id, uint64_t seed)
{
    const tr_tensor *t = &g->tensors[id];
    float *v = tr_alloc(TR_MEM_OTHER, t->count, sizeof *v);
    for (size_t i = 0; i < t->count; i++) v[i] = between(seed, 3000 + (uint32_t)id, i, -2, 2);
    return v;
}

static void keep(answer *a, const float *v, size_t count)
{
    a->v = realloc(a->v, (a->count + count + 1) * sizeof *a->v);
    if (count) memcpy(a->v + a->count, v, count * sizeof *a->v);
    a->count += count;
}

/* Stretches of layers by chance, side by side or apart. */
static int *random_segments(const tr_model *m, uint64_t seed)
{
    generator r = {.state = seed * 17 + 5};
    int *segments = tr_alloc(TR_MEM_OTHER, m->nlayers + 1, sizeof *segments), number = 0;
    for (size_t l = 0; l <= m->nlayers; l++) {
        const int what = dice(&r, 4);
        number += what == 0;
        segments[l] = what == 1 ? -1 : number;
        number += what == 1;
    }
    return segments;
}

/* An infer graph is asked for an inner layer now and then. */
static answer run(const tr_network *n, tr_mode mode, uint64_t seed, unsigned passes)
{
    const tr_model *m = n->model;
    const char *inner = m->layers[m->nlayers - 2].name;
    answer a = {0};
    tr_graph *g = NULL;
    tr_session *s = NULL;
    double tally[TR_TALLY] = {0};
    int *segments = random_segments(m, seed);
    const int64_t batch = seed % 3 == 0 ? 1 : 3;
    float *states = tr_alloc(TR_MEM_OTHER, m->state_count, sizeof *states);
    float *grads = tr_alloc(TR_MEM_OTHER, m->flat_count, sizeof *grads);
    if (m->state_count) memcpy(states, n->states, m->state_count * sizeof *states);
    const tr_params p = {.o.model = m, .weights = n->params, .states = states, .grads = grads};
    ok(tr_graph_open(
        m,
        &(tr_graph_options){.batch = batch,
                            .mode = mode,
                            .ranks = 1,
                            .recompute = seed % 2   ? TR_RECOMPUTE_EVERY
                                         : seed % 4 ? TR_RECOMPUTE_SEGMENTS
                                                    : TR_RECOMPUTE_NONE,
                            .recompute_segments = segments,
                            .recompute_every = 3,
                            .passes = passes,
                            .outputs = &inner,
                            .noutputs = mode == TR_MODE_INFER && seed % 7 == 0,
                            .residual_in_place = true,
                            .parts = true,
                            .int8 = tr_graph_int8(tr_cpu_backend.kernels->unsupported, cpu)},
        &g));
    memcpy(a.found, g->found, sizeof a.found);
    ok(tr_session_open_graphs(&(tr_session_options){.model = m,
                                                    .backend = &tr_cpu_backend,
                                                    .backend_ctx = cpu,
                                                    .params = &p,
                                                    .threads = 1,
                                                    .ranks = 1},
                              &g, 1, true, &s));
    tr_plan *plan = tr_session_plan(s, mode, batch);
    void *x = batch_of(g, g->inputs[0], seed), *y = NULL;
    ok(tr_plan_set_input(plan, 0, x));
    if (g->target >= 0) ok(tr_plan_set_target(plan, y = batch_of(g, g->target, seed + 1)));
    ok(tr_plan_run(
        plan,
        &(tr_run){
            .seed = seed, .loss_scale = 1, .last = true, .params_changed = true, .tally = tally}));
    keep(&a, (const float[]){(float)tally[TR_TALLY_LOSS]}, 1);
    const tr_tensor *out = &g->tensors[mode == TR_MODE_INFER ? g->outputs[0] : g->logits];
    if (mode != TR_MODE_TRAIN) keep(&a, tr_plan_tensor(plan, out->id), out->count);
    for (size_t i = 0; mode == TR_MODE_TRAIN && i < m->nparams; i++)
        if (!m->params[i].frozen) keep(&a, grads + m->params[i].offset, m->params[i].count);
    keep(&a, states, m->state_count);
    tr_session_close(s);
    tr_free(segments);
    tr_free(x);
    tr_free(y);
    tr_free(states);
    tr_free(grads);
    return a;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static const char *const mode_names[MODES] = {"evaluate", "train", "infer"};

static void same(const answer *a, const answer *b, double bound, const char *what, int mode,
                 uint64_t seed, const char *text)
{
    assert_int_equal(a->count, b->count);
    const double d = apart(a->v, b->v, a->count);
    if (!(d <= bound))
        fail_msg("seed %d, %s, without %s: %g apart\n%s", (int)seed, mode_names[mode], what, d,
                 text);
}

static void test_each_left_out(void **state)
{
    (void)state;
    size_t found[MODES][TR_GRAPH_PASSES] = {{0}};
    for (uint64_t seed = 1; seed <= MODELS; seed++) {
        char *text;
        tr_network *n = make_network(seed, &text);
        for (int mode = 0; mode < MODES; mode++) {
            answer all = run(n, (tr_mode)mode, seed, TR_PASSES_ALL);
            const bool int8 = all.found[TR_PASS_INT8] > 0;
            for (int i = 0; i < TR_GRAPH_PASSES; i++) {
                found[mode][i] += all.found[i];
                if (all.found[i] == 0) continue; /* then the graph is the same */
                assert_true(tr_graph_pass_at((tr_graph_pass_id)i)->modes & 1u << mode);
                answer without = run(n, (tr_mode)mode, seed, TR_PASSES_ALL & ~TR_PASS_IS(i));
                assert_int_equal(without.found[i], 0);
                same(&all, &without,
                     i == TR_PASS_INT8 || (int8 && moves_arithmetic(i)) ? INT8_BOUND
                     : moves_arithmetic(i)                              ? FUSED_BOUND
                                                                        : 0,
                     tr_graph_pass_at((tr_graph_pass_id)i)->name, mode, seed, text);
                free(without.v);
            }
            answer none = run(n, (tr_mode)mode, seed, 0);
            same(&all, &none, int8 ? INT8_BOUND : FUSED_BOUND, "any", mode, seed, text);
            free(none.v);
            free(all.v);
        }
        tr_network_close(n);
        free(text);
    }
    for (int mode = 0; mode < MODES; mode++)
        for (int i = 0; i < TR_GRAPH_PASSES; i++) {
            const tr_graph_pass *p = tr_graph_pass_at((tr_graph_pass_id)i);
            /* CPUs do not ask for the last two: unit/graph/test_activation_gradient,
             * unit/cuda/test_align_rows */
            const bool none = (i == TR_PASS_INT8 &&
                               tr_graph_int8(tr_cpu_backend.kernels->unsupported, cpu) == 0) ||
                              i == TR_PASS_ACTIVATION_GRADIENT || i == TR_PASS_ALIGN_ROWS;
            if (p->modes >> mode & 1 && !none && found[mode][i] == 0)
                fail_msg("%s: %s found nothing", mode_names[mode], p->name);
        }
}

/* An operand of a concat that is written over behind it, of one row: it may not lie in the
 * concat. */
static void test_operand_written_later(void **state)
{
    (void)state;
    static const char text[] = "  input: [16]\n  layers:\n"
                               "    - linear: {out: 16, name: a}\n"
                               "    - linear: {out: 16, from: input, name: b}\n"
                               "    - concat: {from: [a, b], name: k}\n"
                               "    - relu: {from: a, name: ra}\n"
                               "    - linear: {out: 16, from: k, name: c}\n"
                               "    - linear: {out: 16, from: ra, name: d}\n"
                               "    - add: {from: [c, d], name: s}\n"
                               "    - linear: {out: 3, name: z}\n  loss: mse\n";
    tr_network *n = network_of(text, 3);
    answer all = run(n, TR_MODE_INFER, 3, TR_PASSES_ALL);
    answer without = run(n, TR_MODE_INFER, 3, TR_PASSES_ALL & ~TR_PASS_IS(TR_PASS_CONCAT_IN_PLACE));
    assert_int_equal(all.found[TR_PASS_CONCAT_IN_PLACE], 1); /* b; a is written over */
    assert_int_equal(all.count, without.count);
    assert_memory_equal(all.v, without.v, all.count * sizeof *all.v);
    free(all.v);
    free(without.v);
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_left_out),
                                       cmocka_unit_test(test_operand_written_later)};
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
