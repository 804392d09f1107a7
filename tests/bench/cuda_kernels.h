/* The cases of bench_cuda_kernels: a file a subject, each with a table of its own. */
#ifndef TR_BENCH_CUDA_KERNELS_H
#define TR_BENCH_CUDA_KERNELS_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dnn/dnn.h"

enum { ARRAYS = 9 };

/* One case under way: its arrays on the device, freed with it. */
typedef struct {
    tr_cuda *cuda;
    void *array[ARRAYS];
    int arrays;
    size_t rows, width, n; /* n = rows * width */
    void *training, *updater;
    tr_segment all; /* of the updater */
    tr_control *control;
    double *sums;
    size_t keep;
    bool matrix;
    tr_dnn_call call;
    bool left_out; /* the library has nothing for it */
    double flops;  /* of products that any implementation makes; 0: not counted */
} bench;

typedef struct {
    const char *name;
    size_t rows, width;
    double per_element; /* bytes that must be moved */
    double goal;        /* of the copy's rate */
    tr_status (*open)(bench *k);
    tr_status (*run)(bench *k);
} bench_case;

/* `count` elements of 2 or 4 bytes, or doubles: numbers between -1 and 1; *out on the device. */
tr_status bench_put(bench *k, size_t count, size_t size, void *out);
/* Arrays of this many elements, of `size` bytes each; the first `arrays` places of k->array. */
tr_status bench_put_all(bench *k, int arrays, size_t count, size_t size);
/* Two arrays of k->n elements of 16 bits. */
tr_status bench_open_two(bench *k);

/* The cases of a file. */
typedef struct {
    const bench_case *cases;
    size_t count;
} bench_subject;

extern const bench_subject bench_updates, bench_layers, bench_attention;

#endif
