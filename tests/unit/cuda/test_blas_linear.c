/* linear, its input and its weight gradient on the device: against double arithmetic over shapes,
 * types and activations; NaN; accumulation; what is packed and shared; where the library lacks
 * epilogues. */
#include "tests/unit/cuda/linear_harness.h"

static const shape shapes[] = {{1, 1, 1},    {1, 5, 3},   {3, 17, 5},    {2, 3, 1},    {8, 64, 32},
                               {64, 33, 48}, {7, 24, 64}, {300, 16, 17}, {130, 8, 264}};
static const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};

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

/* One 16-bit copy of the weights for the forward and the backward product, one of the bias, and
 * none in float32. */
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
