/* links: trireme_cpu trireme_plan */
/* What tr_cuts_choose chooses: costs that are those of the graph that it makes, arenas that shrink,
 * nothing made again that is made once; the best of all choices, tried one by one, of a small
 * model; names of layers and back. */
#include "tests/unit/networks.h"

#include "runtime/plan/segments.h"

static const char *const models[] = {
    "  input: [3, 16, 16]\n  loss: cross_entropy\n  layers:\n"
    "    - conv2d: {out: 8, kernel: 3, padding: 1, bias: false}\n    - batchnorm\n    - relu\n"
    "    - repeat: {times: 5, layers: [residual: {body: [conv2d: {out: 8, kernel: 3, padding: 1, "
    "bias: false}, batchnorm, relu, conv2d: {out: 8, kernel: 3, padding: 1, bias: false}, "
    "batchnorm]}, relu]}\n    - global_avgpool\n    - flatten\n    - linear: {out: 4}\n",
    "  input: [48]\n  loss: cross_entropy\n  layers:\n"
    "    - repeat: {times: 6, layers: [residual: {body: [layernorm, linear: {out: 96}, gelu, "
    "dropout: {p: 0.1}, linear: {out: 48}]}]}\n    - linear: {out: 4}\n",
    "  input: [4, 16, 16]\n  loss: cross_entropy\n  layers:\n"
    "    - conv2d: {name: first, out: 8, kernel: 3, padding: 1}\n    - gelu: {name: early}\n"
    "    - conv2d: {out: 8, kernel: 3, padding: 1}\n    - gelu\n"
    "    - conv2d: {out: 8, kernel: 3, padding: 1}\n    - gelu: {name: late}\n"
    "    - concat: {from: [late, early]}\n    - conv2d: {out: 8, kernel: 3, padding: 1}\n    - "
    "relu\n"
    "    - global_avgpool\n    - flatten\n    - linear: {out: 4}\n"};
enum { BATCH = 16 };

typedef struct {
    tr_config *config;
    tr_model *model;
} world;

static world open_world(const char *model)
{
    world w;
    char *text = tr_sprintf(BASE("%s"), model);
    ok(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &w.config));
    ok(tr_model_open(w.config, 0, &w.model));
    tr_free(text);
    return w;
}

static void close_world(world *w)
{
    tr_model_close(w->model);
    tr_config_close(w->config);
}

/* A dry plan of a training step; a node of two ranks has collective points. */
static tr_session *plan_with(const world *w, int kind, const int *segments, int64_t batch)
{
    tr_session *s;
    const tr_plan_key key = {.mode = TR_MODE_TRAIN, .batch = batch};
    ok(tr_session_open(&(tr_session_options){.model = w->model,
                                             .backend = &tr_cpu_backend,
                                             .backend_ctx = cpu,
                                             .threads = 1,
                                             .ranks = 2,
                                             .sync_batchnorm = true,
                                             .recompute = kind,
                                             .recompute_segments = segments,
                                             .keys = &key,
                                             .nkeys = 1,
                                             .dry = true},
                       &s));
    return s;
}

static double arena_of(const tr_session *s)
{
    tr_memory_plan m;
    tr_session_memory(s, &m);
    return (double)m.arena;
}

/* Each op counts, so that equal sums are equal sets, nearly. */
static double cost_of(const tr_plan *p, size_t i)
{
    return tr_plan_row_at(p, i).flops + 1;
}

static tr_cuts *cuts_of(tr_session *s)
{
    tr_cuts *cuts;
    tr_plan *p = tr_session_plan(s, TR_MODE_TRAIN, BATCH);
    double *cost = tr_alloc(TR_MEM_OTHER, tr_plan_rows(p), sizeof *cost);
    for (size_t i = 0; i < tr_plan_rows(p); i++) cost[i] = cost_of(p, i);
    ok(tr_cuts_open(p, cost, &cuts));
    tr_free(cost);
    return cuts;
}

static double again(tr_session *s, const int *segments)
{
    tr_plan *p = tr_session_plan(s, TR_MODE_TRAIN, BATCH);
    const tr_graph *g = tr_plan_graph(p);
    double sum = 0;
    for (size_t i = 0; i < g->nops; i++) {
        if (!g->ops[i].recomputed) continue;
        assert_true(segments[g->ops[i].layer_index] >= 0);
        assert_false(tr_op_made_once(&g->ops[i]));
        sum += cost_of(p, i);
    }
    return sum;
}

static void test_choices(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    for (size_t k = 0; k < TR_COUNT(models); k++) {
        world w = open_world(models[k]);
        int *segments = tr_alloc(TR_MEM_OTHER, w.model->nlayers + 1, sizeof *segments);
        tr_session *plain = plan_with(&w, TR_RECOMPUTE_NONE, NULL, BATCH);
        tr_cuts *cuts = cuts_of(plain);
        const double most = tr_cuts_most(cuts), least = tr_cuts_least(cuts);
        double before = 0, arena = arena_of(plain);
        for (int i = 0; i <= STEPS; i++) {
            double cost;
            assert_true(tr_cuts_choose(cuts, most - (most - least) * i / STEPS, segments, &cost));
            if (i == 0) assert_true(cost == 0);
            assert_true(cost >= before);
            before = cost;
            tr_session *s = plan_with(&w, TR_RECOMPUTE_SEGMENTS, segments, BATCH);
            assert_true(fabs(again(s, segments) - cost) <= 1e-9 * cost);
            if (i == STEPS) assert_true(arena_of(s) < 0.8 * arena);
            tr_session_close(s);
            tr_session_close(plan_with(&w, TR_RECOMPUTE_SEGMENTS, segments, 0));
        }
        double cost;
        assert_false(tr_cuts_choose(cuts, 0.5 * least, segments, &cost));
        tr_cuts_close(cuts);
        tr_session_close(plain);
        tr_free(segments);
        close_world(&w);
    }
}

/* ---- All choices there are ------------------------------------------------------------------- */

enum {
    LAYERS = 7,
    CHOICES = 2187
}; /* 3^7: each layer is kept, goes on with the segment, or begins one */

typedef struct {
    double arena, cost;
} tried;

static tried try_it(const world *w, const int *segments)
{
    tr_session *s = plan_with(w, TR_RECOMPUTE_SEGMENTS, segments, BATCH);
    const tried t = {arena_of(s), again(s, segments)};
    tr_session_close(s);
    return t;
}

static double cheapest(const tried *t, int n, double arena)
{
    double best = INFINITY;
    for (int i = 0; i < n; i++)
        if (t[i].arena <= arena && t[i].cost < best) best = t[i].cost;
    return best;
}

static void test_best_of_all(void **state)
{
    (void)state;
    enum { STEPS = 48, BUDGETS = 8 };
    static tried all[CHOICES], ours[STEPS];
    int segments[LAYERS + 1];
    world w =
        open_world("  input: [64]\n  loss: cross_entropy\n  layers: [linear: {out: 256}, gelu, "
                   "linear: {out: 128}, gelu, linear: {out: 256}, gelu, linear: {out: 4}]\n");
    assert_int_equal(w.model->nlayers, LAYERS);
    for (int i = 0; i < CHOICES; i++) {
        int number = -1;
        for (int l = 0, rest = i; l < LAYERS; l++, rest /= 3) {
            if (rest % 3 == 2 || (rest % 3 == 1 && (l == 0 || segments[l - 1] < 0))) number++;
            segments[l] = rest % 3 == 0 ? -1 : number;
        }
        segments[LAYERS] = -1;
        all[i] = try_it(&w, segments);
    }
    tr_session *plain = plan_with(&w, TR_RECOMPUTE_NONE, NULL, BATCH);
    tr_cuts *cuts = cuts_of(plain);
    const double most = tr_cuts_most(cuts), least = tr_cuts_least(cuts);
    for (int i = 0; i < STEPS; i++) {
        double cost;
        assert_true(
            tr_cuts_choose(cuts, least + (most - least) * i / (STEPS - 1), segments, &cost));
        ours[i] = try_it(&w, segments);
    }
    double low = INFINITY;
    for (int i = 0; i < CHOICES; i++) low = fmin(low, all[i].arena);
    const double high = arena_of(plain);
    for (int b = 0; b <= BUDGETS; b++) {
        const double budget = low + (high - low) * b / BUDGETS;
        const double best = cheapest(all, CHOICES, budget), found = cheapest(ours, STEPS, budget);
        /* its bytes are a model: of the tightest no promise is made */
        if (b > 0) assert_true(found <= 1.1 * best + 1e4);
    }
    tr_cuts_close(cuts);
    tr_session_close(plain);
    close_world(&w);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static tr_status read_names(const char *names, int **out, tr_model **model, tr_config **config)
{
    char *text = tr_sprintf(
        "name: m\ndata: {train: {format: synthetic, samples: 100}}\nmodel:\n"
        "  input: [4]\n  loss: mse\n  layers: [linear: {name: a, out: 4}, relu: {name: b}, "
        "linear: {name: c, out: 4}, relu: {name: d}, linear: {name: e, out: 1}]\n"
        "train: {batch: 8, epochs: 1, recompute: {segments: %s}}\n",
        names);
    ok(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, config));
    ok(tr_model_open(*config, 0, model));
    tr_free(text);
    return tr_segments_read(*config, *model, out);
}

static void test_names(void **state)
{
    (void)state;
    static const int expected[] = {0, 0, -1, 1, -1, -1};
    static const char *const bad[][2] = {
        {"[[a, x]]", "m.yaml:7:57: train.recompute.segments: the model has no layer \"x\""},
        {"[[b, a]]", "m.yaml:7:53: train.recompute.segments: \"b\" comes after \"a\""},
        {"[[a, c], [c, d]]", "m.yaml:7:61: train.recompute.segments: \"c\" stands in two segments"},
        {"[a, b]", "m.yaml:7:53: train.recompute.segments: expected [first layer, last layer]"},
        {"[[[a], b]]", "m.yaml:7:54: train.recompute.segments: expected the name of a layer"},
        {"[]", "m.yaml:7:52: train.recompute.segments: expected a list of [first layer, last "
               "layer]"}};
    int *segments;
    tr_model *m;
    tr_config *c;
    char *text;
    ok(read_names("[[a, b], [d, d]]", &segments, &m, &c));
    assert_memory_equal(segments, expected, sizeof expected);
    ok(tr_segments_text(m, segments, &text));
    assert_string_equal(text, "[['a', 'b'], ['d', 'd']]");
    tr_free(text);
    tr_free(segments);
    tr_model_close(m);
    tr_config_close(c);
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        assert_int_equal(read_names(bad[i][0], &segments, &m, &c), TR_CONFIG);
        assert_string_equal(tr_last_error()->text, bad[i][1]);
        tr_model_close(m);
        tr_config_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices),
                                       cmocka_unit_test(test_best_of_all),
                                       cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
