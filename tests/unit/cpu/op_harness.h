/* Runs one op of the CPU backend on a graph built by hand, for tests.
 *
 *     harness h = h_open("conv2d", TR_PRECISION_BF16, true);
 *     int x = h_in(&h, h_activation(&h), 4, (int64_t[]){2, 3, 8, 8}); // or h_param, h_grad, ...
 *     int y = h_out(&h, ...);
 *     h_fill(&h, x, 1);                   // seeded values in [-1, 1), rounded to the tensor's type
 *     h_prepare(&h, &attrs, TR_ACT_NONE); // prepare, bind, pack
 *     h_run(&h, false);
 *     double *got = h_values(&h, y);      // logical order (N, C, H, W), to be freed by tr_free
 *     h_close(&h);
 *
 * Values are given and read in logical order; 4-D activations are stored channels-last. Outputs and
 * the workspace hold NaN bytes before a run that does not accumulate, so that nothing stale can
 * pass. */
#ifndef TR_TEST_OP_HARNESS_H
#define TR_TEST_OP_HARNESS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/internal.h"
#include "tests/unit/activate.h"

/* A tr_cpu_isa_level: the whole test runs at most there; 0: the best there is. */
#ifndef TEST_ISA
#define TEST_ISA 0
#endif

#define H_TENSORS (TR_MAX_IN + TR_MAX_OUT)

typedef struct {
    void *ctx, *team;
    tr_graph graph;
    tr_op op;
    tr_tensor tensors[H_TENSORS];
    void *data[H_TENSORS];
    tr_kernel *kernel;
    tr_binding binding;
    tr_run run;
} harness;

static inline const tr_op_def *h_def(const char *name)
{
    for (size_t i = 0; i < tr_op_count(); i++)
        if (strcmp(tr_op_def_name(tr_op_at(i)), name) == 0) return tr_op_at(i);
    fail_msg("no op named %s", name);
    return NULL;
}

static inline harness h_open_with(const char *op, tr_precision precision, bool train, int threads)
{
    harness h;
    memset(&h, 0, sizeof h);
    tr_backend_options o = {.isa = TEST_ISA};
    assert_int_equal(tr_cpu_backend.open(&o, &h.ctx), TR_OK);
    assert_int_equal(tr_team_open(&tr_cpu_backend, h.ctx, threads, &h.team), TR_OK);
    h.graph.mode = train ? TR_MODE_TRAIN : TR_MODE_EVALUATE;
    h.graph.precision = precision;
    h.op.def = h_def(op);
    snprintf(h.op.layer, sizeof h.op.layer, "layer1");
    h.op.bucket_ready = -1;
    h.run.seed = 1;
    h.run.loss_scale = 1;
    h.run.last = h.run.params_changed = true;
    return h;
}

static inline harness h_open(const char *op, tr_precision precision, bool train)
{
    return h_open_with(op, precision, train, 1);
}

/* The type of activations at the graph's precision. */
static inline tr_dtype h_activation(const harness *h)
{
    return tr_precision_dtype(h->graph.precision);
}

static inline int h_tensor(harness *h, tr_role role, tr_dtype dtype, int ndim, const int64_t *dims)
{
    int id = (int)h->graph.ntensors++;
    tr_tensor *t = &h->tensors[id];
    t->id = id;
    snprintf(t->name, sizeof t->name, "t%d", id);
    t->role = role;
    t->index = id;
    t->dtype = dtype;
    t->ndim = ndim;
    t->count = 1;
    t->alias = -1;
    const bool plain = role == TR_ROLE_PARAM || role == TR_ROLE_GRAD || role == TR_ROLE_STATE;
    if (!plain && ndim == 4) t->layout = TR_LAYOUT_CHANNELS_LAST; /* images; h_plain: otherwise */
    for (int i = 0; i < ndim; i++) {
        t->dims[i] = dims[i];
        t->count *= (size_t)dims[i];
    }
    t->nbytes = t->count * tr_dtype_size(dtype);
    h->data[id] = tr_alloc(TR_MEM_OTHER, t->nbytes, 1);
    assert_non_null(h->data[id]);
    if ((role == TR_ROLE_ACTIVATION || role == TR_ROLE_INPUT) && h->graph.batch == 0)
        h->graph.batch = dims[0];
    return id;
}

static inline int h_in_role(harness *h, tr_role role, tr_dtype dtype, int ndim, const int64_t *dims)
{
    int id = h_tensor(h, role, dtype, ndim, dims);
    h->op.in[h->op.nin++] = id;
    return id;
}

static inline int h_out_role(harness *h, tr_role role, tr_dtype dtype, int ndim,
                             const int64_t *dims)
{
    int id = h_tensor(h, role, dtype, ndim, dims);
    h->op.out[h->op.nout++] = id;
    return id;
}

static inline int h_in(harness *h, tr_dtype dtype, int ndim, const int64_t *dims)
{
    return h_in_role(h, TR_ROLE_ACTIVATION, dtype, ndim, dims);
}

static inline int h_out(harness *h, tr_dtype dtype, int ndim, const int64_t *dims)
{
    return h_out_role(h, TR_ROLE_ACTIVATION, dtype, ndim, dims);
}

static inline int h_param(harness *h, int ndim, const int64_t *dims)
{
    return h_in_role(h, TR_ROLE_PARAM, TR_F32, ndim, dims);
}

static inline int h_grad(harness *h, int ndim, const int64_t *dims)
{
    return h_out_role(h, TR_ROLE_GRAD, TR_F32, ndim, dims);
}

static inline void h_absent_in(harness *h)
{
    h->op.in[h->op.nin++] = -1;
}

static inline void h_absent_out(harness *h)
{
    h->op.out[h->op.nout++] = -1;
}

/* Stored as it is written, whatever its rank. */
static inline int h_plain(harness *h, int id)
{
    h->tensors[id].layout = TR_LAYOUT_PLAIN;
    return id;
}

/* Where logical element `i` of a tensor lies. */
static inline size_t h_stored(const tr_tensor *t, size_t i)
{
    if (t->layout == TR_LAYOUT_PLAIN) return i;
    size_t c = (size_t)t->dims[1], area = (size_t)(t->dims[2] * t->dims[3]);
    size_t n = i / (c * area), ch = i / area % c, at = i % area;
    return (n * area + at) * c + ch;
}

static inline double h_get(const harness *h, int id, size_t i)
{
    const tr_tensor *t = &h->tensors[id];
    const void *p = h->data[id];
    size_t s = h_stored(t, i);
    switch (t->dtype) {
    case TR_F32:
        return ((const float *)p)[s];
    case TR_BF16:
        return tr_bf16_to_f32(((const tr_bf16 *)p)[s]);
    case TR_F16:
        return tr_f16_to_f32(((const tr_f16 *)p)[s]);
    case TR_F64:
        return ((const double *)p)[s];
    case TR_I32:
        return ((const int32_t *)p)[s];
    case TR_U8:
        return ((const uint8_t *)p)[s];
    default:
        fail_msg("type %s", tr_dtype_name(t->dtype));
    }
    return 0;
}

static inline void h_put(harness *h, int id, size_t i, double v)
{
    const tr_tensor *t = &h->tensors[id];
    void *p = h->data[id];
    size_t s = h_stored(t, i);
    switch (t->dtype) {
    case TR_F32:
        ((float *)p)[s] = (float)v;
        break;
    case TR_BF16:
        ((tr_bf16 *)p)[s] = tr_f32_to_bf16((float)v);
        break;
    case TR_F16:
        ((tr_f16 *)p)[s] = tr_f32_to_f16((float)v);
        break;
    case TR_F64:
        ((double *)p)[s] = v;
        break;
    case TR_I32:
        ((int32_t *)p)[s] = (int32_t)v;
        break;
    case TR_U8:
        ((uint8_t *)p)[s] = (uint8_t)v;
        break;
    default:
        fail_msg("type %s", tr_dtype_name(t->dtype));
    }
}

static inline void h_fill_range(harness *h, int id, uint32_t seed, double low, double high)
{
    for (size_t i = 0; i < h->tensors[id].count; i++) {
        tr_philox r = tr_philox_at(seed, TR_RNG_TEST, 0, i, 0);
        h_put(h, id, i, low + (high - low) * tr_uniform(r.v[0]));
    }
}

static inline void h_fill(harness *h, int id, uint32_t seed)
{
    h_fill_range(h, id, seed, -1, 1);
}

/* All values in logical order; free with tr_free. */
static inline double *h_values(const harness *h, int id)
{
    size_t n = h->tensors[id].count;
    double *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = h_get(h, id, i);
    return v;
}

static inline void h_prepare(harness *h, const void *attrs, tr_act act)
{
    h->graph.tensors = h->tensors;
    h->graph.ops = &h->op;
    h->graph.nops = 1;
    h->op.attrs = attrs;
    h->op.act = act;
    tr_status st = tr_cpu_backend.kernels->prepare(h->team, &h->graph, &h->op, &h->kernel);
    if (st != TR_OK) fail_msg("prepare: %s", tr_last_error()->text);
    for (int i = 0; i < h->op.nin; i++)
        h->binding.in[i] = h->op.in[i] < 0 ? NULL : h->data[h->op.in[i]];
    for (int i = 0; i < h->op.nout; i++)
        h->binding.out[i] = h->op.out[i] < 0 ? NULL : h->data[h->op.out[i]];
    h->binding.workspace = tr_alloc(TR_MEM_WORKSPACE, h->kernel->workspace, 1);
    assert_non_null(h->binding.workspace);
    for (int i = 0; i < h->kernel->npacked; i++) {
        h->binding.packed[i] = tr_alloc(TR_MEM_PACKED, h->kernel->packed[i].nbytes, 1);
        assert_non_null(h->binding.packed[i]);
    }
    assert_int_equal(h->kernel->bind(h->kernel, &h->binding), TR_OK);
}

/* The kernel says at its preparation that it cannot. */
static inline void h_refused(harness *h, const void *attrs)
{
    h->graph.tensors = h->tensors;
    h->op.attrs = attrs;
    assert_int_equal(tr_cpu_backend.kernels->prepare(h->team, &h->graph, &h->op, &h->kernel),
                     TR_UNSUPPORTED);
    h->kernel = NULL;
}

/* Packs (as after an update) and runs; allocates nothing, which is checked. */
static inline void h_run(harness *h, bool accumulate)
{
    if (!accumulate)
        for (int i = 0; i < h->op.nout; i++) {
            int id = h->op.out[i];
            bool in_place = false;
            for (int j = 0; id >= 0 && j < h->op.nin; j++)
                in_place |= h->op.in[j] >= 0 && h->data[h->op.in[j]] == h->data[id];
            if (id >= 0 && !in_place && h->tensors[id].role != TR_ROLE_STATE)
                memset(h->data[id], 0xff, h->tensors[id].nbytes);
        }
    memset(h->binding.workspace, 0xff, h->kernel->workspace);
    h->run.accumulate = accumulate;
    uint64_t calls = tr_mem_calls();
    for (int i = 0; i < h->kernel->npacked; i++)
        if (h->kernel->pack(h->kernel, i) != TR_OK) fail_msg("pack: %s", tr_last_error()->text);
    const tr_status st = h->kernel->run(h->kernel, &h->run);
    if (st != TR_OK) fail_msg("run: %s", tr_last_error()->text);
    assert_int_equal(tr_mem_calls() - calls, 0);
}

static inline void h_close(harness *h)
{
    if (h->kernel) h->kernel->close(h->kernel);
    for (size_t i = 0; i < h->graph.ntensors; i++) {
        bool shared = false; /* a test may let two tensors share their bytes */
        for (size_t j = 0; j < i; j++) shared |= h->data[j] == h->data[i];
        if (!shared) tr_free(h->data[i]);
    }
    tr_free(h->binding.workspace);
    for (int i = 0; i < TR_MAX_PACKED; i++) tr_free(h->binding.packed[i]);
    tr_team_close(&tr_cpu_backend, h->team);
    tr_cpu_backend.close(h->ctx);
    memset(h, 0, sizeof *h);
}

/* The values of a tensor that holds sums of `terms` products in float32: want[i] within the bound
 * terms * 2^-24 * size[i] (size: the sum of the products' absolute values), and one rounding to the
 * tensor's type. `slack`: absolute, for approximated functions on top. */
static inline void h_check_sums(const harness *h, int id, const double *want, const double *size,
                                double terms, double slack, const char *what)
{
    const tr_tensor *t = &h->tensors[id];
    const double unit = t->dtype == TR_BF16 ? 0x1p-8 : t->dtype == TR_F16 ? 0x1p-11 : 0x1p-24;
    for (size_t i = 0; i < t->count; i++) {
        double got = h_get(h, id, i);
        double bound = (terms + 2) * 0x1p-24 * size[i] * 1.2 + unit * fabs(want[i]) + slack;
        if (!(fabs(got - want[i]) <= bound * (1 + unit)))
            fail_msg("%s of %s%s%s: element %zu is %.9g, expected %.9g within %.3g", what,
                     h->kernel->impl, h->kernel->choice ? ", " : "",
                     h->kernel->choice ? h->kernel->choice : "", i, got, want[i], bound);
    }
}

/* Sum of the products of two tensors' elements. */
static inline double h_dot(const double *a, const double *b, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

/* Every |got - want| <= tolerance * (1 + scale), with scale[i] (NULL: |want|) the size of the
 * terms. */
static inline void h_close_to(const double *got, const double *want, const double *scale, size_t n,
                              double tolerance, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        double s = scale ? scale[i] : fabs(want[i]);
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + s)))
            fail_msg("%s: element %zu is %.9g, expected %.9g (tolerance %.3g)", what, i, got[i],
                     want[i], tolerance * (1 + s));
    }
}

#endif
