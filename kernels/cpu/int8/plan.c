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

static bool plan_depthwise(tr_int8_plan *p, bool padded)
{
    const tr_int8_shape *s = &p->s;
    const int64_t C = s->groups, places = s->kernel[0] * s->kernel[1];
    const int64_t blocks = (C + TR_INT8_WIDE - 1) / TR_INT8_WIDE;
    p->copied = padded;
    if (padded) p->image_bytes = tr_align_up((size_t)(p->padded_h * p->padded_w * C), 64);
    p->tiles = blocks * (TR_INT8_WIDE / 16);
    p->weight_bytes = (size_t)(blocks * ((places + 3) / 4) * 4 * TR_INT8_WIDE);
    p->packed_bytes = p->weight_bytes + (size_t)(p->tiles * 16 * 12);
    return true;
}

bool tr_int8_plan_of(const tr_int8_shape *s, bool x_signed, tr_int8_plan *p)
{
    *p = (tr_int8_plan){.s = *s, .x_signed = x_signed};
    const bool together = s->dilation[1] == 1;
    if (s->images < 1 || s->C * s->kernel[0] * s->kernel[1] > TR_INT8_SUMMANDS) return false;
    p->depthwise =
        s->groups > 1 && s->C == 1 && s->O == 1 && s->kernel[0] * s->kernel[1] <= TR_INT8_PLACES;
    p->segments = s->kernel[0] * (together ? 1 : s->kernel[1]);
    p->segment_bytes = s->C * (together ? s->kernel[1] : 1);
    p->full = p->segment_bytes / TR_INT8_CHUNK;
    p->tail = (p->segment_bytes % TR_INT8_CHUNK + 3) / 4 * 4;
    p->tiles = (s->O + 15) / 16;
    p->padded_h = s->H + 2 * s->padding[0] + s->extra[0];
    p->padded_w = s->W + 2 * s->padding[1] + s->extra[1];
    cut(p);
    const bool padded = p->padded_h > s->H || p->padded_w > s->W;
    if (p->depthwise) return plan_depthwise(p, padded);
    p->copied = padded || s->groups > 1 || p->segment_bytes % 4 != 0 || p->length % p->block != 0;
    /* behind the image: what a last block and a last chunk read beyond it */
    if (p->copied)
        p->image_bytes = tr_align_up(
            (size_t)(p->padded_h * p->padded_w * s->C + TR_INT8_BLOCK * p->step + TR_INT8_CHUNK),
            64);
    const int64_t chunks = p->segments * (p->full + (p->tail > 0));
    p->weight_bytes = (size_t)(s->groups * p->tiles * chunks * TR_INT8_TILE);
    p->packed_bytes = p->weight_bytes + (size_t)(s->groups * p->tiles * 16 * 12);
    return true;
}

tr_int8_packed tr_int8_parts(const tr_int8_plan *p, const void *packed)
{
    const char *after = (const char *)packed + p->weight_bytes;
    const int64_t n = (p->depthwise ? 1 : p->s.groups) * p->tiles * 16;
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

/* The place of output o of all groups among those of tiles. */
static int64_t slot_of(const tr_int8_plan *p, int64_t o)
{
    return p->depthwise ? o : o / p->s.O * p->tiles * 16 + o % p->s.O;
}

/* Where that byte is in tiles, of the output in this slot. */
static int64_t packed_at(const tr_int8_plan *p, int64_t slot, int64_t g, int64_t b)
{
    const int64_t chunks = p->full + (p->tail > 0), k = b % TR_INT8_CHUNK;
    const int64_t chunk = slot / 16 * p->segments * chunks + g * chunks + b / TR_INT8_CHUNK;
    return chunk * TR_INT8_TILE + k / 4 * 64 + slot % 16 * 4 + k % 4;
}

static void pack_output(const tr_int8_plan *p, const float *weight, float scale, int64_t o,
                        int8_t *to, int32_t *sum)
{
    const int64_t slot = slot_of(p, o);
    *sum = 0;
    for (int64_t g = 0; g < p->segments; g++)
        for (int64_t b = 0; b < p->segment_bytes; b++) {
            const float q = rintf(weight[weight_at(p, o, g, b)] / scale);
            const int8_t v = (int8_t)(q < -127 ? -127 : q > 127 ? 127 : q);
            to[packed_at(p, slot, g, b)] = v;
            *sum += v;
        }
}

void tr_int8_pack(const tr_int8_plan *p, const float *weight, const float *scale, const float *bias,
                  float x_scale, float y_scale, void *packed)
{
    const tr_int8_packed parts = tr_int8_parts(p, packed);
    float *factor = (float *)parts.factor, *shift = (float *)parts.shift;
    memset(packed, 0, p->packed_bytes);
    for (int64_t o = 0; o < p->s.groups * p->s.O; o++) {
        const int64_t slot = slot_of(p, o);
        factor[slot] = x_scale * scale[o] / y_scale;
        shift[slot] = bias ? bias[o] / y_scale : 0;
        if (!p->depthwise)
            pack_output(p, weight, scale[o], o, packed, (int32_t *)parts.sums + slot);
    }
    if (p->depthwise) tr_int8_depthwise_pack(p, weight, scale, packed, (int32_t *)parts.sums);
}

void tr_int8_unpack(const tr_int8_plan *p, const void *packed, const float *scale, float *weight)
{
    const int8_t *from = packed;
    if (p->depthwise) {
        tr_int8_depthwise_unpack(p, from, scale, weight);
        return;
    }
    for (int64_t o = 0; o < p->s.groups * p->s.O; o++)
        for (int64_t g = 0; g < p->segments; g++)
            for (int64_t b = 0; b < p->segment_bytes; b++)
                weight[weight_at(p, o, g, b)] =
                    (float)from[packed_at(p, slot_of(p, o), g, b)] * scale[o];
}
