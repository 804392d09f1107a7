/* Matrices that are part a parameter, part fixed signs. All Local; into `stream`. Types: float32,
 * bfloat16, float16. */
#ifndef TR_CUDA_LOOPS_SKETCH_H
#define TR_CUDA_LOOPS_SKETCH_H

#include "kernels/cuda/launch.h"

/* `rows` of `width`, rounded to the type. Of row r of the first `learned_rows`, columns from
 * `column` on are row r of `learned`, width - column of them; all else is +-unit, by bit c % 128 of
 * Philox block (key, row, c / 128), the row counted from `first_signs` on. Writes each element
 * once, reads the learned ones. */
typedef struct {
    const float *learned;
    size_t rows, width, learned_rows, column, first_signs;
    uint64_t key;
    float unit;
} tr_cuda_sketch_args;
TR_CUDA_C tr_status tr_cuda_sketch(cudaStream_t stream, tr_dtype type, const tr_cuda_sketch_args *a,
                                   void *to);

#endif
