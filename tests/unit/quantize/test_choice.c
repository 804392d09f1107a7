/* links: trireme_quantize trireme_profile trireme_inference trireme_cpu trireme_runtime
 * trireme_collectives */
/* Which layers `layers: auto` takes, by times that are made up and by the loss as it is, and how
 * what it takes is computed: tests/unit/cuda/test_quantize_choice.c asks the same of a GPU. */
#include "tests/unit/quantize/bench.h"

#include "optimize/profile/profile.h"

enum { LAYERS = 4 };
static const char four[] = "  input: [10]\n  layers:\n    - linear: {out: 12, name: a}\n"
                           "    - linear: {out: 9, name: b}\n    - linear: {out: 7, name: c}\n"
                           "    - linear: {out: 4, name: d}\n  loss: cross_entropy\n";

/* ---- Times ----------------------------------------------------------------------------------- */

/* Of a layer as floats, and in 8 bits; the first of some in 8 bits has its input rounded. */
static struct {
    double floats[LAYERS], steps[LAYERS], rounding;
    int compared;
    double seconds;  /* that the choice may take */
    int stop_behind; /* so many comparisons; 0: never */
    tr_int8_story story;
} machine;

static bool asked(void *ctx)
{
    (void)ctx;
    return machine.stop_behind > 0 && machine.compared >= machine.stop_behind;
}

static tr_status times_as_said(choosing *k, tr_choice_times *c, size_t count)
{
    assert_int_equal(k->n->model->nlayers, LAYERS);
    for (size_t i = 0; i < count; i++) {
        c[i].seconds = 0;
        for (int l = 0; l < LAYERS; l++) {
            const bool first = c[i].chosen[l] && (l == 0 || !c[i].chosen[l - 1]);
            c[i].layers[l] = (c[i].chosen[l] ? machine.steps[l] : machine.floats[l]) +
                             (first ? machine.rounding : 0);
            c[i].seconds += c[i].layers[l];
        }
    }
    machine.compared++;
    return TR_OK;
}

static void set_machine(const double floats[LAYERS], const double steps[LAYERS], double rounding)
{
    memcpy(machine.floats, floats, sizeof machine.floats);
    memcpy(machine.steps, steps, sizeof machine.steps);
    machine.rounding = rounding;
    machine.compared = 0;
    machine.seconds = 1e6;
    machine.stop_behind = 0;
}

static tr_status try_choose(bench *b, tr_int8_layer *layers, double loss_rise)
{
    static const double sqnr[LAYERS] = {30, 40, 2, 35};
    const tr_int8_options o = {.choose = true,
                               .by_loss = loss_rise >= 0,
                               .batch = 1,
                               .accuracy_drop = -1,
                               .loss_rise = loss_rise,
                               .seconds = machine.seconds,
                               .stop = asked};
    for (int i = 0; i < LAYERS; i++) layers[i] = (tr_int8_layer){.output_sqnr_nearest = sqnr[i]};
    machine.story = (tr_int8_story){0};
    return tr_quantize_choose(&(choosing){.e = b->e,
                                          .n = b->n,
                                          .config = b->config,
                                          .o = &o,
                                          .ranges = b->ranges,
                                          .chosen = b->chosen,
                                          .layers = layers,
                                          .measure = times_as_said,
                                          .story = &machine.story});
}

static void choose(bench *b, tr_int8_layer *layers, double loss_rise)
{
    ok(try_choose(b, layers, loss_rise));
}

/* `wanted`: of the layers a to d those in 8 bits, "a--d". The loss allows all of them. */
static void check_choice(const double steps[LAYERS], double rounding, const char *wanted)
{
    static const double floats[LAYERS] = {2, 2, 2, 2};
    tr_int8_layer layers[LAYERS];
    bench b;
    open_bench(&b, four, 16, 16, (const double[]){0.03, 0.03, 0.03, 0.03, 0.03});
    set_machine(floats, steps, rounding);
    choose(&b, layers, 100);
    for (int i = 0; i < LAYERS; i++) {
        if (b.chosen[i] != (wanted[i] != '-')) fail_msg("%s: not so layer %d", wanted, i);
        assert_true(layers[i].float_us == 2e6 && layers[i].int8_us >= 1e6 * steps[i]);
    }
    assert_true(machine.compared < 20);
    close_bench(&b);
}

static void test_times(void **state)
{
    (void)state;
    check_choice((const double[]){1, 1, 1, 1}, 0.5, "abcd");
    /* slow between fast ones: without it inputs are rounded once more */
    check_choice((const double[]){1, 3, 1, 1}, 1.5, "abcd");
    check_choice((const double[]){1, 3, 1, 1}, 0.5, "a-cd");
    /* one of two slow neighbors alone brings nothing, both do */
    check_choice((const double[]){3, 3, 1, 1}, 1.5, "--cd");
    /* two slow ones apart: both, and only one, are worth leaving out */
    check_choice((const double[]){2.5, 1, 4, 1}, 0.2, "-b-d");
    check_choice((const double[]){1, 2.3, 1, 4}, 0.5, "abc-");
    /* less than a share of the whole is not worth it */
    check_choice((const double[]){1, 1, 2.05, 1}, 0, "abcd");
    /* never slower than none */
    check_choice((const double[]){1.9, 1.9, 1.9, 1.9}, 0.5, "----");
    check_choice((const double[]){3, 3, 3, 3}, 0, "----");
}

/* ---- The loss, and what comes out ------------------------------------------------------------ */

/* A few steps of gradient descent, so that the loss needs what the layers compute. */
static void learn(bench *b)
{
    const size_t count = b->n->model->flat_count;
    float *g = calloc(count, sizeof *g);
    assert_non_null(g);
    for (int step = 0; step < 40; step++) {
        ok(tr_gradients_over(b->e, b->n, b->config, 0, g));
        for (size_t i = 0; i < count; i++) b->n->params[i] -= 0.5f / 64 * g[i];
    }
    free(g);
}

/* The input of c is all lost in rounding. */
static void open_lossy(bench *b)
{
    open_bench(b, four, 64, 16, (const double[]){0.03, 0.03, 100, 0.03, 0.03});
    learn(b);
}

/* A product of 8 bits for each chosen layer, and for no other. */
static void check_products(bench *b, const tr_network *q)
{
    tr_profile p;
    tr_profile_options o = {.network = q, .mode = TR_MODE_INFER, .batch = 3, .runs = 1};
    size_t products = 0;
    tr_evaluator_place(b->e, &o.backend, &o.backend_ctx, &o.threads);
    ok(tr_profile_in_turns(&o, 1, &(tr_profile_turns){.turns = 2, .limit = 60}, &p));
    for (size_t r = 0; r < p.nrows; r++)
        for (size_t i = 0; i < LAYERS; i++) {
            if (strcmp(p.rows[r].layer, b->n->model->layers[i].name) != 0 || p.rows[r].flops == 0)
                continue;
            assert_int_equal(p.rows[r].type, b->chosen[i] ? TR_PEAK_INT8 : TR_PEAK_FP32);
            products++;
        }
    assert_int_equal(products, LAYERS);
    assert_true(p.seconds >= 0 && p.runs == 1);
    tr_profile_free(&p);
}

/* Its answers, with the pass that makes integers of it left out: computed as floats. */
static void check_answers(bench *b, const tr_network *q)
{
    static const char *const without[] = {"run.skip_passes=[int8]"};
    size_t count, again;
    double far = 0, size = 0;
    tr_config *c = NULL;
    tr_evaluator *e = NULL;
    ok(tr_config_open("m.yaml", b->text, strlen(b->text), without, 1, NULL, &c));
    ok(tr_evaluator_open(&(tr_evaluator_options){.comm = b->comm, .config = c}, &e));
    tr_evaluator_move(e, &TEST_BACKEND, b->device, 1);
    float *y = outputs(b, q, &count), *z = NULL;
    ok(tr_outputs_over(e, q, c, true, 0, &z, &again));
    assert_int_equal(count, again);
    for (size_t i = 0; i < count; i++) {
        far += fabs((double)y[i] - (double)z[i]);
        size += fabs((double)z[i]);
    }
    if (!(far < 1e-3 * size && size > 0)) fail_msg("%g of %g", far, size);
    tr_free(y);
    tr_free(z);
    tr_evaluator_close(e);
    tr_config_close(c);
}

/* A layer whose input is lost stays float32, and so does one that is not faster, but no other. */
static void test_loss(void **state)
{
    (void)state;
    bench b;
    tr_int8_layer layers[LAYERS];
    tr_network *q = NULL;
    open_lossy(&b);
    set_machine((const double[]){2, 2, 2, 2}, (const double[]){1, 3, 1, 1}, 0);
    choose(&b, layers, 0.02);
    assert_true(b.chosen[0] && !b.chosen[1] && !b.chosen[2] && b.chosen[3]);
    ok(tr_quantize_static(b.n, b.chosen, b.ranges, false, NULL, &q));
    check_products(&b, q);
    check_answers(&b, q);
    tr_network_close(q);
    close_bench(&b);
}

/* By time alone: the loss is not looked at, and what the whole takes is told. */
static void test_time_alone(void **state)
{
    (void)state;
    bench b;
    tr_int8_layer layers[LAYERS];
    open_lossy(&b);
    set_machine((const double[]){2, 2, 2, 2}, (const double[]){1, 1, 1, 1}, 0);
    choose(&b, layers, -1);
    for (int i = 0; i < LAYERS; i++) assert_true(b.chosen[i]);
    assert_int_equal(machine.story.evaluations, 0);
    assert_true(machine.story.float_ms == 8e3 && machine.story.int8_ms == 4e3);
    close_bench(&b);
}

/* What is left when the loss has left out a layer is held against none again. */
static void test_loss_then_time(void **state)
{
    (void)state;
    bench b;
    tr_int8_layer layers[LAYERS];
    open_lossy(&b);
    set_machine((const double[]){2, 2, 2, 2}, (const double[]){1, 1, 1, 1}, 2);
    choose(&b, layers, 0.02);
    for (int i = 0; i < LAYERS; i++) assert_false(b.chosen[i]);
    close_bench(&b);
}

/* Without time nothing is tried apart, but what comes out is still faster than none, and no worse
 * than allowed. */
static void test_no_time(void **state)
{
    (void)state;
    static const double floats[LAYERS] = {2, 2, 2, 2};
    tr_int8_layer layers[LAYERS];
    bench b;
    open_bench(&b, four, 16, 16, (const double[]){0.03, 0.03, 0.03, 0.03, 0.03});
    set_machine(floats, (const double[]){1, 3, 1, 1}, 0.5); /* "a-cd", with time */
    machine.seconds = 0;
    choose(&b, layers, 100);
    for (int i = 0; i < LAYERS; i++) assert_true(b.chosen[i]);
    assert_true(machine.story.cut && machine.story.comparisons == machine.compared);
    set_machine(floats, (const double[]){3, 3, 3, 1}, 0);
    machine.seconds = 0;
    choose(&b, layers, 100);
    for (int i = 0; i < LAYERS; i++) assert_false(b.chosen[i]);
    close_bench(&b);
    open_lossy(&b);
    set_machine(floats, (const double[]){1, 1, 1, 1}, 0);
    machine.seconds = 0;
    choose(&b, layers, 0.02);
    assert_false(b.chosen[2]); /* of the worst half */
    assert_false(b.chosen[0]);
    assert_true(b.chosen[1] && b.chosen[3]);
    close_bench(&b);
}

/* Between two comparisons, and between calls of one. */
static void test_stopped(void **state)
{
    (void)state;
    tr_int8_layer layers[LAYERS];
    tr_profile p;
    bench b;
    open_bench(&b, four, 16, 16, (const double[]){0.03, 0.03, 0.03, 0.03, 0.03});
    set_machine((const double[]){2, 2, 2, 2}, (const double[]){1, 3, 1, 1}, 0.5);
    machine.stop_behind = 2;
    assert_int_equal(try_choose(&b, layers, 100), TR_STOPPED);
    assert_int_equal(machine.compared, 2);
    tr_profile_options o = {
        .network = b.n, .mode = TR_MODE_INFER, .batch = 3, .runs = 1, .stop = asked};
    tr_evaluator_place(b.e, &o.backend, &o.backend_ctx, &o.threads);
    const tr_profile_turns t = {.turns = 1 << 30, .limit = 1e9};
    assert_int_equal(tr_profile_in_turns(&o, 1, &t, &p), TR_STOPPED);
    tr_profile_free(&p);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),          cmocka_unit_test(test_loss),
        cmocka_unit_test(test_loss_then_time), cmocka_unit_test(test_no_time),
        cmocka_unit_test(test_stopped),        cmocka_unit_test(test_time_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
