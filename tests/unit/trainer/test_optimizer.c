/* The optimizer: which slots it keeps, how the flat space is cut where weight decay changes, what
 * the backend is told and in which order it is called. A backend that only records stands in for
 * the real one. */
#include "given.h"

#include "runtime/graph/graph.h"
#include "runtime/optimizer/groups.h"
#include "runtime/optimizer/optimizer.h"
#include "trainer/loop/trainer.h"

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
    tr_params *p;
    tr_optimizer *o;
    record record;
} world;

/* `owned` ends with {0, 0}; NULL: everything. */
static void world_open_part(world *w, const char *model, const char *train, const tr_range *owned)
{
    const char *names[TR_PARAM_SLOTS];
    *w = (world){.c = given(model, train)};
    assert_int_equal(tr_model_open(w->c, 0, &w->m), TR_OK);
    const tr_range all[] = {{0, w->m->learned_count}, {0, 0}};
    size_t n = 0;
    if (!owned) owned = all;
    while (owned[n].end) n++;
    tr_params_options o = {.model = w->m, .count = w->m->flat_count, .buckets = all, .nbuckets = 1};
    o.nslots = tr_optimizer_slots(w->c, names);
    memcpy(o.slot_names, names, sizeof names);
    assert_int_equal(tr_params_open(&o, owned, n, NULL, &w->p), TR_OK);
    w->p->o.backend = &recorder;
    w->p->o.backend_ctx = &w->record;
    assert_int_equal(tr_optimizer_open(w->c, w->p, &w->record, &w->o), TR_OK);
}

static void world_open(world *w, const char *train)
{
    world_open_part(w, GIVEN_MLP, train, NULL);
}

static void world_close(world *w)
{
    tr_optimizer_close(w->o);
    w->p->o.backend = NULL; /* which only records: its arrays are the host's */
    tr_params_close(w->p);
    tr_model_close(w->m);
    tr_config_close(w->c);
}

static void test_slots(void **state)
{
    (void)state;
    static const struct {
        const char *train, *names[TR_PARAM_SLOTS];
    } table[] = {
        {"optimizer: {sgd: {lr: 1}}", {NULL}},
        {"optimizer: {sgd: {lr: 1, momentum: 0.9}}", {"momentum_buffer"}},
        {"optimizer: adamw", {"exp_avg", "exp_avg_sq"}},
        {"optimizer: lion", {"exp_avg"}},
        {"optimizer: adam", {"exp_avg", "exp_avg_sq"}},
        {"optimizer: rmsprop", {"square_avg"}},
        {"optimizer: {rmsprop: {momentum: 0.5, centered: true}}, ema: 0.9",
         {"square_avg", "momentum_buffer", "grad_avg", "ema"}},
        {"optimizer: {lars: {lr: 1}}", {"momentum_buffer"}},
        {"optimizer: lamb", {"exp_avg", "exp_avg_sq"}},
        {"optimizer: {sgd: {lr: 1}}, ema: 0.9", {"ema"}},
        {"optimizer: {sgd: {lr: 1, momentum: 0.5}}, ema: 0.9", {"momentum_buffer", "ema"}},
        {"optimizer: adamw, ema: 0.99", {"exp_avg", "exp_avg_sq", "ema"}},
    };
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        tr_config *c = given(GIVEN_MLP, table[i].train);
        const char *names[TR_PARAM_SLOTS];
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
        const tr_range r = s->range;
        assert_true(r.begin == at && r.end > r.begin && r.end % 16 == 0 && s->slot == at);
        if (i > 0) assert_true(s->decay != s[-1].decay);
        for (size_t p = 0; p < w->m->nparams; p++) {
            const tr_param *a = &w->m->params[p];
            if (a->offset < at || a->offset >= r.end) continue;
            assert_true(a->offset + a->count <= r.end);
            assert_true(s->decay == (a->decay || decay_all ? decay : 0));
        }
        at = r.end;
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
    world_open_part(&w,
                    "  input: [16]\n  layers:\n    - linear: {out: 16, freeze: true}\n"
                    "    - linear: {out: 16, lr_factor: 0.5, decay_factor: 3}\n"
                    "    - linear: {out: 16, bias: false}\n"
                    "    - linear: {out: 16, bias: false, masked: true}\n  loss: mse\n",
                    "optimizer: {adamw: {lr: 0.1, weight_decay: 0.25}}", NULL);
    const tr_update *u = &w.record.update;
    const tr_segment want[] = {{{0, 256}, 0, 0.25, 1, true, false, 0, false, {0, 0, 0, 0}},
                               {{256, 512}, 256, 0.25, 1, false, false, 0, false, {0, 0, 0, 0}},
                               {{512, 768}, 512, 0.75, 0.5, false, false, 0, false, {0, 0, 0, 0}},
                               {{768, 784}, 768, 0, 0.5, false, false, 0, false, {0, 0, 0, 0}}};
    assert_int_equal(u->nsegments, TR_COUNT(want));
    for (size_t i = 0; i < TR_COUNT(want); i++) {
        assert_memory_equal(&u->segments[i].range, &want[i].range, sizeof(tr_range));
        assert_int_equal(u->segments[i].slot, want[i].slot);
        assert_true(u->segments[i].decay == want[i].decay);
        assert_true(u->segments[i].lr_factor == want[i].lr_factor);
        assert_int_equal(u->segments[i].masked, want[i].masked);
    }
    assert_int_equal(w.m->flat_count, 784 + 272);
    assert_int_equal(w.p->held, 784); /* frozen rows have no moments */
    assert_memory_equal(&w.p->frozen, (&(tr_range){784, 1056}), sizeof(tr_range));
    world_close(&w);
}

/* train.groups and train.freeze: PyTorch's param_groups of the same learning rates and decays.
 * Names are matched, the first group counts; lr keeps to the schedule's shape; what is frozen is in
 * no segment. */
static void test_groups(void **state)
{
    (void)state;
    static const char layers[] =
        "  input: [16]\n  layers:\n    - linear: {out: 16, name: a}\n"
        "    - linear: {out: 16, name: b}\n"
        "    - batchnorm: {name: n}\n"
        "    - linear: {out: 16, name: head, lr_factor: 0.5}\n  loss: mse\n";
    static const char train[] =
        "optimizer: {adamw: {lr: 0.1, weight_decay: 0.25}}, freeze: [\"a.*\", n.*], "
        "freeze_statistics: true, groups: [{match: \"head.*\", lr: 0.2, weight_decay: 0.5}, "
        "{match: [\"*.bias\"], decay_all: true}]";
    tr_model *m = NULL;
    tr_row_rule *rules;
    tr_config *c = given(layers, train);
    assert_int_equal(tr_train_model(c, &m), TR_OK);
    assert_int_equal(tr_groups_rules(c, m, &rules), TR_OK);
    static const struct {
        const char *name;
        int group;
        double lr, decay;
        bool frozen;
    } want[] = {{"a.weight", -1, 1, 0.25, true},   {"a.bias", 1, 1, 0.25, true},
                {"b.weight", -1, 1, 0.25, false},  {"b.bias", 1, 1, 0.25, false},
                {"n.weight", -1, 1, 0, true},      {"n.bias", 1, 1, 0.25, true},
                {"head.weight", 0, 1, 0.5, false}, {"head.bias", 0, 1, 0, false}};
    assert_int_equal(m->nparams, TR_COUNT(want));
    for (size_t i = 0; i < m->nparams; i++) {
        char name[2 * TR_NAME];
        snprintf(name, sizeof name, "%s.%s", m->params[i].layer, m->params[i].name);
        assert_string_equal(name, want[i].name);
        assert_int_equal(rules[i].group, want[i].group);
        assert_true(rules[i].lr_factor == want[i].lr && rules[i].decay == want[i].decay);
        assert_int_equal(m->params[i].frozen, want[i].frozen);
        assert_int_equal(m->params[i].frozen, m->params[i].offset >= m->learned_count);
    }
    assert_int_equal(m->learned_count, 2 * 272);
    const tr_graph_options o = {.mode = TR_MODE_TRAIN, .batch = 4, .ranks = 1};
    tr_graph *g;
    assert_int_equal(tr_graph_open(m, &o, &g), TR_OK);
    for (size_t i = 0; i < g->nops;
         i++) { /* a's gradient stops at b; n takes its running statistics */
        assert_false(g->ops[i].phase == TR_PHASE_BACKWARD && !strcmp(g->ops[i].layer, "a"));
        assert_string_not_equal(tr_op_name(&g->ops[i]), "batchnorm.stats");
    }
    tr_graph_close(g);
    tr_free(rules);
    tr_model_close(m);
    tr_config_close(c);

    static const struct {
        const char *train, *says;
    } bad[] = {
        {"groups: [{match: \"haed.*\"}]", "train.groups.0.match: there is no parameter \"haed.*\": "
                                          "did you mean \"head.*\"?"},
        {"groups: [{match: \"*\"}, {match: b.bias}]",
         "train.groups.1.match: every parameter that it matches is in an earlier group"},
        {"freeze: \"b*\", groups: [{match: b.bias}]",
         "train.groups.0.match: every parameter that it matches is frozen"},
        {"freeze: head", "train.freeze: there is no parameter \"head\": did you mean \"head.*\"?"},
        {"freeze: \"*\"",
         "model: every parameter is frozen: there is nothing to train; leave `freeze: "
         "true` out where a layer shall learn, and patterns out of train.freeze"},
    };
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        c = given(layers, bad[i].train);
        m = NULL;
        assert_int_equal(tr_train_model(c, &m), TR_CONFIG);
        if (!strstr(tr_last_error()->text, bad[i].says)) fail_msg("%s", tr_last_error()->text);
        tr_config_close(c);
    }
}

/* Where nothing can learn, training is refused, as PyTorch's optimizers and losses do. */
static void test_nothing_to_train(void **state)
{
    (void)state;
    static const struct {
        const char *layers, *says;
    } cases[] = {
        {"[relu]", "test.yaml:4:3: model: no layer has parameters: there is nothing to train"},
        {"[{linear: {out: 4, freeze: true}}]",
         "test.yaml:4:3: model: every parameter is frozen: there is nothing to train; leave "
         "`freeze: true` out "
         "where a layer shall learn"},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char text[160];
        tr_model *m = NULL;
        snprintf(text, sizeof text, "  input: [4]\n  layers: %s\n  loss: mse\n", cases[i].layers);
        tr_config *c = given(text, "optimizer: adamw");
        assert_int_equal(tr_train_model(c, &m), TR_CONFIG);
        assert_string_equal(tr_last_error()->text, cases[i].says);
        tr_config_close(c);
    }
}

/* Of a rank that owns parts: slots hold these, one behind the other. */
static void test_owned(void **state)
{
    (void)state;
    static const tr_range owned[] = {{16, 32}, {64, 96}, {0, 0}};
    world w;
    world_open_part(&w, GIVEN_MLP, "optimizer: {adamw: {lr: 0.1, decay_all: true}}", owned);
    const tr_update *u = &w.record.update;
    assert_int_equal(u->nsegments, 2);
    assert_int_equal(w.p->held, 48);
    for (size_t i = 0; i < 2; i++)
        assert_memory_equal(&u->segments[i].range, &owned[i], sizeof *owned);
    assert_int_equal(u->segments[0].slot, 0);
    assert_int_equal(u->segments[1].slot, 16);
    tr_range part;
    size_t at;
    assert_true(tr_params_part(w.p, 1, (tr_range){80, 400}, &part, &at));
    assert_true(part.begin == 80 && part.end == 96 && at == 32);
    assert_false(tr_params_part(w.p, 0, (tr_range){80, 400}, &part, &at));
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
    assert_ptr_equal(u->w, w.p->weights);
    assert_ptr_equal(u->g, w.p->grads);
    assert_ptr_equal(u->m, w.p->slots[0]);
    assert_ptr_equal(u->v, w.p->slots[1]);
    assert_ptr_equal(u->ema, w.p->slots[2]);
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1, momentum: 0.5, nesterov: true}}");
    assert_int_equal(u->kind, TR_OPT_SGD);
    assert_true(u->momentum == 0.5 && u->nesterov && u->segments[0].decay == 0);
    assert_non_null(u->m);
    assert_true(!u->v && !u->ema);
    world_close(&w);
    world_open(&w, "optimizer: {sgd: {lr: 0.1}}, ema: 0.5");
    assert_null(u->m); /* the only slot is the average's */
    assert_ptr_equal(u->ema, w.p->slots[0]);
    world_close(&w);
}

static void test_order(void **state)
{
    (void)state;
    world w;
    tr_control c = {0};
    world_open(&w, "optimizer: adamw, ema: 0.5");
    assert_int_equal(tr_optimizer_step(w.o, &c, NULL, NULL), TR_OK);
    assert_int_equal(tr_optimizer_swap_ema(w.o), TR_OK);
    assert_string_equal(w.record.calls, "drs");
    world_close(&w);
    assert_string_equal(w.record.calls, "drsc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),   cmocka_unit_test(test_segments),
        cmocka_unit_test(test_factors), cmocka_unit_test(test_nothing_to_train),
        cmocka_unit_test(test_groups),  cmocka_unit_test(test_owned),
        cmocka_unit_test(test_update),  cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
