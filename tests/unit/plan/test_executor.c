/* Running: bucket marks, empty shares, accumulation, inputs read in place, no allocation. */
#include <stdarg.h>
#include <stddef.h>
#include "fake.h"

typedef struct {
    int marks[16], at[16], nmarks, polls, fail_at;
    const fake_ctx *ctx;
} recorder;

static void on_bucket(void *ctx, int bucket)
{
    recorder *r = ctx;
    r->at[r->nmarks] = r->ctx->runs;
    r->marks[r->nmarks++] = bucket;
}

static tr_status on_poll(void *ctx)
{
    recorder *r = ctx;
    r->polls++;
    return r->polls == r->fail_at ? TR_FAIL(TR_PEER, "a peer is gone") : TR_OK;
}

typedef struct {
    fake_model m;
    fake_ctx ctx;
    fake_graph f;
    tr_session *s;
    tr_plan *p;
    recorder r;
    tr_hooks hooks;
    double tally[TR_TALLY];
} world;

static void start(world *w)
{
    memset(w, 0, sizeof *w);
    fake_model_init(&w->m);
    w->r.ctx = &w->ctx;
    w->hooks = (tr_hooks){.ctx = &w->r, .size = 1, .bucket_ready = on_bucket, .poll = on_poll};
}

static void open_world(world *w)
{
    const tr_session_options o = fake_options(&w->m, &w->ctx);
    tr_graph *graphs[] = {&w->f.g};
    assert_int_equal(tr_session_open_graphs(&o, graphs, 1, false, &w->s), TR_OK);
    w->p = tr_session_plan(w->s, w->f.g.mode, w->f.g.batch);
}

static void run(world *w, bool accumulate, bool last)
{
    memset(&w->r, 0, sizeof w->r);
    w->r.ctx = &w->ctx;
    w->ctx.runs = 0;
    memset(w->tally, 0, sizeof w->tally);
    const tr_run r = {
        .tally = w->tally, .accumulate = accumulate, .last = last, .hooks = &w->hooks};
    assert_int_equal(tr_plan_run(w->p, &r), TR_OK);
}

static void fill(float *v, size_t n, float start)
{
    for (size_t i = 0; i < n; i++) v[i] = start + (float)i / 4;
}

static void buckets_are_marked_on_the_last_micro_batch_only(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, true);
    open_world(&w);
    run(&w, false, false);
    assert_int_equal(w.r.nmarks, 0);
    assert_int_equal(w.r.polls, 8); /* nine ops, one of them a view */
    run(&w, true, true);
    assert_int_equal(w.r.nmarks, 2);
    assert_int_equal(w.r.marks[0], 0);
    assert_int_equal(w.r.at[0], 5); /* right after the op that completes it */
    assert_int_equal(w.r.marks[1], 1);
    assert_int_equal(w.r.at[1], 8);
    tr_session_close(w.s);
}

static void a_failed_poll_ends_the_run(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, true);
    open_world(&w);
    w.r.fail_at = 3;
    const tr_run r = {.tally = w.tally, .last = true, .hooks = &w.hooks};
    assert_int_equal(tr_plan_run(w.p, &r), TR_PEER);
    assert_string_equal(tr_last_error()->text, "a peer is gone");
    assert_int_equal(w.r.polls, 3);
    assert_int_equal(w.r.nmarks, 0);
    tr_session_close(w.s);
}

static void a_forgotten_bucket_is_marked_at_the_end(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, true);
    w.f.ops[8].bucket_ready = -1;
    open_world(&w);
    run(&w, false, true);
    assert_int_equal(w.r.nmarks, 2);
    assert_int_equal(w.r.marks[1], 1);
    tr_session_close(w.s);
}

static void a_view_can_complete_a_bucket(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, true);
    w.f.ops[0].bucket_ready = 0;
    open_world(&w);
    run(&w, false, true);
    assert_int_equal(w.r.nmarks, 2);
    assert_int_equal(w.r.at[0], 0);
    tr_session_close(w.s);
}

static void evaluation_marks_nothing(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, false);
    fill(w.m.grads, 112, 1);
    open_world(&w);
    run(&w, false, true);
    assert_int_equal(w.r.nmarks, 0);
    assert_true(w.m.grads[0] == 1); /* and leaves gradients alone */
    tr_session_close(w.s);
}

/* An empty share: statistics of no samples go into the merge, gradients are zero, all is ready. */
static void an_empty_share_takes_part(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_start(&w.f, &w.m.m, 0, true);
    const int x = fake_tensor(&w.f, TR_ROLE_INPUT, 0, 0, IN, -1);
    const int stats = fake_tensor(&w.f, TR_ROLE_SAVED, 0, 1, 7, -1);
    const int merged = fake_tensor(&w.f, TR_ROLE_SAVED, 0, 1, 7, -1);
    w.f.g.inputs[0] = x;
    fake_op(&w.f, "batchnorm.stats", x, NONE, stats);
    fake_op(&w.f, "batchnorm.merge", stats, NONE, merged);
    open_world(&w);
    for (int i = 0; i < 2; i++) {
        float *m = tr_plan_tensor(w.p, merged);
        fill(m, 7, 3);
        fill(w.m.grads, 112, 1);
        run(&w, false, true);
        assert_int_equal(w.ctx.runs, 2); /* whatever the graph keeps */
        for (int j = 0; j < 7; j++) assert_true(m[j] == 0);
        for (int j = 0; j < 112; j++) assert_true(w.m.grads[j] == 0);
        assert_int_equal(w.r.nmarks, 1);
        assert_int_equal(w.r.marks[0], 1);
        assert_int_equal(w.r.at[0], 0); /* before the merge: nothing more will be added */
    }
    fill(w.m.grads, 112, 1);
    run(&w, true, true);
    assert_true(w.m.grads[4] == 2);
    tr_session_close(w.s);
}

static void gradients_nobody_writes_are_zeroed(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, true);
    w.f.g.nops = 6; /* the first layer's gradient is not computed */
    open_world(&w);
    fill(w.m.grads, 112, 1);
    run(&w, false, true);
    for (int i = 48; i < 112; i++) assert_true(w.m.grads[i] == 0);
    fill(w.m.grads, 112, 1);
    run(&w, true, true);
    for (int i = 48; i < 112; i++) assert_true(w.m.grads[i] == 1 + (float)i / 4);
    tr_session_close(w.s);
}

static double loss_of(world *w)
{
    run(w, false, false);
    return w->tally[TR_TALLY_LOSS];
}

static void open_mlp(world *w, bool rebinds)
{
    start(w);
    w->ctx.rebinds = rebinds;
    fake_mlp(&w->f, &w->m, 4, true);
    open_world(w);
}

/* The input is read through a view by two kernels, the target by one. */
static void inputs_are_read_where_they_lie(void **state)
{
    (void)state;
    float a[4 * IN], b[4 * IN], t[4 * OUT], keep[4 * IN];
    double loss[2][2];
    fill(a, TR_COUNT(a), -1);
    fill(b, TR_COUNT(b), 2);
    fill(t, TR_COUNT(t), 0);
    memcpy(keep, a, sizeof a);
    for (int rebinds = 0; rebinds < 2; rebinds++) {
        static world w;
        tr_memory_plan memory;
        open_mlp(&w, rebinds);
        tr_session_memory(w.s, &memory);
        assert_int_equal(memory.bytes[TR_MEM_IO], rebinds ? 0 : 2 * TR_ARENA_ALIGN);
        for (int i = 0; i < 4; i++) { /* to and fro */
            const float *x = i % 2 ? b : a;
            assert_int_equal(tr_plan_set_input(w.p, 0, x), TR_OK);
            assert_int_equal(tr_plan_set_target(w.p, t), TR_OK);
            assert_int_equal(tr_plan_tensor(w.p, 0) == x, rebinds);
            const double l = loss_of(&w);
            if (i >= 2) assert_true(l == loss[rebinds][i % 2]);
            loss[rebinds][i % 2] = l;
        }
        tr_session_close(w.s);
    }
    assert_true(loss[0][0] != loss[0][1]);
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    assert_memory_equal(keep, a, sizeof a);
}

/* Nor with some of its readers pointed to one batch and some to another. */
static void nothing_runs_without_its_inputs(void **state)
{
    (void)state;
    static world w;
    float a[4 * IN], b[4 * IN], t[4 * OUT];
    const tr_run r = {.tally = w.tally};
    fill(a, TR_COUNT(a), -1);
    fill(b, TR_COUNT(b), 2);
    fill(t, TR_COUNT(t), 0);
    open_mlp(&w, true);
    assert_int_equal(tr_plan_set_input(w.p, 0, a), TR_OK);
    assert_int_equal(tr_plan_run(w.p, &r), TR_INTERNAL);
    assert_string_equal(tr_last_error()->text, "\"t1\" is not set: nothing to read");
    assert_int_equal(tr_plan_set_target(w.p, t), TR_OK);
    const double loss = loss_of(&w);
    for (int n = 1; n <= 2; n++) { /* the n-th reader refuses */
        w.ctx.rebind_refused = n;
        assert_int_equal(tr_plan_set_input(w.p, 0, b), TR_UNSUPPORTED);
        assert_int_equal(tr_plan_run(w.p, &r), TR_INTERNAL);
        assert_int_equal(tr_plan_set_input(w.p, 0, a), TR_OK);
        assert_true(loss_of(&w) == loss);
    }
    tr_session_close(w.s);
}

static void an_input_that_is_overwritten_is_copied(void **state)
{
    (void)state;
    static world w;
    start(&w);
    w.ctx.rebinds = true;
    fake_start(&w.f, &w.m.m, 4, false);
    const int x = fake_tensor(&w.f, TR_ROLE_INPUT, 0, 4, IN, -1);
    const int y = fake_tensor(&w.f, TR_ROLE_ACTIVATION, 0, 4, IN, x);
    w.f.g.inputs[0] = x;
    w.f.g.logits = y;
    fake_op(&w.f, "relu", x, NONE, y);
    open_world(&w);
    float a[4 * IN];
    fill(a, TR_COUNT(a), -1);
    assert_int_equal(tr_plan_set_input(w.p, 0, a), TR_OK);
    run(&w, false, false);
    assert_true(a[0] == -1);
    const float *out = tr_plan_tensor(w.p, y);
    assert_true(out[0] == 0);
    assert_true(out[8] == a[8]);
    tr_session_close(w.s);
}

static void running_allocates_nothing(void **state)
{
    (void)state;
    static world w;
    open_mlp(&w, true);
    float a[4 * IN] = {0}, t[4 * OUT] = {0};
    const uint64_t calls = tr_mem_calls();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tr_plan_set_input(w.p, 0, a), TR_OK);
        assert_int_equal(tr_plan_set_target(w.p, t), TR_OK);
        run(&w, i > 0, i == 2);
    }
    assert_int_equal(tr_mem_calls(), calls);
    tr_session_close(w.s);
}

static void times_are_summed_per_op(void **state)
{
    (void)state;
    static world w;
    start(&w);
    fake_mlp(&w.f, &w.m, 4, true);
    open_world(&w);
    double seconds[9] = {0};
    assert_int_equal(tr_plan_op_seconds(w.p, seconds), TR_INTERNAL); /* nothing was measured */
    assert_int_equal(tr_plan_time_ops(w.p, true), TR_OK);
    for (int i = 0; i < 2; i++) {
        run(&w, false, false);
        assert_int_equal(tr_plan_op_seconds(w.p, seconds), TR_OK);
    }
    assert_true(seconds[0] == 0); /* the view */
    for (int i = 1; i < 9; i++) assert_true(seconds[i] == 2 * (double)(1u << (i - 1)));
    assert_int_equal(tr_plan_time_ops(w.p, false), TR_OK);
    const size_t marked = w.ctx.marked;
    run(&w, false, false);
    assert_int_equal(w.ctx.marked, marked);
    tr_session_close(w.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_marked_on_the_last_micro_batch_only),
        cmocka_unit_test(a_failed_poll_ends_the_run),
        cmocka_unit_test(a_forgotten_bucket_is_marked_at_the_end),
        cmocka_unit_test(a_view_can_complete_a_bucket),
        cmocka_unit_test(evaluation_marks_nothing),
        cmocka_unit_test(an_empty_share_takes_part),
        cmocka_unit_test(gradients_nobody_writes_are_zeroed),
        cmocka_unit_test(inputs_are_read_where_they_lie),
        cmocka_unit_test(nothing_runs_without_its_inputs),
        cmocka_unit_test(an_input_that_is_overwritten_is_copied),
        cmocka_unit_test(running_allocates_nothing),
        cmocka_unit_test(times_are_summed_per_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
