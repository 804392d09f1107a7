/* Kernels of layers and of their loss, but attention. */
#include "kernels/cuda/loops/batchnorm.h"
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/loss.h"
#include "kernels/cuda/ops/rows.h"
#include "tests/bench/cuda_kernels.h"

enum { TOGETHER = 4 }; /* as ops/batchnorm.c */

static const tr_backend *const b = &tr_cuda_backend;

/* x, y or dx, dy; weight, bias and their gradients; statistics; the gradient's workspace */
static tr_status open_layernorm(bench *k)
{
    tr_status st = TR_OK;
    void *p;
    k->keep = tr_cuda_row_room(k->cuda);
    TR_TRY(bench_put_all(k, 3, k->n, 2));
    TR_TRY(bench_put_all(k, 4, k->width, 4));
    TR_TRY(bench_put(k, 2 * k->rows, 4, &p));
    const size_t work = tr_cuda_layernorm_grad_workspace(TR_BF16, k->rows, k->width);
    TR_TRY(bench_put(k, work / 4 + 1, 4, &p));
    TR_TRY(tr_cuda_layernorm_ready(TR_BF16, k->keep));
    TR_TRY(tr_cuda_layernorm_grad_ready(TR_BF16, k->keep));
out:
    return st;
}

static tr_status run_layernorm(bench *k)
{
    return tr_cuda_layernorm_run(TR_BF16, k->array[0], k->array[3], k->array[4], 1e-5, true,
                                 k->array[1], k->array[7], k->rows, k->width, k->keep,
                                 k->cuda->stream);
}

static tr_status open_layernorm_grad(bench *k)
{
    const tr_status st = open_layernorm(k);
    return st == TR_OK ? run_layernorm(k) : st; /* for the statistics */
}

static tr_status run_layernorm_grad(bench *k)
{
    const tr_cuda_layernorm_grad_args a = {.dy = k->array[2],
                                           .x = k->array[0],
                                           .weight = k->array[3],
                                           .stats = k->array[7],
                                           .dx = k->array[1],
                                           .dweight = k->array[5],
                                           .dbias = k->array[6],
                                           .rows = k->rows,
                                           .D = k->width,
                                           .partial = k->array[8],
                                           .keep = k->keep};
    return tr_cuda_layernorm_grad_run(TR_BF16, &a, k->cuda->stream);
}

static tr_status open_cross_entropy(bench *k)
{
    tr_status st = TR_OK;
    int32_t *labels = NULL;
    void *p;
    k->keep = tr_cuda_row_room(k->cuda);
    TR_TRY(bench_put_all(k, 2, k->n, 2));
    TR_TRY(bench_put(k, k->rows, 4, &p));
    labels = tr_alloc(TR_MEM_OTHER, k->rows, sizeof *labels);
    if (!labels) TR_TRY(TR_MEMORY);
    for (size_t r = 0; r < k->rows; r++) labels[r] = (int32_t)(r * 7919 % k->width);
    TR_TRY(b->memory->upload(k->cuda, p, labels, k->rows * sizeof *labels));
    TR_TRY(bench_put(k, TR_TALLY, 8, &p));
    TR_TRY(bench_put(k, TR_LOSS_WORKSPACE / 8, 8, &p));
    TR_TRY(tr_cuda_cross_entropy_ready(TR_BF16, k->keep));
out:
    tr_free(labels);
    return st;
}

static tr_status run_cross_entropy(bench *k)
{
    const tr_cuda_cross_entropy_args a = {.logits = k->array[0],
                                          .labels = k->array[2],
                                          .dlogits = k->array[1],
                                          .rows = k->rows,
                                          .each = 1,
                                          .classes = k->width,
                                          .pitch = k->width,
                                          .weight_sum = (double)k->width,
                                          .factor = 1,
                                          .scale = 1,
                                          .tally = k->array[3],
                                          .partial = k->array[4],
                                          .keep = k->keep};
    return tr_cuda_cross_entropy_run(TR_BF16, &a, k->cuda->stream);
}

/* x, y or dx, dy; weight and bias; statistics; partial sums */
static tr_status open_batchnorm(bench *k)
{
    tr_status st = TR_OK;
    void *p;
    const tr_bn_map m = tr_bn_map_of(k->rows, k->width, TR_BF16, TR_BN_RUN);
    TR_TRY(bench_put_all(k, 3, k->n, 2));
    TR_TRY(bench_put_all(k, 2, k->width, 4));
    TR_TRY(bench_put(k, 1 + 2 * k->width, 8, &p));
    TR_TRY(bench_put(k, tr_bn_parts(&m) / 8 + 1, 8, &p));
    TR_TRY(bench_put(k, 2 * k->width, 8, &p));
    TR_TRY(tr_bn_stats(k->cuda->stream, TR_BF16, &m, k->array[0], k->array[6], k->array[5]));
out:
    return st;
}

static tr_status run_batchnorm_stats(bench *k)
{
    const tr_bn_map m = tr_bn_map_of(k->rows, k->width, TR_BF16, TR_BN_RUN);
    return tr_bn_stats(k->cuda->stream, TR_BF16, &m, k->array[0], k->array[6], k->array[5]);
}

static tr_status run_batchnorm(bench *k)
{
    const tr_bn_map m = tr_bn_map_of(k->rows, k->width, TR_BF16, TOGETHER);
    const tr_bn_norm norm = {
        .weight = k->array[3], .bias = k->array[4], .stats = k->array[5], .eps = 1e-5};
    return tr_bn_apply(k->cuda->stream, TR_BF16, &m, TR_ACT_RELU, k->array[0], NULL, &norm,
                       k->array[1]);
}

static tr_status run_batchnorm_grad_stats(bench *k)
{
    const tr_bn_map m = tr_bn_map_of(k->rows, k->width, TR_BF16, TR_BN_RUN);
    const tr_bn_grads g = {.dy = k->array[2],
                           .x = k->array[0],
                           .stats = k->array[5],
                           .sums = k->array[7],
                           .eps = 1e-5};
    return tr_bn_grad_stats(k->cuda->stream, TR_BF16, &m, &g, k->array[6]);
}

static tr_status run_batchnorm_grad_input(bench *k)
{
    const tr_bn_map m = tr_bn_map_of(k->rows, k->width, TR_BF16, TOGETHER);
    return tr_bn_grad_input(k->cuda->stream, TR_BF16, &m, k->array[2], k->array[0], k->array[5],
                            k->array[3], k->array[7], 1e-5, k->array[1]);
}

static tr_status open_three(bench *k)
{
    return bench_put_all(k, 3, k->n, 2);
}

static tr_status run_relu(bench *k)
{
    return tr_cuda_act_run(TR_BF16, TR_ACT_RELU, k->array[0], k->array[1], k->n, k->cuda->stream);
}

static tr_status run_add(bench *k)
{
    return tr_cuda_add_run(TR_BF16, TR_ACT_RELU, 2, k->array, k->array[2], k->n, k->cuda->stream);
}

static const bench_case cases[] = {
    {"layernorm, 131072 x 1024", 131072, 1024, 4, 0.85, open_layernorm, run_layernorm},
    {"layernorm, 32768 x 4096", 32768, 4096, 4, 0.85, open_layernorm, run_layernorm},
    {"layernorm.grad, 131072 x 1024", 131072, 1024, 6, 0.85, open_layernorm_grad,
     run_layernorm_grad},
    {"layernorm.grad, 32768 x 4096", 32768, 4096, 6, 0.85, open_layernorm_grad, run_layernorm_grad},
    {"cross entropy, 131072 x 1000", 131072, 1000, 4, 0.85, open_cross_entropy, run_cross_entropy},
    {"cross entropy, 8192 x 50304", 8192, 50304, 4, 0.85, open_cross_entropy, run_cross_entropy},
    {"batchnorm.stats, 802816 x 256", 802816, 256, 2, 0, open_batchnorm, run_batchnorm_stats},
    {"batchnorm, 802816 x 256", 802816, 256, 4, 0, open_batchnorm, run_batchnorm},
    {"batchnorm.grad_stats, 802816 x 256", 802816, 256, 4, 0, open_batchnorm,
     run_batchnorm_grad_stats},
    {"batchnorm.grad_input, 802816 x 256", 802816, 256, 6, 0, open_batchnorm,
     run_batchnorm_grad_input},
    {"relu, 65536 x 4096", 65536, 4096, 4, 0, bench_open_two, run_relu},
    {"add and relu, 65536 x 4096", 65536, 4096, 6, 0, open_three, run_add},
};
const bench_subject bench_layers = {cases, TR_COUNT(cases)};
