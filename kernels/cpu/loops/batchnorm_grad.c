/* Batch normalization backward: the sums, with the gradient that they are of; then the input's. */
#include "kernels/cpu/loops/batchnorm.h"

typedef struct {
    float d[TR_BN_WIDTH], dx[TR_BN_WIDTH], mean[TR_BN_WIDTH];
} grads;

/* The operands of one row; dy2, y, dz may be NULL. */
typedef struct {
    const void *dy, *dy2, *y, *x;
    void *dz;
} operands;

TR_INLINE operands from(tr_dtype t, const operands *o, size_t at)
{
    return (operands){.dy = tr_from(t, o->dy, at),
                      .dy2 = o->dy2 ? tr_from(t, o->dy2, at) : NULL,
                      .y = o->y ? tr_from(t, o->y, at) : NULL,
                      .x = tr_from(t, o->x, at),
                      .dz = o->dz ? tr_into(t, o->dz, at) : NULL};
}

TR_INLINE void fetch(tr_dtype t, const operands *o, const tr_bn_shape *s)
{
    tr_bn_fetch(t, o->dy, s, TR_BN_TOGETHER);
    tr_bn_fetch(t, o->x, s, TR_BN_TOGETHER);
    if (o->dy2) tr_bn_fetch(t, o->dy2, s, TR_BN_TOGETHER);
    if (o->y) tr_bn_fetch(t, o->y, s, TR_BN_TOGETHER);
    if (o->dz && o->dz != o->dy) tr_bn_fetch_to_write(t, o->dz, s, TR_BN_TOGETHER);
}

#ifdef __AVX512BW__
/* One row's share of a vector. Where only y chooses, nothing is rounded: the elements go as they are. */
TR_INLINE tr_pairs grad_vector(operands r, size_t i, __mmask16 k)
{
    __m512i words = tr_pairs_words(r.dy, i, k);
    if (!r.dy2) {
        if (r.y) words = tr_pairs_words_above(tr_pairs_words(r.y, i, k), words);
        if (r.dz) tr_pairs_put_words(r.dz, i, k, words);
        return tr_pairs_apart(words);
    }
    tr_pairs d = tr_pairs_add(tr_pairs_apart(words), tr_pairs_load(r.dy2, i, k));
    if (r.y) d = tr_pairs_where_above(tr_pairs_load(r.y, i, k), d);
    tr_pairs_store(r.dz, i, k, d);
    return d;
}

TR_INLINE void grad_vectors_at(size_t take, operands o, const tr_bn_shape *s, size_t second,
                               grads *a, size_t i, __mmask16 k)
{
    const tr_pairs mean = tr_pairs_floats(a->mean, i, second, k);
    tr_pairs sum = tr_pairs_floats(a->d, i, second, k);
    tr_pairs sum_dx = tr_pairs_floats(a->dx, i, second, k);
#pragma GCC unroll 4
    for (size_t row = 0; row < take; row++) {
        const operands r = from(TR_BF16, &o, row * s->stride);
        const tr_pairs d = grad_vector(r, i, k);
        sum = tr_pairs_add(sum, d);
        sum_dx = tr_pairs_fma(d, tr_pairs_sub(tr_pairs_load(r.x, i, k), mean), sum_dx);
    }
    tr_pairs_put(a->d, i, second, k, sum);
    tr_pairs_put(a->dx, i, second, k, sum_dx);
}

TR_INLINE size_t grad_vectors(size_t take, operands o, const tr_bn_shape *s, size_t words, grads *a)
{
    const size_t second = tr_bn_second(s);
    size_t i = 0;
    for (; i + TR_PAIRS <= words; i += TR_PAIRS) grad_vectors_at(take, o, s, second, a, i, 0xffff);
    if (i < words) grad_vectors_at(take, o, s, second, a, i, tr_pairs_mask(i, words));
    return words;
}

TR_INLINE void grad_input_vector(const void *dz, const void *x, const float *a, const float *b,
                                 const float *c0, void *dx, size_t second, size_t i, __mmask16 k)
{
    const tr_pairs v = tr_pairs_fma(tr_pairs_floats(b, i, second, k), tr_pairs_load(x, i, k),
                                    tr_pairs_floats(c0, i, second, k));
    tr_pairs_store(dx, i, k,
                   tr_pairs_fma(tr_pairs_floats(a, i, second, k), tr_pairs_load(dz, i, k), v));
}

TR_INLINE size_t grad_input_vectors(const void *dz, const void *x, const float *a, const float *b,
                                    const float *c0, void *dx, size_t words, size_t second)
{
    size_t i = 0;
    for (; i + TR_PAIRS <= words; i += TR_PAIRS)
        grad_input_vector(dz, x, a, b, c0, dx, second, i, 0xffff);
    if (i < words) grad_input_vector(dz, x, a, b, c0, dx, second, i, tr_pairs_mask(i, words));
    return words;
}
#endif

/* `take` rows of n elements at once, so that sums are loaded and stored once for all of them. */
TR_INLINE void grad_rows(tr_dtype t, size_t take, operands o, const tr_bn_shape *s, size_t n,
                         grads *a)
{
    const size_t second = tr_bn_second(s), paired = tr_paired(t, n);
    size_t begin = 0;
#ifdef __AVX512BW__
    begin = grad_vectors(take, o, s, paired / 2, a);
#endif
    TR_SIMD for (size_t i = begin; i < paired / 2; i++)
    {
        const size_t j = second + i;
        const float mean = a->mean[i], mean2 = a->mean[j];
        float sum_d = a->d[i], sum_dx = a->dx[i], sum_d2 = a->d[j], sum_dx2 = a->dx[j];
#pragma GCC unroll 4
        for (size_t k = 0; k < take; k++) {
            const operands r = from(t, &o, k * s->stride);
            float d = tr_load_first(r.dy, i), d2 = tr_load_second(r.dy, i);
            if (o.dy2) {
                d += tr_load_first(r.dy2, i);
                d2 += tr_load_second(r.dy2, i);
            }
            if (o.y) {
                d = tr_load_first(r.y, i) > 0.0f ? d : 0.0f;
                d2 = tr_load_second(r.y, i) > 0.0f ? d2 : 0.0f;
            }
            if (o.dz) tr_store_pair(r.dz, i, d, d2);
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
    TR_SIMD for (size_t e = paired; e < n; e++)
    {
        const size_t c = tr_bn_single(t, e);
        float sum_d = a->d[c], sum_dx = a->dx[c];
#pragma GCC unroll 4
        for (size_t k = 0; k < take; k++) {
            const size_t at = k * s->stride + e;
            float d = tr_load(t, o.dy, at);
            if (o.dy2) d += tr_load(t, o.dy2, at);
            if (o.y) d = tr_load(t, o.y, at) > 0.0f ? d : 0.0f;
            if (o.dz) tr_store(t, o.dz, at, d);
            sum_d += d;
            sum_dx += d * (tr_load(t, o.x, at) - a->mean[c]);
        }
        a->d[c] = sum_d;
        a->dx[c] = sum_dx;
    }
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
            const operands row = from(t, &o, r * s->stride);
            if (r + TR_BN_TOGETHER <= end) {
                fetch(t, &row, s);
                grad_rows(t, TR_BN_TOGETHER, row, s, n, a);
                r += TR_BN_TOGETHER;
            } else {
                grad_rows(t, 1, row, s, n, a);
                r++;
            }
        }
        TR_SIMD for (size_t c = 0; c < s->width; c++)
        {
            sum_d[c] += (double)a->d[c];
            sum_dx[c] += (double)a->dx[c];
        }
    }
}

/* One plain loop for each set of operands. */
TR_INLINE void grad_body(tr_dtype t, operands o, const tr_bn_shape *s, grads *a, double *sum_d,
                         double *sum_dx)
{
    if (o.dy2 && o.y)
        grad_tile(t, o, s, a, sum_d, sum_dx);
    else if (o.dy2)
        grad_tile(t, (operands){o.dy, o.dy2, NULL, o.x, o.dz}, s, a, sum_d, sum_dx);
    else if (o.y)
        grad_tile(t, (operands){o.dy, NULL, o.y, o.x, o.dz}, s, a, sum_d, sum_dx);
    else
        grad_tile(t, (operands){o.dy, NULL, NULL, o.x, NULL}, s, a, sum_d, sum_dx);
}

void TR_LOOP(bn_grad_stats)(tr_dtype t, const void *dy, const void *dy2, const void *y,
                            const void *x, const float *mean, void *dz, size_t rows, size_t C,
                            double *sum_d, double *sum_dx)
{
    grads a;
    double wide_d[TR_BN_WIDTH], wide_dx[TR_BN_WIDTH];
    const operands all = {dy, dy2, y, x, dz};
    for (size_t c0 = 0; c0 < C;) {
        const tr_bn_shape s = tr_bn_shape_of(rows, C, c0);
        const size_t width = s.width / s.fold;
        tr_bn_repeat(t, &s, mean, c0, a.mean);
        TR_BY_TYPE(t, grad_body(T, from(T, &all, c0), &s, &a, wide_d, wide_dx));
        for (size_t c = 0; c < width; c++) {
            sum_d[c0 + c] = sum_dx[c0 + c] = 0.0;
            for (size_t f = 0; f < s.fold; f++) {
                const size_t place = tr_pair_place(t, s.width, f * width + c);
                sum_d[c0 + c] += wide_d[place];
                sum_dx[c0 + c] += wide_dx[place];
            }
        }
        c0 += width;
    }
}

TR_INLINE float blend(float a, float dz, float b, float x, float c0)
{
    const float v = b * x + c0;
    return a * dz + v;
}

TR_INLINE void grad_input_rows(tr_dtype t, const void *dz, const void *x, const float *a,
                               const float *b, const float *c0, void *dx, const tr_bn_shape *s)
{
    const size_t second = tr_bn_second(s);
    for (size_t r = 0; r <= s->rows; r++) {
        const size_t at = r * s->stride, n = tr_bn_count(s, r), paired = tr_paired(t, n);
        const void *dzr = tr_from(t, dz, at), *xr = tr_from(t, x, at);
        void *dxr = tr_into(t, dx, at);
        size_t begin = 0;
#ifdef __AVX512BW__
        begin = grad_input_vectors(dzr, xr, a, b, c0, dxr, paired / 2, second);
#endif
        TR_SIMD for (size_t i = begin; i < paired / 2; i++)
        {
            const size_t j = second + i;
            tr_store_pair(dxr, i,
                          blend(a[i], tr_load_first(dzr, i), b[i], tr_load_first(xr, i), c0[i]),
                          blend(a[j], tr_load_second(dzr, i), b[j], tr_load_second(xr, i), c0[j]));
        }
        TR_SIMD for (size_t e = paired; e < n; e++)
        {
            const size_t c = tr_bn_single(t, e);
            tr_store(t, dxr, e, blend(a[c], tr_load(t, dzr, e), b[c], tr_load(t, xr, e), c0[c]));
        }
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
