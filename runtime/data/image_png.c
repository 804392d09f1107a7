/* PNG by libpng (http://www.libpng.org/pub/png/libpng-manual.txt). It reports errors by longjmp:
 * what a jump may leave behind lives in a struct of the caller, which frees it. */
#include "runtime/data/image.h"

#include <png.h>
#include <string.h>

typedef struct {
    const uint8_t *bytes;
    size_t n, at;
    png_structp png;
    png_infop info;
    char text[160];
    uint32_t width, height;
    int channels, passes;
} reader;

static void on_error(png_structp png, png_const_charp text)
{
    reader *r = png_get_error_ptr(png);
    snprintf(r->text, sizeof r->text, "%s", text);
    png_longjmp(png, 1);
}

/* What libpng reads over costs no pixel. */
static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void take(png_structp png, png_bytep to, size_t n)
{
    reader *r = png_get_io_ptr(png);
    if (r->n - r->at < n) png_error(png, "ends too early");
    memcpy(to, r->bytes + r->at, n);
    r->at += n;
}

/* false: r->text says why. */
static bool read_header(reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return false;
    png_set_user_limits(r->png, TR_IMAGE_SIDE, TR_IMAGE_SIDE);
    png_set_read_fn(r->png, r, take);
    png_read_info(r->png, r->info);
    r->width = png_get_image_width(r->png, r->info);
    r->height = png_get_image_height(r->png, r->info);
    return true;
}

static bool set_up(reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return false;
    const int type = png_get_color_type(r->png, r->info);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(r->png);
    if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(r->png);
    png_set_strip_16(r->png);
    png_set_strip_alpha(r->png);
    r->passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    r->channels = png_get_channels(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) != (size_t)r->width * (size_t)r->channels ||
        (r->channels != 1 && r->channels != 3))
        png_error(r->png, "not grey or RGB");
    return true;
}

/* Interlaced images take several passes over the same rows. What follows the pixels is read too:
 * its checksums, the end. */
static bool read_pixels(reader *r, uint8_t *to)
{
    if (setjmp(png_jmpbuf(r->png))) return false;
    const size_t row = (size_t)r->width * (size_t)r->channels;
    for (int pass = 0; pass < r->passes; pass++)
        for (uint32_t y = 0; y < r->height; y++) png_read_row(r->png, to + y * row, NULL);
    png_read_end(r->png, r->info);
    return true;
}

static int orientation_of(reader *r)
{
    png_uint_32 n = 0;
    png_bytep exif = NULL;
    if (png_get_eXIf_1(r->png, r->info, &n, &exif) == 0) return 1;
    return tr_image_orientation(exif, n);
}

tr_status tr_image_png(const char *name, const uint8_t *bytes, size_t n, tr_image_work *w,
                       tr_image *out, int *orientation)
{
    tr_status st = TR_OK;
    reader r = {.bytes = bytes, .n = n};
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    TR_NEED(r.info, TR_MEMORY, "%s: no memory for libpng", name);
    TR_NEED(read_header(&r), TR_DATA, "%s: PNG: %s (at byte %zu of %zu)", name, r.text, r.at, n);
    TR_TRY(tr_image_size_check(name, r.width, r.height));
    TR_NEED(set_up(&r), TR_DATA, "%s: PNG: %s", name, r.text);
    /* room for RGB: grey may become it */
    TR_TRY(tr_room_take(&w->pixels, (size_t)r.width * r.height, 3));
    TR_NEED(read_pixels(&r, w->pixels.at), TR_DATA, "%s: PNG: %s (at byte %zu of %zu)", name,
            r.text, r.at, n);
    *orientation = orientation_of(&r);
    *out = (tr_image){r.height, r.width, r.channels, w->pixels.at};
out:
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return st;
}
