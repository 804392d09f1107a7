/* Private to the data room: PNG and JPEG bytes to 8-bit pixels, and pixels to a size. Bytes are
 * nobody's we trust. All Local. */
#ifndef TR_DATA_IMAGE_H
#define TR_DATA_IMAGE_H

#include "runtime/data/internal.h"

/* What bounds a hostile file. */
#define TR_IMAGE_PIXELS ((uint64_t)1 << 26) /* 8192 x 8192 */
#define TR_IMAGE_SIDE   65500               /* the most of JPEG */
#define TR_IMAGE_BYTES  ((uint64_t)256 << 20)
/* Coefficients of a JPEG of several scans, which are all held until the last one: 2 bytes each. */
#define TR_IMAGE_COEFFICIENTS ((uint64_t)256 << 20)
#define TR_IMAGE_SCANS        100 /* of a progressive JPEG: each costs a pass over all of it */

/* A buffer that grows to the largest thing it was asked to hold. Zeros: empty. */
typedef struct {
    void *at;
    size_t room;
} tr_room;
tr_status tr_room_take(tr_room *r, size_t count, size_t size);

/* What decoding and resampling work in; one a thread at a time. */
typedef struct {
    tr_room file, pixels, turned, rows, kernel[2], bounds[2];
} tr_image_work;
void tr_image_work_free(tr_image_work *w);
size_t tr_image_work_room(const tr_image_work *w); /* bytes that such images come to take */
/* w->file: all of a file's bytes, *n of them; TR_DATA where it has more than TR_IMAGE_BYTES. */
tr_status tr_image_file_read(const char *path, tr_image_work *w, size_t *n);

/* pixels[height][width][channels], in a buffer of the work that made it, until its next image. */
typedef struct {
    int64_t height, width;
    int channels;
    const uint8_t *pixels;
} tr_image;

/* `channels`: 1 (ITU-R 601 luma, rounded as Pillow's "L") or 3. Alpha is dropped, 16 bits lose
 * their lower 8, palettes are looked up, CMYK becomes RGB as in Pillow; EXIF orientation is
 * applied. TR_DATA names the file and what is wrong: damage is never filled in. */
tr_status tr_image_decode(const char *name, const uint8_t *bytes, size_t n, int channels,
                          tr_image_work *w, tr_image *out);
/* The two formats' own part: RGB or grey to w->pixels, as the file has it, and the TIFF block of
 * its EXIF, if any, of which `orientation` (1 to 8) is read. */
tr_status tr_image_png(const char *name, const uint8_t *bytes, size_t n, tr_image_work *w,
                       tr_image *out, int *orientation);
tr_status tr_image_jpeg(const char *name, const uint8_t *bytes, size_t n, tr_image_work *w,
                        tr_image *out, int *orientation);
/* TR_DATA where an image of this size is refused. */
tr_status tr_image_size_check(const char *name, uint64_t width, uint64_t height);
/* Of the TIFF block that EXIF is; 1 where it does not say. */
int tr_image_orientation(const uint8_t *tiff, size_t n);

/* ---- To a size ------------------------------------------------------------------------------- */

typedef struct {
    int64_t top, left, height, width;
} tr_box;

/* The part `from` of the image, resized to (height, width) by bilinear interpolation with
 * antialiasing, in Pillow's fixed-point arithmetic (Image.crop, Image.resize with BILINEAR); of the
 * result only `part`, which lies within it, as planes out[channels][out_height][out_width] at
 * (at_top, at_left). */
typedef struct {
    tr_box from, part;
    int64_t height, width;
    int64_t at_top, at_left, out_height, out_width;
} tr_image_resize;
tr_status tr_image_resample(const tr_image *image, const tr_image_resize *r, tr_image_work *w,
                            uint8_t *out);

/* What data.image and data.augment make of an image of any size. Of random_resized_crop alone the
 * plain way is a resize to height and width. */
typedef struct {
    int64_t height, width; /* that come out: the model's */
    size_t nresize;        /* 0: as it is; 1: the shorter side; 2: height, width */
    int64_t resize[2];
    bool center_crop;
    bool random; /* random_resized_crop, where a sample is drawn */
    double scale[2], ratio[2];
} tr_image_fit;
/* resize, center_crop: torchvision's v2.Resize and v2.CenterCrop. TR_DATA where what comes out has
 * another size. to: planes [channels][height][width]. */
tr_status tr_image_fit_plain(const char *name, const tr_image *image, const tr_image_fit *fit,
                             tr_image_work *w, uint8_t *to);
/* The part that v2.RandomResizedCrop takes of (height, width), with tr_philox numbers of (seed,
 * ordinal). */
tr_box tr_image_random_box(const tr_image_fit *fit, int64_t height, int64_t width, uint64_t seed,
                           uint64_t ordinal);
tr_status tr_image_fit_random(const tr_image *image, const tr_image_fit *fit, uint64_t seed,
                              uint64_t ordinal, tr_image_work *w, uint8_t *to);

/* ---- Files of a folder ----------------------------------------------------------------------- */

/* Image files below a folder by class, in torchvision's order: classes, folders in them, and files
 * by name. */
typedef struct {
    char *text;          /* all relative paths, each ended by 0 */
    size_t nbytes, room; /* of text */
    struct tr_found {
        uint64_t at;   /* in text */
        uint32_t dir;  /* bytes of its folder's path */
        int32_t label; /* the folder at the top; -1: without classes */
    } * files;
    uint64_t count, files_room;
    char **classes; /* by name */
    size_t nclasses;
    uint64_t others; /* files that are no images by their names */
    char other[512]; /* the first of them */
} tr_found_images;
/* `labeled`: the top holds folders, a class each, in which there are images. TR_DATA. */
tr_status tr_folder_scan(const char *path, bool labeled, tr_found_images *out);
tr_status tr_folder_classes_of(const char *path, tr_found_images *out); /* these alone */
void tr_found_free(tr_found_images *f);

#endif
