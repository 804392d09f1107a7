/* The backend's entry: every op of the registry has a kernel, what is not supported says why, the
 * description, failing allocations, and a context at a lower instruction set level. */
#include "tests/unit/cpu/model_harness.h"
#include "tests/unit/cpu/op_harness.h"

#include <omp.h>
#include <pthread.h>

static void *open_backend(int isa)
{
    void *ctx = NULL;
    tr_backend_options o = {.isa = isa};
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    assert_non_null(ctx);
    return ctx;
}

static void test_every_op(void **state)
{
    (void)state;
    void *ctx = open_backend(0);
    for (size_t i = 0; i < tr_op_count(); i++) {
        const char *why = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(i), TR_F32);
        if (why) fail_msg("%s: %s", tr_op_def_name(tr_op_at(i)), why);
    }
    tr_cpu_backend.close(ctx);
}

static void test_fp16_names_bf16(void **state)
{
    (void)state;
    void *team, *ctx = open_backend(0);
    for (size_t i = 0; i < tr_op_count(); i++)
        assert_string_equal(tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(i), TR_F16),
                            "fp16 has no CPU kernels here: use precision bf16");
    tr_tensor x = {.role = TR_ROLE_ACTIVATION, .dtype = TR_F16, .alias = -1};
    tr_graph g = {
        .precision = TR_PRECISION_FP16, .batch = 1, .ntensors = 1, .tensors = &x, .nops = 1};
    tr_op op = {.def = h_def("linear"), .layer = "linear1", .nin = 1};
    tr_kernel *k = NULL;
    assert_int_equal(tr_cpu_backend.kernels->open(ctx, 1, &team), TR_OK);
    assert_int_equal(tr_cpu_backend.kernels->prepare(team, &g, &op, &k), TR_UNSUPPORTED);
    tr_cpu_backend.kernels->close(team);
    assert_null(k);
    assert_non_null(strstr(tr_last_error()->text, "linear1"));
    assert_non_null(strstr(tr_last_error()->text, "bf16"));
    tr_cpu_backend.close(ctx);
}

static void test_describe(void **state)
{
    (void)state;
    char text[128];
    void *ctx = open_backend(0);
    tr_cpu_backend.describe(ctx, text, sizeof text);
    assert_non_null(strstr(text, "oneDNN "));
    tr_cpu_backend.describe(ctx, text, 8); /* cut, not overrun */
    assert_int_equal(strlen(text), 7);
    tr_cpu_backend.close(ctx);
    tr_cpu_backend.close(NULL);
}

/* A convolution with everything, prepared while each allocation fails in turn: an error, no
 * leak. */
static tr_status prepare_conv(void *ctx)
{
    void *team = NULL;
    static const tr_conv2d_attrs attrs = {.out = 4,
                                          .groups = 1,
                                          .kernel = {3, 3},
                                          .stride = {1, 1},
                                          .padding = {1, 1},
                                          .dilation = {1, 1}};
    tr_tensor t[4] = {
        {.id = 0,
         .dtype = TR_F32,
         .ndim = 4,
         .dims = {2, 3, 6, 6},
         .layout = TR_LAYOUT_CHANNELS_LAST,
         .count = 216},
        {.id = 1,
         .role = TR_ROLE_PARAM,
         .dtype = TR_F32,
         .ndim = 4,
         .dims = {4, 3, 3, 3},
         .count = 108},
        {.id = 2, .role = TR_ROLE_PARAM, .dtype = TR_F32, .ndim = 1, .dims = {4}, .count = 4},
        {.id = 3,
         .dtype = TR_F32,
         .ndim = 4,
         .dims = {2, 4, 6, 6},
         .layout = TR_LAYOUT_CHANNELS_LAST,
         .count = 288},
    };
    tr_op op = {.def = h_def("conv2d"), .nin = 4, .in = {0, 1, 2, -1}, .nout = 1, .out = {3}};
    op.attrs = &attrs;
    tr_graph g = {
        .batch = 2, .mode = TR_MODE_TRAIN, .tensors = t, .ntensors = 4, .ops = &op, .nops = 1};
    tr_kernel *k = NULL;
    tr_status st = tr_cpu_backend.kernels->open(ctx, 2, &team);
    if (st == TR_OK) st = tr_cpu_backend.kernels->prepare(team, &g, &op, &k);
    if (st == TR_OK) k->close(k);
    tr_cpu_backend.kernels->close(team);
    return st;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_status st = TR_MEMORY;
    for (uint64_t n = 1; st != TR_OK; n++) {
        assert_true(n < 100);
        void *ctx = NULL;
        tr_backend_options o = {0};
        tr_mem_fail_at(n);
        st = tr_cpu_backend.open(&o, &ctx);
        if (st == TR_OK) st = prepare_conv(ctx);
        tr_mem_fail_at(0);
        assert_true(st == TR_OK || st == TR_MEMORY);
        tr_cpu_backend.close(ctx);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
    }
}

/* ---- Two sessions of one context ------------------------------------------------------------- */

enum { STEPS = 6 };

/* A session that trains by itself: w -= 0.01 g, from the same weights and samples each time. */
typedef struct {
    model_harness h;
    int64_t batch;
    int threads, used; /* asked for; what OpenMP was told for the caller's thread */
    double loss[STEPS];
    float *weights; /* after the last step */
    tr_status st;
} side;

static double value(uint64_t seed, size_t i)
{
    return (double)((i * 2654435761u + seed * 40503u) >> 7 & 1023) / 512 - 1;
}

static void open_side(side *s, const tr_config *c, void *ctx)
{
    const tr_graph_options o = {
        .batch = s->batch, .mode = TR_MODE_TRAIN, .ranks = 1, .passes = TR_PASSES_ALL};
    double v[8 * 3 * 9 * 9], labels[8];
    mh_open_threads(&s->h, "side", c, ctx, &o, s->threads);
    for (size_t i = 0; i < s->h.m->flat_count; i++) s->h.weights[i] = (float)value(1, i) / 4;
    for (size_t i = 0; i < s->h.m->state_count; i++) s->h.states[i] = 1;
    for (size_t i = 0; i < TR_COUNT(v); i++) v[i] = value((uint64_t)s->batch, i);
    for (size_t i = 0; i < TR_COUNT(labels); i++) labels[i] = (double)(i % 5);
    mh_set_input(&s->h, 0, v);
    mh_set_target(&s->h, labels);
}

static void *run_step(side *s, int step)
{
    double tally[TR_TALLY] = {0};
    const tr_run run = {.loss_scale = 1, .last = true, .params_changed = true, .tally = tally};
    s->st = tr_plan_run(s->h.plan, &run);
    s->used = omp_get_max_threads();
    if (s->st != TR_OK) return NULL;
    const tr_model *m = s->h.m;
    for (size_t p = 0; p < m->nparams; p++)
        for (size_t i = m->params[p].offset; i < m->params[p].offset + m->params[p].count; i++)
            s->h.weights[i] -= 0.01f * s->h.grads[i];
    s->loss[step] = tally[TR_TALLY_LOSS];
    return NULL;
}

static void *run_all(void *arg)
{
    side *s = arg;
    for (int step = 0; step < STEPS && (step == 0 || s->st == TR_OK); step++) run_step(s, step);
    return NULL;
}

static void close_side(side *s)
{
    const size_t nbytes = s->h.m->flat_count * sizeof(float);
    assert_int_equal(s->st, TR_OK);
    assert_int_equal(s->used, s->threads);
    s->weights = test_malloc(nbytes);
    memcpy(s->weights, s->h.weights, nbytes);
    mh_close(&s->h);
}

static void assert_same(const side *a, const side *b, size_t count)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->weights, b->weights, count * sizeof(float));
}

/* Of different batch sizes and numbers of threads, each in a thread of its own and in turn in one
 * thread: bit by bit what each gives alone. The second is closed before the first. */
static void test_two_sessions(void **state)
{
    (void)state;
    static const char text[] = "name: sides\n"
                               "data: {train: {format: synthetic, samples: 8}}\n"
                               "model:\n  input: [3, 9, 9]\n  layers:\n"
                               "  - conv2d: {out: 16, kernel: 3, padding: 1}\n"
                               "  - batchnorm: {}\n  - relu: {}\n  - maxpool2d: {kernel: 2}\n"
                               "  - flatten: {}\n  - linear: {out: 33}\n  - gelu: {}\n"
                               "  - layernorm: {}\n  - linear: {out: 5}\n"
                               "  loss: cross_entropy\ntrain: {batch: 8, steps: 1}\n";
    tr_config *c = NULL;
    size_t before[TR_MEM_KINDS], count = 0;
    if (tr_config_open("sides", text, strlen(text), NULL, 0, NULL, &c) != TR_OK)
        fail_msg("%s", tr_last_error()->text);
    void *ctx = open_backend(0);
    for (int k = 0; k < TR_MEM_KINDS; k++) before[k] = tr_mem_held((tr_mem_kind)k);
    side alone[2] = {{.batch = 8, .threads = 3}, {.batch = 5, .threads = 1}};
    for (int i = 0; i < 2; i++) {
        open_side(&alone[i], c, ctx);
        count = alone[i].h.m->flat_count;
        run_all(&alone[i]);
        close_side(&alone[i]);
    }
    for (int turn = 0; turn < 2; turn++) {
        side both[2] = {{.batch = 8, .threads = 3}, {.batch = 5, .threads = 1}};
        pthread_t thread[2];
        for (int i = 0; i < 2; i++) open_side(&both[i], c, ctx);
        for (int i = 0; i < 2 && !turn; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, run_all, &both[i]), 0);
        for (int i = 0; i < 2 && !turn; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
        for (int step = 0; step < STEPS && turn; step++)
            for (int i = 0; i < 2; i++) run_step(&both[i], step);
        for (int i = 1; i >= 0; i--) close_side(&both[i]);
        for (int i = 0; i < 2; i++) assert_same(&both[i], &alone[i], count);
        for (int i = 0; i < 2; i++) test_free(both[i].weights);
    }
    for (int i = 0; i < 2; i++) test_free(alone[i].weights);
    for (int k = 0; k < TR_MEM_KINDS; k++) assert_int_equal(tr_mem_held((tr_mem_kind)k), before[k]);
    tr_cpu_backend.close(ctx);
    tr_config_close(c);
}

/* Last: oneDNN takes no lower level once it has made primitives, but our loops do. */
static void test_lower_level(void **state)
{
    (void)state;
    char text[128];
    for (int isa = TR_ISA_BASE; isa <= tr_cpu_isa(); isa++) {
        static const char *const names[] = {"", "baseline", "AVX2", "AVX-512"};
        void *ctx = open_backend(isa);
        tr_cpu_backend.describe(ctx, text, sizeof text);
        assert_int_equal(strncmp(text, names[isa], strlen(names[isa])), 0);
        assert_int_equal(prepare_conv(ctx), TR_OK);
        tr_cpu_backend.close(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op),     cmocka_unit_test(test_fp16_names_bf16),
        cmocka_unit_test(test_describe),     cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_two_sessions), cmocka_unit_test(test_lower_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
