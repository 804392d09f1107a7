/* Products of 8-bit arrays: convolutions on channels-last images and linear layers, by one kernel.
 *
 * acc[o]  = sum of x * w over the window, exact, int32 (values are at most 128 * 127 * 2^16 terms)
 * v       = fma((float)acc[o], factor[o], shift[o])
 * v       = fma((float)residual, residual_scale, v), where there is a residual
 * v       = v > 0 ? v : 0 with relu
 * y       = v as float32 or bfloat16; of 8 bits: clamped to [least, most], then rounded, halves
 *         even
 *
 * The same operations in the same order on every level, so results are bitwise equal.
 *
 * A window is a list of segments, each of bytes that lie together: a row of kernel places and
 * channels, kw * C, or with dilation one place, C. Segments are cut into chunks of 64 bytes, the
 * last one shorter. Weights are packed for AMX and VNNI alike: for each 16 outputs and each chunk
 * 16 rows of 64 bytes, a row with 4 bytes in turn of every output:
 *
 *     row k: w[o=0][4k..4k+3] w[o=1][4k..4k+3] ... w[o=15][4k..4k+3]
 *
 * Positions of the output whose windows lie a constant step apart are computed 16 at a time (a
 * block). Images are copied with their padding; an image whose rows fill blocks badly is walked as
 * one row, over the padding between rows, whose results are thrown away.
 *
 * Groups are computed one after the other, each a product of its own: the copy of the image has the
 * channels of the group alone. Convolutions of one channel a group (depthwise) keep all channels
 * side by side: depthwise.c. */
#ifndef TR_CPU_INT8_H
#define TR_CPU_INT8_H

#include "kernels/cpu/internal.h"

typedef enum { TR_INT8_BASE, TR_INT8_VNNI, TR_INT8_AMX } tr_int8_level;
/* The best that the CPU, the build and the context's instruction set level allow. */
tr_int8_level tr_int8_level_of(const tr_cpu *cpu);
const char *tr_int8_level_name(tr_int8_level level);

enum { TR_INT8_BLOCK = 16, TR_INT8_CHUNK = 64, TR_INT8_TILE = 1024 };

/* Linear: images = groups = 1, H = kernel = 1, W = rows. C and O are of one group. */
typedef struct {
    int64_t images, groups, C, H, W, O, OH, OW;
    int64_t kernel[2], stride[2], padding[2], extra[2], dilation[2];
} tr_int8_shape;

/* How the shape is computed: tr_int8_plan_of. */
typedef struct {
    tr_int8_shape s;
    bool x_signed;
    int64_t segments, segment_bytes, full, tail; /* chunks of 64 bytes; bytes of the last, 4 n */
    int64_t tiles;                               /* of 16 outputs, of a group */
    bool depthwise;                              /* all channels at once; tiles: of all */
    int64_t padded_w, padded_h;
    bool copied;                   /* x goes through the workspace */
    bool flat;                     /* one row of all positions */
    int64_t strips, length, block; /* rows of positions, positions in each, in a block */
    int64_t step, strip_bytes;     /* between positions; between strips */
    size_t weight_bytes, packed_bytes, image_bytes;
} tr_int8_plan;

/* Weights and what goes with them, in one array of packed_bytes. */
typedef struct {
    const int8_t *weights;
    const float *factor, *shift; /* [groups][tiles * 16]; depthwise: [tiles * 16] */
    const int32_t *sums;         /* the same, of an output's weights */
} tr_int8_packed;

typedef struct {
    const void *x;
    tr_int8_packed w;
    const void *residual; /* of 8 bits; NULL: none */
    bool residual_signed;
    float residual_scale;
    bool relu;
    tr_dtype type;     /* of y: TR_U8, TR_I8, TR_F32, TR_BF16 */
    float least, most; /* of 8 bits */
    void *y;
    char *workspace; /* [threads * image_bytes] */
    int threads;
} tr_int8_run;

/* false: not computed here: sizes that do not fit. */
bool tr_int8_plan_of(const tr_int8_shape *s, bool x_signed, tr_int8_plan *out);
/* The parts of a packed array. */
tr_int8_packed tr_int8_parts(const tr_int8_plan *p, const void *packed);
/* Fills it: weight (groups * O, C, kernel) on the grid of scale[groups * O]; bias may be NULL.
 * x_scale, y_scale: of a step of x, of y (1: y is no 8-bit array). factor = x_scale * scale /
 * y_scale, shift = bias / y_scale. */
void tr_int8_pack(const tr_int8_plan *p, const float *weight, const float *scale, const float *bias,
                  float x_scale, float y_scale, void *packed);
/* The way back: weight = its steps times scale, bit for bit what was packed where that was on the
 * grid. */
void tr_int8_unpack(const tr_int8_plan *p, const void *packed, const float *scale, float *weight);
void tr_int8_product(tr_int8_level level, const tr_int8_plan *p, const tr_int8_run *r);

/* ---- Private: one file a level --------------------------------------------------------------- */

/* Positions [from, from + n) of a block: one behind the other in y, from position `to` on. What
 * lies between a block's spans is thrown away. */
typedef struct {
    int32_t from, n;
    int64_t to;
} tr_int8_span;

/* Some blocks of positions, with the tiles [tile, tile + ntiles) of all groups' outputs. */
enum { TR_INT8_BLOCKS = 4, TR_INT8_TILES = 2, TR_INT8_SPANS = TR_INT8_BLOCK };
typedef struct {
    const tr_int8_plan *p;
    const tr_int8_run *r;
    int nblocks, ntiles;
    int64_t tile;
    int64_t out,
        left; /* the first tile's outputs: place of the first in y's position; how many are left */
    const uint8_t *at[TR_INT8_BLOCKS]; /* the first window of each */
    int nspans[TR_INT8_BLOCKS];
    tr_int8_span spans[TR_INT8_BLOCKS][TR_INT8_SPANS];
} tr_int8_work;
/* begin and end are called in each thread before and after its pieces; may be NULL. */
typedef struct {
    void (*begin)(const tr_int8_plan *p);
    void (*blocks)(const tr_int8_work *w);
    void (*end)(void);
    int blocks_of_one, blocks_of_two; /* most blocks with one tile and with two */
    bool moved; /* where images are copied, signed x is moved up by 128 on the way */
    int run;    /* positions a step apart that are best computed at once, where rows are whole such
                   runs; 0: as planned */
    /* Of an image, with its padding: blocks [begin, end) of TR_INT8_WIDE channels. No begin, no
     * end. */
    void (*depthwise)(const tr_int8_plan *p, const tr_int8_run *r, const uint8_t *x, int64_t image,
                      int64_t begin, int64_t end);
} tr_int8_code;
enum { TR_INT8_WIDE = 64, TR_INT8_PLACES = 64 /* most of a depthwise kernel */ };
/* Where in an image with its padding the places of a depthwise window are. */
void tr_int8_places(const tr_int8_plan *p, int64_t from[TR_INT8_PLACES]);
void tr_int8_depthwise_base(const tr_int8_plan *p, const tr_int8_run *r, const uint8_t *x,
                            int64_t image, int64_t begin, int64_t end);
/* Weights: for 64 channels and four places in turn 4 rows of 64 bytes; row j: for each 16 channels
 * four of them, from the 4 j-th on, with the four places each. So bytes of images fall into place
 * as they are interleaved. */
void tr_int8_depthwise_pack(const tr_int8_plan *p, const float *weight, const float *scale,
                            int8_t *to, int32_t *sums);
void tr_int8_depthwise_unpack(const tr_int8_plan *p, const int8_t *from, const float *scale,
                              float *weight);
/* An element by its sum, as above. */
void tr_int8_store_one(const tr_int8_run *r, int32_t acc, int64_t slot, size_t at);
extern const tr_int8_code tr_int8_base;
#if TR_INT8_LEVELS > 1
extern const tr_int8_code tr_int8_vnni, tr_int8_amx;
void tr_int8_depthwise_vnni(const tr_int8_plan *p, const tr_int8_run *r, const uint8_t *x,
                            int64_t image, int64_t begin, int64_t end);
/* The kernel's leave to use tiles, asked for once in a process. */
bool tr_int8_amx_allowed(void);
#endif

#endif
