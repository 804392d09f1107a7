/* Attention and its gradient in plain C in double that holds the whole matrix, and comparing with
 * it.
 *
 * An element's error is measured by the sum of the absolute values of the terms that make it, with
 * those of delta for gradients: float32 holds some hundred roundings of 2^-24 of it; with 16 bits
 * the probabilities, the scores' gradients, y (in delta) and the result are rounded once each. */
#ifndef TR_TEST_ATTENTION_REFERENCE_H
#define TR_TEST_ATTENTION_REFERENCE_H

#include "tests/unit/cpu/attention_trial.h"

#include <stdlib.h>

/* What PyTorch's ALiBi code gives for these numbers of heads (Press et al. 2022). */
static const double slopes6[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
static const double slopes3[] = {0.0625, 0.00390625, 0.25};

static inline size_t elements(const shape *s, int which)
{
    const size_t q = (size_t)(s->samples * s->queries * s->heads);
    const size_t kv = (size_t)(s->samples * s->keys * s->kv_heads);
    return which == LSE ? q : (which == Y || which == DQ ? q : kv) * (size_t)s->D;
}

static inline double value(const trial *t, int what, int64_t n, int64_t i, int64_t head, int64_t d)
{
    const int id[] = {t->q, t->s->packed ? t->q : t->k, t->s->packed ? t->q : t->v};
    return h_get(&t->h, id[what], place(t->s, what, n, i, head, d));
}

static inline bool sees(const shape *s, int64_t n, int64_t i, int64_t j)
{
    if (j >= length_of(s, n) || (s->causal && j > i)) return false;
    return s->window == 0 || llabs(i - j) < s->window;
}

static inline double slope_of(const shape *s, int64_t head)
{
    if (!s->alibi) return 0;
    assert_true(s->heads == 6 || s->heads == 3 || s->heads == 2);
    return s->heads == 6   ? slopes6[head]
           : s->heads == 3 ? slopes3[head]
           : head          ? 1.0 / 256
                           : 1.0 / 16;
}

static inline double keeps(const trial *t, int64_t n, int64_t head, int64_t i, int64_t j)
{
    const shape *s = t->s;
    if (s->dropout == 0) return 1;
    const uint64_t of_head = (t->h.run.ordinal + (uint64_t)n) * (uint64_t)s->heads + (uint64_t)head;
    const uint64_t row = of_head * (1 << 24) + (uint64_t)i;
    const tr_philox r = tr_philox_at(t->h.run.seed, TR_RNG_DROPOUT, (uint32_t)t->h.op.layer_index,
                                     row, (uint32_t)(j / 4));
    return tr_uniform(r.v[j % 4]) >= (float)s->dropout ? 1 / (1 - s->dropout) : 0;
}

/* Probabilities of one row. Returns the log of the sum. */
static inline double row_of(const trial *t, int64_t n, int64_t head, int64_t i, double *p)
{
    const shape *s = t->s;
    const double scale = s->scale > 0 ? s->scale : 1 / sqrt((double)s->D);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->keys; j++) {
        p[j] = -INFINITY;
        if (!sees(s, n, i, j)) continue;
        p[j] = 0;
        for (int64_t d = 0; d < s->D; d++)
            p[j] +=
                value(t, 0, n, i, head, d) * value(t, 1, n, j, head / (s->heads / s->kv_heads), d);
        p[j] = p[j] * scale - slope_of(s, head) * fabs((double)(i - j));
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < s->keys; j++) sum += p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
    for (int64_t j = 0; j < s->keys; j++) p[j] /= sum > 0 ? sum : 1;
    return log(sum) + top;
}

static inline void add(trial *t, int which, size_t at, double v, double size)
{
    t->want[which][at] += v;
    t->size[which][at] += fabs(size);
}

/* One row's share of everything. */
static inline void reference_row(trial *t, int64_t n, int64_t head, int64_t i, double *p)
{
    const shape *s = t->s;
    const int64_t D = s->D, kv = head / (s->heads / s->kv_heads);
    const double scale = s->scale > 0 ? s->scale : 1 / sqrt((double)D);
    const size_t row = (size_t)((n * s->queries + i) * s->heads + head);
    const size_t lse = (size_t)((n * s->heads + head) * s->queries + i);
    const double total = row_of(t, n, head, i, p);
    double delta = 0, delta_size = 0;
    add(t, LSE, lse, total, fabs(total) + 1);
    for (int64_t j = 0; j < s->keys; j++)
        for (int64_t d = 0; d < D; d++) {
            const double v = p[j] * keeps(t, n, head, i, j) * value(t, 2, n, j, kv, d);
            add(t, Y, row * (size_t)D + (size_t)d, v, v);
        }
    for (int64_t d = 0; d < D; d++) {
        const double dy = h_get(&t->h, t->dy, row * (size_t)D + (size_t)d);
        delta += dy * t->want[Y][row * (size_t)D + (size_t)d];
        delta_size += fabs(dy) * t->size[Y][row * (size_t)D + (size_t)d];
    }
    for (int64_t j = 0; j < s->keys; j++) {
        const double keep = keeps(t, n, head, i, j);
        double dp = 0, dp_size = 0;
        for (int64_t d = 0; d < D; d++) {
            const double v =
                h_get(&t->h, t->dy, row * (size_t)D + (size_t)d) * keep * value(t, 2, n, j, kv, d);
            dp += v;
            dp_size += fabs(v);
        }
        const double ds = p[j] * (dp - delta) * scale, size = p[j] * (dp_size + delta_size) * scale;
        for (int64_t d = 0; d < D; d++) {
            const size_t key = (size_t)(((n * s->keys + j) * s->kv_heads + kv) * D + d);
            const double q = value(t, 0, n, i, head, d), k = value(t, 1, n, j, kv, d);
            const double v = p[j] * keep * h_get(&t->h, t->dy, row * (size_t)D + (size_t)d);
            add(t, DQ, row * (size_t)D + (size_t)d, ds * k, size * k);
            add(t, DK, key, ds * q, size * q);
            add(t, DV, key, v, v);
        }
    }
}

static inline void reference(trial *t)
{
    const shape *s = t->s;
    double *p = doubles((size_t)s->keys);
    for (int which = Y; which <= DV; which++) {
        t->want[which] = doubles(elements(s, which));
        t->size[which] = doubles(elements(s, which));
    }
    for (int64_t n = 0; n < s->samples; n++)
        for (int64_t head = 0; head < s->heads; head++)
            for (int64_t i = 0; i < s->queries; i++) reference_row(t, n, head, i, p);
    tr_free(p);
}

static inline double bound(tr_precision p)
{
    return p == TR_PRECISION_BF16 ? 0x1p-6 : p == TR_PRECISION_FP16 ? 0x1p-9 : 0x1p-16;
}

static inline void compare(const trial *t, const trial *of, int which, const char *name,
                           tr_precision p)
{
    static const int what[] = {0, 0, 0, 1, 2};
    const shape *s = t->s;
    const int64_t heads = which >= DK ? s->kv_heads : s->heads;
    const int64_t rows = which >= DK ? s->keys : s->queries;
    const int id = which == Y                 ? t->y
                   : which == LSE             ? t->lse
                   : s->packed || which == DQ ? t->dq
                   : which == DK              ? t->dk
                                              : t->dv;
    const double tolerance = which == LSE ? bound(TR_PRECISION_FP32) : bound(p);
    for (size_t e = 0; e < elements(s, which); e++) {
        const int64_t d = (int64_t)e % s->D, row = (int64_t)e / s->D;
        const size_t at = which <= LSE ? e
                                       : place(s, what[which], row / heads / rows,
                                               row / heads % rows, row % heads, d);
        const double got = h_get(&t->h, id, at), want = of->want[which][e];
        if (which == LSE && want == -INFINITY && got == want) continue;
        /* 2^-24: a sixteen-bit number below the least normal one of float16 is that far off */
        if (!(fabs(got - want) <= tolerance * of->size[which][e] + 0x1p-24))
            fail_msg("%s, %s, precision %d: element %zu is %.9g, expected %.9g (of size %.3g)",
                     s->what, name, (int)p, e, got, want, of->size[which][e]);
    }
}

static inline void compare_gradients(const trial *backward, tr_precision p)
{
    compare(backward, backward, DQ, "dq", p);
    compare(backward, backward, DK, "dk", p);
    compare(backward, backward, DV, "dv", p);
}

/* All results of both, after reference(backward). */
static inline void compare_both(const trial *forward, const trial *backward, tr_precision p)
{
    compare(forward, backward, Y, "y", p);
    compare(forward, backward, LSE, "lse", p);
    compare_gradients(backward, p);
}

#endif
