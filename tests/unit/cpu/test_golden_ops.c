/* links: trireme_hdf5
 * Every op as layers of small models against PyTorch (tests/golden/ops.h5, made in float64): loss,
 * output, parameter gradients, running statistics; with the graph's passes and without, in float32
 * and bfloat16, and once more accumulated. Input gradients show in the layer before the op under
 * test.
 *
 * An array's error is the root mean square of the difference over that of the golden array, or over
 * a share of its layer's largest gradient's where that is more: a bias's gradient is a sum of terms
 * that nearly cancel, before batchnorm to zero, and keeps their rounding. So is a learned scale's,
 * and in it a clamped weight's gradient counts 127 times: see scale_term. fp32: 1e-5, some hundred
 * roundings of 2^-24 in a row; share 5 %. bf16: 6e-2, some ten roundings of 2^-9 to each side,
 * amplified by the norms and by ReLUs and maxima that fall on the other side (PyTorch's own
 * bfloat16 leaves these goldens by up to 6e-2); share 50 %. */
#include "model_harness.h"

#include <stdlib.h>
#include <hdf5.h>

#define FP32_TOLERANCE 1e-5
#define BF16_TOLERANCE 6e-2
#define MAX_CASES      512

static hid_t file;

/* ---- Reading --------------------------------------------------------------------------------- */

static double *read_array(hid_t at, size_t want, const char *fmt, ...)
{
    char path[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    const hid_t d = H5Dopen2(at, path, H5P_DEFAULT), space = H5Dget_space(d);
    if (d < 0 || (size_t)H5Sget_simple_extent_npoints(space) != want)
        fail_msg("%s: %lld elements in the golden file, %zu in the model", path,
                 d < 0 ? -1LL : (long long)H5Sget_simple_extent_npoints(space), want);
    double *v = calloc(want, sizeof *v);
    assert_non_null(v);
    assert_true(H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
    H5Sclose(space);
    H5Dclose(d);
    return v;
}

static void read_into(hid_t at, float *to, size_t count, const char *kind, const char *layer,
                      const char *name)
{
    double *v = read_array(at, count, "%s/%s/%s", kind, layer, name);
    for (size_t i = 0; i < count; i++) to[i] = (float)v[i];
    free(v);
}

static double read_number(hid_t at, const char *name)
{
    double v = NAN;
    const hid_t a = H5Aopen(at, name, H5P_DEFAULT);
    assert_true(H5Aread(a, H5T_NATIVE_DOUBLE, &v) >= 0);
    H5Aclose(a);
    return v;
}

static char *read_text(hid_t at, const char *name) /* h5py's strings: variable length, UTF-8 */
{
    char *text = NULL;
    const hid_t a = H5Aopen(at, name, H5P_DEFAULT), type = H5Aget_type(a);
    assert_true(H5Tis_variable_str(type) > 0);
    assert_true(H5Aread(a, type, &text) >= 0);
    H5Tclose(type);
    H5Aclose(a);
    return text;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

typedef struct {
    const char *name; /* of the case, for messages */
    bool bf16, fuse;
    double tolerance;
} scale;

static void compare(const scale *s, const char *what, double floor, size_t count, const double *got,
                    const double *want)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    error = sqrt(error / (double)count);
    size = fmax(sqrt(size / (double)count), floor);
    if (!(error <= s->tolerance * size))
        fail_msg("%s, %s%s: %s is off by %.2g of its size, %.2g is allowed", s->name,
                 s->bf16 ? "bf16" : "fp32", s->fuse ? "" : ", without passes", what, error / size,
                 s->tolerance);
}

static void compare_floats(const scale *s, hid_t at, const char *kind, const char *layer,
                           const char *name, const float *got, size_t count, double factor,
                           double floor)
{
    char what[200];
    double *want = read_array(at, count, "%s/%s/%s", kind, layer, name);
    double *v = calloc(count, sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < count; i++) v[i] = (double)got[i] / factor;
    snprintf(what, sizeof what, "%s/%s/%s", kind, layer, name);
    compare(s, what, floor, count, v, want);
    free(v);
    free(want);
}

/* ---- A case ---------------------------------------------------------------------------------- */

typedef struct {
    hid_t group;
    tr_mode mode;
    model_harness h;
    scale s;
} golden;

static void load(golden *g)
{
    const tr_model *m = g->h.m;
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        read_into(g->group, g->h.weights + p->offset, p->count, "params", p->layer, p->name);
    }
    for (size_t i = 0; i < m->nstates; i++) {
        const tr_state *s = &m->states[i];
        read_into(g->group, g->h.states + s->offset, s->count, "states_before", s->layer, s->name);
    }
}

static void fill_batch(golden *g)
{
    for (size_t i = 0; i < g->h.m->ninputs; i++) {
        const tr_tensor *t = mh_input_tensor(&g->h, i);
        double *v = read_array(g->group, t->count, "inputs/%s", g->h.m->inputs[i].name);
        mh_set_input(&g->h, i, v);
        free(v);
    }
    const tr_tensor *t = mh_target_tensor(&g->h);
    double *v = read_array(g->group, t->count, "target");
    mh_set_target(&g->h, v);
    free(v);
    for (size_t k = 0; k < tr_plan_graph(g->h.plan)->ngiven; k++) {
        v = read_array(g->group, mh_given_tensor(&g->h, k)->count, "given/%zu", k);
        mh_set_given(&g->h, k, v);
        free(v);
    }
}

static void run(golden *g, bool accumulate)
{
    double tally[TR_TALLY] = {0};
    fill_batch(g);
    const tr_run r = {.seed = 1,
                      .loss_scale = 1,
                      .accumulate = accumulate,
                      .last = true,
                      .params_changed = !accumulate,
                      .tally = tally};
    const tr_status st = tr_plan_run(g->h.plan, &r);
    if (st != TR_OK) fail_msg("%s: %s", g->s.name, tr_last_error()->text);
    const double loss = read_number(g->group, "loss"), weight = read_number(g->group, "weight");
    compare(&g->s, "loss", 0, 1, &tally[TR_TALLY_LOSS], &loss);
    compare(&g->s, "weight", 0, 1, &tally[TR_TALLY_WEIGHT], &weight);
}

/* The root mean square of a parameter's golden gradient. */
static double gradient_size(const golden *g, const tr_param *p)
{
    double sum = 0, *v = read_array(g->group, p->count, "grads/%s/%s", p->layer, p->name);
    for (size_t i = 0; i < p->count; i++) sum += v[i] * v[i];
    free(v);
    return sqrt(sum / (double)p->count);
}

/* What the gradient of a learned scale gets from one clamped weight: 127 times that weight's
 * gradient, times 1 / sqrt(127 n) for n weights to a scale (LSQ). Such terms cancel: those of
 * learned_conv2d_int8_tensor (five, each of 3.5) to 0.18. Each is a float32 sum over the samples'
 * places (there 3 * 7 * 9) and as exact as that: sqrt(189) 2^-24 = 8e-7 of it, five of them 6e-6,
 * which is 3e-5 of the 0.23 that the layer's gradients would leave as size. */
static double scale_term(const golden *g, const tr_param *of)
{
    for (size_t i = 0; i < g->h.m->nparams; i++) {
        const tr_param *p = &g->h.m->params[i];
        if (strcmp(p->layer, of->layer) == 0 && strcmp(p->name, "weight") == 0)
            return gradient_size(g, p) * sqrt(127 * (double)of->count / (double)p->count);
    }
    fail_msg("%s has a learned scale and no weight", of->layer);
    return 0;
}

/* The least size by which a gradient's error is measured. */
static double least_size(const golden *g, const tr_param *of)
{
    double largest = 0;
    for (size_t i = 0; i < g->h.m->nparams; i++) {
        const tr_param *p = &g->h.m->params[i];
        if (strcmp(p->layer, of->layer) == 0) largest = fmax(largest, gradient_size(g, p));
    }
    if (g->s.bf16) return 0.5 * largest;
    largest *= 0.05;
    return strcmp(of->name, "learned_scale") == 0 ? fmax(largest, scale_term(g, of)) : largest;
}

/* With passes, cross entropy writes its gradient there. */
static bool gradient_over_output(const tr_graph *g)
{
    for (size_t i = 0; i < g->nops; i++)
        if (g->ops[i].phase == TR_PHASE_LOSS && g->ops[i].out[0] >= 0 &&
            tr_root(g, g->ops[i].out[0]) == tr_root(g, g->logits))
            return true;
    return false;
}

static void check(golden *g, double runs)
{
    const tr_model *m = g->h.m;
    const tr_graph *graph = tr_plan_graph(g->h.plan);
    const tr_tensor *t = &graph->tensors[graph->logits];
    const void *y = tr_plan_tensor(g->h.plan, graph->logits);
    double *want = read_array(g->group, t->count, "output"), *got = calloc(t->count, sizeof *got);
    assert_non_null(got);
    for (size_t i = 0; i < t->count; i++) got[i] = mh_get(y, t, i);
    if (!gradient_over_output(graph)) compare(&g->s, "output", 0, t->count, got, want);
    free(want);
    free(got);
    if (g->mode != TR_MODE_TRAIN) return;
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        compare_floats(&g->s, g->group, "grads", p->layer, p->name, g->h.grads + p->offset,
                       p->count, runs, least_size(g, p));
    }
    for (size_t i = 0; runs == 1 && i < m->nstates; i++) {
        const tr_state *s = &m->states[i];
        compare_floats(&g->s, g->group, "states_after", s->layer, s->name, g->h.states + s->offset,
                       s->count, 1, 0.1);
    }
}

static bool *seen; /* by op of the registry: in a graph that was compared */

static void look(const tr_graph *g)
{
    for (size_t i = 0; i < g->nops; i++) seen[tr_op_place(g->ops[i].def)] = true;
}

static void run_case(hid_t group, const tr_config *c, const char *name, void *ctx, bool bf16,
                     bool fuse)
{
    golden g = {.group = group,
                .mode = read_number(group, "train") != 0 ? TR_MODE_TRAIN : TR_MODE_EVALUATE,
                .s = {.name = name,
                      .bf16 = bf16,
                      .fuse = fuse,
                      .tolerance = bf16 ? BF16_TOLERANCE : FP32_TOLERANCE}};
    mh_distillation distillation;
    const tr_graph_options o = {.batch = c->train.batch,
                                .distill = mh_distill(c, &distillation),
                                .mode = g.mode,
                                .precision = bf16 ? TR_PRECISION_BF16 : TR_PRECISION_FP32,
                                .ranks = 1,
                                .passes = fuse ? TR_PASSES_ALL : 0};
    mh_open(&g.h, name, c, ctx, &o);
    load(&g);
    run(&g, false);
    check(&g, 1);
    if (g.mode == TR_MODE_TRAIN) {
        run(&g, true);
        check(&g, 2);
    }
    look(tr_plan_graph(g.h.plan));
    mh_close(&g.h);
    tr_features_free(distillation.read, distillation.count);
}

/* Of attention_ROWS_WIDTH: on the stand-in for a GPU, which takes half a minute for what a GPU
 * takes none. */
static bool takes_long(const char *name)
{
#if defined TEST_MIRROR && !defined TR_REAL_GPU
    int rows, width;
    return sscanf(name, "attention_%d_%d", &rows, &width) == 2 && rows * rows * width > 400000;
#else
    (void)name;
    return false;
#endif
}

static void golden_case(void **state)
{
    const char *name = *state;
    void *ctx = NULL;
    tr_config *c = NULL;
    const tr_backend_options o = {0};
    if (takes_long(name)) {
        print_message("%s: skipped: long on the stand-in for a GPU\n", name);
        return;
    }
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    const hid_t group = H5Gopen2(file, name, H5P_DEFAULT);
    char *text = read_text(group, "config");
    if (tr_config_open(name, text, strlen(text), NULL, 0, NULL, &c) != TR_OK)
        fail_msg("%s\n%s", tr_last_error()->text, text);
    const char *why = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_BF16);
    if (why) print_message("%s: bf16 is skipped: %s\n", name, why);
    for (int bf16 = 0; bf16 < (why ? 1 : 2); bf16++)
        for (int fuse = 0; fuse < 2; fuse++) run_case(group, c, name, ctx, bf16 == 1, fuse == 1);
    tr_config_close(c);
    H5free_memory(text);
    H5Gclose(group);
    tr_cpu_backend.close(ctx);
}

/* A new op needs a case (tests/golden/cases.py), or a reason here. */
static void test_every_op(void **state)
{
    (void)state;
    static const struct {
        const char *op, *why;
    } without[] = {{"dropout", "its mask is our own generator's"},
                   {"dropout.grad", "its mask is our own generator's"},
                   {"drop_path", "its mask is our own generator's"},
                   {"drop_path.grad", "its mask is our own generator's"},
                   {"int8.quantize", "8 bits: test_int8"},
                   {"int8.dequantize", "8 bits: test_int8"},
                   {"avgpool2d.int8", "8 bits: test_int8"},
                   {"global_avgpool.int8", "8 bits: test_int8"},
                   {"concat.int8", "8 bits: test_int8"},
                   {"int8.dynamic", "8 bits: test_int8"},
                   {"int8.rescale", "8 bits: test_int8"},
                   {"conv2d.int8", "8 bits: test_int8"},
                   {"conv2d.int8_groups", "8 bits: test_int8"},
                   {"linear.int8", "8 bits: test_int8"},
                   {"batchnorm.merge", "one rank; over several: test_batchnorm_ranks"},
                   {"batchnorm.grad_merge", "one rank; over several: test_batchnorm_ranks"}};
    for (size_t d = 0; d < tr_op_count(); d++) {
        const char *name = tr_op_def_name(tr_op_at(d)), *why = NULL;
        for (size_t i = 0; i < TR_COUNT(without); i++)
            if (strcmp(without[i].op, name) == 0) why = without[i].why;
        if (!seen[d] && !why) fail_msg("no golden case has the op %s", name);
        if (seen[d] && why) fail_msg("%s is compared after all: strike it off the list", name);
        if (why) print_message("%s is left out: %s\n", name, why);
    }
}

static herr_t add_case(hid_t at, const char *name, const H5L_info_t *info, void *data)
{
    struct CMUnitTest **next = data;
    (void)at;
    (void)info;
    char *copy = strdup(name);
    *(*next)++ = (struct CMUnitTest){.name = copy, .test_func = golden_case, .initial_state = copy};
    return 0;
}

/* In the tree that this was built from; TR_SOURCE_DIR in the environment: where that was carried
 * to. */
static hid_t open_goldens(void)
{
    const char *carried = getenv("TR_SOURCE_DIR");
    char *path = tr_sprintf("%s/tests/golden/ops.h5", carried ? carried : TR_SOURCE_DIR);
    const hid_t opened = path ? H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT) : -1;
    tr_free(path);
    return opened;
}

int main(void)
{
    static struct CMUnitTest tests[MAX_CASES + 1];
    H5G_info_t info = {0};
    struct CMUnitTest *next = tests;
    file = open_goldens();
    if (file < 0 || H5Gget_info(file, &info) < 0 || info.nlinks == 0 || info.nlinks > MAX_CASES ||
        H5Literate(file, H5_INDEX_NAME, H5_ITER_INC, NULL, add_case, &next) < 0) {
        print_error("tests/golden/ops.h5 cannot be read\n");
        return 1;
    }
    const size_t n = (size_t)(next - tests);
    *next = (struct CMUnitTest)cmocka_unit_test(test_every_op);
    seen = tr_alloc(TR_MEM_OTHER, tr_op_count(), sizeof *seen);
    const int failed = _cmocka_run_group_tests("golden ops", tests, n + 1, NULL, NULL);
    tr_free(seen);
    for (size_t i = 0; i < n; i++) free(tests[i].initial_state);
    H5Fclose(file);
    return failed;
}
