/* links: trireme_cpu
 * Generation: what is made greedily is what the inference engine finds most probable behind the
 * whole of it; a prompt's continuation does not depend on threads, on prompts beside it or on how
 * many go at once; what a step allocates. */
#include "tests/unit/sample/generate_harness.h"

/* The most probable id behind `count` ids, by the engine that runs whole sequences; lengths are how
 * many they are. */
static int32_t most_probable(tr_inference *inf, const int32_t *ids, size_t count)
{
    static float y[T * IDS];
    int32_t whole[T] = {0}, length = (int32_t)count;
    size_t best = 0;
    memcpy(whole, ids, count * sizeof *ids);
    ok(tr_inference_run(inf, (const void *[]){whole, &length}, 1, (float *[]){y}));
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

/* A head with more outputs than the model reads ids, and biased towards those: none of them comes,
 * and rows behind the first are the right ones. */
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
    tr_network_close(n);
    n = network(models[2]);
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
        size_t held[2], other[2];
        for (int i = 0; i < 2; i++) {
            tr_network *n = network(models[k]);
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
            tr_network_close(n);
        }
        /* keys and values of two heads of 6; at least one table in one plan */
        const size_t ids = k == 1 ? 4096 : 0;
        assert_int_equal(held[1] - held[0], ids * 2 * 2 * 12 * sizeof(float));
        assert_true(other[1] - other[0] >= ids * table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_the_most_probable),
        cmocka_unit_test(what_is_beside_does_not_matter),
        cmocka_unit_test(padded_heads),
        cmocka_unit_test(what_gives_no_logits_is_refused),
        cmocka_unit_test(ids_that_no_embedding_knows),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(memory_of_more_ids),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
