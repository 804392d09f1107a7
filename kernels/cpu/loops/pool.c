/* Pooling over channels-last images. A window is walked place by place with a block of channels in
 * registers; a gradient walks the windows that cover one input place, so that sums stay in float32
 * until they are complete and threads may take any rows. */
#include "kernels/cpu/loops/vec.h"

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

TR_INLINE float divisor(const tr_cpu_pool *p, int64_t oh, int64_t ow)
{
    if (p->include_pad) return (float)(p->kernel[0] * p->kernel[1]);
    span h = inside(p, 0, oh, p->H), w = inside(p, 1, ow, p->W);
    return (float)((h.end - h.begin) * (w.end - w.begin));
}

TR_INLINE void max_block(tr_dtype t, const tr_cpu_pool *p, const void *image, int64_t oh,
                         int64_t ow, size_t c, size_t n, void *y, void *indices, size_t to)
{
    float best[BLOCK];
    int32_t place[BLOCK];
    span h = inside(p, 0, oh, p->H), w = inside(p, 1, ow, p->W);
    int64_t top = oh * p->stride[0] - p->padding[0], left = ow * p->stride[1] - p->padding[1];
    int32_t first = (int32_t)(h.begin * p->kernel[1] + w.begin);
    for (size_t i = 0; i < n; i++) {
        best[i] = -INFINITY;
        place[i] = first;
    }
    for (int64_t kh = h.begin; kh < h.end; kh++)
        for (int64_t kw = w.begin; kw < w.end; kw++) {
            size_t from = (size_t)((top + kh) * p->W + left + kw) * p->C + c;
            int32_t here = (int32_t)(kh * p->kernel[1] + kw);
            TR_SIMD for (size_t i = 0; i < n; i++)
            {
                float v = tr_load(t, image, from + i);
                bool more = v > best[i] || v != v;
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

TR_INLINE void max_grad_block(tr_dtype t, const tr_cpu_pool *p, const void *dy, const void *indices,
                              size_t image, int64_t ih, int64_t iw, size_t c, size_t n, void *dx,
                              size_t to)
{
    float sum[BLOCK] = {0};
    span h = covering(p, 0, ih, p->OH), w = covering(p, 1, iw, p->OW);
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

TR_INLINE void avg_block(tr_dtype t, const tr_cpu_pool *p, const void *image, int64_t oh,
                         int64_t ow, size_t c, size_t n, void *y, size_t to)
{
    float sum[BLOCK] = {0};
    span h = inside(p, 0, oh, p->H), w = inside(p, 1, ow, p->W);
    int64_t top = oh * p->stride[0] - p->padding[0], left = ow * p->stride[1] - p->padding[1];
    for (int64_t kh = h.begin; kh < h.end; kh++)
        for (int64_t kw = w.begin; kw < w.end; kw++) {
            size_t from = (size_t)((top + kh) * p->W + left + kw) * p->C + c;
            TR_SIMD for (size_t i = 0; i < n; i++) sum[i] += tr_load(t, image, from + i);
        }
    float scale = 1 / divisor(p, oh, ow);
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, to + i, sum[i] * scale);
}

TR_INLINE void avg_grad_block(tr_dtype t, const tr_cpu_pool *p, const void *dy, size_t image,
                              int64_t ih, int64_t iw, size_t c, size_t n, void *dx, size_t to)
{
    float sum[BLOCK] = {0};
    span h = covering(p, 0, ih, p->OH), w = covering(p, 1, iw, p->OW);
    for (int64_t oh = h.begin; oh < h.end; oh++)
        for (int64_t ow = w.begin; ow < w.end; ow++) {
            size_t from = image + (size_t)(oh * p->OW + ow) * p->C + c;
            float scale = 1 / divisor(p, oh, ow);
            TR_SIMD for (size_t i = 0; i < n; i++) sum[i] += scale * tr_load(t, dy, from + i);
        }
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, dx, to + i, sum[i]);
}

/* Runs `call` for every block of channels of every place of rows [begin, end) of `height` x `width`
 * images, with: row (in the image), col, c, n, and `to`, the block's offset. Constant block sizes
 * let the compiler keep whole blocks in registers. */
#define EACH_BLOCK(height, width, call)                                                            \
    for (size_t r = begin; r < end; r++) {                                                         \
        size_t sample = r / (size_t)(height), c;                                                   \
        int64_t row = (int64_t)(r % (size_t)(height));                                             \
        for (int64_t col = 0; col < (width); col++) {                                              \
            size_t to = (r * (size_t)(width) + (size_t)col) * p->C;                                \
            for (c = 0; c + BLOCK <= p->C; c += BLOCK, to += BLOCK) {                              \
                enum { n = BLOCK };                                                                \
                call;                                                                              \
            }                                                                                      \
            for (; c + SMALL <= p->C; c += SMALL, to += SMALL) {                                   \
                enum { n = SMALL };                                                                \
                call;                                                                              \
            }                                                                                      \
            if (c < p->C) {                                                                        \
                size_t n = p->C - c;                                                               \
                call;                                                                              \
            }                                                                                      \
        }                                                                                          \
    }

void TR_LOOP(max_pool)(const tr_cpu_pool *p, const void *x, void *y, void *indices, size_t begin,
                       size_t end)
{
    const size_t image = (size_t)(p->H * p->W) * p->C;
    TR_BY_TYPE(p->type, EACH_BLOCK(p->OH, p->OW,
                                   max_block(T, p, tr_from(T, x, sample * image), row, col, c, n, y,
                                             indices, to)));
}

void TR_LOOP(max_pool_grad)(const tr_cpu_pool *p, const void *dy, const void *indices, void *dx,
                            size_t begin, size_t end)
{
    const size_t image = (size_t)(p->OH * p->OW) * p->C;
    TR_BY_TYPE(p->type, EACH_BLOCK(p->H, p->W,
                                   max_grad_block(T, p, dy, indices, sample * image, row, col, c, n,
                                                  dx, to)));
}

void TR_LOOP(avg_pool)(const tr_cpu_pool *p, const void *x, void *y, size_t begin, size_t end)
{
    const size_t image = (size_t)(p->H * p->W) * p->C;
    TR_BY_TYPE(p->type,
               EACH_BLOCK(p->OH, p->OW,
                          avg_block(T, p, tr_from(T, x, sample * image), row, col, c, n, y, to)));
}

void TR_LOOP(avg_pool_grad)(const tr_cpu_pool *p, const void *dy, void *dx, size_t begin,
                            size_t end)
{
    const size_t image = (size_t)(p->OH * p->OW) * p->C;
    TR_BY_TYPE(
        p->type,
        EACH_BLOCK(p->H, p->W, avg_grad_block(T, p, dy, sample * image, row, col, c, n, dx, to)));
}
