/* Which part of an image, at which size, becomes a sample: torchvision's v2.Resize, v2.CenterCrop
 * and v2.RandomResizedCrop (torchvision/transforms/v2/_geometry.py and functional/_geometry.py),
 * with their roundings. What chance decides is keyed by the sample's ordinal. */
#include "runtime/data/image.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The size that v2.Resize gives. */
static void resized(const tr_image_fit *f, int64_t height, int64_t width, int64_t *h, int64_t *w)
{
    *h = height;
    *w = width;
    if (f->nresize == 2) {
        *h = f->resize[0];
        *w = f->resize[1];
    } else if (f->nresize == 1) {
        const int64_t size = f->resize[0];
        /* int(size * long / short) */
        if (width <= height) {
            *w = size;
            *h = (int64_t)((double)(size * height) / (double)width);
        } else {
            *h = size;
            *w = (int64_t)((double)(size * width) / (double)height);
        }
    }
}

/* v2.CenterCrop along one side: `n` pixels padded with zeros to `size`, or cut to it. */
static void center(int64_t n, int64_t size, int64_t *from, int64_t *count, int64_t *at)
{
    *at = n < size ? (size - n) / 2 : 0;
    *from = n > size ? (int64_t)nearbyint((double)(n - size) / 2.0) : 0;
    *count = n < size ? n : size;
}

tr_status tr_image_fit_plain(const char *name, const tr_image *image, const tr_image_fit *f,
                             tr_image_work *w, uint8_t *to)
{
    tr_image_resize r = {.from = {0, 0, image->height, image->width},
                         .out_height = f->height,
                         .out_width = f->width};
    resized(f, image->height, image->width, &r.height, &r.width);
    if (!f->center_crop && (r.height != f->height || r.width != f->width))
        return TR_FAIL(TR_DATA,
                       "%s: %" PRId64 " x %" PRId64 " pixels (height x width)%s, expected %" PRId64
                       " x %" PRId64 ", the model's input: data.image says resize: [%" PRId64
                       ", %" PRId64 "], or resize: N (the shorter side) with center_crop: true",
                       name, r.height, r.width, f->nresize ? " as resized" : "", f->height,
                       f->width, f->height, f->width);
    center(r.height, f->height, &r.part.top, &r.part.height, &r.at_top);
    center(r.width, f->width, &r.part.left, &r.part.width, &r.at_left);
    if (r.part.height < f->height || r.part.width < f->width)
        memset(to, 0, (size_t)(f->height * f->width) * (size_t)image->channels);
    return tr_image_resample(image, &r, w, to);
}

/* Uniform in [low, high). */
static double between(uint32_t bits, double low, double high)
{
    return low + (high - low) * ((double)bits * 0x1p-32);
}

static int64_t below(uint32_t bits, int64_t n)
{
    return (int64_t)(((uint64_t)bits * (uint64_t)n) >> 32);
}

tr_box tr_image_random_box(const tr_image_fit *f, int64_t height, int64_t width, uint64_t seed,
                           uint64_t ordinal)
{
    const double area = (double)height * (double)width;
    const double log_ratio[] = {log(f->ratio[0]), log(f->ratio[1])};
    for (uint32_t attempt = 0; attempt < 10; attempt++) {
        const tr_philox r =
            tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_RESIZED_CROP, ordinal, attempt);
        const double target = area * between(r.v[0], f->scale[0], f->scale[1]);
        const double aspect = exp(between(r.v[1], log_ratio[0], log_ratio[1]));
        const int64_t w = (int64_t)nearbyint(sqrt(target * aspect));
        const int64_t h = (int64_t)nearbyint(sqrt(target / aspect));
        if (w < 1 || w > width || h < 1 || h > height) continue;
        return (tr_box){below(r.v[2], height - h + 1), below(r.v[3], width - w + 1), h, w};
    }
    /* the middle, as near to the ratios as it goes */
    const double ratio = (double)width / (double)height;
    int64_t w = width, h = height;
    if (ratio < f->ratio[0])
        h = (int64_t)nearbyint((double)w / f->ratio[0]);
    else if (ratio > f->ratio[1])
        w = (int64_t)nearbyint((double)h * f->ratio[1]);
    if (h < 1) h = 1;
    if (w < 1) w = 1;
    return (tr_box){(height - h) / 2, (width - w) / 2, h, w};
}

tr_status tr_image_fit_random(const tr_image *image, const tr_image_fit *f, uint64_t seed,
                              uint64_t ordinal, tr_image_work *w, uint8_t *to)
{
    const tr_image_resize r = {
        .from = tr_image_random_box(f, image->height, image->width, seed, ordinal),
        .part = {0, 0, f->height, f->width},
        .height = f->height,
        .width = f->width,
        .out_height = f->height,
        .out_width = f->width};
    return tr_image_resample(image, &r, w, to);
}
