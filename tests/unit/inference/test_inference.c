/* links: trireme_cpu
 * The engine against evaluation of the same network; every number of samples; named outputs; many
 * at once in threads; what it allocates, and when it cannot. */
#include <math.h>
#include <pthread.h>

#include "kernels/cpu/cpu.h"
#include "optimize/inference/inference.h"
#include "tests/unit/graph/random.h"

#define NET                                                                                        \
    "  input: [3, 9, 7]\n  layers:\n"                                                              \
    "    - conv2d: {out: 20, kernel: 3, padding: 1, bias: false, name: first}\n"                   \
    "    - batchnorm\n    - relu: {name: early}\n"                                                 \
    "    - residual: {body: [{conv2d: {out: 20, kernel: 3, padding: 1}}, batchnorm]}\n"            \
    "    - relu\n    - maxpool2d: {kernel: 2, name: pooled}\n    - dropout: {p: 0.5}\n"            \
    "    - flatten\n    - linear: {out: 40}\n    - gelu\n    - linear: {out: 5, name: last}\n"     \
    "  loss: cross_entropy\n"
enum { IN = 3 * 9 * 7, OUT = 5, MOST = 20 };

static void *cpu;

static void fill(tr_network *n, uint64_t seed)
{
    tr_model_init_params(n->model, seed, n->params, 0, n->model->flat_count);
    tr_model_init_states(n->model, n->states);
    for (size_t i = 0; i < n->model->state_count; i++) n->states[i] += 0.01f * (float)(i % 7);
}

static tr_network *network(void)
{
    test_model t = test_model_open(NET);
    tr_network *n;
    ok(tr_network_open(t.model, &n));
    t.model = NULL;
    test_model_close(&t);
    fill(n, 3);
    return n;
}

static void samples(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(tr_philox_at(5, TR_RNG_TEST, 0, i, 0).v[0] % 2000) / 1000.0f - 1;
}

static tr_inference *engine(const tr_network *n, tr_inference_options o)
{
    tr_inference *inf = NULL;
    o.backend = &tr_cpu_backend;
    o.backend_ctx = cpu;
    if (tr_inference_open(n, &o, &inf) != TR_OK) fail_msg("%s", tr_last_error()->text);
    return inf;
}

static void answer(tr_inference *inf, const float *x, int64_t n, float *y)
{
    if (tr_inference_run(inf, (const void *[]){x}, n, &y) != TR_OK)
        fail_msg("%s", tr_last_error()->text);
}

/* ---- Against the evaluating graph ------------------------------------------------------------ */

/* The model's output as an evaluate plan computes it, channels first. */
static void evaluated(const tr_network *n, int64_t batch, const void *const *inputs, float *y)
{
    tr_session *s;
    const tr_plan_key key = {.mode = TR_MODE_EVALUATE, .batch = batch};
    const tr_params params = {.o.model = n->model, .weights = n->params, .states = n->states};
    const tr_session_options o = {.model = n->model,
                                  .backend = &tr_cpu_backend,
                                  .backend_ctx = cpu,
                                  .params = &params,
                                  .threads = 1,
                                  .ranks = 1,
                                  .keys = &key,
                                  .nkeys = 1};
    double tally[TR_TALLY] = {0};
    ok(tr_session_open(&o, &s));
    tr_plan *p = tr_session_plan(s, TR_MODE_EVALUATE, batch);
    const tr_graph *g = tr_plan_graph(p);
    void *at[TR_MAX_IN] = {0};
    for (size_t i = 0; i < n->model->ninputs; i++) {
        const tr_tensor *t = &g->tensors[g->inputs[i]];
        at[i] = tr_alloc(TR_MEM_OTHER, t->nbytes, 1);
        const size_t c = t->layout == TR_LAYOUT_PLAIN ? 1 : (size_t)t->dims[1];
        const size_t each = t->count / (size_t)batch, pixels = each / c;
        for (size_t k = 0; k < t->count; k++) {
            const size_t s_ = k / each, ch = k % each / pixels, px = k % pixels;
            memcpy((char *)at[i] + 4 * (s_ * each + px * c + ch), (const char *)inputs[i] + 4 * k,
                   4);
        }
        ok(tr_plan_set_input(p, i, at[i]));
    }
    void *target = tr_alloc(TR_MEM_OTHER, g->tensors[g->target].nbytes, 1);
    ok(tr_plan_set_target(p, target));
    ok(tr_plan_run(p, &(tr_run){.tally = tally, .loss_scale = 1}));
    memcpy(y, tr_plan_tensor(p, g->logits), g->tensors[g->logits].nbytes);
    for (size_t i = 0; i < TR_MAX_IN; i++) tr_free(at[i]);
    tr_free(target);
    tr_session_close(s);
}

static void close_to(const float *a, const float *b, size_t count, double bound)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= bound * (1 + fabs((double)b[i]))))
            fail_msg("output %zu: %g, not %g", i, (double)a[i], (double)b[i]);
}

static void any_number_of_samples(void **state)
{
    (void)state;
    tr_network *n = network();
    static float x[MOST * IN], want[MOST * OUT], y[MOST * OUT];
    samples(x, MOST * IN);
    tr_inference *inf = engine(n, (tr_inference_options){.max_batch = MOST});
    evaluated(n, MOST, (const void *[]){x}, want);
    answer(inf, x, MOST, y);
    assert_memory_equal(y, want, sizeof y);
    for (int round = 0; round < 2; round++) {
        const uint64_t calls = tr_mem_calls();
        for (int64_t k = 1; k <= MOST; k++) {
            memset(y, 0xff, sizeof y);
            answer(inf, x + IN, k < MOST ? k : MOST - 1, y); /* not where an aligned array begins */
            close_to(y, want + OUT, OUT * (size_t)(k < MOST ? k : MOST - 1), 2e-6);
        }
        if (round == 1) assert_int_equal(tr_mem_calls(), calls); /* all sizes were met */
    }
    tr_memory_plan memory;
    tr_inference_memory(inf, &memory);
    assert_true(memory.bytes[TR_MEM_PACKED] > 0);
    tr_inference_close(inf);
    tr_network_close(n);
}

static void few_plans_for_many_sizes(void **state)
{
    (void)state;
    tr_network *n = network();
    enum { MANY = 70 };
    float *x = tr_alloc(TR_MEM_OTHER, MANY * IN, sizeof *x), want[MANY * OUT], y[MANY * OUT];
    samples(x, MANY * IN);
    tr_inference *inf = engine(n, (tr_inference_options){.max_batch = MANY});
    answer(inf, x, MANY, want);
    int plans = 0;
    for (int64_t k = 1; k <= MANY; k++) {
        memset(y, 0xff, sizeof y);
        answer(inf, x, k, y);
        close_to(y, want, OUT * (size_t)k, 2e-6);
        assert_true(k == MANY || isnan(y[OUT * k]));
    }
    for (int64_t k = 1; k <= MANY; k++) plans += tr_inference_plan(inf, k) != NULL;
    assert_true(plans <= TR_INFERENCE_SIZES + 7);
    tr_inference_close(inf);
    tr_network_close(n);
    tr_free(x);
}

static void random_models_as_evaluated(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 150; seed++) {
        tr_network *n;
        ok(tr_network_open(random_model(seed, 0), &n));
        fill(n, seed);
        void *inputs[TR_MAX_IN];
        float want[3 * 3], y[3 * 3], *out = y;
        for (size_t i = 0; i < n->model->ninputs; i++) {
            const tr_input *in = &n->model->inputs[i];
            size_t count = 3;
            for (int k = 0; k < in->ndim; k++) count *= (size_t)in->dims[k];
            inputs[i] = tr_alloc(TR_MEM_OTHER, count, sizeof(float));
            if (!in->ids) samples(inputs[i], count);
            for (size_t k = 0; in->ids && k < count; k++)
                ((int32_t *)inputs[i])[k] = (int32_t)(k % (size_t)in->ids);
        }
        tr_inference *inf = engine(n, (tr_inference_options){.max_batch = 3});
        evaluated(n, 3, (const void *const *)inputs, want);
        if (tr_inference_run(inf, (const void *const *)inputs, 3, &out) != TR_OK)
            fail_msg("seed %d: %s", (int)seed, tr_last_error()->text);
        close_to(y, want, 9, 1e-5);
        for (size_t i = 0; i < n->model->ninputs; i++) tr_free(inputs[i]);
        tr_inference_close(inf);
        tr_network_close(n);
    }
}

/* ---- Outputs, precision, memory -------------------------------------------------------------- */

static void named_outputs(void **state)
{
    (void)state;
    tr_network *n = network();
    static float x[2 * IN], last[2 * OUT], want[2 * OUT];
    static float early[2 * 20 * 63], pooled[2 * 20 * 12];
    samples(x, 2 * IN);
    const char *names[] = {"pooled", "last", "early"};
    float *outputs[] = {pooled, last, early};
    tr_inference *inf =
        engine(n, (tr_inference_options){.max_batch = 2, .outputs = names, .noutputs = 3});
    evaluated(n, 2, (const void *[]){x}, want);
    ok(tr_inference_run(inf, (const void *[]){x}, 2, outputs));
    close_to(last, want, 2 * OUT, 2e-6);
    assert_int_equal(tr_inference_outputs(inf), 3);
    const tr_inference_value v = tr_inference_output(inf, 2);
    assert_string_equal(v.name, "early");
    assert_true(v.ndim == 3 && v.dims[0] == 20 && v.dims[1] == 9 && v.count == 20 * 63);
    assert_int_equal(tr_inference_input(inf, 0).count, IN);
    /* "early": batchnorm and relu of the first convolution, computed here; channels first. */
    const float *w = tr_network_param(n, "first", "weight");
    const float *mean = tr_network_state(n, "batchnorm1", "running_mean");
    const float *var = tr_network_state(n, "batchnorm1", "running_var");
    for (int s = 0; s < 2; s++)
        for (int c = 0; c < 20; c++)
            for (int i = 0; i < 63; i++) {
                double sum = 0;
                for (int k = 0; k < 27; k++) {
                    const int r = i / 7 + k % 9 / 3 - 1, q = i % 7 + k % 3 - 1;
                    if (r >= 0 && r < 9 && q >= 0 && q < 7)
                        sum += (double)w[c * 27 + k] * (double)x[s * IN + k / 9 * 63 + r * 7 + q];
                }
                double y = (sum - (double)mean[c]) / sqrt((double)var[c] + 1e-5);
                y = y > 0 ? y : 0;
                assert_true(fabs(y - (double)early[(s * 20 + c) * 63 + i]) < 1e-5);
            }
    tr_inference_close(inf);
    tr_network_close(n);
}

static void bfloat16(void **state)
{
    (void)state;
    const char *why = tr_cpu_backend.kernels->unsupported(cpu, tr_op_at(0), TR_BF16);
    if (why) {
        print_message("skipped: %s\n", why);
        return;
    }
    tr_network *n = network();
    static float x[5 * IN], want[5 * OUT], y[5 * OUT];
    samples(x, 5 * IN);
    tr_inference *inf =
        engine(n, (tr_inference_options){.max_batch = 8, .precision = TR_PRECISION_BF16});
    evaluated(n, 5, (const void *[]){x}, want);
    answer(inf, x, 5, y);
    close_to(y, want, 5 * OUT, 0.02);
    tr_inference_close(inf);
    tr_network_close(n);
}

/* A convolution reads a packed copy alone: its master goes, and comes back for a size whose kernel
 * wants another layout. */
static void masters_are_released(void **state)
{
    (void)state;
    tr_network *n = network();
    static float x[MOST * IN], want[MOST * OUT], y[MOST * OUT];
    samples(x, MOST * IN);
    tr_inference *inf = engine(n, (tr_inference_options){.max_batch = MOST});
    evaluated(n, 1, (const void *[]){x}, want);
    tr_memory_plan m;
    tr_inference_memory(inf, &m);
    assert_true(m.bytes[TR_MEM_WEIGHTS] < (n->model->nparameters + n->model->state_count) * 4);
    fill(n, 77); /* the engine has values of its own */
    answer(inf, x, 1, y);
    close_to(y, want, OUT, 2e-6);
    tr_inference_close(inf);
    tr_network_close(n);
}

/* ---- Many at once ---------------------------------------------------------------------------- */

typedef struct {
    tr_inference *inf;
    const float *x, *want;
    double worst;
    bool failed;
} worker;

static void *work(void *at)
{
    worker *w = at;
    float y[MOST * OUT], *out = y;
    for (int i = 0; i < 40; i++) {
        const int64_t k = 1 + i * 7 % MOST;
        w->failed |= tr_inference_run(w->inf, (const void *[]){w->x}, k, &out) != TR_OK;
        for (int64_t j = 0; j < k * OUT; j++)
            w->worst = fmax(w->worst, fabs((double)y[j] - (double)w->want[j]));
    }
    return NULL;
}

static void many_at_once(void **state)
{
    (void)state;
    enum { N = 4 };
    tr_network *n = network();
    static float x[MOST * IN], want[MOST * OUT];
    worker w[N];
    pthread_t threads[N];
    samples(x, MOST * IN);
    evaluated(n, MOST, (const void *[]){x}, want);
    for (int i = 0; i < N; i++)
        w[i] = (worker){
            .inf = engine(n, (tr_inference_options){.max_batch = MOST, .threads = 1 + i % 2}),
            .x = x,
            .want = want};
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_false(w[i].failed);
        assert_true(w[i].worst < 1e-5);
        tr_inference_close(w[i].inf);
    }
    tr_network_close(n);
}

/* An engine that takes over what the network holds: the same bits, and weights lie in memory
 * once. */
static void values_are_handed_over(void **state)
{
    (void)state;
    static float x[MOST * IN], y[MOST * OUT], want[MOST * OUT];
    tr_network *n = network();
    tr_inference *inf = engine(n, (tr_inference_options){.max_batch = MOST});
    samples(x, MOST * IN);
    answer(inf, x, MOST, want);
    tr_inference_close(inf);
    const tr_inference_options bad = {
        .backend = &tr_cpu_backend, .backend_ctx = cpu, .max_batch = -1};
    assert_int_equal(tr_inference_take(n, &bad, &inf), TR_CONFIG);
    assert_non_null(n->params);
    const tr_inference_options o = {
        .backend = &tr_cpu_backend, .backend_ctx = cpu, .max_batch = MOST};
    const size_t before = tr_mem_held(TR_MEM_WEIGHTS);
    ok(tr_inference_take(n, &o, &inf));
    assert_null(n->params);
    const size_t states = n->model->state_count * sizeof(float);
    assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), before + states);
    tr_network_close(n);
    assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), before);
    answer(inf, x, MOST, y);
    assert_memory_equal(y, want, sizeof y);
    tr_inference_close(inf);
    assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), 0);
}

/* ---- What goes wrong ------------------------------------------------------------------------- */

static void bad_arguments(void **state)
{
    (void)state;
    tr_network *n = network();
    tr_inference *inf = NULL;
    tr_inference_options o = {.backend = &tr_cpu_backend, .backend_ctx = cpu, .max_batch = -3};
    assert_int_equal(tr_inference_open(n, &o, &inf), TR_CONFIG);
    o.max_batch = 4;
    o.sizes = (const int64_t[]){2, 5};
    o.nsizes = 2;
    assert_int_equal(tr_inference_open(n, &o, &inf), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "5 samples at once, of at most 4");
    o.nsizes = 1;
    o.outputs = (const char *const[]){"lost"};
    o.noutputs = 1;
    assert_int_equal(tr_inference_open(n, &o, &inf), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "the model has no layer \"lost\"");
    assert_null(inf);
    inf = engine(n, (tr_inference_options){.max_batch = 4});
    float x[IN] = {0}, y[OUT], *out = y;
    assert_int_equal(tr_inference_run(inf, (const void *[]){x}, 0, &out), TR_CONFIG);
    assert_int_equal(tr_inference_run(inf, (const void *[]){x}, 5, &out), TR_CONFIG);
    tr_inference_close(inf);
    tr_inference_close(NULL);
    tr_network_close(n);
}

/* Each allocation of opening fails once, then each of a call that gets ready for a new size:
 * nothing leaks, and what was open goes on. */
static void out_of_memory(void **state)
{
    (void)state;
    tr_network *n = network();
    static float x[MOST * IN], want[MOST * OUT], y[MOST * OUT];
    samples(x, MOST * IN);
    const tr_inference_options o = {.backend = &tr_cpu_backend,
                                    .backend_ctx = cpu,
                                    .max_batch = MOST,
                                    .sizes = (int64_t[]){2},
                                    .nsizes = 1};
    tr_inference *inf = NULL;
    float *out = y;
    for (uint64_t k = 1;; k++) {
        size_t held = 0, left = 0;
        for (int i = 0; i < TR_MEM_KINDS; i++) held += tr_mem_held((tr_mem_kind)i);
        tr_mem_fail_at(k);
        const tr_status st = tr_inference_open(n, &o, &inf);
        tr_mem_fail_at(0);
        if (st == TR_OK) break;
        assert_int_equal(st, TR_MEMORY);
        for (int i = 0; i < TR_MEM_KINDS; i++) left += tr_mem_held((tr_mem_kind)i);
        assert_int_equal(left, held);
    }
    answer(inf, x, 2, want);
    bool done = false;
    for (uint64_t k = 1; !done; k++) {
        size_t held = 0, left = 0;
        for (int i = 0; i < TR_MEM_KINDS; i++) held += tr_mem_held((tr_mem_kind)i);
        tr_mem_fail_at(k);
        done = tr_inference_run(inf, (const void *[]){x}, MOST, &out) == TR_OK;
        tr_mem_fail_at(0);
        for (int i = 0; i < TR_MEM_KINDS; i++) left += tr_mem_held((tr_mem_kind)i);
        if (!done && tr_inference_plan(inf, MOST) == NULL) assert_in_range(left, held, held + 4096);
        answer(inf, x, 2, y);
        close_to(y, want, 2 * OUT, 2e-6);
    }
    answer(inf, x, MOST, y);
    close_to(y, want, 2 * OUT, 2e-6);
    tr_inference_close(inf);
    tr_network_close(n);
}

static int open_cpu(void **state)
{
    (void)state;
    return tr_cpu_backend.open(&(tr_backend_options){0}, &cpu) != TR_OK;
}

static int close_cpu(void **state)
{
    (void)state;
    tr_cpu_backend.close(cpu);
    return 0;
}

/* The bytes that are told beforehand are those that opening takes, whose weights are given back at
 * its end. */
static void what_it_needs(void **state)
{
    (void)state;
    static const int64_t sizes[] = {500, 2000};
    const tr_inference_options o = {.backend = &tr_cpu_backend,
                                    .backend_ctx = cpu,
                                    .max_batch = 2000,
                                    .sizes = sizes,
                                    .nsizes = 2};
    tr_network *n = network();
    size_t needed, taken = 0, before = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++)
        before += k != TR_MEM_OTHER ? tr_mem_held((tr_mem_kind)k) : 0;
    ok(tr_inference_needs(n, &o, &needed));
    tr_inference *inf = engine(n, o);
    for (int k = 0; k < TR_MEM_KINDS; k++)
        taken += k != TR_MEM_OTHER ? tr_mem_held((tr_mem_kind)k) : 0;
    assert_in_range(needed, taken - before, taken - before + n->model->flat_count * sizeof(float));
    tr_inference_close(inf);
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_samples),
        cmocka_unit_test(few_plans_for_many_sizes),
        cmocka_unit_test(random_models_as_evaluated),
        cmocka_unit_test(named_outputs),
        cmocka_unit_test(bfloat16),
        cmocka_unit_test(masters_are_released),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(what_it_needs),
        cmocka_unit_test(values_are_handed_over),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
