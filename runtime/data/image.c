/* An image file's bytes to pixels: which format it is by its first bytes, the way up by EXIF, RGB
 * to grey. The formats are image_png.c and image_jpeg.c. */
#include "runtime/data/image.h"

#include <inttypes.h>
#include <string.h>

tr_status tr_room_take(tr_room *r, size_t count, size_t size)
{
    size_t nbytes;
    if (!tr_mul_size(count, size, &nbytes))
        return TR_FAIL(TR_MEMORY, "an image does not fit in memory");
    if (nbytes <= r->room) return TR_OK;
    tr_free(r->at);
    r->room = 0;
    r->at = tr_alloc(TR_MEM_DATA, nbytes, 1);
    if (!r->at) return tr_last_status();
    r->room = nbytes;
    return TR_OK;
}

void tr_image_work_free(tr_image_work *w)
{
    tr_room *const all[] = {&w->file,      &w->pixels,    &w->turned,    &w->rows,
                            &w->kernel[0], &w->kernel[1], &w->bounds[0], &w->bounds[1]};
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        tr_free(all[i]->at);
        *all[i] = (tr_room){0};
    }
}

size_t tr_image_work_room(const tr_image_work *w)
{
    /* these two change places */
    const size_t larger = w->pixels.room > w->turned.room ? w->pixels.room : w->turned.room;
    return w->file.room + (w->turned.room > 0 ? 2 : 1) * larger + w->rows.room + w->kernel[0].room +
           w->kernel[1].room + w->bounds[0].room + w->bounds[1].room;
}

tr_status tr_image_size_check(const char *name, uint64_t width, uint64_t height)
{
    if (width > 0 && height > 0 && width <= TR_IMAGE_SIDE && height <= TR_IMAGE_SIDE &&
        width * height <= TR_IMAGE_PIXELS)
        return TR_OK;
    return TR_FAIL(TR_DATA,
                   "%s: %" PRIu64 " x %" PRIu64
                   " pixels (width x height), expected 1 to %d a side and at most %" PRIu64,
                   name, width, height, TR_IMAGE_SIDE, TR_IMAGE_PIXELS);
}

tr_status tr_image_file_read(const char *path, tr_image_work *w, size_t *n)
{
    tr_data_file file = {.fd = -1};
    tr_status st;
    TR_TRY(tr_data_file_open(path, &file));
    TR_NEED(file.size <= TR_IMAGE_BYTES, TR_DATA,
            "%s: %" PRIu64 " bytes, expected at most %" PRIu64, path, file.size, TR_IMAGE_BYTES);
    *n = (size_t)file.size;
    TR_TRY(tr_room_take(&w->file, *n + 1, 1));
    st = tr_data_file_read(&file, 0, w->file.at, *n);
out:
    tr_data_file_close(&file);
    return st;
}

/* ---- The way up ------------------------------------------------------------------------------ */

static uint32_t number(const uint8_t *p, int nbytes, bool big)
{
    uint32_t v = 0;
    for (int i = 0; i < nbytes; i++) v = v << 8 | p[big ? i : nbytes - 1 - i];
    return v;
}

/* The TIFF header (byte order, 42, where the first directory lies), then entries of 12 bytes: tag,
 * type, count, value. Exif 2.32, 4.6.2 and 4.6.4; the tag is 0x0112. */
int tr_image_orientation(const uint8_t *tiff, size_t n)
{
    if (n < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0)) return 1;
    const bool big = tiff[0] == 'M';
    const uint64_t at = number(tiff + 4, 4, big);
    if (at + 2 > n) return 1;
    const uint32_t entries = number(tiff + at, 2, big);
    for (uint32_t i = 0; i < entries; i++) {
        const uint64_t e = at + 2 + 12 * (uint64_t)i;
        if (e + 12 > n) break;
        if (number(tiff + e, 2, big) != 0x0112 || number(tiff + e + 2, 2, big) != 3) continue;
        const uint32_t v = number(tiff + e + 8, 2, big);
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

/* Orientations 5 to 8 swap the sides; the others keep them. */
static tr_status turn(tr_image *image, int orientation, tr_image_work *w)
{
    const int64_t H = image->height, W = image->width, C = image->channels;
    const bool swap = orientation >= 5;
    const int64_t h = swap ? W : H, v = swap ? H : W;
    tr_status st;
    if (orientation == 1) return TR_OK;
    TR_TRY(tr_room_take(&w->turned, (size_t)(H * W), (size_t)C));
    uint8_t *to = w->turned.at;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < v; x++) {
            int64_t sy = swap ? x : y, sx = swap ? y : x;
            if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
                sy = H - 1 - sy;
            if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
                sx = W - 1 - sx;
            const uint8_t *from = image->pixels + (sy * W + sx) * C;
            for (int64_t c = 0; c < C; c++) *to++ = from[c];
        }
    image->height = h;
    image->width = v;
    image->pixels = w->turned.at;
out:
    return st;
}

/* ---- Channels -------------------------------------------------------------------------------- */

/* In place, w->pixels being the image's: grey is narrower than RGB. */
static void to_grey(tr_image *image, tr_image_work *w)
{
    const size_t count = (size_t)(image->height * image->width);
    uint8_t *to = w->pixels.at;
    const uint8_t *from = image->pixels;
    for (size_t i = 0; i < count; i++, from += 3)
        to[i] = (uint8_t)((from[0] * 19595u + from[1] * 38470u + from[2] * 7471u + 0x8000u) >> 16);
    image->channels = 1;
}

static tr_status to_rgb(tr_image *image, tr_image_work *w)
{
    const size_t count = (size_t)(image->height * image->width);
    tr_status st;
    TR_TRY(tr_room_take(&w->turned, count, 3));
    uint8_t *to = w->turned.at;
    for (size_t i = 0; i < count; i++, to += 3) to[0] = to[1] = to[2] = image->pixels[i];
    const tr_room pixels = w->pixels;
    w->pixels = w->turned; /* so that it may still be turned */
    w->turned = pixels;
    image->pixels = w->pixels.at;
    image->channels = 3;
out:
    return st;
}

tr_status tr_image_decode(const char *name, const uint8_t *bytes, size_t n, int channels,
                          tr_image_work *w, tr_image *out)
{
    tr_status st;
    int orientation = 1;
    TR_NEED(n > 0, TR_DATA, "%s: is empty, expected a PNG or JPEG image", name);
    if (n >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0)
        TR_TRY(tr_image_png(name, bytes, n, w, out, &orientation));
    else if (n >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0)
        TR_TRY(tr_image_jpeg(name, bytes, n, w, out, &orientation));
    else {
        char head[3 * 8 + 1] = "";
        for (size_t i = 0; i < 8 && i < n; i++)
            snprintf(head + 3 * i, sizeof head - 3 * i, "%02x ", bytes[i]);
        st = TR_FAIL(TR_DATA, "%s: begins with the bytes %s, expected a PNG or JPEG image", name,
                     head);
        goto out;
    }
    if (channels == 1 && out->channels == 3) to_grey(out, w);
    if (channels == 3 && out->channels == 1) TR_TRY(to_rgb(out, w));
    st = turn(out, orientation, w);
out:
    return st;
}
