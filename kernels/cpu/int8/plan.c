/* How a product is computed, and its weights in the order in which that reads them. */
#include "kernels/cpu/int8/int8.h"

#include <math.h>
#include <string.h>

static int64_t blocks_of(int64_t strips, int64_t length, int64_t block)
{
    return strips * ((length + block - 1) / block);
}

/* Rows of positions as they are, or all in one where that makes fewer blocks. */
static void cut(tr_int8_plan *p)
{
    const tr_int8_shape *s = &p->s;
    p->strips = s->OH;
    p->length = s->OW;
    p->block = s->OW < TR_INT8_BLOCK ? s->OW : TR_INT8_BLOCK;
    p->step = s->stride[1] * s->C;
    p->strip_bytes = s->stride[0] * p->padded_w * s->C;
    const int64_t all = (s->OH - 1) * p->padded_w + s->OW;
    p->flat = s->stride[0] == 1 && s->stride[1] == 1 && s->OH > 1 &&
              blocks_of(1, all, TR_INT8_BLOCK) < blocks_of(p->strips, p->length, p->block);
    if (!p->flat) return;
    p->strips = 1;
    p->length = all;
    p->block = all < TR_INT8_BLOCK ? all : TR_INT8_BLOCK;
}

bool tr_int8_plan_of(const tr_int8_shape *s, bool x_signed, tr_int8_plan *p)
{
    *p = (tr_int8_plan){.s = *s, .x_signed = x_signed};
    const bool together = s->dilation[1] == 1;
    if (s->images < 1 || s->C * s->kernel[0] * s->kernel[1] > TR_INT8_SUMMANDS) return false;
    p->segments = s->kernel[0] * (together ? 1 : s->kernel[1]);
    p->segment_bytes = s->C * (together ? s->kernel[1] : 1);
    p->full = p->segment_bytes / TR_INT8_CHUNK;
    p->tail = (p->segment_bytes % TR_INT8_CHUNK + 3) / 4 * 4;
    p->tiles = (s->O + 15) / 16;
    p->padded_h = s->H + 2 * s->padding[0];
    p->padded_w = s->W + 2 * s->padding[1];
    cut(p);
    const bool padded = s->padding[0] || s->padding[1];
    p->copied = padded || p->segment_bytes % 4 != 0 || p->length % p->block != 0;
    /* behind the image: what a last block and a last chunk read beyond it */
    if (p->copied)
        p->image_bytes = tr_align_up(
            (size_t)(p->padded_h * p->padded_w * s->C + TR_INT8_BLOCK * p->step + TR_INT8_CHUNK),
            64);
    const int64_t chunks = p->segments * (p->full + (p->tail > 0));
    p->packed_bytes = (size_t)(p->tiles * (chunks * TR_INT8_TILE + 16 * 12));
    return true;
}

tr_int8_packed tr_int8_parts(const tr_int8_plan *p, const void *packed)
{
    const int64_t chunks = p->segments * (p->full + (p->tail > 0));
    const char *after = (const char *)packed + p->tiles * chunks * TR_INT8_TILE;
    const int64_t n = p->tiles * 16;
    return (tr_int8_packed){.weights = packed,
                            .factor = (const float *)after,
                            .shift = (const float *)after + n,
                            .sums = (const int32_t *)after + 2 * n};
}

/* Byte b of segment g is of channel *c at place (*ky, *kx) of the kernel. */
static int64_t weight_at(const tr_int8_plan *p, int64_t o, int64_t g, int64_t b)
{
    const tr_int8_shape *s = &p->s;
    const bool together = s->dilation[1] == 1;
    const int64_t ky = together ? g : g / s->kernel[1];
    const int64_t kx = together ? b / s->C : g % s->kernel[1];
    return ((o * s->C + b % s->C) * s->kernel[0] + ky) * s->kernel[1] + kx;
}

static void pack_output(const tr_int8_plan *p, const float *weight, float scale, int64_t o,
                        int8_t *to, int32_t *sum)
{
    const int64_t chunks = p->full + (p->tail > 0);
    int8_t *tile = to + o / 16 * p->segments * chunks * TR_INT8_TILE;
    *sum = 0;
    for (int64_t g = 0; g < p->segments; g++)
        for (int64_t b = 0; b < p->segment_bytes; b++) {
            const int64_t chunk = g * chunks + b / TR_INT8_CHUNK, k = b % TR_INT8_CHUNK;
            const float q = rintf(weight[weight_at(p, o, g, b)] / scale);
            const int8_t v = (int8_t)(q < -127 ? -127 : q > 127 ? 127 : q);
            tile[chunk * TR_INT8_TILE + k / 4 * 64 + o % 16 * 4 + k % 4] = v;
            *sum += v;
        }
}

void tr_int8_pack(const tr_int8_plan *p, const float *weight, const float *scale, const float *bias,
                  float x_scale, float y_scale, void *packed)
{
    const tr_int8_packed parts = tr_int8_parts(p, packed);
    float *factor = (float *)parts.factor, *shift = (float *)parts.shift;
    memset(packed, 0, p->packed_bytes);
    for (int64_t o = 0; o < p->s.O; o++) {
        factor[o] = x_scale * scale[o] / y_scale;
        shift[o] = bias ? bias[o] / y_scale : 0;
        pack_output(p, weight, scale[o], o, packed, (int32_t *)parts.sums + o);
    }
}
