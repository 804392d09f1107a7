/* links: trireme_stages trireme_cpu trireme_runtime trireme_collectives */
/* What an exported file may answer other than its model: networks beside copies of themselves with
 * one weight changed. */
#include "kernels/cpu/cpu.h"
#include "optimize/stages/readback.h"
#include "tests/unit/graph/models.h"

#include <math.h>
#include <string.h>

static const char plain[] = "{linear: {out: 12}}, relu, {linear: {out: 4}}";
static const char rounding[] =
    "{linear: {out: 12}}, {fake_quantize: {scale: 0.05}}, {linear: {out: 4}}";

static void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

typedef struct {
    tr_config *config;
    tr_comm *comm;
    tr_network *a, *b;
    void *device;
    tr_readback r;
} bench;

static void open_bench(bench *b, const char *layers, const char *train, const char *run)
{
    const tr_comm_options co = {.timeout = 60};
    const tr_backend_options bo = {0};
    tr_model *m = NULL;
    char *text = tr_sprintf(
        "name: m\nseed: 5\n"
        "data: {train: {format: synthetic, samples: 16}, eval: {format: synthetic, samples: 24}}\n"
        "model: {input: [10], layers: [%s], loss: cross_entropy}\n"
        "train: {batch: 8, epochs: 1, optimizer: {sgd: {lr: 0.1}}%s}\n%s%s\n",
        layers, train, *run ? "run: " : "", run);
    *b = (bench){0};
    ok(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &b->config));
    ok(tr_model_open(b->config, 0, &m));
    ok(tr_network_open(m, &b->a));
    tr_model_init_params(m, 3, b->a->params, 0, m->flat_count);
    ok(tr_network_edit(b->a, NULL, NULL, &b->b));
    ok(tr_comm_open(&co, &b->comm));
    ok(tr_cpu_backend.open(&bo, &b->device));
    b->r = (tr_readback){
        .samples = 24, .model = b->a, .file = b->b, .path = "m.onnx", .weights = TR_F32};
    b->r.model_config = b->r.file_config = b->r.run = b->config;
    ok(tr_evaluator_open(&(tr_evaluator_options){.comm = b->comm, .config = b->config},
                         &b->r.evaluator));
    tr_evaluator_move(b->r.evaluator, &tr_cpu_backend, b->device, 1);
    tr_free(text);
}

static void close_bench(bench *b)
{
    tr_evaluator_close(b->r.evaluator);
    tr_cpu_backend.close(b->device);
    tr_comm_close(b->comm);
    tr_network_close(b->a);
    tr_network_close(b->b);
    tr_config_close(b->config);
}

static void check_fails(bench *b, const char *said)
{
    tr_readback_found found = {0};
    assert_int_equal(tr_readback_compare(&b->r, &found), TR_DATA);
    if (!strstr(tr_last_error()->text, said)) fail_msg("%s", tr_last_error()->text);
    const tr_precision own = (tr_precision)b->config->train.precision;
    assert_int_equal(tr_evaluator_compute(b->r.evaluator, own), own);
}

static float *last_weight(tr_network *n)
{
    const tr_model *m = n->model;
    return n->params + m->params[m->nparams - 2].offset;
}

/* The run computes in bf16, in whose 8 bits the two would differ by more, or, of small changes, not
 * at all. */
static void test_one_weight(void **state)
{
    (void)state;
    bench b;
    tr_readback_found found = {0};
    open_bench(&b, plain, ", precision: bf16", "");
    ok(tr_readback_compare(&b.r, &found));
    assert_true(found.apart == 0 && found.most > 0.1);
    float *w = last_weight(b.b);
    const float was = *w;
    *w = was + 1e-7F;
    ok(tr_readback_compare(&b.r, &found));
    *w = was + 1e-3F;
    check_fails(&b, "m.onnx: read back, it answers by up to");
    check_fails(&b, "the model: more than 1e-05 of its largest output");
    *w = NAN;
    check_fails(&b, "by up to nan other");
    close_bench(&b);
}

static void test_float16(void **state)
{
    (void)state;
    bench b;
    tr_readback_found found = {0};
    open_bench(&b, plain, "", "");
    b.r.weights = TR_F16;
    for (size_t i = 0; i < (size_t)b.b->model->flat_count; i++)
        b.b->params[i] = tr_f16_to_f32(tr_f32_to_f16(b.b->params[i]));
    ok(tr_readback_compare(&b.r, &found));
    assert_true(found.apart > 0);
    *last_weight(b.b) += 0.1F;
    check_fails(&b, "of float16 values: more than 0.000488281 of");
    close_bench(&b);
}

/* Outputs of 1e-6: what float32 leaves of sums that cancel passes, what is another model does
 * not. */
static void test_cancelled(void **state)
{
    (void)state;
    bench b;
    tr_readback_found found = {0};
    open_bench(&b, plain, "", "");
    const tr_model *m = b.a->model;
    const size_t count = (size_t)(m->flat_count - (m->params[m->nparams - 2].offset));
    memset(last_weight(b.a), 0, count * sizeof(float));
    memset(last_weight(b.b), 0, count * sizeof(float));
    const size_t bias = (size_t)m->params[m->nparams - 1].offset;
    b.a->params[bias] = 1e-6F;
    b.b->params[bias] = 1.5e-6F;
    ok(tr_readback_compare(&b.r, &found));
    assert_true(found.most < 2e-6);
    b.b->params[bias] = 1e-5F;
    check_fails(&b, "more than 1e-05 of");
    close_bench(&b);
}

static void test_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *layers, *train, *run;
        tr_dtype weights;
        bool host;
        double bound;
    } table[] = {
        {plain, "", "", TR_F32, true, 1e-5},
        {plain, ", tf32: true", "{deterministic: off}", TR_F32, true, 1e-5},
        {plain, "", "", TR_F16, true, 1.0 / 2048},
        {plain, "", "{deterministic: on}", TR_F32, false, 1e-5},
        {plain, "", "{deterministic: auto}", TR_F32, false, 1e-3},
        {plain, ", tf32: true", "{deterministic: on}", TR_F32, false, 1e-3},
        {plain, "", "", TR_F16, false, 1e-3},
        {rounding, "", "{deterministic: on}", TR_F32, false, 0.05},
        {rounding, "", "", TR_F16, true, 0.05},
    };
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        bench b;
        open_bench(&b, table[i].layers, table[i].train, table[i].run);
        b.r.weights = table[i].weights;
        assert_true(tr_readback_bound(&b.r, table[i].host) == table[i].bound);
        close_bench(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_weight), cmocka_unit_test(test_float16),
        cmocka_unit_test(test_cancelled), cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
