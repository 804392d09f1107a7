/* The optimizer: which slots it keeps, how the flat space is cut where weight decay changes, what
 * the backend is told and in which order it is called. A backend that only records stands in for
 * the real one. */
#include "given.h"

#include "trainer/optimizer.h"

typedef struct {
    tr_update update;
    char calls[16];
} record;

static tr_status record_open(void *ctx, const tr_update *u, void **out)
{
    ((record *)ctx)->update = *u;
    *out = ctx;
    return TR_OK;
}

static void record_call(void *ctx, char what)
{
    record *r = ctx;
    const size_t n = strlen(r->calls);
    assert_true(n + 1 < sizeof r->calls);
    r->calls[n] = what;
}

static void record_close(void *ctx)
{
    record_call(ctx, 'c');
}

static tr_status record_decide(void *ctx, tr_control *c)
{
    record_call(ctx, 'd');
    c->apply = 1;
    return TR_OK;
}

static tr_status record_run(void *ctx, const tr_control *c)
{
    record_call(ctx, c->apply ? 'r' : '?');
    return TR_OK;
}

static tr_status record_swap(void *ctx)
{
    record_call(ctx, 's');
    return TR_OK;
}

static const tr_device_training recording = {.updater_open = record_open,
                                             .updater_close = record_close,
                                             .updater_decide = record_decide,
                                             .updater_run = record_run,
                                             .updater_swap_ema = record_swap};
static const tr_backend recorder = {.name = "recorder", .training = &recording};

typedef struct {
    tr_config *c;
    tr_model *m;
    tr_comm *comm;
    tr_reducer *r;
    tr_optimizer *o;
    record record;
} world;

static void world_open_model(world *w, const char *model, const char *train)
{
    const tr_comm_options co = {.timeout = 10};
    const char *names[4];
    *w = (world){.c = given(model, train)};
    assert_int_equal(tr_model_open(w->c, 0, &w->m), TR_OK);
    assert_int_equal(tr_comm_open(&co, &w->comm), TR_OK);
    const tr_range all = {0, w->m->flat_count};
    const tr_reducer_options ro = {.count = all.end,
                                   .buckets = &all,
                                   .nbuckets = 1,
                                   .nslots = tr_optimizer_slots(w->c, names)};
    assert_int_equal(tr_reducer_open(w->comm, &ro, &w->r), TR_OK);
    assert_int_equal(tr_optimizer_open(w->c, w->m, w->r, &recorder, &w->record, &w->o), TR_OK);
}

static void world_open(world *w, const char *train)
{
    world_open_model(w, GIVEN_MLP, train);
}

static void world_close(world *w)
{
    tr_optimizer_close(w->o);
    tr_reducer_close(w->r);
    tr_comm_close(w->comm);
    tr_model_close(w->m);
    tr_config_close(w->c);
}

static void test_slots(void **state)
{
    (void)state;
    static const struct {
        const char *train, *names[4];
    } table[] = {
        {"optimizer: {sgd: {lr: 1}}", {NULL}},
        {"optimizer: {sgd: {lr: 1, momentum: 0.9}}", {"momentum_buffer"}},
        {"optimizer: adamw", {"exp_avg", "exp_avg_sq"}},
        {"optimizer: lion", {"exp_avg"}},
        {"optimizer: {sgd: {lr: 1}}, ema: 0.9", {"ema"}},
        {"optimizer: {sgd: {lr: 1, momentum: 0.5}}, ema: 0.9", {"momentum_buffer", "ema"}},
        {"optimizer: adamw, ema: 0.99", {"exp_avg", "exp_avg_sq", "ema"}},
    };
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        tr_config *c = given(GIVEN_MLP, table[i].train);
        const char *names[4];
        int n = tr_optimizer_slots(c, names), want = 0;
        while (want < 4 && table[i].names[want]) want++;
        assert_int_equal(n, want);
        for (int k = 0; k < n; k++) assert_string_equal(names[k], table[i].names[k]);
        tr_config_close(c);
    }
}

/* Every element of the space is in exactly one segment, ascending; each parameter's with its decay;
 * neighbours with the same decay are one. */
static void check_segments(const world *w, double decay, bool decay_all)
{
    const tr_update *u = &w->record.update;
    size_t at = 0;
    for (size_t i = 0; i < u->nsegments; i++) {
        const tr_segment *s = &u->segments[i];
        assert_true(s->begin == at && s->end > s->begin && s->end % 16 == 0);
        if (i > 0) assert_true(s->decay != s[-1].decay);
        for (size_t p = 0; p < w->m->nparams; p++) {
            const tr_param *a = &w->m->params[p];
            if (a->offset < at || a->offset >= s->end) continue;
            assert_true(a->offset + a->count <= s->end);
            assert_true(s->decay == (a->decay || decay_all ? decay : 0));
        }
        at = s->end;
    }
    assert_int_equal(at, w->m->flat_count);
}

/* Weights of linear and conv2d decay; biases and norms do not, unless asked. */
static void test_segments(void **state)
{
    (void)state;
    world w;
    world_open(&w, "optimizer: {adamw: {lr: 0.1, weight_decay: 0.25}}");
    check_segments(&w, 0.25, false);
    assert_int_equal(w.record.update.nsegments,
                     4); /* two.weight | two.bias, norm | one.weight | one.bias */
    int decayed = 0;
    for (size_t p = 0; p < w.m->nparams; p++) {
        const tr_param *a = &w.m->params[p];
        assert_int_equal(a->decay, strcmp(a->name, "weight") == 0 && strcmp(a->layer, "norm") != 0);
        decayed += a->decay;
    }
    assert_int_equal(decayed, 2);
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1, weight_decay: 0.25, decay_all: true}}");
    assert_int_equal(w.record.update.nsegments, 1);
    check_segments(&w, 0.25, true);
    world_close(&w);
}

/* Frozen parameters are in no segment; factors multiply, and part segments. */
static void test_factors(void **state)
{
    (void)state;
    world w;
    world_open_model(&w,
                     "  input: [16]\n  layers:\n    - linear: {out: 16, freeze: true}\n"
                     "    - linear: {out: 16, lr_factor: 0.5, decay_factor: 3}\n"
                     "    - linear: {out: 16, bias: false}\n  loss: mse\n",
                     "optimizer: {adamw: {lr: 0.1, weight_decay: 0.25}}");
    const tr_update *u = &w.record.update;
    const tr_segment want[] = {{0, 256, 0.25, 1}, {256, 512, 0.75, 0.5}, {512, 528, 0, 0.5}};
    assert_int_equal(u->nsegments, TR_COUNT(want));
    for (size_t i = 0; i < TR_COUNT(want); i++) {
        assert_int_equal(u->segments[i].begin, want[i].begin);
        assert_int_equal(u->segments[i].end, want[i].end);
        assert_true(u->segments[i].decay == want[i].decay);
        assert_true(u->segments[i].lr_factor == want[i].lr_factor);
    }
    assert_int_equal(w.m->flat_count, 528 + 272);
    world_close(&w);
}

static void test_update(void **state)
{
    (void)state;
    world w;
    world_open(&w, "ema: 0.75, optimizer: {adamw: {lr: 0.1, beta1: 0.5, beta2: 0.25, eps: 1e-6}}");
    const tr_update *u = &w.record.update;
    assert_int_equal(u->kind, TR_OPT_ADAMW);
    assert_true(u->beta1 == 0.5 && u->beta2 == 0.25 && u->eps == 1e-6);
    assert_true(u->ema_decay == 0.75);
    assert_ptr_equal(u->w, tr_reducer_weights(w.r));
    assert_ptr_equal(u->g, tr_reducer_grads(w.r));
    assert_ptr_equal(u->m, tr_reducer_slot(w.r, 0));
    assert_ptr_equal(u->v, tr_reducer_slot(w.r, 1));
    assert_ptr_equal(u->ema, tr_reducer_slot(w.r, 2));
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1, momentum: 0.5, nesterov: true}}");
    assert_int_equal(u->kind, TR_OPT_SGD);
    assert_true(u->momentum == 0.5 && u->nesterov && u->segments[0].decay == 0);
    assert_non_null(u->m);
    assert_true(!u->v && !u->ema);
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1}}, ema: 0.5");
    assert_null(u->m); /* the only slot is the average's */
    assert_ptr_equal(u->ema, tr_reducer_slot(w.r, 0));
    world_close(&w);
}

static void test_order(void **state)
{
    (void)state;
    world w;
    tr_control c = {0};
    world_open(&w, "optimizer: adamw, ema: 0.5");
    assert_int_equal(tr_optimizer_step(w.o, &c), TR_OK);
    assert_int_equal(tr_optimizer_swap_ema(w.o), TR_OK);
    assert_string_equal(w.record.calls, "drs");
    world_close(&w);
    assert_string_equal(w.record.calls, "drsc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_update),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
