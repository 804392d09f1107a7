/* The optimizer's sweep: which slots it keeps, how the flat space is cut where weight decay
 * changes, what the backend is told, the moving average, the search for what is not finite. A
 * backend that only records stands in for the real one. */
#include "given.h"

#include "trainer/optimizer.h"

enum { MAX_UPDATES = 32 };

typedef struct {
    tr_update updates[MAX_UPDATES];
    int count;
} record;

static void record_update(void *ctx, const tr_update *u)
{
    record *r = ctx;
    assert_true(r->count < MAX_UPDATES);
    r->updates[r->count++] = *u;
}

static const tr_backend recorder = {.name = "recorder", .update = record_update};

typedef struct {
    tr_config *c;
    tr_model *m;
    tr_comm *comm;
    tr_reducer *r;
    tr_optimizer *o;
    record record;
} world;

static void world_open(world *w, const char *train)
{
    const tr_comm_options co = {.timeout = 10};
    const char *names[4];
    *w = (world){.c = given(GIVEN_MLP, train)};
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

/* Every element of the space is in exactly one update, ascending; each parameter's with its decay;
 * neighbours with the same decay are one sweep. */
static void check_segments(const world *w, double decay, bool decay_all)
{
    const record *r = &w->record;
    const float *base = tr_reducer_weights(w->r);
    size_t at = 0;
    for (int i = 0; i < r->count; i++) {
        const tr_update *u = &r->updates[i];
        assert_true(u->w == base + at && u->count > 0);
        assert_true(u->g == tr_reducer_grads(w->r) + at);
        if (i > 0) assert_true(u->decay != r->updates[i - 1].decay);
        for (size_t p = 0; p < w->m->nparams; p++) {
            const tr_param *a = &w->m->params[p];
            if (a->offset < at || a->offset >= at + u->count) continue;
            assert_true(a->offset + a->count <= at + u->count);
            assert_true(u->decay == (a->decay || decay_all ? decay : 0));
        }
        at += u->count;
    }
    assert_int_equal(at, w->m->flat_count);
}

/* Weights of linear and conv2d decay; biases and norms do not, unless asked. */
static void test_segments(void **state)
{
    (void)state;
    world w;
    world_open(&w, "optimizer: {adamw: {lr: 0.1, weight_decay: 0.25}}");
    tr_optimizer_step(w.o, 0.125, 0.5, 7);
    check_segments(&w, 0.25, false);
    assert_int_equal(w.record.count, 4); /* two.weight | two.bias, norm | one.weight | one.bias */
    int decayed = 0;
    for (size_t p = 0; p < w.m->nparams; p++) {
        const tr_param *a = &w.m->params[p];
        assert_int_equal(a->decay, strcmp(a->name, "weight") == 0 && strcmp(a->layer, "norm") != 0);
        decayed += a->decay;
    }
    assert_int_equal(decayed, 2);
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1, weight_decay: 0.25, decay_all: true}}");
    tr_optimizer_step(w.o, 0.125, 0.5, 1);
    assert_int_equal(w.record.count, 1); /* one sweep over all */
    check_segments(&w, 0.25, true);
    world_close(&w);
}

static void test_update(void **state)
{
    (void)state;
    world w;
    world_open(&w, "ema: 0.75, optimizer: {adamw: {lr: 0.1, beta1: 0.5, beta2: 0.25, eps: 1e-6}}");
    tr_optimizer_step(w.o, 0.125, 0.5, 7);
    for (int i = 0; i < w.record.count; i++) {
        const tr_update *u = &w.record.updates[i];
        const size_t at = (size_t)(u->w - tr_reducer_weights(w.r));
        assert_int_equal(u->kind, TR_OPT_ADAMW);
        assert_true(u->lr == 0.125 && u->grad_scale == 0.5 && u->t == 7); /* lr: the schedule's */
        assert_true(u->beta1 == 0.5 && u->beta2 == 0.25 && u->eps == 1e-6);
        assert_true(u->ema_decay == 0.75);
        assert_ptr_equal(u->m, tr_reducer_slot(w.r, 0) + at);
        assert_ptr_equal(u->v, tr_reducer_slot(w.r, 1) + at);
        assert_ptr_equal(u->ema, tr_reducer_slot(w.r, 2) + at);
    }
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1, momentum: 0.5, nesterov: true}}");
    tr_optimizer_step(w.o, 1, 1, 1);
    const tr_update *u = &w.record.updates[0];
    assert_int_equal(u->kind, TR_OPT_SGD);
    assert_true(u->momentum == 0.5 && u->nesterov && u->decay == 0);
    assert_non_null(u->m);
    assert_true(!u->v && !u->ema);
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1}}, ema: 0.5");
    tr_optimizer_step(w.o, 1, 1, 1);
    assert_null(w.record.updates[0].m); /* the only slot is the average's */
    assert_ptr_equal(w.record.updates[0].ema, tr_reducer_slot(w.r, 0));
    world_close(&w);
}

static void test_swap(void **state)
{
    (void)state;
    world w;
    world_open(&w, "optimizer: adamw, ema: 0.5");
    float *weights = tr_reducer_weights(w.r), *average = tr_reducer_slot(w.r, 2);
    for (size_t i = 0; i < w.m->flat_count; i++) {
        weights[i] = (float)i;
        average[i] = -(float)i - 1;
    }
    for (int times = 1; times <= 2; times++) {
        tr_optimizer_swap_ema(w.o);
        for (size_t i = 0; i < w.m->flat_count; i++) {
            assert_true(weights[i] == (times == 1 ? -(float)i - 1 : (float)i));
            assert_true(average[i] == (times == 1 ? (float)i : -(float)i - 1));
        }
    }
    world_close(&w);
}

static void test_nonfinite(void **state)
{
    (void)state;
    world w;
    world_open(&w, "optimizer: adamw");
    float *g = tr_reducer_grads(w.r);
    assert_true(tr_optimizer_first_nonfinite(w.o) == SIZE_MAX);
    g[w.m->flat_count - 1] = NAN;
    assert_int_equal(tr_optimizer_first_nonfinite(w.o), w.m->flat_count - 1);
    g[40] = -INFINITY;
    assert_int_equal(tr_optimizer_first_nonfinite(w.o), 40);
    g[0] = INFINITY;
    assert_int_equal(tr_optimizer_first_nonfinite(w.o), 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),     cmocka_unit_test(test_segments),
        cmocka_unit_test(test_update),    cmocka_unit_test(test_swap),
        cmocka_unit_test(test_nonfinite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
