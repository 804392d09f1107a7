/* links: trireme_cpu
 * Generation: what is made greedily is what the inference engine finds most probable behind the whole of it; a prompt's
 * continuation does not depend on threads, on prompts beside it or on how many go at once; stops, and text that only
 * began like one; the end of a model's positions; what a step allocates. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "optimize/inference/inference.h"
#include "optimize/sample/sample.h"
#include "tests/unit/graph/random.h"

static const char *const models[] = {
    "  input: [24]\n  init: normal\n  layers:\n"
    "    - embedding: {num: 31, dim: 32, std: 1, name: wte}\n    - positions\n"
    "    - transformer: {layers: 2, heads: 4, activation: gelu_tanh, causal: true}\n"
    "    - layernorm\n    - linear: {out: 31, bias: false}\n  loss: cross_entropy\n",
    "  input: [24]\n  layers:\n    - embedding: {num: 31, dim: 24}\n"
    "    - transformer: {layers: 1, heads: 4, kv_heads: 2, causal: true, norm_type: rmsnorm,\n"
    "                    activation: swiglu, position: rotary, bias: false}\n"
    "    - rmsnorm\n    - linear: {out: 31}\n  loss: cross_entropy\n",
    "  input: [24]\n  layers:\n    - embedding: {num: 31, dim: 10}\n    - lstm: {hidden: 20}\n"
    "    - linear: {out: 31}\n  loss: cross_entropy\n",
};
enum { T = 24, IDS = 31, MOST = 64, PROMPTS = 5 };

static void *cpu;

static tr_network *network(const char *model)
{
    test_model t = test_model_open(model);
    tr_network *n;
    ok(tr_network_open(t.model, &n));
    t.model = NULL;
    test_model_close(&t);
    tr_model_init_params(n->model, 3, n->params, 0, n->model->flat_count);
    for (size_t i = 0; i < n->model->flat_count; i++) n->params[i] *= 3; /* so that ids differ */
    return n;
}

static const int32_t words[] = {4, 9, 1, 30, 0, 7, 7, 12};
static const tr_ids prompts[PROMPTS] = {
    {words, 3}, {words, 8}, {words + 3, 1}, {words, 3}, {words + 2, 5}};

typedef struct {
    int32_t ids[PROMPTS][MOST];
    size_t count[PROMPTS];
    tr_end why[PROMPTS];
    bool ended[PROMPTS];
    int64_t stop_after; /* ids; -1: never */
    int asked, stop_at; /* how often; at the how-manieth; 0: never */
    uint64_t calls;     /* allocations, when an id came first and last */
    uint64_t last_calls;
} made;

static tr_status emit(void *ctx, size_t prompt, int32_t id)
{
    made *m = ctx;
    assert_false(m->ended[prompt]);
    assert_true(m->count[prompt] < MOST);
    m->ids[prompt][m->count[prompt]++] = id;
    if (m->calls == 0) m->calls = tr_mem_calls();
    m->last_calls = tr_mem_calls();
    return TR_OK;
}

static tr_status end(void *ctx, size_t prompt, tr_end why)
{
    made *m = ctx;
    assert_false(m->ended[prompt]);
    m->ended[prompt] = true;
    m->why[prompt] = why;
    return TR_OK;
}

static bool stop(void *ctx)
{
    made *m = ctx;
    if (++m->asked == m->stop_at) return true;
    return m->stop_after >= 0 && (int64_t)m->count[0] >= m->stop_after;
}

typedef struct {
    int64_t sequences, chunk;
    int threads;
} how;

static tr_status generate(const tr_network *n, how h, tr_generation g, made *out,
                          tr_generated *done)
{
    tr_decoder *d = NULL;
    const int64_t limit = tr_graph_most_rows(n->model, NULL);
    const tr_decoder_options o = {.backend = &tr_cpu_backend,
                                  .backend_ctx = cpu,
                                  .threads = h.threads,
                                  .sequences = h.sequences,
                                  .rows = limit > 0 ? limit : 8 + g.tokens,
                                  .chunk = h.chunk};
    *out = (made){.stop_after = out->stop_after, .stop_at = out->stop_at};
    ok(tr_decoder_open(n, &o, &d));
    if (!g.prompts) g.prompts = prompts, g.nprompts = PROMPTS;
    g.emit = emit;
    g.end = end;
    g.stop = stop;
    g.ctx = out;
    const tr_status st = tr_generate(d, &g, done);
    tr_decoder_close(d);
    return st;
}

static const tr_choice greedy = {0, 0, 1}, free_choice = {1.3, 20, 0.95};

/* The most probable id behind `count` ids, by the engine that runs whole sequences. */
static int32_t most_probable(tr_inference *inf, const int32_t *ids, size_t count)
{
    static float y[T * IDS];
    int32_t whole[T] = {0};
    size_t best = 0;
    memcpy(whole, ids, count * sizeof *ids);
    ok(tr_inference_run(inf, (const void *[]){whole}, 1, (float *[]){y}));
    const float *row = y + (count - 1) * IDS;
    for (size_t i = 1; i < IDS; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

static void greedy_is_the_most_probable(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(models); k++) {
        tr_network *n = network(models[k]);
        tr_inference *inf = NULL;
        const tr_inference_options o = {.backend = &tr_cpu_backend, .backend_ctx = cpu};
        made m = {.stop_after = -1};
        tr_generated done;
        ok(tr_inference_open(n, &o, &inf));
        ok(generate(n, (how){3, 4, 2}, (tr_generation){.tokens = 14, .choice = greedy}, &m, &done));
        for (size_t p = 0; p < PROMPTS; p++) {
            int32_t all[T];
            size_t count = prompts[p].count;
            memcpy(all, prompts[p].ids, count * sizeof *all);
            assert_int_equal(m.count[p], 14);
            assert_true(m.ended[p] && m.why[p] == TR_END_TOKENS);
            for (size_t i = 0; i < 14; i++) {
                assert_int_equal(m.ids[p][i], most_probable(inf, all, count));
                all[count++] = m.ids[p][i];
            }
        }
        assert_int_equal(done.prompt_ids, 3 + 8 + 1 + 3 + 5);
        assert_int_equal(done.ids, 14 * PROMPTS);
        assert_memory_equal(m.ids[0], m.ids[3], 14 * sizeof(int32_t)); /* equal prompts */
        tr_inference_close(inf);
        tr_network_close(n);
    }
}

static void what_is_beside_does_not_matter(void **state)
{
    (void)state;
    static const how hows[] = {{5, 4, 1}, {5, 3, 3}, {2, 8, 1}, {1, 1, 2}, {8, 7, 2}};
    for (size_t k = 0; k < TR_COUNT(models); k++) {
        tr_network *n = network(models[k]);
        made first = {.stop_after = -1}, m = {.stop_after = -1};
        tr_generated done;
        const tr_generation g = {.tokens = 12, .choice = free_choice, .seed = 11};
        ok(generate(n, hows[0], g, &first, &done));
        for (size_t i = 0; i < TR_COUNT(hows); i++) {
            ok(generate(n, hows[i], g, &m, &done));
            for (size_t p = 0; p < PROMPTS; p++) {
                assert_int_equal(m.count[p], 12);
                assert_memory_equal(m.ids[p], first.ids[p], 12 * sizeof(int32_t));
            }
        }
        for (size_t p = 0; p < 3; p++) { /* each by itself */
            tr_generation one = g;
            one.prompts = &prompts[p];
            one.nprompts = 1;
            ok(generate(n, (how){1, 16, 1}, one, &m, &done));
            assert_memory_equal(m.ids[0], first.ids[p], 12 * sizeof(int32_t));
        }
        /* equal prompts go on in different ways, and other seeds in others */
        assert_true(memcmp(first.ids[0], first.ids[3], 12 * sizeof(int32_t)) != 0);
        tr_generation other = g;
        other.seed = 12;
        ok(generate(n, hows[0], other, &m, &done));
        assert_true(memcmp(m.ids[0], first.ids[0], 12 * sizeof(int32_t)) != 0);
        tr_network_close(n);
    }
}

/* Stops that are cut out of what is made. */
static void stops(void **state)
{
    (void)state;
    tr_network *n = network(models[0]);
    made all = {.stop_after = -1}, m = {.stop_after = -1};
    tr_generated done;
    tr_generation g = {
        .prompts = prompts, .nprompts = 1, .tokens = 14, .choice = free_choice, .seed = 2};
    ok(generate(n, (how){1, 4, 1}, g, &all, &done));
    for (size_t at = 0; at + 2 < 14; at++)
        for (size_t count = 1; count <= 3 && at + count <= 14; count++) {
            /* one that only begins like what comes is no stop */
            int32_t began[2] = {all.ids[0][13], IDS}, first = 0;
            const tr_ids s[] = {{began, 2}, {all.ids[0] + at, count}};
            while (memcmp(all.ids[0] + first, all.ids[0] + at, count * sizeof(int32_t)) != 0)
                first++;
            g.stops = s;
            g.nstops = 2;
            ok(generate(n, (how){1, 4, 1}, g, &m, &done));
            assert_int_equal(m.count[0], first);
            assert_memory_equal(m.ids[0], all.ids[0], (size_t)first * sizeof(int32_t));
            assert_true(m.ended[0] && m.why[0] == TR_END_STOP);
        }
    /* what may have been the beginning of one is told at the end */
    int32_t began[] = {all.ids[0][12], all.ids[0][13], IDS};
    const tr_ids unfinished = {began, 3};
    g.stops = &unfinished;
    g.nstops = 1;
    ok(generate(n, (how){1, 4, 1}, g, &m, &done));
    assert_int_equal(m.count[0], 14);
    assert_memory_equal(m.ids[0], all.ids[0], 14 * sizeof(int32_t));
    tr_network_close(n);
}

static void positions_end(void **state)
{
    (void)state;
    made m = {.stop_after = -1};
    tr_generated done;
    const tr_generation g = {.tokens = 40, .choice = greedy};
    for (size_t k = 0; k < TR_COUNT(models); k++) {
        tr_network *n = network(models[k]);
        const bool learned = k == 0;
        ok(generate(n, (how){2, 5, 1}, g, &m, &done));
        for (size_t p = 0; p < PROMPTS; p++) {
            assert_int_equal(m.why[p], learned ? TR_END_POSITIONS : TR_END_TOKENS);
            /* the last one is made of all positions */
            assert_int_equal(m.count[p], learned ? T - prompts[p].count + 1 : 40);
        }
        tr_network_close(n);
    }
}

/* A head with more outputs than the model reads ids, and biased towards those: none of them comes, and rows behind the first
 * are the right ones. */
static void padded_heads(void **state)
{
    (void)state;
    tr_network *n = network("  input: [24]\n  layers:\n    - embedding: {num: 31, dim: 10}\n"
                            "    - lstm: {hidden: 20}\n    - linear: {out: 40, name: head}\n"
                            "  loss: cross_entropy\n");
    tr_network *plain = network(models[2]);
    made m = {.stop_after = -1}, expected = {.stop_after = -1};
    tr_generated done;
    size_t copied = 0;
    for (size_t i = 0; i < n->model->nparams; i++) {
        const tr_param *to = &n->model->params[i], *from = &plain->model->params[i];
        memcpy(n->params + to->offset, plain->params + from->offset, from->count * sizeof(float));
        copied += to->count > from->count;
        for (size_t k = from->count; k < to->count; k++) n->params[to->offset + k] = 50;
    }
    assert_int_equal(copied, 2); /* weight and bias of the head */
    const tr_choice both[] = {greedy, free_choice};
    for (size_t k = 0; k < TR_COUNT(both); k++) {
        const tr_generation g = {.tokens = 12, .choice = both[k], .seed = 3};
        ok(generate(n, (how){5, 4, 1}, g, &m, &done));
        ok(generate(plain, (how){5, 4, 1}, g, &expected, &done));
        for (size_t p = 0; p < PROMPTS; p++)
            assert_memory_equal(m.ids[p], expected.ids[p], 12 * sizeof(int32_t));
    }
    ok(generate(n, (how){5, 4, 1}, (tr_generation){.tokens = 12, .choice = free_choice, .below = 7},
                &m, &done));
    for (size_t p = 0; p < PROMPTS; p++)
        for (size_t i = 0; i < 12; i++) assert_in_range(m.ids[p][i], 0, 6);
    tr_network_close(plain);
    tr_network_close(n);
}

static void what_gives_no_logits_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{linear: {out: 30, name: head}}]\n  loss: cross_entropy\n",
         "layer \"head\" gives 30 logits, but the model reads ids from 0 to 30: expected a logit "
         "for "
         "each of 31"},
        {"{linear: {out: 31, name: head}}]\n  loss: mse\n",
         "the model's loss is mse: what layer \"head\" gives is no logits to choose an id by; "
         "expected cross_entropy"},
        {"{linear: {out: 31}}, {softmax: {name: last}}]\n  loss: cross_entropy\n",
         "layer \"last\" is softmax, which cross_entropy applies itself: the model was trained on "
         "softmax of softmax, and gives no logits to choose an id by"}};
    const tr_decoder_options o = {
        .backend = &tr_cpu_backend, .backend_ctx = cpu, .sequences = 1, .rows = 8};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char text[400];
        snprintf(text, sizeof text, "  input: [24]\n  layers: [{embedding: {num: 31, dim: 10}}, %s",
                 cases[i][0]);
        tr_network *n = network(text);
        tr_decoder *d = NULL;
        assert_int_equal(tr_decoder_open(n, &o, &d), TR_UNSUPPORTED);
        assert_null(d);
        assert_string_equal(tr_last_error()->text, cases[i][1]);
        tr_network_close(n);
    }
}

/* An embedding's table ends: what is not in it is not read. */
static void ids_that_no_embedding_knows(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, IDS, INT32_MAX};
    tr_network *n = network(models[2]);
    const tr_decoder_options o = {
        .backend = &tr_cpu_backend, .backend_ctx = cpu, .sequences = 1, .rows = 8, .chunk = 4};
    tr_decoder_options unfed = o;
    tr_decoder *d = NULL;
    const float *logits;
    unfed.chunk = 0;
    ok(tr_decoder_open(n, &o, &d));
    ok(tr_decoder_reset(d));
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        char text[100];
        const int32_t ids[] = {3, bad[i]};
        snprintf(text, sizeof text, "id %d, but the model knows ids from 0 to 30", bad[i]);
        assert_int_equal(tr_decoder_feed(d, (const int32_t *const[]){ids}, (size_t[]){2}),
                         TR_USAGE);
        assert_string_equal(tr_last_error()->text, text);
        assert_int_equal(tr_decoder_step(d, &bad[i], (bool[]){true}, &logits), TR_USAGE);
        assert_string_equal(tr_last_error()->text, text);
        ok(tr_decoder_step(d, &bad[i], (bool[]){false}, &logits)); /* of none, any */
    }
    tr_decoder_close(d);
    ok(tr_decoder_open(n, &unfed, &d));
    ok(tr_decoder_reset(d));
    ok(tr_decoder_feed(d, (const int32_t *const[]){words}, (size_t[]){0}));
    assert_int_equal(tr_decoder_feed(d, (const int32_t *const[]){words}, (size_t[]){2}),
                     TR_INTERNAL);
    assert_string_equal(tr_last_error()->text,
                        "a decoder that is fed nothing was opened, and is fed 2 ids");
    tr_decoder_close(d);
    tr_network_close(n);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    tr_network *n = network(models[0]);
    made m = {.stop_after = -1};
    tr_generated done;
    ok(generate(n, (how){5, 4, 2}, (tr_generation){.tokens = 10, .choice = free_choice}, &m,
                &done));
    assert_int_equal(m.calls, m.last_calls);
    tr_network_close(n);
}

/* Of ids more, what is held and tables of rotary places, both of each; of an LSTM neither. */
static void memory_of_more_ids(void **state)
{
    (void)state;
    const size_t table = 6 * sizeof(float); /* of a place: cosine and sine of a head's 3 pairs */
    for (size_t k = 1; k < 3; k++) {
        tr_network *n = network(models[k]);
        size_t held[2], other[2];
        for (int i = 0; i < 2; i++) {
            const tr_decoder_options o = {.backend = &tr_cpu_backend,
                                          .backend_ctx = cpu,
                                          .sequences = 2,
                                          .rows = 64 + 4096 * i,
                                          .chunk = 4};
            tr_decoder *d = NULL;
            tr_memory_plan m;
            size_t holds = 0;
            ok(tr_decoder_open(n, &o, &d));
            tr_decoder_memory(d, &m, &held[i]);
            other[i] = m.bytes[TR_MEM_OTHER];
            ok(tr_decoder_holds(n->model, &o, &holds));
            assert_int_equal(holds, held[i]);
            tr_decoder_close(d);
        }
        /* keys and values of two heads of 6; at least one table in one plan */
        const size_t ids = k == 1 ? 4096 : 0;
        assert_int_equal(held[1] - held[0], ids * 2 * 2 * 12 * sizeof(float));
        assert_true(other[1] - other[0] >= ids * table);
        tr_network_close(n);
    }
}

static void stopping(void **state)
{
    (void)state;
    tr_network *n = network(models[2]);
    made m = {.stop_after = 4};
    tr_generated done;
    assert_int_equal(
        generate(n, (how){5, 4, 1}, (tr_generation){.tokens = 10, .choice = greedy}, &m, &done),
        TR_STOPPED);
    assert_int_equal(m.count[0], 4);
    assert_false(m.ended[0]);
    assert_int_equal(done.ids, 4 * PROMPTS);
    tr_network_close(n);
}

/* Ids that may begin a stop are not lost. */
static void stopping_within_a_stop(void **state)
{
    (void)state;
    tr_network *n = network(models[2]);
    made all = {.stop_after = -1};
    made m = {.stop_at = 2 + 6 + 1, .stop_after = -1}; /* two chunks, then six ids */
    tr_generated done;
    tr_generation g = {
        .prompts = prompts, .nprompts = 1, .tokens = 14, .choice = free_choice, .seed = 2};
    ok(generate(n, (how){1, 1, 1}, g, &all, &done));
    const int32_t began[] = {all.ids[0][3], all.ids[0][4], all.ids[0][5], IDS};
    const tr_ids unfinished = {began, 4};
    g.stops = &unfinished;
    g.nstops = 1;
    assert_int_equal(generate(n, (how){1, 1, 1}, g, &m, &done), TR_STOPPED);
    assert_string_equal(tr_last_error()->text, "stopped on request");
    assert_int_equal(done.ids, 6);
    assert_int_equal(m.count[0], 6);
    assert_memory_equal(m.ids[0], all.ids[0], 6 * sizeof(int32_t));
    assert_false(m.ended[0]);
    tr_network_close(n);
}

/* Also while prompts are read: seven ids in chunks of two, of which two go in. */
static void stopping_within_a_prompt(void **state)
{
    (void)state;
    tr_network *n = network(models[0]);
    made m = {.stop_at = 3, .stop_after = -1};
    tr_generated done;
    const tr_generation g = {.prompts = prompts + 1, .nprompts = 1, .tokens = 10, .choice = greedy};
    assert_int_equal(generate(n, (how){1, 2, 1}, g, &m, &done), TR_STOPPED);
    assert_int_equal(m.asked, 3);
    assert_int_equal(done.prompt_ids, 4);
    assert_int_equal(done.ids, 0);
    assert_int_equal(m.count[0], 0);
    tr_network_close(n);
}

/* The row of an id that one prompt alone has: it ends, the others go on, in its group and behind it. */
static void one_that_is_not_finite(void **state)
{
    (void)state;
    enum { ONLY = 30 }; /* not chosen by the others, for `below` */
    tr_network *n = network(models[0]);
    made all = {.stop_after = -1}, m = {.stop_after = -1};
    tr_generated done;
    const int32_t began[] = {IDS};
    const tr_ids stop = {began, 1};
    const tr_generation g = {
        .tokens = 10, .choice = free_choice, .seed = 5, .below = ONLY, .stops = &stop, .nstops = 1};
    static const int32_t with[] = {4, 9, ONLY}, without[] = {4, 9, 2}, last[] = {1, 2};
    const tr_ids some[] = {{without, 3}, {with, 3}, {last, 2}};
    tr_generation of = g;
    of.prompts = some;
    of.nprompts = 3;
    ok(generate(n, (how){2, 4, 1}, of, &all, &done));
    for (size_t i = 0; i < n->model->nparams; i++) {
        const tr_param *p = &n->model->params[i];
        if (strcmp(p->layer, "wte") == 0)
            for (size_t k = 0; k < 32; k++) n->params[p->offset + ONLY * 32 + k] = NAN;
    }
    assert_int_equal(generate(n, (how){2, 4, 1}, of, &m, &done), TR_NONFINITE);
    assert_string_equal(tr_last_error()->text,
                        "prompt 2: what the model gives behind 3 ids is not finite");
    assert_int_equal(m.count[1], 0);
    assert_true(m.ended[1] && m.why[1] == TR_END_NONFINITE);
    for (size_t p = 0; p < 3; p += 2) {
        assert_true(m.ended[p] && m.why[p] == TR_END_TOKENS);
        assert_int_equal(m.count[p], 10);
        assert_memory_equal(m.ids[p], all.ids[p], 10 * sizeof(int32_t));
    }
    assert_int_equal(done.ids, 20);
    tr_network_close(n);
}

static void values_that_are_not_finite(void **state)
{
    (void)state;
    tr_network *n = network(models[0]);
    made m = {.stop_after = -1};
    tr_generated done;
    for (size_t i = 0; i < n->model->flat_count; i++) n->params[i] = NAN;
    assert_int_equal(
        generate(n, (how){5, 4, 1}, (tr_generation){.tokens = 10, .choice = greedy}, &m, &done),
        TR_NONFINITE);
    assert_string_equal(tr_last_error()->text,
                        "prompt 1: what the model gives behind 3 ids is not finite");
    tr_network_close(n);
}

static int open_cpu(void **state)
{
    const tr_backend_options o = {0};
    (void)state;
    return tr_cpu_backend.open(&o, &cpu) == TR_OK ? 0 : -1;
}

static int close_cpu(void **state)
{
    (void)state;
    tr_cpu_backend.close(cpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_the_most_probable),
        cmocka_unit_test(what_is_beside_does_not_matter),
        cmocka_unit_test(stops),
        cmocka_unit_test(positions_end),
        cmocka_unit_test(padded_heads),
        cmocka_unit_test(what_gives_no_logits_is_refused),
        cmocka_unit_test(ids_that_no_embedding_knows),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(memory_of_more_ids),
        cmocka_unit_test(stopping),
        cmocka_unit_test(stopping_within_a_stop),
        cmocka_unit_test(stopping_within_a_prompt),
        cmocka_unit_test(one_that_is_not_finite),
        cmocka_unit_test(values_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
