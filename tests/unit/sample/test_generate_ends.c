/* links: trireme_cpu
 * Where generation ends: stops, and text that only began like one; the last of a model's positions;
 * a request to stop; values that are not finite. */
#include "tests/unit/sample/generate_harness.h"

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

/* The row of an id that one prompt alone has: it ends, the others go on, in its group and behind
 * it. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops),
        cmocka_unit_test(positions_end),
        cmocka_unit_test(stopping),
        cmocka_unit_test(stopping_within_a_stop),
        cmocka_unit_test(stopping_within_a_prompt),
        cmocka_unit_test(one_that_is_not_finite),
        cmocka_unit_test(values_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
