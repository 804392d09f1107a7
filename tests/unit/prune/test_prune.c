/* links: trireme_cpu trireme_plan */
/* Masks: how many weights become 0 and which; channels: targets, widths, what is left alone. */
#include "optimize/prune/prune.h"
#include "runtime/graph/facts.h"
#include "tests/unit/networks.h"

#define ROW(layers) "  input: [12]\n  layers: [" layers "]\n  loss: mse\n"
#define MLP         ROW("{linear: {out: 32}}, relu, {linear: {out: 32}}, relu, {linear: {out: 4}}")
#define CNN                                                                                        \
    "  input: [4, 6, 6]\n  layers:\n"                                                              \
    "    - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n    - batchnorm\n    - relu\n"   \
    "    - residual:\n        body:\n          - conv2d: {out: 32, kernel: 3, padding: 1}\n"       \
    "          - batchnorm\n          - relu\n          - conv2d: {out: 16, kernel: 3, padding: "  \
    "1}\n"                                                                                         \
    "    - conv2d: {out: 32, kernel: 3, padding: 1, groups: 16}\n    - flatten\n"                  \
    "    - linear: {out: 24}\n    - relu\n    - linear: {out: 4}\n  loss: mse\n"

static size_t zeros(const tr_network *n, const char *layer)
{
    const tr_param *p = tr_network_row(n, layer, "weight");
    size_t count = 0;
    for (size_t i = 0; i < p->count; i++) count += n->params[p->offset + i] == 0;
    return count;
}

/* The largest that is gone is no larger than the least that stays. */
static void check_least(const tr_network *before, const tr_network *after, const float *g)
{
    float gone = 0, stays = INFINITY;
    for (size_t r = 0; r < before->model->nparams; r++) {
        const tr_param *p = &before->model->params[r];
        for (size_t i = p->offset; p->ndim > 1 && i < p->offset + p->count; i++) {
            const float score = fabsf(before->params[i] * (g ? g[i] : 1));
            if (after->params[i] == 0)
                gone = fmaxf(gone, score);
            else
                stays = fminf(stays, score);
        }
    }
    assert_true(gone <= stays);
}

static void test_masks(void **state)
{
    (void)state;
    tr_network *n = network_of(MLP, 3), *a, *b;
    tr_mask_options o = {.amount = 0.5};
    ok(tr_mask(n, &o, &a));
    assert_int_equal(zeros(a, "linear1") + zeros(a, "linear2") + zeros(a, "linear3"),
                     (12 * 32 + 32 * 32 + 32 * 4) / 2);
    check_least(n, a, NULL);
    for (size_t r = 0; r < a->model->nparams; r++)
        assert_int_equal(a->model->params[r].masked, a->model->params[r].ndim > 1);
    assert_memory_equal(tr_network_param(a, "linear1", "bias"),
                        tr_network_param(n, "linear1", "bias"), 32 * sizeof(float));
    /* more of it: what is gone stays so */
    o.amount = 0.75;
    ok(tr_mask(a, &o, &b));
    for (size_t i = 0; i < n->model->flat_count; i++)
        if (a->params[i] == 0) assert_true(b->params[i] == 0);
    tr_network *again = rebuilt(b); /* the option is written */
    for (size_t r = 0; r < b->model->nparams; r++)
        assert_int_equal(again->model->params[r].masked, b->model->params[r].masked);
    tr_network_close(again);
    tr_network_close(a);
    tr_network_close(b);
    o = (tr_mask_options){
        .amount = 0.25, .per_layer = true, .keep = (const char *[]){"linear3"}, .nkeep = 1};
    ok(tr_mask(n, &o, &a));
    assert_int_equal(zeros(a, "linear1"), 12 * 32 / 4);
    assert_int_equal(zeros(a, "linear2"), 32 * 32 / 4);
    assert_int_equal(zeros(a, "linear3"), 0);
    assert_false(tr_network_row(a, "linear3", "weight")->masked);
    tr_network_close(a);
    o.keep = (const char *[]){"linear9"};
    assert_int_equal(tr_mask(n, &o, &a), TR_CONFIG);
    tr_network_close(n);
}

static void test_random_and_taylor(void **state)
{
    (void)state;
    tr_network *n = network_of(MLP, 3), *a, *b, *c;
    ok(tr_mask(n, &(tr_mask_options){.by = TR_PRUNE_RANDOM, .amount = 0.5, .seed = 1}, &a));
    ok(tr_mask(n, &(tr_mask_options){.by = TR_PRUNE_RANDOM, .amount = 0.5, .seed = 1}, &b));
    ok(tr_mask(n, &(tr_mask_options){.by = TR_PRUNE_RANDOM, .amount = 0.5, .seed = 2}, &c));
    assert_memory_equal(a->params, b->params, n->model->flat_count * sizeof(float));
    assert_true(memcmp(a->params, c->params, n->model->flat_count * sizeof(float)) != 0);
    tr_network_close(a);
    tr_network_close(b);
    tr_network_close(c);
    float *g = malloc(n->model->flat_count * sizeof *g);
    for (size_t i = 0; i < n->model->flat_count; i++) g[i] = between(9, 9, i, -1, 1);
    tr_mask_options o = {.by = TR_PRUNE_TAYLOR, .amount = 0.3, .gradients = g};
    ok(tr_mask(n, &o, &a));
    check_least(n, a, g);
    o.gradients = NULL;
    assert_int_equal(tr_mask(n, &o, &b), TR_CONFIG);
    free(g);
    tr_network_close(a);
    tr_network_close(n);
}

/* 2 of 4 along the inputs, for each output and place of the window; of a rest of 2, both stay. */
static void test_pattern(void **state)
{
    (void)state;
    tr_network *n = network_of(
                   "  input: [6, 4, 4]\n  layers: [{conv2d: {out: 3, kernel: 2}}, flatten, "
                   "{linear: {out: 2}}]\n  loss: mse\n",
                   3),
               *a;
    ok(tr_mask(n, &(tr_mask_options){.n = 2, .m = 4}, &a));
    const float *w = tr_network_param(a, "conv2d1", "weight"),
                *was = tr_network_param(n, "conv2d1", "weight");
    for (int o = 0; o < 3; o++)
        for (int k = 0; k < 4; k++) {
            float gone = 0, stays = INFINITY;
            int count = 0;
            for (int i = 0; i < 4; i++) {
                const int e = (o * 6 + i) * 4 + k;
                count += w[e] == 0;
                if (w[e] == 0)
                    gone = fmaxf(gone, fabsf(was[e]));
                else
                    stays = fminf(stays, fabsf(was[e]));
            }
            assert_int_equal(count, 2);
            assert_true(gone <= stays);
            for (int i = 4; i < 6; i++) assert_true(w[(o * 6 + i) * 4 + k] != 0);
        }
    assert_int_equal(zeros(a, "linear1"), 2 * (27 / 4 * 2 + 1));
    tr_network_close(a);
    assert_int_equal(tr_mask(n, &(tr_mask_options){.n = 5, .m = 4}, &a), TR_CONFIG);
    tr_network_close(n);
}

static int64_t width(const tr_network *n, const char *layer)
{
    return tr_network_row(n, layer, "weight")->dims[0];
}

static tr_status first_width(void *ctx, const tr_network *n, double *cost)
{
    ++*(int *)ctx;
    *cost = (double)width(n, "conv2d1");
    return TR_OK;
}

static tr_status failing(void *ctx, const tr_network *n, double *cost)
{
    (void)ctx, (void)n, (void)cost;
    return TR_FAIL(TR_KERNEL, "no clock");
}

static void test_targets(void **state)
{
    (void)state;
    tr_network *n = network_of(CNN, 3), *a;
    double reached;
    static const tr_prune_by by[] = {TR_PRUNE_L1, TR_PRUNE_L2, TR_PRUNE_RANDOM, TR_PRUNE_BATCHNORM};
    for (size_t i = 0; i < 16; i++) {
        tr_structured_options o = {.by = by[i % 4],
                                   .target = 0.5,
                                   .most = 1,
                                   .multiple = 1,
                                   .global = i / 4 % 2,
                                   .measure = (tr_prune_measure)(i / 8)};
        ok(tr_prune_channels(n, &o, &a, &reached));
        const double part = i / 8 ? tr_network_multiply_adds(a) / tr_network_multiply_adds(n)
                                  : (double)a->model->nparameters / (double)n->model->nparameters;
        assert_true(part == reached && reached <= 0.5 && reached > 0.4);
        assert_int_equal(width(a, "linear2"), 4);
        assert_int_equal(a->model->inputs[0].dims[0], 4);
        assert_true(networks_apart(a, a, 1) == 0); /* it runs */
        tr_network_close(a);
    }
    /* widths: of 16, 32 and 24 channels; the sum and the convolution of groups go together */
    tr_structured_options o = {.target = 0.5, .most = 1, .multiple = 8};
    ok(tr_prune_channels(n, &o, &a, &reached));
    assert_int_equal(width(a, "conv2d1") % 8, 0);
    assert_int_equal(width(a, "conv2d2") % 8, 0);
    assert_int_equal(width(a, "linear1") % 8, 0);
    assert_int_equal(width(a, "conv2d4"), 2 * width(a, "conv2d1"));
    assert_int_equal(width(a, "conv2d3"), width(a, "conv2d1"));
    assert_true(reached <= 0.5);
    tr_network_close(a);
    /* what must stay does, then the target is missed */
    o = (tr_structured_options){.target = 0.01,
                                .most = 0.5,
                                .multiple = 1,
                                .nkeep = 1,
                                .keep = (const char *[]){"conv2d3"}};
    ok(tr_prune_channels(n, &o, &a, &reached));
    assert_int_equal(width(a, "conv2d1"), 16);
    assert_int_equal(width(a, "conv2d2"), 16);
    assert_int_equal(width(a, "linear1"), 12);
    assert_true(reached > 0.01);
    tr_network_close(a);
    int calls = 0;
    o = (tr_structured_options){.target = 0.7,
                                .most = 1,
                                .multiple = 1,
                                .measure = TR_PRUNE_MEASURED,
                                .cost = first_width,
                                .ctx = &calls};
    ok(tr_prune_channels(n, &o, &a, &reached));
    assert_int_equal(width(a, "conv2d1"), 11);
    assert_true(calls > 3 && calls < 20);
    tr_network_close(a);
    o.cost = failing;
    assert_int_equal(tr_prune_channels(n, &o, &a, &reached), TR_KERNEL);
    tr_network_close(n);
}

/* What the first layer does not need goes first. */
/* What `by` says of a unit of layer a, which has 8 rows of 12 and a batchnorm behind it. */
static double score_of(const tr_network *n, const float *g, tr_prune_by by, int unit)
{
    const tr_param *p = tr_network_row(n, "a", "weight");
    const float *w = n->params + p->offset + 12 * unit;
    double sum = 0;
    if (by == TR_PRUNE_BATCHNORM)
        return fabs((double)tr_network_param(n, "batchnorm1", "weight")[unit]);
    for (int i = 0; i < 12; i++)
        sum += by == TR_PRUNE_L1   ? fabs((double)w[i])
               : by == TR_PRUNE_L2 ? (double)w[i] * (double)w[i]
                                   : (double)w[i] * (double)g[p->offset + (size_t)(12 * unit + i)];
    return fabs(sum);
}

/* Half of the channels go: the ones that count least by what was asked for, of which each has
 * others. Which they are is seen by their biases, all different. */
static void test_least_channels(void **state)
{
    (void)state;
    static const tr_prune_by all[] = {TR_PRUNE_L1, TR_PRUNE_L2, TR_PRUNE_BATCHNORM,
                                      TR_PRUNE_TAYLOR};
    unsigned sets[TR_COUNT(all)];
    tr_network *n = network_of(
                   ROW("{linear: {out: 8, name: a}}, batchnorm, relu, {linear: {out: 4}}"), 3),
               *after;
    float *g = calloc(n->model->flat_count, sizeof *g);
    generator r = {.state = 5};
    for (size_t i = 0; i < n->model->flat_count; i++) g[i] = (float)dice(&r, 2001) - 1000;
    float *w = tr_network_param(n, "a", "weight"), *bias = tr_network_param(n, "a", "bias");
    for (int u = 0; u < 8; u++) {
        bias[u] = (float)u;
        tr_network_param(n, "batchnorm1", "weight")[u] = (float)(u % 2 ? -1 - u : 9 - u);
        /* one large weight: L2 has it above many small ones, L1 below */
        for (int i = 0; i < 12; i++) w[12 * u + i] *= u % 2 ? 0.5f : i ? 0.05f : 1;
        if (u % 2 == 0) w[12 * u] = 0.9f + 0.01f * (float)u;
    }
    for (size_t k = 0; k < TR_COUNT(all); k++) {
        double reached;
        const tr_structured_options o = {
            .by = all[k], .target = 0.01, .most = 0.5, .multiple = 1, .gradients = g};
        unsigned left = 0, best = 0;
        ok(tr_prune_channels(n, &o, &after, &reached));
        assert_int_equal(width(after, "a"), 4);
        for (int u = 0; u < 4; u++) left |= 1u << (int)tr_network_param(after, "a", "bias")[u];
        for (int u = 0; u < 8; u++) {
            int above = 0;
            for (int v = 0; v < 8; v++)
                above += score_of(n, g, all[k], v) > score_of(n, g, all[k], u);
            if (above < 4) best |= 1u << u;
        }
        assert_int_equal(left, best);
        sets[k] = left;
        for (size_t j = 0; j < k; j++) assert_int_not_equal(sets[j], left);
        tr_network_close(after);
    }
    free(g);
    tr_network_close(n);
}

static tr_status loss_of(void *ctx, const tr_network *n, double *loss)
{
    (void)ctx; /* the first group is the one that hurts */
    *loss = 32 - (double)width(n, "linear1");
    return TR_OK;
}

static void test_sensitivity(void **state)
{
    (void)state;
    tr_network *n = network_of(MLP, 3), *a;
    tr_groups g;
    ok(tr_groups_open(n->model, &g));
    assert_int_equal(g.ngroups, 2);
    const double amounts[] = {0.25, 0.5, 0.75};
    tr_sensitivity s[6];
    double shares[2], reached;
    tr_structured_options o = {.target = 0.6, .most = 1, .multiple = 1};
    ok(tr_prune_sensitivity(n, &g, &o, amounts, 3, &(tr_prune_judge){.evaluate = loss_of}, s));
    assert_true(s[0].loss == 8 && s[1].loss == 16 && s[2].loss == 24 && s[4].loss == 0);
    tr_prune_shares(s, 2, 3, 0, 10, shares);
    assert_true(shares[0] == 1.0 / 3 && shares[1] == 1);
    o.shares = shares;
    ok(tr_prune_channels(n, &o, &a, &reached));
    assert_true(reached <= 0.6);
    assert_true(width(a, "linear1") > width(a, "linear2") + 5);
    tr_groups_close(&g);
    tr_network_close(a);
    tr_network_close(n);
    assert_true(tr_prune_schedule(0.2, 4, 4, false) == 0.2);
    assert_true(fabs(tr_prune_schedule(0.2, 1, 4, false) - 0.8) < 1e-12);
    assert_true(fabs(tr_prune_schedule(0.2, 1, 2, true) - 0.3) < 1e-12);
}

static tr_status zeros_of(void *ctx, const tr_network *n, double *loss)
{
    (void)ctx; /* the first layer hurts twice as much */
    *loss = 2 * (double)zeros(n, "linear1") / (12 * 32) + (double)zeros(n, "linear2") / (32 * 32);
    return TR_OK;
}

/* Each layer's weights alone, then amounts of their own that add up to what is asked for, as far as
 * `most` allows. */
static void test_masks_by_layer(void **state)
{
    (void)state;
    tr_network *n = network_of(MLP, 3), *a;
    static const char *const keep[] = {"linear3"};
    tr_mask_options o = {.amount = 0.5, .keep = keep, .nkeep = 1};
    const double amounts[] = {0.25, 0.5, 0.75};
    const tr_prune_judge judge = {.evaluate = zeros_of};
    size_t layers[5];
    double shares[2], each[5];
    tr_sensitivity s[6];
    assert_int_equal(tr_mask_layers(n->model, &o, layers), 2);
    assert_true(layers[0] == 0 && layers[1] == 2);
    ok(tr_mask_sensitivity(n, &o, layers, 2, amounts, 3, &judge, s));
    for (int k = 0; k < 3; k++)
        assert_true(s[k].loss == 2 * amounts[k] && s[3 + k].loss == amounts[k] &&
                    s[k].amount == amounts[k]);
    tr_prune_shares(s, 2, 3, 0, 0.5, shares);
    assert_true(shares[0] == 0.5 && shares[1] == 1);
    assert_true(fabs(tr_mask_amounts(n->model, layers, 2, shares, o.amount, 0.9, each) - o.amount) <
                1e-9);
    o.amounts = each;
    ok(tr_mask(n, &o, &a));
    assert_int_equal(zeros(a, "linear1") + zeros(a, "linear2"), (12 * 32 + 32 * 32) / 2);
    assert_true(fabs(each[2] - 2 * each[0]) < 1e-9 && each[1] == 0 && each[4] == 0);
    assert_int_equal(zeros(a, "linear3"), 0);
    tr_network_close(a);
    /* the first one comes after */
    assert_true(fabs(tr_mask_amounts(n->model, layers, 2, shares, 0.89, 0.9, each) - 0.89) < 1e-9);
    assert_true(each[2] == 0.9 && each[0] > 0.85 && each[0] < 0.9);
    assert_true(tr_mask_amounts(n->model, layers, 2, (double[]){0, 1}, 0.95, 0.9, each) < 0.7);
    assert_true(each[2] == 0.9 && each[0] == 0);
    tr_network_close(n);
}

/* Groups that were two and are one by now have the lesser share of both, by their layers' names. */
static void test_merged_shares(void **state)
{
    (void)state;
    tr_network *two = network_of(ROW("{linear: {out: 8, name: a}}, {relu: {name: ra}}, {linear: "
                                     "{out: 8, name: b}}, relu, {linear: {out: 8, name: c}}, relu, "
                                     "{linear: {out: 3}}"),
                                 1);
    tr_network *one = network_of(ROW("{linear: {out: 6, name: c}}, {relu: {name: rc}}, {linear: "
                                     "{out: 7, name: a}}, {relu: {name: ra}}, {linear: {out: 7, "
                                     "name: b}}, {add: {from: [ra, b]}}, {linear: {out: 4, name: "
                                     "new}}, relu, {linear: {out: 3}}"),
                                 1);
    tr_groups from, to;
    ok(tr_groups_open(two->model, &from));
    ok(tr_groups_open(one->model, &to));
    assert_int_equal(from.ngroups, 3);
    assert_int_equal(to.ngroups, 3);
    double shares[3], out[3];
    for (size_t k = 0; k < 3; k++)
        shares[k] = strcmp(from.name[k], "a") == 0   ? 0.75
                    : strcmp(from.name[k], "b") == 0 ? 0.25
                                                     : 0.5;
    tr_prune_shares_for(two->model, &from, shares, two->model, &from, out);
    assert_memory_equal(out, shares, sizeof shares);
    tr_prune_shares_for(two->model, &from, shares, one->model, &to, out);
    for (size_t k = 0; k < 3; k++) {
        const char *name = to.name[k];
        assert_true(out[k] == (strcmp(name, "c") == 0 ? 0.5 : strcmp(name, "new") == 0 ? 1 : 0.25));
    }
    tr_groups_close(&from);
    tr_groups_close(&to);
    tr_network_close(two);
    tr_network_close(one);
}

/* Counts calls that ranks make together, and hands statuses on. */
typedef struct {
    tr_status agreed; /* the last one */
    bool costly;      /* it is followed by something collective, which has not begun */
} together;

static tr_status agree(void *ctx, tr_status st)
{
    together *k = ctx;
    *k = (together){st, st == TR_OK};
    return st;
}

static tr_status cost_together(void *ctx, const tr_network *n, double *cost)
{
    together *k = ctx;
    assert_true(k->costly); /* all ranks come here, or none does */
    k->costly = false;
    *cost = (double)n->model->nparameters;
    return TR_OK;
}

/* A rank that is short of memory says so before others wait for it. */
static void test_short_of_memory(void **state)
{
    (void)state;
    tr_network *n = network_of(MLP, 3);
    tr_groups g;
    together k;
    tr_sensitivity s[4];
    double reached;
    const tr_structured_options o = {.target = 0.6,
                                     .most = 1,
                                     .multiple = 1,
                                     .measure = TR_PRUNE_MEASURED,
                                     .cost = cost_together,
                                     .agree = agree,
                                     .ctx = &k};
    const tr_prune_judge judge = {cost_together, agree, &k};
    ok(tr_groups_open(n->model, &g));
    for (int which = 0; which < 2; which++) {
        tr_status st = TR_MEMORY;
        for (uint64_t i = 1; st == TR_MEMORY; i++) {
            tr_network *made = NULL;
            k = (together){TR_OK, false};
            tr_mem_fail_at(i);
            st = which ? tr_prune_channels(n, &o, &made, &reached)
                       : tr_prune_sensitivity(n, &g, &o, (double[]){0.25, 0.5}, 2, &judge, s);
            tr_mem_fail_at(0);
            assert_int_equal(k.agreed, st);
            assert_true(st == TR_OK || st == TR_MEMORY);
            tr_network_close(made);
        }
    }
    tr_groups_close(&g);
    tr_network_close(n);
}

static void test_report(void **state)
{
    (void)state;
    tr_network *n = network_of(MLP, 3), *a;
    tr_prune_row *rows;
    size_t count;
    ok(tr_mask(n, &(tr_mask_options){.amount = 0.5, .per_layer = true}, &a));
    ok(tr_prune_report(n, a, &rows, &count));
    assert_int_equal(count, 3);
    assert_string_equal(rows[1].layer, "linear2");
    assert_int_equal(rows[1].parameters[0], 32 * 33);
    assert_int_equal(rows[1].zeros[0], 0);
    assert_int_equal(rows[1].zeros[1], 512);
    assert_true(rows[1].multiply_adds[1] == 1024);
    tr_free(rows);
    tr_network_close(a);
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),          cmocka_unit_test(test_random_and_taylor),
        cmocka_unit_test(test_pattern),        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_least_channels), cmocka_unit_test(test_sensitivity),
        cmocka_unit_test(test_merged_shares),  cmocka_unit_test(test_short_of_memory),
        cmocka_unit_test(test_report),         cmocka_unit_test(test_masks_by_layer),
    };
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
