/* One product of matrices, beside double arithmetic. */
#ifndef TR_TEST_BLAS_PRODUCTS_H
#define TR_TEST_BLAS_PRODUCTS_H

#include "tests/unit/activate.h"
#include "tests/unit/cuda/blas_harness.h"

static const struct {
    tr_dtype type, out;
} types[] = {
    {TR_F32, TR_F32}, {TR_BF16, TR_BF16}, {TR_BF16, TR_F32}, {TR_F16, TR_F16}, {TR_F16, TR_F32}};

static const tr_backend_options plain = {.workspace = 4 << 20};

static inline tr_cuda_problem problem_of(int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                                         int64_t padding, tr_dtype type, tr_dtype out,
                                         tr_product_epilogue e)
{
    return (tr_cuda_problem){.m = m,
                             .n = n,
                             .k = k,
                             .lda = (ta ? m : k) + padding,
                             .ldb = (tb ? k : n) + padding,
                             .ldd = n + padding,
                             .ld_aux = (n + padding + 7) / 8 * 8,
                             .ta = ta,
                             .tb = tb,
                             .type = type,
                             .out = out,
                             .epilogue = e,
                             .align_a = 256,
                             .align_b = 256,
                             .align_d = 64,
                             .align_vector = 64,
                             .align_aux = 256};
}

/* What is added up in one element of D, and the sum of the absolute values. */
static inline double sum_at(const tr_cuda_problem *q, const array *x, const array *y, int64_t i,
                            int64_t j, double *size)
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

static inline void check_near(double got, double want, double bound, const char *what, int64_t i,
                              int64_t j)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: (%lld, %lld) is %.9g, expected %.9g within %.3g", what, (long long)i,
                 (long long)j, got, want, bound);
}

static inline void check_result(const tr_cuda_problem *q, const array *x, const array *y,
                                const array *before, const array *d, const array *v,
                                const array *aux, const tr_cuda_product_args *a, double operand)
{
    const tr_product_epilogue e = q->epilogue;
    const bool bias = tr_epilogue_has_vector(e) && e != TR_EPILOGUE_BIAS_GRADIENT;
    const bool gradient = e == TR_EPILOGUE_GELU_GRADIENT;
    const bool gelu = e == TR_EPILOGUE_GELU || e == TR_EPILOGUE_GELU_BIAS;
    for (int64_t i = 0; i < q->m; i++)
        for (int64_t j = 0; j < q->n; j++) {
            double size, product = (double)a->alpha * sum_at(q, x, y, i, j, &size), want = product;
            const int64_t at = i * q->ldd + j;
            if (a->beta != 0) want += (double)a->beta * before->value[at];
            if (bias) want += v->value[j];
            const double z = want;
            if (gelu) want = activate(TR_ACT_GELU_TANH, z);
            if (gradient) want = z * gelu_tanh_slope(aux->value[i * q->ld_aux + j]);
            /* Sums in float32, operands perhaps rounded, one rounding at the end, and one of the
             * product before it is added, or multiplied by the slope of GELU, which is below 1.2;
             * its tanh may be an approximation. */
            const double sums = 1.2 * (size + 3) * ((double)(q->k + 4) * 0x1p-24 + operand);
            const double bound =
                sums + unit_of(q->out) * (fabs(want) + (a->beta != 0 ? fabs(product) : 0)) +
                (gelu ? 0x1p-10 : 0) +
                (gradient ? 0x1p-10 * (1 + fabs(z)) + 1.2 * unit_of(q->out) * fabs(z) : 0);
            char what[96];
            snprintf(what, sizeof what, "%lld x %lld x %lld, epilogue %d, beta %g, D",
                     (long long)q->m, (long long)q->n, (long long)q->k, (int)e, (double)a->beta);
            check_near(d->value[at], want, bound, what, i, j);
        }
    for (int64_t i = 0; i < q->m - 1; i++) /* between rows nothing is written */
        for (int64_t j = q->n; j < q->ldd; j++)
            if (memcmp(&d->value[i * q->ldd + j], &before->value[i * q->ldd + j], sizeof(double)) !=
                    0 &&
                !isnan(before->value[i * q->ldd + j]))
                fail_msg("padding of row %lld was written", (long long)i);
}

static inline void check_gradient(const tr_cuda_problem *q, const array *x, const array *v)
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
static inline void check_product(tr_cuda *cuda, const tr_cuda_problem *q, float alpha, float beta,
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
    array aux = array_open(cuda, q->out, (size_t)(q->m * q->ld_aux),
                           q->epilogue == TR_EPILOGUE_GELU_GRADIENT ? 5 : 0);
    void *scratch = b->memory->alloc(cuda, TR_MEM_OTHER, workspace + 1);
    const tr_cuda_product_args a = {.a = x.data,
                                    .b = y.data,
                                    .d = d.data,
                                    .vector = tr_epilogue_has_vector(q->epilogue) ? v.data : NULL,
                                    .aux = tr_epilogue_has_aux(q->epilogue) ? aux.data : NULL,
                                    .alpha = alpha,
                                    .beta = beta,
                                    .workspace = scratch};
    assert_ok(tr_cuda_product_run(p, &a));
    array_fetch(cuda, &d);
    array_fetch(cuda, &v);
    array_fetch(cuda, &aux);
    check_result(q, &x, &y, &before, &d, &v, &aux, &a, operand);
    if (gradient) check_gradient(q, &x, &v);
    tr_cuda_product_close(p);
    b->memory->free(cuda, scratch);
    array_close(cuda, &x);
    array_close(cuda, &y);
    array_close(cuda, &d);
    array_close(cuda, &before);
    array_close(cuda, &v);
    array_close(cuda, &aux);
}

#endif
