/* linear, its input and its weight gradient on the device: against double arithmetic over shapes,
 * types and activations; NaN; accumulation; what is packed and shared; where the library lacks
 * epilogues. */
#include "runtime/graph/ops.h"
#include "tests/unit/activate.h"
#include "tests/unit/cuda/blas_harness.h"

typedef struct {
    int64_t rows, in, out;
} shape;

static const shape shapes[] = {{1, 1, 1},    {1, 5, 3},   {3, 17, 5},    {2, 3, 1},    {8, 64, 32},
                               {64, 33, 48}, {7, 24, 64}, {300, 16, 17}, {130, 8, 264}};
static const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};

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

static void add_tensor(layer *l, int id, tr_role role, tr_dtype type, int ndim, int64_t a,
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
static layer layer_open(tr_cuda *cuda, shape s, tr_dtype type, bool bias, int ndim)
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

static void layer_prepare(layer *l, tr_cuda_prepare_fn *fn, tr_act act, int nin, const int *in,
                          int nout, const int *out)
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

static void layer_run(layer *l, bool accumulate)
{
    const tr_run run = {.loss_scale = 1, .accumulate = accumulate, .last = true};
    const uint64_t calls = tr_mem_calls();
    for (int i = 0; i < l->kernel->npacked; i++) assert_ok(l->kernel->pack(l->kernel, i));
    assert_ok(l->kernel->run(l->kernel, &run));
    assert_int_equal(tr_mem_calls() - calls, 0);
    for (int i = 0; i < l->op.nout; i++)
        if (l->op.out[i] >= 0) array_fetch(l->cuda, &l->data[l->op.out[i]]);
}

static void layer_done(layer *l)
{
    if (l->kernel) l->kernel->close(l->kernel);
    l->kernel = NULL;
    b->memory->free(l->cuda, l->binding.workspace);
    for (int i = 0; i < TR_MAX_PACKED; i++) b->memory->free(l->cuda, l->binding.packed[i]);
    memset(&l->binding, 0, sizeof l->binding);
}

static void layer_close(layer *l)
{
    layer_done(l);
    for (int i = 0; i < TENSORS; i++) array_close(l->cuda, &l->data[i]);
}

static void prepare_forward(layer *l, tr_act act)
{
    layer_prepare(l, tr_cuda_linear, act, 3, (int[]){X, WEIGHT, l->attrs.bias ? BIAS : -1}, 1,
                  (int[]){Y});
}

/* The input's gradient times an activation's derivative. */
static void prepare_gelu_gradient(layer *l)
{
    layer_prepare(l, tr_cuda_linear_grad_input, TR_ACT_GELU_TANH, 3, (int[]){DY, WEIGHT, ZX}, 1,
                  (int[]){DX});
}

static void prepare_grad_weight(layer *l)
{
    layer_prepare(l, tr_cuda_linear_grad_weight, TR_ACT_NONE, 2, (int[]){X, DY}, 2,
                  (int[]){DWEIGHT, l->attrs.bias ? DBIAS : -1});
}

static void check(const array *a, size_t i, double want, double terms, double size, double slack,
                  const char *what)
{
    const double bound = 1.2 * (size + 2) * (terms + 4) * 0x1p-24 + unit_of(a->type) * fabs(want) +
                         slack +
                         (a->type == TR_F16 ? 0x1p-25 : 0); /* below 2^-14 halves are denormal */
    if (!(fabs(a->value[i] - want) <= bound))
        fail_msg("%s: element %zu is %.9g, expected %.9g within %.3g", what, i, a->value[i], want,
                 bound);
}

static void check_forward(const layer *l, tr_act act)
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
static void check_dx(const layer *l, bool gelu)
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

static void check_grad_input(const layer *l)
{
    check_dx(l, false);
}

/* `times`: how often the gradient was added, and `before` what was there. */
static void check_grad_weight(const layer *l, double times, const double *before,
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

static double *copy_of(const array *a)
{
    double *v = malloc((a->count + 1) * sizeof *v);
    memcpy(v, a->value, a->count * sizeof *v);
    return v;
}

/* The three ops of one layer. */
static void check_layer(tr_cuda *cuda, shape s, tr_dtype type, bool bias, tr_act act, int ndim)
{
    layer l = layer_open(cuda, s, type, bias, ndim);
    prepare_forward(&l, act);
    layer_run(&l, false);
    check_forward(&l, act);
    layer_done(&l);
    layer_prepare(&l, tr_cuda_linear_grad_input, TR_ACT_NONE, 2, (int[]){DY, WEIGHT}, 1,
                  (int[]){DX});
    layer_run(&l, false);
    check_grad_input(&l);
    layer_done(&l);
    double *before = copy_of(&l.data[DWEIGHT]), *bias_before = copy_of(&l.data[DBIAS]);
    prepare_grad_weight(&l);
    layer_run(&l, true);
    check_grad_weight(&l, 1, before, bias_before);
    layer_run(&l, false);
    check_grad_weight(&l, 1, NULL, NULL);
    layer_run(&l, true);
    check_grad_weight(&l, 2, NULL, NULL);
    free(before);
    free(bias_before);
    layer_close(&l);
}

/* The derivative rides on the product where it can. */
static void check_gelu_gradient(tr_cuda *cuda, shape s, tr_dtype type, int ndim)
{
    layer l = layer_open(cuda, s, type, true, ndim);
    prepare_gelu_gradient(&l);
#ifndef TR_REAL_GPU
    if (!getenv("FAKEGPU_CUBLASLT_WITHOUT"))
        assert_int_equal(strstr(l.kernel->impl, "own") != NULL, s.in % 8 != 0);
#endif
    layer_run(&l, false);
    check_dx(&l, true);
    layer_close(&l);
}

static void all_layers(tr_backend_options o)
{
    tr_cuda *cuda = open_as(o);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (size_t s = 0; s < TR_COUNT(shapes); s++)
            check_gelu_gradient(cuda, shapes[s], types[t], 2 + (int)(s + t) % 2);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (size_t s = 0; s < TR_COUNT(shapes); s++)
            for (int bias = 0; bias < 2; bias++)
                check_layer(cuda, shapes[s], types[t], bias, s % 2 ? TR_ACT_RELU : TR_ACT_NONE,
                            2 + (int)(s + t) % 2);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (int act = TR_ACT_NONE; act <= TR_ACT_TANH; act++)
            for (int bias = 0; bias < 2; bias++)
                check_layer(cuda, shapes[act % 4 + 2], types[t], bias, (tr_act)act, 2);
    b->close(cuda);
}

static void test_against_double(void **state)
{
    (void)state;
    all_layers((tr_backend_options){.workspace = 4 << 20});
}

static void test_deterministic(void **state)
{
    (void)state;
    all_layers((tr_backend_options){.workspace = 4 << 20, .deterministic = true});
}

static void test_without_workspace(void **state)
{
    (void)state;
    all_layers((tr_backend_options){.workspace = 0});
}

#ifndef TR_REAL_GPU
static void test_without_epilogues(void **state)
{
    (void)state;
    static const char *const without[] = {"bias", "gelu", "aux", "bgrad", "bias gelu aux bgrad"};
    for (size_t i = 0; i < TR_COUNT(without); i++) {
        setenv("FAKEGPU_CUBLASLT_WITHOUT", without[i], 1);
        all_layers((tr_backend_options){.workspace = 4 << 20});
    }
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
}

/* What is said to have been chosen, and that it is. */
static void test_impl(void **state)
{
    (void)state;
    static const struct {
        tr_dtype type;
        tr_act act;
        const char *without, *impl;
    } cases[] = {
        {TR_F32, TR_ACT_NONE, "", "cuBLASLt bias"},
        {TR_BF16, TR_ACT_RELU, "", "cuBLASLt bias, own activation"},
        {TR_BF16, TR_ACT_GELU_TANH, "", "cuBLASLt bias+gelu"},
        {TR_F32, TR_ACT_GELU, "", "cuBLASLt bias, own activation"},
        {TR_F32, TR_ACT_GELU_TANH, "gelu", "cuBLASLt bias, own activation"},
        {TR_F32, TR_ACT_NONE, "bias", "cuBLASLt, own bias"},
        {TR_F16, TR_ACT_SILU, "bias", "cuBLASLt, own bias and activation"},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        setenv("FAKEGPU_CUBLASLT_WITHOUT", cases[i].without, 1);
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 1 << 20});
        layer l = layer_open(cuda, (shape){8, 16, 16}, cases[i].type, true, 2);
        prepare_forward(&l, cases[i].act);
        assert_string_equal(l.kernel->impl, cases[i].impl);
        layer_close(&l);
        b->close(cuda);
    }
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        tr_cuda *cuda =
            open_as((tr_backend_options){.workspace = 1 << 20, .deterministic = deterministic});
        layer l = layer_open(cuda, (shape){8, 16, 16}, TR_BF16, true, 2);
        prepare_grad_weight(&l);
        assert_string_equal(l.kernel->impl,
                            deterministic ? "cuBLASLt, own column sum" : "cuBLASLt bias gradient");
        layer_close(&l);
        b->close(cuda);
    }
}
#endif

/* NaN passes through every activation. */
static void test_nan(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20});
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (int act = TR_ACT_NONE; act <= TR_ACT_TANH; act++) {
            layer l = layer_open(cuda, (shape){3, 16, 8}, types[t], true, 2);
            l.data[X].value[16 + 5] = (double)NAN;
            array_send(cuda, &l.data[X]);
            prepare_forward(&l, (tr_act)act);
            layer_run(&l, false);
            for (size_t i = 0; i < l.data[Y].count; i++)
                if (isnan(l.data[Y].value[i]) != (i / 8 == 1))
                    fail_msg("activation %d, element %zu: %g", act, i, l.data[Y].value[i]);
            layer_close(&l);
        }
    b->close(cuda);
}

/* And into the gradient: of the row that has one, and of the element that is one. */
static void test_gradient_nan(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20});
    for (size_t t = 0; t < TR_COUNT(types); t++) {
        layer l = layer_open(cuda, (shape){3, 16, 8}, types[t], true, 2);
        l.data[DY].value[8 + 3] = l.data[ZX].value[7] = (double)NAN;
        array_send(cuda, &l.data[DY]);
        array_send(cuda, &l.data[ZX]);
        prepare_gelu_gradient(&l);
        layer_run(&l, false);
        for (size_t i = 0; i < l.data[DX].count; i++)
            assert_int_equal(isnan(l.data[DX].value[i]) != 0, i / 16 == 1 || i == 7);
        layer_close(&l);
    }
    b->close(cuda);
}

/* One 16-bit copy of the weights for the forward and the backward product, one of the bias, and none
 * in float32. */
static void test_packed(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20});
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (int bias = 0; bias < 2; bias++) {
            layer f = layer_open(cuda, (shape){4, 5, 7}, types[t], bias, 2);
            layer g = layer_open(cuda, (shape){4, 5, 7}, types[t], bias, 2);
            prepare_forward(&f, TR_ACT_NONE);
            layer_prepare(&g, tr_cuda_linear_grad_input, TR_ACT_NONE, 2, (int[]){DY, WEIGHT}, 1,
                          (int[]){DX});
            const tr_kernel *p = f.kernel, *q = g.kernel;
            if (types[t] == TR_F32) {
                assert_int_equal(p->npacked + q->npacked, 0);
                assert_null(p->pack);
            } else {
                const tr_packing *a = &p->packed[0], *c = &q->packed[0];
                assert_int_equal(p->npacked, 1 + bias);
                assert_int_equal(q->npacked, 1);
                assert_int_equal(a->nbytes, 8 * 5 * 2); /* a row of zeros behind 7 */
                assert_int_equal(c->nbytes, a->nbytes);
                assert_int_equal(a->param, WEIGHT);
                assert_int_equal(c->param, WEIGHT);
                assert_int_equal(a->format_size, c->format_size);
                assert_memory_equal(a->format, c->format, a->format_size);
                if (bias) assert_int_equal(p->packed[1].param, BIAS);
                if (bias) assert_int_equal(p->packed[1].nbytes, 8 * 2);
                /* The backward product reads what the forward one packed. */
                assert_ok(f.kernel->pack(f.kernel, 0));
                void *own = g.binding.packed[0];
                g.binding.packed[0] = f.binding.packed[0];
                assert_ok(g.kernel->bind(g.kernel, &g.binding));
                const tr_run run = {.loss_scale = 1};
                assert_ok(g.kernel->run(g.kernel, &run));
                array_fetch(cuda, &g.data[DX]);
                check_grad_input(&g);
                g.binding.packed[0] = own;
            }
            layer_close(&f);
            layer_close(&g);
        }
    b->close(cuda);
}

static void test_rebind(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20});
    layer l = layer_open(cuda, (shape){6, 10, 9}, TR_BF16, true, 2);
    array other = array_open(cuda, TR_BF16, l.data[X].count, 77);
    prepare_forward(&l, TR_ACT_RELU);
    assert_ok(l.kernel->rebind(l.kernel, 0, other.data));
    memcpy(l.data[X].value, other.value, other.count * sizeof *other.value);
    layer_run(&l, false);
    check_forward(&l, TR_ACT_RELU);
    layer_done(&l);
    prepare_grad_weight(&l);
    assert_ok(l.kernel->rebind(l.kernel, 0, other.data));
    layer_run(&l, false);
    check_grad_weight(&l, 1, NULL, NULL);
    array_close(cuda, &other);
    layer_close(&l);
    b->close(cuda);
}

/* The same bits from run to run, and in a context of its own. */
static void test_same_bits(void **state)
{
    (void)state;
    double *first[2] = {NULL, NULL};
    for (int round = 0; round < 3; round++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .deterministic = true});
        layer l = layer_open(cuda, (shape){300, 33, 48}, TR_BF16, true, 2);
        prepare_grad_weight(&l);
        layer_run(&l, false);
        const int ids[] = {DWEIGHT, DBIAS};
        for (int i = 0; i < 2; i++) {
            const array *a = &l.data[ids[i]];
            if (round == 0)
                first[i] = copy_of(a);
            else
                assert_memory_equal(a->value, first[i], a->count * sizeof *a->value);
        }
        layer_close(&l);
        b->close(cuda);
    }
    free(first[0]);
    free(first[1]);
}

/* Prepared without a device, for the plan. */
static void test_dry(void **state)
{
    (void)state;
    tr_cuda *dry = open_as((tr_backend_options){.workspace = 1 << 20, .dry = true});
    tr_tensor t[4] = {
        {.dtype = TR_BF16, .ndim = 2, .dims = {6, 10}, .count = 60, .role = TR_ROLE_ACTIVATION},
        {.dtype = TR_F32,
         .ndim = 2,
         .dims = {9, 10},
         .count = 90,
         .index = 3,
         .role = TR_ROLE_PARAM},
        {.dtype = TR_F32, .ndim = 1, .dims = {9}, .count = 9, .index = 4, .role = TR_ROLE_PARAM},
        {.dtype = TR_BF16, .ndim = 2, .dims = {6, 9}, .count = 54, .role = TR_ROLE_ACTIVATION}};
    const tr_linear_attrs attrs = {.out = 9, .bias = true};
    tr_op op = {
        .nin = 3, .in = {0, 1, 2}, .nout = 1, .out = {3}, .attrs = &attrs, .act = TR_ACT_SILU};
    tr_graph g = {.batch = 6, .ntensors = 4, .tensors = t, .nops = 1, .ops = &op};
    tr_kernel *k = NULL;
    assert_ok(tr_cuda_linear(dry, &g, &op, &k));
    assert_int_equal(k->workspace, 256 + (1 << 20)); /* 6 x 9 float32, and the library's */
    assert_int_equal(k->npacked, 1);                 /* the bias is added in float32 */
    assert_int_equal(k->packed[0].nbytes, 16 * 10 * 2);
    assert_string_equal(k->impl, "cuBLASLt (chosen on the device), own activation");
    k->close(k);
    b->close(dry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_without_workspace),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_without_epilogues),
        cmocka_unit_test(test_impl),
#endif
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_gradient_nan),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_rebind),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
