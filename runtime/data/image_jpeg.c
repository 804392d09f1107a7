/* JPEG by libjpeg-turbo (its libjpeg.txt), baseline and progressive, with its defaults: the
 * accurate integer DCT and smooth chroma, as Pillow decodes. It reports errors by a function that
 * must not return, here by longjmp: what a jump may leave behind lives in a struct of the caller,
 * which frees it. libjpeg fills in what a damaged file lacks and only warns: such warnings are
 * errors here. */
#include "runtime/data/image.h"

#include <inttypes.h>
#include <setjmp.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    char text[JMSG_LENGTH_MAX];
    int orientation;
} reader;

static void on_error(j_common_ptr c)
{
    reader *r = c->client_data;
    c->err->format_message(c, r->text);
    longjmp(r->jump, 1);
}

static void on_message(j_common_ptr c, int level)
{
    if (level >= 0) return;
    switch (c->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
        on_error(c);
        break;
    default: /* odd, and costs no pixel */
        break;
    }
}

static void on_progress(j_common_ptr c)
{
    reader *r = c->client_data;
    if (r->jpeg.input_scan_number <= TR_IMAGE_SCANS) return;
    snprintf(r->text, sizeof r->text, "more than %d scans", TR_IMAGE_SCANS);
    longjmp(r->jump, 1);
}

/* The APP1 marker that is EXIF. */
static int orientation_of(const struct jpeg_decompress_struct *jpeg)
{
    for (jpeg_saved_marker_ptr m = jpeg->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            return tr_image_orientation(m->data + 6, m->data_length - 6);
    return 1;
}

/* false: r->text says why. */
static bool read_header(reader *r, const uint8_t *bytes, size_t n)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    if (setjmp(r->jump)) return false;
    jpeg_create_decompress(j);
    j->client_data = r; /* creating clears it */
    r->progress.progress_monitor = on_progress;
    j->progress = &r->progress;
    jpeg_save_markers(j, JPEG_APP0 + 1, 0xffff);
    jpeg_mem_src(j, bytes, (unsigned long)n);
    (void)jpeg_read_header(j, TRUE);
    r->orientation = orientation_of(j);
    j->out_color_space = j->num_components == 1   ? JCS_GRAYSCALE
                         : j->num_components == 4 ? JCS_CMYK
                                                  : JCS_RGB;
    return true;
}

/* What libjpeg will hold of a file whose parts come in several scans: blocks of 8 x 8 for each
 * component. */
static uint64_t coefficient_bytes(struct jpeg_decompress_struct *j)
{
    uint64_t blocks = 0;
    if (!jpeg_has_multiple_scans(j)) return 0;
    for (int c = 0; c < j->num_components; c++)
        blocks += (uint64_t)j->comp_info[c].width_in_blocks * j->comp_info[c].height_in_blocks;
    return blocks * sizeof(JBLOCK);
}

static bool read_pixels(reader *r, uint8_t *to)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    if (setjmp(r->jump)) return false;
    (void)jpeg_start_decompress(j);
    const size_t row = (size_t)j->output_width * (size_t)j->output_components;
    while (j->output_scanline < j->output_height) {
        JSAMPROW rows[1] = {to + row * j->output_scanline};
        (void)jpeg_read_scanlines(j, rows, 1);
    }
    (void)jpeg_finish_decompress(j);
    return true;
}

static unsigned scaled(unsigned a, unsigned b)
{
    const unsigned v = a * b + 128;
    return ((v >> 8) + v) >> 8;
}

/* Four bytes a pixel to three, in place. Such files hold what is left of the light (Adobe's way),
 * and Pillow takes all of them so. */
static void from_cmyk(uint8_t *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned left = p[4 * i + 3];
        for (size_t c = 0; c < 3; c++)
            p[3 * i + c] = (uint8_t)(left - scaled(255u - p[4 * i + c], left));
    }
}

tr_status tr_image_jpeg(const char *name, const uint8_t *bytes, size_t n, tr_image_work *w,
                        tr_image *out, int *orientation)
{
    tr_status st = TR_OK;
    reader *r = TR_NEW(TR_MEM_OTHER, reader);
    if (!r) return tr_last_status();
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->jpeg.client_data = r;
    TR_NEED(read_header(r, bytes, n), TR_DATA, "%s: JPEG: %s (%zu bytes)", name, r->text, n);
    TR_TRY(tr_image_size_check(name, r->jpeg.image_width, r->jpeg.image_height));
    TR_NEED(coefficient_bytes(&r->jpeg) <= TR_IMAGE_COEFFICIENTS, TR_DATA,
            "%s: JPEG: %u x %u pixels in several scans (progressive), of which %" PRIu64
            " bytes must be held, expected at most %" PRIu64,
            name, r->jpeg.image_width, r->jpeg.image_height, coefficient_bytes(&r->jpeg),
            TR_IMAGE_COEFFICIENTS);
    const size_t count = (size_t)r->jpeg.image_width * r->jpeg.image_height;
    const int channels = r->jpeg.num_components == 4 ? 4 : 3; /* grey may become RGB */
    TR_TRY(tr_room_take(&w->pixels, count, (size_t)channels));
    TR_NEED(read_pixels(r, w->pixels.at), TR_DATA, "%s: JPEG: %s (%zu bytes)", name, r->text, n);
    if (channels == 4) from_cmyk(w->pixels.at, count);
    *orientation = r->orientation;
    *out = (tr_image){r->jpeg.image_height, r->jpeg.image_width,
                      r->jpeg.num_components == 1 ? 1 : 3, w->pixels.at};
out:
    jpeg_destroy_decompress(&r->jpeg);
    tr_free(r);
    return st;
}
