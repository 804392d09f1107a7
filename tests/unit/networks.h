/* Networks of generated models with random values, and what they give on the CPU, for the tests of
 * what is made of networks. A file that includes this links trireme_cpu and trireme_plan. */
#ifndef TEST_NETWORKS_H
#define TEST_NETWORKS_H

#include "kernels/cpu/cpu.h"
#include "optimize/network/network.h"
#include "runtime/plan/plan.h"
#include "tests/unit/chance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BASE(model)                                                                                \
    "name: m\ndata: {train: {format: synthetic, samples: 100}}\nmodel:\n" model                    \
    "train: {batch: 8, epochs: 1, optimizer: {sgd: {lr: 0.1}}}\n"

static inline void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

/* ---- Chance ---------------------------------------------------------------------------------- */

static inline float between(uint64_t seed, uint32_t stream, uint64_t i, float low, float high)
{
    return low + (high - low) * tr_uniform(tr_philox_at(seed, TR_RNG_TEST, stream, i, 0).v[0]);
}

/* ---- Networks -------------------------------------------------------------------------------- */

/* All values by chance; variances are positive. */
static inline void scatter(tr_network *n, uint64_t seed)
{
    const tr_model *m = n->model;
    for (size_t r = 0; r < m->nparams; r++)
        for (size_t i = 0; i < m->params[r].count; i++) {
            const tr_param *p = &m->params[r];
            const size_t fan = p->ndim > 1 ? p->count / (size_t)p->dims[0] : 1;
            const float wide = p->ndim > 1 ? 1.7f / sqrtf((float)fan) : 1.2f;
            n->params[p->offset + i] = between(seed, (uint32_t)r, i, -wide, wide);
        }
    for (size_t r = 0; r < m->nstates; r++)
        for (size_t i = 0; i < m->states[r].count; i++)
            n->states[m->states[r].offset + i] =
                between(seed, 1000 + (uint32_t)r, i, m->states[r].initial > 0 ? 0.3f : -1, 2);
}

/* `model`: what stands below `model:`, two spaces in. */
static inline tr_network *network_of(const char *model, uint64_t seed)
{
    char *text = tr_sprintf(BASE("%s"), model);
    tr_config *c = NULL;
    tr_model *m = NULL;
    tr_network *n = NULL;
    if (tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &c) != TR_OK ||
        tr_model_open(c, 0, &m) != TR_OK)
        fail_msg("%s\n%s", tr_last_error()->text, model);
    ok(tr_network_open(m, &n));
    scatter(n, seed);
    tr_config_close(c);
    tr_free(text);
    return n;
}

/* The network once more, its model by way of the config that carries it. */
static inline tr_network *rebuilt(const tr_network *n)
{
    char *text = NULL;
    size_t size;
    tr_network *made = NULL;
    FILE *f = open_memstream(&text, &size);
    ok(tr_model_write(n->model, 2, f));
    fclose(f);
    made = network_of(text, 1);
    free(text);
    assert_int_equal(made->model->flat_count, n->model->flat_count);
    assert_int_equal(made->model->state_count, n->model->state_count);
    memcpy(made->params, n->params, n->model->flat_count * sizeof(float));
    memcpy(made->states, n->states, n->model->state_count * sizeof(float));
    return made;
}

static inline bool has_layer(const tr_network *n, const char *name)
{
    for (size_t i = 0; i < n->model->nlayers; i++)
        if (strcmp(n->model->layers[i].name, name) == 0) return true;
    return false;
}

/* ---- Running --------------------------------------------------------------------------------- */

enum { SAMPLES = 3 };

static void *cpu; /* tr_cpu_backend's context: cpu_open, cpu_close are a group's set-up */

static inline int cpu_open(void **state)
{
    (void)state;
    const tr_backend_options o = {0};
    return tr_cpu_backend.open(&o, &cpu) == TR_OK ? 0 : -1;
}

static inline int cpu_close(void **state)
{
    (void)state;
    tr_cpu_backend.close(cpu);
    return 0;
}

/* What the network gives for SAMPLES random samples, (value - mean) / std each; of malloc. */
static inline float *outputs_of(const tr_network *n, uint64_t seed, float mean, float std,
                                size_t *count)
{
    const tr_model *m = n->model;
    tr_session *s = NULL;
    void *data[TR_MAX_IN];
    const tr_params p = {.o.model = m, .weights = n->params, .states = n->states};
    const tr_plan_key key = {.mode = TR_MODE_INFER, .batch = SAMPLES};
    ok(tr_session_open(&(tr_session_options){.model = m,
                                             .backend = &tr_cpu_backend,
                                             .backend_ctx = cpu,
                                             .params = &p,
                                             .threads = 1,
                                             .ranks = 1,
                                             .keys = &key,
                                             .nkeys = 1},
                       &s));
    tr_plan *plan = tr_session_plan(s, TR_MODE_INFER, SAMPLES);
    const tr_graph *g = tr_plan_graph(plan);
    for (size_t i = 0; i < m->ninputs; i++) {
        const tr_tensor *t = &g->tensors[g->inputs[i]];
        data[i] = tr_alloc(TR_MEM_OTHER, t->count, sizeof(float));
        for (size_t k = 0; k < t->count; k++) {
            const float v = between(seed, 2000 + (uint32_t)i, k, -2, 2);
            if (t->dtype == TR_I32)
                ((int32_t *)data[i])[k] = (int32_t)((v + 2) / 4 * (float)m->inputs[i].ids);
            else
                ((float *)data[i])[k] = (v - mean) / std;
        }
        ok(tr_plan_set_input(plan, i, data[i]));
    }
    ok(tr_plan_run(plan, &(tr_run){.params_changed = true}));
    const tr_tensor *y = &g->tensors[g->outputs[0]];
    float *out = malloc(y->nbytes);
    *count = y->count;
    memcpy(out, tr_plan_tensor(plan, y->id), y->nbytes);
    tr_session_close(s);
    for (size_t i = 0; i < m->ninputs; i++) tr_free(data[i]);
    return out;
}

/* The largest difference, over the largest of the first one's or 1. */
static inline double apart(const float *a, const float *b, size_t count)
{
    double most = 1, difference = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i]));
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= difference)) difference = d;
    }
    return difference / most;
}

static inline double networks_apart(const tr_network *a, const tr_network *b, uint64_t seed)
{
    size_t na, nb;
    float *ya = outputs_of(a, seed, 0, 1, &na), *yb = outputs_of(b, seed, 0, 1, &nb);
    assert_int_equal(na, nb);
    const double d = apart(ya, yb, na);
    free(ya);
    free(yb);
    return d;
}

/* ---- Generated models ------------------------------------------------------------------------ */

static inline void say(generator *r, int indent, const char *fmt, ...) TR_PRINTF(3, 4);
static inline void say(generator *r, int indent, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(r->to, "%*s- ", indent, "");
    vfprintf(r->to, fmt, args);
    fputc('\n', r->to);
    va_end(args);
}

static inline void generate_images(generator *r, int indent, int layers, int depth, int *c);

/* Joined again by a sum or side by side; a tied weight now and then. */
static inline void generate_branches(generator *r, int indent, int *c)
{
    const int a = ++r->names, b = ++r->names, x = ++r->names, wide = 2 * (1 + dice(r, 3));
    say(r, indent, "relu: {name: n%d}", x);
    say(r, indent, "conv2d: {out: %d, kernel: 3, padding: 1, name: n%d, bias: %s}", wide, a,
        dice(r, 2) ? "true" : "false");
    const bool tied = dice(r, 4) == 0;
    say(r, indent, "conv2d: {out: %d, kernel: 3, padding: 1, name: n%d, from: n%d%s%d}", wide, b, x,
        tied ? ", weight_of: n" : ", groups: ", tied ? a : 1);
    const int how = dice(r, 4);
    if (how == 0) {
        say(r, indent, "add: {from: [n%d, n%d]}", a, b);
    } else if (how == 1) {
        say(r, indent, "concat: {from: [n%d, n%d%s]}", a, b,
            dice(r, 2) ? ", "
                         "input"
                       : "");
        *c = -1;
    } else if (how == 2) {
        say(r, indent, "batchnorm: {from: n%d, name: m%d}", a, a);
        say(r, indent, "add: {from: [n%d, m%d, n%d]}", b, a, a);
    } else
        say(r, indent, "mul: {from: [n%d, n%d]}", a, b);
    if (dice(r, 2)) say(r, indent, "batchnorm");
    if (*c < 0) say(r, indent, "conv2d: {out: %d, kernel: 1}", wide);
    *c = wide;
}

static inline void generate_residual(generator *r, int indent, int depth, int *c)
{
    int inner = *c;
    fprintf(r->to, "%*s- residual:\n%*sbody:\n", indent, "", indent + 4, "");
    generate_images(r, indent + 6, 1 + dice(r, 3), depth + 1, &inner);
    say(r, indent + 6, "conv2d: {out: %d, kernel: 3, padding: 1, bias: false}", *c);
    if (dice(r, 2)) say(r, indent + 6, "batchnorm");
    if (dice(r, 2)) {
        fprintf(r->to, "%*sshortcut:\n", indent + 4, "");
        say(r, indent + 6, "conv2d: {out: %d, kernel: 1, bias: false}", *c);
        say(r, indent + 6, "batchnorm");
    }
    say(r, indent, dice(r, 2) ? "relu" : "batchnorm");
}

/* Layers that keep (any, 6, 6); *c: channels, an even number. */
static inline void generate_images(generator *r, int indent, int layers, int depth, int *c)
{
    static const char *const plain[] = {
        "batchnorm",
        "batchnorm: {affine: false}",
        "batchnorm: {statistics: running}",
        "relu",
        "layernorm",
        "dropout",
        "drop_path: {p: 0.3}",
        "tanh",
        "leaky_relu",
        "gelu",
        "elu",
        "hardswish",
        "hardsigmoid",
        "softplus: {beta: 2}",
        "prelu",
        "prelu: {per_channel: true}",
        "maxpool2d: {kernel: 3, stride: 1, padding: 1}",
        "maxpool2d: {kernel: 2, stride: 1, padding: same}",
        "avgpool2d: {kernel: [2, 4], stride: 1, padding: same}",
        "avgpool2d: {kernel: 3, stride: 1, padding: 1, count_include_pad: false}",
        "avgpool2d: {kernel: 3, stride: 1, padding: 1}"};
    for (int i = 0; i < layers; i++) {
        const int what = dice(r, 12), wide = 2 * (1 + dice(r, 4));
        if (what < 2 && depth < 3)
            generate_residual(r, indent, depth, c);
        else if (what == 2 && depth == 0)
            generate_branches(r, indent, c);
        else if (what == 3)
            say(r, indent, "conv2d: {out: %d, kernel: 3, padding: 1, groups: %d}", 2 * *c, *c),
                *c *= 2;
        else if (what == 4)
            say(r, indent, "conv2d: {out: %d, kernel: 3, padding: 1, groups: 2, bias: false}",
                wide),
                *c = wide;
        else if (what == 5)
            say(r, indent, "conv2d: {out: %d, kernel: 1}", wide), *c = wide;
        else if (what == 6)
            say(r, indent, "conv2d: {out: %d, kernel: %s, bias: false}", wide,
                dice(r, 2) ? "[2, 4], padding: same" : "3, padding: 1"),
                *c = wide;
        else
            say(r, indent, "%s", plain[dice(r, (int)TR_COUNT(plain))]);
        if (dice(r, 6) == 0) { /* other sizes and orders, and back */
            static const char *const around[][2] = {
                {"pad: {padding: [1, 0, 2, 1], mode: reflect}", "adaptive_avgpool2d: {out: 6}"},
                {"pad: {padding: [1, 0, 1, 0]}", "conv2d: {out: 4, kernel: 2}"},
                {"conv_transpose2d: {out: 4, kernel: 2}", "conv2d: {out: 4, kernel: 2}"},
                {"pad: {padding: 1, value: 0.5}", "pad: {padding: -1}"},
                {"upsample: {scale: 2, mode: bilinear}", "avgpool2d: {kernel: 2}"},
                {"upsample: {size: [7, 11]}", "upsample: {size: 6, mode: bilinear}"},
                {"reshape: {dims: [-1, 12, 3]}", "reshape: {dims: [-1, 6, 6]}"},
                {"permute: {dims: [1, 3, 2]}", "permute: {dims: [1, 3, 2]}"},
                {"permute: {dims: [3, 1, 2]}", "permute: {dims: [2, 3, 1]}"}};
            const int k = dice(r, (int)TR_COUNT(around));
            for (int j = 0; j < 2; j++) {
                say(r, indent, "%s", around[k][j]);
                if (j == 0 && dice(r, 2)) say(r, indent, "relu");
                if (j == 0 && dice(r, 3) == 0) say(r, indent, "batchnorm");
            }
            if (k == 1 || k == 2) *c = 4;
        }
        if (*c > 16) say(r, indent, "conv2d: {out: 4, kernel: 1}"), *c = 4;
        if (dice(r, 3) == 0) say(r, indent, "batchnorm");
    }
}

/* What stands below `model:`; of malloc. */
static inline char *generated_model(uint64_t seed)
{
    char *text = NULL;
    size_t n;
    int c = 4;
    static const char *const rows[] = {"linear: {out: 8}",
                                       "linear: {out: 6, bias: false}",
                                       "batchnorm",
                                       "batchnorm: {affine: false, statistics: running}",
                                       "relu",
                                       "dropout",
                                       "linear: {out: 12}",
                                       "tanh",
                                       "prelu: {per_channel: true}",
                                       "softplus",
                                       "flatten"};
    generator r = {.state = seed * 77 + 5};
    r.to = open_memstream(&text, &n);
    fprintf(r.to, "  input: [4, 6, 6]\n  layers:\n");
    if (dice(&r, 3)) say(&r, 4, "conv2d: {out: 4, kernel: 3, padding: %d}", 1);
    generate_images(&r, 4, 2 + dice(&r, 6), 0, &c);
    if (dice(&r, 2)) say(&r, 4, "conv2d: {out: 6, kernel: 3, stride: 2}");
    if (dice(&r, 3) == 0) say(&r, 4, dice(&r, 2) ? "global_avgpool" : "avgpool2d: {kernel: 2}");
    say(&r, 4, "flatten");
    for (int i = dice(&r, 5); i > 0; i--) say(&r, 4, "%s", rows[dice(&r, (int)TR_COUNT(rows))]);
    say(&r, 4, "linear: {out: 3}");
    if (dice(&r, 4) == 0) say(&r, 4, "batchnorm");
    fprintf(r.to, "  loss: mse\n");
    fclose(r.to);
    return text;
}

#endif
