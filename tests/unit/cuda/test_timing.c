/* links: trireme_plan
 * Time by op of a plan on the device: every kernel gets its share, views none; it changes no
 * result, adds up over runs, and leaves nothing behind when it is switched off. */
#include "core_harness.h"

#include "runtime/plan/plan.h"

static const char text[] = "name: t\n"
                           "data: {train: {format: synthetic, samples: 8}}\n"
                           "model:\n"
                           "  input: [2, 4, 4]\n"
                           "  layers:\n"
                           "    - flatten\n"
                           "    - linear: {out: 24}\n"
                           "    - layernorm\n"
                           "    - gelu\n"
                           "    - linear: {out: 3}\n"
                           "  loss: cross_entropy\n"
                           "train: {steps: 1, batch: 4, optimizer: {adamw: {lr: 0.1}}}\n";

enum { BATCH = 4, INPUTS = 32 };

typedef struct {
    tr_config *config;
    tr_model *model;
    tr_cuda *cuda;
    tr_control *control;
    float *weights, *grads, *states, *x;
    tr_params params;
    int32_t *y;
    tr_session *session;
    tr_plan *plan;
} world;

static void open_world(world *w)
{
    static const tr_control nothing = {.loss_scale = 1};
    memset(w, 0, sizeof *w);
    assert_ok(tr_config_open("t.yaml", text, strlen(text), NULL, 0, NULL, &w->config));
    assert_ok(tr_model_open(w->config, 0, &w->model));
    w->cuda = open_with(false);
    const size_t n = w->model->flat_count;
    w->control = b->memory->alloc(w->cuda, TR_MEM_OTHER, sizeof *w->control);
    assert_ok(b->memory->upload(w->cuda, w->control, &nothing, sizeof nothing));
    w->weights = b->memory->alloc(w->cuda, TR_MEM_WEIGHTS, n * sizeof(float));
    w->grads = b->memory->alloc(w->cuda, TR_MEM_GRADIENTS, n * sizeof(float));
    w->states = b->memory->alloc(w->cuda, TR_MEM_WEIGHTS, w->model->state_count * sizeof(float));
    w->x = b->memory->host_alloc(w->cuda, TR_MEM_IO, BATCH * INPUTS * sizeof *w->x);
    w->y = b->memory->host_alloc(w->cuda, TR_MEM_IO, BATCH * sizeof *w->y);
    float *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = (float)(i % 13) * 0.05f - 0.3f;
    for (size_t i = 0; i < BATCH * INPUTS; i++) w->x[i] = (float)(i % 7) - 3;
    for (size_t i = 0; i < BATCH; i++) w->y[i] = (int32_t)(i % 3);
    assert_ok(b->memory->upload(w->cuda, w->weights, v, n * sizeof *v));
    tr_free(v);
    w->params = (tr_params){
        .o.model = w->model, .weights = w->weights, .grads = w->grads, .states = w->states};
    const tr_plan_key key = {.mode = TR_MODE_TRAIN, .batch = BATCH};
    const tr_session_options o = {.model = w->model,
                                  .backend = b,
                                  .backend_ctx = w->cuda,
                                  .params = &w->params,
                                  .ranks = 1,
                                  .keys = &key,
                                  .nkeys = 1};
    assert_ok(tr_session_open(&o, &w->session));
    w->plan = tr_session_plan(w->session, TR_MODE_TRAIN, BATCH);
}

static void close_world(world *w)
{
    tr_session_close(w->session);
    b->memory->host_free(w->cuda, w->x);
    b->memory->host_free(w->cuda, w->y);
    void *all[] = {w->control, w->weights, w->grads, w->states};
    for (size_t i = 0; i < TR_COUNT(all); i++) b->memory->free(w->cuda, all[i]);
    close_with(w->cuda);
    tr_model_close(w->model);
    tr_config_close(w->config);
    assert_int_equal(held(), 0);
}

/* Gradients into `out`, and how long it took on the host's clock. */
static double run(world *w, float *out)
{
    const tr_run r = {.loss_scale = 1,
                      .control = w->control,
                      .last = true,
                      .params_changed = true,
                      .tally = w->control->sums};
    assert_ok(b->stream->finish(w->cuda));
    const double begin = tr_now();
    assert_ok(tr_session_stage(w->session));
    assert_ok(tr_plan_set_input(w->plan, 0, w->x));
    assert_ok(tr_plan_set_target(w->plan, w->y));
    assert_ok(tr_plan_run(w->plan, &r));
    assert_ok(b->stream->finish(w->cuda));
    const double took = tr_now() - begin;
    assert_ok(b->memory->download(w->cuda, out, w->grads, w->model->flat_count * sizeof *out));
    return took;
}

static void test_by_op(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    const size_t rows = tr_plan_rows(w.plan), n = w.model->flat_count;
    double *seconds = tr_alloc(TR_MEM_OTHER, rows, sizeof *seconds), took = 0, sum = 0;
    float *plain = tr_alloc(TR_MEM_OTHER, n, sizeof *plain);
    float *timed = tr_alloc(TR_MEM_OTHER, n, sizeof *timed);
    run(&w, plain);
    assert_told(tr_plan_op_seconds(w.plan, seconds), TR_INTERNAL, "not timed");
    assert_ok(tr_plan_time_ops(w.plan, true));
    for (int i = 0; i < 3; i++) {
        double before = 0, after = 0;
        for (size_t k = 0; k < rows; k++) before += seconds[k];
        took += run(&w, timed);
        assert_memory_equal(plain, timed, n * sizeof *plain);
        assert_ok(tr_plan_op_seconds(w.plan, seconds));
        for (size_t k = 0; k < rows; k++) after += seconds[k];
        assert_true(after > before);
    }
    for (size_t k = 0; k < rows; k++) {
        const bool view = strcmp(tr_plan_row_at(w.plan, k).impl, "view") == 0;
        if (view ? seconds[k] != 0 : seconds[k] <= 0)
            fail_msg("%s took %g s", tr_plan_row_at(w.plan, k).op, seconds[k]);
        sum += seconds[k];
    }
    assert_true(sum <= took);

    const uint64_t calls = tr_mem_calls();
    assert_ok(tr_plan_time_ops(w.plan, false));
    run(&w, timed);
    assert_memory_equal(plain, timed, n * sizeof *plain);
    assert_told(tr_plan_op_seconds(w.plan, seconds), TR_INTERNAL, "not timed");
    assert_ok(tr_plan_time_ops(w.plan, true)); /* what it takes is kept */
    run(&w, timed);
    assert_ok(tr_plan_op_seconds(w.plan, seconds));
    assert_int_equal(tr_mem_calls(), calls);
    tr_free(seconds);
    tr_free(plain);
    tr_free(timed);
    close_world(&w);
}

/* Marks would be repeated with what was recorded. Without graphs no section is. */
static void test_not_in_sections(void **state)
{
    (void)state;
    bool replay;
    tr_cuda *cuda = open_with(true);
    void *marks;
    assert_ok(b->marks->open(cuda, 2, &marks));
    assert_ok(b->sections->begin(sections_of(cuda), 1, &replay));
    const tr_status st = b->marks->set(marks, 0);
    assert_int_equal(st, TR_INTERNAL);
    assert_told(b->sections->end(sections_of(cuda), st), TR_INTERNAL, "mark inside a section");
    assert_told(b->marks->set(marks, 2), TR_INTERNAL, "no mark 2");
    b->marks->close(marks);
    close_with(cuda);
    cuda = open_with(false);
    double seconds;
    assert_ok(b->marks->open(cuda, 2, &marks));
    assert_ok(b->sections->begin(sections_of(cuda), 1, &replay));
    assert_ok(b->marks->set(marks, 0));
    assert_ok(b->marks->set(marks, 1));
    assert_ok(b->sections->end(sections_of(cuda), TR_OK));
    assert_ok(b->marks->read(marks, &seconds, 1));
    b->marks->close(marks);
    close_with(cuda);
}

/* ---- Two sessions of one context ---- */

static void put_batch(world *w, tr_session *s, tr_plan *p)
{
    const tr_run r = {.loss_scale = 1,
                      .control = w->control,
                      .last = true,
                      .params_changed = true,
                      .tally = w->control->sums};
    for (bool done = false; !done;) assert_ok(tr_session_staged(s, &done));
    assert_ok(tr_session_stage(s));
    assert_ok(tr_plan_set_input(p, 0, w->x));
    assert_ok(tr_plan_set_target(p, w->y));
    assert_ok(tr_plan_run(p, &r));
}

/* Of two batch sizes, timed both, in turn without anybody waiting: each one's gradients are bit by
 * bit what it gives alone. The second is closed before the first, which goes on. */
static void test_two_sessions(void **state)
{
    (void)state;
    enum { FEW = BATCH / 2 };
    world w;
    open_world(&w);
    const size_t n = w.model->flat_count, nbytes = n * sizeof(float);
    float *grads = b->memory->alloc(w.cuda, TR_MEM_GRADIENTS, nbytes);
    float *alone[2] = {tr_alloc(TR_MEM_OTHER, n, sizeof(float)),
                       tr_alloc(TR_MEM_OTHER, n, sizeof(float))};
    float *now = tr_alloc(TR_MEM_OTHER, n, sizeof *now), *on_device[2] = {w.grads, grads};
    const tr_plan_key key = {.mode = TR_MODE_TRAIN, .batch = FEW};
    const tr_params second = {
        .o.model = w.model, .weights = w.weights, .grads = grads, .states = w.states};
    const tr_session_options o = {.model = w.model,
                                  .backend = b,
                                  .backend_ctx = w.cuda,
                                  .params = &second,
                                  .ranks = 1,
                                  .keys = &key,
                                  .nkeys = 1};
    tr_session *s[2] = {w.session};
    tr_plan *p[2] = {w.plan};
    assert_true(grads && alone[0] && alone[1] && now);
    assert_ok(tr_session_open(&o, &s[1]));
    p[1] = tr_session_plan(s[1], TR_MODE_TRAIN, FEW);
    for (int i = 0; i < 2; i++) {
        put_batch(&w, s[i], p[i]);
        assert_ok(b->memory->download(w.cuda, alone[i], on_device[i], nbytes));
        assert_ok(tr_plan_time_ops(p[i], true));
    }
    assert_memory_not_equal(alone[0], alone[1], nbytes);
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < 2; i++) {
            assert_ok(b->memory->zero(w.cuda, on_device[i], nbytes));
            put_batch(&w, s[i], p[i]);
        }
    for (int i = 1; i >= 0; i--) {
        double *seconds = tr_alloc(TR_MEM_OTHER, tr_plan_rows(p[i]), sizeof *seconds), sum = 0;
        assert_non_null(seconds);
        assert_ok(tr_plan_op_seconds(p[i], seconds));
        for (size_t k = 0; k < tr_plan_rows(p[i]); k++) sum += seconds[k];
        assert_true(sum >= 0);
        tr_free(seconds);
        assert_ok(b->memory->download(w.cuda, now, on_device[i], nbytes));
        assert_memory_equal(now, alone[i], nbytes);
        if (i == 1) tr_session_close(s[1]);
        assert_ok(b->memory->zero(w.cuda, w.grads, nbytes));
        put_batch(&w, s[0], p[0]);
    }
    tr_free(now);
    for (int i = 0; i < 2; i++) tr_free(alone[i]);
    b->memory->free(w.cuda, grads);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_op),
        cmocka_unit_test(test_not_in_sections),
        cmocka_unit_test(test_two_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
