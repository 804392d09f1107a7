/* libFuzzer: PNG and JPEG files, decoded, fitted to 16 x 16 and resized at random; the last byte
 * chooses how. */
#include "runtime/data/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static tr_image_work work;
    static uint8_t to[3 * 16 * 16];
    tr_image image;
    if (n == 0) return 0;
    const unsigned how = bytes[n - 1];
    const tr_image_fit fit = {.height = 16,
                              .width = 16,
                              .nresize = how / 2 % 3,
                              .resize = {1 + how % 37, 1 + how % 41},
                              .center_crop = how & 1,
                              .scale = {0.08, 1},
                              .ratio = {0.75, 1.333}};
    if (tr_image_decode("fuzz", bytes, n, how & 64 ? 1 : 3, &work, &image) == TR_OK) {
        unsigned sum = 0;
        const size_t count = (size_t)image.height * (size_t)image.width * (size_t)image.channels;
        for (size_t i = 0; i < count; i++) sum += image.pixels[i];
        (void)tr_image_fit_plain("fuzz", &image, &fit, &work, to);
        if (tr_image_fit_random(&image, &fit, 1, sum, &work, to) != TR_OK) __builtin_trap();
    }
    tr_image_work_free(&work); /* so that what grows is seen */
    return 0;
}
