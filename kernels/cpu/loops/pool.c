/* Pooling over channels-last images. A window is walked place by place with a block of channels in
 * registers; a gradient walks the windows that cover one input place, so that sums stay in float32
 * until they are complete and threads may take any rows. */
#include "kernels/cpu/loops/vec.h"

#ifdef __AVX512BW__
#include <immintrin.h>
#endif

#define BLOCK 64
#define SMALL 16

/* Part of an axis: [begin, end). */
typedef struct {
    int64_t begin, end;
} span;

TR_INLINE int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

TR_INLINE int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Places of window `o` that lie in the image, as positions in the window. */
TR_INLINE span inside(const tr_cpu_pool *p, int axis, int64_t o, int64_t size)
{
    int64_t first = o * p->stride[axis] - p->padding[axis];
    return (span){at_least(0, -first), at_most(p->kernel[axis], size - first)};
}

/* Windows that cover place `i`. */
TR_INLINE span covering(const tr_cpu_pool *p, int axis, int64_t i, int64_t windows)
{
    /* 32-bit divisions: an image's side is far below 2^31, and they cost a third. */
    int64_t from = i + p->padding[axis] - p->kernel[axis] + 1;
    uint32_t s = (uint32_t)p->stride[axis], last = (uint32_t)(i + p->padding[axis]) / s;
    return (span){from > 0 ? ((uint32_t)from + s - 1) / s : 0, at_most(windows, (int64_t)last + 1)};
}

/* The same for the place behind `i - 1`, whose windows `s` holds: without a division. */
TR_INLINE span covering_next(const tr_cpu_pool *p, int axis, span s, int64_t i, int64_t windows)
{
    const int64_t at = i + p->padding[axis];
    if (s.end < windows && s.end * p->stride[axis] <= at) s.end++;
    if (s.begin * p->stride[axis] + p->kernel[axis] <= at) s.begin++;
    return s;
}

/* Places of window `o` that count in an average; behind the padding at the end there are none. */
TR_INLINE int64_t counted(const tr_cpu_pool *p, int axis, int64_t o, int64_t size)
{
    const int64_t first = o * p->stride[axis] - p->padding[axis];
    if (p->include_pad) return at_most(p->kernel[axis], size + p->end[axis] - first);
    const span s = inside(p, axis, o, size);
    return s.end - s.begin;
}

TR_INLINE float divisor(const tr_cpu_pool *p, int64_t oh, int64_t ow)
{
    return (float)(counted(p, 0, oh, p->H) * counted(p, 1, ow, p->W));
}

/* All windows average over as many places: the first and the last have the fewest. */
TR_INLINE bool even(const tr_cpu_pool *p)
{
    return counted(p, 0, 0, p->H) == p->kernel[0] && counted(p, 1, 0, p->W) == p->kernel[1] &&
           counted(p, 0, p->OH - 1, p->H) == p->kernel[0] &&
           counted(p, 1, p->OW - 1, p->W) == p->kernel[1];
}

/* h, w: what of the window lies in the image, whose first row and column are top and left. */
TR_INLINE void max_block(tr_dtype t, const tr_cpu_pool *p, const void *image, int64_t top,
                         int64_t left, span h, span w, size_t c, size_t n, void *y, void *indices,
                         size_t to)
{
    float best[BLOCK];
    int32_t place[BLOCK];
    const int32_t first = (int32_t)(h.begin * p->kernel[1] + w.begin);
    for (size_t i = 0; i < n; i++) {
        best[i] = -INFINITY;
        place[i] = first;
    }
    for (int64_t kh = h.begin; kh < h.end; kh++)
        for (int64_t kw = w.begin; kw < w.end; kw++) {
            const size_t from = (size_t)((top + kh) * p->W + left + kw) * p->C + c;
            const int32_t here = (int32_t)(kh * p->kernel[1] + kw);
            TR_SIMD for (size_t i = 0; i < n; i++)
            {
                const float v = tr_load(t, image, from + i);
                const bool more = v > best[i] || v != v;
                best[i] = more ? v : best[i];
                place[i] = more ? here : place[i];
            }
        }
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, to + i, best[i]);
    if (!indices) return;
    if (p->wide)
        TR_SIMD for (size_t i = 0; i < n; i++)((int32_t *)indices)[to + i] = place[i];
    else
        TR_SIMD for (size_t i = 0; i < n; i++)((uint8_t *)indices)[to + i] = (uint8_t)place[i];
}

#ifdef __AVX512BW__
/* The same of bfloat16 as it lies in memory, where a place fits 8 bits: 32 at once. Compared by
 * whole numbers in the same order, both zeros one, NaN above all. */
TR_INLINE void max_block_bits(const tr_cpu_pool *p, const tr_bf16 *image, int64_t top, int64_t left,
                              span h, span w, size_t c, size_t n, tr_bf16 *y, uint8_t *indices,
                              size_t to)
{
    const __m512i sizes = _mm512_set1_epi16(0x7fff), infinity = _mm512_set1_epi16(0x7f80);
    for (size_t i = 0; i < n; i += 32) {
        const __mmask32 k = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
        __m512i best = _mm512_set1_epi16(-0x7f80), value = _mm512_set1_epi16((short)0xff80);
        __m512i place = _mm512_set1_epi16((short)(h.begin * p->kernel[1] + w.begin));
        for (int64_t kh = h.begin; kh < h.end; kh++)
            for (int64_t kw = w.begin; kw < w.end; kw++) {
                const size_t from = (size_t)((top + kh) * p->W + left + kw) * p->C + c + i;
                const __m512i x = _mm512_maskz_loadu_epi16(k, image + from);
                const __m512i size = _mm512_and_si512(x, sizes);
                const __mmask32 nan = _mm512_cmpgt_epi16_mask(size, infinity);
                __m512i order = _mm512_mask_sub_epi16(size, _mm512_movepi16_mask(x),
                                                      _mm512_setzero_si512(), size);
                order = _mm512_mask_mov_epi16(order, nan, sizes);
                const __mmask32 more = _mm512_cmpgt_epi16_mask(order, best) | nan;
                best = _mm512_mask_mov_epi16(best, more, order);
                value = _mm512_mask_mov_epi16(value, more, x);
                place = _mm512_mask_set1_epi16(place, more, (short)(kh * p->kernel[1] + kw));
            }
        _mm512_mask_storeu_epi16(y + to + i, k, value);
        if (indices) _mm256_mask_storeu_epi8(indices + to + i, k, _mm512_cvtepi16_epi8(place));
    }
}
#endif

/* h, w: the windows that cover (ih, iw). */
TR_INLINE void max_grad_block(tr_dtype t, const tr_cpu_pool *p, const void *dy, const void *indices,
                              size_t image, int64_t ih, int64_t iw, span h, span w, size_t c,
                              size_t n, void *dx, size_t to)
{
    float sum[BLOCK] = {0};
    for (int64_t oh = h.begin; oh < h.end; oh++)
        for (int64_t ow = w.begin; ow < w.end; ow++) {
            int64_t kh = ih + p->padding[0] - oh * p->stride[0];
            int64_t kw = iw + p->padding[1] - ow * p->stride[1];
            int32_t here = (int32_t)(kh * p->kernel[1] + kw);
            size_t from = image + (size_t)(oh * p->OW + ow) * p->C + c;
            if (p->wide) {
                const int32_t *place = (const int32_t *)indices + from;
                TR_SIMD for (size_t i = 0; i < n; i++) sum[i] +=
                    place[i] == here ? tr_load(t, dy, from + i) : 0;
            } else {
                const uint8_t *place = (const uint8_t *)indices + from;
                TR_SIMD for (size_t i = 0; i < n; i++) sum[i] +=
                    place[i] == here ? tr_load(t, dy, from + i) : 0;
            }
        }
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, dx, to + i, sum[i]);
}

/* share: 1 over the places that count. */
TR_INLINE void avg_block(tr_dtype t, const tr_cpu_pool *p, const void *image, int64_t top,
                         int64_t left, span h, span w, float share, size_t c, size_t n, void *y,
                         size_t to)
{
    float sum[BLOCK] = {0};
    for (int64_t kh = h.begin; kh < h.end; kh++)
        for (int64_t kw = w.begin; kw < w.end; kw++) {
            const size_t from = (size_t)((top + kh) * p->W + left + kw) * p->C + c;
            TR_SIMD for (size_t i = 0; i < n; i++) sum[i] += tr_load(t, image, from + i);
        }
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, to + i, sum[i] * share);
}

/* share: 1 over the places of a window, where all have as many; else 0. */
TR_INLINE void avg_grad_block(tr_dtype t, const tr_cpu_pool *p, const void *dy, size_t image,
                              span h, span w, float share, size_t c, size_t n, void *dx, size_t to)
{
    float sum[BLOCK] = {0};
    for (int64_t oh = h.begin; oh < h.end; oh++)
        for (int64_t ow = w.begin; ow < w.end; ow++) {
            size_t from = image + (size_t)(oh * p->OW + ow) * p->C + c;
            const float scale = share > 0 ? share : 1 / divisor(p, oh, ow);
            TR_SIMD for (size_t i = 0; i < n; i++) sum[i] += scale * tr_load(t, dy, from + i);
        }
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, dx, to + i, sum[i]);
}

/* Runs `call` for every block of channels of one place, with: c, n, and `to`, the block's offset,
 * which is the place's at first. Constant block sizes let the compiler keep whole blocks in
 * registers. */
#define EACH_CHANNEL(call)                                                                         \
    do {                                                                                           \
        size_t c = 0;                                                                              \
        for (; c + BLOCK <= p->C; c += BLOCK, to += BLOCK) {                                       \
            enum { n = BLOCK };                                                                    \
            call;                                                                                  \
        }                                                                                          \
        for (; c + SMALL <= p->C; c += SMALL, to += SMALL) {                                       \
            enum { n = SMALL };                                                                    \
            call;                                                                                  \
        }                                                                                          \
        if (c < p->C) {                                                                            \
            const size_t n = p->C - c;                                                             \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* For every window of rows [begin, end) of y: sample, row, col, top, left, and h and w, what of it
 * lies in the image. */
#define EACH_WINDOW(call)                                                                          \
    for (size_t r = begin; r < end; r++) {                                                         \
        const size_t sample = r / (size_t)p->OH;                                                   \
        const int64_t row = (int64_t)(r % (size_t)p->OH);                                          \
        const int64_t top = row * p->stride[0] - p->padding[0];                                    \
        const span h = inside(p, 0, row, p->H);                                                    \
        int64_t left = -p->padding[1];                                                             \
        for (int64_t col = 0; col < p->OW; col++, left += p->stride[1]) {                          \
            const span w = inside(p, 1, col, p->W);                                                \
            size_t to = (r * (size_t)p->OW + (size_t)col) * p->C;                                  \
            EACH_CHANNEL(call);                                                                    \
        }                                                                                          \
    }

/* For every place of rows [begin, end) of dx: sample, row (in the image), col, and h and w, the
 * windows that cover it. */
#define EACH_GRAD_BLOCK(call)                                                                      \
    for (size_t r = begin; r < end; r++) {                                                         \
        const size_t sample = r / (size_t)p->H;                                                    \
        const int64_t row = (int64_t)(r % (size_t)p->H);                                           \
        const span h = covering(p, 0, row, p->OH);                                                 \
        span w = covering(p, 1, 0, p->OW);                                                         \
        for (int64_t col = 0; col < p->W; col++) {                                                 \
            size_t to = (r * (size_t)p->W + (size_t)col) * p->C;                                   \
            if (col > 0) w = covering_next(p, 1, w, col, p->OW);                                   \
            EACH_CHANNEL(call);                                                                    \
        }                                                                                          \
    }

/* ---- Windows side by side: no place lies in two, so that a gradient goes from each window to its
 * places - */

static bool side_by_side(const tr_cpu_pool *p)
{
    return p->stride[0] == p->kernel[0] && p->stride[1] == p->kernel[1] && p->padding[0] == 0 &&
           p->padding[1] == 0;
}

TR_INLINE void max_grad_place(tr_dtype t, bool is_wide, const void *dy, const void *indices,
                              size_t from, int32_t here, size_t n, void *dx, size_t to)
{
    const int32_t *wide = (const int32_t *)indices + from;
    const uint8_t *narrow = (const uint8_t *)indices + from;
    /* bit by bit: no branch, and no load that depends on one; in lanes as wide as the elements */
    if (t == TR_BF16) TR_SIMD for (size_t i = 0; i < n; i++)
        {
            const uint16_t place = narrow[i];
            const bool keep = is_wide ? wide[i] == here : place == (uint16_t)here;
            ((tr_bf16 *)dx)[to + i] = ((const tr_bf16 *)dy)[from + i] & (keep ? 0xffff : 0);
        }
    else
        TR_SIMD for (size_t i = 0; i < n; i++)
        {
            const uint32_t keep =
                (is_wide ? wide[i] == here : narrow[i] == (uint8_t)here) ? ~0u : 0;
            ((float *)dx)[to + i] = tr_float(tr_bits(((const float *)dy)[from + i]) & keep);
        }
}

TR_INLINE void max_grad_window(tr_dtype t, bool is_wide, const tr_cpu_pool *p, const void *dy,
                               const void *indices, size_t from, int32_t here, size_t places,
                               size_t n, void *dx, size_t to)
{
    for (size_t k = 0; k < places; k++)
        max_grad_place(t, is_wide, dy, indices, from, here + (int32_t)k, n, dx, to + k * p->C);
}

TR_INLINE void avg_grad_window(tr_dtype t, const tr_cpu_pool *p, const void *dy, size_t from,
                               float share, size_t places, size_t n, void *dx, size_t to)
{
    float part[BLOCK]; /* as it is stored */
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, part, i, share * tr_load(t, dy, from + i));
    for (size_t k = 0; k < places; k++)
        memcpy(tr_into(t, dx, to + k * p->C), part, n * (t == TR_BF16 ? 2 : 4));
}

/* For every window of rows [begin, end) of dx: from (where its gradients are), places (how many of
 * the row are its own), here (the first one's place in the window). What no window reaches is
 * zero. */
#define EACH_OWN_WINDOW(t, call)                                                                   \
    for (size_t r = begin; r < end; r++) {                                                         \
        const size_t sample = r / (size_t)p->H, row = r % (size_t)p->H;                            \
        const size_t kh = (size_t)p->kernel[0], kw = (size_t)p->kernel[1], oh = row / kh;          \
        const size_t reached =                                                                     \
            oh < (size_t)p->OH ? tr_least((size_t)p->OW * kw, (size_t)p->W) : 0;                   \
        const int32_t here = (int32_t)(row % kh * kw);                                             \
        size_t window = (sample * (size_t)p->OH + oh) * (size_t)p->OW * p->C;                      \
        (void)here;                                                                                \
        for (size_t col = 0; col < reached; col += kw, window += p->C) {                           \
            const size_t places = tr_least(kw, reached - col);                                     \
            size_t to = (r * (size_t)p->W + col) * p->C, from = window;                            \
            EACH_CHANNEL({                                                                         \
                call;                                                                              \
                from += n;                                                                         \
            });                                                                                    \
        }                                                                                          \
        memset(tr_into(t, dx, (r * (size_t)p->W + reached) * p->C), 0,                             \
               ((size_t)p->W - reached) * p->C * (t == TR_BF16 ? 2 : 4));                          \
    }

void TR_LOOP(max_pool)(const tr_cpu_pool *p, const void *x, void *y, void *indices, size_t begin,
                       size_t end)
{
    const size_t image = (size_t)(p->H * p->W) * p->C;
#ifdef __AVX512BW__
    if (p->type == TR_BF16 && !p->wide) {
        EACH_WINDOW(max_block_bits(p, (const tr_bf16 *)x + sample * image, top, left, h, w, c, n, y,
                                   indices, to))
        return;
    }
#endif
    TR_BY_TYPE(p->type, EACH_WINDOW(max_block(T, p, tr_from(T, x, sample * image), top, left, h, w,
                                              c, n, y, indices, to)));
}

/* y = max(y, x), of C elements. */
TR_INLINE void raise_steps(tr_dtype t, void *y, const void *x, size_t n)
{
    if (t == TR_I8) {
        int8_t *to = y;
        TR_SIMD for (size_t i = 0; i < n; i++)
        {
            const int8_t v = ((const int8_t *)x)[i];
            to[i] = v > to[i] ? v : to[i];
        }
    } else {
        uint8_t *to = y;
        TR_SIMD for (size_t i = 0; i < n; i++)
        {
            const uint8_t v = ((const uint8_t *)x)[i];
            to[i] = v > to[i] ? v : to[i];
        }
    }
}

void TR_LOOP(max_pool_steps)(const tr_cpu_pool *p, const void *x, void *y, size_t begin, size_t end)
{
    for (size_t r = begin; r < end; r++) {
        const int64_t oh = (int64_t)(r % (size_t)p->OH);
        const char *image = (const char *)x + r / (size_t)p->OH * (size_t)(p->H * p->W) * p->C;
        const span h = inside(p, 0, oh, p->H);
        const int64_t top = oh * p->stride[0] - p->padding[0];
        char *to = (char *)y + r * (size_t)p->OW * p->C;
        for (int64_t ow = 0; ow < p->OW; ow++, to += p->C) {
            const span w = inside(p, 1, ow, p->W);
            const int64_t left = ow * p->stride[1] - p->padding[1];
            memset(to, p->type == TR_I8 ? -128 : 0, p->C);
            for (int64_t kh = h.begin; kh < h.end; kh++)
                for (int64_t kw = w.begin; kw < w.end; kw++)
                    raise_steps(p->type, to, image + (size_t)((top + kh) * p->W + left + kw) * p->C,
                                p->C);
        }
    }
}

/* sums += x, or = x where it is the first. */
TR_INLINE void add_steps(tr_dtype t, bool first, int32_t *sums, const void *x, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        const int32_t v = t == TR_I8 ? ((const int8_t *)x)[i] : ((const uint8_t *)x)[i];
        sums[i] = first ? v : sums[i] + v;
    }
}

TR_INLINE void store_steps(bool to_signed, const int32_t *sums, float factor, uint8_t *y, size_t n)
{
    const float least = to_signed ? -128.0f : 0.0f, most = least + 255;
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        float v = (float)sums[i] * factor;
        v = v > least ? v : least;
        v = v < most ? v : most;
        y[i] = (uint8_t)(int32_t)TR_NEAREST(v);
    }
}

TR_INLINE void avg_steps_block(const tr_cpu_pool *p, const char *image, int64_t oh, int64_t ow,
                               size_t c, size_t n, bool to_signed, float factor, uint8_t *y)
{
    int32_t sums[BLOCK];
    bool first = true;
    const span h = inside(p, 0, oh, p->H), w = inside(p, 1, ow, p->W);
    const int64_t top = oh * p->stride[0] - p->padding[0], left = ow * p->stride[1] - p->padding[1];
    for (int64_t kh = h.begin; kh < h.end; kh++)
        for (int64_t kw = w.begin; kw < w.end; kw++, first = false) {
            const char *x = image + (size_t)((top + kh) * p->W + left + kw) * p->C + c;
            if (p->type == TR_I8)
                add_steps(TR_I8, first, sums, x, n);
            else
                add_steps(TR_U8, first, sums, x, n);
        }
    if (first) memset(sums, 0, sizeof sums); /* a window of padding alone */
    store_steps(to_signed, sums, factor / divisor(p, oh, ow), y, n);
}

void TR_LOOP(avg_pool_steps)(const tr_cpu_pool *p, bool to_signed, float factor, const void *x,
                             void *y, size_t begin, size_t end)
{
    for (size_t r = begin; r < end; r++) {
        const int64_t oh = (int64_t)(r % (size_t)p->OH);
        const char *image = (const char *)x + r / (size_t)p->OH * (size_t)(p->H * p->W) * p->C;
        uint8_t *to = (uint8_t *)y + r * (size_t)p->OW * p->C;
        for (int64_t ow = 0; ow < p->OW; ow++, to += p->C)
            for (size_t c = 0; c < p->C; c += BLOCK)
                avg_steps_block(p, image, oh, ow, c, tr_least(BLOCK, p->C - c), to_signed, factor,
                                to + c);
    }
}

void TR_LOOP(max_pool_grad)(const tr_cpu_pool *p, const void *dy, const void *indices, void *dx,
                            size_t begin, size_t end)
{
    const size_t image = (size_t)(p->OH * p->OW) * p->C;
    if (!side_by_side(p))
        TR_BY_TYPE(p->type, EACH_GRAD_BLOCK(max_grad_block(T, p, dy, indices, sample * image, row,
                                                           col, h, w, c, n, dx, to)));
    else if (p->wide)
        TR_BY_TYPE(p->type, EACH_OWN_WINDOW(T, max_grad_window(T, true, p, dy, indices, from, here,
                                                               places, n, dx, to)));
    else
        TR_BY_TYPE(p->type, EACH_OWN_WINDOW(T, max_grad_window(T, false, p, dy, indices, from, here,
                                                               places, n, dx, to)));
}

void TR_LOOP(avg_pool)(const tr_cpu_pool *p, const void *x, void *y, size_t begin, size_t end)
{
    const size_t image = (size_t)(p->H * p->W) * p->C;
    const float share = even(p) ? 1 / divisor(p, 0, 0) : 0;
    TR_BY_TYPE(p->type,
               EACH_WINDOW(avg_block(T, p, tr_from(T, x, sample * image), top, left, h, w,
                                     share > 0 ? share : 1 / divisor(p, row, col), c, n, y, to)));
}

void TR_LOOP(avg_pool_grad)(const tr_cpu_pool *p, const void *dy, void *dx, size_t begin,
                            size_t end)
{
    const size_t image = (size_t)(p->OH * p->OW) * p->C;
    const float share = even(p) ? 1 / divisor(p, 0, 0) : 0;
    if (share > 0 && side_by_side(p))
        TR_BY_TYPE(p->type,
                   EACH_OWN_WINDOW(T, avg_grad_window(T, p, dy, from, share, places, n, dx, to)));
    else
        TR_BY_TYPE(p->type, EACH_GRAD_BLOCK({
                       (void)row;
                       avg_grad_block(T, p, dy, sample * image, h, w, share, c, n, dx, to);
                   }));
}
