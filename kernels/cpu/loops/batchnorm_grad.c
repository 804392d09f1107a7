/* Batch normalization backward: the sums, with the gradient that they are of; then the input's. */
#include "kernels/cpu/loops/batchnorm.h"

typedef struct {
    float d[TR_BN_WIDTH], dx[TR_BN_WIDTH], mean[TR_BN_WIDTH];
} grads;

/* The operands of one row. dy2 is there where it `adds`, y where it `chooses`, dz where there is
 * either. */
typedef struct {
    bool adds, chooses;
    const void *dy, *dy2, *y, *x;
    void *dz;
} operands;

TR_INLINE bool alters(operands o)
{
    return o.adds || o.chooses;
}

TR_INLINE operands from(tr_dtype t, operands o, size_t at)
{
    o.dy = tr_from(t, o.dy, at);
    o.x = tr_from(t, o.x, at);
    if (o.adds) o.dy2 = tr_from(t, o.dy2, at);
    if (o.chooses) o.y = tr_from(t, o.y, at);
    if (alters(o)) o.dz = tr_into(t, o.dz, at);
    return o;
}

TR_INLINE void fetch(tr_dtype t, operands o, const tr_bn_shape *s, size_t rows)
{
    tr_bn_fetch(t, o.dy, s, rows);
    tr_bn_fetch(t, o.x, s, rows);
    if (o.adds) tr_bn_fetch(t, o.dy2, s, rows);
    if (o.chooses) tr_bn_fetch(t, o.y, s, rows);
    if (alters(o) && o.dz != o.dy) tr_bn_fetch_to_write(t, o.dz, s, rows);
}

#ifdef __AVX512BW__
/* One row's share of a vector. Where only y chooses, nothing is rounded: elements of bfloat16 go as
 * they are. */
TR_INLINE tr_pairs grad_vector(tr_dtype t, operands r, size_t e, tr_pairs_mask k)
{
    if (t == TR_BF16 && !r.adds) {
        __m512i words = tr_pairs_words(r.dy, e, k);
        if (r.chooses) {
            words = tr_pairs_words_above(tr_pairs_words(r.y, e, k), words);
            tr_pairs_put_words(r.dz, e, k, words);
        }
        return tr_pairs_apart(words);
    }
    tr_pairs d = tr_pairs_load(t, r.dy, e, k);
    if (r.adds) d = tr_pairs_add(d, tr_pairs_load(t, r.dy2, e, k));
    if (r.chooses) d = tr_pairs_where_above(tr_pairs_load(t, r.y, e, k), d);
    if (alters(r)) tr_pairs_store(t, r.dz, e, k, d);
    return d;
}

TR_INLINE void grad_vectors(tr_dtype t, size_t take, operands o, const tr_bn_shape *s, grads *a,
                            size_t e, tr_pairs_mask k)
{
    const size_t second = tr_bn_second(s);
    const tr_pairs mean = tr_pairs_floats(t, a->mean, e, second, k);
    tr_pairs sum = tr_pairs_floats(t, a->d, e, second, k);
    tr_pairs sum_dx = tr_pairs_floats(t, a->dx, e, second, k);
#pragma GCC unroll 4
    for (size_t row = 0; row < take; row++) {
        const operands r = from(t, o, row * s->stride);
        const tr_pairs d = grad_vector(t, r, e, k);
        sum = tr_pairs_add(sum, d);
        sum_dx = tr_pairs_fma(d, tr_pairs_sub(tr_pairs_load(t, r.x, e, k), mean), sum_dx);
    }
    tr_pairs_put(t, a->d, e, second, k, sum);
    tr_pairs_put(t, a->dx, e, second, k, sum_dx);
}
#endif

/* `take` rows of n elements at once, from element `done` on. */
TR_INLINE void grad_rows(tr_dtype t, size_t take, operands o, const tr_bn_shape *s, size_t done,
                         size_t n, grads *a)
{
    const size_t second = tr_bn_second(s), paired = tr_paired(t, n);
    TR_SIMD for (size_t i = done / 2; i < paired / 2; i++)
    {
        const size_t j = second + i;
        const float mean = a->mean[i], mean2 = a->mean[j];
        float sum_d = a->d[i], sum_dx = a->dx[i], sum_d2 = a->d[j], sum_dx2 = a->dx[j];
#pragma GCC unroll 4
        for (size_t k = 0; k < take; k++) {
            const operands r = from(t, o, k * s->stride);
            float d = tr_load_first(r.dy, i), d2 = tr_load_second(r.dy, i);
            if (o.adds) {
                d += tr_load_first(r.dy2, i);
                d2 += tr_load_second(r.dy2, i);
            }
            if (o.chooses) {
                d = tr_load_first(r.y, i) > 0.0f ? d : 0.0f;
                d2 = tr_load_second(r.y, i) > 0.0f ? d2 : 0.0f;
            }
            if (alters(o)) tr_store_pair(r.dz, i, d, d2);
            sum_d += d;
            sum_d2 += d2;
            sum_dx += d * (tr_load_first(r.x, i) - mean);
            sum_dx2 += d2 * (tr_load_second(r.x, i) - mean2);
        }
        a->d[i] = sum_d;
        a->dx[i] = sum_dx;
        a->d[j] = sum_d2;
        a->dx[j] = sum_dx2;
    }
    TR_SIMD for (size_t e = done > paired ? done : paired; e < n; e++)
    {
        const size_t c = tr_bn_single(t, e);
        float sum_d = a->d[c], sum_dx = a->dx[c];
#pragma GCC unroll 4
        for (size_t k = 0; k < take; k++) {
            const size_t at = k * s->stride + e;
            float d = tr_load(t, o.dy, at);
            if (o.adds) d += tr_load(t, o.dy2, at);
            if (o.chooses) d = tr_load(t, o.y, at) > 0.0f ? d : 0.0f;
            if (alters(o)) tr_store(t, o.dz, at, d);
            sum_d += d;
            sum_dx += d * (tr_load(t, o.x, at) - a->mean[c]);
        }
        a->d[c] = sum_d;
        a->dx[c] = sum_dx;
    }
}

/* Up to TR_BN_TOGETHER rows at once, so that sums are loaded and stored once for all of them. */
TR_INLINE void grad_group(tr_dtype t, size_t take, operands o, const tr_bn_shape *s, size_t n,
                          grads *a)
{
    size_t done = 0;
#ifdef __AVX512BW__
    done = tr_pairs_done(t, n);
    TR_EACH_PAIRS(t, done, grad_vectors(t, take, o, s, a, e, k));
    if (done == n) return;
#endif
    if (take == TR_BN_TOGETHER)
        grad_rows(t, TR_BN_TOGETHER, o, s, done, n, a);
    else
        for (size_t r = 0; r < take; r++) grad_rows(t, 1, from(t, o, r * s->stride), s, done, n, a);
}

/* Sums by place in pairs. */
TR_INLINE void grad_tile(tr_dtype t, operands o, const tr_bn_shape *s, grads *a, double *sum_d,
                         double *sum_dx)
{
    for (size_t c = 0; c < s->width; c++) sum_d[c] = sum_dx[c] = 0.0;
    const size_t tail = s->rest ? 1 : 0; /* the left-over rows, as one narrower row */
    for (size_t r = 0; r < s->rows + tail;) {
        const size_t end = r < s->rows ? tr_least(r + TR_BN_BLOCK, s->rows) : r + 1;
        const size_t n = tr_bn_count(s, r);
        memset(a->d, 0, s->width * sizeof(float));
        memset(a->dx, 0, s->width * sizeof(float));
        while (r < end) {
            const size_t take = alters(o) ? 1 : tr_least(TR_BN_TOGETHER, end - r);
            const operands row = from(t, o, r * s->stride);
            fetch(t, row, s, take);
            grad_group(t, take, row, s, n, a);
            r += take;
        }
        TR_SIMD for (size_t c = 0; c < s->width; c++)
        {
            sum_d[c] += (double)a->d[c];
            sum_dx[c] += (double)a->dx[c];
        }
    }
}

TR_INLINE operands that(operands o, bool adds, bool chooses)
{
    o.adds = adds;
    o.chooses = chooses;
    return o;
}

/* One plain loop for each set of operands. */
TR_INLINE void grad_body(tr_dtype t, operands o, const tr_bn_shape *s, grads *a, double *sum_d,
                         double *sum_dx)
{
    if (o.adds && o.chooses)
        grad_tile(t, that(o, true, true), s, a, sum_d, sum_dx);
    else if (o.adds)
        grad_tile(t, that(o, true, false), s, a, sum_d, sum_dx);
    else if (o.chooses)
        grad_tile(t, that(o, false, true), s, a, sum_d, sum_dx);
    else
        grad_tile(t, that(o, false, false), s, a, sum_d, sum_dx);
}

void TR_LOOP(bn_grad_stats)(tr_dtype t, const void *dy, const void *dy2, const void *y,
                            const void *x, const float *mean, void *dz, size_t rows, size_t C,
                            double *sum_d, double *sum_dx)
{
    grads a;
    double wide_d[TR_BN_WIDTH], wide_dx[TR_BN_WIDTH], by_pairs[2][TR_BN_WIDTH];
    const operands all = {dy2 != NULL, y != NULL, dy, dy2, y, x, dz};
    for (size_t c0 = 0; c0 < C;) {
        const tr_bn_shape s = tr_bn_shape_of(rows, C, c0);
        const size_t width = s.width / s.fold;
        tr_bn_repeat(t, &s, mean, c0, a.mean);
        TR_BY_TYPE(t, grad_body(T, from(T, all, c0), &s, &a, by_pairs[0], by_pairs[1]));
        tr_bn_from_pairs(t, s.width, by_pairs[0], wide_d);
        tr_bn_from_pairs(t, s.width, by_pairs[1], wide_dx);
        memcpy(sum_d + c0, wide_d, width * sizeof *sum_d);
        memcpy(sum_dx + c0, wide_dx, width * sizeof *sum_dx);
        for (size_t f = 1; f < s.fold; f++)
            for (size_t c = 0; c < width; c++) {
                sum_d[c0 + c] += wide_d[f * width + c];
                sum_dx[c0 + c] += wide_dx[f * width + c];
            }
        c0 += width;
    }
}

TR_INLINE float blend(float a, float dz, float b, float x, float c0)
{
    const float v = b * x + c0;
    return a * dz + v;
}

/* `rows` rows of n elements, `stride` apart. */
typedef struct {
    const void *dz, *x;
    void *dx;
    size_t stride, rows, n;
} inputs;

#ifdef __AVX512BW__
TR_INLINE void grad_input_vector(tr_dtype t, const inputs *o, const float *a, const float *b,
                                 const float *c0, size_t second, size_t e, tr_pairs_mask k)
{
    const tr_pairs va = tr_pairs_floats(t, a, e, second, k);
    const tr_pairs vb = tr_pairs_floats(t, b, e, second, k);
    const tr_pairs vc = tr_pairs_floats(t, c0, e, second, k);
#pragma GCC unroll 4
    for (size_t r = 0; r < o->rows; r++) {
        const size_t at = r * o->stride;
        const tr_pairs v = tr_pairs_fma(vb, tr_pairs_load(t, tr_from(t, o->x, at), e, k), vc);
        const tr_pairs dz = tr_pairs_load(t, tr_from(t, o->dz, at), e, k);
        tr_pairs_store(t, tr_into(t, o->dx, at), e, k, tr_pairs_fma(va, dz, v));
    }
}
#endif

TR_INLINE void grad_input_row(tr_dtype t, const void *dz, const void *x, const float *a,
                              const float *b, const float *c0, void *dx, size_t done, size_t n,
                              size_t second)
{
    const size_t paired = tr_paired(t, n);
    TR_SIMD for (size_t i = done / 2; i < paired / 2; i++)
    {
        const size_t j = second + i;
        tr_store_pair(dx, i, blend(a[i], tr_load_first(dz, i), b[i], tr_load_first(x, i), c0[i]),
                      blend(a[j], tr_load_second(dz, i), b[j], tr_load_second(x, i), c0[j]));
    }
    TR_SIMD for (size_t e = done > paired ? done : paired; e < n; e++)
    {
        const size_t c = tr_bn_single(t, e);
        tr_store(t, dx, e, blend(a[c], tr_load(t, dz, e), b[c], tr_load(t, x, e), c0[c]));
    }
}

TR_INLINE void grad_input_group(tr_dtype t, const inputs *o, const float *a, const float *b,
                                const float *c0, size_t second)
{
    size_t done = 0;
#ifdef __AVX512BW__
    done = tr_pairs_done(t, o->n);
    TR_EACH_PAIRS(t, done, grad_input_vector(t, o, a, b, c0, second, e, k));
    if (done == o->n) return;
#endif
    for (size_t r = 0; r < o->rows; r++) {
        const size_t at = r * o->stride;
        grad_input_row(t, tr_from(t, o->dz, at), tr_from(t, o->x, at), a, b, c0,
                       tr_into(t, o->dx, at), done, o->n, second);
    }
}

TR_INLINE void grad_input_rows(tr_dtype t, const void *dz, const void *x, const float *a,
                               const float *b, const float *c0, void *dx, const tr_bn_shape *s)
{
    const size_t together =
        t == TR_BF16 ? TR_BN_TOGETHER : 1; /* of bfloat16 the arithmetic takes longer than memory */
    for (size_t r = 0; r <= s->rows;) {
        const size_t take = r < s->rows ? tr_least(together, s->rows - r) : 1;
        const inputs o = {.dz = tr_from(t, dz, r * s->stride),
                          .x = tr_from(t, x, r * s->stride),
                          .dx = tr_into(t, dx, r * s->stride),
                          .stride = s->stride,
                          .rows = take,
                          .n = tr_bn_count(s, r)};
        grad_input_group(t, &o, a, b, c0, tr_bn_second(s));
        r += take;
    }
}

void TR_LOOP(bn_grad_input)(tr_dtype t, const void *dz, const void *x, const float *a,
                            const float *b, const float *c0, void *dx, size_t rows, size_t C)
{
    float wide_a[TR_BN_WIDTH], wide_b[TR_BN_WIDTH], wide_c0[TR_BN_WIDTH];
    for (size_t from = 0; from < C;) {
        const tr_bn_shape s = tr_bn_shape_of(rows, C, from);
        tr_bn_repeat_stored(t, &s, a, from, wide_a);
        tr_bn_repeat_stored(t, &s, b, from, wide_b);
        tr_bn_repeat_stored(t, &s, c0, from, wide_c0);
        TR_BY_TYPE(t, grad_input_rows(T, tr_from(T, dz, from), tr_from(T, x, from), wide_a, wide_b,
                                      wide_c0, tr_into(T, dx, from), &s));
        from += s.width / s.fold;
    }
}
