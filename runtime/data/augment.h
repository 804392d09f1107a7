/* Private to the data room: random changes of an image as float32 planes [c][h][w] in the file's
 * values. What is drawn is apart from what is done with it. All Local. */
#ifndef TR_DATA_AUGMENT_H
#define TR_DATA_AUGMENT_H

#include "runtime/data/image.h"

typedef enum { TR_BRIGHTNESS, TR_CONTRAST, TR_SATURATION, TR_HUE, TR_JITTERS } tr_jitter_kind;

/* What torchvision's ColorJitter.make_params gives: factors, a shift of the hue, in which order. */
typedef struct {
    bool on[TR_JITTERS];
    float by[TR_JITTERS];
    int order[TR_JITTERS];
} tr_jitter;
tr_jitter tr_jitter_draw(const tr_jitter_config *c, uint64_t seed, uint64_t ordinal);
/* In place; values are from 0 to `bound`. channels: 1, where only brightness and contrast do
 * anything, or 3. */
void tr_jitter_apply(const tr_jitter *j, int64_t channels, int64_t count, float bound, float *v);

/* What torchvision's RandomAffine.make_params gives: degrees clockwise, pixels, a factor. */
typedef struct {
    double degrees, right, down, scale;
} tr_affine;
typedef struct {
    double degrees;
    double scale[2];     /* 1, 1: as it is */
    double translate[2]; /* of the width, the height */
} tr_affine_range;
tr_affine tr_affine_draw(const tr_affine_range *r, int64_t height, int64_t width, uint64_t seed,
                         uint64_t ordinal);
/* torchvision's F.affine of a float tensor with bilinear interpolation and fill=None: about the
 * image's centre, zeros around. Not RandomAffine's default, which is nearest; with its fill=0 a
 * mask weighs border pixels once more. */
void tr_affine_apply(const tr_affine *a, int64_t channels, int64_t height, int64_t width,
                     const float *restrict in, float *restrict out);

typedef struct {
    double p, scale[2], ratio[2];
} tr_erasing_range;
/* torchvision's RandomErasing.make_params; false: nothing is erased. */
bool tr_erasing_draw(const tr_erasing_range *r, int64_t height, int64_t width, uint64_t seed,
                     uint64_t ordinal, tr_box *out);

#endif
