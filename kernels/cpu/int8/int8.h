/* Products of 8-bit arrays: convolutions on channels-last images and linear layers, by one kernel.
 *
 * acc[o]  = sum of x * w over the window, exact, int32 (values are at most 128 * 127 * 2^16 terms)
 * v       = fma((float)acc[o], factor[o], shift[o])
 * v       = fma((float)residual, residual_scale, v), where there is a residual
 * v       = v > 0 ? v : 0 with relu
 * y       = v as float32 or bfloat16; of 8 bits: clamped to [least, most], then rounded, halves even
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
 * one row, over the padding between rows, whose results are thrown away. */
#ifndef TR_CPU_INT8_H
#define TR_CPU_INT8_H

#include "kernels/cpu/internal.h"

typedef enum { TR_INT8_BASE, TR_INT8_VNNI, TR_INT8_AMX } tr_int8_level;
/* The best that the CPU, the build and the context's instruction set level allow. */
tr_int8_level tr_int8_level_of(const tr_cpu *cpu);
const char *tr_int8_level_name(tr_int8_level level);

enum { TR_INT8_BLOCK = 16, TR_INT8_CHUNK = 64, TR_INT8_TILE = 1024 };

/* Linear: images = 1, H = kernel = 1, W = rows. Sizes of one group. */
typedef struct {
    int64_t images, C, H, W, O, OH, OW;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} tr_int8_shape;

/* How the shape is computed: tr_int8_plan_of. */
typedef struct {
    tr_int8_shape s;
    bool x_signed;
    int64_t segments, segment_bytes, full, tail; /* chunks of 64 bytes; bytes of the last, 4 n */
    int64_t tiles;                               /* of 16 outputs */
    int64_t padded_w, padded_h;
    bool copied;                   /* x goes through the workspace */
    bool flat;                     /* one row of all positions */
    int64_t strips, length, block; /* rows of positions, positions in each, in a block */
    int64_t step, strip_bytes;     /* between positions; between strips */
    size_t packed_bytes, image_bytes;
} tr_int8_plan;

/* Weights and what goes with them, in one array of packed_bytes. */
typedef struct {
    const int8_t *weights;
    const float *factor, *shift; /* [tiles * 16] */
    const int32_t *sums;         /* [tiles * 16] of an output's weights */
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

/* false: not computed here (groups, sizes that do not fit). */
bool tr_int8_plan_of(const tr_int8_shape *s, bool x_signed, tr_int8_plan *out);
/* The parts of a packed array. */
tr_int8_packed tr_int8_parts(const tr_int8_plan *p, const void *packed);
/* Fills it: weight (O, C, kernel) on the grid of scale[O]; bias may be NULL. x_scale, y_scale: of a
 * step of x, of y (1: y is no 8-bit array). factor = x_scale * scale / y_scale, shift = bias /
 * y_scale. */
void tr_int8_pack(const tr_int8_plan *p, const float *weight, const float *scale, const float *bias,
                  float x_scale, float y_scale, void *packed);
void tr_int8_product(tr_int8_level level, const tr_int8_plan *p, const tr_int8_run *r);

/* ---- Private: one file a level ---------------------------------------------------------------- */

/* Some blocks of positions, with the tiles [tile, tile + ntiles) of outputs. */
enum { TR_INT8_BLOCKS = 4, TR_INT8_TILES = 2 };
typedef struct {
    const tr_int8_plan *p;
    const tr_int8_run *r;
    int nblocks, ntiles;
    int64_t tile;
    const uint8_t *at[TR_INT8_BLOCKS]; /* the first window of each */
    /* Of every position: its number in y; -1: thrown away. */
    int64_t to[TR_INT8_BLOCKS][TR_INT8_BLOCK];
} tr_int8_work;
/* begin and end are called in each thread before and after its pieces; may be NULL. */
typedef struct {
    void (*begin)(const tr_int8_plan *p);
    void (*blocks)(const tr_int8_work *w);
    void (*end)(void);
    int blocks_of_one, blocks_of_two; /* most blocks with one tile and with two */
} tr_int8_code;
extern const tr_int8_code tr_int8_base;
#if TR_INT8_LEVELS > 1
extern const tr_int8_code tr_int8_vnni, tr_int8_amx;
/* The kernel's leave to use tiles, asked for once in a process. */
bool tr_int8_amx_allowed(void);
#endif

#endif
