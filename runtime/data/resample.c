/* Bilinear interpolation with antialiasing: a pixel of the result is the mean of the pixels of the
 * image within `support` of its centre, weighted by a triangle that is as wide as the image is
 * shrunk. Two passes, along rows and along columns, each rounded to 8 bits, with weights of 22
 * bits: the arithmetic of Pillow's Resample.c, to the bit up to version 12 (13 takes columns first
 * where that is cheaper, which differs by 1 here and there). Cost: about (2 * shrinking + 1)
 * products a pixel and pass. Only what the wanted part of the result needs is computed. */
#include "runtime/data/image.h"

#include <math.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#define TR_HOT __attribute__((optimize("O3")))
#else
#define TR_HOT
#endif

#define BITS (32 - 8 - 2)

/* Weights of the pixels of a line of the result: w[k * width .. ] of image pixels from first[k] on,
 * count[k] of them. */
typedef struct {
    int32_t *w, *first, *count;
    size_t width;
} kernel;

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Pixels [begin, begin + n) of a line of `out` pixels that `in` become. */
static tr_status make_kernel(int64_t in, int64_t out, int64_t begin, int64_t n, tr_room *weights,
                             tr_room *bounds, kernel *k)
{
    tr_status st;
    const double scale = (double)in / (double)out, spread = scale < 1 ? 1 : scale;
    k->width = (size_t)ceil(spread) * 2 + 1;
    TR_TRY(tr_room_take(weights, (size_t)n * k->width, sizeof(int32_t)));
    TR_TRY(tr_room_take(bounds, (size_t)n, 2 * sizeof(int32_t)));
    k->w = weights->at;
    k->first = bounds->at;
    k->count = k->first + n;
    for (int64_t i = 0; i < n; i++) {
        const double center = ((double)(begin + i) + 0.5) * scale;
        int64_t from = (int64_t)(center - spread + 0.5), to = (int64_t)(center + spread + 0.5);
        if (from < 0) from = 0;
        if (to > in) to = in;
        double sum = 0;
        for (int64_t x = from; x < to; x++)
            sum += triangle(((double)x - center + 0.5) * (1.0 / spread));
        for (int64_t x = from; x < to; x++) {
            double v = triangle(((double)x - center + 0.5) * (1.0 / spread));
            if (sum != 0.0) v /= sum;
            k->w[(size_t)i * k->width + (size_t)(x - from)] = (int32_t)(0.5 + v * (1 << BITS));
        }
        k->first[i] = (int32_t)from;
        k->count[i] = (int32_t)(to - from);
    }
out:
    return st;
}

static uint8_t clip(int32_t v)
{
    v >>= BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* Rows of `n` pixels from rows of the image. */
TR_HOT static void along_rows(const uint8_t *from, int C, const kernel *k, int64_t n, uint8_t *to)
{
    for (int64_t i = 0; i < n; i++) {
        const int32_t *w = k->w + (size_t)i * k->width;
        const uint8_t *p = from + (int64_t)k->first[i] * C;
        int32_t s0 = 1 << (BITS - 1), s1 = s0, s2 = s0;
        if (C == 3) {
            for (int32_t x = 0; x < k->count[i]; x++, p += 3) {
                s0 += p[0] * w[x];
                s1 += p[1] * w[x];
                s2 += p[2] * w[x];
            }
            to[3 * i] = clip(s0);
            to[3 * i + 1] = clip(s1);
            to[3 * i + 2] = clip(s2);
        } else {
            for (int32_t x = 0; x < k->count[i]; x++) s0 += p[x] * w[x];
            to[i] = clip(s0);
        }
    }
}

/* One row of the result, of `bytes` bytes, from `count` rows that are `stride` bytes apart. sums:
 * [bytes] */
TR_HOT static void along_columns(const uint8_t *from, size_t stride, const int32_t *w,
                                 int32_t count, size_t bytes, int32_t *restrict sums)
{
    for (size_t b = 0; b < bytes; b++) sums[b] = 1 << (BITS - 1);
    for (int32_t y = 0; y < count; y++) {
        const uint8_t *restrict p = from + (size_t)y * stride;
        const int32_t weight = w[y];
        for (size_t b = 0; b < bytes; b++) sums[b] += p[b] * weight;
    }
}

/* A row of pixels to its place in the planes. */
TR_HOT static void spread(const tr_image_resize *r, int C, int64_t y, const uint8_t *row,
                          uint8_t *out)
{
    for (int c = 0; c < C; c++) {
        uint8_t *to = out + (c * r->out_height + r->at_top + y) * r->out_width + r->at_left;
        for (int64_t x = 0; x < r->part.width; x++) to[x] = row[x * C + c];
    }
}

tr_status tr_image_resample(const tr_image *image, const tr_image_resize *r, tr_image_work *w,
                            uint8_t *out)
{
    tr_status st = TR_OK;
    const int C = image->channels;
    const size_t line = (size_t)image->width * (size_t)C, bytes = (size_t)r->part.width * (size_t)C;
    const bool wide = r->width != r->from.width, high = r->height != r->from.height;
    kernel kx = {0}, ky = {0};
    int64_t first = r->part.top, rows = r->part.height; /* of `from` that are needed */
    if (wide)
        TR_TRY(make_kernel(r->from.width, r->width, r->part.left, r->part.width, &w->kernel[0],
                           &w->bounds[0], &kx));
    if (high) {
        TR_TRY(make_kernel(r->from.height, r->height, r->part.top, r->part.height, &w->kernel[1],
                           &w->bounds[1], &ky));
        const int64_t last = r->part.height - 1;
        first = ky.first[0];
        rows = ky.first[last] + ky.count[last] - first;
    }
    /* rows of the first pass, then a row of sums and one of pixels */
    TR_TRY(tr_room_take(&w->rows, 1, (size_t)rows * bytes + 5 * bytes + sizeof(int32_t)));
    int32_t *sums = w->rows.at;
    uint8_t *row = (uint8_t *)(sums + bytes), *narrow = row + bytes;
    const uint8_t *from =
        image->pixels + (size_t)(r->from.top + first) * line + (size_t)r->from.left * (size_t)C;
    size_t stride = line;
    if (wide) {
        for (int64_t y = 0; y < rows; y++)
            along_rows(from + (size_t)y * line, C, &kx, r->part.width, narrow + (size_t)y * bytes);
        from = narrow;
        stride = bytes;
    } else {
        from += (size_t)r->part.left * (size_t)C;
    }
    for (int64_t y = 0; y < r->part.height; y++) {
        if (!high) {
            spread(r, C, y, from + (size_t)y * stride, out);
            continue;
        }
        along_columns(from + (size_t)(ky.first[y] - first) * stride, stride,
                      ky.w + (size_t)y * ky.width, ky.count[y], bytes, sums);
        for (size_t b = 0; b < bytes; b++) row[b] = clip(sums[b]);
        spread(r, C, y, row, out);
    }
out:
    return st;
}
