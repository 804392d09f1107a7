/* Around products of 8 bits: their weights, their rows of x, and what is made of their sums. */
#ifndef TR_CUDA_LOOPS_INT8_H
#define TR_CUDA_LOOPS_INT8_H

#include "kernels/cuda/launch.h"

/* Windows of channels-last images of bytes, as rows of a matrix: row (image, h, w) of the result
 * has kernel[0] * kernel[1] * channels bytes in the order of places, then channels. A linear layer:
 * one image of one line, a window of one place. Fewer than 2^31 elements and rows. */
typedef struct {
    unsigned channels;
    int size[2], result[2]; /* height, width of x and of the result */
    int kernel[2], stride[2], padding[2], dilation[2];
} tr_cuda_window;

enum {
    TR_INT8_ALIGN = 16
}; /* what rows of x, rows of weights and outputs are padded to a multiple of */

/* to(rows, width): rows [first, first + rows); width is a multiple of TR_INT8_ALIGN. Behind a
 * window's bytes a row is zero. flip: 128 is taken away from every byte, padding included. */
TR_CUDA_C tr_status tr_cuda_window_rows(cudaStream_t stream, const tr_cuda_window *w, bool flip,
                                        const void *x, void *to, size_t first, size_t rows,
                                        size_t width);

/* Of one layer; arrays on the device. */
typedef struct {
    int8_t *weights;       /* (outputs, width), zero where there is none */
    float *factor, *shift; /* (outputs) */
    int32_t *sums;         /* (outputs): of an output's weights */
} tr_cuda_int8_weights;

/* weight (out, channels, places) on the grid of scale (out); bias may be NULL. factor = x_scale *
 * scale / y_scale, shift = bias / y_scale. `outputs` is out padded. */
TR_CUDA_C tr_status tr_cuda_int8_pack(cudaStream_t stream, const float *weight, const float *scale,
                                      const float *bias, float x_scale, float y_scale, size_t out,
                                      size_t channels, size_t places, size_t outputs, size_t width,
                                      const tr_cuda_int8_weights *to);

/* What kernels/cpu/int8/int8.h states, in its order: y = round(clamp(relu(fma(residual,
 * residual_scale, fma(acc, factor, shift))))), where acc is exact. */
typedef struct {
    const int32_t *acc; /* (rows, outputs) */
    tr_cuda_int8_weights w;
    const void *residual; /* (rows, out) of 8 bits; NULL: none */
    bool residual_signed, relu;
    bool flipped; /* acc is of x less 128: 128 times the sum of weights is added */
    float residual_scale;
    tr_dtype type; /* of y: TR_U8, TR_I8, TR_F32, TR_BF16, TR_F16 */
    void *y;       /* (rows, out) */
    size_t out, outputs;
} tr_cuda_int8_result;
TR_CUDA_C tr_status tr_cuda_int8_store(cudaStream_t stream, const tr_cuda_int8_result *r,
                                       size_t rows);

/* rows of `part` bytes, x, to every `width` bytes of y: x * factor, of 8 bits each, clamped, then
 * to the nearest, halves even. Fewer than 2^31 elements. */
TR_CUDA_C tr_status tr_cuda_requantize(cudaStream_t stream, bool x_signed, bool y_signed,
                                       float factor, const void *x, void *y, size_t rows,
                                       size_t part, size_t width);

/* acc(rows, outputs) = x(rows, width) weights(outputs, width)^T, where the library has no product.
 * Compute capability 6.1 and later. */
TR_CUDA_C tr_status tr_cuda_int8_dots(cudaStream_t stream, const void *x, const int8_t *weights,
                                      int32_t *acc, size_t rows, size_t outputs, size_t width);

#endif
