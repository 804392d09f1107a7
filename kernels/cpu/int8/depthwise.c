/* Convolutions of one channel a group: each channel with its own window. The weights, and the
 * portable level. */
#include "kernels/cpu/int8/int8.h"

#include <math.h>
#include <string.h>

void tr_int8_places(const tr_int8_plan *p, int64_t from[TR_INT8_PLACES])
{
    const tr_int8_shape *s = &p->s;
    for (int64_t k = 0; k < s->kernel[0] * s->kernel[1]; k++) {
        const int64_t ky = k / s->kernel[1] * s->dilation[0],
                      kx = k % s->kernel[1] * s->dilation[1];
        from[k] = (ky * p->padded_w + kx) * s->groups;
    }
}

/* Of channel c and place k. */
static int64_t weight_at(const tr_int8_plan *p, int64_t c, int64_t k)
{
    const int64_t fours = (p->s.kernel[0] * p->s.kernel[1] + 3) / 4;
    const int64_t in = c % TR_INT8_WIDE, row = in % 16 / 4, column = in / 16 * 16 + in % 4 * 4;
    return ((c / TR_INT8_WIDE * fours + k / 4) * 4 + row) * TR_INT8_WIDE + column + k % 4;
}

void tr_int8_depthwise_pack(const tr_int8_plan *p, const float *weight, const float *scale,
                            int8_t *to, int32_t *sums)
{
    const int64_t places = p->s.kernel[0] * p->s.kernel[1];
    for (int64_t c = 0; c < p->s.groups; c++)
        for (int64_t k = 0; k < places; k++) {
            const float q = rintf(weight[c * places + k] / scale[c]);
            const int8_t v = (int8_t)(q < -127 ? -127 : q > 127 ? 127 : q);
            to[weight_at(p, c, k)] = v;
            sums[c] += v;
        }
}

void tr_int8_depthwise_unpack(const tr_int8_plan *p, const int8_t *from, const float *scale,
                              float *weight)
{
    const int64_t places = p->s.kernel[0] * p->s.kernel[1];
    for (int64_t c = 0; c < p->s.groups; c++)
        for (int64_t k = 0; k < places; k++)
            weight[c * places + k] = (float)from[weight_at(p, c, k)] * scale[c];
}

void tr_int8_depthwise_base(const tr_int8_plan *p, const tr_int8_run *r, const uint8_t *x,
                            int64_t image, int64_t begin, int64_t end)
{
    const tr_int8_shape *s = &p->s;
    const int64_t C = s->groups, places = s->kernel[0] * s->kernel[1], most = end * TR_INT8_WIDE;
    int64_t from[TR_INT8_PLACES];
    tr_int8_places(p, from);
    for (int64_t at = 0; at < s->OH * s->OW; at++) {
        const int64_t h = at / s->OW * s->stride[0], w = at % s->OW * s->stride[1];
        const uint8_t *window = x + (h * p->padded_w + w) * C;
        for (int64_t c = begin * TR_INT8_WIDE; c < (most < C ? most : C); c++) {
            int32_t sum = 0;
            for (int64_t k = 0; k < places; k++) {
                const uint8_t v = window[from[k] + c];
                sum += (p->x_signed ? (int32_t)(int8_t)v : (int32_t)v) *
                       r->w.weights[weight_at(p, c, k)];
            }
            tr_int8_store_one(r, sum, c, (size_t)((image * s->OH * s->OW + at) * C + c));
        }
    }
}
