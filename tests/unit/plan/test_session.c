/* Sessions: results, packed copies, memory as predicted, errors with their place, and every
 * allocation failing once. */
#include <stdarg.h>
#include <stddef.h>
#include "fake.h"

typedef struct {
    fake_model m;
    fake_ctx ctx;
    fake_graph train, eval, small;
    tr_session *s;
} world;

static const float X[4 * IN] = {1, 2, 3, -1, 0, 1, .5f, -2, 1, 0, 1, -1};
static const float T[4 * OUT] = {1, 0, 0, 1, 1, 1, -1, 2};

static void make(world *w)
{
    memset(w, 0, sizeof *w);
    fake_model_init(&w->m);
    fake_mlp(&w->train, &w->m, 4, true);
    fake_mlp(&w->small, &w->m, 1, true);
    fake_mlp(&w->eval, &w->m, 4, false);
}

static tr_status open_session(world *w, bool dry)
{
    tr_session_options o = fake_options(&w->m, &w->ctx);
    o.dry = dry;
    tr_graph *graphs[] = {&w->small.g, &w->train.g, &w->eval.g};
    w->s = NULL;
    return tr_session_open_graphs(&o, graphs, 3, false, &w->s);
}

/* The same model, straight: loss and the two gradients of the whole batch. */
static double reference(const fake_model *m, float *grads)
{
    const float *w1 = m->weights + 48, *w2 = m->weights;
    double loss = 0;
    memset(grads, 0, 112 * sizeof *grads);
    for (int n = 0; n < 4; n++) {
        float h[HIDDEN], dh[HIDDEN] = {0};
        for (int j = 0; j < HIDDEN; j++) {
            h[j] = 0;
            for (int i = 0; i < IN; i++) h[j] += w1[j * IN + i] * X[n * IN + i];
            if (h[j] < 0) h[j] = 0;
        }
        for (int o = 0; o < OUT; o++) {
            float y = 0;
            for (int j = 0; j < HIDDEN; j++) y += w2[o * HIDDEN + j] * h[j];
            const float d = y - T[n * OUT + o];
            loss += (double)d * (double)d;
            for (int j = 0; j < HIDDEN; j++) {
                grads[o * HIDDEN + j] += 2 * d * h[j];
                dh[j] += 2 * d * w2[o * HIDDEN + j];
            }
        }
        for (int j = 0; j < HIDDEN; j++)
            for (int i = 0; i < IN && h[j] > 0; i++)
                grads[48 + j * IN + i] += dh[j] * X[n * IN + i];
    }
    return loss;
}

static void set_batch(tr_plan *p)
{
    assert_int_equal(tr_plan_set_input(p, 0, X), TR_OK);
    assert_int_equal(tr_plan_set_target(p, T), TR_OK);
}

static double run_train(world *w, bool changed)
{
    double tally[TR_TALLY] = {0};
    const tr_run run = {.tally = tally, .params_changed = changed, .last = true, .loss_scale = 1};
    assert_int_equal(tr_plan_run(tr_session_plan(w->s, TR_MODE_TRAIN, 4), &run), TR_OK);
    return tally[TR_TALLY_LOSS];
}

static void check_gradients(const world *w)
{
    float want[112];
    reference(&w->m, want);
    for (int i = 0; i < 112; i++) {
        const float err = w->m.grads[i] - want[i],
                    tol = 1e-4f * (1 + (want[i] < 0 ? -want[i] : want[i]));
        assert_true(err < tol && -err < tol);
    }
}

static void trains_as_the_straight_computation(void **state)
{
    (void)state;
    static world w;
    make(&w);
    assert_int_equal(open_session(&w, false), TR_OK);
    tr_plan *p = tr_session_plan(w.s, TR_MODE_TRAIN, 4);
    set_batch(p);
    float want[112];
    const double loss = run_train(&w, true);
    assert_float_equal(loss, reference(&w.m, want), 1e-3);
    check_gradients(&w);
    const float *y = tr_plan_tensor(p, tr_plan_graph(p)->logits); /* still there after backward */
    double again = 0;
    for (int i = 0; i < 4 * OUT; i++) again += (double)(y[i] - T[i]) * (double)(y[i] - T[i]);
    assert_float_equal(loss, again, 1e-3);
    assert_null(tr_session_plan(w.s, TR_MODE_TRAIN, 3));
    assert_int_equal(tr_plan_batch(tr_session_plan(w.s, TR_MODE_TRAIN, 1)), 1);
    tr_session_close(w.s);
    assert_int_equal(w.ctx.closes, w.ctx.prepares);
}

static void packed_copies_are_shared_and_made_when_needed(void **state)
{
    (void)state;
    static world w;
    make(&w);
    assert_int_equal(open_session(&w, false), TR_OK);
    tr_memory_plan mem;
    tr_session_memory(w.s, &mem); /* seven kernels ask for copies of two parameters */
    assert_int_equal(mem.bytes[TR_MEM_PACKED], (HIDDEN * IN + OUT * HIDDEN) * sizeof(float));
    tr_plan *p = tr_session_plan(w.s, TR_MODE_TRAIN, 4),
            *e = tr_session_plan(w.s, TR_MODE_EVALUATE, 4);
    for (int i = 0; i < 2; i++) {
        set_batch(i ? e : p);
        double tally[TR_TALLY] = {0};
        const tr_run run = {.tally = tally, .params_changed = false};
        assert_int_equal(tr_plan_run(i ? e : p, &run), TR_OK);
        assert_int_equal(w.ctx.packs, 2); /* the second plan finds them fresh */
    }
    w.m.weights[0] += 1;
    set_batch(p);
    const double loss = run_train(&w, true);
    float want[112];
    assert_int_equal(w.ctx.packs, 4);
    assert_float_equal(loss, reference(&w.m, want), 1e-3);
    tr_session_close(w.s);
}

/* One kernel reads two parameters, each from a copy of its own, over two plans. */
static void a_kernel_has_several_packed_copies(void **state)
{
    (void)state;
    static world w;
    make(&w);
    w.m.m.nparams = 3;
    fake_graph *graphs[] = {&w.eval, &w.small};
    fake_mlp(&w.small, &w.m, 1, false);
    for (int i = 0; i < 2; i++) {
        fake_graph *f = graphs[i];
        const int bias = fake_tensor(f, TR_ROLE_PARAM, 2, OUT, 1, -1);
        tr_op *last = &f->ops[f->g.nops - 2];
        last->in[last->nin++] = bias;
    }
    tr_session_options o = fake_options(&w.m, &w.ctx);
    tr_graph *both[] = {&w.eval.g, &w.small.g};
    w.ctx.bad_copy = true;
    assert_int_equal(tr_session_open_graphs(&o, both, 2, false, &w.s), TR_INTERNAL);
    assert_non_null(strstr(tr_last_error()->text, "packed bytes of parameter 99"));
    w.ctx = (fake_ctx){0};
    assert_int_equal(tr_session_open_graphs(&o, both, 2, false, &w.s), TR_OK);
    tr_memory_plan mem;
    tr_session_memory(w.s, &mem);
    assert_int_equal(mem.bytes[TR_MEM_PACKED], (HIDDEN * IN + OUT * HIDDEN + OUT) * sizeof(float));
    tr_plan *plans[] = {tr_session_plan(w.s, TR_MODE_EVALUATE, 4),
                        tr_session_plan(w.s, TR_MODE_EVALUATE, 1)};
    float y[2][OUT];
    for (int k = 0; k < 3; k++) { /* the third run: after an update of the bias */
        double tally[TR_TALLY] = {0};
        const tr_run run = {.tally = tally, .params_changed = k == 2};
        tr_plan *p = plans[k % 2];
        for (int i = 0; k == 2 && i < OUT; i++) w.m.weights[112 + i] += (float)(i + 1);
        set_batch(p);
        assert_int_equal(tr_plan_run(p, &run), TR_OK);
        assert_int_equal(w.ctx.packs, k == 2 ? 6 : 3);
        const float *logits = tr_plan_tensor(p, tr_plan_graph(p)->logits);
        for (int i = 0; k == 2 && i < OUT; i++)
            assert_float_equal(logits[i], y[0][i] + (float)(i + 1), 1e-5);
        memcpy(y[k % 2], logits, sizeof y[0]);
        if (k == 1) assert_memory_equal(y[0], y[1], sizeof y[0]);
    }
    tr_session_close(w.s);
    assert_int_equal(w.ctx.closes, w.ctx.prepares);
}

/* A copy that could not be made is said, and made by the next run that needs it. */
static void a_failed_pack_fails_the_run_and_is_made_again(void **state)
{
    (void)state;
    static world w;
    make(&w);
    assert_int_equal(open_session(&w, false), TR_OK);
    tr_plan *p = tr_session_plan(w.s, TR_MODE_TRAIN, 4);
    set_batch(p);
    double tally[TR_TALLY] = {0};
    const tr_run run = {.tally = tally, .params_changed = true};
    w.ctx.pack_refused = 2;
    assert_int_equal(tr_plan_run(p, &run), TR_KERNEL);
    assert_non_null(strstr(tr_last_error()->text, "op linear: no reorder"));
    assert_int_equal(w.ctx.packs, 1);
    const tr_run again = {.tally = tally};
    assert_int_equal(tr_plan_run(p, &again), TR_OK);
    assert_int_equal(w.ctx.packs, 2);
    tr_session_close(w.s);
}

static void memory_is_as_predicted(void **state)
{
    (void)state;
    static world w;
    make(&w);
    assert_int_equal(open_session(&w, true), TR_OK);
    tr_memory_plan dry, real;
    tr_session_memory(w.s, &dry);
    const tr_mem_kind kinds[] = {TR_MEM_PACKED, TR_MEM_ACTIVATIONS, TR_MEM_WORKSPACE, TR_MEM_IO};
    for (size_t i = 0; i < TR_COUNT(kinds); i++) assert_int_equal(tr_mem_held(kinds[i]), 0);
    assert_int_equal(tr_plan_set_input(tr_session_plan(w.s, TR_MODE_TRAIN, 4), 0, X), TR_INTERNAL);
    double tally[TR_TALLY];
    assert_int_equal(tr_plan_run(tr_session_plan(w.s, TR_MODE_TRAIN, 4), &(tr_run){.tally = tally}),
                     TR_INTERNAL);
    tr_session_close(w.s);

    assert_int_equal(open_session(&w, false), TR_OK);
    tr_session_memory(w.s, &real);
    assert_memory_equal(&dry, &real, sizeof dry);
    for (size_t i = 0; i < TR_COUNT(kinds); i++)
        assert_int_equal(tr_mem_held(kinds[i]), real.bytes[kinds[i]]);
    /* The scratch of mse lies where tensors lie before and after, as far as there are any. */
    assert_true(real.bytes[TR_MEM_WORKSPACE] < 1024);
    assert_int_equal(real.arena, real.bytes[TR_MEM_WORKSPACE] + real.bytes[TR_MEM_ACTIVATIONS] +
                                     real.bytes[TR_MEM_IO]);
    assert_int_equal(real.arena, real.arena_floor);              /* in this small graph */
    assert_int_equal(real.bytes[TR_MEM_IO], 2 * TR_ARENA_ALIGN); /* 4x3 and 4x2 floats, aligned */
    assert_true(real.arena >= real.arena_floor);
    tr_session_close(w.s);
    for (size_t i = 0; i < TR_COUNT(kinds); i++) assert_int_equal(tr_mem_held(kinds[i]), 0);
}

static void a_missing_kernel_is_named(void **state)
{
    (void)state;
    static world w;
    make(&w);
    w.ctx.missing = "linear.grad_weight";
    w.ctx.missing_type = TR_BF16; /* the question is one of the op's own tensors */
    w.small.tensors[w.small.ops[8].in[0]].dtype = TR_BF16;
    w.small.tensors[w.small.ops[8].in[1]].dtype = TR_BF16;
    assert_int_equal(open_session(&w, true), TR_UNSUPPORTED);
    char want[200];
    snprintf(want, sizeof want,
             "layer layer9: op linear.grad_weight has no fake kernel for %s: not written yet",
             tr_dtype_name(TR_BF16));
    assert_string_equal(tr_last_error()->text, want);
    assert_int_equal(w.ctx.closes, w.ctx.prepares);
}

static void a_failing_kernel_is_named(void **state)
{
    (void)state;
    static world w;
    make(&w);
    assert_int_equal(open_session(&w, false), TR_OK);
    w.ctx.fail_run = "relu.grad";
    double tally[TR_TALLY] = {0};
    const tr_run run = {.tally = tally};
    assert_int_equal(tr_plan_run(tr_session_plan(w.s, TR_MODE_TRAIN, 4), &run), TR_KERNEL);
    assert_string_equal(tr_last_error()->text, "layer layer8: op relu.grad: it broke");
    tr_session_close(w.s);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static world w;
    size_t held[TR_MEM_KINDS];
    for (int k = 0; k < TR_MEM_KINDS; k++) held[k] = tr_mem_held(k);
    tr_status st = TR_MEMORY;
    for (uint64_t n = 1; st != TR_OK; n++) {
        assert_true(n < 1000);
        make(&w);
        tr_mem_fail_at(n);
        st = open_session(&w, false);
        tr_mem_fail_at(0);
        if (st == TR_OK) break;
        assert_int_equal(st, TR_MEMORY);
        assert_int_equal(w.ctx.closes, w.ctx.prepares);
        for (int k = 0; k < TR_MEM_KINDS; k++) assert_int_equal(tr_mem_held(k), held[k]);
    }
    tr_session_close(w.s);
}

static void rows_tell_every_op(void **state)
{
    (void)state;
    static world w;
    make(&w);
    assert_int_equal(open_session(&w, true), TR_OK);
    const tr_plan *p = tr_session_plan(w.s, TR_MODE_TRAIN, 4);
    assert_int_equal(tr_plan_rows(p), 9);
    assert_string_equal(tr_plan_row_at(p, 0).op, "flatten");
    assert_string_equal(tr_plan_row_at(p, 0).impl, "view");
    assert_true(tr_plan_row_at(p, 0).bytes == 0);
    const tr_plan_row row = tr_plan_row_at(p, 1);
    assert_string_equal(row.layer, "layer2");
    assert_string_equal(row.impl, "plain");
    assert_true(row.bytes == 4.0 * (4 * IN + HIDDEN * IN + 4 * HIDDEN));
    tr_session_close(w.s);

    w.ctx.fat_copies = true; /* a packed copy may be larger than what it is made from */
    assert_int_equal(open_session(&w, true), TR_OK);
    p = tr_session_plan(w.s, TR_MODE_TRAIN, 4);
    assert_true(tr_plan_row_at(p, 1).bytes == 4.0 * (4 * IN + 2 * HIDDEN * IN + 4 * HIDDEN));
    tr_session_close(w.s);
}

/* What passes an operand on without writing it counts that operand alone. */
static void what_is_not_written_is_not_counted(void **state)
{
    (void)state;
    static world w;
    make(&w);
    tr_graph *graphs[] = {&w.train.g};
    for (int masked = 0; masked < 2; masked++) {
        fake_start(&w.train, &w.m.m, 4, false);
        const int dy = fake_tensor(&w.train, TR_ROLE_TARGET, 0, 4, 8, -1);
        const int x = fake_tensor(&w.train, TR_ROLE_INPUT, 0, 4, 8, -1);
        const int dz = fake_tensor(&w.train, TR_ROLE_ACTIVATION, 0, 4, 8, dy);
        w.train.g.inputs[0] = x;
        w.train.g.target = dy;
        tr_op *op = fake_op(&w.train, "batchnorm.grad_stats", dy, x, dz);
        op->nin = 6;
        op->in[2] = op->in[3] = op->in[5] = -1;
        op->in[4] = masked ? x : -1;
        const tr_session_options o = fake_options(&w.m, &w.ctx);
        assert_int_equal(tr_session_open_graphs(&o, graphs, 1, false, &w.s), TR_OK);
        const double each = 4 * 8 * sizeof(float);
        assert_true(tr_plan_row_at(tr_session_plan(w.s, TR_MODE_EVALUATE, 4), 0).bytes ==
                    (masked ? 4 : 2) * each);
        tr_session_close(w.s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_as_the_straight_computation),
        cmocka_unit_test(packed_copies_are_shared_and_made_when_needed),
        cmocka_unit_test(a_kernel_has_several_packed_copies),
        cmocka_unit_test(a_failed_pack_fails_the_run_and_is_made_again),
        cmocka_unit_test(memory_is_as_predicted),
        cmocka_unit_test(a_missing_kernel_is_named),
        cmocka_unit_test(a_failing_kernel_is_named),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(rows_tell_every_op),
        cmocka_unit_test(what_is_not_written_is_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
