/* Losses: sums to the tally and gradients times the loss scale. Each is two launches: one over the
 * rows or elements, whose blocks leave partial sums, and one of a single block that adds them in
 * order. */
#ifndef TR_CUDA_LOOPS_LOSS_H
#define TR_CUDA_LOOPS_LOSS_H

#include "kernels/cuda/launch.h"

/* What a block leaves: sums of loss, weight, correct, top-5 and targets. Blocks: whole rounds of an
 * H100's 132 multiprocessors with 1, 2, 3 or 6 at a time on each. */
enum { TR_LOSS_PARTS = 5, TR_LOSS_BLOCKS = 6 * 132 };
#define TR_LOSS_WORKSPACE (TR_LOSS_BLOCKS * TR_LOSS_PARTS * sizeof(double))

/* What is counted beside the blocks' sums, and how these are. */
typedef struct {
    double samples, targets; /* as many more */
    double each;             /* samples of a target that blocks counted: 1, or 0 */
    double times, by;        /* correct comes times `times` / `by` */
} tr_cuda_counted;
/* tally += the sums of `blocks` blocks. */
TR_CUDA_C tr_status tr_cuda_tally_add(const double *partial, unsigned blocks,
                                      const tr_cuda_counted *counted, double *tally,
                                      cudaStream_t stream);

typedef struct {
    const void *logits; /* rows x classes */
    const int32_t *labels;
    void *dlogits; /* NULL: evaluating, top-5 counts */
    size_t rows, classes;
    /* Elements from one row to the next, of both: classes, or, of labels alone, up to the next
     * multiple of 16 bytes more, where `logits` and `dlogits` have that alignment: what is between
     * rows is not looked at, and becomes 0. */
    size_t pitch;
    size_t each; /* rows of a sample */
    double smoothing;
    const double *weights; /* [classes] on the device; NULL: all 1 */
    double weight_sum;     /* of all classes */
    double factor;         /* of loss and gradient */
    double gamma;          /* 0: none */
    bool ignores;
    int32_t ignore_index;
    const float *samples;      /* [rows / each] weights; NULL: all 1 */
    const tr_control *control; /* on the device; its loss_scale; NULL: `scale` */
    float scale;
    int64_t *confusion; /* NULL: not wanted */
    double *tally;
    double *partial; /* TR_LOSS_WORKSPACE bytes */
    size_t keep;     /* shared bytes that tr_cuda_cross_entropy_ready has made available */
} tr_cuda_cross_entropy_args;
static inline tr_cuda_counted tr_cuda_rows_counted(const tr_cuda_cross_entropy_args *a)
{
    const bool alone = a->each == 1;
    const tr_cuda_counted c = {alone ? 0.0 : (double)(a->rows / a->each), 0.0, alone ? 1.0 : 0.0,
                               1.0, 1.0};
    return c;
}

/* A label that is not in 0 .. classes - 1 makes the loss and its row's gradient NaN. */
TR_CUDA_C tr_status tr_cuda_cross_entropy_run(tr_dtype t, const tr_cuda_cross_entropy_args *a,
                                              cudaStream_t stream);
/* Lets wide rows be kept in up to `keep` bytes of shared memory. Once, before the first run;
 * touches the device. */
TR_CUDA_C tr_status tr_cuda_cross_entropy_ready(tr_dtype t, size_t keep);

/* Cross entropy of probabilities, [rows * classes], in the place of labels. */
TR_CUDA_C tr_status tr_cuda_soft_targets_run(tr_dtype t, const tr_cuda_cross_entropy_args *a,
                                             const float *target, cudaStream_t stream);

/* Rows beside a teacher's. */
typedef struct {
    const void *x, *teacher; /* rows x width */
    const int32_t *labels;   /* read where there are weights */
    void *dx;                /* NULL: no gradient is wanted */
    size_t rows, width, classes;
    const double *weights; /* [classes] on the device; NULL: all 1 */
    double factor;
    double inverse;            /* 1 / temperature */
    const tr_control *control; /* as above */
    float scale;
    double *tally;
    double *partial; /* TR_LOSS_WORKSPACE bytes */
} tr_cuda_distill_args;

TR_CUDA_C tr_status tr_cuda_soft_loss_run(tr_dtype t, const tr_cuda_distill_args *a,
                                          cudaStream_t stream);
TR_CUDA_C tr_status tr_cuda_feature_loss_run(tr_dtype t, const tr_cuda_distill_args *a,
                                             cudaStream_t stream);

typedef struct {
    const void *y;
    const float *target;
    void *dy; /* NULL: evaluating */
    size_t count, samples;
    const tr_control *control; /* as above */
    float scale;
    double *tally;
    double *partial;                              /* TR_LOSS_WORKSPACE bytes */
    const struct tr_elementwise_loss_attrs *loss; /* runtime/graph/ops.h */
    const float *pos;                             /* its pos_weight, on the device */
    const float *weights;                         /* of samples; NULL: all 1 */
} tr_cuda_elementwise_loss_args;

TR_CUDA_C tr_status tr_cuda_elementwise_loss_run(tr_dtype t, const tr_cuda_elementwise_loss_args *a,
                                                 cudaStream_t stream);

#endif
