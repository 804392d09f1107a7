/* How fast our own CUDA kernels move what they must, beside the device's own copy.
 *
 *     bench_cuda_kernels [divide | devices]
 *
 * For each kernel a case of the size of real models, whose arrays are larger than the second-level
 * cache; before every run 256 MB are overwritten, so that nothing is found there. Bytes are those
 * that any implementation must move (inputs once, outputs once), so that a ratio of 1 means: as
 * good as copying. Times are medians of RUNS runs between two events; the copy is
 * cudaMemcpyAsync within the device. `divide`: so many times fewer elements, to try the program.
 * `devices` only prints how many GPUs a process may use here, as the trainer counts them.
 *
 * Prints one line of JSON a case: {"kernel", "bytes", "us", "gb_per_s", "of_copy", "goal",
 * "tflop_per_s"}; goal is 0 for kernels that have none, the last one but for those that are bound by their products. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dnn/dnn.h"
#include "kernels/cuda/loops/attention.h"
#include "kernels/cuda/loops/batchnorm.h"
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/loss.h"
#include "kernels/cuda/ops/rows.h"
#include "runtime/config/config.h"

enum { RUNS = 15, WARM = 3, ARRAYS = 9, FLUSH = 256 << 20, PIECE = 1 << 22 };
enum { TOGETHER = 4 }; /* as ops/batchnorm.c */

static const tr_backend *const b = &tr_cuda_backend;

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
static tr_status put(bench *k, size_t count, size_t size, void *out)
{
    tr_status st = TR_OK;
    char *host = NULL, *device = NULL;
    const size_t nbytes = count * size, piece = nbytes < PIECE ? nbytes : PIECE;
    TR_NEED(k->arrays < ARRAYS, TR_INTERNAL, "more than %d arrays", ARRAYS);
    device = b->memory->alloc(k->cuda, TR_MEM_OTHER, nbytes);
    host = tr_alloc(TR_MEM_OTHER, piece, 1);
    if (!device || !host) TR_TRY(tr_last_error()->status);
    k->array[k->arrays++] = device;
    for (size_t i = 0; i < piece / size; i++) {
        const float v =
            2 * tr_uniform(tr_philox_at((uint64_t)k->arrays, TR_RNG_TEST, 0, i, 0).v[0]) - 1;
        if (size == 2) ((tr_bf16 *)host)[i] = tr_f32_to_bf16(v);
        if (size == 4) ((float *)host)[i] = v;
        if (size == 8) ((double *)host)[i] = v;
    }
    TR_TRY(b->memory->upload(k->cuda, device, host, piece));
    for (size_t at = piece; at < nbytes; at *= 2)
        TR_TRY(b->memory->copy(k->cuda, device + at, device, nbytes - at < at ? nbytes - at : at));
    *(void **)out = device;
out:
    tr_free(host);
    if (st != TR_OK && (k->arrays == 0 || k->array[k->arrays - 1] != device))
        b->memory->free(k->cuda, device);
    return st;
}

/* Arrays of this many elements, of `size` bytes each; the first `arrays` places of k->array. */
static tr_status put_all(bench *k, int arrays, size_t count, size_t size)
{
    tr_status st = TR_OK;
    void *p;
    for (int i = 0; i < arrays; i++) TR_TRY(put(k, count, size, &p));
out:
    return st;
}

/* ---- The cases ------------------------------------------------------------------------------- */

static tr_status open_two(bench *k)
{
    return put_all(k, 2, k->n, 2);
}

static tr_status open_three(bench *k)
{
    return put_all(k, 3, k->n, 2);
}

static tr_status run_copy(bench *k)
{
    return tr_cuda_check(cudaMemcpyAsync(k->array[1], k->array[0], k->n * 2,
                                         cudaMemcpyDeviceToDevice, k->cuda->stream),
                         "cudaMemcpyAsync");
}

static tr_status run_relu(bench *k)
{
    return tr_cuda_act_run(TR_BF16, TR_ACT_RELU, k->array[0], k->array[1], k->n, k->cuda->stream);
}

static tr_status run_add(bench *k)
{
    return tr_cuda_add_run(TR_BF16, TR_ACT_RELU, 2, k->array, k->array[2], k->n, k->cuda->stream);
}

/* w, g and the moments; an update that is to be applied. */
static tr_status open_optimizer(bench *k, int kind, int moments)
{
    tr_status st = TR_OK;
    const tr_control control = {.beta1 = 0.9,
                                .beta2 = 0.999,
                                .loss_scale = 1,
                                .in.lr = 1e-3,
                                .apply = 1,
                                .grad_scale = 1e-3,
                                .correct1 = 0.5,
                                .correct2 = 0.5};
    TR_TRY(put_all(k, 2 + moments, k->n, 4));
    if (kind == TR_OPT_ADAMW)
        TR_TRY(b->memory->zero(k->cuda, k->array[3], k->n * 4)); /* not negative */
    k->control = b->memory->alloc(k->cuda, TR_MEM_OTHER, sizeof control);
    if (!k->control) TR_TRY(tr_last_error()->status);
    TR_TRY(b->memory->upload(k->cuda, k->control, &control, sizeof control));
    k->all = (tr_segment){.range = {0, k->n}, .decay = 0.01, .lr_factor = 1};
    const tr_update u = {.kind = kind,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .momentum = 0.9,
                         .w = k->array[0],
                         .g = k->array[1],
                         .m = moments > 0 ? k->array[2] : NULL,
                         .v = moments > 1 ? k->array[3] : NULL,
                         .segments = &k->all,
                         .nsegments = 1};
    TR_TRY(b->training->open(k->cuda, 1, &k->training));
    TR_TRY(b->training->updater_open(k->training, &u, &k->updater));
out:
    return st;
}

static tr_status open_adamw(bench *k)
{
    return open_optimizer(k, TR_OPT_ADAMW, 2);
}

static tr_status open_sgd(bench *k)
{
    return open_optimizer(k, TR_OPT_SGD, 1);
}

static tr_status run_optimizer(bench *k)
{
    return b->training->updater_run(k->updater, k->control);
}

static tr_status open_sum(bench *k)
{
    tr_status st = TR_OK;
    TR_TRY(put_all(k, 1, k->n, 4));
    TR_TRY(put(k, 1, 8, &k->sums));
out:
    return st;
}

static tr_status run_sum(bench *k)
{
    return b->training->sum_squares(k->cuda, k->array[0], k->n, k->sums);
}

/* x, y or dx, dy; weight, bias and their gradients; statistics; the gradient's workspace */
static tr_status open_layernorm(bench *k)
{
    tr_status st = TR_OK;
    void *p;
    k->keep = tr_cuda_row_room(k->cuda);
    TR_TRY(put_all(k, 3, k->n, 2));
    TR_TRY(put_all(k, 4, k->width, 4));
    TR_TRY(put(k, 2 * k->rows, 4, &p));
    const size_t work = tr_cuda_layernorm_grad_workspace(TR_BF16, k->rows, k->width);
    TR_TRY(put(k, work / 4 + 1, 4, &p));
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
    TR_TRY(put_all(k, 2, k->n, 2));
    TR_TRY(put(k, k->rows, 4, &p));
    labels = tr_alloc(TR_MEM_OTHER, k->rows, sizeof *labels);
    if (!labels) TR_TRY(TR_MEMORY);
    for (size_t r = 0; r < k->rows; r++) labels[r] = (int32_t)(r * 7919 % k->width);
    TR_TRY(b->memory->upload(k->cuda, p, labels, k->rows * sizeof *labels));
    TR_TRY(put(k, TR_TALLY, 8, &p));
    TR_TRY(put(k, TR_LOSS_WORKSPACE / 8, 8, &p));
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
    TR_TRY(put_all(k, 3, k->n, 2));
    TR_TRY(put_all(k, 2, k->width, 4));
    TR_TRY(put(k, 1 + 2 * k->width, 8, &p));
    TR_TRY(put(k, tr_bn_parts(&m) / 8 + 1, 8, &p));
    TR_TRY(put(k, 2 * k->width, 8, &p));
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

/* As GPT-2's: sequences of 1024, causal, heads of 64 values, queries, keys and values packed. Their gradient; y, its gradient;
 * log-sum-exp; delta */
enum { SEQUENCE = 1024, HEAD = 64 };

static tr_cuda_attention_args attention_of(const bench *k)
{
    const size_t T = k->rows < SEQUENCE ? k->rows : SEQUENCE, heads = k->width / HEAD;
    const tr_bf16 *packed = k->array[0];
    tr_bf16 *grads = k->array[1];
    return (tr_cuda_attention_args){
        .s = {.samples = k->rows / T,
              .queries = T,
              .keys = T,
              .heads = heads,
              .kv_heads = heads,
              .D = HEAD,
              .q_pitch = 3 * k->width,
              .kv_pitch = 3 * k->width,
              .scale = 0.125f},
        .a = {.heads = (int64_t)heads, .kv_heads = (int64_t)heads, .causal = true},
        .q = packed,
        .k = packed + k->width,
        .v = packed + 2 * k->width,
        .y = k->array[2],
        .dy = k->array[3],
        .dq = grads,
        .dk = grads + k->width,
        .dv = grads + 2 * k->width,
        .lse = k->array[4],
        .delta = k->array[5],
        .matrix = k->matrix};
}

static tr_status run_attention(bench *k)
{
    const tr_cuda_attention_args a = attention_of(k);
    return tr_cuda_attention_run(TR_BF16, &a, k->cuda->stream);
}

static tr_status open_attention(bench *k)
{
    tr_status st = TR_OK;
    const tr_attention_shape s = attention_of(k).s;
    TR_TRY(put_all(k, 2, 3 * k->n, 2));
    TR_TRY(put_all(k, 2, k->n, 2));
    TR_TRY(put_all(k, 2, k->n / HEAD, 4));
    k->matrix = k->cuda->major >= 8;
    TR_TRY(tr_cuda_attention_ready(TR_BF16, HEAD, false, &k->matrix));
    k->flops = 2 * (double)(s.samples * s.heads * s.queries * (s.queries + 1) * HEAD);
out:
    return st;
}

static tr_status open_attention_grad(bench *k)
{
    tr_status st = TR_OK;
    TR_TRY(open_attention(k));
    TR_TRY(run_attention(k)); /* for y and its rows' sums */
    TR_TRY(tr_cuda_attention_ready(TR_BF16, HEAD, true, &k->matrix));
    k->flops *= 2.5; /* five products for two */
out:
    return st;
}

static tr_status run_attention_grad(bench *k)
{
    const tr_cuda_attention_args a = attention_of(k);
    return tr_cuda_attention_grad_run(TR_BF16, &a, k->cuda->stream);
}

/* The same by a plan of cuDNN's. */
static tr_status set_plan(bench *k, tr_dnn_pass pass)
{
    tr_status st = TR_OK;
    const tr_cuda_attention_args a = attention_of(k);
    const tr_attention_shape *s = &a.s;
    const int64_t heads = (int64_t)s->heads, width = (int64_t)k->width;
    const tr_dnn_problem p = {.pass = pass,
                              .type = TR_BF16,
                              .attention = {.samples = (int64_t)s->samples,
                                            .queries = (int64_t)s->queries,
                                            .keys = (int64_t)s->keys,
                                            .heads = heads,
                                            .kv_heads = heads,
                                            .D = HEAD,
                                            .q_pitch = 3 * width,
                                            .kv_pitch = 3 * width,
                                            .k_at = width,
                                            .v_at = 2 * width,
                                            .causal = 1,
                                            .lse = 1,
                                            .scale = (double)s->scale}};
    tr_dnn_operands at = {.q = k->array[0],
                          .k = (void *)(uintptr_t)a.k,
                          .v = (void *)(uintptr_t)a.v,
                          .o = a.y,
                          .lse = a.lse};
    const tr_dnn_plan *plan = NULL;
    TR_TRY(tr_dnn_plan_get(k->cuda->dnn, &p, &plan));
    k->left_out = !plan;
    if (!plan) goto out;
    if (pass == TR_DNN_ATTENTION_GRAD) {
        at.d_o = k->array[3];
        at.dq = a.dq;
        at.dk = a.dk;
        at.dv = a.dv;
        at.delta = a.delta;
        TR_TRY(put(k, k->n, 4, &at.sums));
    }
    TR_TRY(put(k, tr_dnn_plan_workspace(plan) / 4 + 1, 4, &at.workspace));
    TR_TRY(tr_dnn_call_set(&k->call, plan, &at));
out:
    return st;
}

static tr_status open_attention_plan(bench *k)
{
    const tr_status st = open_attention(k);
    return st == TR_OK ? set_plan(k, TR_DNN_ATTENTION) : st;
}

static tr_status open_attention_grad_plan(bench *k)
{
    const tr_status st = open_attention_grad(k);
    return st == TR_OK ? set_plan(k, TR_DNN_ATTENTION_GRAD) : st;
}

static tr_status run_attention_plan(bench *k)
{
    return tr_dnn_call_run(k->cuda->dnn, &k->call);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static const bench_case cases[] = {
    {"copy", 65536, 8192, 4, 0, open_two, run_copy},
    {"adamw, 25.6 M parameters", 1597320, 16, 28, 0.85, open_adamw, run_optimizer},
    {"adamw, 134 M parameters", 8388608, 16, 28, 0.85, open_adamw, run_optimizer},
    {"sgd with momentum, 134 M parameters", 8388608, 16, 20, 0.85, open_sgd, run_optimizer},
    {"sum of squares, 134 M", 8388608, 16, 4, 0, open_sum, run_sum},
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
    {"relu, 65536 x 4096", 65536, 4096, 4, 0, open_two, run_relu},
    {"add and relu, 65536 x 4096", 65536, 4096, 6, 0, open_three, run_add},
    {"attention, 8 x 1024 x 768", 8192, 768, 8, 0, open_attention, run_attention},
    {"attention, 8 x 1024 x 768, cuDNN", 8192, 768, 8, 0, open_attention_plan, run_attention_plan},
    {"attention.grad, 8 x 1024 x 768", 8192, 768, 16, 0, open_attention_grad, run_attention_grad},
    {"attention.grad, 8 x 1024 x 768, cuDNN", 8192, 768, 16, 0, open_attention_grad_plan,
     run_attention_plan},
};

static int by_size(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;
    return (p > q) - (p < q);
}

/* The median of RUNS runs, in seconds. */
static tr_status measure(bench *k, const bench_case *c, void *flush, size_t flush_size, double *out)
{
    tr_status st = TR_OK;
    cudaEvent_t begin = NULL, end = NULL;
    double seconds[RUNS];
    TR_CUDA_TRY(cudaEventCreate(&begin));
    TR_CUDA_TRY(cudaEventCreate(&end));
    for (int i = -WARM; i < RUNS; i++) {
        float ms = 0;
        TR_TRY(b->memory->zero(k->cuda, flush, flush_size));
        TR_CUDA_TRY(cudaEventRecord(begin, k->cuda->stream));
        TR_TRY(c->run(k));
        TR_CUDA_TRY(cudaEventRecord(end, k->cuda->stream));
        TR_CUDA_TRY(cudaEventSynchronize(end));
        TR_CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0) seconds[i] = ms * 1e-3;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_size);
    *out = seconds[RUNS / 2];
out:
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    return st;
}

/* *copy: the copy's rate; that of the first case. */
static tr_status one(tr_cuda *cuda, const bench_case *c, size_t divide, void *flush, double *copy)
{
    tr_status st = TR_OK;
    double seconds = 0;
    bench k = {.cuda = cuda, .rows = c->rows / divide + 1, .width = c->width};
    if (divide == 1) k.rows = c->rows;
    k.n = k.rows * k.width;
    TR_TRY(c->open(&k));
    if (k.left_out) goto out;
    TR_TRY(measure(&k, c, flush, FLUSH / divide, &seconds));
    const double bytes = c->per_element * (double)k.n, rate = seconds > 0 ? bytes / seconds : 0;
    if (*copy == 0) *copy = rate;
    printf("{\"kernel\":\"%s\",\"bytes\":%.0f,\"us\":%.1f,\"gb_per_s\":%.0f,\"of_copy\":%.3f,"
           "\"goal\":%.2f,\"tflop_per_s\":%.1f}\n",
           c->name, bytes, seconds * 1e6, rate * 1e-9, *copy > 0 ? rate / *copy : 0, c->goal,
           seconds > 0 ? k.flops / seconds * 1e-12 : 0);
    fflush(stdout);
out:
    (void)b->stream->finish(cuda);
    tr_dnn_call_close(&k.call);
    b->training->updater_close(k.updater);
    b->training->close(k.training);
    b->memory->free(cuda, k.control);
    for (int i = 0; i < k.arrays; i++) b->memory->free(cuda, k.array[i]);
    return st;
}

int main(int argc, char **argv)
{
    tr_status st = TR_OK;
    if (argc == 2 && strcmp(argv[1], "devices") == 0) {
        char why[256] = "";
        printf("{\"devices\":%d}\n", b->devices(why, sizeof why));
        if (why[0]) fprintf(stderr, "bench_cuda_kernels: %s\n", why);
        return 0;
    }
    const size_t divide = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const tr_backend_options o = {.workspace = 32 << 20};
    void *cuda = NULL, *flush = NULL;
    double copy = 0;
    TR_NEED(argc <= 2 && divide > 0, TR_CONFIG, "usage: bench_cuda_kernels [divide | devices]");
    TR_TRY(b->open(&o, &cuda));
    flush = b->memory->alloc(cuda, TR_MEM_OTHER, FLUSH);
    if (!flush) TR_TRY(tr_last_error()->status);
    for (size_t i = 0; i < TR_COUNT(cases); i++) TR_TRY(one(cuda, &cases[i], divide, flush, &copy));
out:
    if (st != TR_OK) fprintf(stderr, "bench_cuda_kernels: %s\n", tr_last_error()->text);
    if (cuda) b->memory->free(cuda, flush);
    b->close(cuda);
    return st == TR_OK ? 0 : 1;
}
