/* Images a second from a JPEG in memory: the decoder library alone, with our checks and
 * conversions, and as a sample of 224 x 224. bench_images FILE.jpg [SECONDS] */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/data/image.h"

#include <jpeglib.h>

#define SIDE 224

typedef struct {
    uint8_t *bytes;
    size_t n;
    tr_image_work work;
    uint8_t *pixels;
    uint8_t to[3 * SIDE * SIDE];
} bench;

/* The floor. */
static void library(bench *b)
{
    struct jpeg_decompress_struct j;
    struct jpeg_error_mgr errors;
    j.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&j);
    jpeg_mem_src(&j, b->bytes, (unsigned long)b->n);
    (void)jpeg_read_header(&j, TRUE);
    j.out_color_space = JCS_RGB;
    (void)jpeg_start_decompress(&j);
    const size_t row = 3 * (size_t)j.output_width;
    if (!b->pixels) b->pixels = malloc(row * j.output_height);
    while (j.output_scanline < j.output_height) {
        JSAMPROW rows[1] = {b->pixels + row * j.output_scanline};
        (void)jpeg_read_scanlines(&j, rows, 1);
    }
    (void)jpeg_finish_decompress(&j);
    jpeg_destroy_decompress(&j);
}

static void must(tr_status st)
{
    if (st == TR_OK) return;
    fprintf(stderr, "%s\n", tr_last_error()->text);
    exit(1);
}

static tr_image decode(bench *b)
{
    tr_image image;
    must(tr_image_decode("bench", b->bytes, b->n, 3, &b->work, &image));
    return image;
}

static void ours(bench *b)
{
    (void)decode(b);
}

static void evaluated(bench *b)
{
    const tr_image image = decode(b);
    const tr_image_fit fit = {
        .height = SIDE, .width = SIDE, .nresize = 1, .resize = {256}, .center_crop = true};
    must(tr_image_fit_plain("bench", &image, &fit, &b->work, b->to));
}

static void trained(bench *b)
{
    static uint64_t ordinal;
    const tr_image image = decode(b);
    const tr_image_fit fit = {
        .height = SIDE, .width = SIDE, .scale = {0.08, 1}, .ratio = {0.75, 4.0 / 3}};
    must(tr_image_fit_random(&image, &fit, 1, ordinal++, &b->work, b->to));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bench *b);
    } kinds[] = {{"libjpeg-turbo alone", library},
                 {"decoded", ours},
                 {"resize 256, center_crop 224", evaluated},
                 {"random_resized_crop 224", trained}};
    static bench b;
    const double seconds = argc > 2 ? atof(argv[2]) : 3;
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!f) {
        fprintf(stderr, "bench_images FILE.jpg [SECONDS]\n");
        return 2;
    }
    b.bytes = malloc(1 << 26);
    b.n = fread(b.bytes, 1, 1 << 26, f);
    fclose(f);
    const tr_image image = decode(&b);
    printf("%s: %zu bytes, %lld x %lld\n", argv[1], b.n, (long long)image.width,
           (long long)image.height);
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        double best = 1e9;
        const double began = tr_now();
        while (tr_now() - began < seconds) { /* the best: others use this machine too */
            const double from = tr_now();
            kinds[k].run(&b);
            const double took = tr_now() - from;
            best = took < best ? took : best;
        }
        printf("%-28s %8.1f images/s\n", kinds[k].name, 1 / best);
    }
    return 0;
}
