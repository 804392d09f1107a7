/* Random changes of training images, as torchvision's v2 transforms of float tensors make them
 * (v2/_color.py, _geometry.py, _augment.py and their functionals). The numbers are Philox's, keyed
 * by seed and the sample's ordinal: the same on any rank and thread, and after a resume. Cost: a
 * few passes over the image; the affine step 4 reads a pixel. */
#include "runtime/data/augment.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

/* Uniform in [low, high). */
static double between(uint32_t bits, double low, double high)
{
    return low + (high - low) * ((double)bits * 0x1p-32);
}

static uint32_t below(uint32_t bits, uint64_t n)
{
    return (uint32_t)(((uint64_t)bits * n) >> 32);
}

/* ---- Colours --------------------------------------------------------------------------------- */

tr_jitter tr_jitter_draw(const tr_jitter_config *c, uint64_t seed, uint64_t ordinal)
{
    const double most[TR_JITTERS] = {c->brightness, c->contrast, c->saturation, c->hue};
    const tr_philox r = tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_JITTER, ordinal, 0);
    const tr_philox o = tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_JITTER, ordinal, 1);
    tr_jitter j = {.order = {0, 1, 2, 3}};
    for (int k = 0; k < TR_JITTERS; k++) {
        const double about = k == TR_HUE ? 0 : 1, low = about - most[k];
        j.on[k] = most[k] > 0;
        j.by[k] = (float)between(r.v[k], k != TR_HUE && low < 0 ? 0 : low, about + most[k]);
    }
    for (int k = TR_JITTERS - 1; k > 0; k--) { /* Fisher and Yates */
        const int with = (int)below(o.v[k], (uint64_t)k + 1), kept = j.order[k];
        j.order[k] = j.order[with];
        j.order[with] = kept;
    }
    return j;
}

static float clamp(float v, float most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

static float grey(const float *v, int64_t count, int64_t i)
{
    return 0.2989f * v[i] + 0.587f * v[count + i] + 0.114f * v[2 * count + i];
}

/* factor * v + (1 - factor) * other */
static void brighten(float *v, int64_t n, float factor, float other, float bound)
{
    const float rest = (1.0f - factor) * other;
    for (int64_t i = 0; i < n; i++) v[i] = clamp(factor * v[i] + rest, bound);
}

static void contrast(float *v, int64_t channels, int64_t count, float factor, float bound)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)(channels == 3 ? grey(v, count, i) : v[i]);
    brighten(v, channels * count, factor, (float)(sum / (double)count), bound);
}

static void saturate(float *v, int64_t count, float factor, float bound)
{
    for (int64_t i = 0; i < count; i++) {
        const float other = (1.0f - factor) * grey(v, count, i);
        for (int c = 0; c < 3; c++)
            v[c * count + i] = clamp(factor * v[c * count + i] + other, bound);
    }
}

/* One pixel, of values from 0 to 1, to hue, saturation, value; the hue moved; and back. */
static void turn_hue(float rgb[3], float shift)
{
    const float r = rgb[0], g = rgb[1], b = rgb[2];
    const float most = fmaxf(r, fmaxf(g, b)), least = fminf(r, fminf(g, b)), range = most - least;
    if (range <= 0.0f) return; /* grey */
    const float s = range / most, rc = (most - r) / range, gc = (most - g) / range,
                bc = (most - b) / range;
    const float at = most == r ? bc - gc : most == g ? rc + 2.0f - bc : gc + 4.0f - rc;
    float h = fmodf(at * (1.0f / 6.0f) + 1.0f, 1.0f) + shift;
    h -= floorf(h);
    const float h6 = h * 6.0f, whole = floorf(h6), f = h6 - whole;
    const float p = clamp((1.0f - s) * most, 1), q = clamp((1.0f - s * f) * most, 1),
                t = clamp((1.0f - s * (1.0f - f)) * most, 1);
    const float to[6][3] = {{most, t, p}, {q, most, p}, {p, most, t},
                            {p, q, most}, {t, p, most}, {most, p, q}};
    memcpy(rgb, to[(int)whole % 6], sizeof to[0]);
}

/* A pixel with a channel that is no number stays as it is. */
static void change_hue(float *v, int64_t count, float shift, float bound)
{
    for (int64_t i = 0; i < count; i++) {
        float rgb[3];
        for (int c = 0; c < 3; c++) rgb[c] = clamp(v[c * count + i], bound) / bound;
        if (isnan(rgb[0] + rgb[1] + rgb[2])) continue;
        turn_hue(rgb, shift);
        for (int c = 0; c < 3; c++) v[c * count + i] = rgb[c] * bound;
    }
}

void tr_jitter_apply(const tr_jitter *j, int64_t channels, int64_t count, float bound, float *v)
{
    for (int k = 0; k < TR_JITTERS; k++) {
        const int kind = j->order[k];
        if (!j->on[kind]) continue;
        if (kind == TR_BRIGHTNESS) brighten(v, channels * count, j->by[kind], 0, bound);
        if (kind == TR_CONTRAST) contrast(v, channels, count, j->by[kind], bound);
        if (kind == TR_SATURATION && channels == 3) saturate(v, count, j->by[kind], bound);
        if (kind == TR_HUE && channels == 3) change_hue(v, count, j->by[kind], bound);
    }
}

/* ---- Places ---------------------------------------------------------------------------------- */

tr_affine tr_affine_draw(const tr_affine_range *r, int64_t height, int64_t width, uint64_t seed,
                         uint64_t ordinal)
{
    const tr_philox x = tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_AFFINE, ordinal, 0);
    const double right = r->translate[0] * (double)width, down = r->translate[1] * (double)height;
    return (tr_affine){.degrees = between(x.v[0], -r->degrees, r->degrees),
                       .right = nearbyint(between(x.v[1], -right, right)),
                       .down = nearbyint(between(x.v[2], -down, down)),
                       .scale = between(x.v[3], r->scale[0], r->scale[1])};
}

/* Of one plane, zeros around it. */
static float at(const float *in, int64_t H, int64_t W, int64_t y, int64_t x)
{
    return y >= 0 && y < H && x >= 0 && x < W ? in[y * W + x] : 0.0f;
}

/* A pixel of the result lies where the inverse of "scale, turn, shift" leads to. */
void tr_affine_apply(const tr_affine *a, int64_t channels, int64_t height, int64_t width,
                     const float *restrict in, float *restrict out)
{
    const double angle = a->degrees * PI / 180, cy = (double)(height - 1) / 2,
                 cx = (double)(width - 1) / 2;
    const double c = cos(angle) / a->scale, s = sin(angle) / a->scale;
    const int64_t H = height, W = width, area = H * W;
    for (int64_t y = 0; y < H; y++)
        for (int64_t x = 0; x < W; x++) {
            const double dx = (double)x - cx - a->right, dy = (double)y - cy - a->down;
            const double sx = c * dx + s * dy + cx, sy = -s * dx + c * dy + cy;
            const double fx = floor(sx), fy = floor(sy);
            const float wx = (float)(sx - fx), wy = (float)(sy - fy);
            const int64_t x0 = (int64_t)fx, y0 = (int64_t)fy;
            for (int64_t k = 0; k < channels; k++) {
                const float *p = in + k * area;
                const float top = at(p, H, W, y0, x0) * (1 - wx) + at(p, H, W, y0, x0 + 1) * wx;
                const float low =
                    at(p, H, W, y0 + 1, x0) * (1 - wx) + at(p, H, W, y0 + 1, x0 + 1) * wx;
                out[k * area + y * W + x] = top * (1 - wy) + low * wy;
            }
        }
}

bool tr_erasing_draw(const tr_erasing_range *r, int64_t height, int64_t width, uint64_t seed,
                     uint64_t ordinal, tr_box *out)
{
    const double area = (double)height * (double)width;
    const double low = log(r->ratio[0]), high = log(r->ratio[1]);
    if (between(tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_ERASING, ordinal, 0).v[0], 0, 1) >=
        r->p)
        return false;
    for (uint32_t attempt = 1; attempt <= 10; attempt++) {
        const tr_philox x = tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_ERASING, ordinal, attempt);
        const double part = area * between(x.v[0], r->scale[0], r->scale[1]);
        const double aspect = exp(between(x.v[1], low, high));
        const int64_t h = (int64_t)nearbyint(sqrt(part * aspect));
        const int64_t w = (int64_t)nearbyint(sqrt(part / aspect));
        if (h >= height || w >= width) continue;
        *out = (tr_box){below(x.v[2], (uint64_t)(height - h + 1)),
                        below(x.v[3], (uint64_t)(width - w + 1)), h, w};
        return true;
    }
    return false;
}
