/* One linear layer on the device: its tensors, an op on them at a time, and what comes out beside
 * double arithmetic. */
#ifndef TR_TEST_LINEAR_HARNESS_H
#define TR_TEST_LINEAR_HARNESS_H

#include "runtime/graph/ops.h"
#include "tests/unit/activate.h"
#include "tests/unit/cuda/blas_harness.h"

typedef struct {
    int64_t rows, in, out;
} shape;

/* ZX: what an activation is applied to whose gradient is dx. */
enum { X, WEIGHT, BIAS, DY, Y, DX, DWEIGHT, DBIAS, ZX, TENSORS };

/* One layer's tensors, and one op on them at a time. */
typedef struct {
    tr_cuda *cuda;
    shape s;
    tr_graph graph;
    tr_tensor tensors[TENSORS];
    array data[TENSORS];
    tr_linear_attrs attrs;
    tr_op op;
    tr_kernel *kernel;
    tr_binding binding;
} layer;

static inline void add_tensor(layer *l, int id, tr_role role, tr_dtype type, int ndim, int64_t a,
                              int64_t d, int64_t c, uint32_t seed)
{
    tr_tensor *t = &l->tensors[id];
    *t = (tr_tensor){.id = id, .role = role, .index = id, .dtype = type, .ndim = ndim, .alias = -1};
    t->dims[0] = a;
    t->dims[1] = d;
    t->dims[2] = c;
    t->count = 1;
    for (int i = 0; i < ndim; i++) t->count *= (size_t)t->dims[i];
    t->nbytes = t->count * tr_dtype_size(type);
    l->data[id] = array_open(l->cuda, type, t->count, seed);
}

/* ndim 3: half the rows twice, where they are even. */
static inline layer layer_open(tr_cuda *cuda, shape s, tr_dtype type, bool bias, int ndim)
{
    layer l = {.cuda = cuda, .s = s, .attrs = {.out = s.out, .bias = bias}};
    const bool deep = ndim == 3 && s.rows % 2 == 0;
    const int64_t first = deep ? 2 : s.rows, second = s.rows / 2;
    const int n = deep ? 3 : 2;
    const int wide[] = {X, DX, ZX}, high[] = {Y, DY};
    for (int i = 0; i < 3; i++)
        add_tensor(&l, wide[i], TR_ROLE_ACTIVATION, type, n, first, deep ? second : s.in, s.in,
                   (uint32_t[]){1, 0, 7}[i]);
    for (int i = 0; i < 2; i++)
        add_tensor(&l, high[i], TR_ROLE_ACTIVATION, type, n, first, deep ? second : s.out, s.out,
                   i == 1 ? 2 : 0);
    add_tensor(&l, WEIGHT, TR_ROLE_PARAM, TR_F32, 2, s.out, s.in, 0, 3);
    add_tensor(&l, BIAS, TR_ROLE_PARAM, TR_F32, 1, s.out, 0, 0, 4);
    add_tensor(&l, DWEIGHT, TR_ROLE_GRAD, TR_F32, 2, s.out, s.in, 0, 5);
    add_tensor(&l, DBIAS, TR_ROLE_GRAD, TR_F32, 1, s.out, 0, 0, 6);
    l.graph = (tr_graph){.batch = s.rows, .ntensors = TENSORS};
    return l;
}

static inline void layer_prepare(layer *l, tr_cuda_prepare_fn *fn, tr_act act, int nin,
                                 const int *in, int nout, const int *out)
{
    l->graph.tensors = l->tensors;
    l->graph.ops = &l->op;
    l->graph.nops = 1;
    l->op = (tr_op){.nin = nin, .nout = nout, .attrs = &l->attrs, .act = act, .bucket_ready = -1};
    for (int i = 0; i < nin; i++) l->op.in[i] = in[i];
    for (int i = 0; i < nout; i++) l->op.out[i] = out[i];
    assert_ok(fn(l->cuda, &l->graph, &l->op, &l->kernel));
    memset(&l->binding, 0, sizeof l->binding);
    for (int i = 0; i < nin; i++) l->binding.in[i] = in[i] < 0 ? NULL : l->data[in[i]].data;
    for (int i = 0; i < nout; i++) l->binding.out[i] = out[i] < 0 ? NULL : l->data[out[i]].data;
    if (l->kernel->workspace)
        l->binding.workspace = b->memory->alloc(l->cuda, TR_MEM_WORKSPACE, l->kernel->workspace);
    for (int i = 0; i < l->kernel->npacked; i++)
        l->binding.packed[i] =
            b->memory->alloc(l->cuda, TR_MEM_PACKED, l->kernel->packed[i].nbytes);
    assert_ok(l->kernel->bind(l->kernel, &l->binding));
}

static inline void layer_run(layer *l, bool accumulate)
{
    const tr_run run = {.loss_scale = 1, .accumulate = accumulate, .last = true};
    const uint64_t calls = tr_mem_calls();
    for (int i = 0; i < l->kernel->npacked; i++) assert_ok(l->kernel->pack(l->kernel, i));
    assert_ok(l->kernel->run(l->kernel, &run));
    assert_int_equal(tr_mem_calls() - calls, 0);
    for (int i = 0; i < l->op.nout; i++)
        if (l->op.out[i] >= 0) array_fetch(l->cuda, &l->data[l->op.out[i]]);
}

static inline void layer_done(layer *l)
{
    if (l->kernel) l->kernel->close(l->kernel);
    l->kernel = NULL;
    b->memory->free(l->cuda, l->binding.workspace);
    for (int i = 0; i < TR_MAX_PACKED; i++) b->memory->free(l->cuda, l->binding.packed[i]);
    memset(&l->binding, 0, sizeof l->binding);
}

static inline void layer_close(layer *l)
{
    layer_done(l);
    for (int i = 0; i < TENSORS; i++) array_close(l->cuda, &l->data[i]);
}

static inline void prepare_forward(layer *l, tr_act act)
{
    layer_prepare(l, tr_cuda_linear, act, 3, (int[]){X, WEIGHT, l->attrs.bias ? BIAS : -1}, 1,
                  (int[]){Y});
}

/* The input's gradient times an activation's derivative. */
static inline void prepare_gelu_gradient(layer *l)
{
    layer_prepare(l, tr_cuda_linear_grad_input, TR_ACT_GELU_TANH, 3, (int[]){DY, WEIGHT, ZX}, 1,
                  (int[]){DX});
}

static inline void prepare_grad_weight(layer *l)
{
    layer_prepare(l, tr_cuda_linear_grad_weight, TR_ACT_NONE, 2, (int[]){X, DY}, 2,
                  (int[]){DWEIGHT, l->attrs.bias ? DBIAS : -1});
}

static inline void check(const array *a, size_t i, double want, double terms, double size,
                         double slack, const char *what)
{
    const double bound = 1.2 * (size + 2) * (terms + 4) * 0x1p-24 + unit_of(a->type) * fabs(want) +
                         slack +
                         (a->type == TR_F16 ? 0x1p-25 : 0); /* below 2^-14 halves are denormal */
    if (!(fabs(a->value[i] - want) <= bound))
        fail_msg("%s: element %zu is %.9g, expected %.9g within %.3g", what, i, a->value[i], want,
                 bound);
}

static inline void check_forward(const layer *l, tr_act act)
{
    for (int64_t r = 0; r < l->s.rows; r++)
        for (int64_t j = 0; j < l->s.out; j++) {
            double sum = l->attrs.bias ? l->data[BIAS].value[j] : 0, size = fabs(sum);
            for (int64_t i = 0; i < l->s.in; i++) {
                const double p =
                    l->data[X].value[r * l->s.in + i] * l->data[WEIGHT].value[j * l->s.in + i];
                sum += p;
                size += fabs(p);
            }
            /* The library's tanh may be the hardware's, with an error of 2^-11. */
            const double slack = act == TR_ACT_NONE || act == TR_ACT_RELU ? 0
                                 : act == TR_ACT_GELU_TANH ? 0x1p-11 * (1 + fabs(sum))
                                                           : 4e-7 * (1 + fabs(sum));
            char what[160];
            snprintf(what, sizeof what, "%lld x %lld x %lld by %s, %s", (long long)l->s.rows,
                     (long long)l->s.out, (long long)l->s.in, l->kernel->impl,
                     l->kernel->choice ? l->kernel->choice : "?");
            check(&l->data[Y], (size_t)(r * l->s.out + j), activate(act, sum), (double)l->s.in,
                  size, slack, what);
        }
}

/* gelu: times its derivative at ZX, perhaps after a rounding. */
static inline void check_dx(const layer *l, bool gelu)
{
    for (int64_t r = 0; r < l->s.rows; r++)
        for (int64_t i = 0; i < l->s.in; i++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < l->s.out; j++) {
                const double p =
                    l->data[DY].value[r * l->s.out + j] * l->data[WEIGHT].value[j * l->s.in + i];
                sum += p;
                size += fabs(p);
            }
            const size_t at = (size_t)(r * l->s.in + i);
            const double want = gelu ? sum * gelu_tanh_slope(l->data[ZX].value[at]) : sum;
            check(&l->data[DX], at, want, (double)l->s.out, size,
                  gelu ? 0x1p-10 * (1 + fabs(sum)) + unit_of(l->data[DX].type) * fabs(want) : 0,
                  gelu ? "dx by the activation" : "dx");
        }
}

static inline void check_grad_input(const layer *l)
{
    check_dx(l, false);
}

/* `times`: how often the gradient was added, and `before` what was there. */
static inline void check_grad_weight(const layer *l, double times, const double *before,
                                     const double *bias_before)
{
    for (int64_t j = 0; j < l->s.out; j++) {
        double column = 0, length = 0;
        for (int64_t r = 0; r < l->s.rows; r++) {
            column += l->data[DY].value[r * l->s.out + j];
            length += fabs(l->data[DY].value[r * l->s.out + j]);
        }
        if (l->attrs.bias)
            check(&l->data[DBIAS], (size_t)j, times * column + (bias_before ? bias_before[j] : 0),
                  (double)l->s.rows, times * length + 2, 0, "dbias");
        for (int64_t i = 0; i < l->s.in; i++) {
            double sum = 0, size = 0;
            for (int64_t r = 0; r < l->s.rows; r++) {
                const double p =
                    l->data[DY].value[r * l->s.out + j] * l->data[X].value[r * l->s.in + i];
                sum += p;
                size += fabs(p);
            }
            const size_t at = (size_t)(j * l->s.in + i);
            check(&l->data[DWEIGHT], at, times * sum + (before ? before[at] : 0), (double)l->s.rows,
                  times * size + 2, 0, "dweight");
        }
    }
}

static inline double *copy_of(const array *a)
{
    double *v = malloc((a->count + 1) * sizeof *v);
    memcpy(v, a->value, a->count * sizeof *v);
    return v;
}

#endif
