/* Matrix products: types, transposes, sizes that fit no vector, padded rows, epilogues and
 * accumulation against double arithmetic; what the algorithm's choice keeps to; dry contexts and
 * refusals. */
#include "tests/unit/activate.h"
#include "tests/unit/cuda/blas_harness.h"

static const struct {
    tr_dtype type, out;
} types[] = {
    {TR_F32, TR_F32}, {TR_BF16, TR_BF16}, {TR_BF16, TR_F32}, {TR_F16, TR_F16}, {TR_F16, TR_F32}};

static const struct {
    int64_t m, n, k;
} sizes[] = {{1, 1, 1}, {1, 3, 5}, {7, 1, 2}, {17, 5, 3}, {8, 16, 32}, {33, 24, 71}, {40, 64, 128}};

static const tr_backend_options plain = {.workspace = 4 << 20};

static tr_cuda_problem problem_of(int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                                  int64_t padding, tr_dtype type, tr_dtype out,
                                  tr_product_epilogue e)
{
    return (tr_cuda_problem){.m = m,
                             .n = n,
                             .k = k,
                             .lda = (ta ? m : k) + padding,
                             .ldb = (tb ? k : n) + padding,
                             .ldd = n + padding,
                             .ta = ta,
                             .tb = tb,
                             .type = type,
                             .out = out,
                             .epilogue = e,
                             .align_a = 256,
                             .align_b = 256,
                             .align_d = 64,
                             .align_vector = 64};
}

/* What is added up in one element of D, and the sum of the absolute values. */
static double sum_at(const tr_cuda_problem *q, const array *x, const array *y, int64_t i, int64_t j,
                     double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t k = 0; k < q->k; k++) {
        const double p = x->value[q->ta ? k * q->lda + i : i * q->lda + k] *
                         y->value[q->tb ? j * q->ldb + k : k * q->ldb + j];
        sum += p;
        *size += fabs(p);
    }
    return sum;
}

static void check_near(double got, double want, double bound, const char *what, int64_t i,
                       int64_t j)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: (%lld, %lld) is %.9g, expected %.9g within %.3g", what, (long long)i,
                 (long long)j, got, want, bound);
}

static void check_result(const tr_cuda_problem *q, const array *x, const array *y,
                         const array *before, const array *d, const array *v,
                         const tr_cuda_product_args *a, double operand)
{
    const bool bias = q->epilogue == TR_EPILOGUE_BIAS || q->epilogue == TR_EPILOGUE_GELU_BIAS;
    const bool gelu = q->epilogue == TR_EPILOGUE_GELU || q->epilogue == TR_EPILOGUE_GELU_BIAS;
    for (int64_t i = 0; i < q->m; i++)
        for (int64_t j = 0; j < q->n; j++) {
            double size, product = (double)a->alpha * sum_at(q, x, y, i, j, &size), want = product;
            const int64_t at = i * q->ldd + j;
            if (a->beta != 0) want += (double)a->beta * before->value[at];
            if (bias) want += v->value[j];
            if (gelu) want = activate(TR_ACT_GELU_TANH, want);
            /* Sums in float32, operands perhaps rounded, one rounding at the end, and one of the
             * product before it is added; the slope of GELU is below 1.2, and its tanh may be an
             * approximation. */
            const double bound =
                1.2 * (size + 3) * ((double)(q->k + 4) * 0x1p-24 + operand) +
                unit_of(q->out) * (fabs(want) + (a->beta != 0 ? fabs(product) : 0)) +
                (gelu ? 0x1p-10 : 0);
            char what[96];
            snprintf(what, sizeof what, "%lld x %lld x %lld, beta %g, D", (long long)q->m,
                     (long long)q->n, (long long)q->k, (double)a->beta);
            check_near(d->value[at], want, bound, what, i, j);
        }
    for (int64_t i = 0; i < q->m - 1; i++) /* between rows nothing is written */
        for (int64_t j = q->n; j < q->ldd; j++)
            if (memcmp(&d->value[i * q->ldd + j], &before->value[i * q->ldd + j], sizeof(double)) !=
                    0 &&
                !isnan(before->value[i * q->ldd + j]))
                fail_msg("padding of row %lld was written", (long long)i);
}

static void check_gradient(const tr_cuda_problem *q, const array *x, const array *v)
{
    for (int64_t i = 0; i < q->m; i++) {
        double want = 0;
        for (int64_t k = 0; k < q->k; k++)
            want += x->value[q->ta ? k * q->lda + i : i * q->lda + k];
        check_near(v->value[i], want,
                   (double)q->k * (double)q->k * 0x1p-24 + unit_of(q->out) * fabs(want),
                   "bias gradient", i, 0);
    }
}

/* Opens, runs and checks one product. `operand`: relative error of its operands. */
static void check_product(tr_cuda *cuda, const tr_cuda_problem *q, float alpha, float beta,
                          double operand)
{
    const bool gradient = q->epilogue == TR_EPILOGUE_BIAS_GRADIENT;
    tr_cuda_product *p = NULL;
    assert_ok(tr_cuda_product_open(cuda, q, &p));
    assert_non_null(p);
    const size_t workspace = tr_cuda_product_workspace(p);
    assert_true(workspace <= cuda->o.workspace);
    array x = array_open(cuda, q->type, (size_t)((q->ta ? q->k : q->m) * q->lda), 1);
    array y = array_open(cuda, q->type, (size_t)((q->tb ? q->n : q->k) * q->ldb), 2);
    array d = array_open(cuda, q->out, (size_t)(q->m * q->ldd), beta != 0 ? 3 : 0);
    array before = array_open(cuda, q->out, d.count, beta != 0 ? 3 : 0);
    array v = array_open(cuda, q->out, (size_t)(gradient ? q->m : q->n), gradient ? 0 : 4);
    void *scratch = b->memory->alloc(cuda, TR_MEM_OTHER, workspace + 1);
    const tr_cuda_product_args a = {
        .a = x.data,
        .b = y.data,
        .d = d.data,
        .vector =
            q->epilogue == TR_EPILOGUE_NONE || q->epilogue == TR_EPILOGUE_GELU ? NULL : v.data,
        .alpha = alpha,
        .beta = beta,
        .workspace = scratch};
    assert_ok(tr_cuda_product_run(p, &a));
    array_fetch(cuda, &d);
    array_fetch(cuda, &v);
    check_result(q, &x, &y, &before, &d, &v, &a, operand);
    if (gradient) check_gradient(q, &x, &v);
    tr_cuda_product_close(p);
    b->memory->free(cuda, scratch);
    array_close(cuda, &x);
    array_close(cuda, &y);
    array_close(cuda, &d);
    array_close(cuda, &before);
    array_close(cuda, &v);
}

static void test_types_and_shapes(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (size_t s = 0; s < TR_COUNT(sizes); s++)
            for (int turn = 0; turn < 4; turn++)
                for (int64_t padding = 0; padding < 4; padding += 3) {
                    const tr_cuda_problem q =
                        problem_of(sizes[s].m, sizes[s].n, sizes[s].k, turn & 1, turn & 2, padding,
                                   types[t].type, types[t].out, TR_EPILOGUE_NONE);
                    check_product(cuda, &q, 1, 0, 0);
                    check_product(cuda, &q, 1, 1, 0);
                    check_product(cuda, &q, 0.5f, -2, 0);
                }
    b->close(cuda);
}

static void test_epilogues(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    static const char *const impl[] = {"cuBLASLt", "cuBLASLt bias", "cuBLASLt gelu",
                                       "cuBLASLt bias+gelu", "cuBLASLt bias gradient"};
    for (int e = TR_EPILOGUE_NONE; e < TR_EPILOGUES; e++)
        for (size_t t = 0; t < TR_COUNT(types); t++)
            for (size_t s = 0; s < TR_COUNT(sizes); s++) {
                const bool gradient = e == TR_EPILOGUE_BIAS_GRADIENT;
                const tr_cuda_problem q =
                    problem_of(sizes[s].m, sizes[s].n, sizes[s].k, gradient, !gradient, 0,
                               types[t].type, types[t].out, (tr_product_epilogue)e);
                tr_cuda_product *p = NULL;
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
                if (!p) { /* a device may lack an epilogue for some type, but never the stand-in */
#ifndef TR_REAL_GPU
                    fail_msg("epilogue %d is missing", e);
#endif
                    continue;
                }
                assert_string_equal(tr_cuda_product_impl(p), impl[e]);
                assert_non_null(strstr(tr_cuda_product_choice(p), "algorithm "));
                tr_cuda_product_close(p);
                check_product(cuda, &q, 1, 0, 0);
                if (gradient) check_product(cuda, &q, 1, 1, 0);
            }
    b->close(cuda);
}

/* The switch is seen in the numbers: values with more bits than TF32 has. */
static void test_tf32(void **state)
{
    (void)state;
    double off[2];
    for (int tf32 = 0; tf32 < 2; tf32++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .tf32 = tf32});
        if (cuda->major < 8) {
            b->close(cuda);
            print_message("[  SKIPPED ] the device has no TF32\n");
            return;
        }
        const tr_cuda_problem q =
            problem_of(32, 32, 64, false, true, 0, TR_F32, TR_F32, TR_EPILOGUE_NONE);
        tr_cuda_product *p = NULL;
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        array x = array_open(cuda, TR_F32, 32 * 64, 1), y = array_open(cuda, TR_F32, 32 * 64, 2);
        array d = array_open(cuda, TR_F32, 32 * 32, 0);
        for (size_t i = 0; i < x.count; i++)
            x.value[i] = (double)(float)(x.value[i] * (1 + 0x1p-12 * (double)(i % 7)));
        array_send(cuda, &x);
        void *scratch = b->memory->alloc(cuda, TR_MEM_OTHER, tr_cuda_product_workspace(p) + 1);
        assert_ok(tr_cuda_product_run(
            p, &(tr_cuda_product_args){
                   .a = x.data, .b = y.data, .d = d.data, .alpha = 1, .workspace = scratch}));
        array_fetch(cuda, &d);
        off[tf32] = 0;
        for (int64_t i = 0; i < 32; i++)
            for (int64_t j = 0; j < 32; j++) {
                double size, want = sum_at(&q, &x, &y, i, j, &size);
                off[tf32] = fmax(off[tf32], fabs(d.value[i * 32 + j] - want) / size);
            }
        tr_cuda_product_close(p);
        b->memory->free(cuda, scratch);
        array_close(cuda, &x);
        array_close(cuda, &y);
        array_close(cuda, &d);
        b->close(cuda);
    }
    assert_true(off[0] <= 70 * 0x1p-24);
    assert_true(off[1] > 1e-6 && off[1] <= 0x1p-10);
}

static void test_one_choice_a_problem(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    tr_cuda_problem q = problem_of(8, 16, 32, false, true, 0, TR_BF16, TR_BF16, TR_EPILOGUE_BIAS);
    tr_cuda_product *p[4] = {NULL};
    assert_ok(tr_cuda_product_open(cuda, &q, &p[0]));
    assert_ok(tr_cuda_product_open(cuda, &q, &p[1]));
    assert_int_equal(cuda->blas->nchoices, 1);
    assert_memory_equal(&p[0]->algo, &p[1]->algo, sizeof p[0]->algo);
    q.align_b = 16;
    assert_ok(tr_cuda_product_open(cuda, &q, &p[2]));
    assert_int_equal(cuda->blas->nchoices, 2);
    q.tb = false;
    q.ldb = q.n;
    assert_ok(tr_cuda_product_open(cuda, &q, &p[3]));
    assert_int_equal(cuda->blas->nchoices, 3);
    for (int i = 0; i < 4; i++) tr_cuda_product_close(p[i]);
    for (int64_t m = 1; m < 60; m++) { /* the table grows */
        q.m = m;
        q.ldd = q.n;
        check_product(cuda, &q, 1, 0, 0);
    }
    const size_t before = cuda->blas->nchoices;
    q.m = 31;
    check_product(cuda, &q, 1, 0, 0);
    assert_int_equal(cuda->blas->nchoices, before);
    b->close(cuda);
}

/* Sums are never rounded to 16 bits on the way, and in deterministic mode never added in the
 * output. */
static void test_reduction_schemes(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        tr_cuda *cuda =
            open_as((tr_backend_options){.workspace = 4 << 20, .deterministic = deterministic});
        for (size_t t = 0; t < TR_COUNT(types); t++)
            for (size_t s = 0; s < TR_COUNT(sizes); s++) {
                const tr_cuda_problem q =
                    problem_of(sizes[s].m, sizes[s].n, 16 * sizes[s].k, false, true, 0,
                               types[t].type, types[t].out, TR_EPILOGUE_NONE);
                tr_cuda_product *p = NULL;
                uint32_t scheme = 99;
                size_t written = 0;
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
                assert_int_equal(cublasLtMatmulAlgoConfigGetAttribute(
                                     &p->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                     sizeof scheme, &written),
                                 CUBLAS_STATUS_SUCCESS);
                if (deterministic || types[t].out != TR_F32)
                    assert_true(scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
                                scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
                tr_cuda_product_close(p);
                check_product(cuda, &q, 1, 0, 0);
            }
        b->close(cuda);
    }
}

#ifndef TR_REAL_GPU /* which algorithms there are is a real library's own affair */
static int32_t config_of(const tr_cuda_product *p, cublasLtMatmulAlgoConfigAttributes_t what)
{
    int32_t v = -1;
    size_t written = 0;
    assert_int_equal(cublasLtMatmulAlgoConfigGetAttribute(&p->algo, what, &v, sizeof v, &written),
                     CUBLAS_STATUS_SUCCESS);
    return v;
}

/* Long sums of a small result are cut into as many parts as fill the device (40000 / 512 = 78), or a quarter where the
 * workspace allows no more, in every mode; short ones, and those of large results, are left as the library has them.
 * Where it takes no cut, the product says that it leaves the device idle. */
static void test_split(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        size_t workspace;
        const char *without;
        int32_t split;
        bool fills;
    } table[] = {{8, 16, 40000, 1 << 20, "", 78, true},
                 {8, 16, 40000, 16 << 10, "", 19, true},
                 {8, 16, 40000, 1 << 20, "split", 3, false},
                 {8, 16, 2000, 1 << 20, "split", 3, true},
                 {1, 3072, 2048, 4 << 20, "split", 3, true}};
    for (size_t i = 0; i < TR_COUNT(table); i++)
        for (int deterministic = 0; deterministic < 2; deterministic++)
            for (size_t t = 0; t < 3; t++) {
                tr_cuda *cuda = open_as((tr_backend_options){.workspace = table[i].workspace,
                                                             .deterministic = deterministic});
                const tr_cuda_problem q =
                    problem_of(table[i].m, table[i].n, table[i].k, false, true, 0, types[t].type,
                               types[t].out, TR_EPILOGUE_NONE);
                tr_cuda_product *p = NULL;
                setenv("FAKEGPU_CUBLASLT_WITHOUT", table[i].without, 1);
                assert_ok(tr_cuda_product_open(cuda, &q, &p));
                assert_int_equal(config_of(p, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), table[i].split);
                assert_int_equal(config_of(p, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
                assert_int_equal(tr_cuda_product_fills(p), table[i].fills);
                assert_true(tr_cuda_product_workspace(p) <= table[i].workspace);
                tr_cuda_product_close(p);
                if (table[i].split > 3 && t == 1) check_product(cuda, &q, 1, 0, 0);
                b->close(cuda);
            }
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
}

/* An algorithm that fails when it is run is passed over; where all do the error says why. */
static void test_broken(void **state)
{
    (void)state;
    const tr_cuda_problem q =
        problem_of(8, 16, 32, false, true, 0, TR_F32, TR_F32, TR_EPILOGUE_NONE);
    for (int benchmark = 0; benchmark < 2; benchmark++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .benchmark = benchmark});
        tr_cuda_product *p = NULL;
        setenv("FAKEGPU_BROKEN",
               "cublaslt:21,cublaslt:5,cublaslt:7,cublaslt:11,cublaslt:16,cublaslt:2", 1);
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        const int32_t id = config_of(p, CUBLASLT_ALGO_CONFIG_ID);
        assert_true(id == 6 || (benchmark && id == 1));
        tr_cuda_product_close(p);
        b->close(cuda);
        cuda = open_as((tr_backend_options){.workspace = 4 << 20, .benchmark = benchmark});
        setenv("FAKEGPU_BROKEN", "cublaslt:*", 1);
        assert_told(tr_cuda_product_open(cuda, &q, &p), TR_KERNEL,
                    "CUBLAS_STATUS_EXECUTION_FAILED");
        const tr_cuda_problem other =
            problem_of(8, 16, 32, false, true, 0, TR_F32, TR_F32, TR_EPILOGUE_BIAS);
        setenv("FAKEGPU_CUBLASLT_WITHOUT", "bias", 1);
        assert_ok(tr_cuda_product_open(cuda, &other, &p));
        unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
        assert_told(tr_cuda_product_open(cuda, &q, &p), TR_KERNEL, /* not the other one's reason */
                    "CUBLAS_STATUS_EXECUTION_FAILED");
        b->close(cuda);
    }
    unsetenv("FAKEGPU_BROKEN");
}
#endif

static void test_workspace_limit(void **state)
{
    (void)state;
    static const size_t limits[] = {0, 600, 4096, 1 << 20};
    for (size_t i = 0; i < TR_COUNT(limits); i++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = limits[i]});
        const tr_cuda_problem q =
            problem_of(40, 64, 128, false, true, 0, TR_BF16, TR_BF16, TR_EPILOGUE_BIAS);
        check_product(cuda, &q, 1, 0, 0); /* looks at the workspace, too */
        b->close(cuda);
    }
}

static void test_benchmark(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as((tr_backend_options){.workspace = 4 << 20, .benchmark = true});
    for (int e = TR_EPILOGUE_NONE; e < TR_EPILOGUES; e++) {
        const bool gradient = e == TR_EPILOGUE_BIAS_GRADIENT;
        const tr_cuda_problem q =
            problem_of(33, 24, 71, gradient, !gradient, 3, TR_BF16, TR_F32, (tr_product_epilogue)e);
        tr_cuda_product *p = NULL;
        const size_t before = tr_mem_held(TR_MEM_OTHER);
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        tr_cuda_product_close(p);
        const uint64_t calls = tr_mem_calls();
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        assert_int_equal(tr_mem_calls() - calls, 1); /* the product: nothing is timed again */
        tr_cuda_product_close(p);
        if (e > TR_EPILOGUE_NONE) assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
        check_product(cuda, &q, 1, 0, 0);
    }
    b->close(cuda);
}

static void test_dry(void **state)
{
    (void)state;
    static const struct {
        size_t limit, workspace;
    } cases[] = {{1 << 20, 1 << 20}, {(size_t)1 << 30, 32 << 20}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_cuda *cuda = open_as((tr_backend_options){.workspace = cases[i].limit, .dry = true});
        const tr_cuda_problem q =
            problem_of(33, 24, 71, false, true, 0, TR_F16, TR_F16, TR_EPILOGUE_GELU_BIAS);
        tr_cuda_product *p = NULL;
        assert_ok(tr_cuda_product_open(cuda, &q, &p));
        assert_int_equal(tr_cuda_product_workspace(p), cases[i].workspace);
        assert_string_equal(tr_cuda_product_impl(p), "cuBLASLt (chosen on the device)");
        assert_null(tr_cuda_product_choice(p));
        tr_cuda_product_close(p);
        b->close(cuda);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    const tr_cuda_problem good =
        problem_of(4, 4, 4, false, false, 0, TR_F32, TR_F32, TR_EPILOGUE_BIAS);
    tr_cuda_product *p = NULL;
    tr_cuda_problem q = good;
    q.m = (int64_t)1 << 31;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "2147483648 x 4 x 4");
    q = good;
    q.k = 0;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "4 x 4 x 0");
    q = good;
    q.lda = 3;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_INTERNAL, "overlap");
    q = good;
    q.out = TR_BF16;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "float32 into bfloat16");
    q = good;
    q.type = q.out = TR_F64;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "float64");
    q = problem_of(4, 6, 8, false, true, 0, TR_I8, TR_I32, TR_EPILOGUE_NONE);
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_UNSUPPORTED, "int8 into int32");
    q = good;
    q.align_vector = 0;
    assert_told(tr_cuda_product_open(cuda, &q, &p), TR_INTERNAL, "alignment");
    assert_null(p);
    tr_cuda_product_close(NULL);
    tr_cuda_blas_close(NULL);
    assert_told(tr_cuda_blas_check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmul"), TR_KERNEL,
                "cublasLtMatmul: ");
    assert_told(tr_cuda_blas_check(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtCreate"), TR_MEMORY,
                "CUBLAS_STATUS_ALLOC_FAILED");
    b->close(cuda);
}

#ifndef TR_REAL_GPU
static void test_missing_epilogue(void **state)
{
    (void)state;
    tr_cuda *cuda = open_as(plain);
    tr_cuda_problem q = problem_of(4, 4, 4, false, false, 0, TR_F32, TR_F32, TR_EPILOGUE_BIAS);
    tr_cuda_product *p = (tr_cuda_product *)&q;
    setenv("FAKEGPU_CUBLASLT_WITHOUT", "bias bgrad", 1);
    assert_ok(tr_cuda_product_open(cuda, &q, &p));
    assert_null(p);
    unsetenv("FAKEGPU_CUBLASLT_WITHOUT");
    assert_ok(tr_cuda_product_open(cuda, &q, &p));
    assert_null(p); /* remembered, too */
    q.epilogue = TR_EPILOGUE_NONE;
    check_product(cuda, &q, 1, 0, 0);
    b->close(cuda);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_and_shapes),
        cmocka_unit_test(test_epilogues),
        cmocka_unit_test(test_tf32),
        cmocka_unit_test(test_one_choice_a_problem),
        cmocka_unit_test(test_reduction_schemes),
        cmocka_unit_test(test_workspace_limit),
        cmocka_unit_test(test_benchmark),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_refusals),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_missing_epilogue),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_broken),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
